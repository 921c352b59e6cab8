"""Displays: their attributes and the drawn data equal results of loops over the rows; no images are compared."""

from __future__ import annotations

import sys
from datetime import date, timedelta

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import polars
import pytest
from scipy import stats
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sklearn_laplace
from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, plotting
from sklearn_laplace.distributions import PoissonLogNormal
from sklearn_laplace.plotting import (
    CoverageDisplay,
    EntropyDisplay,
    FeatureRelevanceDisplay,
    OverviewDisplay,
    PredictionIntervalDisplay,
    PriorPathDisplay,
    ReliabilityDisplay,
    UncertaintyDisplay,
)

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(3)
X = RNG.normal(size=(40, 3))
Y = X[:, 0] + 0.3 * RNG.normal(size=40)
Y2 = np.column_stack([Y, 5 * X[:, 1] + RNG.normal(size=40)])
LABELS = np.array(["a", "b", "c"])[np.digitize(X[:, 0] + 0.6 * RNG.normal(size=40), [-0.5, 0.5])]
SMALL = {"hidden_layer_sizes": (8,), "n_members": 1, "prior_precision": "evidence", "random_state": 0}
GAUSSIAN = SMALL | {"sigma_noise": "evidence", "likelihood": "gaussian"}


@pytest.fixture(autouse=True)
def _no_figure_is_left():
    """Close all figures after each test, so that pyplot does not warn about too many."""
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def regressor():
    return LaplaceRegressor(**GAUSSIAN).fit(X, Y)


@pytest.fixture(scope="module")
def curve():
    return LaplaceRegressor(**GAUSSIAN).fit(X[:, :1], Y)


@pytest.fixture(scope="module")
def two_outputs():
    return LaplaceRegressor(**GAUSSIAN).fit(X, Y2)


@pytest.fixture(scope="module")
def classifier():
    return LaplaceClassifier(**SMALL).fit(X, LABELS)


@pytest.fixture(scope="module")
def ard():
    names = pd.DataFrame(X, columns=["first", "second", "third"])
    return LaplaceRegressor(**GAUSSIAN, prior="ard").fit(names, Y)


class Stated(ClassifierMixin, BaseEstimator):
    """Predicts its input rows as class probabilities."""

    classes_ = np.array(["a", "b", "c"])

    def fit(self, X, y):
        return self

    def __sklearn_is_fitted__(self):
        return True

    def predict_proba(self, X):
        return np.asarray(X, dtype=float)


def drawn(line):
    """x and y data of a matplotlib line."""
    return np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)


# ---------------------------------------------------------------------- prediction intervals


def test_intervals_along_one_column_are_those_of_a_grid(curve):
    """A grid of 50 points, which extends beyond the data, with the means and quantiles of the model."""
    display = PredictionIntervalDisplay.from_estimator(
        curve, X[:, :1], Y, confidence_level=[0.9, 0.5], grid_resolution=50
    )
    column = X[:, 0]
    assert len(display.x) == 50 and display.x[0] < column.min() and display.x[-1] > column.max()
    mean, std = curve.predict(display.x[:, None], return_std=True)
    np.testing.assert_allclose(display.mean, mean, rtol=1e-12)
    assert display.confidence_level.tolist() == [0.5, 0.9]  # ascending, for any input order
    for k, level in enumerate((0.5, 0.9)):
        half = stats.norm.ppf(0.5 + level / 2) * std
        np.testing.assert_allclose(display.lower[:, k], mean - half, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(display.upper[:, k], mean + half, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(drawn(display.line_), (display.x, display.mean))
    np.testing.assert_array_equal(display.points_.get_offsets(), np.column_stack([column, Y]))
    widest = display.bands_[0].get_paths()[0].vertices[:, 1]
    assert (widest.min(), widest.max()) == pytest.approx((display.lower[:, 1].min(), display.upper[:, 1].max()))


def test_the_legend_counts_the_rows_inside(curve):
    """Coverage of the data points at their own inputs, not at the grid points, by a loop."""
    display = PredictionIntervalDisplay.from_estimator(curve, X[:, :1], Y, confidence_level=(0.5, 0.9))
    _, interval = curve.predict_interval(X[:, :1], (0.5, 0.9))
    for k in (0, 1):
        inside = [interval[n, 0, k] <= Y[n] <= interval[n, 1, k] for n in range(len(Y))]
        assert display.coverage[k] == np.mean(inside)
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels[0] == f"90% interval (covers {display.coverage[1]:.0%})"


def test_rows_of_several_columns_are_in_the_order_of_their_mean(regressor):
    """Rows do not form a curve: the interval and the target of each row are drawn at the rank of its mean."""
    display = PredictionIntervalDisplay.from_estimator(regressor, X, Y, confidence_level=0.8)
    mean, interval = regressor.predict_interval(X, 0.8)
    order = np.argsort(mean)
    np.testing.assert_array_equal(display.x, np.arange(1, 41))
    np.testing.assert_allclose(display.mean, mean[order], rtol=1e-12)
    np.testing.assert_allclose(display.lower[:, 0], interval[order, 0], rtol=1e-12)
    by_rank = dict(zip(display.x_points, display.y_points, strict=True))
    assert [by_rank[rank] for rank in range(1, 41)] == Y[order].tolist()
    segments = display.bands_[0].get_segments()
    assert len(segments) == 40 and segments[0][:, 1].tolist() == [display.lower[0, 0], display.upper[0, 0]]


@pytest.mark.parametrize("feature", [1, "second"])
def test_rows_can_be_drawn_along_a_column(ard, feature):
    """By its position or its name; axis labels are the column names of a dataframe."""
    table = pd.DataFrame(X, columns=["first", "second", "third"])
    display = PredictionIntervalDisplay.from_estimator(ard, table, Y, feature=feature)
    order = np.argsort(X[:, 1])
    np.testing.assert_array_equal(display.x, X[order, 1])
    np.testing.assert_allclose(display.mean, ard.predict(table)[order], rtol=1e-12)
    assert display.ax_.get_xlabel() == "second"


@pytest.mark.parametrize("library", [pd, polars])
def test_tables_with_columns_of_all_types_are_drawn(library):
    """In the order of the mean, or along a column of numbers."""
    days = [date(2020, 1, 1) + timedelta(days=k) for k in range(40)]
    table = library.DataFrame({"a": Y, "town": ["u", "v"] * 20, "day": days})
    table = table.assign(day=pd.to_datetime(table["day"])) if library is pd else table
    model = LaplaceRegressor(**SMALL, sigma_noise=0.3).fit(table, Y)
    for feature, x in (None, np.arange(1, 41)), ("a", np.sort(Y)):
        display = PredictionIntervalDisplay.from_estimator(model, table, Y, feature=feature)
        np.testing.assert_allclose(display.x, x)
    with pytest.raises(ValueError, match="feature='day' is not numeric"):
        PredictionIntervalDisplay.from_estimator(model, table, Y, feature="day")


def test_a_grid_of_a_dataframe_is_a_dataframe():
    """scikit-learn warns about arrays after a fit with feature names, and warnings are errors here."""
    table = pd.DataFrame({"t": X[:, 0]})
    model = make_pipeline(StandardScaler(), BayesianRidge()).fit(table, Y)
    display = PredictionIntervalDisplay.from_estimator(model, table, grid_resolution=10)
    assert display.ax_.get_xlabel() == "t" and display.coverage is None and display.points_ is None


def test_one_of_several_outputs_is_drawn(two_outputs):
    """Mean, interval and targets of the second output."""
    display = PredictionIntervalDisplay.from_estimator(two_outputs, X, Y2, output=1, confidence_level=0.9)
    mean, interval = two_outputs.predict_interval(X, 0.9)
    np.testing.assert_allclose(display.mean, np.sort(mean[:, 1]), rtol=1e-12)
    inside = (interval[:, 1, 0] <= Y2[:, 1]) & (Y2[:, 1] <= interval[:, 1, 1])
    assert display.coverage[0] == inside.mean()
    with pytest.raises(ValueError, match=r"the model has 2 outputs and .* draws a single output; pass output=0 to 1"):
        PredictionIntervalDisplay.from_estimator(two_outputs, X, Y2)
    with pytest.raises(ValueError, match=r"output=2 does not exist; the outputs of the model are 0 to 1"):
        CoverageDisplay.from_estimator(two_outputs, X, Y2, output=2)


def test_intervals_can_come_from_arrays():
    """Two rows, one of them inside its interval; without x they are ordered by the mean."""
    display = PredictionIntervalDisplay.from_predictions(
        [5.0, 0.0], [2.0, 0.0], [[1.0, 3.0], [-1.0, 1.0]], confidence_level=0.9
    )
    assert display.mean.tolist() == [0.0, 2.0] and display.coverage.tolist() == [0.5]
    assert display.lower[:, 0].tolist() == [-1.0, 1.0]
    with pytest.raises(ValueError, match=r"interval has shape \(2, 2, 1\); expected \(2, 2, 2\)"):
        PredictionIntervalDisplay.from_predictions(None, [2.0, 0.0], np.zeros((2, 2)), confidence_level=(0.5, 0.9))


# ---------------------------------------------------------------------- coverage


@pytest.mark.parametrize("kind", ["interval", "quantile"])
def test_observed_shares_are_counts_of_rows(regressor, kind):
    """At each level, by counting the rows inside predict_interval or below predict_quantiles."""
    display = CoverageDisplay.from_estimator(regressor, X, Y, kind=kind)
    for level in (0.05, 0.3, 0.5, 0.9):
        at = np.flatnonzero(np.isclose(display.nominal, level))[0]
        if kind == "interval":
            low, high = regressor.predict_interval(X, level)[1].T
            expected = np.mean((low <= Y) & (high >= Y))
        else:
            expected = np.mean(regressor.predict_quantiles(X, level)[:, 0] >= Y)
        assert display.observed[at] == pytest.approx(expected, abs=1e-12)
    assert display.gap == pytest.approx(np.mean(np.abs(display.observed - display.nominal)))
    np.testing.assert_array_equal(drawn(display.line_), (display.nominal, display.observed))


def test_the_histogram_is_that_of_the_transform(regressor):
    """Bar heights by a loop over bins; they are a density on [0, 1]."""
    display = CoverageDisplay.from_estimator(regressor, X, Y, n_bins=5)
    mean, std = regressor.predict(X, return_std=True)
    np.testing.assert_allclose(display.pit, stats.norm.cdf(Y, mean, std), rtol=1e-10)
    expected = [5 * np.mean((display.pit >= k / 5) & (display.pit < (k + 1) / 5)) for k in range(5)]
    np.testing.assert_allclose([bar.get_height() for bar in display.bars_], expected, rtol=1e-12)
    assert sum(expected) / 5 == pytest.approx(1)


def test_the_band_holds_a_calibrated_model_nine_times_in_ten():
    """Simulated uniform transforms of 60 rows: the curve is inside with probability .9 or slightly more."""
    draws = np.random.default_rng(0).uniform(size=(1500, 60))
    low, high = CoverageDisplay(draws[0]).band[69]
    share = np.mean([low - 1e-9 <= np.mean(np.abs(2 * row - 1) <= 0.7) <= high + 1e-9 for row in draws])
    assert 0.88 < share < 0.97  # standard error .008; the binomial is discrete, with steps of up to .05 in probability


def test_counts_have_a_randomised_transform():
    """For counts drawn from the predictive distribution it is uniform, whereas F(y) is not."""
    distribution = PoissonLogNormal(np.full(800, 0.0), np.full(800, 0.2))
    counts = distribution.rvs(random_state=1)
    display = CoverageDisplay.from_predictions(counts, distribution, random_state=0)
    assert stats.kstest(display.pit, "uniform").pvalue > 0.01
    assert stats.kstest(distribution.cdf(counts), "uniform").pvalue < 1e-10
    below, above = distribution.cdf(counts - 1), distribution.cdf(counts)
    assert ((below <= display.pit) & (display.pit <= above)).all()


# ---------------------------------------------------------------------- reliability


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_bins_are_those_of_a_loop(classifier, strategy):
    """By a loop over bins; the error in the legend is the weighted mean gap."""
    p = classifier.predict_proba(X)
    confidence, right = p.max(1), classifier.classes_[p.argmax(1)] == LABELS
    display = ReliabilityDisplay.from_estimator(classifier, X, LABELS, n_bins=5, strategy=strategy)
    bins, error = display.bins, 0.0
    for k in range(len(bins.weight)):
        first = bins.lower[k] == 0
        inside = (confidence > bins.lower[k]) | (first & (confidence == 0))
        inside &= confidence <= bins.upper[k]
        assert bins.weight[k] == inside.sum() > 0
        assert bins.confidence[k] == pytest.approx(confidence[inside].mean(), rel=1e-12)
        assert bins.frequency[k] == pytest.approx(right[inside].mean(), rel=1e-12)
        error += inside.sum() / 40 * abs(right[inside].mean() - confidence[inside].mean())
    assert bins.weight.sum() == 40
    if strategy == "quantile":
        assert bins.weight.tolist() == [8.0] * 5
    assert display.error == pytest.approx(error, rel=1e-12)
    assert display.ax_.get_legend().get_texts()[-1].get_text() == f"ECE {error:.3f}"
    np.testing.assert_array_equal(drawn(display.line_), (bins.confidence, bins.frequency))
    shares = [np.mean((confidence >= k / 5) & (confidence < (k + 1) / 5)) for k in range(5)]
    np.testing.assert_allclose([bar.get_height() for bar in display.bars_], shares, rtol=1e-12)  # of equal widths


def test_the_probability_of_one_class_can_be_judged(classifier):
    """With pos_label, the probability of that class is compared with its frequency."""
    display = ReliabilityDisplay.from_estimator(classifier, X, LABELS, pos_label="b", n_bins=1)
    assert display.bins.confidence[0] == pytest.approx(classifier.predict_proba(X)[:, 1].mean(), rel=1e-12)
    assert display.bins.frequency[0] == np.mean(LABELS == "b")
    with pytest.raises(ValueError, match=r"pos_label='d' is not one of the classes \['a', 'b', 'c'\]"):
        ReliabilityDisplay.from_estimator(classifier, X, LABELS, pos_label="d")


def test_the_consistency_bar_is_binomial():
    """Ten rows at .7: the .05 and .95 quantiles of Binomial(10, .7) are 5 and 9."""
    display = ReliabilityDisplay.from_predictions(np.arange(10) < 7, np.full(10, 0.7))
    np.testing.assert_allclose(display.band, [[0.5, 0.9]])


# ---------------------------------------------------------------------- uncertainty


def test_the_retention_curve_is_the_error_of_the_most_certain_rows(regressor):
    """By sorting the rows and computing the error of each prefix."""
    display = UncertaintyDisplay.from_estimator(regressor, X, Y)
    errors = Y - regressor.predict(X)
    orders = {
        "total": regressor.predict_std(X, kind="total"),
        "epistemic": regressor.predict_std(X, kind="epistemic"),
        "oracle": np.abs(errors),
    }
    for key, by in orders.items():
        kept = np.argsort(by)
        expected = [np.sqrt(np.mean(errors[kept[:n]] ** 2)) for n in range(1, 41)]
        np.testing.assert_allclose(display.curves[key], expected, rtol=1e-10)
        np.testing.assert_array_equal(drawn(display.lines_[key]), (display.share_kept, display.curves[key]))
        assert display.area[key] == pytest.approx(np.mean(expected))
    assert display.error == pytest.approx(np.sqrt(np.mean(errors**2)))


def test_the_shares_of_the_variance_are_those_of_groups_of_rows(regressor):
    """Four groups of ten rows, sorted by total variance; the stacked bars sum to one."""
    display = UncertaintyDisplay.from_estimator(regressor, X, Y, n_groups=4)
    stds = regressor.predict_std(X, kind="all")
    order = np.argsort(stds.total)
    for k in range(4):
        rows = order[10 * k : 10 * k + 10]
        epistemic, aleatoric = (stds.epistemic[rows] ** 2).mean(), (stds.aleatoric[rows] ** 2).mean()
        assert display.epistemic_share[k] == pytest.approx(epistemic / (epistemic + aleatoric), rel=1e-10)
        lower, upper = (bars[k] for bars in display.bars_)
        assert upper.get_height() == pytest.approx(display.epistemic_share[k])
        assert lower.get_height() + upper.get_height() == pytest.approx(1)


def test_wrong_classes_are_kept_last(classifier):
    """For a classifier, the error is the fraction of wrong classes and the variance is summed over the classes."""
    display = UncertaintyDisplay.from_estimator(classifier, X, LABELS)
    p = classifier.predict_proba(X)
    kept = np.argsort((p * (1 - p)).sum(1))
    wrong = classifier.predict(X) != LABELS
    np.testing.assert_allclose(display.curves["total"], [wrong[kept[:n]].mean() for n in range(1, 41)], atol=1e-12)
    assert display.error == wrong.mean() > 0


def test_equal_uncertainties_have_no_order():
    """Rows of equal uncertainty get their mean loss, so that the order of the rows does not matter."""
    loss, variance = np.array([4.0, 0.0, 1.0]), np.array([1.0, 1.0, 2.0])
    for rows in ([0, 1, 2], [1, 0, 2], [2, 0, 1]):
        display = UncertaintyDisplay(loss[rows], variance[rows], np.zeros(3))
        np.testing.assert_allclose(display.curves["total"], np.sqrt([2, 2, 5 / 3]))


# ---------------------------------------------------------------------- entropy


def test_curves_are_shares_of_rows_above_each_entropy(classifier):
    """All four groups: the fractions above each entropy by counting, and the AUROC by comparing pairs."""
    outside = 20 * X[:25]
    display = EntropyDisplay.from_estimator(classifier, X, LABELS, X_out=outside)
    p, q = classifier.predict_proba(X), classifier.predict_proba(outside)
    right = classifier.classes_[p.argmax(1)] == LABELS
    entropy, entropy_out = (-np.sum([row * np.log(row) for row in values.T], axis=0) for values in (p, q))
    expected = {
        "in distribution": entropy,
        "out of distribution": entropy_out,
        "right": entropy[right],
        "wrong": entropy[~right],
    }
    assert list(display.entropies) == list(expected)
    for key, values in expected.items():
        np.testing.assert_allclose(display.entropies[key], np.sort(values), rtol=1e-9, atol=1e-12)
        points, share = display.curves[key]
        for h in np.linspace(0.003, 1.05, 40):  # between the steps
            assert share[np.searchsorted(points, h) - 1] == pytest.approx(np.mean(values > h), abs=1e-12)
        assert points[-1] == pytest.approx(np.log(3)) and share[0] == 1 and share[-1] == 0
        np.testing.assert_array_equal(drawn(display.lines_[key]), display.curves[key])
    pairs = [(b > a) + (b == a) / 2 for a in entropy for b in entropy_out]
    assert display.area_out == pytest.approx(np.mean(pairs), abs=1e-12)
    assert display.area_wrong == pytest.approx(roc_auc_score(~right, entropy), abs=1e-12)


def test_groups_without_rows_are_left_out():
    """With correct predictions only there is one curve and no AUROC; an entropy of zero is not NaN."""
    display = EntropyDisplay.from_predictions(np.eye(3), ["a", "b", "c"])
    assert list(display.lines_) == ["right"] and np.isnan([display.area_out, display.area_wrong]).all()
    assert display.entropies["right"].tolist() == [0.0, 0.0, 0.0]


def test_labels_are_those_of_the_columns():
    y_prob = np.array([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]])
    display = EntropyDisplay.from_predictions(y_prob, ["a", "a", "b", "a"], labels=["b", "a"])
    assert {name: len(entropies) for name, entropies in display.entropies.items()} == {"right": 3, "wrong": 1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y_prob": [[0.5, 0.6]]}, r"y_prob has shape \(1, 2\); expected probabilities of .* sum to 1"),
        ({"y_prob": np.eye(2), "y_true": ["a"]}, r"y_prob has shape \(2, 2\) for 1 labels of 1 classes"),
        ({"y_prob": np.eye(2), "y_prob_out": np.eye(3)}, "y_prob_out has 3 columns; expected 2, like y_prob"),
    ],
)
def test_entropies_need_probabilities(given, message):
    """Rows that do not sum to one, and shapes that do not match."""
    with pytest.raises(ValueError, match=message):
        EntropyDisplay.from_predictions(**given)


# ---------------------------------------------------------------------- prior path and relevance


def test_the_path_is_the_estimators_and_the_choice_is_marked(regressor):
    """The scores of prior_path_, a line at prior_precision_ and a marker at the maximum of each score."""
    display = PriorPathDisplay.from_estimator(make_pipeline(regressor))
    path = regressor.prior_path_
    assert list(display.scores) == ["log_marginal_likelihood", "loo_log_density"]
    for key, axes in zip(display.scores, display.axes_, strict=True):
        np.testing.assert_array_equal(drawn(display.lines_[key]), (path.prior_precision, path[key]))
        _, chosen, best = axes.get_lines()
        assert drawn(chosen)[0].tolist() == [regressor.prior_precision_] * 2
        assert drawn(best)[0][0] == path.prior_precision[path[key].argmax()] == display.best[key]
    assert display.ax_ is display.axes_[0] and display.ax_.get_xscale() == "log"
    one = PriorPathDisplay.from_estimator(regressor, scores="loo_log_density")
    assert list(one.lines_) == ["loo_log_density"] and len(one.figure_.axes) == 1


def test_several_precisions_are_shown_by_their_geometric_mean(ard):
    """The path scales all prior precisions by one factor, which also scales their geometric mean."""
    display = PriorPathDisplay.from_estimator(ard, scores=["log_marginal_likelihood"])
    groups = np.asarray(ard.prior_precision_)
    assert display.chosen == pytest.approx(np.prod(groups) ** (1 / len(groups)), rel=1e-9)
    np.testing.assert_allclose(display.prior_precision[[0, -1]], display.chosen * np.array([1e-4, 1e4]), rtol=1e-9)
    assert display.ax_.get_xlabel() == "geometric mean of the prior precisions"


def test_a_score_that_is_not_available_is_refused(regressor):
    """Leave-one-out needs the training rows, which an update drops."""
    model = clone(regressor).set_params(hessian_structure="full").fit(X, Y).forget(X[:2], Y[:2])
    assert list(PriorPathDisplay.from_estimator(model).scores) == ["log_marginal_likelihood"]
    with pytest.raises(ValueError, match=r"scores='loo_log_density' is not available for this fit; available are 'log"):
        PriorPathDisplay.from_estimator(model, scores="loo_log_density")
    with pytest.raises(ValueError, match=r"scores='loo' is not known; expected one of"):
        PriorPathDisplay.from_estimator(regressor, scores="loo")


def test_a_steep_end_does_not_flatten_the_top():
    """A drop of 10⁵ at one end would hide differences of one nat; other curves are shown completely."""
    grid, steep = np.logspace(-2, 2, 9), np.array([-3.0, -2, -1, 0, -1, -2, -3, -100, -1e5])
    for scores, whole in ((steep, False), (steep[:7], True)):
        low, high = (
            PriorPathDisplay(prior_precision=grid[: len(scores)], scores={"loo_log_density": scores}, chosen=1.0)
            .plot()
            .ax_.get_ylim()
        )
        assert high > 0 and (low < scores.min()) == whole and high - low < 20


def test_relevances_are_drawn_from_the_largest_with_their_names(ard):
    """Bars in descending order, with the column names of the dataframe; max_features limits their number."""
    display = FeatureRelevanceDisplay.from_estimator(ard, max_features=2)
    order = sorted(range(3), key=lambda k: -ard.feature_relevance_[k])[:2]
    assert display.order.tolist() == order
    assert [bar.get_width() for bar in display.bars_] == ard.feature_relevance_[order].tolist()
    names = [text.get_text() for text in display.ax_.get_yticklabels()]
    assert names == [["first", "second", "third"][k] for k in order]
    assert "2 most relevant of 3" in display.ax_.get_title()


def test_names_of_a_pipeline_come_from_its_steps():
    """The scaler returns an array, and provides the names by get_feature_names_out."""
    table = pd.DataFrame(X, columns=["first", "second", "third"])
    pipe = make_pipeline(StandardScaler(), LaplaceRegressor(**GAUSSIAN, prior="ard")).fit(table, Y)
    assert FeatureRelevanceDisplay.from_estimator(pipe).feature_names == ["first", "second", "third"]
    with pytest.raises(ValueError, match="feature_names holds 2 names; expected 3, one for each column"):
        FeatureRelevanceDisplay.from_estimator(pipe, feature_names=["a", "b"])


def test_relevance_needs_a_precision_for_each_column(regressor):
    """The estimator's AttributeError is passed on."""
    with pytest.raises(AttributeError, match="feature_relevance_ needs a prior precision for each input column"):
        FeatureRelevanceDisplay.from_estimator(regressor)


def test_relevance_by_shuffling_is_the_loss_of_log_density(regressor, two_outputs):
    """Of one output, by a loop over the columns with the same shuffles; a loss below zero counts as none."""
    display = FeatureRelevanceDisplay.from_permutations(two_outputs, X, Y2, output=1, n_repeats=2, random_state=3)
    generator, expected = np.random.RandomState(3), []
    orders = [generator.permutation(40) for _ in range(2)]

    def density(rows):
        return two_outputs.predict_dist(rows).logpdf(Y2)[:, 1].mean()

    for k in range(3):
        worse = []
        for order in orders:
            rows = X.copy()
            rows[:, k] = X[order, k]
            worse.append(density(rows))
        expected.append(max(density(X) - np.mean(worse), 0.0))
    np.testing.assert_allclose(display.relevance, expected, rtol=1e-9, atol=1e-12)
    assert display.order[0] == 1 and display.ax_.get_xlabel() == "loss of log density if shuffled (nats per row)"
    few = FeatureRelevanceDisplay.from_permutations(regressor, np.repeat(X, 10, 0), np.repeat(Y, 10), max_rows=30)
    assert few.order[0] == 0
    with pytest.raises(
        ValueError, match=r"X has shape \(40, 3, 1\); expected a table of shape \(n_samples, n_features\)"
    ):
        FeatureRelevanceDisplay.from_permutations(regressor, X[:, :, None], Y)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_of_frames_are_shuffled_by_their_names(library):
    """Text and numbers, in an index that is not sorted: the column on which y depends is found."""
    towns = np.array(["Bern", "Graz"])[(X[:, 0] > 0).astype(int)]
    table = pd.DataFrame({"noise": X[:, 1], "town": towns}, index=np.arange(40)[::-1])
    y = pd.Series(np.where(towns == "Bern", 5.0, 0.0) + 0.3 * X[:, 2], name="rent", index=table.index)
    if library == "polars":
        table = pytest.importorskip("polars").DataFrame({name: table[name].to_numpy() for name in table})
    display = LaplaceRegressor(**GAUSSIAN).fit(table, y).plot(table, y)
    assert display.relevance.feature_names == ["noise", "town"] and display.relevance.order[0] == 1
    assert display.relevance.relevance[1] > 10 * display.relevance.relevance[0]
    assert display.axes_[0].get_ylabel() == "rent"


def test_long_names_are_shortened_in_the_picture_only():
    """A name of 60 characters would leave no room for the bars."""
    display = FeatureRelevanceDisplay([1.0, 2.0], feature_names=["town", "n" * 60]).plot()
    assert [text.get_text() for text in display.ax_.get_yticklabels()] == ["n" * 23 + "…", "town"]
    assert display.feature_names[1] == "n" * 60


# ---------------------------------------------------------------------- overview


def test_one_call_draws_intervals_calibration_and_relevance(regressor):
    """The numbers of each panel are those of the display alone; the panels do not overlap."""
    display = regressor.plot(X, Y)
    assert isinstance(display, OverviewDisplay) and plt.get_fignums() == [1]
    np.testing.assert_array_equal(
        display.predictions.lower, PredictionIntervalDisplay.from_estimator(regressor, X, Y).lower
    )
    np.testing.assert_array_equal(display.calibration.pit, CoverageDisplay.from_estimator(regressor, X, Y).pit)
    assert display.relevance.order[0] == 0
    assert display.figure_.axes == display.axes_ and all(axes.has_data() for axes in display.axes_)
    display.figure_.canvas.draw()
    boxes = [axes.get_tightbbox() for axes in display.axes_]
    assert not any(first.overlaps(second) for first in boxes for second in boxes if first is not second)
    along = regressor.plot(X, Y, feature=1)
    assert along.axes_[0].get_xlabel() == "feature 1"


def test_one_call_draws_entropies_reliability_and_relevance(classifier):
    """The numbers of each panel are those of the display alone; labels of another kind are refused."""
    display = classifier.plot(X, LABELS, name="net")
    reliability = ReliabilityDisplay.from_estimator(classifier, X, LABELS)
    np.testing.assert_array_equal(display.calibration.bins.frequency, reliability.bins.frequency)
    entropy = EntropyDisplay.from_estimator(classifier, X, LABELS)
    np.testing.assert_array_equal(display.predictions.entropies["right"], entropy.entropies["right"])
    assert display.relevance.order[0] == 0 and len(display.axes_) == 3
    assert [axes.get_xlabel() for axes in display.axes_[1:]] == [reliability.x_name, display.relevance.measure]
    with pytest.raises(ValueError, match=r"y holds labels such as 0\.0, and the classes are"):
        classifier.plot(X, np.zeros(40))
    with pytest.raises(ValueError, match=r"output=0 is for regressors; found a classifier. Omit it"):
        OverviewDisplay.from_estimator(classifier, X, LABELS, output=0)
    with pytest.raises(NotFittedError):
        LaplaceClassifier().plot(X, LABELS)


def test_the_relevance_is_that_of_the_prior_if_it_has_one(ard):
    """The axis names the measure."""
    table = pd.DataFrame(X, columns=["first", "second", "third"])
    display = ard.plot(table, Y)
    np.testing.assert_array_equal(display.relevance.relevance, ard.feature_relevance_)
    assert display.axes_[2].get_xlabel() == "relevance by the prior (share)"


def test_an_overview_is_of_one_output_and_a_single_column_has_no_relevance(two_outputs, curve):
    """The message of the other displays; two panels for one column."""
    display = two_outputs.plot(X, Y2, output=1)
    np.testing.assert_array_equal(
        display.calibration.pit, CoverageDisplay.from_estimator(two_outputs, X, Y2, output=1).pit
    )
    assert display.axes_[0].get_ylabel() == "y, output 1"
    with pytest.raises(ValueError, match=r"the model has 2 outputs and .* draws a single output; pass output=0 to 1"):
        two_outputs.plot(X, Y2)
    assert plt.get_fignums() == [1, 2]  # of the two displays above, none of the refused call
    display = curve.plot(X[:, :1], Y)
    assert display.relevance is None and len(display.figure_.axes) == 2 and display.predictions.is_curve


def test_an_overview_of_counts_and_of_other_models():
    """Counts have a randomised PIT; other models are drawn as well."""
    counts = np.random.default_rng(0).poisson(np.exp(1 + 0.5 * X[:, 0]))
    model = LaplaceRegressor(**SMALL, likelihood="poisson").fit(X, counts)
    display = model.plot(X, counts)
    np.testing.assert_array_equal(display.calibration.pit, CoverageDisplay.from_estimator(model, X, counts).pit)
    assert (display.predictions.lower >= 0).all() and display.relevance.order[0] == 0
    for other, y in ((BayesianRidge(), Y), (LogisticRegression(), LABELS)):
        pipe = make_pipeline(StandardScaler(), other).fit(X, y)
        assert OverviewDisplay.from_estimator(pipe, X, y).relevance.order[0] == 0


def test_an_overview_is_drawn_where_it_is_told(regressor):
    """In a figure, on three axes, or its first panel on one; not in two places."""
    left, right = plt.figure(figsize=(12, 5)).subfigures(1, 2)
    display = regressor.plot(X, Y, figure=left)
    assert display.figure_ is left and len(left.axes) == 3 and not right.axes
    _, three = plt.subplots(1, 3)
    assert regressor.plot(X, Y, ax=three).axes_ == list(three) and all(axes.has_data() for axes in three)
    _, one = plt.subplots()
    assert display.plot(one).axes_ == [one] and one.has_data() and len(plt.get_fignums()) == 3
    with pytest.raises(ValueError, match=r"ax holds 2 Axes; OverviewDisplay.plot draws 3 panels. Pass 3 Axes, or one"):
        display.plot(three[:2])
    with pytest.raises(ValueError, match="received both ax= and figure=; pass one of them"):
        display.plot(one, figure=left)
    with pytest.raises(TypeError, match=r"figure='left' is not supported; OverviewDisplay.plot needs None or"):
        display.plot(figure="left")


def test_of_many_rows_a_sample_is_drawn_and_all_are_counted(regressor):
    """The axis gives both numbers; the coverage is that of all rows."""
    display = PredictionIntervalDisplay.from_estimator(regressor, X, Y, max_rows=10)
    whole = PredictionIntervalDisplay.from_estimator(regressor, X, Y)
    assert display.x.tolist() == list(range(1, 11)) and set(display.mean) < set(whole.mean)
    assert display.coverage.tolist() == whole.coverage.tolist()
    assert display.ax_.get_xlabel() == "rows in the order of the predicted mean (10 of 40 rows)"
    with pytest.raises(ValueError, match="max_rows=0 has to be a whole number of at least 1"):
        PredictionIntervalDisplay.from_estimator(regressor, X, Y, max_rows=0)


# ---------------------------------------------------------------------- axes


def every_display(regressor, classifier, ard):
    """Functions that create each display, with further keyword arguments."""
    return {
        "coverage": lambda **o: CoverageDisplay.from_estimator(regressor, X, Y, **o),
        "entropy": lambda **o: EntropyDisplay.from_estimator(classifier, X, LABELS, **o),
        "feature_relevance": lambda **o: FeatureRelevanceDisplay.from_estimator(ard, **o),
        "prediction_interval": lambda **o: PredictionIntervalDisplay.from_estimator(regressor, X, Y, **o),
        "prior_path": lambda **o: PriorPathDisplay.from_estimator(regressor, **o),
        "reliability": lambda **o: ReliabilityDisplay.from_estimator(classifier, X, LABELS, **o),
        "uncertainty": lambda **o: UncertaintyDisplay.from_estimator(regressor, X, Y, **o),
    }


KINDS = ("coverage", "entropy", "feature_relevance", "prediction_interval", "prior_path", "reliability", "uncertainty")
PANELS = {"coverage": 2, "prior_path": 2, "reliability": 2, "uncertainty": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_axes_are_made_or_used(kind, regressor, classifier, ard):
    """ax=None creates a figure with all panels; an Axes is used for the first panel and the current Axes is kept."""
    make = every_display(regressor, classifier, ard)[kind]
    display = make(name="net")
    n = PANELS.get(kind, 1)
    assert plt.get_fignums() == [1] and len(display.figure_.axes) == n
    assert display.ax_ is display.figure_.axes[0]
    mine, (ax, current) = plt.subplots(1, 2)
    plt.sca(current)
    again = display.plot(ax=ax)
    assert again is display and display.ax_ is ax and display.figure_ is mine
    assert len(plt.get_fignums()) == 2 and plt.gca() is current
    assert ax.has_data() and not current.has_data()
    if n == 2:
        _, two = plt.subplots(2, 1)
        display.plot(ax=two)
        assert all(one.has_data() for one in two)
        with pytest.raises(ValueError, match=r"ax holds 3 Axes; .*Display.plot draws 2 panels. Pass 2 Axes, or one"):
            display.plot(ax=[*two, ax])
    with pytest.raises(TypeError, match=r"ax='left' is not supported; .*Display.plot needs None, a matplotlib Axes"):
        display.plot(ax="left")
    display.figure_.canvas.draw()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "feature_relevance"])
def test_lines_take_the_users_style_and_name(kind, regressor, classifier, ard):
    """line_kwargs and name are passed on by the class methods."""
    display = every_display(regressor, classifier, ard)[kind](name="net", line_kwargs={"color": "red"})
    lines = [display.line_] if "line_" in vars(display) else list(display.lines_.values())
    assert lines[0].get_color() == "red" and "net" in lines[0].get_label()


def test_the_package_does_without_matplotlib(monkeypatch, regressor):
    """Without matplotlib, plot names the installation command; ``test_host.py`` tests that no import needs it."""
    found = [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]
    for name in {*found, "matplotlib.axes", "matplotlib.figure"}:
        monkeypatch.setitem(sys.modules, name, None)
    display = CoverageDisplay([0.1, 0.9])
    assert display.gap > 0
    message = r"CoverageDisplay.plot needs matplotlib, which is not installed.*pip install 'sklearn-laplace\[plot\]'"
    with pytest.raises(ImportError, match=message):
        display.plot()
    with pytest.raises(ImportError, match=message.replace("Coverage", "Overview")):
        regressor.plot(X, Y)


def test_every_display_is_exported():
    """All displays are in plotting.__all__ and have the methods of scikit-learn's displays."""
    assert sklearn_laplace.plotting is plotting and len(plotting.__all__) == 9
    for name in plotting.__all__:
        display = vars(plotting)[name]
        assert callable(display.from_estimator) and callable(display.plot)


# ---------------------------------------------------------------------- wrappers and refusals


def test_displays_see_through_pipelines_and_searches():
    """The same numbers as for the inner step on transformed rows."""
    pipe = make_pipeline(StandardScaler(), LaplaceRegressor(**GAUSSIAN))
    search = GridSearchCV(pipe, {"laplaceregressor__activation": ["tanh"]}, cv=2).fit(X, Y)
    best = search.best_estimator_
    scaled, step = best[0].transform(X), best[-1]
    for outer, inner in (
        (CoverageDisplay.from_estimator(search, X, Y).pit, CoverageDisplay.from_estimator(step, scaled, Y).pit),
        (
            UncertaintyDisplay.from_estimator(search, X, Y).curves["total"],
            UncertaintyDisplay.from_estimator(step, scaled, Y).curves["total"],
        ),
        (PriorPathDisplay.from_estimator(search).prior_precision, step.prior_path_.prior_precision),
    ):
        np.testing.assert_array_equal(outer, inner)


def test_other_models_can_be_drawn_beside_ours():
    """Displays that do not need the parts of the variance accept other regressors and classifiers."""
    ridge, logistic = BayesianRidge().fit(X, Y), LogisticRegression().fit(X, LABELS)
    mean, std = ridge.predict(X, return_std=True)
    np.testing.assert_allclose(CoverageDisplay.from_estimator(ridge, X, Y).pit, stats.norm.cdf(Y, mean, std))
    assert ReliabilityDisplay.from_estimator(logistic, X, LABELS).bins.weight.sum() == 40


NUMERIC = (CoverageDisplay, PredictionIntervalDisplay)
OF_CLASSES = (ReliabilityDisplay, EntropyDisplay)
OF_LAPLACE = (UncertaintyDisplay, PriorPathDisplay, FeatureRelevanceDisplay)


def from_estimator(display, estimator, rows, y):
    """Call from_estimator; two displays take no rows."""
    rows = () if display in (PriorPathDisplay, FeatureRelevanceDisplay) else (rows, y)
    return display.from_estimator(estimator, *rows)


@pytest.mark.parametrize("display", [*NUMERIC, *OF_CLASSES, *OF_LAPLACE])
def test_an_unfitted_estimator_is_refused(display):
    """An unfitted estimator alone, and at the end of a pipeline."""
    model = LaplaceClassifier() if display in OF_CLASSES else LaplaceRegressor()
    for estimator in (model, make_pipeline(StandardScaler(), model)):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            from_estimator(display, estimator, X, Y)
    assert plt.get_fignums() == []


@pytest.mark.parametrize("display", NUMERIC)
def test_displays_of_numbers_refuse_classifiers(display, classifier):
    """The message names the displays for classes."""
    message = r"draws distributions of numeric targets; found the classifier LaplaceClassifier. For classes use Reli"
    with pytest.raises(TypeError, match=message):
        display.from_estimator(make_pipeline(classifier), X, LABELS)


@pytest.mark.parametrize("display", OF_CLASSES)
def test_displays_of_classes_refuse_regressors(display, regressor):
    """The message names the displays for numbers."""
    message = r"draws class probabilities; found LaplaceRegressor. For numeric targets use CoverageDisplay"
    with pytest.raises(TypeError, match=message):
        display.from_estimator(regressor, X, Y)


@pytest.mark.parametrize("display", OF_LAPLACE)
def test_a_pipeline_without_a_laplace_step_is_refused(display):
    """Only Laplace estimators provide parts of the variance, prior paths and relevances."""
    pipe = make_pipeline(StandardScaler(), BayesianRidge()).fit(X, Y)
    with pytest.raises(TypeError, match="found BayesianRidge inside Pipeline; expected a LaplaceRegressor or Laplace"):
        from_estimator(display, pipe, X, Y)


def test_points_are_no_distribution():
    """A model without a standard deviation has no interval to draw."""
    with pytest.raises(TypeError, match="LinearRegression has no predictive distribution"):
        CoverageDisplay.from_estimator(LinearRegression().fit(X, Y), X, Y)


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5, (0.5, 1.0), "high", ()])
def test_levels_are_between_zero_and_one(level, curve):
    """Levels are checked before anything is computed or drawn."""
    with pytest.raises(ValueError, match=r"confidence_level=.* has to hold numbers strictly between 0 and 1"):
        PredictionIntervalDisplay.from_estimator(curve, X[:, :1], Y, confidence_level=level)
    assert plt.get_fignums() == []


def test_no_rows_are_refused(regressor, classifier):
    """Rejected by the estimator, and for arrays by the display."""
    none = X[:0]
    for make in (
        lambda: CoverageDisplay.from_estimator(regressor, none, Y[:0]),
        lambda: PredictionIntervalDisplay.from_estimator(regressor, none, Y[:0]),
        lambda: UncertaintyDisplay.from_estimator(regressor, none, Y[:0]),
        lambda: ReliabilityDisplay.from_estimator(classifier, none, LABELS[:0]),
        lambda: EntropyDisplay.from_estimator(classifier, none),
        lambda: CoverageDisplay([]),
        lambda: UncertaintyDisplay.from_predictions([], [], [], []),
        lambda: ReliabilityDisplay([], []),
        lambda: PredictionIntervalDisplay.from_predictions(None, [], np.zeros((0, 2)), confidence_level=0.5),
    ):
        with pytest.raises(ValueError, match=r"Found array with 0 sample\(s\)"):
            make()
    with pytest.raises(ValueError, match="entropies has no group with rows; at least one row is needed"):
        EntropyDisplay({"right": []}, n_classes=2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CoverageDisplay([0.5, 1.5]), r"pit has shape \(2,\) and values from 0.5 to 1.5; expected one"),
        (
            lambda: CoverageDisplay([0.5], kind="intervals"),
            r"kind='intervals' is not known.* Did you mean 'interval'\?",
        ),
        (lambda: CoverageDisplay([0.5], n_bins=0), "n_bins=0 has to be a whole number of at least 1"),
        (
            lambda: CoverageDisplay.from_predictions(Y[:5], stats.norm(np.zeros(4))),
            r"y has shape \(5,\); expected \(4,\), one target for each prediction",
        ),
        (lambda: UncertaintyDisplay([1.0], [-1.0], [0.0]), "aleatoric and epistemic have a minimum of -1; expected"),
        (lambda: UncertaintyDisplay([1.0], [1.0, 2.0], [0.0]), "aleatoric has 2 rows; expected 1, one for each target"),
        (
            lambda: UncertaintyDisplay(np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2))),
            r"have shapes \(2, 2\), \(2, 2\) and \(2, 2\); expected one number for each row. Choose one output",
        ),
        (
            lambda: UncertaintyDisplay.from_predictions(["a"], ["a", "b"], [1.0], [1.0], error="zero_one"),
            "y_true has 1 labels for 2 predictions; expected one label for each",
        ),
        (lambda: EntropyDisplay({"right": [0.1]}, n_classes=0), r"n_classes=0 has to be a whole number of at least 1"),
        (lambda: EntropyDisplay({"odd": [0.1]}, n_classes=2), r"entropies holds the groups \['odd'\]; expected 'in d"),
        (lambda: FeatureRelevanceDisplay([-1.0]), r"relevance has shape \(1,\) and a minimum of -1; expected one"),
        (
            lambda: PriorPathDisplay(prior_precision=[1.0, 2.0], scores={"loo_log_density": [1.0]}, chosen=1.0),
            r"loo_log_density has shape \(1,\); expected \(2,\), one score for each prior",
        ),
        (
            lambda: PriorPathDisplay(prior_precision=[1.0], scores={"loo_log_density": [np.nan]}, chosen=1.0),
            r"scores=\['loo_log_density'\] have no finite values; expected at least one in each score",
        ),
        (
            lambda: PredictionIntervalDisplay.from_estimator(BayesianRidge().fit(X, Y), X, Y, feature=3),
            "feature=3 is not a column of X; expected one of 0, 1, 2",
        ),
    ],
)
def test_bad_values_are_named(make, message):
    """The message states the value given and what is needed."""
    with pytest.raises(ValueError, match=message):
        make()


def test_a_column_of_text_is_no_axis():
    """Categories cannot be an axis; rows with a single categorical column are ordered by the mean."""

    class Mean(RegressorMixin, BaseEstimator):
        def fit(self, X, y):
            self.fitted_ = True
            return self

        def predict(self, X, return_std=False):
            return np.arange(len(X), dtype=float), np.ones(len(X))

    table = pd.DataFrame({"town": ["x", "y"]})
    model = Mean().fit(table, [0.0, 1.0])
    assert PredictionIntervalDisplay.from_estimator(model, table).x.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="feature='town' is not numeric; choose a numeric column"):
        PredictionIntervalDisplay.from_estimator(model, table, feature="town")
