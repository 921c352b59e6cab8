"""Overdispersed counts: the negative binomial distribution, and regressors with ``likelihood="negative_binomial"``."""

from __future__ import annotations

import warnings

import nets
import numpy as np
import oracles
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
from sklearn.frozen import FrozenEstimator

from sklearn_laplace import LaplaceRegressor, load, metrics, save
from sklearn_laplace._ensemble.target_noise import CountRows
from sklearn_laplace._table.statistics import count_hint
from sklearn_laplace.distributions import CountMixture, NegativeBinomialLogNormal, PoissonLogNormal
from sklearn_laplace.errors import UnsupportedCombinationError

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(31)
ALPHA = 0.6
SMALL = {"likelihood": "negative_binomial", "hidden_layer_sizes": (5,), "n_bins": None, "random_state": 0}


def overdispersed(n, rng, alpha=ALPHA):
    """Inputs and counts whose means lie between about 1 and 7."""
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, rng.poisson(np.exp(1 + np.sin(2 * X[:, 0])) * rng.gamma(1 / alpha, alpha, n)).astype(float)


X, Y = overdispersed(150, RNG)
X_NEW, Y_NEW = overdispersed(1000, RNG)


@pytest.fixture(scope="module")
def model():
    return LaplaceRegressor(n_members=1, **SMALL).fit(X, Y)


# ---------------------------------------------------------------------- the distribution


@pytest.mark.parametrize("alpha", [1e-6, 0.05, 1.0, 8.0])
@pytest.mark.parametrize(("mean", "variance"), [(-5.0, 1e-6), (-5.0, 2.0), (2.0, 0.05), (2.0, 10.0), (9.0, 0.5)])
def test_probabilities_are_the_integrals(mean, variance, alpha):
    """Small and large means and overdispersions, far into the tails. 1e-5 allows for a step-like integrand."""
    distribution = NegativeBinomialLogNormal(np.array(mean), np.array(variance), alpha)
    for k in (0, 10, 5000):
        log_probability, below = oracles.negative_binomial_lognormal(mean, variance, alpha, k)
        tolerance = 1e-7 if variance < 10 else 2e-5
        assert float(distribution.logpmf(k)) == pytest.approx(log_probability, rel=1e-9, abs=tolerance)
        assert float(distribution.cdf(k)) == pytest.approx(below, abs=1e-5)


def test_the_limit_without_overdispersion_is_poisson():
    """At α = 1e-7 the variance of the largest mean, about 40, differs by a factor of 1 + 4e-6."""
    mean, variance, k = np.linspace(-2, 3, 6), np.linspace(0.01, 1, 6), np.arange(6) * 5
    ours, poisson = NegativeBinomialLogNormal(mean, variance, 1e-7), PoissonLogNormal(mean, variance)
    np.testing.assert_allclose(ours.logpmf(k), poisson.logpmf(k), atol=1e-4)
    np.testing.assert_allclose(ours.cdf(k), poisson.cdf(k), atol=1e-5)
    np.testing.assert_allclose(ours.std(), poisson.std(), rtol=1e-5)


def test_masses_moments_quantiles_and_draws_belong_together():
    """Also with one overdispersion per column. Draws agree within six standard errors."""
    distribution = NegativeBinomialLogNormal(np.array([-1.0, 1.5]), np.array([0.3, 0.01]), np.array([0.3, 2.0]))
    k = np.arange(3000.0)[:, None]
    p = distribution.pmf(k)
    np.testing.assert_allclose(p.sum(0), 1.0, atol=1e-7)
    np.testing.assert_allclose((p * k).sum(0), distribution.mean(), rtol=1e-6)
    np.testing.assert_allclose((p * k**2).sum(0) - (p * k).sum(0) ** 2, distribution.var(), rtol=1e-5)
    np.testing.assert_allclose(np.cumsum(p, 0), distribution.cdf(k), atol=1e-5)
    for level in (0.05, 0.5, 0.95, 1 - 1e-6):
        q = distribution.ppf(level)
        assert (distribution.cdf(q) >= level).all() and ((distribution.cdf(q - 1) < level) | (q == 0)).all()
    draws = distribution.rvs((20_000, 2), random_state=1)
    assert (np.abs(draws.mean(0) - distribution.mean()) < 6 * distribution.std() / 20_000**0.5).all()
    np.testing.assert_allclose(draws.std(0), distribution.std(), rtol=0.1)
    np.testing.assert_array_equal(distribution.logpmf([-1, 0])[:1], -np.inf)


# ---------------------------------------------------------------------- the overdispersion


@pytest.mark.usefixtures("complete_training")
def test_overdispersed_counts_have_better_probabilities_than_poisson(model):
    """The true α is within its statistical error; 90 % intervals of integers cover slightly more than 0.9."""
    poisson = LaplaceRegressor(n_members=1, **SMALL | {"likelihood": "poisson"}).fit(X, Y)
    assert 0.4 < model.overdispersion_ < 0.9
    ours, other = (metrics.neg_nlpd(fitted, X_NEW, Y_NEW) for fitted in (model, poisson))
    assert ours > other + 0.1
    assert 0.85 < metrics.coverage(model, X_NEW, Y_NEW) < 0.97
    assert metrics.coverage(poisson, X_NEW, Y_NEW) < 0.85


@pytest.mark.usefixtures("complete_training")
def test_counts_without_overdispersion_are_poisson():
    """The variance of a typical count is that of the Poisson distribution within 10 %."""
    rng = np.random.default_rng(5)
    counts = rng.poisson(np.exp(1 + np.sin(2 * X[:, 0])))
    model = LaplaceRegressor(prior_precision=1.0, n_members=1, **SMALL).fit(X, counts)
    assert model.overdispersion_ * counts.mean() < 0.1


@pytest.mark.usefixtures("complete_training")
def test_a_linear_net_has_the_overdispersion_of_maximum_likelihood():
    """Negative binomial regression with a weak prior: the EM criterion is biased by less than 3 of 150 rows."""
    design = np.column_stack([X, np.ones(len(X))])

    def loss(parameters):
        size, mu = np.exp(-parameters[-1]), np.exp(design @ parameters[:-1])
        constants = scipy.special.gammaln(Y + size) - scipy.special.gammaln(size)
        return -(constants + Y * np.log(mu / (mu + size)) + size * np.log(size / (mu + size))).sum()

    best = np.exp(scipy.optimize.minimize(loss, [0.0, 0.0, 1.0, 0.0]).x[-1])
    model = LaplaceRegressor(nets.Linear(2), likelihood="negative_binomial", prior_precision=1e-3, random_state=0)
    assert model.fit(X, Y).overdispersion_ == pytest.approx(best, rel=0.1)


def test_held_out_rows_choose_the_overdispersion_of_members_that_train_together():
    """Within a factor of two of the true value; 90 % intervals of fresh rows cover as those of one net."""
    model = LaplaceRegressor(**SMALL).fit(X, Y)
    assert len(model.members_) >= 4 and {member.overdispersion_ for member in model.members_} == {model.overdispersion_}
    assert ALPHA / 2 < model.overdispersion_ < 2 * ALPHA
    assert 0.85 < metrics.coverage(model, X_NEW[:400], Y_NEW[:400]) < 0.97


def test_the_criterion_is_the_expected_likelihood_of_the_rows():
    """Integral of the log, by dense quadrature."""
    means, variances = np.array([0.5, 1.5, -1.0]), np.array([0.1, 0.5, 1.0])
    counts, weights = np.array([0.0, 7.0, 2.0]), np.array([1.0, 2.0, 0.5])
    z = np.linspace(-10, 10, 20_001)
    density = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    expected = 0.0
    for mean, variance, k, weight in zip(means, variances, counts, weights, strict=True):
        log_mu = mean + np.sqrt(variance) * z
        logs = scipy.stats.nbinom.logpmf(k, 1 / ALPHA, 1 / (1 + ALPHA * np.exp(log_mu)))
        expected += weight * (logs @ density)
    assert CountRows(means, variances, counts, weights).criterion(ALPHA) == pytest.approx(expected, rel=1e-6)


@pytest.mark.usefixtures("complete_training")
def test_each_output_has_its_own_overdispersion():
    """One column is Poisson, the other has α = 0.6; both kinds of attributes have the shape of the outputs."""
    targets = np.column_stack([np.random.default_rng(0).poisson(np.full(150, 4.0)), Y])
    model = LaplaceRegressor(prior_precision=1.0, n_members=1, **SMALL).fit(X, targets)
    assert model.overdispersion_.shape == (2,)
    assert model.overdispersion_[0] < 0.05 and 0.35 < model.overdispersion_[1] < 0.9
    assert model.predict(X_NEW[:3], return_cov=True)[1].shape == (3, 3, 2)
    densities = model.predict_dist(X_NEW[:5]).logpmf(np.ones((5, 2))).sum(1)
    np.testing.assert_allclose(model.log_predictive_density(X_NEW[:5], np.ones((5, 2))), densities)


# ---------------------------------------------------------------------- the estimator


def test_predictions_are_those_of_one_distribution(model):
    """Mean, standard deviations, quantiles and densities follow from a Gaussian over the log mean and α."""
    mean, std = model.predict(X_NEW, return_std=True)
    distribution = model.predict_dist(X_NEW)
    assert isinstance(distribution, NegativeBinomialLogNormal)
    assert distribution.overdispersion == model.overdispersion_
    np.testing.assert_allclose(distribution.mean(), mean, rtol=1e-12)
    np.testing.assert_allclose(distribution.std(), std, rtol=1e-12)
    epistemic, aleatoric = (model.predict_std(X_NEW, kind=kind) for kind in ("epistemic", "aleatoric"))
    np.testing.assert_allclose(epistemic**2 + aleatoric**2, std**2, rtol=1e-12)
    second = epistemic**2 + mean**2  # E[μ²]
    np.testing.assert_allclose(aleatoric**2, mean + model.overdispersion_ * second, rtol=1e-9)
    np.testing.assert_array_equal(model.predict_quantiles(X_NEW, [0.2])[:, 0], distribution.ppf(0.2))
    np.testing.assert_array_equal(model.log_predictive_density(X_NEW, Y_NEW), distribution.logpmf(Y_NEW))


def test_draws_agree_with_the_joint_covariance(model):
    """Means and products of joint draws agree within six standard errors."""
    n = 20_000
    mean, covariance = model.predict(X_NEW[:3], return_cov=True)
    np.testing.assert_allclose(np.sqrt(covariance.diagonal()), model.predict_std(X_NEW[:3]), rtol=1e-9)
    draws = model.sample_y(X_NEW[:3], n, random_state=1)
    assert (draws == np.floor(draws)).all() and (draws >= 0).all()
    assert (np.abs(draws.mean(1) - mean) < 6 * draws.std(1) / n**0.5).all()
    centred = draws - mean[:, None]
    products = centred[:, None] * centred[None]
    assert (np.abs(products.mean(-1) - covariance) < 6 * products.std(-1) / n**0.5).all()


def test_members_share_the_overdispersion_and_are_mixed():
    """The predictive distribution is a mixture of counts, and a weight equals repetition."""
    model = LaplaceRegressor(n_members=2, prior_precision=1.0, **SMALL)
    distribution = model.fit(X[:60], Y[:60], sample_weight=np.repeat([1.0, 2.0], 30)).predict_dist(X_NEW[:4])
    assert isinstance(distribution, CountMixture)
    assert {member.overdispersion_ for member in model.members_} == {model.overdispersion_}
    np.testing.assert_allclose(distribution.mean(), model.predict(X_NEW[:4]))
    np.testing.assert_allclose(distribution.std(), model.predict_std(X_NEW[:4]))
    repeated = np.concatenate([np.arange(60), np.arange(30, 60)])
    again = LaplaceRegressor(**model.get_params()).fit(X[repeated], Y[repeated])
    np.testing.assert_array_equal(again.predict(X_NEW), model.predict(X_NEW))
    assert again.overdispersion_ == model.overdispersion_


def test_what_a_fit_keeps(model, tmp_path):
    """A file, a refit, later rows and a fit under the posterior have the same overdispersion."""
    save(model, tmp_path / "counts.laplace")
    opened = load(tmp_path / "counts.laplace")
    np.testing.assert_array_equal(opened.predict_quantiles(X_NEW[:9]), model.predict_quantiles(X_NEW[:9]))
    assert opened.refit_laplace(prior_precision=2.0).overdispersion_ == model.overdispersion_
    assert opened.partial_fit(X_NEW[:20], Y_NEW[:20]).overdispersion_ == model.overdispersion_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the few rows
        after = LaplaceRegressor(**SMALL | {"prior": FrozenEstimator(model)}, n_members=1).fit(X_NEW[:30], Y_NEW[:30])
    assert after.overdispersion_ == model.overdispersion_


def test_a_frozen_net_keeps_its_weights_and_has_an_overdispersion(model):
    """The net predicts log means, with the criterion of training rows."""
    frozen = LaplaceRegressor(FrozenEstimator(model.net_), likelihood="negative_binomial", random_state=0).fit(X, Y)
    np.testing.assert_allclose(np.log(frozen.predict(X_NEW)), np.log(model.predict(X_NEW)))
    assert frozen.overdispersion_ == pytest.approx(model.overdispersion_, rel=0.5)


def test_what_is_not_for_overdispersed_counts_is_refused(model):
    """The message states the value given, what is needed and the alternative."""
    estimator = LaplaceRegressor(**SMALL)
    with pytest.raises(ValueError, match=r"y holds 0\.5; likelihood='negative_binomial' needs whole numbers.*poisson"):
        estimator.fit(X, np.full(150, 0.5))
    with pytest.raises(ValueError, match="y holds -1; likelihood='negative_binomial' needs counts of at least 0"):
        estimator.fit(X, Y - 1)
    with pytest.raises(ValueError, match=r"y holds 1\.5; likelihood='negative_binomial'"):
        model.partial_fit(X[:1], [1.5])
    with pytest.raises(UnsupportedCombinationError, match=r"sigma_noise=1.0 cannot be used with likelihood='negative"):
        LaplaceRegressor(**SMALL, sigma_noise=1.0).fit(X, Y)
    with pytest.raises(AttributeError, match="sigma_noise_ is not defined for likelihood='negative_binomial'"):
        _ = model.sigma_noise_
    normal = LaplaceRegressor(hidden_layer_sizes=(), prior_precision=1.0, sigma_noise=1.0).fit(X[:9], Y[:9])
    with pytest.raises(AttributeError, match=r"overdispersion_ is not defined for likelihood='auto'.*negative_bin"):
        _ = normal.overdispersion_


# ---------------------------------------------------------------------- the hint


def test_small_counts_under_a_normal_distribution_get_a_hint(capsys):
    """Printed by ``verbose=1`` and at the end of a report, for "auto" only; a default fit prints and warns nothing."""
    quick = {"hidden_layer_sizes": (), "prior_precision": 1.0, "sigma_noise": 1.0, "random_state": 0}
    model = LaplaceRegressor(**quick).fit(X, Y)
    assert capsys.readouterr().out == ""
    assert "y holds whole numbers from 0 to" in str(model.report(X_NEW, Y_NEW)).splitlines()[-1]
    LaplaceRegressor(verbose=1, **quick).fit(X, Y)
    assert "as counts do: likelihood='negative_binomial' has intervals of whole numbers" in capsys.readouterr().out
    LaplaceRegressor(verbose=1, likelihood="gaussian", **quick).fit(X, Y)
    assert "counts" not in capsys.readouterr().out
    poisson = LaplaceRegressor(likelihood="poisson", prior_precision=1.0, hidden_layer_sizes=(), random_state=0)
    assert poisson.fit(X, Y).report(X_NEW, Y_NEW).notes == ()


@pytest.mark.parametrize(
    "targets",
    [
        pytest.param(Y + 0.5, id="fractions"),
        pytest.param(Y - 1, id="negative"),
        pytest.param(1000 * Y, id="large"),
        pytest.param(np.arange(150) % 2, id="two classes"),
        pytest.param(3 + np.arange(150) % 6, id="ratings from 3 to 8"),
    ],
)
def test_other_targets_get_no_hint(targets):
    """Ratings vary less than counts of the same mean."""
    assert count_hint(targets) == ""
