"""Difficult data: few rows, duplicates, columns far from zero, targets without noise, nothing to learn.

Default fits raise an error or give sane predictions: finite, with 95 % intervals that cover most new targets. Their
width is that of the noise, within a factor that depends on the case, and grows far away from the rows.
"""

from __future__ import annotations

import legal_tables
import numpy as np
import pytest
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import load_diabetes

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.errors import BoundWarning, InterpolationWarning

Z95 = norm.ppf(0.975)
NOISE = 0.2
NEW = np.random.default_rng(7).normal(size=(400, 2))

quiet = pytest.mark.filterwarnings(
    "ignore::sklearn_laplace.errors.ModeWarning",
    "ignore::sklearn_laplace.errors.BoundWarning",
    "ignore::sklearn_laplace.errors.InterpolationWarning",
)


def curve(X):
    return np.sin(1.5 * X[:, 0]) + X[:, 1]


def curved(n, rng, columns=2):
    X = rng.normal(size=(n, columns))
    return X, curve(X) + NOISE * rng.normal(size=n)


def padded(X, rng, more):
    return np.column_stack([X, rng.normal(size=(len(X), more))])


def more_weights_than_rows(rng):
    return *curved(40, rng), NEW


def doubled_rows(rng):
    X = np.repeat(rng.normal(size=(40, 2)), 2, axis=0)
    return X, curve(X) + NOISE * rng.normal(size=80), NEW


def useless_columns(rng):
    X, y = curved(120, rng)
    return padded(X, rng, 10), y, padded(NEW, rng, 10)


def constant_column(rng):
    X, y = curved(100, rng)
    return np.column_stack([X, np.full(100, 7.0)]), y, np.column_stack([NEW, np.full(400, 7.0)])


def far_from_zero(rng):
    X, y = curved(100, rng)
    far = np.array([1e12, 0.0])
    return X + far, y, NEW + far


def collinear(rng):
    X, y = curved(100, rng)
    both = [[1.0, 0.0, 1.0, 2.0], [0.0, 1.0, 1.0, 0.0]]
    return X @ both, y, NEW @ both


# for each case: generator, minimum coverage of 95 % intervals, minimum and maximum of mean std / noise
CASES = {
    "more-weights-than-rows": (more_weights_than_rows, 0.85, 0.7, 2.0),
    "doubled-rows": (doubled_rows, 0.88, 0.8, 1.6),
    "useless-columns": (useless_columns, 0.85, 0.8, 2.5),
    "constant-column": (constant_column, 0.88, 0.8, 1.6),
    "far-from-zero": (far_from_zero, 0.88, 0.8, 1.6),
    "collinear": (collinear, 0.88, 0.8, 1.6),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_widths_are_those_of_the_noise_and_open_far_away(case):
    """On 400 new rows.

    The coverage of a given fit has a standard error of 0.01, and differs by about 0.03 between fits.
    """
    make, least, narrow, wide = CASES[case]
    rng = np.random.default_rng(0)
    X, y, X_new = make(rng)
    model = LaplaceRegressor(random_state=0).fit(X, y)
    mean, std = model.predict(X_new, return_std=True)
    assert np.mean(np.abs(curve(NEW) + NOISE * rng.normal(size=400) - mean) < Z95 * std) >= least
    assert narrow <= std.mean() / NOISE <= wide
    assert model.predict_std(X.mean(0) + 20 * (X_new - X.mean(0))).mean() > 2 * std.mean()


@quiet
@pytest.mark.parametrize(("columns", "least"), [(2, 0.85), (8, 0.7)])
def test_ten_rows_give_honest_intervals(columns, least):
    """Mean coverage over four data sets with 400 new rows each.

    The limit is lower for eight columns: a plane then has nine weights for ten rows, which leaves hardly any residual.
    """
    covered = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, X_new = rng.normal(size=(10, columns)), rng.normal(size=(400, columns))
        y, y_new = (rows[:, 0] - rows[:, 1] + NOISE * rng.normal(size=len(rows)) for rows in (X, X_new))
        mean, std = LaplaceRegressor(random_state=seed).fit(X, y).predict(X_new, return_std=True)
        assert (std < 5 * y.std()).all()
        covered.append(np.abs(y_new - mean) < Z95 * std)
    assert np.mean(covered) >= least


@quiet
def test_targets_without_noise_have_next_to_none():
    """The noise level is below 1 % and the RMSE below 3 % of the standard deviation of the targets."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(150, 2))
    inside = 0.9 * rng.uniform(-2, 2, size=(400, 2))
    model = LaplaceRegressor(random_state=0).fit(X, curve(X))
    assert model.sigma_noise_ < 0.01 * curve(X).std()
    assert np.sqrt(np.mean((model.predict(inside) - curve(inside)) ** 2)) < 0.03 * curve(X).std()
    assert model.predict_std([[30.0, 30.0]])[0] > 0.5


@pytest.mark.parametrize("value", [0.0, 3.0, -1e9, 1e-300])
def test_constant_targets_are_predicted_as_they_are(value):
    """With a BoundWarning: the noise level is at its lower bound."""
    X = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.warns(BoundWarning, match="constant"):
        model = LaplaceRegressor(random_state=0).fit(X, np.full(30, value))
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, value, rtol=1e-3, atol=1e-3 if value == 0 else 0)
    assert np.isfinite(std).all() and (std > 0).all()


ANGLES = np.linspace(0, 6, 60)
JITTERED = {
    "a-few-ulp": 1e6 + 1e-9 * np.sin(ANGLES),
    "one-ulp": np.where(np.arange(60) % 3, 0.1, np.nextafter(0.1, 1.0)),
    "negative": -1e6 + 1e-9 * np.sin(ANGLES),
    "large": 1e15 + 0.125 * (np.arange(60) % 5),
    "huge": 1e300 * (1 + np.finfo(float).eps * (np.arange(60) % 2)),
    "small": 1e-300 * (1 + np.finfo(float).eps * (np.arange(60) % 2)),
}


@pytest.mark.parametrize("case", sorted(JITTERED))
@pytest.mark.usefixtures("short_training")
def test_targets_that_are_constant_but_for_rounding_are_constant(case):
    """Predictions and standard deviations equal those for the constant, up to the rounding of the mean."""
    X, y = ANGLES[::7, None], JITTERED[case][::7]  # all values of each case occur
    with pytest.warns(BoundWarning, match="constant"):
        model = LaplaceRegressor(hidden_layer_sizes=(3,), random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, y[0], rtol=1e-12)
    assert np.isfinite(std).all() and (std > 0).all()
    with pytest.warns(BoundWarning, match="constant"):
        constant = clone(model).fit(X, np.full(len(y), y[0]))
    np.testing.assert_allclose(std, constant.predict_std(X), rtol=1e-9)


def test_one_target_of_several_may_be_constant_but_for_rounding():
    """The constant target is predicted exactly, and the other target is still learnt."""
    X, y = curved(60, np.random.default_rng(0))
    model = LaplaceRegressor(random_state=0).fit(X, np.column_stack([1e6 + 1e-9 * y, y]))
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean[:, 0], 1e6, rtol=1e-2)
    assert np.isfinite(std).all() and (std > 0).all()
    assert np.corrcoef(mean[:, 1], y)[0, 1] > 0.9


@pytest.mark.parametrize(("power", "n_bins"), [(-300, None), (-200, 4), (200, None), (300, 4)])
@pytest.mark.usefixtures("short_training")
def test_columns_of_any_magnitude_are_columns(power, n_bins):
    """The statistics of a column are computed after scaling, so that its square neither vanishes nor overflows."""
    X, y = curved(25, np.random.default_rng(0))
    X_new, scale = NEW[:50], np.array([2.0 ** round(power / np.log10(2)), 1.0])
    answers = [
        LaplaceRegressor(random_state=0, n_members=1, n_bins=n_bins).fit(X * unit, y).predict(X_new * unit, True)
        for unit in (np.ones(2), scale)
    ]
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-9)


@pytest.mark.parametrize("power", [-300, 300])
@pytest.mark.usefixtures("short_training")
def test_targets_of_any_magnitude_are_targets(power):
    """Mean and standard deviation are in the unit of y; a variance out of the range of float64 raises an error."""
    X, y = curved(25, np.random.default_rng(0))
    unit = 2.0 ** round(power / np.log10(2))
    one, other = (LaplaceRegressor(random_state=0, n_members=1).fit(X, y * scale) for scale in (1.0, unit))
    for small, large in zip(one.predict(NEW, return_std=True), other.predict(NEW, return_std=True), strict=True):
        np.testing.assert_allclose(large / unit, small, rtol=1e-9)
    np.testing.assert_allclose(other.sample_y(NEW, 2) / unit, one.sample_y(NEW, 2), rtol=1e-9)
    shift = one.log_predictive_density(X, y) - other.log_predictive_density(X, y * unit)
    np.testing.assert_allclose(shift, np.log(unit), rtol=1e-9)
    with pytest.raises(ValueError, match=r"whose square is out of range.*another unit for y"):
        other.predict(NEW, return_cov=True)
    with pytest.raises(ValueError, match=r"times the scale of y.*in the units of y"):
        LaplaceRegressor(sigma_noise=0.1).fit(X, y * unit)
    with pytest.raises(ValueError, match=r"whose square is out of range.*standardize_y=True"):
        LaplaceRegressor(standardize_y=False).fit(X, y * unit)


@pytest.mark.parametrize("n_members", [1, "auto"])
def test_values_that_differ_by_more_than_the_largest_number_are_refused(n_members):
    """Neither their mean nor their differences are finite in float64."""
    X, y = curved(20, np.random.default_rng(0))
    far = np.column_stack([X[:, 0], np.where(X[:, 1] > 0, 1.7e308, -1.7e308)])
    with pytest.raises(ValueError, match=r"a column reaches 1.7e\+308.*use another unit"):
        LaplaceRegressor(n_members=n_members).fit(far, y)


@pytest.mark.parametrize("value", [0.0, 5.0, -2e-3, 1e300])
@pytest.mark.parametrize("options", [{}, {"standardize_y": False}, {"prior_precision": "evidence"}])
def test_one_row_tells_nothing_of_the_noise(value, options):
    """The noise level is the absolute value of the target, or 1 for a target of zero."""
    if options == {"standardize_y": False} and value == 1e300:
        return
    size = abs(value) if value else 1.0
    model = LaplaceRegressor(random_state=0, **options)
    with pytest.warns(InterpolationWarning, match=r"total weight of the rows is 1,.*Fit more rows, or give sigma"):
        model.fit([[3.0, 1.0]], [value])
    mean, std = model.predict([[3.0, 1.0], [30.0, -10.0]], return_std=True)
    np.testing.assert_allclose(model.sigma_noise_, size)
    np.testing.assert_allclose(mean[0], value, atol=size)
    assert (std >= size).all() and (std < 10 * size).all()
    with pytest.warns(InterpolationWarning, match="the total weight of the rows is 1,"):
        model.refit_laplace()
    np.testing.assert_allclose(model.predict([[3.0, 1.0]], return_std=True)[1], std[0])


def test_what_is_known_of_one_row_is_used():
    """A user-set noise level is kept; it is estimated again after more rows; two rows have standard deviations."""
    model = LaplaceRegressor(random_state=0, sigma_noise=0.1).fit([[3.0]], [5.0])
    assert model.sigma_noise_ == pytest.approx(0.1)
    with pytest.warns(InterpolationWarning, match="the total weight of the rows is 1,"):
        model = LaplaceRegressor(random_state=0).fit([[3.0]], [5.0], sample_noise_variance=[0.04])
    assert model.sigma_noise_ == pytest.approx(0.2)
    with pytest.warns(InterpolationWarning, match="the total weight of the rows is 1,"):
        model = LaplaceRegressor(random_state=0).fit([[3.0]], [5.0])
    X = np.linspace(2.0, 4.0, 20)[:, None]
    model.partial_fit(X, 5.0 + 0.1 * np.random.default_rng(0).normal(size=20)).refit_laplace()
    assert 0.05 < model.sigma_noise_ < 0.2
    model = LaplaceRegressor(random_state=0).fit([[0.0], [1.0]], [5.0, 6.0])
    assert (model.predict_std([[0.0], [0.5], [1.0]]) > 0.5).all()


def test_outputs_on_very_different_scales_are_as_good_as_on_one():
    """Predictions for y·s are those for y times s. Powers of two have no rounding, which may change a choice."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    Y = np.column_stack([curve(X), X[:, 0] * X[:, 1], X.sum(1)]) + NOISE * rng.normal(size=(60, 3))
    scales = 2.0 ** np.array([-20, 0, 20])
    model = LaplaceRegressor(hidden_layer_sizes=(20,), random_state=0)
    one, other = clone(model).fit(X, Y), clone(model).fit(X, Y * scales)
    for small, large in zip(one.predict(NEW, return_std=True), other.predict(NEW, return_std=True), strict=True):
        assert np.isfinite(large).all()
        np.testing.assert_allclose(large / scales, small, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(other.sigma_noise_ / scales, one.sigma_noise_, rtol=1e-6)
    assert np.mean(np.abs(curve(NEW) - one.predict(NEW)[:, 0]) < Z95 * one.predict_std(NEW)[:, 0]) > 0.9


def test_heavy_tails_widen_the_intervals_and_keep_the_mean():
    """Student's t noise without a variance: σ is near the sample's, and the RMSE of the mean is below half of it."""
    freedom = 1.5
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    errors = NOISE * rng.standard_t(freedom, size=200)
    model = LaplaceRegressor(random_state=0).fit(X, curve(X) + errors)
    mean, std = model.predict(NEW, return_std=True)
    fresh = curve(NEW) + NOISE * rng.standard_t(freedom, size=400)
    assert np.mean(np.abs(fresh - mean) < Z95 * std) > 0.85
    assert 0.3 * errors.std() < model.sigma_noise_ < 1.5 * errors.std()
    assert np.sqrt(np.mean((mean - curve(NEW)) ** 2)) < 0.5 * max(errors.std(), NOISE)


@quiet
def test_one_outlier_does_not_make_the_intervals_too_narrow():
    """One target is off by a hundred σ. Wider intervals everywhere are correct, and so is a local bump of the mean."""
    rng = np.random.default_rng(0)
    X, y = curved(100, rng)
    y[rng.integers(100)] += 100 * NOISE
    mean, std = LaplaceRegressor(random_state=0).fit(X, y).predict(NEW, return_std=True)
    assert np.mean(np.abs(curve(NEW) + NOISE * rng.normal(size=400) - mean) < Z95 * std) > 0.85
    assert np.median(std) < 15 * NOISE


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.BoundWarning")
def test_copies_of_rows_are_no_more_rows_than_they_are():
    """Five copies of each row with its target look like targets without noise: a warning."""
    X, y = curved(25, np.random.default_rng(0))
    same = LaplaceRegressor(random_state=0, prior_precision=0.05, sigma_noise="residual")
    with pytest.warns(InterpolationWarning, match=r"contain \d+% of left-out targets.*duplicate rows"):
        same.fit(np.tile(X, (5, 1)), np.tile(y, 5))


# ------------------------------------------------------------------------------ anything legal


@pytest.mark.parametrize("seed", range(12))
def test_no_legal_table_makes_a_default_fit_fail(seed):
    """Constant, copied, extreme and missing columns, categories, dates, weights.

    ``examples/benchmarks/faults.py`` fits hundreds of such tables.
    """
    table = legal_tables.legal_table(seed)
    assert legal_tables.failure(table) is None, table.description


@quiet
def test_weights_of_many_rows_each_leave_a_fit():
    """The noise is constant if the training of the noise model overflows."""
    X, y = curved(20, np.random.default_rng(0))
    model = LaplaceRegressor(random_state=0, n_members=1).fit(X, y, sample_weight=np.full(20, 1e12))
    mean, std = model.predict(NEW, return_std=True)
    assert np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()


# ------------------------------------------------------------------------------ classes


def chances(X):
    """Probability of the second class."""
    return 1 / (1 + np.exp(-3 * curve(X)))


def log_score(chance, predicted):
    """Expected log probability of labels that are drawn with these chances."""
    return np.mean((1 - chance) * predicted[:, 0] + chance * predicted[:, 1])


@pytest.mark.parametrize("case", sorted(CASES))
def test_probabilities_are_worth_more_than_the_frequencies(case):
    """At least a third of the possible gain in expected log probability; standard deviations are positive."""
    rng = np.random.default_rng(0)
    X, y, X_new = CASES[case][0](rng)
    labels = (rng.random(len(X)) < 1 / (1 + np.exp(-3 * y))).astype(int)
    model = LaplaceClassifier(random_state=0).fit(X, labels)
    score = log_score(chances(NEW), model.predict_log_proba(X_new))
    share = np.clip(labels.mean(), 0.01, 0.99)
    guess = log_score(chances(NEW), np.log([[1 - share, share]]).repeat(len(NEW), 0))
    best = log_score(chances(NEW), np.log(np.column_stack([1 - chances(NEW), chances(NEW)])))
    assert score > guess + (best - guess) / 3
    std = model.predict_std(X_new)
    assert np.isfinite(std).all() and (std > 0).all()


@pytest.mark.parametrize(("rule", "doubt"), [("auto", 1e-10), ("evidence", 1e-4)])
@pytest.mark.parametrize("n", [10, 100])
def test_separable_classes_are_told_apart_and_not_for_certain(n, rule, doubt):
    """Without a prior the weights would be infinite; between the classes the probability is near one half.

    Held-out rows are all classified correctly, so that ``auto`` gives more extreme probabilities than the evidence.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    model = LaplaceClassifier(prior_precision=rule, random_state=0).fit(X, X[:, 0] > 0)
    chance = model.predict_proba([[-2.0, 0.0], [0.0, 0.0], [2.0, 0.0]])[:, 1]
    assert chance[0] < 0.25 and 0.1 < chance[1] < 0.9 and chance[2] > 0.75
    assert model.predict_proba(NEW).max() < 1 - doubt
    assert model.score(NEW, NEW[:, 0] > 0) > (0.7 if n == 10 else 0.8)


def test_one_of_two_hundred_is_as_rare_as_it_was():
    """The mean probability of the class with one row is its frequency, within a factor of 3 down and 10 up."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        model = LaplaceClassifier(random_state=seed).fit(rng.normal(size=(200, 2)), np.arange(200) == 20)
        chance = model.predict_proba(NEW)[:, 1]
        assert 1 / 600 < chance.mean() < 10 / 200
        assert chance.max() < 0.8


def test_classes_of_doubled_and_contradicting_rows():
    """Each row occurs with both labels: the probability is one half."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = LaplaceClassifier(random_state=0).fit(np.repeat(X, 2, axis=0), np.tile([0, 1], 60))
    np.testing.assert_allclose(model.predict_proba(NEW), 0.5, atol=0.02)


# ------------------------------------------------------------------------------ nothing to learn


@pytest.mark.parametrize(("n", "columns"), [(50, 20), (100, 5)])
def test_useless_features_cost_next_to_nothing(n, columns):
    """Over three data sets, log density within 0.02 nats of a constant normal's, and its standard deviation.

    ``examples/benchmarks/nothing_to_learn.py`` has the other sizes, up to 1,000 rows.
    """
    gains, widths = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X, X_new, y, y_new = (rng.normal(size=size) for size in ((n, columns), (2000, columns), n, 2000))
        model = LaplaceRegressor(random_state=seed).fit(X, y)
        gains.append(model.log_predictive_density(X_new, y_new).mean() - norm(y.mean(), y.std()).logpdf(y_new).mean())
        widths.append(model.predict_std(X_new).mean() / y.std())
    assert np.mean(gains) >= -0.02 and min(gains) >= -0.06
    assert 0.97 < np.mean(widths) < 1.05


@pytest.mark.parametrize(("n", "n_classes"), [(50, 2), (60, 3)])
def test_labels_at_random_cost_next_to_nothing(n, n_classes):
    """Over three data sets, log loss within 0.02 nats of that of the class frequencies."""
    gains = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X, X_new = rng.normal(size=(n, 5)), rng.normal(size=(2000, 5))
        y, y_new = rng.integers(n_classes, size=n), rng.integers(n_classes, size=2000)
        log_proba = LaplaceClassifier(random_state=seed).fit(X, y).predict_log_proba(X_new)
        frequencies = np.log(np.bincount(y, minlength=n_classes) / n)
        gains.append(log_proba[np.arange(2000), y_new].mean() - frequencies[y_new].mean())
    assert np.mean(gains) >= -0.02 and min(gains) >= -0.06


@pytest.mark.usefixtures("short_training")
def test_copies_of_all_rows_say_nothing_new():
    """Two or ten copies of each row, or a weight of ten for all rows: the same fit as for single rows."""
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:40], y[:40]
    model = LaplaceRegressor(hidden_layer_sizes=(10,), random_state=0)
    once = clone(model).fit(X, y)
    weighted = clone(model).fit(X, y, sample_weight=np.full(40, 10))
    copied = (clone(model).fit(np.repeat(X, n, axis=0), np.repeat(y, n)) for n in (2, 10))
    for other in (weighted, *copied):
        np.testing.assert_allclose(other.predict(X), once.predict(X), rtol=1e-6)
        np.testing.assert_allclose(other.predict_std(X), once.predict_std(X), rtol=1e-6)


@pytest.mark.usefixtures("short_training")
def test_rows_measured_again_count_again():
    """Equal inputs with different targets are repeated measurements, which keep their weights.

    So do all rows under a user-set noise level.
    """
    random = np.random.default_rng(0)
    X = np.repeat(random.normal(size=(20, 2)), 2, axis=0)
    y = X[:, 0] + 0.3 * random.normal(size=40)
    weights = np.tile([3.0, 1.0], 20)
    one = LaplaceRegressor(n_members=1, random_state=0)
    assert one.fit(X, y, sample_weight=weights).laplace_.total_weight == 80
    known_noise = one.set_params(sigma_noise=0.3).fit(X[::2], y[::2], sample_weight=weights[::2])
    assert known_noise.laplace_.total_weight == 60


@pytest.mark.usefixtures("short_training")
def test_rows_that_come_later_count_as_those_of_the_fit():
    """Weights of partial_fit are rescaled as those of fit, and forget undoes partial_fit."""
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 2))
    y = X[:, 0] + 0.3 * random.normal(size=60)
    weights = np.full(60, 4.0)
    model = LaplaceRegressor(hessian_structure="full", hidden_layer_sizes=(5,), random_state=0)
    model.fit(X, y, sample_weight=weights)
    before, total = model.predict_std(X), model.laplace_.total_weight
    model.partial_fit(X[:10], y[:10], weights[:10])
    assert model.laplace_.total_weight == pytest.approx(total + 10)
    model.forget(X[:10], y[:10], weights[:10])
    np.testing.assert_allclose(model.predict_std(X), before, rtol=1e-6)
