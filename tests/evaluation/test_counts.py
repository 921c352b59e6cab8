"""Counts: the distribution returned by ``predict_dist``, and regressors with ``likelihood="poisson"``."""

from __future__ import annotations

import pickle

import nets
import numpy as np
import oracles
import pytest
import scipy.stats
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import PoissonRegressor
from torch import nn

from sklearn_laplace import LaplaceRegressor, metrics
from sklearn_laplace._ensemble.choose import density_of
from sklearn_laplace.distributions import PoissonLogNormal
from sklearn_laplace.distributions.negative_binomial_log_normal import counts_of
from sklearn_laplace.laplace import Hyper, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.latent import LatentGaussian
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS, Poisson
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.selection import held_out_scores
from sklearn_laplace.laplace.structures import STRUCTURES

RNG = np.random.default_rng(23)
X, X_NEW = RNG.uniform(-2, 2, size=(90, 3)), RNG.uniform(-3, 3, size=(8, 3))
RATES = np.exp(1.0 + np.sin(2 * X[:, 0]))
Y = RNG.poisson(RATES).astype(float)
SMALL = {"likelihood": "poisson", "hidden_layer_sizes": (8,), "random_state": 0}


@pytest.fixture(scope="module")
def model():
    return LaplaceRegressor(n_members=1, **SMALL).fit(X, Y)


# ---------------------------------------------------------------------- the distribution


@pytest.mark.parametrize("mean", [-5.0, 2.0, 9.0])
@pytest.mark.parametrize("variance", [1e-6, 0.05, 0.5, 2.0, 10.0])
def test_probabilities_are_the_integrals(mean, variance):
    """Narrow and wide mixtures of small and large rates, far into the tails. 1e-5 allows for a step-like integrand."""
    distribution = PoissonLogNormal(np.array(mean), np.array(variance))
    for k in (0, 10, 100, 5000):
        log_probability, below = oracles.poisson_lognormal(mean, variance, k)
        tolerance = 1e-7 if variance < 10 else 2e-5
        assert float(distribution.logpmf(k)) == pytest.approx(log_probability, rel=1e-9, abs=tolerance)
        assert float(distribution.cdf(k)) == pytest.approx(below, abs=1e-5)


def test_probabilities_add_up():
    """The masses sum to one and give the mean, the variance and the distribution function."""
    distribution = PoissonLogNormal(np.array([[-1.0], [1.5], [2.5]]), np.array([[0.3], [0.01], [0.4]]))
    k = np.arange(3000)
    p = distribution.pmf(k)
    np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-7)
    np.testing.assert_allclose((p * k).sum(1), distribution.mean()[:, 0], rtol=1e-6)
    np.testing.assert_allclose((p * k**2).sum(1) - (p * k).sum(1) ** 2, distribution.var()[:, 0], rtol=1e-5)
    np.testing.assert_allclose(distribution.std() ** 2, distribution.var())
    np.testing.assert_allclose(np.cumsum(p, 1), distribution.cdf(k), atol=1e-5)
    assert (np.diff(distribution.cdf(k)) > -1e-6).all()


def test_quantiles_are_the_smallest_counts_that_reach_their_level():
    """For narrow and wide distributions in one array, and for the ends of intervals."""
    mean, variance = RNG.normal(2, 2, size=(40, 3)), RNG.uniform(0, 3, size=(40, 3))
    distribution = PoissonLogNormal(mean, variance)
    for level in (1e-6, 0.05, 0.5, 0.95, 1 - 1e-6):
        q = distribution.ppf(level)
        assert q.shape == mean.shape and (q == np.floor(q)).all() and (q >= 0).all()
        assert (distribution.cdf(q) >= level).all()
        assert ((distribution.cdf(q - 1) < level) | (q == 0)).all()
    lower, upper = distribution.interval(0.8)
    np.testing.assert_array_equal(lower, distribution.ppf(0.1))
    np.testing.assert_array_equal(upper, distribution.ppf(0.9))


def test_no_count_is_negative_and_none_is_beyond_infinity():
    """Impossible counts, and rates beyond the range of floats, raise no warning."""
    distribution = PoissonLogNormal(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    np.testing.assert_array_equal(distribution.logpmf([-1, -0.5]), -np.inf)
    np.testing.assert_array_equal(distribution.cdf([-1, -1e-9]), 0.0)
    expected = [distribution.cdf(2)[0], 1.0]  # two rows as above, since sums over one row may round differently
    np.testing.assert_allclose(distribution.cdf([2.9, np.inf]), expected, rtol=1e-14)
    huge = PoissonLogNormal(np.array([800.0, 40.0, 0.0]), np.array([1.0, 300.0, 2000.0]))
    assert np.isinf(huge.mean()[0]) and np.isfinite(huge.ppf(0.5)).all()
    assert (huge.rvs(random_state=0) >= 0).all()
    sharp = PoissonLogNormal(np.array([1.0]), np.array([0.0]))
    np.testing.assert_allclose(sharp.pmf([3]), np.exp(-np.e) * np.e**3 / 6, rtol=1e-6)


def test_draws_have_the_moments_and_leave_numpys_generator():
    """Within six standard errors of 20,000 draws."""
    distribution = PoissonLogNormal(np.array([0.5, 2.0]), np.array([0.2, 0.1]))
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    draws = distribution.rvs((20_000, 2), random_state=1)
    assert (np.abs(draws.mean(0) - distribution.mean()) < 6 * distribution.std() / 20_000**0.5).all()
    np.testing.assert_allclose(draws.std(0), distribution.std(), rtol=0.05)
    np.testing.assert_array_equal(draws, distribution.rvs((20_000, 2), random_state=1))
    assert distribution.rvs().shape == (2,)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


# ---------------------------------------------------------------------- the estimator


@pytest.mark.parametrize("structure", ["full", "functional", "kron", "diag"])
def test_a_linear_net_is_poisson_regression(structure):
    """scikit-learn's PoissonRegressor with the same penalty on the weights and a negligible one on the intercept.

    The Hessian is XᵀRX with R the rates, so that the Gaussian posterior is the only approximation.
    """
    options = {"likelihood": "poisson", "standardize_X": False, "hessian_structure": structure, "random_state": 0}
    model = LaplaceRegressor(nets.Linear(3), prior_precision=[2.0, 1e-6], **options).fit(X, Y)
    reference = PoissonRegressor(alpha=2.0 / len(Y), tol=1e-10, max_iter=1000).fit(X, Y)
    tensors = model.laplace_.network.tensors(model.laplace_.network.theta)
    np.testing.assert_allclose(tensors["linear.weight"][0], reference.coef_, rtol=1e-4, atol=1e-6)
    features = torch.tensor(np.column_stack([X, np.ones(len(X))]))
    hessian = features.mT @ (torch.tensor(reference.predict(X))[:, None] * features)
    precision = hessian + torch.diag(torch.tensor([2.0, 2.0, 2.0, 1e-6]).double())
    if structure in ("full", "functional"):
        variance = torch.linalg.inv(precision).diagonal()
        found = model.posterior_.marginal_variance()
        torch.testing.assert_close(found, variance, rtol=1e-4, atol=1e-8)


def test_predictions_are_those_of_one_distribution(model):
    """Mean, standard deviations, quantiles, intervals and densities follow from one Gaussian over the log rate."""
    with model._asked(X_NEW) as (x, options):
        (latent,) = model._ensemble.first.answers(x, options, lambda latent, _: latent)
    m, v = latent.mean[:, 0].numpy(), latent.variance[:, 0].numpy()
    distribution = model.predict_dist(X_NEW)
    mean, std = model.predict(X_NEW, return_std=True)
    np.testing.assert_allclose(mean, np.exp(m), rtol=1e-12)
    np.testing.assert_array_equal(model.predict(X_NEW), mean)
    np.testing.assert_allclose(distribution.mean(), mean, rtol=1e-12)
    np.testing.assert_allclose(distribution.std(), std, rtol=1e-12)
    epistemic, aleatoric = (model.predict_std(X_NEW, kind=kind) for kind in ("epistemic", "aleatoric"))
    np.testing.assert_allclose(aleatoric**2, mean, rtol=1e-12)
    np.testing.assert_allclose(epistemic**2, np.expm1(v) * np.exp(2 * m), rtol=1e-12)
    np.testing.assert_allclose(epistemic**2 + aleatoric**2, std**2, rtol=1e-12)
    np.testing.assert_array_equal(model.predict_std(X_NEW, kind="all").total, std)
    np.testing.assert_array_equal(model.predict_quantiles(X_NEW, [0.2])[:, 0], distribution.ppf(0.2))
    center, interval = model.predict_interval(X_NEW, 0.9)
    np.testing.assert_array_equal(center, distribution.mean())
    np.testing.assert_array_equal(interval[:, 1], distribution.ppf(0.95))
    targets = np.arange(8.0)
    np.testing.assert_array_equal(model.log_predictive_density(X_NEW, targets), distribution.logpmf(targets))
    assert model.log_predictive_density(X_NEW, -np.ones(8)).max() == -np.inf


@pytest.mark.parametrize("n_events", [3, 12, 40])
def test_a_rate_has_the_mean_of_its_gamma_posterior(n_events):
    """k events in an exposure of 5, flat prior of the log rate: mode log k/5, variance 1/k; the posterior is a gamma.

    The variance agrees to first order in 1/k. The mean of a log-normal rate around the mode is 18 % larger for k = 3.
    """
    exact = scipy.stats.gamma(n_events, scale=1 / 5)
    mode, variance = torch.tensor([[np.log(n_events / 5)]]), torch.tensor([[[1 / n_events]]])
    moments = LIKELIHOODS["poisson"]().predict(LatentGaussian(mode, variance), 1.0)
    np.testing.assert_allclose(moments.mean.item(), exact.mean(), rtol=1e-12)
    np.testing.assert_allclose(moments.epistemic_variance.item(), exact.var(), rtol=0.6 / n_events)
    counts = counts_of(LIKELIHOODS["poisson"](), mode.numpy(), variance.numpy()[0])
    expected = scipy.stats.nbinom(n_events, 5 / 6).cdf([0, 1, 3])  # a Poisson count whose rate is this gamma
    np.testing.assert_allclose([counts.cdf(k).item() for k in (0, 1, 3)], expected, atol=0.1 / n_events)


EXPOSURES = np.random.default_rng(5).uniform(0.1, 4.0, 60)
EVENTS = np.random.default_rng(6).poisson(EXPOSURES * RATES[:60]).astype(float)


def score_of(means, variances, counts, exposures) -> float:
    """Sum of the log densities of counts under log-normal rates with the mean exp(m), by the oracle."""
    rows = zip(means.ravel(), variances.ravel(), counts, exposures, strict=True)
    return sum(oracles.poisson_lognormal(m - v / 2, v, k, t)[0] for m, v, k, t in rows)


def test_held_out_rates_are_scored_by_their_counts():
    """Each row scores the log density of its count, once; a weight of a count repeats its log density."""
    network = trace(nn.Linear(3, 1).double(), torch.zeros(1, 3).double())
    x, t, k = torch.from_numpy(X[:30]), torch.from_numpy(EXPOSURES[:30]), torch.from_numpy(EVENTS[:30])[:, None]
    likelihood, hyper = Poisson(of_rates=True), Hyper(torch.ones(1).double())
    rows = [(x, k / t[:, None], t)]
    fit = fit_laplace(network, likelihood, GGN(), STRUCTURES["full"], network.scalar_prior(), rows)
    scores = held_out_scores([(fit, rows)], hyper, density_of(likelihood))
    outputs, jacobian = network.jacobian(x)
    for place in (0, len(scores.ridge) // 2):
        variance = fit.posterior(Hyper(scores.ridge[place : place + 1])).covariance(jacobian)
        expected = score_of(outputs.detach().numpy(), variance.numpy(), EVENTS[:30], EXPOSURES[:30])
        assert float(scores.constants[place]) == pytest.approx(expected, rel=1e-6)
    counted = [(x, k, torch.ones(30).double())]
    both = [
        held_out_scores(
            [(fit_laplace(network, kind, GGN(), STRUCTURES["full"], network.scalar_prior(), counted), counted)],
            hyper,
            density_of(kind),
        ).constants
        for kind in (Poisson(), likelihood)
    ]
    assert torch.equal(*both)


def test_left_out_rates_are_scored_by_their_counts():
    """Whole numbers of all rows are counts, whose weights repeat them."""
    options = {**SMALL, "n_members": 1, "prior_precision": "loo", "hessian_structure": "full"}
    model = LaplaceRegressor(**options).fit(X[:60], EVENTS / EXPOSURES, sample_weight=EXPOSURES)
    member = model._ensemble.first
    assert member.fit.likelihood.of_rates
    left_out = member.left_out(model._options(), "a test")
    latent = left_out.latent(member.fit, member.hyper)
    densities = member.left_out_densities(model._options(), "a test")
    expected = score_of(latent.mean.numpy(), latent.variance.numpy(), EVENTS, EXPOSURES)
    assert densities.sum() == pytest.approx(expected, rel=1e-5)
    assert left_out.log_density(member.fit, member.hyper) == pytest.approx(expected, rel=1e-5)
    whole = LaplaceRegressor(**options).fit(X[:60], EVENTS, sample_weight=EXPOSURES)._ensemble.first
    assert not whole.fit.likelihood.of_rates


@pytest.mark.parametrize("members", [1, "auto"])
def test_rates_times_exposures_sum_to_the_events(members):
    """On average over tables within 5 %; the noise of the rates must not be part of their mean."""
    excess = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        inputs, exposures = rng.normal(size=(400, 3)), rng.uniform(0.05, 1.0, 400)
        rates = np.exp(0.6 * inputs[:, 0] + 0.3 * np.sin(2 * inputs[:, 1]))
        events = rng.poisson(rates * exposures * 120 / (rates @ exposures))
        model = LaplaceRegressor(likelihood="poisson", n_members=members, random_state=seed)
        model.fit(inputs, events / exposures, sample_weight=exposures)
        excess.append(model.predict(inputs) @ exposures / events.sum() - 1)
    assert abs(np.mean(excess)) < 0.05 and np.abs(excess).max() < 0.1


def test_draws_agree_with_the_joint_covariance(model):
    """Joint draws of counts, or of rates. Means and products agree within six standard errors."""
    n = 40_000
    mean, covariance = model.predict(X_NEW[:3], return_cov=True)
    np.testing.assert_allclose(np.sqrt(covariance.diagonal()), model.predict_std(X_NEW[:3]), rtol=1e-9)
    draws = model.sample_y(X_NEW[:3], n, random_state=1)
    assert (draws == np.floor(draws)).all() and (draws >= 0).all()
    assert (np.abs(draws.mean(1) - mean) < 6 * draws.std(1) / n**0.5).all()
    centred = draws - mean[:, None]
    products = centred[:, None] * centred[None]
    assert (np.abs(products.mean(-1) - covariance) < 6 * products.std(-1) / n**0.5).all()
    rates = model.sample_y(X_NEW[:3], n, random_state=1, kind="epistemic")
    np.testing.assert_allclose(rates.std(1), model.predict_std(X_NEW[:3], kind="epistemic"), rtol=0.1)
    repeated = model.sample_y(X_NEW[[0, 0]], 50, kind="epistemic")
    np.testing.assert_allclose(repeated[0], repeated[1], rtol=1e-6)


@pytest.mark.parametrize("level", [-1.0, 1.0, 6.0])
def test_rates_of_any_size_are_found(level):
    """From one count in three rows to 400 per row: rates, intervals and densities are close to the true ones."""
    rng = np.random.default_rng(3)
    features, new = rng.uniform(0, 6, size=(200, 1)), rng.uniform(0, 6, size=(400, 1))
    truth, truth_new = (np.exp(level + np.sin(values[:, 0])) for values in (features, new))
    counts, counts_new = rng.poisson(truth), rng.poisson(truth_new)
    model = LaplaceRegressor(likelihood="poisson", random_state=0).fit(features, counts)
    error = np.abs(model.predict(new) / truth_new - 1).mean()
    assert error < {-1.0: 0.3, 1.0: 0.15, 6.0: 0.02}[level]
    few, of_few = new[:200], counts_new[:200]  # intervals of mixtures take longer than the fit
    lower, upper = scipy.stats.poisson.interval(0.9, truth_new[:200])
    best = np.mean((lower <= of_few) & (of_few <= upper))
    assert abs(metrics.coverage(model, few, of_few) - best) < 0.03
    best = scipy.stats.poisson.logpmf(counts_new, truth_new).mean()
    assert abs(metrics.neg_nlpd(model, new, counts_new) - best) < 0.05


def test_several_counts_at_once():
    """One column per target, independent given the rates; shapes as for any regressor."""
    targets = np.column_stack([Y, RNG.poisson(20 * RATES)])
    model = LaplaceRegressor(n_members=1, **SMALL).fit(X, targets)
    assert model.predict(X_NEW).shape == model.predict_std(X_NEW).shape == (8, 2)
    assert model.predict(X_NEW, return_cov=True)[1].shape == (8, 8, 2)
    assert model.sample_y(X_NEW, 3).shape == (8, 2, 3)
    assert model.predict_interval(X_NEW, [0.5, 0.9])[1].shape == (8, 2, 2, 2)
    densities = model.predict_dist(X).logpmf(targets).sum(1)
    np.testing.assert_allclose(model.log_predictive_density(X, targets), densities)
    np.testing.assert_allclose(model.predict(X).mean(0), targets.mean(0), rtol=0.1)


def test_weights_exposures_and_later_rows():
    """A weight equals repetition, exposures are weights of rates, and ``forget`` undoes ``partial_fit``."""
    counts = RNG.integers(0, 4, size=90).astype(float)
    repeated = np.repeat(np.arange(90), counts.astype(int))
    options = {**SMALL, "n_members": 1}
    weighted = LaplaceRegressor(**options).fit(X, Y, sample_weight=counts)
    np.testing.assert_array_equal(
        LaplaceRegressor(**options).fit(X[repeated], Y[repeated]).predict(X_NEW), weighted.predict(X_NEW)
    )
    options["hessian_structure"] = "full"
    model = LaplaceRegressor(**options).fit(X[:60], Y[:60] / 2, sample_weight=np.full(60, 2.0))
    before = model.predict(X_NEW, return_std=True)
    model.partial_fit(X[60:], Y[60:] / 2, sample_weight=np.full(30, 2.0))
    assert np.abs(model.predict(X_NEW) / before[0] - 1).max() > 1e-3
    model.forget(X[60:], Y[60:] / 2, sample_weight=np.full(30, 2.0))
    np.testing.assert_allclose(model.predict(X_NEW, return_std=True), before, rtol=1e-6)


def test_targets_are_not_standardised(model):
    """Counts keep their scale; the built-in net starts at their mean instead."""
    other = LaplaceRegressor(n_members=1, **SMALL, standardize_y=False).fit(X, Y)
    np.testing.assert_array_equal(other.predict(X_NEW), model.predict(X_NEW))
    zeros = LaplaceRegressor(**SMALL, n_members=1, prior_precision=1.0).fit(X, np.zeros(90))
    assert 0 < zeros.predict(X).max() < 0.1


@pytest.mark.parametrize("options", [{"criterion": nn.PoissonNLLLoss}, {"criterion": nn.PoissonNLLLoss()}, {}])
def test_a_users_net_returns_log_rates(options):
    """For a skorch net with its own optimiser and an explicit or a default criterion."""
    model = LaplaceRegressor(nets.regressor(module__n_in=3, **options), likelihood="poisson", random_state=0).fit(X, Y)
    frozen = LaplaceRegressor(FrozenEstimator(model.net_), likelihood="poisson", random_state=0).fit(X, Y)
    log_rates = model.net_.predict(X_NEW)[:, 0]
    for fitted in (model, frozen):
        np.testing.assert_allclose(np.log(fitted.predict(X_NEW)), log_rates, rtol=1e-6)
    np.testing.assert_allclose(model.predict(X).mean(), Y.mean(), rtol=0.1)


def test_saved_and_opened_counts_are_the_same(model):
    """Pickling reproduces the predictions bit for bit."""
    opened = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(opened.predict(X_NEW, return_std=True), model.predict(X_NEW, return_std=True))


def test_the_evidence_is_that_of_the_counts(model):
    """Including log y!: the dense formula with the full density of the oracle."""
    fit = model.laplace_
    f = oracles.outputs(fit.network.module, torch.tensor(X))
    log_likelihood = oracles.log_likelihood("poisson", f, torch.tensor(Y)[:, None]).sum()
    names, module = fit.network.parameter_names, fit.network.module
    H = oracles.ggn("poisson", module, names, torch.tensor(X), torch.tensor(Y)[:, None])
    theta = oracles.flatten(module, names)
    expected = oracles.log_evidence(log_likelihood, H, model.prior_precision_, 1.0, theta)
    assert model.log_marginal_likelihood_value_ == pytest.approx(float(expected), rel=1e-9)
    hyper = Hyper(torch.tensor([0.3], dtype=torch.float64))
    assert fit.log_likelihood(hyper) == pytest.approx(float(log_likelihood), rel=1e-12)
    assert LIKELIHOODS["poisson"]().log_normaliser(1.0, 1) == 0.0


@pytest.mark.parametrize(
    ("options", "y", "message"),
    [
        ({}, Y - 1, "y holds -1; likelihood='poisson' needs counts of at least 0.*use likelihood='gaussian'"),
        ({"sigma_noise": 0.5}, Y, "sigma_noise=0.5 cannot be used with likelihood='poisson', whose variance follows"),
        ({"sigma_noise": "residual"}, Y, "sigma_noise='residual' cannot be used with likelihood='poisson'"),
        ({"net": nets.regressor(criterion=nn.L1Loss)}, Y, "criterion L1Loss belongs to another likelihood.*poisson"),
        (
            {"net": nets.regressor(criterion=nn.PoissonNLLLoss, criterion__log_input=False)},
            Y,
            r"takes rates \(log_input=False\).*Let the net return log rates",
        ),
        (
            {"net": nets.regressor(criterion=nn.PoissonNLLLoss(log_input=False))},
            Y,
            r"takes rates \(log_input=False\)",
        ),
    ],
)
def test_what_is_not_for_counts_is_refused(options, y, message):
    """The message states the value given and what is needed."""
    with pytest.raises(ValueError, match=message):
        LaplaceRegressor(**options, likelihood="poisson").fit(X, y)


def test_what_counts_do_not_have_is_said(model):
    """There is no noise level, negative targets are rejected by partial_fit, and the CRPS needs normals."""
    with pytest.raises(AttributeError, match="sigma_noise_ is not defined for likelihood='poisson'"):
        _ = model.sigma_noise_
    with pytest.raises(ValueError, match="cannot be used with classes or counts"):
        model.log_marginal_likelihood(sigma_noise=1.0)
    with pytest.raises(ValueError, match="y holds -2"):
        model.partial_fit(X[:2], [-2.0, 1.0])
    with pytest.raises(TypeError, match="for counts use log_density_scorer or neg_interval_score"):
        metrics.neg_crps(model, X, Y)
    assert np.isfinite(metrics.neg_interval_score(model, X, Y))
