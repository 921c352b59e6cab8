"""Mixtures of two encodings for classes and counts: one factor of the posterior covariance."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import oracles
import pytest
import torch

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save, to_onnx
from sklearn_laplace._approximation.held_out import CrossFit
from sklearn_laplace._approximation.row_densities import LatentDensities
from sklearn_laplace._ensemble import fit as ensemble_fit
from sklearn_laplace._ensemble.weights import LEAST_FACTOR, LIKELY, of_kinds
from sklearn_laplace.distributions.densities import density_for
from sklearn_laplace.laplace.latent import LatentGaussian
from sklearn_laplace.laplace.likelihoods import Bernoulli, Categorical

SMALL = {"hidden_layer_sizes": (4,), "random_state": 0, "n_bins": (None, 6)}
RNG = np.random.default_rng(0)
X, NEW = RNG.normal(size=(60, 2)), RNG.normal(size=(30, 2))
LABELS = np.digitize(np.sin(2 * X[:, 0]) + X[:, 1] + 0.5 * np.random.default_rng(0).normal(size=60), [-0.6, 0.6])
FACTOR_OF_TWO, FACTOR = 0.64, 0.64**1.5
"""Factor for one net of each encoding, and for two: ``1 - Σ a²`` is 1/2 and 3/4."""


def fitted(kind, y, **options):
    """A mixture of both encodings in equal parts, with a given factor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ensemble_fit, "of_kinds", lambda *_: (np.array([0.5, 0.5]), FACTOR_OF_TWO))
        return kind(**SMALL, **options).fit(X, y)


def without_factor(model):
    """A copy whose members have the posterior covariance of their own kind."""
    copy, options = pickle.loads(pickle.dumps(model)), model._options()
    members = [replace(member, covariance_factor=1.0) for member in copy._ensemble.members]
    members = [member.with_hyper(member.fit, member.hyper, options) for member in members]
    copy._ensemble = replace(copy._ensemble, members=tuple(members), factor=1.0)
    return copy


@pytest.fixture(scope="module")
def narrow():
    return fitted(LaplaceClassifier, LABELS, n_members=2)


@pytest.fixture(scope="module")
def plain(narrow):
    return without_factor(narrow)


def latents(model, rows):
    """Mean and covariance of the outputs of each member."""
    with model._asked(rows) as (x, options):
        return [member.latent(x, options) for member in model._ensemble.members]


# ---------------------------------------------------------------------- choice of the factor


def kinds_of_rows(planted, n=4000):
    """Logits of two kinds whose covariance is ``1/planted`` times that of their errors, and labels of the rows."""
    random = np.random.default_rng(1)
    truth = 2 * random.normal(size=n)
    labels = torch.from_numpy((random.uniform(size=n) < 1 / (1 + np.exp(-truth))).astype(int))
    variance = torch.full((n, 1, 1), 4.0 / planted, dtype=torch.float64)
    density, kinds = density_for(Bernoulli()), []
    for hidden in (slice(0, None, 2), slice(1, None, 2)):  # each kind knows less about one half of the rows
        mean = truth + 0.3 * random.normal(size=n)
        mean[hidden] += 2 * random.normal(size=len(mean[hidden]))
        kinds.append(LatentDensities(LatentGaussian(torch.from_numpy(mean)[:, None], variance), labels, density))
    return kinds


def test_a_scaled_density_is_that_of_the_scaled_gaussian():
    """Closed form of three classes, row by row."""
    random = torch.Generator().manual_seed(0)
    mean = torch.randn(6, 3, generator=random, dtype=torch.float64)
    roots = torch.randn(6, 3, 3, generator=random, dtype=torch.float64)
    covariance, labels = roots @ roots.mT, torch.arange(6) % 3
    rows = LatentDensities(LatentGaussian(mean, covariance), labels, density_for(Categorical()))
    for factor in (1.0, 0.3):
        expected = [
            float(oracles.pairwise_probit(m, factor * c)[k].log())
            for m, c, k in zip(mean, covariance, labels, strict=True)
        ]
        np.testing.assert_allclose(rows.scaled(factor), expected, rtol=1e-9)


def test_a_covariance_that_is_too_wide_is_found_by_the_density_of_the_mixture():
    """Direct search for the factor of largest density."""
    kinds, weights = kinds_of_rows(0.1), np.random.default_rng(2).uniform(0.5, 2.0, 4000)
    shares, factor = of_kinds(kinds, weights)
    grid = np.linspace(LEAST_FACTOR, 1, 60)
    along = [weights @ np.log(shares @ np.exp([kind.scaled(f) for kind in kinds])) for f in grid]
    assert max(along) > along[-1] + LIKELY
    assert factor == pytest.approx(grid[int(np.argmax(along))], abs=0.02)


def test_a_factor_needs_two_nats():
    """The same rows with a quarter of the weight: the gain is then 1.7 nats, and the covariance stays."""
    _, of_all = of_kinds(kinds_of_rows(2.0), np.ones(4000))
    shares, of_few = of_kinds(kinds_of_rows(2.0), np.full(4000, 0.25))
    assert of_all < 0.5 and of_few == 1
    assert shares.min() > 0.4, "the gain of the mixture itself is decisive"


def test_a_covariance_that_is_too_narrow_stays():
    """A mixture never needs a larger covariance than its kinds have chosen."""
    shares, factor = of_kinds(kinds_of_rows(10.0), np.ones(4000))
    assert factor == 1 and shares.min() > 0.4


def test_a_fit_takes_the_factor_of_its_held_out_rows(monkeypatch):
    """That of one net of each encoding, extrapolated to the nets of the mixture."""
    seen, original = [], CrossFit.densities_of_rows
    monkeypatch.setattr(CrossFit, "densities_of_rows", lambda *a: seen.append(original(*a)) or seen[-1])
    for name, value in {"DECISIVE": -1.0, "LIKELY": 0.0}.items():
        monkeypatch.setattr(f"sklearn_laplace._ensemble.weights.{name}", value)
    model = LaplaceClassifier(**SMALL, n_members=2).fit(X, LABELS)
    assert len(seen) == 2 and all(len(kind.scaled(1.0)) == len(X) for kind in seen)
    factor = of_kinds(seen, np.ones(len(X)))[1]
    of_kind = np.array([member.n_bins == 6 for member in model.members_])
    weights, totals = model.member_weights_, [model.member_weights_[part].sum() for part in (~of_kind, of_kind)]
    assert LEAST_FACTOR < factor**1.5 < factor < 0.9 and len(weights) == 4
    reach = (1 - np.square(weights).sum()) / (1 - np.square(totals).sum())
    assert model._ensemble.factor == pytest.approx(factor**reach, rel=1e-9)


# ---------------------------------------------------------------------- what the factor changes


def test_the_covariance_is_multiplied_and_nothing_else(plain, narrow):
    for one, other in zip(latents(plain, NEW), latents(narrow, NEW), strict=True):
        torch.testing.assert_close(other.mean, one.mean, rtol=0, atol=0)
        torch.testing.assert_close(other.covariance, FACTOR * one.covariance, rtol=1e-6, atol=1e-9)
    assert narrow.hyper_.prior_precision == plain.hyper_.prior_precision
    assert narrow.log_marginal_likelihood_value_ == plain.log_marginal_likelihood_value_
    assert narrow.n_effective_parameters_ == plain.n_effective_parameters_


def test_probabilities_are_those_of_the_closed_form(plain, narrow):
    members = latents(plain, NEW)
    expected = [
        [oracles.moderated_softmax(m, FACTOR * c) for m, c in zip(one.mean.double(), one.covariance, strict=True)]
        for one in members
    ]
    mixed = narrow.member_weights_ @ np.array([torch.stack(one).flatten().numpy() for one in expected])
    np.testing.assert_allclose(narrow.predict_proba(NEW).ravel(), mixed, rtol=5e-3)  # k_q is fitted to 0.8 %
    assert np.abs(narrow.predict_proba(NEW) - plain.predict_proba(NEW)).max() > 0.01


def test_leave_one_out_has_the_same_means_and_the_scaled_covariance(plain, narrow):
    """The factor is not a stronger prior, under which the left-out means would be others."""
    for one, other in zip(plain._ensemble.members, narrow._ensemble.members, strict=True):
        options = plain._options()
        both = [each._without_row(each.left_out(options, "loo"), options) for each in (one, other)]
        torch.testing.assert_close(both[1].mean, both[0].mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(both[1].covariance, FACTOR * both[0].covariance, rtol=1e-6, atol=1e-9)


def test_a_given_prior_has_no_factor_and_auto_has_it_again(plain, narrow):
    model, same = pickle.loads(pickle.dumps(narrow)), pickle.loads(pickle.dumps(plain))
    model.refit_laplace(prior_precision=3.0)
    np.testing.assert_allclose(model.predict_proba(NEW), same.refit_laplace(prior_precision=3.0).predict_proba(NEW))
    model.refit_laplace(prior_precision="auto", temperature=0.5)
    assert model.hyper_.temperature == 0.5
    for one, other in zip(
        latents(same.refit_laplace(prior_precision="auto", temperature=0.5), NEW), latents(model, NEW), strict=True
    ):
        torch.testing.assert_close(other.covariance, FACTOR * one.covariance, rtol=1e-6, atol=1e-9)


def test_further_rows_keep_the_factor(plain, narrow):
    rows = NEW, np.arange(30) % 3
    one, other = (pickle.loads(pickle.dumps(model)).partial_fit(*rows) for model in (plain, narrow))
    for a, b in zip(latents(one, NEW), latents(other, NEW), strict=True):
        torch.testing.assert_close(b.covariance, FACTOR * a.covariance, rtol=1e-6, atol=1e-9)


def test_it_is_stored(narrow, tmp_path):
    save(narrow, tmp_path / "model.laplace")
    for again in (pickle.loads(pickle.dumps(narrow)), load(tmp_path / "model.laplace")):
        np.testing.assert_array_equal(again.predict_proba(NEW), narrow.predict_proba(NEW))
        again.refit_laplace()
        np.testing.assert_allclose(again.predict_proba(NEW), narrow.predict_proba(NEW), rtol=1e-9)


def test_it_is_in_the_graph(narrow):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(to_onnx(narrow).SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"X": NEW})[0], narrow.predict_proba(NEW), atol=1e-5)


def test_counts_have_it_as_well():
    """The noise of counts is not scaled, neither by the fit nor afterwards."""
    model = fitted(LaplaceRegressor, RNG.poisson(np.exp(X[:, 0])), likelihood="poisson", n_members=2)
    for one, other in zip(latents(without_factor(model), NEW), latents(model, NEW), strict=True):
        torch.testing.assert_close(other.covariance, FACTOR * one.covariance, rtol=1e-6, atol=1e-9)
    before = model.predict_std(NEW)
    np.testing.assert_allclose(model.refit_laplace().predict_std(NEW), before, rtol=1e-9)
    assert model.hyper_.dispersion == 1
