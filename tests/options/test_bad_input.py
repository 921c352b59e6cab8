"""Wrong arguments of every method: the error states the given and the expected value, and the fit is unchanged."""

from __future__ import annotations

import nets
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save
from sklearn_laplace.errors import TableWarning
from sklearn_laplace.options import LowRank, MCFisher, Members, MonteCarlo

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(37)
X = RNG.normal(size=(30, 3))
Y = X[:, 0] + 0.1 * RNG.normal(size=30)
LABELS = np.where(Y > 0, "up", "down")
SMALL = nets.QUICK
OF_ROWS = {
    "predict": (),
    "predict_std": (),
    "score_samples": (),
    "sample_y": (),
    "partial_fit": (Y,),
    "forget": (Y,),
    "log_predictive_density": (Y,),
}
UPDATES = "partial_fit", "forget"
OF_REGRESSORS = {"predict_dist": (), "predict_interval": (), "predict_quantiles": ()}
OF_CLASSIFIERS = {"predict_proba": (), "predict_log_proba": (), "predict_entropy": ()}


@pytest.fixture(scope="module")
def fitted():
    return LaplaceRegressor(**SMALL).fit(X, Y), LaplaceClassifier(**SMALL).fit(X, LABELS)


def calls(rows):
    """Each method of the regressor (0) and the classifier (1), with its arguments for these rows."""
    for kind, methods in ((0, OF_REGRESSORS), (1, OF_CLASSIFIERS)):
        for method, targets in {**OF_ROWS, **methods}.items():
            labels = [LABELS] if kind and targets else list(targets)
            yield kind, method, (rows, *labels)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (X[:, :2], ValueError, "X has 2 features, but Laplace.* is expecting 3 features"),
        (X[0], ValueError, "Expected 2D array, got 1D array"),
        (X[:0], ValueError, r"Found array with 0 sample\(s\)"),
        (np.abs(X) * np.inf, ValueError, "Input X contains infinity"),
        (np.full(X.shape, "a"), ValueError, "could not convert string to float"),
        (X + 1j, ValueError, "Complex data not supported"),
        (X[None], ValueError, "Found array with dim 3"),
        (csr_matrix(X), TypeError, "Sparse data was passed for X, but dense data is required"),
    ],
    ids=["columns", "1d", "empty", "inf", "text", "complex", "3d", "sparse"],
)
def test_every_method_validates_its_rows(fitted, rows, error, message):
    """scikit-learn's own messages; the fitted model predicts as before."""
    before = [model.predict_std(X[:4]) for model in fitted]
    for kind, method, arguments in calls(rows):
        with pytest.raises(error, match=message):
            getattr(fitted[kind], method)(*arguments)
    for model, std in zip(fitted, before, strict=True):
        np.testing.assert_array_equal(model.predict_std(X[:4]), std)


def test_names_of_columns_are_checked():
    """A data frame with swapped columns is rejected by every method."""
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    models = (
        LaplaceRegressor(**SMALL).fit(frame, Y),
        LaplaceClassifier(**SMALL).fit(frame, LABELS),
    )
    for kind, method, arguments in calls(frame[["b", "a", "c"]]):
        with pytest.raises(ValueError, match=r"feature names should match|must be in the same order"):
            getattr(models[kind], method)(*arguments)


def test_nothing_answers_before_the_fit():
    """Every method except fit and partial_fit raises NotFittedError."""
    models = LaplaceRegressor(), LaplaceClassifier()
    for kind, method, arguments in calls(X):
        if method != "partial_fit":
            with pytest.raises(NotFittedError, match="is not fitted yet"):
                getattr(models[kind], method)(*arguments)
    for model in models:
        for method in (model.log_marginal_likelihood, model.refit_laplace):
            with pytest.raises(NotFittedError):
                method()
    with pytest.raises(NotFittedError):
        _ = models[0].sigma_noise_


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (-np.ones(30), "sample_weight holds -1.0 in row 0; weights have to be finite and not negative"),
        (np.ones(3), "sample_weight has 3 entries for 30 rows of X; pass one for each row"),
        (np.full(30, np.nan), "sample_weight holds nan in row 0"),
        (np.full(30, 1e15), r"sample_weight sums to 3.0e\+16.*Divide all weights by their mean"),
        (np.full(30, 1e308), r"the largest sample_weight is 1e\+308.*divide all weights by their mean"),
        (np.zeros(30), "at least one (non-zero number|row needs a positive weight)|zero for every row"),
    ],
)
def test_weights_are_checked_wherever_they_are_taken(fitted, weights, message):
    """In fit, partial_fit and forget."""
    for method in (LaplaceRegressor().fit, fitted[0].partial_fit, fitted[0].forget):
        with pytest.raises(ValueError, match=message):
            method(X, Y, sample_weight=weights)


MASK = np.arange(30) == 7
MASKED_X = np.ma.array(X, mask=np.arange(90).reshape(30, 3) % 31 == 0)


def test_masked_values_of_X_are_missing_ones(fitted):
    """Masked numbers and categories count as missing, also where the training rows had none."""
    missing = MASKED_X.filled(np.nan)
    model = LaplaceRegressor(sigma_noise=0.1, **SMALL).fit(MASKED_X, Y)
    expected = LaplaceRegressor(sigma_noise=0.1, **SMALL).fit(missing, Y)
    np.testing.assert_array_equal(model.predict_std(MASKED_X), expected.predict_std(missing))
    integers = np.ma.array(np.rint(3 * X).astype(int), mask=MASKED_X.mask)
    model = LaplaceRegressor(sigma_noise=0.1, **SMALL).fit(integers, Y)
    np.testing.assert_array_equal(model.predict(integers), model.predict(integers.astype(float).filled(np.nan)))
    words = np.ma.array(np.column_stack([LABELS, LABELS[::-1]]), mask=MASKED_X.mask[:, :2])
    model = LaplaceRegressor(sigma_noise=0.1, **SMALL).fit(words, Y)
    np.testing.assert_array_equal(model.predict(words), model.predict(np.where(words.mask, None, words.data)))
    for kind, method, arguments in calls(MASKED_X):
        if method in UPDATES:
            with pytest.raises(ValueError, match="Input X contains NaN in column 0"):
                getattr(fitted[kind], method)(*arguments)
        else:
            with pytest.warns(TableWarning, match="missing numbers in column 0"):
                getattr(fitted[kind], method)(*arguments)
    unmasked = np.ma.array(X, mask=False)
    np.testing.assert_array_equal(fitted[0].predict(unmasked), fitted[0].predict(X))


def test_masked_values_are_refused_where_a_value_is_needed(fitted):
    """In targets, weights and noise variances of each method, and in X for a user's net."""
    targets, labels, weights = (np.ma.array(values, mask=MASK) for values in (Y, LABELS, np.ones(30)))
    message = "is a masked array with 1 masked value, the first in row 7; every row needs a value. Drop these rows"
    for method in ("fit", "partial_fit", "forget", "log_predictive_density"):
        for model, y in zip(fitted, (targets, labels), strict=True):
            with pytest.raises(ValueError, match=f"y {message}"):
                getattr(model, method)(X, y)
    with pytest.raises(ValueError, match=f"sample_weight {message}"):
        LaplaceClassifier().fit(X, LABELS, sample_weight=weights)
    with pytest.raises(ValueError, match=f"sample_noise_variance {message}"):
        LaplaceRegressor().fit(X, Y, sample_noise_variance=weights)
    model = LaplaceRegressor(nets.regressor(max_epochs=2), random_state=0)
    with pytest.raises(ValueError, match=r"X is a masked array with 3 masked values, the first in row 0.*use net=None"):
        model.fit(MASKED_X, Y)


def test_a_frozen_net_has_to_be_a_fitted_one_of_the_datas_width():
    """The error comes before any computation and states an alternative."""
    net = nets.regressor(module__n_in=3, max_epochs=1)
    with pytest.raises(NotFittedError, match="has not been fitted; fit it first, or pass it without FrozenEstimator"):
        LaplaceRegressor(FrozenEstimator(net)).fit(X, Y)
    net.fit(X.astype(np.float32), Y[:, None].astype(np.float32))
    with pytest.raises(TypeError, match=r"FrozenEstimator\(LaplaceRegressor\(…\)\) is not supported; freeze a fitted"):
        LaplaceRegressor(FrozenEstimator(LaplaceRegressor())).fit(X, Y)
    with pytest.raises(ValueError, match=r"does not accept inputs of shape \(n, 2\).*equal the number of columns of X"):
        LaplaceRegressor(FrozenEstimator(net)).fit(X[:, :2], Y)
    with pytest.raises(
        ValueError, match=r"returned \(2, 1\) for 2 rows; expected \(2, 2\): one column for each target"
    ):
        LaplaceRegressor(FrozenEstimator(net)).fit(X, np.column_stack([Y, Y]))
    with pytest.raises(ValueError, match="lr cannot be used with a frozen net, which is not trained"):
        LaplaceRegressor(FrozenEstimator(net), lr=0.1).fit(X, Y)


def test_declared_classes_are_checked():
    """At least two classes are needed, and they must include all labels of y."""
    with pytest.raises(ValueError, match="classes holds one class only, 'up'"):
        LaplaceClassifier().partial_fit(X, LABELS, classes=["up"])
    with pytest.raises(ValueError, match=r"labels \['down'\], which are not among the classes \['sideways', 'up'\]"):
        LaplaceClassifier().partial_fit(X, LABELS, classes=["up", "sideways"])


def test_a_fit_that_fails_leaves_the_last_one():
    """The previous fit is unchanged."""
    model = LaplaceRegressor(**SMALL).fit(X, Y)
    before = model.predict_std(X[:5])
    for broken in ({"y": Y[:5]}, {"y": np.full(30, np.nan)}, {"y": Y, "sample_weight": np.zeros(30)}):
        with pytest.raises(ValueError, match=r".+"):
            model.fit(X, **broken)
        np.testing.assert_array_equal(model.predict_std(X[:5]), before)


@pytest.mark.parametrize("value", ["yes", [True, False], np.ones(2), None, 2])
def test_a_flag_is_true_or_false(fitted, value):
    """The error names the argument, unlike numpy's error for the truth value of an array."""
    with pytest.raises(ValueError, match=r"return_std=.* has to be True or False"):
        fitted[0].predict(X, return_std=value)
    with pytest.raises(ValueError, match=r"return_std=.* has to be True or False"):
        fitted[0].loo_predict(return_std=value)


@pytest.mark.parametrize("options", [{"max_epochs": 2**70}, {"batch_size": 2**70}, {"n_members": 2**70}])
def test_no_count_is_longer_than_an_array(options):
    """Counts are bounded: 2**70 epochs would never end."""
    with pytest.raises(ValueError, match=rf"{next(iter(options))}=.* has to be .*at most 2147483647"):
        LaplaceRegressor(**options).fit([[0.0], [1.0]], [0.0, 1.0])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"predictive": MonteCarlo(2**70)}, "n_samples"),
        ({"curvature": MCFisher(2**70)}, "n_samples of MCFisher"),
        ({"hessian_structure": LowRank(2**70)}, "rank"),
        ({"n_members": Members(2**70)}, "n_members"),
    ],
)
def test_no_count_of_an_option_object_is_longer_than_an_array(options, name):
    """The counts of option objects have the same bound."""
    with pytest.raises(ValueError, match=rf"{name}=.* has to be .*at most 2147483647"):
        LaplaceRegressor(**options).fit([[0.0], [1.0]], [0.0, 1.0])


@pytest.mark.parametrize("path", [3, "", None, ["a"], "a\0b"])
def test_a_path_is_the_name_of_a_file(fitted, path):
    """Nothing is written or read."""
    for call in (lambda: save(fitted[0], path), lambda: load(path)):
        with pytest.raises(ValueError, match=r"path=.* has to be the name of a file"):
            call()
