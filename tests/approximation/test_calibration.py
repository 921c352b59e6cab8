"""Variances and tails of a mixture, by the errors of rows that its members have not seen."""

from __future__ import annotations

import dataclasses
import math
import pickle

import numpy as np
import oracles
import pandas as pd
import pytest
import torch

from sklearn_laplace import LaplaceRegressor, load, save
from sklearn_laplace._approximation import calibration
from sklearn_laplace._approximation.calibration import HeldOutDeals, calibrated
from sklearn_laplace._training import built_in

N = 3000


def deals(errors, *, n_deals=2, log_variance=0.0, variance=0.1):
    """Errors (D, n, 1) of predictions with this variance, beside noise of variance one."""
    shape = errors.shape
    return HeldOutDeals(
        torch.from_numpy(errors),
        torch.full(shape, variance, dtype=torch.float64),
        torch.ones(shape, dtype=torch.float64),
        None if log_variance is None else torch.full(shape[1:], log_variance, dtype=torch.float64),
        torch.ones(shape[1], dtype=torch.float64),
        torch.full((n_deals,), 1 / n_deals, dtype=torch.float64),
    )


def errors_of(random, *, spread=0.0, own=0.1, noise=1.0, n=N, n_deals=2):
    """The same noise in all deals, with a log variance of this spread, and each member's own error."""
    level = noise * np.exp(spread * random.normal(size=(n, 1)) - spread**2 / 2)
    return np.sqrt(level) * random.normal(size=(n, 1)) + math.sqrt(own) * random.normal(size=(n_deals, n, 1))


def of_eight(own):
    """The factor of eight members whose own error has this share of the variance of an error."""
    return (1 - own * 7 / 8) - own * 7 / 8


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.5])
def test_the_density_of_an_error_is_that_of_the_integral(spread):
    random = np.random.default_rng(7)
    errors, variance, noise = random.normal(size=(1, 6, 2)), *random.uniform(0.1, 2, size=(2, 1, 6, 2))
    log_variance = random.uniform(0.0, 1.0, size=(6, 2))
    one = torch.ones(1, dtype=torch.float64)
    given = (torch.from_numpy(part) for part in (errors, variance, noise, log_variance))
    found = HeldOutDeals(*given, torch.ones(6, dtype=torch.float64), one).log_densities(1.7, spread)
    for place in np.ndindex(6, 2):
        own = (float(part[(0, *place)]) for part in (errors, variance, noise))
        expected = oracles.log_density_of_error(*own, float(log_variance[place]), 1.7, spread)
        assert float(found[(0, *place)]) == pytest.approx(expected, abs=2e-3)


def test_normal_errors_have_no_further_tails():
    found = calibrated(deals(errors_of(np.random.default_rng(0))), [0.125] * 8)
    assert found.spread == 0.0
    assert found.factor == pytest.approx(of_eight(1 / 11), abs=0.06)


@pytest.mark.parametrize("true", [0.9, 1.3])
def test_heavy_tails_are_found(true):
    random = np.random.default_rng(1)
    spread = calibrated(deals(errors_of(random, spread=true)), [0.125] * 8).spread
    assert spread == pytest.approx(true, abs=0.25)


def test_a_log_variance_that_is_known_to_be_uncertain_counts():
    """What the model of the noise does not know of its level makes tails too: nothing further is needed."""
    random = np.random.default_rng(2)
    found = calibrated(deals(errors_of(random, spread=1.0) * math.exp(0.25), log_variance=1.0), [0.125] * 8)
    assert found.spread <= calibration.USUAL_SPREAD


def test_no_model_of_the_noise_no_tails():
    random = np.random.default_rng(3)
    assert calibrated(deals(errors_of(random, spread=1.3), log_variance=None), [0.125] * 8).spread == 0.0


@pytest.mark.parametrize("scale", [0.25, 2.0])
def test_the_factor_is_the_size_of_the_errors(scale):
    random = np.random.default_rng(4)
    found = deals(math.sqrt(scale) * errors_of(random, n_deals=1), n_deals=1)
    assert calibrated(found, [0.25] * 4).factor == pytest.approx(scale, rel=0.1)


@pytest.mark.parametrize("own", [0.1, 0.2])
def test_a_mixture_of_members_that_err_on_their_own_needs_less_variance(monkeypatch, own):
    """Two members need the factor 1 − own. Eight average 7/8 in place of 1/2 of the own error away."""
    monkeypatch.setattr(calibration, "MOST_ROWS", 40_000)
    random = np.random.default_rng(5)
    found = deals(errors_of(random, own=own, noise=1 - own, n=40_000), variance=own)
    found = dataclasses.replace(found, noise=(1 - own) * found.noise)
    best = calibrated(found, [0.125] * 8)
    assert best.spread == 0.0
    assert best.of_deals == pytest.approx(1 - own, rel=0.08)
    assert best.factor == pytest.approx((1 - own) ** 1.75, rel=0.08)


def test_many_rows_are_a_sample():
    random = np.random.default_rng(6)
    found = deals(errors_of(random, n=3 * calibration.MOST_ROWS))
    assert len(found.some(calibration.MOST_ROWS).weights) == calibration.MOST_ROWS
    assert calibrated(found, [0.125] * 8).factor == pytest.approx(of_eight(1 / 11), abs=0.06)


# ---------------------------------------------------------------------- the estimator


def tailed(n, seed):
    """A wave with noise of Student's t with three degrees of freedom, whose scale grows with the second column."""
    random = np.random.default_rng(seed)
    X = random.uniform(size=(n, 2))
    return X, np.sin(6 * X[:, 0]) + 0.05 * 10 ** X[:, 1] * random.standard_t(3, size=n)


@pytest.fixture(scope="module")
def heavy() -> LaplaceRegressor:
    return LaplaceRegressor(random_state=0).fit(*tailed(1500, 0))


@pytest.fixture(scope="module")
def plain(heavy) -> LaplaceRegressor:
    """The same model without the tails."""
    model = pickle.loads(pickle.dumps(heavy))
    assert model.noise_model_.spread == heavy.noise_model_.spread
    bare = dataclasses.replace(model.noise_model_, spread=0.0)
    members = tuple(dataclasses.replace(member, noise_model=bare) for member in model._ensemble.members)
    model._ensemble = dataclasses.replace(model._ensemble, members=members)
    return model


def test_heavy_tails_of_the_noise_are_predicted(heavy, plain):
    X, y = tailed(3000, 1)
    assert heavy.noise_model_.spread > calibration.USUAL_SPREAD
    dist = heavy.predict_dist(X)
    assert dist.logpdf(y).mean() > plain.predict_dist(X).logpdf(y).mean() + 0.02
    for level, off in ((0.5, 0.05), (0.8, 0.03), (0.9, 0.02), (0.99, 0.006)):
        low, high = dist.interval(level)
        assert np.mean((low <= y) & (y <= high)) == pytest.approx(level, abs=off)


def test_tails_leave_the_spread_and_reach_quantiles_and_draws(heavy, plain):
    X = tailed(20, 2)[0]
    np.testing.assert_allclose(heavy.predict_std(X), plain.predict_std(X), rtol=1e-3)
    dist = heavy.predict_dist(X)
    assert (dist.ppf(0.995) > plain.predict_dist(X).ppf(0.995)).all()
    draws = heavy.sample_y(X[:1], 40_000, random_state=0)[0]
    for q in (0.005, 0.05, 0.5, 0.95, 0.995):
        assert np.mean(draws <= dist.ppf(q)[0]) == pytest.approx(q, abs=4 * math.sqrt(q * (1 - q) / len(draws)))


def test_a_file_keeps_the_tails(heavy, tmp_path):
    X = tailed(20, 3)[0]
    save(heavy, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert again.noise_model_.spread == heavy.noise_model_.spread
    np.testing.assert_array_equal(again.predict_dist(X).ppf(0.99), heavy.predict_dist(X).ppf(0.99))


def test_errors_of_few_rows_have_tails_too():
    """By nets beside the first one, each without a third of the rows."""
    model = LaplaceRegressor(random_state=0, n_bins=None).fit(*tailed(300, 4))
    assert model.noise_model_ is not None and model.noise_model_.spread > 0


def test_the_noise_of_a_table_with_many_levels_is_learnt():
    """A column of names that are nearly unique: the net of the noise does not tell them apart."""
    random = np.random.default_rng(3)
    x, n = random.uniform(size=1200), 1200
    names = [f"day {k}" for k in random.integers(0, 400, size=n)]
    X = pd.DataFrame({"x": x, "day": names})
    y = np.sin(6 * x) + 0.05 * 10**x * random.normal(size=n)
    model = LaplaceRegressor(random_state=0).fit(X, y)
    assert model.noise_model_ is not None
    assert model.noise_model_.fit.network.n_parameters < 200
    few = pd.DataFrame({"x": [0.05, 0.95], "day": ["day 3", "never seen"]})
    low, high = model.predict_std(few, kind="aleatoric")
    assert 4 < high / low < 16
    assert len(set(names)) > built_in.MOST_LEVELS
