"""Proper scores and calibration metrics: closed forms, weights, propriety, and use as scikit-learn scorers."""

from __future__ import annotations

import pickle
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import scoringrules
from scipy import integrate, stats
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, metrics
from sklearn_laplace.metrics import calibration_gap, coverage, mean_width, neg_crps, neg_interval_score, neg_nlpd

SCORES = (neg_nlpd, neg_crps, neg_interval_score)
FIGURES = (coverage, mean_width, calibration_gap)
RNG = np.random.default_rng(5)
X = RNG.normal(size=(40, 2))
Y = X[:, 0] + 0.3 * RNG.normal(size=40)
Y2 = np.column_stack([Y, 50 * X[:, 1] + 5 * RNG.normal(size=40)])
LABELS = np.array(["no", "yes"])[(X[:, 0] + 0.5 * RNG.normal(size=40) > 0).astype(int)]
SMALL = {"hidden_layer_sizes": (5,), "random_state": 0, "n_members": 1}


class Stated(RegressorMixin, BaseEstimator):
    """Predicts the normals given by its input rows: means in the first half of the columns, stds in the second."""

    def fit(self, X, y):
        return self

    def predict(self, X, return_std=False):
        X = np.asarray(X, dtype=float)
        k = X.shape[1] // 2
        mean, std = (X[:, 0], X[:, 1]) if k == 1 else (X[:, :k], X[:, k:])
        return (mean, std) if return_std else mean


class StatedClasses(ClassifierMixin, BaseEstimator):
    """Predicts its input rows as class probabilities."""

    classes_ = np.array(["a", "b", "c"])

    def fit(self, X, y):
        return self

    def __sklearn_is_fitted__(self):
        return True

    def predict_proba(self, X):
        return np.asarray(X, dtype=float)


def stated(mean, std):
    return np.column_stack([mean, std])


@pytest.fixture(scope="module")
def regressor():
    return LaplaceRegressor(**SMALL).fit(X, Y)


@pytest.fixture(scope="module")
def two_outputs():
    return LaplaceRegressor(**SMALL).fit(X, Y2)


@pytest.fixture(scope="module")
def classifier():
    return LaplaceClassifier(**SMALL).fit(X, LABELS)


# ---------------------------------------------------------------------- closed forms

NORMALS = [(0.0, 1.0, 0.0), (1.5, 0.3, 1.1), (-2.0, 4.0, 9.0), (3.0, 0.01, 3.2)]
"""(mean, std, target): at the centre, inside, and 2.75 and 20 standard deviations away."""


@pytest.mark.parametrize(("mean", "std", "target"), NORMALS)
def test_the_crps_is_its_integral(mean, std, target):
    """∫ (F − 1[t ≥ y])² dt by adaptive quadrature on both sides of the step, out to twelve standard deviations."""
    below, above = min(mean - 12 * std, target), max(mean + 12 * std, target)
    breaks = np.unique([below, *np.clip(mean + std * np.arange(-6, 7), below, above), target, above])
    total = 0.0
    for low, high in pairwise(breaks):
        step = float(low >= target)
        total += integrate.quad(
            lambda t, step=step: (stats.norm.cdf(t, mean, std) - step) ** 2, low, high, epsabs=1e-14, epsrel=1e-13
        )[0]
    assert neg_crps(Stated(), stated(mean, std), [target]) == pytest.approx(-total, rel=1e-11, abs=1e-12)


@pytest.mark.parametrize(("mean", "std", "target"), NORMALS)
def test_the_density_integrates_to_one_and_is_normal(mean, std, target):
    """exp(neg_nlpd) is a density over y and equals the textbook formula."""
    value = neg_nlpd(Stated(), stated(mean, std), [target])
    expected = -0.5 * ((target - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    assert value == pytest.approx(expected, rel=1e-12, abs=1e-14)
    total, _ = integrate.quad(
        lambda t: np.exp(neg_nlpd(Stated(), stated(mean, std), [t])),
        mean - 9 * std,
        mean + 9 * std,
        points=[mean],
        epsabs=1e-13,
    )
    assert total == pytest.approx(1.0, abs=1e-11)


@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize(("mean", "std", "target"), NORMALS)
def test_the_interval_score_is_two_pinball_losses(mean, std, target, level):
    """Independent form: (2/α)(ρ_{α/2} at l + ρ_{1−α/2} at u), with ρ_τ(e) = max(τ e, (τ − 1) e)."""
    alpha = 1 - level
    pinball = 0.0
    for tau in (alpha / 2, 1 - alpha / 2):
        error = target - stats.norm.ppf(tau, mean, std)
        pinball += max(tau * error, (tau - 1) * error)
    value = neg_interval_score(Stated(), stated(mean, std), [target], confidence_level=level)
    assert value == pytest.approx(-2 / alpha * pinball, rel=1e-12)


def test_the_crps_is_the_mean_pinball_loss_over_all_levels():
    """CRPS = 2 ∫ ρ_τ(y − F⁻¹(τ)) dτ, over z with τ = Φ(z): a different integral from the definition."""
    mean, std, target = 1.0, 2.0, 2.7

    def pinball(z):
        error = target - (mean + std * z)
        return error * (stats.norm.cdf(z) - (error < 0)) * stats.norm.pdf(z)

    total, _ = integrate.quad(pinball, -12, 12, points=[(target - mean) / std], epsabs=1e-14)
    assert neg_crps(Stated(), stated(mean, std), [target]) == pytest.approx(-2 * total, rel=1e-11)


def test_the_scores_are_those_of_an_independent_implementation(regressor):
    """Equal to scoringrules within 1e-10, for a fitted model on rows near and far from the training data."""
    rows = np.vstack([X, 5 * X])
    targets = np.concatenate([Y, 3 * Y])
    mean, std = regressor.predict(rows, return_std=True)
    lower, upper = regressor.predict_interval(rows)[1].T
    expected = {
        neg_nlpd: scoringrules.logs_normal(targets, mean, std),
        neg_crps: scoringrules.crps_normal(targets, mean, std),
        neg_interval_score: scoringrules.interval_score(targets, lower, upper, 0.1),
    }
    for score, values in expected.items():
        np.testing.assert_allclose(score(regressor, rows, targets), -values.mean(), rtol=1e-10)


def test_class_probabilities_are_judged_by_their_logarithm():
    """By hand; −inf, without a warning, for classes of probability zero and for unknown classes."""
    p = [[0.5, 0.25, 0.25], [0.0, 0.1, 0.9]]
    assert neg_nlpd(StatedClasses(), p, ["a", "c"]) == pytest.approx((np.log(0.5) + np.log(0.9)) / 2, rel=1e-14)
    assert neg_nlpd(StatedClasses(), p, ["a", "a"]) == -np.inf
    assert neg_nlpd(StatedClasses(), p, ["a", "d"]) == -np.inf
    assert neg_nlpd(StatedClasses(), p, ["a", "d"], [2.0, 0.0]) == pytest.approx(np.log(0.5), rel=1e-14)


# ---------------------------------------------------------------------- metrics by hand


def test_coverage_counts():
    """For standard normals at 90 % the ends are ±1.6449, and an end counts as inside."""
    end = stats.norm.ppf(0.95)
    rows = stated(np.zeros(5), np.ones(5))
    assert coverage(Stated(), rows, [0.0, 1.64, -1.65, 5.0, -1.0]) == 0.6
    assert coverage(Stated(), rows[:1], [end]) == 1.0
    assert coverage(Stated(), rows, [0.0, 1.0, -1.65, 0.6, -0.7], confidence_level=0.5) == 0.4


def test_the_width_is_that_of_the_interval():
    """2 · 1.6449 standard deviations, averaged; targets are not needed."""
    assert mean_width(Stated(), stated([7.0, 8.0], [1.0, 3.0])) == pytest.approx(2 * stats.norm.ppf(0.95) * 2)


def test_the_calibration_gap_by_hand():
    """Targets at the centre are inside every interval: the gap is the mean of 1 − level, .5; and three known cases."""
    centre = stated(np.zeros(4), np.ones(4))
    assert calibration_gap(Stated(), centre, np.zeros(4)) == pytest.approx(0.5, rel=1e-12)
    assert calibration_gap(Stated(), centre, np.full(4, 50.0)) == pytest.approx(0.5, rel=1e-12)
    # |2 Φ(y) − 1| is uniform on a fine grid: coverage of level c is c up to half a step
    n = 2000
    targets = stats.norm.ppf(0.5 + (np.arange(n) + 0.5) / (2 * n))
    assert calibration_gap(Stated(), stated(np.zeros(n), np.ones(n)), targets) < 1 / n
    # twice too wide: the observed coverage of level c is 2 Φ(2 q) − 1
    levels = np.arange(0.05, 0.96, 0.05)
    expected = np.mean(2 * stats.norm.cdf(2 * stats.norm.ppf(0.5 + levels / 2)) - 1 - levels)
    gap = calibration_gap(Stated(), stated(np.zeros(n), np.full(n, 2.0)), targets)
    assert gap == pytest.approx(expected, abs=1 / n)


def test_the_gap_of_two_outputs_does_not_cancel():
    """One output is inside every interval and one inside none: a gap of .5 each, although the pooled coverage is .5."""
    rows, targets = np.array([[0.0, 0.0, 1.0, 1.0]] * 3), np.array([[0.0, 50.0]] * 3)
    assert calibration_gap(Stated(), rows, targets) == pytest.approx(0.5, rel=1e-12)
    assert coverage(Stated(), rows, targets) == 0.5


# ---------------------------------------------------------------------- propriety


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("mean", "std"), [(0.5, 2.0), (1.5, 2.0), (1.0, 1.4), (1.0, 2.8)])
def test_the_truth_wins_in_expectation(score, mean, std):
    """For y ~ N(1, 2²), by quadrature on 4,001 quantiles: any other normal has a lower expected score."""
    targets = stats.norm.ppf((np.arange(4001) + 0.5) / 4001, 1.0, 2.0)
    n = len(targets)
    truth = score(Stated(), stated(np.full(n, 1.0), np.full(n, 2.0)), targets)
    assert truth > score(Stated(), stated(np.full(n, mean), np.full(n, std)), targets)


@pytest.mark.parametrize("score", SCORES)
def test_the_expected_score_is_flat_at_the_truth(score):
    """The derivatives with respect to mean and std vanish at the truth, but not 10 % away from it."""
    targets = stats.norm.ppf((np.arange(40_001) + 0.5) / 40_001)
    n, h = len(targets), 1e-3

    def at(mean, std):
        return score(Stated(), stated(np.full(n, mean), np.full(n, std)), targets)

    for slope in (at(h, 1) - at(-h, 1), at(0, 1 + h) - at(0, 1 - h)):
        assert abs(slope / (2 * h)) < 2e-3  # error of the quantile grid
    assert (at(0, 1.1 + h) - at(0, 1.1 - h)) / (2 * h) < -0.01


# ---------------------------------------------------------------------- weights and shapes


@pytest.mark.parametrize("metric", [*SCORES, *FIGURES])
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_weight_is_a_repetition(metric, outputs):
    """Weight k equals k copies of the row, weight 0 its absence; equal weights have no effect."""
    rng = np.random.default_rng(outputs)
    rows = np.column_stack([rng.normal(size=(9, outputs)), rng.uniform(0.5, 2, size=(9, outputs))])
    targets = rng.normal(scale=1.5, size=(9, outputs))
    targets = targets[:, 0] if outputs == 1 else targets
    weights = np.array([0, 1, 2, 3, 0, 1, 1, 5, 2])
    repeated = metric(Stated(), np.repeat(rows, weights, axis=0), np.repeat(targets, weights, axis=0))
    assert metric(Stated(), rows, targets, sample_weight=weights) == pytest.approx(repeated, rel=1e-13)
    assert metric(Stated(), rows, targets, np.full(9, 3.0)) == pytest.approx(metric(Stated(), rows, targets), rel=1e-13)
    assert isinstance(metric(Stated(), rows, targets), float)


def test_several_outputs_sum_in_nats_and_average_in_units(two_outputs):
    """The log density is summed over the outputs of a row; the other scores are averaged over the outputs."""
    mean, std = two_outputs.predict(X, return_std=True)
    single = [[metric(Stated(), stated(mean[:, c], std[:, c]), Y2[:, c]) for c in (0, 1)] for metric in SCORES]
    assert neg_nlpd(two_outputs, X, Y2) == pytest.approx(sum(single[0]), rel=1e-12)
    for metric, values in zip(SCORES[1:], single[1:], strict=True):
        assert metric(two_outputs, X, Y2) == pytest.approx(np.mean(values), rel=1e-12)


def test_the_scores_follow_the_units_of_y():
    """Scaling y by c shifts the log density by −log c, scales lengths by c and leaves fractions unchanged."""
    rows, targets, c = stated(X[:, 0], np.full(40, 0.3)), Y, 1000.0
    scaled = c * rows
    assert neg_nlpd(Stated(), scaled, c * targets) == pytest.approx(neg_nlpd(Stated(), rows, targets) - np.log(c))
    for metric in (neg_crps, neg_interval_score, mean_width):
        assert metric(Stated(), scaled, c * targets) == pytest.approx(c * metric(Stated(), rows, targets), rel=1e-12)
    for metric in (coverage, calibration_gap):
        assert metric(Stated(), scaled, c * targets) == pytest.approx(metric(Stated(), rows, targets), rel=1e-12)


# ---------------------------------------------------------------------- estimators


@pytest.mark.parametrize(("name", "y"), [("regressor", Y), ("two_outputs", Y2), ("classifier", LABELS)])
def test_the_log_score_is_the_mean_of_the_estimators_own(name, y, request):
    """The score equals the weighted mean of log_predictive_density."""
    model = request.getfixturevalue(name)
    weights = np.arange(40.0)
    expected = np.average(model.log_predictive_density(X, y), weights=weights)
    assert neg_nlpd(model, X, y, weights) == pytest.approx(expected, rel=1e-12)


def test_the_interval_figures_are_those_of_predict_interval(regressor):
    """Coverage and width of predict_interval, computed by hand."""
    _, interval = regressor.predict_interval(X, 0.8)
    lower, upper = interval.T
    assert coverage(regressor, X, Y, confidence_level=0.8) == np.mean((lower <= Y) & (upper >= Y))
    assert mean_width(regressor, X, Y, confidence_level=0.8) == pytest.approx(np.mean(upper - lower), rel=1e-12)


@pytest.mark.parametrize("model", [BayesianRidge(), GaussianProcessRegressor(alpha=0.1)], ids=["ridge", "gp"])
def test_other_models_are_judged_as_normals(model):
    """Any model with predict(X, return_std=True), here in a pipeline, can be compared."""
    pipe = make_pipeline(StandardScaler(), model).fit(X, Y)
    mean, std = pipe.predict(X, return_std=True)
    assert neg_nlpd(pipe, X, Y) == pytest.approx(stats.norm.logpdf(Y, mean, std).mean(), rel=1e-12)
    assert coverage(pipe, X, Y) == np.mean(np.abs(Y - mean) <= stats.norm.ppf(0.95) * std)


def test_other_classifiers_are_judged_by_predict_proba():
    """scikit-learn's log loss is the independent oracle."""
    model = LogisticRegression().fit(X, LABELS)
    weights = np.linspace(0.1, 2, 40)
    expected = -log_loss(LABELS, model.predict_proba(X), sample_weight=weights)
    assert neg_nlpd(model, X, LABELS, weights) == pytest.approx(expected, rel=1e-12)


# ---------------------------------------------------------------------- as scorers


def test_a_search_over_the_prior_sees_what_r2_cannot():
    """With a fixed map_prior_precision the mean does not change: R² is constant, the log score and the CRPS are not."""
    search = GridSearchCV(
        LaplaceRegressor(**SMALL, map_prior_precision=1.0, sigma_noise=0.3),
        {"prior_precision": [1e-2, 1.0, 1e2]},
        scoring={"r2": "r2", "log": neg_nlpd, "crps": neg_crps},
        refit="log",
        cv=2,
    ).fit(X, Y)
    results = search.cv_results_
    assert np.ptp(results["mean_test_r2"]) < 1e-10
    assert np.ptp(results["mean_test_log"]) > 1e-3
    assert np.ptp(results["mean_test_crps"]) > 1e-5
    assert search.best_index_ == results["mean_test_log"].argmax()
    assert neg_nlpd(search, X, Y) == neg_nlpd(search.best_estimator_, X, Y)


def test_scores_and_figures_in_one_cross_validation():
    """Functions and partials, in a pipeline that transforms X; each fold equals the result by hand."""
    narrow = partial(coverage, confidence_level=0.5)
    pipe = make_pipeline(FunctionTransformer(np.tanh), BayesianRidge())
    folds = KFold(3)
    found = cross_validate(pipe, X, Y, cv=folds, scoring={"crps": neg_crps, "half": narrow, "width": mean_width})
    for fold, (train, test) in enumerate(folds.split(X)):
        model = BayesianRidge().fit(np.tanh(X[train]), Y[train])
        assert found["test_crps"][fold] == neg_crps(model, np.tanh(X[test]), Y[test])
        assert found["test_half"][fold] == narrow(model, np.tanh(X[test]), Y[test])
        assert found["test_width"][fold] == mean_width(model, np.tanh(X[test]))


@pytest.mark.parametrize("metric", [*SCORES, *FIGURES, partial(neg_interval_score, confidence_level=0.5)])
def test_scorers_can_be_pickled(metric):
    """Parallel searches pickle scorers to send them to other processes."""
    again = pickle.loads(pickle.dumps(metric))
    assert again(Stated(), [[0.0, 1.0]], [0.3]) == metric(Stated(), [[0.0, 1.0]], [0.3])


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize("metric", [m for m in (*SCORES, *FIGURES) if m is not neg_nlpd])
def test_figures_of_numbers_refuse_classifiers(metric):
    """A class has no interval; the message names the scores for classes."""
    message = f"^{metric.__name__} evaluates .* found the classifier StatedClasses.* use neg_nlpd"
    with pytest.raises(TypeError, match=message):
        metric(FrozenEstimator(StatedClasses()), [[0.5, 0.5, 0.0]], ["a"])


@pytest.mark.parametrize("level", [0, 1, 1.5, "high", (0.5, 0.9), np.nan])
@pytest.mark.parametrize("metric", [neg_interval_score, coverage, mean_width])
def test_a_level_is_one_number_between_zero_and_one(metric, level):
    """A scorer returns one number, so that lists of levels are rejected."""
    with pytest.raises(ValueError, match=r"confidence_level=.* numbers? strictly between 0 and 1"):
        metric(Stated(), [[0.0, 1.0]], [0.0], confidence_level=level)


@pytest.mark.parametrize("y", [[0.0, 1.0, 2.0], [[0.0, 1.0], [0.0, 1.0]]])
def test_targets_have_to_fit_the_predictions(y):
    """Broadcasting would give a meaningless number."""
    with pytest.raises(ValueError, match=r"y has shape .*; expected \(2,\), one target for each prediction"):
        neg_crps(Stated(), [[0.0, 1.0], [0.0, 1.0]], y)


def test_labels_have_to_fit_the_rows():
    """One label per row."""
    with pytest.raises(ValueError, match="y has 2 labels for 1 rows of X"):
        neg_nlpd(StatedClasses(), [[0.5, 0.5, 0.0]], ["a", "b"])


def test_a_column_of_targets_is_a_list_of_targets():
    """Targets of shape (n, 1) are reshaped to (n,), never broadcast to an outer product."""
    rows = stated(X[:, 0], np.ones(40))
    assert neg_crps(Stated(), rows, Y[:, None]) == neg_crps(Stated(), rows, Y)


def test_points_are_no_distribution():
    """A model without a standard deviation, and a model with a standard deviation of zero."""
    with pytest.raises(TypeError, match=r"LinearRegression has no predictive distribution; expected .* return_std"):
        neg_nlpd(LinearRegression().fit(X, Y), X, Y)
    with pytest.raises(ValueError, match=r"Stated.predict\(X, return_std=True\) returned a standard deviation of 0.0"):
        neg_crps(Stated(), [[0.0, 0.0]], [1.0])


def test_the_levels_are_the_documented_ones():
    """.05 to .95, nineteen of them."""
    np.testing.assert_allclose(metrics.CALIBRATION_LEVELS, np.linspace(0.05, 0.95, 19), rtol=1e-14)
