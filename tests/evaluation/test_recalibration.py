"""Expected calibration error, weights of outputs, sharpness, and recalibration by a scaling factor."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
import scoringrules
from scipy import optimize, stats
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.metrics import make_scorer
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sklearn_laplace
from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, metrics
from sklearn_laplace.distributions import NormalMixture
from sklearn_laplace.metrics import (
    calibration_gap,
    coverage,
    expected_calibration_error,
    mean_width,
    neg_crps,
    neg_interval_score,
    neg_nlpd,
    sharpness,
)
from sklearn_laplace.metrics.calibration import reliability_bins
from sklearn_laplace.plotting import CoverageDisplay
from sklearn_laplace.recalibration import SigmaScaling

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(11)
X = RNG.normal(size=(60, 2))
Y = X[:, 0] + 0.3 * RNG.normal(size=60)
Y2 = np.column_stack([Y, 5 * X[:, 1] + RNG.normal(size=60)])
P = RNG.dirichlet(np.full(3, 0.6), size=200)
LABELS = np.array(["a", "b", "c"])[[RNG.choice(3, p=row) for row in P]]
SMALL = {"hidden_layer_sizes": (8,), "n_members": 1, "prior_precision": "evidence", "random_state": 0}
GAUSSIAN = SMALL | {"sigma_noise": "evidence", "likelihood": "gaussian"}
TRAIN, HELD_OUT = slice(0, 40), slice(40, 60)


class Stated(RegressorMixin, BaseEstimator):
    """Predicts the normals given by its input rows: means in the first half of the columns, stds in the second."""

    def fit(self, X, y):
        return self

    def __sklearn_is_fitted__(self):
        return True

    def predict(self, X, return_std=False):
        X = np.asarray(X, dtype=float)
        k = X.shape[1] // 2
        mean, std = (X[:, 0], X[:, 1]) if k == 1 else (X[:, :k], X[:, k:])
        return (mean, std) if return_std else mean


@pytest.fixture(scope="module")
def regressor():
    return LaplaceRegressor(**GAUSSIAN).fit(X[TRAIN], Y[TRAIN])


@pytest.fixture(scope="module")
def two_outputs():
    return LaplaceRegressor(**GAUSSIAN).fit(X[TRAIN], Y2[TRAIN])


@pytest.fixture(scope="module")
def mixture():
    return LaplaceRegressor(**GAUSSIAN | {"n_members": 2}).fit(X[TRAIN], Y[TRAIN])


# ---------------------------------------------------------------------- expected calibration error


def test_the_error_of_equal_widths_is_that_of_a_loop():
    """Guo et al. (2017), eq. 3, by a loop over rows and bins; bins include their upper end."""
    n_bins, gaps = 7, 0.0
    for b in range(n_bins):
        rows = [n for n in range(200) if b / n_bins < P[n].max() <= (b + 1) / n_bins]
        if rows:
            accuracy = np.mean([["a", "b", "c"][int(P[n].argmax())] == LABELS[n] for n in rows])
            gaps += len(rows) / 200 * abs(accuracy - np.mean([P[n].max() for n in rows]))
    assert expected_calibration_error(LABELS, P, n_bins=n_bins) == pytest.approx(gaps, rel=1e-12)


def test_the_error_of_equal_counts_is_that_of_a_loop():
    """Bins of twenty sorted rows each."""
    order, gap = np.argsort(P.max(1)), 0.0
    for b in range(10):
        rows = order[20 * b : 20 * b + 20]
        right = np.array(["a", "b", "c"])[P[rows].argmax(1)] == LABELS[rows]
        gap += abs(right.mean() - P[rows].max(1).mean()) / 10
    assert expected_calibration_error(LABELS, P, strategy="quantile") == pytest.approx(gap, rel=1e-12)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_a_weight_is_a_repetition(strategy):
    """Weight k equals k copies of the row, weight 0 its absence; a common factor has no effect."""
    weights = np.random.default_rng(0).integers(0, 4, size=200)
    error = partial(expected_calibration_error, strategy=strategy, n_bins=6)
    repeated = error(np.repeat(LABELS, weights), np.repeat(P, weights, axis=0))
    assert error(LABELS, P, sample_weight=weights) == pytest.approx(repeated, rel=1e-12)
    assert error(LABELS, P, sample_weight=0.1 * weights) == pytest.approx(repeated, rel=1e-9)


def test_equal_probabilities_share_a_bin():
    """Otherwise the result would depend on the order of the rows. Three values give at most three bins."""
    p, event = np.repeat([0.2, 0.5, 0.9], 10), np.tile([True, False], 15)
    for order in (np.arange(30), np.arange(30)[::-1]):
        bins = reliability_bins(p[order], event[order], n_bins=10, strategy="quantile")
        np.testing.assert_allclose(bins.confidence, [0.2, 0.5, 0.9])
        assert bins.weight.tolist() == [10, 10, 10] and bins.error == pytest.approx((0.3 + 0 + 0.4) / 3)


def test_one_column_is_the_probability_of_the_second_label():
    """As in scikit-learn's binary metrics: p is evaluated as it is, even below one half."""
    y, p = np.array([0, 0, 0, 1]), np.full(4, 0.4)
    assert expected_calibration_error(y, p) == pytest.approx(0.15)
    assert expected_calibration_error(y, np.column_stack([1 - p, p])) == pytest.approx(0.15)
    assert expected_calibration_error([0, 0], [0.1, 0.1], labels=[0, 1]) == pytest.approx(0.1)


def test_labels_are_those_of_the_columns_in_their_order():
    """As ``classes_`` of any classifier; labels that cannot be assigned are refused."""
    y, p = np.array(["b", "b", "a", "b"]), np.full((4, 2), [0.9, 0.1])
    assert expected_calibration_error(y, p, labels=["b", "a"]) == pytest.approx(0.15)
    assert expected_calibration_error(y, p[:, ::-1], labels=["a", "b"]) == pytest.approx(0.15)
    with pytest.raises(ValueError, match=r"y_true holds b, and labels=\['a', 'c'\]; add what is missing"):
        expected_calibration_error(y, p, labels=["a", "c"])
    with pytest.raises(ValueError, match=r"labels=\['b', 'b'\] repeats a label"):
        expected_calibration_error(y, p, labels=["b", "b"])
    with pytest.raises(ValueError, match=r"y_true holds 'b' only, .* Pass labels="):
        expected_calibration_error(y[[0, 1, 3]], p[:3, 0])


def test_probabilities_of_zero_have_a_bin_of_their_own():
    """As those of a hair more than zero."""
    p, y = np.repeat([0.0, 0.2], 50), np.arange(100) < 10
    for least in (p, np.maximum(p, 1e-12)):
        assert expected_calibration_error(y, least, n_bins=2, strategy="quantile") == pytest.approx(0.2, rel=1e-9)


def test_a_calibrated_model_is_close_to_zero_and_a_sure_one_is_not():
    """Labels drawn from the probabilities, evaluated under these and under their cubes."""
    rng = np.random.default_rng(2)
    p = rng.uniform(size=20_000)
    y = rng.uniform(size=20_000) < p
    assert expected_calibration_error(y, p) < 0.02  # ten bins of 2,000 rows: a standard error of about .01 each
    assert expected_calibration_error(y, p**3) > 0.1


def test_the_error_is_a_scorer():
    """With make_scorer, lower is better; for two classes it receives one column. Each fold equals a result by hand."""
    scorer = make_scorer(expected_calibration_error, response_method="predict_proba", greater_is_better=False)
    labels = np.where(X[:, 0] > 0, "p", "n")
    found = cross_validate(
        LogisticRegression(), X, labels, cv=2, scoring=scorer, return_estimator=True, return_indices=True
    )
    for model, score, test in zip(found["estimator"], found["test_score"], found["indices"]["test"], strict=True):
        assert score == -expected_calibration_error(labels[test], model.predict_proba(X[test])[:, 1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"y_true": [0, 1], "y_prob": np.full((2, 3), 1 / 3)},
            r"y_prob has 3 columns for the 2 labels \[0, 1\]; pass lab",
        ),
        ({"y_true": [0, 1, 2], "y_prob": [0.1, 0.2, 0.3]}, "y_prob has one column for 3 labels; expected one column p"),
        ({"y_true": [0, 1], "y_prob": [[0.5, 0.5]]}, "y_prob has 1 rows for 2 labels; expected one row for each"),
        ({"y_true": [0, 1], "y_prob": [[0.5, 0.9], [0.5, 0.5]]}, "a row of y_prob sums to 1.4; the probabilities of"),
        (
            {"y_true": [0, 1], "y_prob": [1.5, 0.5]},
            "probabilities between 0.5 and 1.5 were given; they must lie",
        ),
        ({"y_true": [0, 1], "y_prob": [0.5, 0.5], "n_bins": 0}, "n_bins=0 has to be a whole number of at least 1"),
        (
            {"y_true": [0, 1], "y_prob": [0.5, 0.5], "strategy": "equal"},
            "strategy='equal' is not known; expected one of",
        ),
        ({"y_true": [0, 1], "y_prob": [0.5, 0.5], "sample_weight": [0, 0]}, "(?i)sample.weight.*zero"),
    ],
)
def test_bad_probabilities_are_named(given, message):
    """The message states the value given and what is needed."""
    with pytest.raises(ValueError, match=message):
        expected_calibration_error(**given)


def test_bins_need_an_event_for_each_probability():
    """Arrays of different lengths are not broadcast."""
    with pytest.raises(ValueError, match=r"probability has shape \(2,\) for 1 events; expected one value for each"):
        reliability_bins([0.5, 0.5], [True])


# ---------------------------------------------------------------------- outputs


@pytest.mark.parametrize("metric", [neg_crps, neg_interval_score, coverage, mean_width, calibration_gap, sharpness])
def test_outputs_can_be_seen_and_weighed(metric, two_outputs):
    """Raw values are the metrics of the single outputs; the default is their mean, and weights give a weighted mean."""
    mean, std = two_outputs.predict(X, return_std=True)
    alone = [metric(Stated(), np.column_stack([mean[:, c], std[:, c]]), Y2[:, c]) for c in (0, 1)]
    raw = metric(two_outputs, X, Y2, multioutput="raw_values")
    np.testing.assert_allclose(raw, alone, rtol=1e-9)
    assert metric(two_outputs, X, Y2) == pytest.approx(np.mean(alone), rel=1e-9)
    assert metric(two_outputs, X, Y2, multioutput=[3, 1]) == pytest.approx(0.75 * alone[0] + 0.25 * alone[1], rel=1e-9)
    assert isinstance(metric(two_outputs, X, Y2), float)
    assert metric(Stated(), [[0.0, 1.0]], [0.5], multioutput="raw_values").shape == (1,)


def test_raw_values_are_those_of_an_independent_implementation(two_outputs):
    """CRPS and interval score of each output, from scoringrules."""
    mean, std = two_outputs.predict(X, return_std=True)
    low, high = np.moveaxis(two_outputs.predict_interval(X, 0.9)[1], 2, 0)
    expected = -scoringrules.crps_normal(Y2, mean, std).mean(0)
    np.testing.assert_allclose(neg_crps(two_outputs, X, Y2, multioutput="raw_values"), expected, rtol=1e-10)
    expected = -scoringrules.interval_score(Y2, low, high, 0.1).mean(0)
    np.testing.assert_allclose(neg_interval_score(two_outputs, X, Y2, multioutput="raw_values"), expected, rtol=1e-10)


@pytest.mark.parametrize("wrong", [[1.0], [1.0, -1.0], [0.0, 0.0], None, [1.0, np.inf]])
def test_weights_of_outputs_fit_them(wrong, two_outputs):
    """One weight for each output, non-negative and not all zero; a misspelt option is named."""
    with pytest.raises(ValueError, match=r"multioutput=.*; expected 'uniform_average', 'raw_values' or 2 non-neg"):
        neg_crps(two_outputs, X, Y2, multioutput=wrong)
    with pytest.raises(
        ValueError, match=r"multioutput='raw' is not known; expected one of 'raw_values', 'uniform_avera"
    ):
        neg_crps(two_outputs, X, Y2, multioutput="raw")


def test_sharpness_is_the_root_mean_variance(regressor):
    """By hand, with weights as copies; it equals the RMSE if the predictive variances are correct."""
    std = regressor.predict_std(X)
    weights = np.arange(60)
    assert sharpness(regressor, X) == pytest.approx(np.sqrt(np.mean(std**2)), rel=1e-12)
    assert sharpness(regressor, X, sample_weight=weights) == pytest.approx(
        sharpness(regressor, np.repeat(X, weights, 0))
    )
    spread = np.random.default_rng(0).uniform(0.1, 3, 20_000)
    targets = spread * np.random.default_rng(1).normal(size=20_000)
    rows = np.column_stack([np.zeros(20_000), spread])
    assert sharpness(Stated(), rows) == pytest.approx(np.sqrt(np.mean(targets**2)), rel=0.03)  # 5 standard errors
    with pytest.raises(TypeError, match="sharpness evaluates distributions of numeric targets; found the classifier"):
        sharpness(LaplaceClassifier(**SMALL).fit(X, X[:, 0] > 0), X)
    assert pickle.loads(pickle.dumps(sharpness))(regressor, X) == sharpness(regressor, X)


def test_every_metric_is_listed():
    """Every name in __all__ exists."""
    assert set(metrics.__all__) >= {"expected_calibration_error", "sharpness", "neg_nlpd", "coverage"}
    assert all(name in vars(metrics) for name in metrics.__all__)


# ---------------------------------------------------------------------- the scaling factor


def test_the_factor_is_the_maximum_of_the_held_out_likelihood(regressor):
    """By a bounded search over the normal density instead of the formula."""
    scaled = SigmaScaling(regressor).fit(X[HELD_OUT], Y[HELD_OUT])
    mean, std = regressor.predict(X[HELD_OUT], return_std=True)

    def loss(log_scale):
        return -stats.norm.logpdf(Y[HELD_OUT], mean, np.exp(log_scale) * std).sum()

    found = optimize.minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-10})
    assert scaled.scale_ == pytest.approx(np.exp(found.x), rel=1e-5)  # tolerance of the search
    assert neg_nlpd(scaled, X[HELD_OUT], Y[HELD_OUT]) >= neg_nlpd(regressor, X[HELD_OUT], Y[HELD_OUT])


def test_every_answer_is_stretched_by_the_factor(regressor):
    """Means are unchanged; all standard deviations, intervals and the distribution are scaled by the same factor."""
    scaled = SigmaScaling(regressor).fit(X[HELD_OUT], Y[HELD_OUT])
    s = scaled.scale_
    assert isinstance(s, float) and s != 1
    mean, std = regressor.predict(X, return_std=True)
    np.testing.assert_allclose(scaled.predict(X), mean, rtol=1e-12)
    np.testing.assert_allclose(scaled.predict(X, return_std=True)[1], s * std, rtol=1e-12)
    for kind in ("total", "aleatoric", "epistemic"):
        np.testing.assert_allclose(
            scaled.predict_std(X, kind=kind), s * regressor.predict_std(X, kind=kind), rtol=1e-12
        )
    np.testing.assert_allclose(scaled.predict_dist(X).std(), s * std, rtol=1e-12)
    centre, interval = scaled.predict_interval(X, [0.5, 0.9])
    own = regressor.predict_interval(X, [0.5, 0.9])[1]
    assert interval.shape == (60, 2, 2)
    np.testing.assert_allclose(interval - centre[:, None, None], s * (own - mean[:, None, None]), rtol=1e-9)


def test_a_mixture_keeps_its_shape(mixture):
    """A change of variables: the new density is the old one at the original point, divided by the factor."""
    scaled = SigmaScaling(mixture).fit(X[HELD_OUT], Y[HELD_OUT])
    before, after, s = mixture.predict_dist(X), scaled.predict_dist(X), scaled.scale_
    assert isinstance(after, NormalMixture)
    np.testing.assert_allclose(after.std(), s * before.std(), rtol=1e-9)
    moved = before.mean() + (Y - before.mean()) / s
    np.testing.assert_allclose(after.logpdf(Y), before.logpdf(moved) - np.log(s), rtol=1e-9, atol=1e-9)
    assert neg_nlpd(scaled, X, Y) == pytest.approx(np.mean(after.logpdf(Y)), rel=1e-12)  # not as a normal


def test_each_output_has_its_factor(two_outputs):
    """The formula by a loop over rows and outputs; weights equal copies."""
    weights = np.arange(20)
    scaled = SigmaScaling(two_outputs).fit(X[HELD_OUT], Y2[HELD_OUT], sample_weight=weights)
    mean, std = two_outputs.predict(X[HELD_OUT], return_std=True)
    for c in (0, 1):
        z = [weights[n] * ((Y2[40 + n, c] - mean[n, c]) / std[n, c]) ** 2 for n in range(20)]
        assert scaled.scale_[c] == pytest.approx(np.sqrt(sum(z) / weights.sum()), rel=1e-10)
    assert scaled.predict_interval(X, 0.9)[1].shape == (60, 2, 2)
    repeated = SigmaScaling(two_outputs).fit(*(np.repeat(part[HELD_OUT], weights, axis=0) for part in (X, Y2)))
    np.testing.assert_allclose(repeated.scale_, scaled.scale_, rtol=1e-10)


def test_it_corrects_a_model_that_is_too_sure():
    """The model predicts a third of the true std; after scaling, the 90 % intervals cover 90 % of new rows."""
    rng = np.random.default_rng(4)
    rows = np.column_stack([rng.normal(size=2000), np.full(2000, 1 / 3)])
    targets = rows[:, 0] + rng.normal(size=2000)
    scaled = SigmaScaling(Stated()).fit(rows[:1000], targets[:1000])
    assert scaled.scale_ == pytest.approx(3, rel=0.1)  # standard error 3 / √2000
    assert coverage(Stated(), rows[1000:], targets[1000:]) < 0.5
    assert coverage(scaled, rows[1000:], targets[1000:]) == pytest.approx(0.9, abs=0.03)  # three standard errors
    display = CoverageDisplay.from_estimator(scaled, rows[1000:], targets[1000:], pit=False)
    assert display.gap < 0.03 < CoverageDisplay.from_estimator(Stated(), rows[1000:], targets[1000:], pit=False).gap


def test_it_works_around_wrappers_and_other_models():
    """A pipeline with another regressor, clone of a frozen estimator, and pickling."""
    pipe = make_pipeline(StandardScaler(), BayesianRidge()).fit(X[TRAIN], Y[TRAIN])
    scaled = clone(SigmaScaling(FrozenEstimator(pipe))).fit(X[HELD_OUT], Y[HELD_OUT])
    mean, std = pipe.predict(X[HELD_OUT], return_std=True)
    assert scaled.scale_ == pytest.approx(np.sqrt(np.mean(((Y[HELD_OUT] - mean) / std) ** 2)), rel=1e-12)
    np.testing.assert_allclose(scaled.predict_std(X[HELD_OUT]), scaled.scale_ * std, rtol=1e-12)
    with pytest.raises(TypeError, match="BayesianRidge"):
        scaled.predict_std(X, kind="epistemic")
    again = pickle.loads(pickle.dumps(scaled))
    np.testing.assert_array_equal(again.predict(X, return_std=True)[1], scaled.predict(X, return_std=True)[1])
    assert sklearn_laplace.recalibration.SigmaScaling is SigmaScaling
    assert scaled.score(X, Y) == pytest.approx(pipe.score(X, Y))


def test_targets_that_a_logarithm_does_not_have_count_only_with_a_weight():
    y = np.exp(Y)
    model = LaplaceRegressor(**SMALL, target_transform="log").fit(X[TRAIN], y[TRAIN])
    targets, weights = y[HELD_OUT].copy(), np.ones(len(y[HELD_OUT]))
    targets[1], weights[1] = 0.0, 0.0
    with pytest.raises(ValueError, match=r"y holds 0.0 in row 1, which target_transform='log' of the estimator does"):
        SigmaScaling(model).fit(X[HELD_OUT], targets)
    without = SigmaScaling(model).fit(np.delete(X[HELD_OUT], 1, 0), np.delete(targets, 1))
    scaled = SigmaScaling(model).fit(X[HELD_OUT], targets, weights)
    assert scaled.scale_ == pytest.approx(without.scale_, rel=1e-12)


def test_what_cannot_be_scaled_is_refused(regressor):
    """Unfitted estimators, classes, counts, exact predictions, and invalid shapes, weights and levels."""
    with pytest.raises(NotFittedError, match="not fitted yet"):
        SigmaScaling(LaplaceRegressor()).fit(X, Y)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        SigmaScaling(regressor).predict(X)
    with pytest.raises(TypeError, match=r"SigmaScaling scales .* found the classifier LogisticRegression"):
        SigmaScaling(LogisticRegression().fit(X, Y > 0)).fit(X, Y)
    counts = LaplaceRegressor(**SMALL, likelihood="poisson").fit(X, np.floor(np.exp(X[:, 0])))
    with pytest.raises(TypeError, match="SigmaScaling needs normal predictive distributions; LaplaceRegr"):
        SigmaScaling(counts).fit(X, np.floor(np.exp(X[:, 0])))
    with pytest.raises(ValueError, match="all held-out targets of an output are predicted exactly"):
        SigmaScaling(Stated()).fit([[1.0, 1.0]], [1.0])
    with pytest.raises(ValueError, match=r"y has shape \(3,\); expected \(60,\), one target for each prediction"):
        SigmaScaling(regressor).fit(X, Y[:3])
    with pytest.raises(ValueError, match=r"(?i)sample.weight.*zero"):
        SigmaScaling(regressor).fit(X, Y, np.zeros(60))
    with pytest.raises(ValueError, match=r"confidence_level=1.0 has to hold numbers strictly between 0 and 1"):
        SigmaScaling(regressor).fit(X, Y).predict_interval(X, 1.0)
