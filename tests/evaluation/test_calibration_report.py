"""Calibration reports: every part against a closed form or an independent oracle, all adapters, all messages."""

from __future__ import annotations

import re
from itertools import combinations_with_replacement

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.dummy import DummyClassifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_laplace import LaplaceRegressor, predictive
from sklearn_laplace.distributions import NormalMixture, PoissonLogNormal
from sklearn_laplace.metrics import (
    CalibrationReport,
    calibration_gap,
    coverage,
    judged_rows,
    log_density_scorer,
    neg_crps,
)
from sklearn_laplace.metrics.calibration_report import advice
from sklearn_laplace.metrics.crps_decomposition import LEVELS, CrpsDecomposition, isotonic_quantiles
from sklearn_laplace.metrics.ecdf_bands import EcdfBand
from sklearn_laplace.metrics.judged_rows import JudgedRows
from sklearn_laplace.metrics.spread import Spread, VarianceBins
from sklearn_laplace.metrics.worst_groups import GroupCoverage, leaves, strata
from sklearn_laplace.plotting import CalibrationReportDisplay, PredictionIntervalDisplay
from sklearn_laplace.recalibration import SigmaScaling

pytestmark = pytest.mark.usefixtures("short_trainings")

N = 1000
RNG = np.random.default_rng(0)
X = RNG.uniform(size=(N, 3))
MEAN, STD = 3 * X[:, 0], np.exp(X[:, 1])
Z = RNG.normal(size=N)
Y = MEAN + STD * Z
RIGHT = stats.norm(MEAN, STD)
SMALL = {"hidden_layer_sizes": (4,), "prior_precision": "evidence", "random_state": 0, "n_members": 1}


@pytest.fixture(autouse=True, scope="module")
def most_drawn():
    """Without the simulated miscalibration, which no check uses and which takes most of the time."""
    most, judged_rows.MOST_DRAWN = judged_rows.MOST_DRAWN, 0
    yield most
    judged_rows.MOST_DRAWN = most


@pytest.fixture
def drawn(monkeypatch, most_drawn):
    """With it, up to the number of rows of the package."""
    monkeypatch.setattr(judged_rows, "MOST_DRAWN", most_drawn)


@pytest.fixture(scope="module")
def report():
    return CalibrationReport.from_distribution(RIGHT, Y, X)


@pytest.fixture(autouse=True)
def _no_figure_is_left():
    yield
    plt.close("all")


# ---------------------------------------------------------------------- closed forms


def test_a_calibrated_normal_has_the_pit_of_its_definition(report):
    """F(y) = Φ(z), and the normal scores are the standardised errors."""
    np.testing.assert_allclose(report.pit_values, stats.norm.cdf(Z), atol=1e-12)
    assert report.spread.ratio == pytest.approx(np.mean(Z**2), rel=1e-12)
    assert report.spread.mean == pytest.approx(Z.mean(), rel=1e-9)
    assert min(report.checks.values()) > 0.05 and not report.is_off
    assert advice(report) == []


def test_the_interval_of_the_variance_ratio_is_the_exact_one():
    """For normal scores n r has a χ² distribution with n degrees of freedom."""
    scores = np.random.default_rng(1).normal(size=60)
    found, total = Spread.of(scores), float((scores**2).sum())
    assert (found.low, found.high) == pytest.approx(
        (total / stats.chi2.ppf(0.975, 60), total / stats.chi2.ppf(0.025, 60))
    )
    expected = 2 * min(stats.chi2.cdf(total, 60), stats.chi2.sf(total, 60))
    assert found.pvalue == pytest.approx(expected)
    assert found.mean_pvalue == pytest.approx(2 * stats.norm.sf(abs(scores.mean()) * 60**0.5))


def test_ten_percent_of_variance_are_found_in_1000_rows():
    """At the expected ratio 1.1 the report fails the check; over seeds, at the rate of the uniformly best test.

    The exact two-sided χ² test of level .05 finds 1.1 with probability .58 and .9 with .64. Each rate has a standard
    error of .03 over 300 replications.
    """
    wide = STD * Z / np.sqrt(np.mean(Z**2))  # mean squared score of exactly 1
    found = CalibrationReport.from_distribution(stats.norm(MEAN, STD), MEAN + np.sqrt(1.1) * wide, X)
    assert found.spread.ratio == pytest.approx(1.1) and found.spread.is_off
    assert found.spread.low < 1.1 < found.spread.high and found.spread.low > 1.0
    pvalue = 2 * stats.chi2.sf(1100, N)
    assert found.spread.pvalue == pytest.approx(pvalue) and pvalue < 0.05
    assert f"variance ratio 1.10, 95% interval 1.01 to 1.20, p = {pvalue:.2g}  <--" in str(found)
    assert "a failed check can be chance, which more rows will show" in str(found)  # p = .2 among seven checks
    assert 1.12 < found.spread.detectable < 1.14
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(300, N))
    for ratio, low, high in ((1.1, 0.55, 0.70), (0.9, 0.55, 0.75), (1.0, 0.0, 0.08), (1.21, 0.97, 1.0)):
        rate = np.mean([Spread.of(np.sqrt(ratio) * row).is_off for row in scores])
        assert low <= rate <= high, (ratio, rate)


def test_heavy_tails_are_not_a_wrong_variance():
    """With kurtosis 9 the test for normal scores rejects a right variance three times too often, and more."""
    rows = np.random.default_rng(3).standard_t(5, size=(200, N)) * np.sqrt(3 / 5)
    exact = [2 * min(stats.chi2.cdf(s, N), stats.chi2.sf(s, N)) < 0.05 for s in (rows**2).sum(1)]
    assert np.mean(exact) > 0.15
    assert np.mean([Spread.of(row).is_off for row in rows]) < 0.11


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_coverage_of_a_wrong_normal_is_the_closed_form(factor):
    """Intervals of N(0, 1) hold 2Φ(z/s) − 1 of the values of N(0, s²)."""
    y = factor * stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    found = CalibrationReport.from_distribution(stats.norm(0, 1), y)
    for entry, level in zip(found.coverage, found.coverage_band.points, strict=True):
        expected = 2 * stats.norm.cdf(stats.norm.ppf((1 + level) / 2) / factor) - 1
        assert entry.observed == pytest.approx(expected, abs=1 / 2000)
        assert (entry.low, entry.high) == pytest.approx(tuple(stats.binom.ppf([0.025, 0.975], 4000, level) / 4000))
    np.testing.assert_allclose(found.coverage_band.observed, [entry.observed for entry in found.coverage])
    assert found.coverage_band.is_off and found.pit.is_off and found.widths.is_off


def test_the_crps_is_that_of_its_closed_form(report):
    """The rule has an error below 1e-3; a normal that is right has an expected CRPS of σ/√π."""
    z = (Y - MEAN) / STD
    closed = STD * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    assert report.crps.score == pytest.approx(closed.mean(), rel=1e-3)
    y = stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    standard = CalibrationReport.from_distribution(stats.norm(0, 1), y)
    assert standard.crps.score == pytest.approx(1 / np.sqrt(np.pi), rel=1e-3)
    assert standard.crps.discrimination == pytest.approx(0, abs=1e-12)


def test_the_parts_of_the_crps_add_up(drawn):
    """CRPS = MCB − DSC + UNC; UNC is half of Gini's mean difference, the CRPS of the empirical distribution."""
    found = CalibrationReport.from_distribution(RIGHT, Y)
    parts = found.crps
    assert f"by chance, miscalibration is {parts.expected:.3g}, in 1 of 20 cases above {parts.plausible:.3g}" in str(
        found
    )
    assert f"(by chance {parts.expected:.3g})" in found.plot().axes_[5].texts[2].get_text()
    assert parts.score == pytest.approx(parts.miscalibration - parts.discrimination + parts.uncertainty, rel=1e-12)
    assert parts.uncertainty == pytest.approx(0.5 * np.abs(Y[:, None] - Y).mean(), rel=1e-3)
    assert parts.miscalibration > 0 and parts.discrimination > 0 and not parts.is_off
    assert 0.5 * parts.expected < parts.miscalibration < parts.plausible
    biased = CalibrationReport.from_distribution(stats.norm(MEAN + 1, STD), Y).crps
    assert biased.is_off and biased.discrimination == pytest.approx(parts.discrimination, rel=1e-9)


def test_recalibrated_quantiles_have_no_miscalibration():
    """Their own isotonic regression is the identity."""
    quantiles = RIGHT.ppf(LEVELS[:, None])
    fitted = isotonic_quantiles(quantiles, Y, LEVELS, np.ones(N))
    again = CrpsDecomposition.of(fitted, Y)
    assert again.miscalibration == pytest.approx(0, abs=1e-12)
    assert np.isnan(again.expected) and not again.is_off


def quantile_score(q, y, level, w):
    return float((w * ((y < q) - level) * (q - y)).sum())


@pytest.mark.parametrize("seed", range(8))
def test_isotonic_quantiles_are_the_best_increasing_ones(seed):
    """All increasing functions of the prediction with values among the targets are tried."""
    rng = np.random.default_rng(seed)
    predicted, y = rng.integers(0, 4, size=(3, 7)).astype(float), rng.normal(size=7).round(1)
    w, levels = rng.integers(1, 4, size=7).astype(float), np.array([0.15, 0.5, 0.85])
    fitted = isotonic_quantiles(predicted, y, levels, w)
    for p, q, level in zip(predicted, fitted, levels, strict=True):
        points, place = np.unique(p, return_inverse=True)
        order = np.argsort(p, kind="stable")
        assert (np.diff(q[order]) >= 0).all() and len(np.unique(q)) <= len(points)
        tried = (np.array(values)[place] for values in combinations_with_replacement(np.unique(y), len(points)))
        assert quantile_score(q, y, level, w) == pytest.approx(min(quantile_score(t, y, level, w) for t in tried))


@pytest.mark.parametrize("n", [25, 400])
def test_the_band_of_the_ecdf_is_simultaneous(n):
    """New uniform samples leave it with probability .05: within four standard errors of 4,000 samples.

    The level itself has the error .003 of its simulation. Few rows have few values, and a level below .05.
    """
    points = np.arange(1, 100) / 100
    band = EcdfBand.of(np.random.default_rng(4).uniform(size=n), points)
    counts = np.random.default_rng(5).multinomial(n, np.full(100, 0.01), size=4000)[:, :-1].cumsum(1)
    left = ((counts < n * band.low - 1e-9) | (counts > n * band.high + 1e-9)).any(1)
    assert 0.02 < left.mean() < 0.05 + 4 * 0.0034 + 2 * 0.0031
    pointwise = (np.abs(counts - n * points) > 1.96 * np.sqrt(n * points * (1 - points))).any(1)
    assert pointwise.mean() > 0.3  # a band of each point alone


def test_the_verdict_on_the_ecdf_is_its_band():
    """A p-value below .05 means that the curve leaves the band."""
    rng, points, verdicts = np.random.default_rng(6), np.arange(1, 100) / 100, []
    for power in np.repeat([1.0, 1.15, 1.4], 30):
        band = EcdfBand.of(rng.uniform(size=200) ** power, points)
        outside = ((band.observed < band.low - 1e-9) | (band.observed > band.high + 1e-9)).any()
        assert outside == band.is_off
        verdicts.append(outside)
    assert 20 < sum(verdicts) < 70


# ---------------------------------------------------------------------- groups


def test_a_planted_group_is_found_and_named():
    """Text and numbers: errors in one city, for large ages, are twice as large as predicted."""
    rng = np.random.default_rng(7)
    n = 2000
    table = pd.DataFrame({"city": rng.choice(["Bern", "Oslo", "Rome", "Wien"], n), "age": rng.uniform(20, 80, n)})
    bad = ((table["city"] == "Oslo") & (table["age"] > 50)).to_numpy()
    found = CalibrationReport.from_distribution(stats.norm(0, 1), np.where(bad, 2.5, 1.0) * rng.normal(size=n), table)
    assert found.groups.is_off and found.groups.worst.is_off
    assert re.match(r"city = Oslo and (49|50)\.\d+ < age", found.groups.worst.name)
    expected = 2 * stats.norm.cdf(stats.norm.ppf(0.95) / 2.5) - 1
    assert found.groups.worst.observed == pytest.approx(expected, abs=0.15)
    assert any("likelihood='heteroscedastic'" in line for line in advice(found))


def test_a_calibrated_model_has_no_bad_group():
    """Family-wise rate of the honest groups: at most .05, within two standard errors of 200 tables."""
    rng, off, grown = np.random.default_rng(8), [], []
    for _ in range(200):
        table, pit = rng.normal(size=(400, 4)), rng.uniform(size=400)
        groups = leaves(table, np.ones(400, bool), pit, np.ones(400), np.random.RandomState(0))
        off.append(GroupCoverage.of(groups, np.abs(2 * pit - 1) <= 0.9, 0.9).is_off)
        grown.append(len(groups))
    assert np.mean(off) < 0.05 + 2 * 0.0154
    assert np.mean(grown) > 2


def test_groups_are_of_the_rows_that_did_not_grow_the_tree():
    """The groups divide the other half of the rows."""
    groups = leaves(X, np.ones(N, bool), stats.norm.cdf(Z), np.ones(N), np.random.RandomState(0))
    assert sum(rows.sum() for rows in groups.values()) == N // 2
    assert np.array(list(groups.values())).sum(0).max() == 1


@pytest.mark.parametrize(
    ("column", "names"),
    [
        (pd.Series(1_000_000 + np.arange(2000)), r"100\d{4}(\.5)?"),
        (1.7e9 + 300 * pd.Series(np.arange(2000)), r"1700\d{6}"),
        (pd.Series(pd.date_range("2024-03-01", periods=2000, freq="min")), r"2024-03-0\d \d\d:\d\d"),
    ],
    ids=["identifiers", "seconds", "times"],
)
def test_groups_of_large_numbers_and_times_keep_their_rows(column, names):
    """Thresholds that agree in four digits, or dates, are told apart, and no group replaces another one."""
    rng = np.random.default_rng(13)
    y = rng.normal(size=2000) * np.array([1.0, 3.0, 0.3, 2.0])[np.arange(2000) // 500]
    report = CalibrationReport.from_distribution(stats.norm(np.zeros(2000), 1.6), y, pd.DataFrame({"at": column}))
    assert sum(group.n for group in report.groups.groups) == 1000
    assert len(report.groups.groups) > 3
    assert all(
        re.fullmatch(rf"(at > {names}|at ≤ {names}|{names} < at ≤ {names})", g.name) for g in report.groups.groups
    )


def test_equal_widths_are_one_group():
    """Widths that differ by rounding, as those of a constant noise, are the same; close ones keep all their rows."""
    rng = np.random.default_rng(14)
    mean = 3 * rng.normal(size=1000)
    report = CalibrationReport.from_distribution(stats.norm(mean, 1.0), mean + 1.2 * rng.normal(size=1000))
    assert [group.n for group in report.widths.groups] == [1000]
    assert report.widths.is_off
    two = CalibrationReport.from_distribution(stats.norm(mean, np.repeat([1.0, 2.0], 500)), mean)
    assert [group.n for group in two.widths.groups] == [500, 500]
    close = strata(1 + 1e-5 * rng.uniform(size=400), np.ones(400))
    assert len(close) == 5
    assert sum(rows.sum() for rows in close.values()) == 400


def test_the_worst_group_is_that_of_the_effective_numbers():
    """A small deviation of many rows counts more than a large one of rows with very unequal weights."""
    first = np.arange(400) < 200
    inside = np.where(first, np.arange(400) % 25 >= 4, np.arange(400) % 4 > 0)
    weights = np.where(first, 1.0, np.where(np.arange(400) % 20 == 0, 1000.0, 1e-3))
    inside[~first & (weights > 1)] = np.arange((~first & (weights > 1)).sum()) >= 2
    judged = GroupCoverage.of({"even": first, "uneven": ~first}, inside, 0.9, weights)
    assert judged.worst.name == "even"
    assert judged.worst.is_off


def test_missing_and_rare_values_are_in_groups():
    """Missing numbers have a condition of their own; long lists of levels are shortened."""
    rng = np.random.default_rng(9)
    values = rng.normal(size=1200)
    values[:400] = np.nan
    kinds = rng.choice(list("abcdefgh"), 1200).astype(object)
    kinds[5] = None
    pit = np.where(np.isnan(values), 0.99, 0.5)
    groups = leaves(pd.DataFrame({"v": values}), np.ones(1200, bool), pit, np.ones(1200), np.random.RandomState(0))
    assert set(groups) == {"v = missing", "v = present"}
    pit = np.where(np.isin(kinds, list("abcd")), 0.99, 0.5)
    groups = leaves(pd.DataFrame({"k": kinds}), np.ones(1200, bool), pit, np.ones(1200), np.random.RandomState(0))
    assert set(groups) == {"k in (a, b, c, … (4 levels))", "k in (e, f, g, … (5 levels))"}


def test_no_groups_without_a_table():
    """Images and few rows have no groups, and no table means no check of them."""
    assert CalibrationReport.from_distribution(RIGHT, Y).groups is None
    assert CalibrationReport.from_distribution(RIGHT, Y, np.zeros((N, 2, 2))).groups is None
    few = CalibrationReport.from_distribution(stats.norm(MEAN[:159], STD[:159]), Y[:159], X[:159])
    assert few.groups is None and "coverage by group" not in few.checks and "by group" not in str(few)


def test_widths_that_are_wrong_on_both_sides_are_found():
    """Right on average: narrow intervals are too narrow, wide ones too wide."""
    rng = np.random.default_rng(10)
    std = np.repeat([0.5, 1.6], 1000)
    found = CalibrationReport.from_distribution(stats.norm(0, std), np.where(std < 1, 0.8, 1.0) * rng.normal(size=2000))
    assert found.widths.is_off and found.variances.is_off
    assert [entry.observed < 0.9 for entry in found.widths.groups] == [True, False]
    assert len(found.variances.n) == 2
    np.testing.assert_allclose(found.variances.predicted, [0.5, 1.6])
    assert (found.variances.observed > found.variances.high).tolist() == [True, False]


def test_variance_bins_have_the_exact_band_of_equal_variances():
    """The mean squared error of n normal errors is σ² χ²ₙ/n."""
    rng = np.random.default_rng(11)
    errors = 2 * rng.normal(size=90)
    found = VarianceBins.of(errors, np.full(90, 2.0), np.full(90, 2 * 2.0**4))
    assert found.predicted == pytest.approx([2.0]) and found.observed == pytest.approx([np.sqrt(np.mean(errors**2))])
    low, high = (2 * np.sqrt(stats.chi2.ppf(level, 90) / 90) for level in (0.025, 0.975))
    assert (found.low[0], found.high[0]) == pytest.approx((low, high))
    assert found.ence == pytest.approx(abs(found.observed[0] - 2) / 2)


def test_the_variance_of_a_squared_error_is_that_of_its_distribution():
    """2 σ⁴ for normals; 41 quantiles reach .01 of it."""
    std = np.array([0.5, 3.0] * 10)
    rows = JudgedRows.of(stats.norm(1.0, std), np.ones(20), None, None, np.random.RandomState(0))
    np.testing.assert_allclose(rows.variance_of_square, 2 * std**4, rtol=0.02)


def test_variance_bins_of_a_calibrated_model_are_seldom_off():
    """Family-wise rate .05, within three standard errors of 300 tables."""
    rng, off = np.random.default_rng(12), []
    for _ in range(300):
        std = np.exp(0.5 * rng.normal(size=500))
        off.append(VarianceBins.of(std * rng.normal(size=500), std, 2 * std**4).is_off)
    assert np.mean(off) < 0.05 + 3 * 0.0126


# ---------------------------------------------------------------------- the whole report


def test_at_most_one_calibrated_report_in_twenty_is_off():
    """Holm's adjustment controls the rate over all checks; without it, more reports have a mark."""
    rng, off, marked = np.random.default_rng(13), [], []
    for _ in range(60):
        table = rng.uniform(size=(300, 2))
        std = np.exp(table[:, 0])
        one = CalibrationReport.from_distribution(stats.norm(0, std), std * rng.normal(size=300), table)
        off.append(one.is_off)
        marked.append("<--" in str(one).split("\n", 1)[1])
    assert np.mean(off) <= 0.05 + 2 * 0.028
    assert np.mean(marked) < 0.4


def test_adjusted_p_values_are_those_of_holm(report):
    """The smallest times 7, the next times 6, never decreasing."""
    pvalues = sorted(report.checks.values())
    assert len(pvalues) == 7
    expected = np.maximum.accumulate(np.array(pvalues) * np.arange(7, 0, -1)).clip(0, 1)
    assert sorted(report.adjusted.values()) == pytest.approx(expected.tolist())


def test_the_text_marks_failed_checks_and_tells_what_to_do(report):
    """The text of a good report has no marks and no advice."""
    text = str(report)
    assert text == repr(report) and text.startswith("Calibration on 1,000 rows")
    assert text.count("<--") == 1 and "0 of 7 checks fail" in text
    assert f"90% intervals {2 * stats.norm.ppf(0.95) * STD.mean():.4g} wide" in text
    off = CalibrationReport.from_distribution(stats.norm(MEAN + 1, STD / 2), Y, X)
    assert str(off).count("<--") > 5 and "can be chance" not in text + str(off)
    assert "- predictions are too high by" in str(off) and "- error bars are too narrow by a factor of" in str(off)
    assert not any("some rows" in line for line in advice(off))  # all are wrong alike
    wide = CalibrationReport.from_distribution(stats.norm(MEAN, 2 * STD), Y, X)
    assert advice(wide)[0].startswith("error bars are too wide by a factor of 1.99")


def test_exact_predictions_have_a_text():
    text = str(CalibrationReport.from_distribution(stats.norm(np.zeros(50), 1.0), np.zeros(50)))
    assert "error bars are too wide: all targets are predicted exactly." in text


def test_lists_of_rows_have_the_groups_of_arrays():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(1000, 2))
    y = np.where(X[:, 1] > 0.8, 2.0, 1.0) * rng.normal(size=1000)
    groups = [
        CalibrationReport.from_distribution(stats.norm(0 * y, 1.2), y, rows).groups
        for rows in (X, X.tolist(), X.astype(object))
    ]
    assert groups[0] == groups[1] == groups[2] and groups[0].is_off


def test_a_wrong_shape_has_its_own_advice():
    """Skewed errors with the right mean and variance."""
    y = stats.gamma(2).ppf((np.arange(N) + 0.5) / N)
    found = CalibrationReport.from_distribution(stats.norm(2, 2**0.5), y)
    assert not found.spread.is_off and not found.spread.mean_is_off and found.pit.is_off
    assert advice(found) == ["the shape of the distributions is wrong: try target_transform, or another likelihood."]
    right = CalibrationReport.from_distribution(stats.gamma(2), y)
    assert not right.is_off and right.spread.ratio == pytest.approx(1, abs=0.01)


def test_sharpness_is_of_the_distributions(report):
    """Means over the rows."""
    sharp = report.sharpness
    assert sharp.mean_std == pytest.approx(STD.mean())
    assert sharp.std_of_targets == pytest.approx(Y.std())
    assert sharp.widths[0.5] == pytest.approx(2 * stats.norm.ppf(0.75) * STD.mean())


def test_weights_count_as_copies_in_all_estimates():
    """Bands differ: copies of a row are no further rows."""
    w = np.random.default_rng(14).integers(0, 3, size=N).astype(float)
    copies = np.repeat(np.arange(N), w.astype(int))
    weighted = CalibrationReport.from_distribution(RIGHT, Y, X, sample_weight=w)
    copied = CalibrationReport.from_distribution(stats.norm(MEAN[copies], STD[copies]), Y[copies])
    assert weighted.n_rows == (w > 0).sum()
    assert weighted.spread.ratio == pytest.approx(copied.spread.ratio)
    assert weighted.spread.detectable > copied.spread.detectable
    np.testing.assert_allclose(weighted.pit.observed, copied.pit.observed)
    np.testing.assert_allclose([e.observed for e in weighted.coverage], [e.observed for e in copied.coverage])
    for part in ("score", "miscalibration", "discrimination", "uncertainty"):
        assert getattr(weighted.crps, part) == pytest.approx(getattr(copied.crps, part), rel=1e-9)
    assert weighted.sharpness.mean_std == pytest.approx(copied.sharpness.mean_std)
    assert weighted.groups is not None


def test_rows_of_weight_zero_do_not_matter():
    """Not even if their targets are absurd."""
    w, y = np.ones(N), Y.copy()
    w[:100], y[:100] = 0, 1e9
    found = CalibrationReport.from_distribution(RIGHT, y, sample_weight=w)
    kept = CalibrationReport.from_distribution(stats.norm(MEAN[100:], STD[100:]), Y[100:])
    assert found.spread == kept.spread and found.sharpness == kept.sharpness
    assert found.pit.pvalue == kept.pit.pvalue and found.n_rows == 900


def test_many_rows_have_no_simulated_miscalibration(report, most_drawn):
    """Its cost is that of 19 further decompositions."""
    assert most_drawn == 10_000
    assert np.isnan(report.crps.expected) and "by chance" not in str(report)
    assert "by chance" not in report.plot().axes_[5].texts[2].get_text()


# ---------------------------------------------------------------------- other models


class Boosted(BaseEstimator):
    """Stand-in for NGBoost: ``pred_dist`` returns an object around a frozen distribution."""

    def __init__(self, frozen=None):
        self.frozen = frozen

    def fit(self, X, y):
        return self

    def predict(self, X):
        return self.pred_dist(X).dist.mean()

    def __sklearn_is_fitted__(self):
        return True

    def pred_dist(self, X, max_iter=None):
        class Distribution:
            dist = self.frozen

        return Distribution()


class Cat:
    """Stand-in for CatBoost: no ``BaseEstimator``, has tags, and predicts a mean and a variance."""

    def __init__(self, loss="RMSEWithUncertainty", variance=None):
        self.loss, self.variance = loss, variance

    def get_all_params(self):
        return {"loss_function": self.loss, "iterations": 100}

    def fit(self, X, y):
        return self

    def predict(self, X, prediction_type=None, thread_count=-1):
        mean, std = 3 * X[:, 0], np.exp(X[:, 1])
        return np.column_stack([mean, std**2 if self.variance is None else np.full(len(X), self.variance)])

    def __sklearn_tags__(self):
        return _Tagged().__sklearn_tags__()


class _Tagged(RegressorMixin, BaseEstimator):
    pass


class Own(RegressorMixin, BaseEstimator):
    """Regressor with ``predict_dist``."""

    def __init__(self, result=None):
        self.result = result

    def fit(self, X, y):
        return self

    def predict(self, X):
        return np.zeros(len(X))

    def __sklearn_is_fitted__(self):
        return True

    def predict_dist(self, X):
        return self.result


@pytest.mark.parametrize("model", [Boosted(RIGHT), Cat(), Own(RIGHT)], ids=["NGBoost", "CatBoost", "predict_dist"])
def test_foreign_models_are_read(model, report):
    """The same distribution by each of the ways that other packages have for it."""
    found = CalibrationReport.from_estimator(model, X, Y)
    assert str(found) == str(report)
    assert neg_crps(model, X, Y) == pytest.approx(-report.crps.score, rel=1e-3)
    assert log_density_scorer(model, X, Y) == pytest.approx(RIGHT.logpdf(Y).mean())


def test_foreign_counts_are_counts():
    """NGBoost's Poisson is a discrete frozen distribution of SciPy."""
    y = np.random.default_rng(15).poisson(MEAN + 1)
    model = Boosted(stats.poisson(MEAN + 1))
    assert not CalibrationReport.from_estimator(model, X, y).is_off
    assert log_density_scorer(model, X, y) == pytest.approx(stats.poisson(MEAN + 1).logpmf(y).mean())
    with pytest.raises(TypeError, match="neg_crps needs a normal predictive distribution; found rv_discrete_frozen"):
        neg_crps(model, X, y)


def test_a_distribution_needs_only_four_methods():
    """Scores and displays of intervals too; the log density needs a fifth."""

    class Plain:
        mean, std, cdf, ppf = RIGHT.mean, RIGHT.std, RIGHT.cdf, RIGHT.ppf

    model = Own(Plain())
    assert str(CalibrationReport.from_estimator(model, X, Y)).count("\n") > 10
    assert coverage(model, X, Y) == coverage(Own(RIGHT), X, Y)
    assert calibration_gap(model, X, Y) == calibration_gap(Own(RIGHT), X, Y)
    assert PredictionIntervalDisplay.from_estimator(model, X, Y).coverage == pytest.approx(
        PredictionIntervalDisplay.from_estimator(Own(RIGHT), X, Y).coverage
    )
    with pytest.raises(TypeError, match="distribution of type Plain has no logpdf; the log density needs it"):
        log_density_scorer(model, X, Y)


def test_sigma_scaling_keeps_to_normal_distributions():
    """A factor for the standard deviation would replace another shape by a normal one."""
    with pytest.raises(TypeError, match="that of Boosted has another shape, which scaling would change"):
        SigmaScaling(Boosted(stats.lognorm(0.5, scale=np.full(N, 2.0)))).fit(X, np.exp(Y))
    with pytest.raises(TypeError, match="Boosted predicts counts"):
        SigmaScaling(Boosted(stats.poisson(MEAN + 1))).fit(X, np.ones(N))


def test_the_crps_of_a_foreign_distribution_is_not_that_of_a_normal():
    """Closed form for the logistic distribution: y − 2 log F(y) − 1 (Taillardat et al. 2016)."""
    y = np.linspace(-6, 9, 40)
    model = Boosted(stats.logistic(np.zeros(40), 1.0))
    closed = y - 2 * stats.logistic.logcdf(y) - 1
    assert neg_crps(model, np.zeros((40, 1)), y) == pytest.approx(-closed.mean(), rel=1e-5)


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: make_pipeline(StandardScaler(), m)], ids=["alone", "pipeline"])
@pytest.mark.parametrize(
    "model", [BayesianRidge(), GaussianProcessRegressor(RBF() + WhiteKernel(), normalize_y=True, optimizer=None)]
)
def test_models_of_scikit_learn_are_read(wrap, model):
    """Mean and standard deviation make a normal distribution; searches are unwrapped."""
    model = wrap(model).fit(X[:100], Y[:100])
    search = GridSearchCV(wrap(BayesianRidge()), {}, cv=2).fit(X[:100], Y[:100])
    for fitted in (model, search):
        distribution = predictive(fitted, X[100:300])
        direct = CalibrationReport.from_distribution(distribution, Y[100:300], X[100:300])
        assert str(CalibrationReport.from_estimator(fitted, X[100:300], Y[100:300])) == str(direct)


def test_sigma_scaling_mends_the_variance():
    """The ratio on the rows of the scaling is 1, and its square root was the factor."""
    model = BayesianRidge().fit(X[:200], Y[:200] / 3)
    held_out = X[200:], Y[200:]
    before = CalibrationReport.from_estimator(model, *held_out)
    scaled = SigmaScaling(model).fit(*held_out)
    after = CalibrationReport.from_estimator(scaled, *held_out)
    assert before.spread.is_off and before.spread.ratio == pytest.approx(scaled.scale_**2)
    assert after.spread.ratio == pytest.approx(1.0)


@pytest.mark.parametrize(
    "options",
    [{"n_members": 2}, {"likelihood": "poisson", "n_members": 2}, {"target_transform": "log"}, {"n_members": 1}],
    ids=["mixture", "counts", "transformed", "normal"],
)
def test_laplace_regressors_are_read(options):
    """All kinds of their distributions; positive targets suit each of them."""
    rng = np.random.default_rng(16)
    y = rng.poisson(np.exp(1 + X[:500, 0])) + 1.0
    model = LaplaceRegressor(**SMALL | options).fit(X[:100], y[:100])
    new = X[200:350], y[200:350]
    found = CalibrationReport.from_estimator(model, *new)
    assert found.n_rows == 150 and 0.5 < found.spread.ratio < 2
    distribution = model.predict_dist(new[0])
    assert found.sharpness.mean_std == pytest.approx(distribution.std().mean())
    parts = found.crps
    assert parts.score == pytest.approx(parts.miscalibration - parts.discrimination + parts.uncertainty)
    if options.get("likelihood") is None:
        assert parts.score == pytest.approx(-neg_crps(model, *new), rel=3e-3)


def test_one_of_several_targets_is_chosen():
    """Each output has its own report."""
    both = stats.norm(np.column_stack([MEAN, MEAN]), np.column_stack([STD, 2 * STD]))
    targets = np.column_stack([Y, Y])
    first, second = (CalibrationReport.from_distribution(both, targets, X, output=place) for place in (0, 1))
    assert first.spread.ratio == pytest.approx(4 * second.spread.ratio)
    for output in (None, 2, -1, "a"):
        with pytest.raises(
            ValueError, match=r"output=.* is not the position of a target; .* pass an output from 0 to 1"
        ):
            CalibrationReport.from_distribution(both, targets, output=output)


@pytest.mark.parametrize("random_state", [0, 1])
def test_counts_have_a_randomised_pit(random_state):
    """Uniform for the right counts, whatever the seed, and the same for the same seed."""
    means = 1 + MEAN[:200]
    rates = PoissonLogNormal(np.log(means), np.full(200, 1e-6))
    y = np.random.default_rng(17).poisson(means)
    found, again = (CalibrationReport.from_distribution(rates, y, random_state=random_state) for _ in range(2))
    assert not found.is_off
    np.testing.assert_array_equal(found.pit_values, again.pit_values)
    below, reached = stats.poisson(means).cdf(y - 1), stats.poisson(means).cdf(y)
    assert ((below - 1e-4 <= found.pit_values) & (found.pit_values <= reached + 1e-4)).all()


def test_far_targets_of_a_mixture_keep_their_distance():
    """The PIT rounds to 1; the upper tail has the normal score."""
    mixture = NormalMixture(np.zeros((N, 2)), np.ones((N, 2)), np.array([0.5, 0.5]))
    y = Z.copy()
    y[0] = 20.0
    found = CalibrationReport.from_distribution(mixture, y)
    assert found.spread.ratio == pytest.approx(np.mean(y**2), rel=1e-9)


# ---------------------------------------------------------------------- figure


def test_the_figure_has_the_numbers_of_the_report(report):
    """Six panels; the first alone on a given Axes; the same by either way."""
    display = report.plot()
    assert isinstance(display, CalibrationReportDisplay) and len(display.axes_) == 6
    pit = display.axes_[0].lines[-1]
    np.testing.assert_allclose(pit.get_ydata(), report.pit.observed - report.pit.points)
    coverage = display.axes_[1].lines[-1]
    np.testing.assert_allclose(coverage.get_ydata(), report.coverage_band.observed - report.coverage_band.points)
    np.testing.assert_allclose(display.axes_[2].lines[-1].get_ydata(), report.variances.observed)
    assert len(display.axes_[3].get_yticklabels()) == len(report.groups.groups)
    assert [bar.get_width() for bar in display.axes_[5].patches] == pytest.approx(
        [report.crps.uncertainty, report.crps.discrimination, report.crps.miscalibration, report.crps.score]
    )
    _, ax = plt.subplots()
    assert report.plot(ax).axes_ == [ax]
    figure = plt.figure()
    assert report.plot(figure=figure).figure_ is figure
    assert CalibrationReportDisplay.from_estimator(Cat(), X, Y).report.spread == report.spread


def test_titles_of_failed_checks_are_red(report):
    """Black if calibrated; the panel of groups tells why it is empty; wide ranges have logarithmic axes."""
    colours = {axes.title.get_color() for axes in report.plot().axes_}
    assert colours == {"black"}
    std = np.repeat([0.1, 10.0], N // 2)
    off = CalibrationReport.from_distribution(stats.norm(1, std), 3 * std * Z).plot()
    assert off.axes_[0].title.get_color() != "black"
    assert off.axes_[2].get_xscale() == "log"
    assert "no groups" in off.axes_[3].texts[0].get_text()


def test_other_axes_are_refused(report):
    """As in the other displays."""
    with pytest.raises(TypeError, match=r"CalibrationReportDisplay.plot needs None, a matplotlib Axes"):
        report.plot("left")
    with pytest.raises(TypeError, match=r"figure='left' is not supported; CalibrationReportDisplay.plot needs None"):
        report.plot(figure="left")
    with pytest.raises(TypeError, match=r"report is of type str; expected a CalibrationReport. Use from_estimator"):
        CalibrationReportDisplay("report")


# ---------------------------------------------------------------------- refusals


def test_models_without_a_distribution_are_refused():
    """Classes, points, arrays instead of distributions, exact predictions."""
    with pytest.raises(
        TypeError, match="CalibrationReport evaluates distributions of numeric targets; found the class"
    ):
        CalibrationReport.from_estimator(DummyClassifier().fit(X, Y > 1), X, Y)
    with pytest.raises(TypeError, match=r"LinearRegression has no predictive .* pred_dist \(NGBoost\) or predict_dist"):
        CalibrationReport.from_estimator(LinearRegression().fit(X, Y), X, Y)
    with pytest.raises(TypeError, match=r"Cat has no predictive distribution; .* loss_function='RMSEWithUncertainty'"):
        CalibrationReport.from_estimator(Cat(loss="RMSE"), X, Y)
    with pytest.raises(TypeError, match=r"Own.predict_dist\(X\) is of type ndarray, which has no cdf and no ppf"):
        CalibrationReport.from_estimator(Own(np.zeros(3)), X, Y)
    with pytest.raises(ValueError, match=r"Cat.predict\(X\) returned a standard deviation of 0.0; a density needs"):
        CalibrationReport.from_estimator(Cat(variance=0.0), X, Y)
    with pytest.raises(TypeError, match="not a fitted estimator"):
        CalibrationReport.from_estimator(Cat, X, Y)
    with pytest.raises(
        TypeError, match="distribution is of type str, which has no mean and no std and no cdf and no ppf"
    ):
        CalibrationReport.from_distribution("normal", Y)


class Half:
    """Distribution with a method too few, or with odd values."""

    def __init__(self, mean=0.0, std=1.0, end=1.0):
        self.values = mean, std, end

    def mean(self):
        return np.full(N, self.values[0])

    def std(self):
        return np.full(N, self.values[1])

    def cdf(self, y):
        return np.full(N, 0.5)

    def ppf(self, level):
        return np.full(np.broadcast_shapes(np.shape(level), (N,)), self.values[2])


def test_improper_distributions_are_refused():
    """The first bad row is named."""
    with pytest.raises(
        ValueError, match="of row 0 has a mean of 0 and a standard deviation of 0; both have to be finite"
    ):
        CalibrationReport.from_distribution(Half(std=0.0), Y)
    with pytest.raises(ValueError, match="of row 3 has a mean of inf and a standard deviation of 1"):
        CalibrationReport.from_distribution(Half(mean=np.inf), Y, sample_weight=np.arange(N) > 2)
    with pytest.raises(ValueError, match=r"the quantile of level 2.9e-07 is not finite for some rows"):
        CalibrationReport.from_distribution(Half(end=np.inf), Y)
    assert CalibrationReport.from_distribution(Half(), Y).variances.is_off  # a point mass: no spread of its squares


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((None,), {}, ValueError, "y is None; pass the 1000 targets"),
        ((Y[:10],), {}, ValueError, r"y has shape \(10,\); expected \(1000,\), one target for each prediction"),
        ((np.where(Y > 3, np.nan, Y),), {}, ValueError, "NaN"),
        ((Y, X[:10]), {}, ValueError, "X has 10 rows for 1000 targets; expected one row per target"),
        ((Y,), {"sample_weight": np.ones(3)}, ValueError, "sample_weight"),
        ((Y,), {"sample_weight": -np.ones(N)}, ValueError, "sample_weight"),
        ((Y,), {"sample_weight": np.arange(N) < 19}, ValueError, "19 rows have a positive weight; .* at least 20"),
        ((Y,), {"random_state": -1}, ValueError, "random_state=-1 has to be"),
        ((Y,), {"weights": None}, TypeError, r"unexpected keyword argument 'weights' .* Use sample_weight"),
    ],
)
def test_bad_arguments_are_named(arguments, options, error, message):
    """Each message has the value and what is needed."""
    with pytest.raises(error, match=message):
        CalibrationReport.from_distribution(RIGHT, *arguments, **options)
