"""Transformed targets: transformations, predictive distribution, and ``target_transform`` of the regressor."""

from __future__ import annotations

import re

import numpy as np
import oracles
import pytest
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, metrics, save, to_onnx
from sklearn_laplace.distributions import NormalMixture, TransformedMixture
from sklearn_laplace.distributions.transformed import latent_moments, normal_moments, variances_of_kinds
from sklearn_laplace.distributions.transforms import LogTransform
from sklearn_laplace.errors import TableWarning, UnsupportedCombinationError
from sklearn_laplace.recalibration import SigmaScaling

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(5)
X = RNG.uniform(0, 3, size=(80, 2))
Y = np.exp(X[:, 0] + 0.4 * RNG.normal(size=80))
X_NEW = np.array([[0.5, 1.0], [1.5, 2.0], [2.9, 0.1], [9.0, 9.0]])
SMALL = {
    "hidden_layer_sizes": (6,),
    "n_members": 1,
    "prior_precision": 1.0,
    "likelihood": "gaussian",
    "random_state": 0,
}
SKEWED = [LogTransform.fitted(Y), LogTransform(0.5)]


@pytest.fixture(scope="module")
def model():
    return LaplaceRegressor(target_transform="log", **SMALL).fit(X, Y)


@pytest.fixture(scope="module")
def of_logarithms():
    return LaplaceRegressor(**SMALL).fit(X, np.log(Y))


# ---------------------------------------------------------------------- transformations


@pytest.mark.parametrize("transform", SKEWED)
def test_inverse_and_slope(transform):
    """The inverse takes targets back, also outside the range, and the slope is the derivative."""
    y = np.linspace(0.2, 3 * transform.high, 80)
    np.testing.assert_allclose(transform.inverse(transform.apply(y)), y, rtol=1e-9)
    step = 1e-6 * y
    numeric = (transform.apply(y + step) - transform.apply(y - step)) / (2 * step)
    np.testing.assert_allclose(np.exp(transform.log_slope(y)), numeric, rtol=1e-4)


@pytest.mark.parametrize("transform", SKEWED)
def test_an_unbounded_end_stays_an_end(transform):
    """The inverse of an infinite value is the end of the domain, without a warning."""
    assert transform.inverse(np.array([-np.inf, np.inf])).tolist() == [0.0, np.inf]
    assert transform.apply(np.array([-1.0, 0.0, np.inf])).tolist() == [-np.inf, -np.inf, np.inf]


def test_it_is_a_logarithm_up_to_the_largest_target_and_a_line_above():
    transform = LogTransform.fitted(Y)
    np.testing.assert_allclose(transform.apply(Y), np.log(Y), rtol=1e-12)
    np.testing.assert_allclose(transform.apply(Y.max() * np.array([2.0, 3.0])), np.log(Y.max()) + np.arange(1, 3))


# ---------------------------------------------------------------------- the distribution


@pytest.mark.parametrize("transform", SKEWED)
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (2.5, 0.2), (-4.0, 0.01), (1.0, 4.0), (-8.0, 1.0), (8.0, 20.0)])
def test_moments_are_the_integrals(transform, mean, std):
    """Below the largest target, across it, and far above."""
    expected = oracles.moments_of_inverse(transform.inverse, (transform.end,), mean, std)
    values = normal_moments(transform, np.array([mean]), np.array([std]))
    np.testing.assert_allclose(np.ravel(values), expected, rtol=2e-6)


@pytest.mark.parametrize("transform", SKEWED)
def test_latent_moments_are_those_of_the_conditional_mean(transform):
    def conditional(f):
        return normal_moments(transform, np.ravel(f), np.full(np.size(f), 0.5))[0].reshape(np.shape(f))

    expected = oracles.moments_of_inverse(conditional, (), 0.4, 0.8)
    values = latent_moments(transform, np.array([0.4]), np.array([0.8]), np.array([0.5]))
    np.testing.assert_allclose(np.ravel(values), expected, rtol=1e-5)


@pytest.mark.parametrize("transform", SKEWED)
def test_mixture_is_consistent(transform):
    """Density, distribution function, quantiles, score and draws belong to one distribution."""
    latent = NormalMixture(
        np.array([[0.0, 1.0], [0.5, -1.5]]), np.array([[0.5, 0.2], [1.0, 0.1]]), np.array([0.3, 0.7])
    )
    mixture = TransformedMixture(latent, (transform,))
    levels = np.array([0.01, 0.3, 0.6, 0.99])
    quantiles = np.stack([mixture.ppf(level) for level in levels])
    np.testing.assert_allclose(mixture.cdf(quantiles), np.repeat(levels, 2).reshape(4, 2), atol=1e-9)
    np.testing.assert_allclose(mixture.sf(quantiles), 1 - mixture.cdf(quantiles), atol=1e-12)
    step = 1e-5 * np.abs(quantiles)
    slopes = (mixture.cdf(quantiles + step) - mixture.cdf(quantiles - step)) / (2 * step)
    np.testing.assert_allclose(mixture.pdf(quantiles), slopes, rtol=1e-4)
    start, end = mixture.ppf(1e-12), mixture.ppf(1 - 1e-12)
    for y in (mixture.ppf(0.2), mixture.mean(), mixture.ppf(0.999)):
        for row in range(2):
            expected = oracles.crps_by_integration(
                lambda t, row=row: mixture.cdf(np.full(2, t))[row], y[row], start[row], end[row]
            )
            assert mixture.crps(y)[row] == pytest.approx(expected, rel=1e-5)
    draws = mixture.rvs((40_000, 2), 0)
    np.testing.assert_allclose(draws.mean(0), mixture.mean(), atol=5 * mixture.std().max() / 200)
    np.testing.assert_allclose(np.median(draws, 0), mixture.median(), rtol=0.05, atol=0.02)
    far = mixture.ppf(0.5) + 1e3 * mixture.std()  # outside the reach of the quadrature
    np.testing.assert_allclose(mixture.crps(far), far - mixture.mean() - _half_spread(draws), rtol=1e-3)


@pytest.mark.parametrize("transform", SKEWED)
def test_kinds_of_variance_add_up_to_that_of_the_mixture(transform):
    """Components differ in their means, latent widths and noise."""
    means, latent, noise = np.array([[0.0, 1.0]]), np.array([[0.3, 0.2]]), np.array([[0.2, 0.4]])
    weights = np.array([0.3, 0.7])
    mean, epistemic, aleatoric = variances_of_kinds((transform,), means, latent, noise, weights)
    mixture = TransformedMixture(NormalMixture(means, np.hypot(latent, noise), weights), (transform,))
    np.testing.assert_allclose(mean, mixture.mean(), rtol=1e-6)
    np.testing.assert_allclose(epistemic + aleatoric, mixture.var(), rtol=1e-6)


def _half_spread(draws):
    return 0.5 * np.abs(draws[::2] - draws[1::2]).mean(0)


def test_each_target_has_its_transformation():
    transforms = SKEWED[0], SKEWED[1]
    latent = NormalMixture(RNG.normal(size=(3, 2, 2)), np.ones((3, 2, 2)), np.array([0.5, 0.5]))
    both = TransformedMixture(latent, transforms)
    y = np.abs(RNG.normal(size=(3, 2))) + 0.1
    for k, transform in enumerate(transforms):
        one = TransformedMixture(NormalMixture(latent.means[:, k], latent.stds[:, k], latent.weights), (transform,))
        for method in ("cdf", "logpdf", "crps"):
            np.testing.assert_allclose(getattr(both, method)(y)[:, k], getattr(one, method)(y[:, k]), rtol=1e-12)
        np.testing.assert_allclose(both.mean()[:, k], one.mean(), rtol=1e-12)
        np.testing.assert_allclose(both.ppf(0.9)[:, k], one.ppf(0.9), rtol=1e-9)


# ---------------------------------------------------------------------- the estimator


def test_it_is_the_fit_of_the_logarithms(model, of_logarithms):
    """Quantiles, densities, evidence and samples are those of a fit to log y, in the units of y."""
    within = X_NEW[:3]
    expected = np.exp(of_logarithms.predict_quantiles(within, (0.1, 0.5)))
    assert expected.max() < Y.max()
    np.testing.assert_allclose(model.predict_quantiles(within, (0.1, 0.5)), expected, rtol=1e-9)
    density = of_logarithms.log_predictive_density(within, [0.5, 1.0, 1.5]) - [0.5, 1.0, 1.5]
    np.testing.assert_allclose(model.log_predictive_density(within, np.exp([0.5, 1.0, 1.5])), density, rtol=1e-9)
    evidence = of_logarithms.log_marginal_likelihood_value_ - np.log(Y).sum()
    assert model.log_marginal_likelihood_value_ == pytest.approx(evidence, rel=1e-9)
    assert model.log_marginal_likelihood() == pytest.approx(evidence, rel=1e-9)
    assert model.sigma_noise_ == pytest.approx(of_logarithms.sigma_noise_)
    np.testing.assert_array_less(0, model.sample_y(X_NEW, 200))
    with pytest.raises(ValueError, match=r"y holds -1; target_transform='log' needs targets above zero"):
        LaplaceRegressor(target_transform="log", **SMALL).fit(X, np.where(Y > 1.5, Y, -1.0))


def test_intervals_stay_above_zero_and_means_do_not_explode(model):
    """A log-normal mean would be e^{m + s²/2}, which is astronomical far from the data."""
    plain = LaplaceRegressor(**SMALL).fit(X, Y)
    assert plain.predict_interval(X)[1].min() < 0  # the reason for the transformation
    mean, interval = model.predict_interval(np.vstack([X, X_NEW]))
    assert interval.min() > 0
    np.testing.assert_allclose(mean, model.predict(np.vstack([X, X_NEW])))
    far = np.array([[60.0, -60.0], [-60.0, 60.0]])
    assert (model.predict(far) < 20 * np.abs(plain.predict(far)) + 20 * Y.max()).all()


def test_kinds_of_variance():
    """The total is that of the distribution, and the epistemic part that of the conditional mean under samples."""
    model = LaplaceRegressor(target_transform="log", **{**SMALL, "n_members": 2}).fit(X[:40], Y[:40])
    stds = model.predict_std(X_NEW, kind="all")
    np.testing.assert_allclose(stds.total**2, stds.epistemic**2 + stds.aleatoric**2)
    mean, std = model.predict(X_NEW, return_std=True)
    distribution = model.predict_dist(X_NEW)
    np.testing.assert_allclose(std, distribution.std())
    np.testing.assert_allclose(mean, distribution.mean())
    assert (stds.epistemic < stds.total).all()
    plain = LaplaceRegressor(**{**SMALL, "n_members": 2}).fit(X[:40], model.predict_dist(X[:1]).transformed(Y[:40]))
    f = plain.sample_y(X_NEW[:3], 4000, random_state=0, kind="epistemic")
    noise, transform = plain.predict_std(X_NEW[:3], kind="aleatoric"), distribution.transforms[0]
    conditional = normal_moments(transform, f, np.broadcast_to(noise[:, None], f.shape))[0]
    np.testing.assert_allclose(stds.epistemic[:3], conditional.std(1), rtol=0.1)


def test_the_unit_of_the_targets_does_not_matter():
    small, large = (LaplaceRegressor(target_transform="log", **SMALL).fit(X, unit * Y) for unit in (1e-3, 1e6))
    np.testing.assert_allclose(large.predict(X_NEW), 1e9 * small.predict(X_NEW), rtol=1e-4)
    np.testing.assert_allclose(large.predict_std(X_NEW), 1e9 * small.predict_std(X_NEW), rtol=1e-4)


def test_several_targets_updates_and_files(tmp_path):
    targets = np.column_stack([Y, Y[::-1] + 1])
    model = LaplaceRegressor(target_transform="log", hessian_structure="full", **SMALL).fit(X[:60], targets[:60])
    assert model.predict_interval(X_NEW)[1].min() > 0
    assert model.sample_y(X_NEW, 5).shape == (4, 2, 5)
    plain = LaplaceRegressor(hessian_structure="full", **SMALL).fit(X[:60], np.log(targets[:60]))
    expected = np.exp(plain.predict_interval(X_NEW[:1], 0.9)[1])
    np.testing.assert_allclose(model.predict_interval(X_NEW[:1], 0.9)[1], expected, rtol=1e-6)
    before = model.predict_std(X_NEW)
    save(model, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(load(tmp_path / "model.safetensors").predict_std(X_NEW), before)
    model.partial_fit(X[60:], targets[60:])
    assert (model.predict_std(X_NEW[:3]) != before[:3]).any()
    np.testing.assert_allclose(model.forget(X[60:], targets[60:]).predict_std(X_NEW), before, rtol=1e-6)
    with pytest.raises(ValueError, match=r"y holds -2; target_transform='log' needs"):
        model.partial_fit(X[:1], [[1.0, -2.0]])
    later = LaplaceRegressor(prior=FrozenEstimator(model), target_transform="log", **SMALL).fit(X[60:], targets[60:])
    assert later.target_transform_ == "log"


def test_a_row_of_weight_zero_may_have_any_target(model):
    weights = np.r_[np.ones(80), 0.0]
    other = LaplaceRegressor(target_transform="log", **SMALL).fit(np.vstack([X, [[1.0, 1.0]]]), np.r_[Y, -5.0], weights)
    np.testing.assert_allclose(other.predict(X_NEW), model.predict(X_NEW), rtol=1e-9)


def test_leave_one_out_and_recalibration(model, of_logarithms):
    mean, std = model.loo_predict(return_std=True)
    latent_mean, latent_std = of_logarithms.loo_predict(return_std=True)
    expected = [
        oracles.moments_of_inverse(LogTransform(Y.max()).inverse, (np.log(Y.max()),), m, s)
        for m, s in zip(latent_mean[:5], latent_std[:5], strict=True)
    ]
    np.testing.assert_allclose(np.column_stack([mean, std**2])[:5], expected, rtol=1e-5)
    scaled, latent = SigmaScaling(model).fit(X, Y), SigmaScaling(of_logarithms).fit(X, np.log(Y))
    assert scaled.scale_ == pytest.approx(latent.scale_)
    assert scaled.predict_interval(X_NEW)[1].min() > 0
    ratio = scaled.predict_std(X_NEW) / model.predict_std(X_NEW)
    np.testing.assert_allclose(
        scaled.predict_std(X_NEW, kind="epistemic") / model.predict_std(X_NEW, kind="epistemic"), ratio
    )
    assert metrics.neg_crps(model, X, Y) == pytest.approx(-model.predict_dist(X).crps(Y).mean())
    assert (
        metrics.cross_validate_distribution(LaplaceRegressor(target_transform="log", **SMALL), X, Y, cv=2)
        .crps.gt(0)
        .all()
    )


def test_what_is_not_available_is_refused(model):
    requests = {
        "return_cov": lambda: model.predict(X_NEW, return_cov=True),
        "return_mean_grad": lambda: model.predict(X_NEW, return_mean_grad=True),
        "X_std": lambda: model.predict_std(X_NEW, X_std=0.1),
        "kind='epistemic'": lambda: model.sample_y(X_NEW, kind="epistemic"),
    }
    for name, request in requests.items():
        with pytest.raises(UnsupportedCombinationError, match=rf"{name} is not available with target_transform='log'"):
            request()
    pytest.importorskip("onnx")
    with pytest.raises(UnsupportedCombinationError, match="to_onnx is not available with target_transform='log'"):
        to_onnx(model)


@pytest.mark.parametrize(
    ("options", "variances", "message"),
    [
        ({"target_transform": "lgo"}, None, "target_transform='lgo' is not known; expected one of .* mean 'log'"),
        ({"target_transform": "yeo-johnson"}, None, "one of 'log', or None; .* scikit-learn's TransformedTargetReg"),
        ({"target_transform": "log", "likelihood": "poisson"}, None, "cannot be used with likelihood='poisson'"),
        ({"target_transform": "log"}, np.ones(80), "cannot be used with sample_noise_variance"),
    ],
)
def test_combinations_that_exclude_each_other(options, variances, message):
    with pytest.raises(ValueError, match=message):
        LaplaceRegressor(**{**SMALL, **options}).fit(X, Y, sample_noise_variance=variances)


def test_positive_skewed_targets_get_a_hint(capsys):
    """Printed by ``verbose=1`` for default options only."""
    quick = {"hidden_layer_sizes": (), "prior_precision": 1.0, "sigma_noise": 1.0, "n_members": 1, "random_state": 0}
    LaplaceRegressor(**quick).fit(X, Y)
    LaplaceRegressor(verbose=1, likelihood="gaussian", **quick).fit(X, Y)
    LaplaceRegressor(verbose=1, target_transform="log", **quick).fit(X, Y)
    LaplaceRegressor(verbose=1, **quick).fit(X, 5 + X[:, 0])
    LaplaceRegressor(verbose=1, **quick).fit(X, Y - Y.mean())
    assert "skewed" not in capsys.readouterr().out
    LaplaceRegressor(verbose=1, **quick).fit(X, Y)
    assert (
        "y is positive and skewed. If intervals reach below zero, use target_transform='log'" in capsys.readouterr().out
    )


def amounts(shift=0.0):
    """Zero in two thirds of the rows."""
    size = np.exp(0.5 * np.random.default_rng(3).normal(size=len(X)))
    return shift + np.where(X[:, 0] > np.quantile(X[:, 0], 2 / 3), size, 0.0)


def test_targets_that_are_mostly_zero_get_advice(capsys):
    """In ``report`` and printed by ``verbose=1``; both models of the advice can be fitted."""
    quick = {"hidden_layer_sizes": (), "prior_precision": 1.0, "n_members": 1, "random_state": 0}
    y, message = amounts(), "y is 0 in 66% of the rows, and never negative"
    model = LaplaceRegressor(verbose=1, sigma_noise=1.0, **quick).fit(X, y)
    assert message in capsys.readouterr().out and message in str(model.report(X, y))
    for other in (amounts(0.1), y - 0.5, np.where(y > 0, 1.0, 0.0), np.sqrt(amounts()) - (y == 0)):
        assert "y is 0 in" not in str(model.report(X, other))
    LaplaceClassifier(**quick).fit(X, y > 0)
    LaplaceRegressor(target_transform="log", sigma_noise=1.0, **quick).fit(X[y > 0], y[y > 0])


@pytest.mark.parametrize("value", [1e12, -1e9])
@pytest.mark.parametrize("kind", [np.asarray, list, np.transpose, lambda y: np.column_stack([X[:, 0], y])])
def test_a_target_far_from_all_others_is_named_with_its_row(kind, value):
    """Rows of weight zero are none of the fit; heavy tails are no concern."""
    model = LaplaceRegressor(
        hidden_layer_sizes=(), prior_precision=1.0, sigma_noise=1.0, likelihood="gaussian", n_members=1, random_state=0
    )
    y, weights = np.sin(X[:, 0]), np.ones(len(X))
    model.fit(X, kind(np.tan(1.5 * y)))
    y[17], weights[17] = value, 0.0
    named = rf"y holds {re.escape(f'{value:g}')} in row 17, and the other .* drop the row"
    with pytest.warns(TableWarning, match=named):
        model.fit(X, kind(y))
    model.fit(X, kind(y), weights)


def test_a_search_chooses_by_held_out_rows():
    search = GridSearchCV(
        LaplaceRegressor(**SMALL), {"target_transform": [None, "log"]}, scoring=metrics.log_density_scorer, cv=2
    )
    assert search.fit(X, Y).best_params_ == {"target_transform": "log"}
