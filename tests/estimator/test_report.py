"""Reports of the quality of predictions, against independent formulas and against planted errors."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
import scoringrules
from scipy.stats import binom, norm
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, r2_score, root_mean_squared_error

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._estimator.report import LEVELS, Frequency, classification_report, regression_report
from sklearn_laplace.metrics import CalibrationReport, expected_calibration_error

pytestmark = pytest.mark.usefixtures("short_trainings")

QUICK = {"hidden_layer_sizes": (8,), "n_members": 1, "random_state": 0}


def rows(n=400, seed=0):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({"x": rng.uniform(-3, 3, n), "town": rng.choice(["Bern", "Graz", "Lyon"], n)})
    X.loc[::15, "x"] = np.nan
    return X, np.sin(X["x"].fillna(0)) + (X["town"] == "Bern") + 0.2 * rng.normal(size=n)


@pytest.fixture(scope="module")
def regression():
    X, y = rows()
    return LaplaceRegressor(**QUICK).fit(X[:150], y[:150]), X[150:], y[150:].to_numpy()


def test_the_scores_are_those_of_other_packages(regression):
    model, X, y = regression
    mean, std = model.predict(X, return_std=True)
    report = model.report(X, y)
    assert report.n_rows == 250
    assert report.scores["RMSE"] == pytest.approx(root_mean_squared_error(y, mean))
    assert report.scores["R2"] == pytest.approx(r2_score(y, mean))
    assert report.scores["log density"] == pytest.approx(model.log_predictive_density(X, y).mean())
    constant = regression_report(norm(mean, std), X, y, 0, is_count=False)
    assert constant.scores["CRPS"] == pytest.approx(np.mean(scoringrules.crps_normal(y, mean, std)))
    assert constant.scores["log density"] == pytest.approx(norm.logpdf(y, mean, std).mean())


def test_the_coverage_is_that_of_the_intervals(regression):
    model, X, y = regression
    report = model.report(X, y)
    for level, entry in zip(LEVELS, report.coverage, strict=True):
        lower, upper = model.predict_dist(X).interval(level)
        assert entry.observed == pytest.approx(np.mean((lower <= y) & (y <= upper)))
        assert binom.cdf(250 * entry.low - 1, 250, level) < 0.025 < binom.cdf(250 * entry.low, 250, level)
        assert binom.cdf(250 * entry.high - 1, 250, level) < 0.975 <= binom.cdf(250 * entry.high, 250, level)


def test_bands_hold_for_calibrated_models_as_often_as_they_promise():
    """With true means and deviations, a band of coverage misses in 5 % of the reports. So do all groups together."""
    rng = np.random.default_rng(0)
    missed, groups_missed, small = [], [], []
    for _ in range(200):
        X, y = rng.normal(size=(200, 2)), rng.normal(size=200)
        report = regression_report(norm(np.zeros(200), np.ones(200)), X, y, 0, is_count=False)
        missed.append([entry.is_off for entry in report.coverage])
        groups_missed.append(any(entry.is_off for entry in report.groups))
        small.append(report.pit_pvalue < 0.05)
    assert 0.01 < np.mean(missed) < 0.08  # discrete counts leave bands a little wide
    assert np.mean(groups_missed) < 0.09
    assert 0.02 < np.mean(small) < 0.09


@pytest.mark.parametrize(("factor", "too"), [(0.7, "narrow"), (1.5, "wide")])
def test_wrong_widths_are_marked(factor, too):
    rng = np.random.default_rng(1)
    y = rng.normal(size=500)
    report = regression_report(norm(np.zeros(500), np.full(500, factor)), y[:, None] * 0, y, 0, is_count=False)
    ninety = report.coverage[LEVELS.index(0.9)]
    assert ninety.is_off and (ninety.observed < 0.9) == (too == "narrow")
    assert report.pit_pvalue < 0.05
    assert str(report).count("<--") >= 3


def test_the_worst_group_is_the_one_with_other_noise():
    rng = np.random.default_rng(2)
    X = pd.DataFrame({"x": rng.normal(size=800), "town": rng.choice(["Bern", "Graz", "Lyon", "Oslo"], 800)})
    y = rng.normal(size=800) * np.where(X["town"] == "Graz", 2.0, 1.0)
    report = regression_report(norm(np.zeros(800), np.ones(800)), X, y, 0, is_count=False)
    assert report.groups[0].name == "90% intervals, town = Graz" and report.groups[0].is_off
    assert report.groups[0].n == (X["town"] == "Graz").sum()
    X.loc[y > 1.5, "x"] = np.nan
    assert regression_report(norm(0 * y, 0 * y + 1), X, y, 0, is_count=False).groups[0].name.endswith("x missing")


def test_groups_of_numbers_are_quarters(regression):
    model, X, y = regression
    names = {entry.name for entry in model.report(X.assign(x=np.arange(250.0), town="Bern"), y).groups}
    assert names <= {f"90% intervals, x from {a} to {b}" for a, b in ((0, 62), (62, 124), (124, 187), (187, 249))} | {
        "90% intervals, town = Bern"
    }


def test_lists_of_rows_have_the_groups_of_arrays(regression):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    y = rng.normal(size=400) * np.where(X[:, 1] > 0, 2.0, 1.0)
    from_array, from_list, from_objects = (
        regression_report(norm(0 * y, 0 * y + 1), rows, y, 0, is_count=False).groups
        for rows in (X, X.tolist(), X.astype(object))
    )
    assert from_array == from_list == from_objects and from_array[0].is_off


def test_groups_of_times_have_dates():
    """Quarters of 249 half days; the first quarter is the worst."""
    days = np.datetime64("2024-01-01T12", "ns") + 12 * np.arange(249) * np.timedelta64(1, "h")
    X, y = pd.DataFrame({"x": days}), np.random.default_rng(0).normal(size=249)
    mean = np.where(np.arange(249) < 63, 9.0, 0.0)
    groups = regression_report(norm(mean, np.ones(249)), X, y, 0, is_count=False).groups
    assert groups[0].name == "90% intervals, x from 2024-01-01 12:00 to 2024-02-01 12:00"
    assert any(entry.name.endswith("to 2024-05-04 12:00") for entry in groups)


def test_each_of_several_targets_has_its_report():
    X, y = rows()
    targets = np.column_stack([y, 100 * y**2])
    model = LaplaceRegressor(**QUICK).fit(X[:150], targets[:150])
    first, second = (model.report(X[150:], targets[150:], output=k).scores["RMSE"] for k in (0, 1))
    mean = model.predict(X[150:])
    assert first == pytest.approx(root_mean_squared_error(targets[150:, 0], mean[:, 0]))
    assert second == pytest.approx(root_mean_squared_error(targets[150:, 1], mean[:, 1]))
    for output in (None, 2, -1, 0.0):
        with pytest.raises(ValueError, match=r"output=.* has to be the position of one of the 2 targets, from 0\."):
            model.report(X[150:], targets[150:], output=output)


def test_counts_have_a_uniform_pit_and_no_crps():
    rng = np.random.default_rng(4)
    X = rng.uniform(-1, 1, (600, 1))
    counts = rng.poisson(np.exp(X[:, 0]))
    model = LaplaceRegressor(likelihood="poisson", prior_precision="evidence", **QUICK).fit(X[:300], counts[:300])
    report = model.report(X[300:], counts[300:])
    assert report.pit_pvalue > 0.05 and "CRPS" not in report.scores
    assert not any(entry.is_off for entry in report.coverage)


def test_rates_are_no_counts():
    """Counts divided by an exposure are no targets of a distribution over counts: refused, and not found to be off."""
    X, y = rows()
    X, counts = X[["x"]].fillna(0.0), np.floor(np.exp(y))
    model = LaplaceRegressor(**QUICK, likelihood="poisson", prior_precision=1.0).fit(X[:150], counts[:150])
    rates = counts / 1.5
    for judge in (model.report, model.plot, partial(CalibrationReport.from_estimator, model)):
        with pytest.raises(ValueError, match=r"distribution is over whole numbers\. Counts divided by an exposure"):
            judge(X[150:], rates[150:])
    weights = np.where(rates == np.rint(rates), 1.0, 0.0)
    whole = weights > 0
    report, expected = (
        CalibrationReport.from_estimator(model, X[rows], rates[rows], sample_weight=weights[rows])
        for rows in (np.ones(len(X), dtype=bool), whole)
    )
    assert report.spread.ratio == pytest.approx(expected.spread.ratio, rel=0.05)  # scores of counts are partly drawn


def test_the_scores_of_classes_are_those_of_other_packages():
    X, y = rows()
    labels = np.where(y > 0.5, "high", "low")
    model = LaplaceClassifier(hidden_layer_sizes=(8,), prior_precision=1.0, random_state=0).fit(X[:150], labels[:150])
    p, true = model.predict_proba(X[150:]), labels[150:]
    report = model.report(X[150:], true)
    assert report.scores["accuracy"] == pytest.approx(accuracy_score(true, model.predict(X[150:])))
    assert report.scores["log density"] == pytest.approx(-log_loss(true, p))
    assert report.scores["Brier score"] == pytest.approx(2 * brier_score_loss(true == "low", p[:, 1]))
    assert report.scores["calibration error"] == pytest.approx(expected_calibration_error(true, p))
    assert [entry.name for entry in report.coverage] == ["class high", "class low"]
    assert report.coverage[0].observed == pytest.approx(np.mean(true == "high"))
    assert report.coverage[0].expected == pytest.approx(p[:, 0].mean())


def test_probabilities_on_the_edges_of_bins_count_as_in_the_metric():
    p = np.repeat([0.5, 0.6, 0.7, 0.8, 0.9, 1.0], 10)
    probabilities, labels = np.column_stack([p, 1 - p]), np.tile([0, 0, 1], 20)
    report = classification_report(probabilities, np.array([0, 1]), np.zeros((60, 1)), labels)
    assert report.scores["calibration error"] == pytest.approx(expected_calibration_error(labels, probabilities))


def test_overconfident_probabilities_are_marked_in_their_group():
    rng = np.random.default_rng(4)
    X, truth = rng.normal(size=(800, 2)), rng.integers(0, 2, 800)
    given = np.where(rng.random(800) < np.where(X[:, 1] > 0.7, 0.55, 0.9), truth, 1 - truth)
    probabilities = np.where(np.array([0, 1]) == given[:, None], 0.9, 0.1)
    report = classification_report(probabilities, np.array([0, 1]), X, truth)
    assert report.groups[0].name.startswith("accuracy, column 1 from 0.6") and report.groups[0].is_off
    assert report.groups[0].observed < 0.7


def test_a_label_without_probability_has_the_log_density_minus_infinity():
    report = classification_report(
        np.array([[1.0, 0.0]] * 30), np.array(["a", "b"]), np.zeros((30, 1)), np.array(["c"] * 30)
    )
    assert report.scores["log density"] == -np.inf and report.scores["accuracy"] == 0


def test_a_report_is_printed_as_text(regression):
    model, X, y = regression
    lines = repr(model.report(X, y)).split("\n")
    assert lines[0] == "250 rows" and lines[1].startswith("RMSE ") and "groups with the largest deviation:" in lines
    assert lines[5].split() == ["50%", "intervals", *lines[5].split()[2:]] and "expected" in lines[5]


def test_a_few_rows_have_no_groups(regression):
    model, X, y = regression
    report = model.report(X[:10], y[:10])
    assert report.groups == () and "groups" not in str(report)


def test_targets_of_another_number_are_refused(regression):
    model, X, y = regression
    with pytest.raises(ValueError, match=r"y has shape \(249,\); expected \(250,\), one target for each prediction"):
        model.report(X, y[1:])


def test_a_band_of_many_is_wider():
    events = np.ones(100, dtype=bool)
    one, many = (Frequency.of("e", events, 0.9, n_bands) for n_bands in (1, 50))
    assert many.low < one.low < one.high <= many.high


def test_positive_targets_with_intervals_below_zero_have_a_note():
    """The note names the cure, which works; targets with a zero, and intervals above zero, have none."""
    X, y = rows()
    y = np.exp(1.5 * y).to_numpy()
    reports = [
        LaplaceRegressor(target_transform=transform, **QUICK).fit(X[:150], y[:150]).report(X[150:], y[150:])
        for transform in (None, "log")
    ]
    assert len(reports[0].notes) == 1 and "target_transform='log'" in reports[0].notes[0]
    assert str(reports[0]).endswith(reports[0].notes[0])
    assert reports[1].notes == ()
    distribution = norm(np.full(20, 1.0), 1.0)
    assert regression_report(distribution, np.zeros((20, 1)), np.r_[0.0, np.ones(19)], 0, is_count=False).notes == ()
    assert len(regression_report(distribution, np.zeros((20, 1)), np.ones(20), 0, is_count=False).notes) == 1


@pytest.mark.parametrize("kind", [LaplaceRegressor, LaplaceClassifier])
def test_a_report_names_the_columns_of_rows_outside_the_range(kind):
    """From a twentieth of the rows on; a net that is given has no known range."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(size=(60, 2)), columns=["near", "far"])
    y = X["near"] + 0.1 * rng.normal(size=60)
    y = (y > y.median()).astype(int) if kind is LaplaceClassifier else y
    model = kind(hidden_layer_sizes=(4,), n_members=1, random_state=0).fit(X, y)
    shifted = X.assign(far=X["far"] + 5 * (np.arange(60) < 15))
    note = "25% of the rows have values outside the range of the training rows, or new levels, most often in 'far'."
    assert any(line.startswith(note) for line in model.report(shifted, y).notes)
    assert not any("outside" in note for note in model.report(X, y).notes)
