"""Missing numbers of new rows, in columns that had none in training."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.model_selection import GridSearchCV, cross_val_score

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.errors import TableWarning

NAN = float("nan")
SMALL = {"hidden_layer_sizes": (3,), "prior_precision": 1.0, "random_state": 0}
QUIET = pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.TableWarning")


def rows(n: int = 90, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Three columns, and a target with a slope of 3 in the first and none in the last."""
    rng = np.random.default_rng(seed)
    X = rng.gamma(4.0, 2.0, (n, 3))
    return X, 3 * X[:, 0] + np.sin(X[:, 1]) + 0.2 * rng.normal(size=n)


@pytest.fixture(scope="module")
def linear():
    """A linear net, whose prediction of a gap has a closed form."""
    X, y = rows()
    model = LaplaceRegressor(hidden_layer_sizes=(), prior_precision=1e-6, sigma_noise=0.5, n_members=1, random_state=0)
    return model.fit(X, y), X, y


@QUIET
def test_a_gap_is_predicted_with_mean_and_spread_of_its_column(linear):
    """For a linear net the mixture has the mean of the column, and the slope times its standard deviation."""
    model, X, _ = linear
    gap, at_mean = X[:1].copy(), X[:1].copy()
    gap[0, 0], at_mean[0, 0] = NAN, X[:, 0].mean()
    (mean,), (std,) = model.predict(gap, return_std=True)
    (expected,), (narrow,) = model.predict(at_mean, return_std=True)
    slope = model.predict(at_mean, return_mean_grad=True)[1][0]
    assert mean == pytest.approx(expected, abs=0.05 * slope * X[:, 0].std())  # 16 quantiles of a skewed column
    assert std == pytest.approx(np.hypot(narrow, slope * X[:, 0].std()), rel=0.1)
    assert model.predict(gap)[0] == pytest.approx(mean, rel=1e-9)


@QUIET
def test_gaps_of_several_columns_add_their_variances():
    """Columns are filled independently of each other."""
    X, y = rows()
    model = LaplaceRegressor(hidden_layer_sizes=(), prior_precision=1e-6, sigma_noise=0.1, n_members=1, random_state=0)
    model.fit(X, y + 2 * X[:, 2])
    first, last, both = (X[:1].copy() for _ in range(3))
    first[0, 0] = last[0, 2] = both[0, 0] = both[0, 2] = NAN
    one, other, joint = (float(model.predict_std(gap, kind="epistemic")[0]) for gap in (first, last, both))
    assert joint == pytest.approx(np.hypot(one, other), rel=0.2)


@QUIET
@pytest.mark.parametrize("options", [{"n_members": 1}, {"n_members": 2}, {"n_members": 1, "predictive": "mc"}])
def test_every_method_is_finite_and_wider_for_a_gap_and_unchanged_for_other_rows(options):
    """One mixture serves mean, standard deviation, draws, covariances and intervals."""
    X, y = rows()
    model = LaplaceRegressor(**SMALL, sigma_noise=0.3, **options).fit(X, y)
    new, gap = X[:5], X[:5].copy()
    gap[2, 0] = NAN
    rest = np.array([0, 1, 3, 4])
    mean, std = model.predict(gap, return_std=True)
    before, narrow = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean[rest], before[rest], rtol=1e-5)
    np.testing.assert_allclose(std[rest], narrow[rest], rtol=1e-4)
    assert std[2] > 3 * narrow[2]
    np.testing.assert_allclose(model.predict(gap), mean, rtol=1e-6)
    np.testing.assert_allclose(model.predict_dist(gap).std(), std, rtol=1e-6)
    covariance = model.predict(gap, return_cov=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-5)
    assert np.linalg.eigvalsh(covariance).min() > 0
    draws = model.sample_y(gap, 2000, random_state=1)
    assert draws[2].std() == pytest.approx(std[2], rel=0.15)
    scores = model.score_samples(gap)
    assert scores[2] < scores[rest].min()
    ends = model.predict_interval(gap, 0.9)[1]
    np.testing.assert_allclose(ends[2, 1] - ends[2, 0], 2 * norm.ppf(0.95) * std[2], rtol=0.1)


@QUIET
def test_noise_that_varies_and_counts_take_gaps():
    X, y = rows(150)
    gap = X[:4].copy()
    gap[0, 0], gap[1, 1] = NAN, NAN
    noisy = y + X[:, 0] * np.random.default_rng(0).normal(size=len(y))
    for likelihood, target in (("heteroscedastic", noisy), ("poisson", np.floor(y))):
        model = LaplaceRegressor(likelihood=likelihood, n_members=1, **SMALL).fit(X, target)
        std, before = (model.predict_std(new, kind="epistemic")[0] for new in (gap, X[:4]))
        assert std > 1.5 * before
        assert np.isfinite(model.predict_std(gap)).all()
        assert np.isfinite(model.sample_y(gap, 3)).all()


@QUIET
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_gap_lowers_the_confidence_of_a_classifier(n_classes):
    X, y = rows()
    labels = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))
    model = LaplaceClassifier(**SMALL, n_members=2).fit(X, labels)
    gap = X.copy()
    gap[:, 0] = NAN
    before, after = model.predict_proba(X), model.predict_proba(gap)
    assert after.max(1).mean() < before.max(1).mean() - 0.1
    np.testing.assert_allclose(after.sum(1), 1.0)
    for method in (model.predict_std, model.predict_entropy, model.score_samples, model.sample_y):
        assert np.isfinite(method(gap)).all()


def test_one_warning_lists_all_columns_with_new_gaps(linear):
    model, X, y = linear
    gap = X[:4].copy()
    gap[0, 0] = gap[1, 2] = gap[2, 2] = NAN
    with pytest.warns(TableWarning, match="missing numbers in column 0, column 2, where no training row") as issued:
        model.predict(gap)
    assert len(issued) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", TableWarning)
        X = np.where(np.arange(len(X))[:, None] % 9 == np.array([9, 9, 0]), NAN, X)
        LaplaceRegressor(**SMALL, sigma_noise=3.0).fit(X, y).predict(X)


@QUIET
def test_one_gap_leaves_no_score_of_a_search_undefined():
    """The gap is in a single fold, so that the training rows of the others have it and those of this one have not."""
    X, y = rows(60)
    X[17, 1] = NAN
    model = LaplaceRegressor(**SMALL, sigma_noise=0.3)
    search = GridSearchCV(model, {"prior_precision": [0.1, 1.0]}, cv=3, error_score="raise").fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


EACH_KIND = (10, 11, 12, 16, 17, 19, 20, 21, 22, 23, 24, 25, 27, 29, 30, 31, 32, 36, 37, 39, 40, 46, 58, 64, 65, 71, 72)
EACH_KIND += (75, 78, 100, 103, 110, 136, 152, 155, 164)
"""Seeds that give, with the first ten, a gap in each kind of column, alone or beside others, with and without text."""


def table_with_a_gap(seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Numbers, integers, booleans, times and text; one numeric column has a single gap."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(12, 25)), int(rng.integers(1, 4))
    kinds = [
        lambda: rng.normal(size=n) * 10.0 ** rng.integers(-6, 7),
        lambda: np.exp(3 * rng.normal(size=n)),
        lambda: rng.integers(0, 3, n).astype(float),
        lambda: pd.Series(pd.Timestamp("2001-03-04") + pd.to_timedelta(rng.integers(0, 900, n), unit="h")),
        lambda: pd.Series(rng.random(n) > 0.5).astype("boolean"),
        lambda: pd.Series(rng.integers(0, 9, n)).astype("Int64"),
    ]
    table = pd.DataFrame({f"c{k}": kinds[rng.integers(len(kinds))]() for k in range(d)})
    table.iloc[int(rng.integers(n)), int(rng.integers(d))] = None
    if rng.random() < 0.4:
        table["word"] = rng.choice(["a", "b"], n)
    return table, rng.normal(size=n)


@QUIET
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("seeds", [range(10), EACH_KIND], ids=["few", "many"])
def test_no_score_of_a_table_with_a_gap_is_nan(seeds):
    for seed in seeds:
        table, y = table_with_a_gap(seed)
        kind, target = (LaplaceRegressor, y) if seed % 2 else (LaplaceClassifier, (y > np.median(y)).astype(int))
        options = {"sigma_noise": 0.5} if seed % 2 else {}
        model = kind(**SMALL, n_members=1, **options)
        assert np.isfinite(cross_val_score(model, table, target, cv=2, error_score="raise")).all(), seed
