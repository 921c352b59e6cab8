"""Calibration of the variances and tails of a mixture by held-out errors of its members."""

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
from sklearn_laplace._ensemble import calibration
from sklearn_laplace._ensemble.calibration import HeldOutRepeats, calibrated
from sklearn_laplace._training import built_in

N = 3000


def repeats(errors, *, n_repeats=2, log_variance=0.0, variance=0.1):
    """Held-out errors (D, n, 1) of predictions with this variance, and noise of variance one."""
    shape = errors.shape
    return HeldOutRepeats(
        torch.from_numpy(errors),
        torch.full(shape, variance, dtype=torch.float64),
        torch.ones(shape, dtype=torch.float64),
        None if log_variance is None else torch.full(shape[1:], log_variance, dtype=torch.float64),
        torch.ones(shape[1], dtype=torch.float64),
        torch.full((n_repeats,), 1 / n_repeats, dtype=torch.float64),
    )


def errors_of(random, *, spread=0.0, independent=0.1, noise=1.0, n=N, n_repeats=2):
    """Sum of the same noise in all repeats and independent errors of the members.

    The log variance of the noise has standard deviation ``spread``.
    """
    level = noise * np.exp(spread * random.normal(size=(n, 1)) - spread**2 / 2)
    return np.sqrt(level) * random.normal(size=(n, 1)) + math.sqrt(independent) * random.normal(size=(n_repeats, n, 1))


def of_eight(independent):
    """Factor for eight members, for this share of independent member errors in the variance."""
    return (1 - independent * 7 / 8) - independent * 7 / 8


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.5])
def test_the_density_of_an_error_is_that_of_the_integral(spread):
    random = np.random.default_rng(7)
    errors, variance, noise = random.normal(size=(1, 6, 2)), *random.uniform(0.1, 2, size=(2, 1, 6, 2))
    log_variance = random.uniform(0.0, 1.0, size=(6, 2))
    one = torch.ones(1, dtype=torch.float64)
    arrays = (torch.from_numpy(part) for part in (errors, variance, noise, log_variance))
    densities = HeldOutRepeats(*arrays, torch.ones(6, dtype=torch.float64), one).log_densities(1.7, spread)
    for place in np.ndindex(6, 2):
        values = (float(part[(0, *place)]) for part in (errors, variance, noise))
        expected = oracles.log_density_of_error(*values, float(log_variance[place]), 1.7, spread)
        assert float(densities[(0, *place)]) == pytest.approx(expected, abs=2e-3)


def test_normal_errors_have_no_further_tails():
    factor, spread = calibrated(repeats(errors_of(np.random.default_rng(0))), [0.125] * 8)
    assert spread == 0.0
    assert factor == pytest.approx(of_eight(1 / 11), abs=0.06)


@pytest.mark.parametrize("true", [0.9, 1.3])
def test_heavy_tails_are_found(true):
    random = np.random.default_rng(1)
    spread = calibrated(repeats(errors_of(random, spread=true)), [0.125] * 8)[1]
    assert spread == pytest.approx(true, abs=0.25)


def test_a_log_variance_that_is_known_to_be_uncertain_counts():
    """Uncertainty of the noise model about the log variance also gives heavy tails; no further spread is needed."""
    random = np.random.default_rng(2)
    _, spread = calibrated(repeats(errors_of(random, spread=1.0) * math.exp(0.25), log_variance=1.0), [0.125] * 8)
    assert spread <= calibration.USUAL_SPREAD


def test_no_model_of_the_noise_no_tails():
    random = np.random.default_rng(3)
    assert calibrated(repeats(errors_of(random, spread=1.3), log_variance=None), [0.125] * 8)[1] == 0.0


@pytest.mark.parametrize("scale", [0.25, 2.0])
def test_the_factor_is_the_size_of_the_errors(scale):
    random = np.random.default_rng(4)
    held_out = repeats(math.sqrt(scale) * errors_of(random, n_repeats=1), n_repeats=1)
    assert calibrated(held_out, [0.25] * 4)[0] == pytest.approx(scale, rel=0.1)


def test_a_mixture_of_members_that_err_on_their_own_needs_less_variance(monkeypatch):
    """Two members need the factor 1 − s for a share s of independent errors; eight average 7/8 of it away, not 1/2."""
    monkeypatch.setattr(calibration, "MOST_ROWS", 40_000)
    random, independent = np.random.default_rng(5), 0.2
    errors = errors_of(random, independent=independent, noise=1 - independent, n=40_000)
    held_out = repeats(errors, variance=independent)
    held_out = dataclasses.replace(held_out, noise=(1 - independent) * held_out.noise)
    factor, spread = calibrated(held_out, [0.125] * 8)
    assert spread == 0.0
    assert factor == pytest.approx((1 - independent) ** 1.75, rel=0.08)


def test_many_rows_are_a_sample():
    random = np.random.default_rng(6)
    held_out = repeats(errors_of(random, n=3 * calibration.MOST_ROWS))
    assert len(held_out.some(calibration.MOST_ROWS).weights) == calibration.MOST_ROWS
    assert calibrated(held_out, [0.125] * 8)[0] == pytest.approx(of_eight(1 / 11), abs=0.06)


# ---------------------------------------------------------------------- the estimator


def tailed(n, seed):
    """Sine with Student's t noise of three degrees of freedom, whose scale grows with the second column."""
    random = np.random.default_rng(seed)
    X = random.uniform(size=(n, 2))
    return X, np.sin(6 * X[:, 0]) + 0.05 * 10 ** X[:, 1] * random.standard_t(3, size=n)


@pytest.fixture(scope="module")
def heavy() -> LaplaceRegressor:
    return LaplaceRegressor(random_state=0).fit(*tailed(1500, 0))


@pytest.fixture(scope="module")
def plain(heavy) -> LaplaceRegressor:
    """The same model with normal noise."""
    model = pickle.loads(pickle.dumps(heavy))
    assert model.noise_model_.spread == heavy.noise_model_.spread
    bare = dataclasses.replace(model.noise_model_, spread=0.0)
    members = tuple(dataclasses.replace(member, noise_model=bare) for member in model._ensemble.members)
    model._ensemble = dataclasses.replace(model._ensemble, members=members)
    return model


def test_heavy_tails_of_the_noise_are_predicted(heavy, plain):
    X, y = tailed(2000, 1)
    assert heavy.noise_model_.spread > calibration.USUAL_SPREAD
    dist = heavy.predict_dist(X)
    assert dist.logpdf(y).mean() > plain.predict_dist(X).logpdf(y).mean() + 0.02
    distance_from_median = np.abs(dist.cdf(y) - 0.5)
    for level, off in ((0.5, 0.05), (0.8, 0.03), (0.9, 0.02), (0.99, 0.006)):
        assert np.mean(distance_from_median <= level / 2) == pytest.approx(level, abs=off)


def test_tails_leave_the_spread_and_reach_quantiles_and_draws(heavy, plain):
    X = tailed(5, 2)[0]
    np.testing.assert_allclose(heavy.predict_std(X), plain.predict_std(X), rtol=1e-3)
    dist = heavy.predict_dist(X)
    assert (dist.ppf(0.995) > plain.predict_dist(X).ppf(0.995)).all()
    draws = heavy.sample_y(X[:1], 10_000, random_state=0)[0]
    for q in (0.005, 0.05, 0.5, 0.95, 0.995):
        assert np.mean(draws <= dist.ppf(q)[0]) == pytest.approx(q, abs=4 * math.sqrt(q * (1 - q) / len(draws)))


def test_a_file_keeps_the_tails(heavy, tmp_path):
    X = tailed(20, 3)[0]
    save(heavy, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert again.noise_model_.spread == heavy.noise_model_.spread
    np.testing.assert_array_equal(again.predict_dist(X).ppf(0.99), heavy.predict_dist(X).ppf(0.99))


def test_errors_of_few_rows_have_tails_too():
    """Estimated by members, each without an eighth of the rows."""
    model = LaplaceRegressor(random_state=0, n_bins=None).fit(*tailed(300, 4))
    assert model.noise_model_ is not None and model.noise_model_.spread > 0


def test_the_noise_of_a_table_with_many_levels_is_learnt():
    """A column of nearly unique names: the noise model does not encode them."""
    random = np.random.default_rng(3)
    x, n = random.uniform(size=800), 800
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
