"""Input-dependent noise: likelihood of held-out errors, noise model for the log variance, and predictions."""

from __future__ import annotations

import pickle
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.frozen import FrozenEstimator
from torch import nn

from sklearn_laplace import LaplaceRegressor, metrics
from sklearn_laplace._ensemble import noise_model as noise
from sklearn_laplace._ensemble.noise_model import NoiseModel, SquaredErrors, TrainedNoise, noise_model
from sklearn_laplace._table.limits import budget_for
from sklearn_laplace.distributions import NormalMixture
from sklearn_laplace.errors import BoundWarning, UnsupportedCombinationError
from sklearn_laplace.laplace import Hyper, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.mode import DataLoss, Problem, alternate, refine
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.selection import HeldOutErrors
from sklearn_laplace.laplace.structures import Full

RNG = np.random.default_rng(3)
X, X_NEW = RNG.uniform(-2, 2, size=(150, 2)), RNG.uniform(-2, 2, size=(300, 2))
SMALL = {"hidden_layer_sizes": (8,), "random_state": 0}


def level(x):
    """True noise level."""
    return 0.15 * np.exp(0.8 * x[:, 1])


def targets(x, rng):
    return np.sin(x[:, 0]) + level(x) * rng.normal(size=len(x))


Y, Y_NEW = targets(X, RNG), targets(X_NEW, RNG)


@pytest.fixture(scope="module")
def varying():
    return LaplaceRegressor(**SMALL).fit(X, Y)


# ---------------------------------------------------------------------- the likelihood and its net


def test_the_likelihood_of_errors_is_a_normals():
    """Value by scipy, gradient by automatic differentiation, Fisher information by quadrature over the error."""
    torch.manual_seed(0)
    likelihood = SquaredErrors(0.3)
    h, error, variance = (torch.randn(5, 2).double() for _ in range(3))
    h, variance = h.requires_grad_(True), variance.exp()
    observed = torch.cat([error.square(), variance], 1)
    nll = likelihood.nll(h, observed)
    std = (variance + 0.3 * h.exp()).sqrt().detach().numpy()
    expected = -scipy.stats.norm(0, std).logpdf(error.numpy()).sum(1)
    normaliser = likelihood.log_normaliser(1.0, 2)
    np.testing.assert_allclose(nll.detach().numpy() + normaliser, expected, rtol=1e-12)
    (gradient,) = torch.autograd.grad(nll.sum(), h, create_graph=True)
    torch.testing.assert_close(likelihood.residual(h, observed), gradient)
    roots, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(20))
    fisher = torch.zeros(5, 2).double()
    for root, weight in zip(roots, weights / weights.sum(), strict=True):
        drawn = torch.cat([(root * torch.from_numpy(std)).square(), variance], 1)
        fisher += weight * likelihood.residual(h, drawn).square()
    factor = likelihood.hessian_factor(h, observed)
    torch.testing.assert_close(factor @ factor.mT, torch.diag_embed(fisher), rtol=1e-9, atol=1e-12)


def errors_of(spread, n=200, weights=None):
    x = torch.from_numpy(np.random.default_rng(1).uniform(-1, 1, size=(n, 1)))
    e = spread(x) * torch.from_numpy(np.random.default_rng(2).normal(size=(n, 1)))
    variance, ones = torch.full_like(e, 1e-4), torch.ones_like(e)
    return x, HeldOutErrors(e, variance, ones, torch.ones(n).double() if weights is None else weights)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def test_the_evidence_tells_noise_that_varies_from_noise_that_does_not():
    """The gain is tens of nats for noise that varies by a factor of seven, and small for constant noise."""
    x, errors = errors_of(lambda x: 0.5 * torch.exp(x))
    model = noise_model(net(), x, errors.weights, errors, 0.25).model
    assert model.gain > 20
    h = model.log_ratio(x).mean
    truth = 2 * x
    assert float((h - truth).square().mean()) < 0.2
    torch.testing.assert_close(model.ratios(x), h.exp())
    same = noise_model(net(), *(lambda x, e: (x, e.weights, e))(*errors_of(lambda x: 0.5 + 0 * x)), 0.25).model
    assert same.gain < noise.DECISIVE


def test_what_is_not_known_of_the_noise_is_integrated_over():
    """The mean over the nodes is that of a log-normal distribution."""
    x, errors = errors_of(lambda x: 0.5 * torch.exp(x))
    model = noise_model(net(), x, errors.weights, errors, 0.25).model
    log_ratio = model.log_ratio(x[:6])
    expected = (log_ratio.mean + 0.5 * log_ratio.variance).exp()
    torch.testing.assert_close(model.mean_ratio(x[:6]), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("level", [0.0, 0.7])
def test_the_noise_of_a_row_left_out_is_that_of_a_refit(level):
    """For two outputs and the same prior, tested on the five rows with the largest influence on the model."""
    x, errors = errors_of(lambda x: 0.5 * torch.exp(x))
    error = torch.cat([errors.errors, errors.errors.flip(0)], 1)
    likelihood, variance = SquaredErrors(0.25), torch.full_like(error, 0.02)
    targets, weights = torch.cat([error.square(), variance], 1), torch.tensor([1.0, 2.0]).double().repeat(100)

    def problem(weights):
        rows = [(x, targets, weights)]
        return Problem(
            lambda network: fit_laplace(network, likelihood, GGN(), Full, network.scalar_prior(), rows),
            lambda network: DataLoss(network, likelihood, rows),
        )

    torch.manual_seed(0)
    start = trace(nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 2)).double(), x)
    first, stays = Hyper(torch.ones(1).double()), lambda fit, hyper: hyper
    initial = problem(weights), problem(weights).linearise(start), first
    trained = alternate(*initial, free_prior=True, update_dispersion=stays, max_steps=60)
    hyper = trained.hyper
    fit = refine(problem(weights), trained.fit, hyper, 200).fit
    model = NoiseModel(fit, hyper, 0.0, log_level=level)
    trained = TrainedNoise(model, torch.arange(200), x, error, variance, weights, 0.25)
    inside, left_out = model.log_ratio(x).mean, trained.left_out()
    for k in (left_out.mean - inside).abs().amax(1).argsort(descending=True)[:5].tolist():
        others = weights.clone()
        others[k] = 0.0
        without = problem(others)
        refit = refine(without, without.linearise(fit.network), hyper, 200).fit
        expected = refit.network(x[k : k + 1])[0] - level
        torch.testing.assert_close(left_out.mean[k], expected, rtol=0, atol=0.25 * float((expected - inside[k]).norm()))
        variances = NoiseModel(refit, hyper, 0.0).log_ratio(x[k : k + 1]).variance[0]
        torch.testing.assert_close(left_out.variance[k], variances, rtol=0.2, atol=0)


def test_the_variance_of_predictions_is_the_one_of_the_training():
    """The stored rows and variances reproduce the gradient of the training."""
    x, errors = errors_of(lambda x: 0.5 * torch.exp(x), n=400)
    known = HeldOutErrors(errors.errors, torch.full_like(errors.errors, 0.2), errors.noise, errors.weights)
    trained = noise_model(net(), x, known.weights, known, 0.25)
    fit, hyper = trained.model.fit, trained.model.hyper
    likelihood = SquaredErrors(trained.dispersion)
    again = fit_laplace(
        fit.network,
        likelihood,
        GGN(),
        Full,
        fit.prior,
        [(trained.inputs, torch.cat([trained.errors.square(), trained.variance], 1), trained.weights)],
    )
    torch.testing.assert_close(again.objective_gradient(hyper), fit.objective_gradient(hyper))
    assert float((trained.variance - known.variance).abs().max()) > 0.02  # smaller where the noise is small


def test_rows_beyond_the_budget_are_a_sample(monkeypatch):
    monkeypatch.setattr(noise, "FEW_ROWS", 30)
    monkeypatch.setattr(noise, "ACCURATE", noise.Limits(steps=30, cost=1.0))
    chosen = noise.training_rows(100, 19, 0, noise.ACCURATE)
    assert len(set(chosen.tolist())) == 30 and set(chosen.tolist()) <= set(range(100))
    x, errors = errors_of(lambda x: 0.5 * torch.exp(x))
    trained = noise_model(net(), x, errors.weights, errors, 0.25)
    torch.testing.assert_close(trained.inputs, x[trained.chosen])
    torch.testing.assert_close(trained.errors, errors.errors[trained.chosen])
    assert len(trained.some(10).chosen) == 10
    torch.testing.assert_close(trained.some(10).inputs, x[trained.some(10).chosen])


def test_noise_that_runs_away_is_bounded_and_reported(monkeypatch):
    """Half of the rows have no noise."""
    x, errors = errors_of(lambda x: torch.where(x > 0, 1.0, 1e-9))
    model = noise_model(
        net(), x, errors.weights, HeldOutErrors(errors.errors, 0 * errors.variance, errors.noise, errors.weights), 0.5
    ).model
    monkeypatch.setattr(noise, "REACH", 3.0)
    assert float(model.ratios(x).log().abs().max()) <= 3.0 + 1e-9
    assert float(model.nodes(x)[1].log().abs().max()) <= 3.0 + 1e-9
    with pytest.warns(BoundWarning, match="a thousandth of the average"):
        model.warn_at_bounds(x)


# ---------------------------------------------------------------------- the estimator


def test_error_bars_follow_the_noise(varying):
    """Ranks of the noise levels, coverage in both halves, and better scores than with a constant noise level."""
    assert varying.noise_model_ is not None and varying.noise_model_.gain > noise.DECISIVE
    aleatoric = varying.predict_std(X_NEW, kind="aleatoric")
    assert scipy.stats.spearmanr(aleatoric, level(X_NEW)).statistic > 0.9
    lower, upper = varying.predict_interval(X_NEW, 0.9)[1].T
    inside = (lower <= Y_NEW) & (upper >= Y_NEW)
    for half in (X_NEW[:, 1] < 0, X_NEW[:, 1] > 0):
        assert 0.8 < inside[half].mean() < 0.99
    alike = LaplaceRegressor(likelihood="gaussian", **SMALL).fit(X, Y)
    assert alike.noise_model_ is None
    assert metrics.neg_nlpd(varying, X_NEW, Y_NEW) > metrics.neg_nlpd(alike, X_NEW, Y_NEW) + 0.2
    assert metrics.neg_crps(varying, X_NEW, Y_NEW) > metrics.neg_crps(alike, X_NEW, Y_NEW)


def test_noise_that_is_the_same_everywhere_stays_so():
    """The default fit equals that with likelihood="gaussian", to the bit."""
    y = np.sin(X[:, 0]) + 0.2 * np.random.default_rng(0).normal(size=150)
    auto, alike = (LaplaceRegressor(likelihood=kind, **SMALL).fit(X, y) for kind in ("auto", "gaussian"))
    assert auto.noise_model_ is None
    for one, other in zip(auto.predict(X_NEW, return_std=True), alike.predict(X_NEW, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)


def test_all_answers_are_of_one_distribution(varying):
    """Variances add up; moments, quantiles and draws are those of the predictive distribution."""
    distribution = varying.predict_dist(X_NEW[:40])
    assert isinstance(distribution, NormalMixture)
    mean, std = varying.predict(X_NEW[:40], return_std=True)
    np.testing.assert_allclose(distribution.mean(), mean, rtol=1e-9)
    np.testing.assert_allclose(distribution.std(), std, rtol=1e-9)
    parts = [varying.predict_std(X_NEW[:40], kind=kind) ** 2 for kind in ("epistemic", "aleatoric")]
    np.testing.assert_allclose(std**2, sum(parts), rtol=1e-9)
    covariance = varying.predict(X_NEW[:40], return_cov=True)[1]
    np.testing.assert_allclose(covariance.diagonal(), std**2, rtol=1e-6)
    draws = varying.sample_y(X_NEW[:40], 4000)
    below = (draws < varying.predict_quantiles(X_NEW[:40], [0.25])).mean(1)
    assert (np.abs(below - 0.25) < 5 * (0.25 * 0.75 / 4000) ** 0.5).all()
    lower = varying.predict_quantiles(X_NEW[:40], [0.1])[:, 0]
    np.testing.assert_allclose(distribution.cdf(lower), 0.1, atol=1e-9)


def test_the_mean_is_trained_under_the_noise(varying):
    """Each row that a member has seen enters its curvature with the inverse of its noise ratio."""
    member = varying._ensemble.first
    fit = varying.laplace_
    x = torch.from_numpy(member.kept.X[member.kept.weights > 0])
    ratios = varying.noise_model_.ratios(x)
    _, jacobian = fit.network.jacobian(x)
    rows = jacobian.rows()[:, 0] / ratios.sqrt()
    expected = rows.mT @ rows
    trace = torch.as_tensor(fit.curvature.eigenvalues()).sum()
    torch.testing.assert_close(trace, expected.diagonal().sum(), rtol=1e-6, atol=0)


def test_what_comes_after_the_fit_knows_the_noise(varying):
    """Pickling, leave-one-out, intervals, refit_laplace, partial_fit and forget with a noise model."""
    model = pickle.loads(pickle.dumps(varying))
    before = model.predict_std(X_NEW)
    np.testing.assert_array_equal(before, varying.predict_std(X_NEW))
    np.testing.assert_allclose(model.loo_predict(return_std=True)[1] > model.predict_std(X, kind="epistemic"), True)
    lower, upper = model.predict_interval(X_NEW, 0.9)[1].T
    assert scipy.stats.spearmanr(upper - lower, level(X_NEW)).statistic > 0.8
    inside = (lower <= Y_NEW) & (upper >= Y_NEW)
    assert 0.82 < inside.mean() < 0.97
    sigma = model.sigma_noise_
    doubled = model.refit_laplace(sigma_noise=2 * sigma).predict_std(X_NEW, kind="aleatoric")
    np.testing.assert_allclose(doubled, 2 * varying.predict_std(X_NEW, kind="aleatoric"), rtol=1e-6)
    model = LaplaceRegressor(hessian_structure="full", n_members=1, **SMALL).fit(X, Y)
    first = model.predict(X_NEW, return_std=True)
    model.partial_fit(X_NEW[:50], Y_NEW[:50])
    assert not np.allclose(model.predict(X_NEW), first[0], atol=1e-3)
    model.forget(X_NEW[:50], Y_NEW[:50])
    np.testing.assert_allclose(model.predict(X_NEW, return_std=True), first, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("short_training")
def test_a_weight_is_a_number_of_rows():
    """A weight of two equals two copies of the row, also for the noise model."""
    weights = np.where(np.arange(150) < 40, 2.0, 1.0)
    repeated = np.concatenate([np.arange(150), np.arange(40)])
    options = {"likelihood": "heteroscedastic", "n_members": 1, **SMALL}
    one = LaplaceRegressor(**options).fit(X, Y, sample_weight=weights)
    other = LaplaceRegressor(**options).fit(X[repeated], Y[repeated])
    np.testing.assert_allclose(one.predict_std(X_NEW), other.predict_std(X_NEW), rtol=1e-6)


def test_two_targets_have_noises_of_their_own():
    """The noise of one target varies along the second column, that of the other along the first."""
    other = level(X[:, ::-1]) * np.random.default_rng(5).normal(size=150)
    model = LaplaceRegressor(n_members=1, **SMALL).fit(X, np.column_stack([Y, other]))
    aleatoric = model.predict_std(X_NEW, kind="aleatoric")
    for column, truth in enumerate((level(X_NEW), level(X_NEW[:, ::-1]))):
        assert scipy.stats.spearmanr(aleatoric[:, column], truth).statistic > 0.8
    assert model.predict_quantiles(X_NEW, [0.1, 0.9]).shape == (300, 2, 2)


def test_the_best_constant_noise_is_that_of_each_output():
    """The grid search for all outputs at once equals a separate search for each output."""
    rng = np.random.default_rng(0)
    squares, variances = (torch.from_numpy(rng.gamma(1.0, size=(20, 3)) * [1.0, 9.0, 0.1]) for _ in range(2))
    weights = torch.from_numpy(rng.uniform(0.5, 2.0, size=20))
    best = noise._same_everywhere(0.4, torch.cat([squares, variances], 1), weights)

    def log_density(level, k):
        scale = (variances[:, k] + 0.4 * float(np.exp(level))).sqrt()
        return float(weights @ torch.distributions.Normal(0.0, scale).log_prob(squares[:, k].sqrt()))

    levels = np.linspace(-noise.REACH, noise.REACH, len(noise.LEVELS))
    assert best == pytest.approx(sum(max(log_density(level, k) for level in levels) for k in range(3)), rel=1e-9)


def test_many_targets_have_one_noise_each_by_default():
    """A noise model with 100 outputs is not trained, since its exact steps would take minutes."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 5)), rng.normal(size=(50, 100))
    before = time.process_time()
    model = LaplaceRegressor(random_state=0).fit(x, y)
    assert model.noise_model_ is None and model.predict_std(x).shape == (50, 100)
    assert time.process_time() - before < 30  # processor time of all threads


def test_the_noise_is_left_out_where_its_steps_are_dearer_than_those_of_a_training(monkeypatch):
    """The cost is compared before the training; likelihood="heteroscedastic" trains the noise model at any cost."""
    x, errors = errors_of(lambda x: 0.5 * torch.exp(x))
    monkeypatch.setattr(noise, "budget_for", lambda n_rows: replace(budget_for(n_rows), exact_step=19**3))
    arguments = net(), x, errors.weights, errors, 0.25
    assert noise_model(*arguments, always=False) is not None  # 19 weights
    monkeypatch.setattr(noise, "budget_for", lambda n_rows: replace(budget_for(n_rows), exact_step=19**3 - 1))
    assert noise_model(*arguments, always=False) is None and noise_model(*arguments, always=True) is not None


def test_a_net_of_ones_own_learns_the_noise_by_leave_one_out():
    """With likelihood="heteroscedastic"; the weights are those of a training with a constant noise level."""
    options = {"net": nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)), "random_state": 0}
    model = LaplaceRegressor(likelihood="heteroscedastic", **options).fit(X, Y)
    assert not model.noise_model_.is_trained_under
    assert scipy.stats.spearmanr(model.predict_std(X_NEW, kind="aleatoric"), level(X_NEW)).statistic > 0.8
    alike = LaplaceRegressor(likelihood="gaussian", **options).fit(X, Y)
    np.testing.assert_array_equal(model.predict(X_NEW), alike.predict(X_NEW))
    assert LaplaceRegressor(**options).fit(X, Y).noise_model_ is None


def test_noise_cannot_be_known_and_learnt():
    """A noise model with known noise variances, or with a posterior as prior, raises an error."""
    with pytest.raises(UnsupportedCombinationError, match="heteroscedastic"):
        LaplaceRegressor(likelihood="heteroscedastic", **SMALL).fit(X, Y, sample_noise_variance=np.ones(150))
    previous = LaplaceRegressor(likelihood="gaussian", prior_precision=1.0, sigma_noise=0.2, **SMALL).fit(X, Y)
    with pytest.raises(UnsupportedCombinationError, match="its ratios are given"):
        LaplaceRegressor(likelihood="heteroscedastic", prior=FrozenEstimator(previous), **SMALL).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LaplaceRegressor(n_members=1, **SMALL).fit(X, Y, sample_noise_variance=np.full(150, 0.1))


def test_a_cache_knows_all_trainings(tmp_path):
    """The training of each member; the noise model of left-out errors follows the training."""
    options = {"memory": str(tmp_path), "n_members": 4, **SMALL}
    first = LaplaceRegressor(**options).fit(X, Y)
    stored = sorted(path for path in tmp_path.rglob("output.pkl"))
    second = LaplaceRegressor(temperature=2.0, **options).fit(X, Y)
    assert len(stored) == 4 and sorted(tmp_path.rglob("output.pkl")) == stored
    np.testing.assert_array_equal(first.predict(X_NEW), second.predict(X_NEW))


def test_noise_that_jumps_is_found_on_both_sides():
    """Where the noise is small, variances of held-out rows under the average noise exceed the squared errors."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 6, 300)
    y = np.sin(x) + np.where(x < 3, 0.05, 0.4) * rng.normal(size=300)
    model = LaplaceRegressor(n_members=1, random_state=0).fit(x[:, None], y)
    aleatoric = model.predict_std([[1.0], [2.0], [4.0], [5.0]], kind="aleatoric")
    assert (np.abs(np.log(aleatoric / [0.05, 0.05, 0.4, 0.4])) < np.log(1.5)).all()
