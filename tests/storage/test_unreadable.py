"""Targets, labels, weights and tables that cannot be used: the error names the row, column or type."""

from __future__ import annotations

import datetime
import enum
import re
from decimal import Decimal
from fractions import Fraction

import nets
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.options import GaussianPrior

RNG = np.random.default_rng(41)
N = 24
X = RNG.normal(size=(N, 2))
Y = X[:, 0] + 0.1 * RNG.normal(size=N)
LABELS = np.where(Y > 0, "up", "down")
CODES = (Y > 0).astype(int)
SMALL = nets.QUICK
HUGE = 10**400


def regressor(**options):
    return LaplaceRegressor(**{**SMALL, "sigma_noise": 0.1, **options})


def classifier(**options):
    return LaplaceClassifier(**{**SMALL, **options})


@pytest.fixture(scope="module")
def fitted():
    return regressor().fit(X, Y), classifier().fit(X, LABELS)


def replaced(values, value, row=3):
    """A copy as an object array, with another value in one row."""
    cells = np.empty(len(values), dtype=object)
    cells[:] = list(values)
    cells[row] = value
    return cells


def refuses(model, message, *arguments, error=ValueError, methods=("fit", "partial_fit", "forget"), **more):
    """Each method raises the error, and the model predicts as before."""
    before = model.predict(X)
    for method in methods:
        with pytest.raises(error, match=message):
            getattr(model, method)(*arguments, **more)
    np.testing.assert_array_equal(model.predict(X), before)


# ---------------------------------------------------------------------- targets

TAKING_Y = ("fit", "partial_fit", "forget", "log_predictive_density", "score")


@pytest.mark.parametrize(
    "y",
    [
        *(replaced(Y, value) for value in (None, pd.NA, pd.NaT, np.nan)),
        replaced(Y, None).tolist(),
        pd.Series(replaced(Y, None), dtype="Float64"),
        pd.Series(replaced(CODES, None), dtype="Int64"),
        pd.Series(replaced(Y, None), dtype=float),
        pd.Series(replaced(Y, pd.NA), dtype=object),
        pl.Series(replaced(Y, None).tolist()),
        pd.DataFrame({"y": replaced(Y, None)}),
    ],
    ids=["None", "NA", "NaT", "NaN", "list", "Float64", "Int64", "float64", "series", "polars", "frame"],
)
def test_a_missing_number_is_named_by_its_row(fitted, y):
    """numpy's conversion does not name the row, or creates a NaN that fails later."""
    message = r"Input y contains \S+: 1 of 24 values missing, the first in row 3. Drop these rows, or impute"
    refuses(fitted[0], message, X, y, methods=TAKING_Y)


@pytest.mark.parametrize(
    "y",
    [
        *(replaced(LABELS, value) for value in (None, pd.NA, pd.NaT, np.nan)),
        replaced(LABELS, np.nan).tolist(),
        replaced(CODES, None).tolist(),
        replaced(CODES, np.nan).astype(float),
        *(pd.Series(replaced(LABELS, None), dtype=dtype) for dtype in ("string", "str", "category", object)),
        pd.Series(replaced(CODES, None), dtype="Int64"),
        pd.Series(replaced(CODES.astype(bool), None), dtype="boolean"),
        pl.Series(replaced(LABELS, None).tolist()),
        pl.Series(replaced(LABELS, None).tolist(), dtype=pl.Categorical),
        pl.Series(replaced(CODES.astype(bool), None).tolist()),
    ],
)
def test_a_missing_label_is_named_by_its_row(fitted, y):
    """Otherwise NaN would be a class, and None would fail in a comparison."""
    message = r"Input y contains \S+: 1 of 24 values missing, the first in row 3. Drop these rows, or impute"
    refuses(fitted[1], message, X, y, methods=TAKING_Y)


def test_a_missing_class_is_refused():
    """In the argument ``classes`` of partial_fit."""
    for first in (LABELS, LABELS[:1]):
        with pytest.raises(ValueError, match=r"Input classes contains None: .*row 2. Pass only the known classes"):
            classifier().partial_fit(X[: len(first)], first, classes=["up", "down", None])


@pytest.mark.parametrize(
    ("values", "types"),
    [
        ([1, "a", 2.0], "int and str, such as 1 and 'a'"),
        ([True, "yes"], "bool and str, such as True and 'yes'"),
        ([1, b"a"], "int and bytes, such as 1 and b'a'"),
        (["a", b"b"], "str and bytes, such as 'a' and b'b'"),
    ],
)
def test_labels_of_several_types_are_refused(fitted, values, types):
    """numpy converts a mixed list to strings, and cannot sort a mixed object array."""
    labels = (values * N)[:N]
    for y in (labels, replaced(labels, labels[3]), pd.Series(labels, dtype=object)):
        refuses(
            fitted[1], rf"y holds labels of the types {types}. Convert all of them to strings", X, y, methods=TAKING_Y
        )


@pytest.mark.parametrize(
    "value", [pd.Interval(0, 1), pd.Period("2020"), datetime.date(2020, 1, 1), {"a": 1}, (1, 2), object, 1j]
)
def test_labels_are_strings_or_numbers(fitted, value):
    """scikit-learn's error is "Unknown label type"."""
    y = np.empty(N, dtype=object)
    y[:] = [value] * N
    refuses(fitted[1], "y holds labels of the type .*; expected strings, whole numbers or bool", X, y, methods=TAKING_Y)


@pytest.mark.parametrize("kind", [int, bool, float, Decimal, np.int8, np.bool_])
def test_labels_of_dtype_object_are_numbers_where_all_are(kind):
    """The same classes and predictions as with a numeric array."""
    expected = classifier().fit(X, CODES)
    y = replaced([kind(code) for code in CODES.tolist()], kind(CODES.tolist()[3]))
    model = classifier().fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), expected.predict_proba(X))
    np.testing.assert_array_equal(model.classes_, [0, 1])
    assert model.score(X, y) == expected.score(X, CODES)


def test_labels_of_another_kind_than_the_classes_are_refused(fitted):
    """Otherwise the density would be zero, or a TypeError would be raised."""
    message = "y holds labels such as [01], and the classes are strings such as 'down'. Pass labels of the same type"
    refuses(fitted[1], message, X, CODES, methods=("partial_fit", "forget", "log_predictive_density"))


# ---------------------------------------------------------------------- weights


@pytest.mark.parametrize(
    "weights",
    [np.where(np.arange(N) % 2, 1e-300, 1e300), np.full(N, 1e-300), np.full(N, 1e300), np.full(N, 1e31)],
    ids=["both", "tiny", "huge", "large"],
)
def test_weights_have_a_range(fitted, weights):
    """Squares and products of weights outside of it would overflow."""
    message = r"the largest sample_weight is 1e\S+; expected 1e-100 to 1e\+15.*divide all weights by their mean"
    for model, y in zip(fitted, (Y, LABELS), strict=True):
        refuses(model, message, X, y, sample_weight=weights)


def test_a_weight_of_a_class_has_the_same_range():
    """The class weight multiplies the sample weight."""
    with pytest.raises(ValueError, match=r"the largest sample_weight times class_weight is 1e\+200; expected"):
        classifier(class_weight={"up": 1e200}).fit(X, LABELS)
    weights = np.where(LABELS == "up", 1.0, 5e-324)
    with pytest.raises(ValueError, match="y holds one class only, 'up'"):
        classifier(class_weight="balanced").fit(X, LABELS, sample_weight=weights)


def test_a_weight_far_below_the_others_is_none():
    """The row is ignored, as with weight zero."""
    weights = np.where(np.arange(N) < 4, 1e-300, 1.0)
    expected = regressor().fit(X, Y, sample_weight=np.where(np.arange(N) < 4, 0.0, 1.0)).predict(X, return_std=True)
    np.testing.assert_allclose(regressor().fit(X, Y, sample_weight=weights).predict(X, return_std=True), expected)


# ---------------------------------------------------------------------- tables


def once():
    yield from X


FRAME = pd.DataFrame(X, columns=["a", "b"])
NO_ROWS = {
    "LazyFrame": (lambda: pl.DataFrame({"a": Y, "b": Y}).lazy(), "is a LazyFrame, .* Pass {}.collect()"),
    "generator": (once, "is of type generator, which can be read only once. Pass list({})"),
    "zip": (lambda: zip(X, Y, strict=True), "is of type zip, which can be read only once"),
    "dict": (lambda: {"a": Y, "b": Y}, "is of type dict. Pass an array, or a dataframe such as pandas.DataFrame({})"),
    "str": (lambda: "table.csv", "{}='table.csv' is of type str. Pass a list, an array or a dataframe"),
    "set": (lambda: {1.0, 2.0}, "is of type set. Pass a list"),
    "GroupBy": (
        lambda: FRAME.groupby("a"),
        "is of type DataFrameGroupBy, which holds no rows. Pass the resulting table",
    ),
    "Rolling": (lambda: FRAME.rolling(2), "is of type Rolling, which holds no rows. Pass the resulting table"),
    "function": (lambda: once, "is of type function, which holds no rows"),
    "values": (lambda: {"a": 1.0}.values(), "is of type dict_values, which holds no rows"),
}


@pytest.mark.parametrize(("make", "message"), NO_ROWS.values(), ids=NO_ROWS)
def test_what_holds_no_rows_is_refused(fitted, make, message):
    """As X and as y: the error states the type and what to pass instead."""
    expected = [message.format(name).replace("(", r"\(").replace(")", r"\)") for name in ("X", "y")]
    for model in fitted:
        for method in (model.fit, model.partial_fit, model.forget):
            with pytest.raises(TypeError, match=expected[0]):
                method(make(), Y if model is fitted[0] else LABELS)
            with pytest.raises(TypeError, match=expected[1]):
                method(X, make())
        for method in (model.predict, model.predict_std):
            with pytest.raises(TypeError, match=expected[0]):
                method(make())


class Broken:
    """An array of another library, on a device that numpy cannot read."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("the array is on another device")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Broken(), r"X is of type Broken, which numpy cannot read \(the array is on another device\)"),
        (torch.zeros(N, 2, device="meta"), "X is of type Tensor, which numpy cannot read"),
        (torch.eye(N, 2).to_sparse(), "X is of type Tensor, which numpy cannot read"),
    ],
    ids=["broken", "meta", "sparse"],
)
def test_what_numpy_cannot_read_is_refused(fitted, given, message):
    """The error includes numpy's message."""
    refuses(fitted[0], message, given, Y, error=TypeError)
    with pytest.raises(TypeError, match=message):
        fitted[0].predict(given)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tensors_are_arrays(dtype):
    """Also with requires_grad, and of a dtype that numpy does not have."""
    x, y = torch.tensor(X).to(dtype).requires_grad_(), torch.tensor(Y).to(dtype).requires_grad_()
    as_arrays = x.detach().double().numpy(), y.detach().double().numpy()
    expected = regressor().fit(*as_arrays).predict(as_arrays[0])
    np.testing.assert_allclose(regressor().fit(x, y).predict(x), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("column", "kind"),
    [(pl.Series([{"x": 1.0}] * N), "Struct"), (pl.Series([[1.0, 2.0]] * N, dtype=pl.Array(pl.Float64, 2)), "Array")],
    ids=["struct", "array"],
)
def test_a_column_with_several_values_in_each_row_is_refused(fitted, column, kind):
    """The polars types struct and array."""
    table = pl.DataFrame({"a": column, "b": Y})
    refuses(
        fitted[0],
        rf"column 'a' of X has the data type {kind}.*Split it into one column per value",
        table,
        Y,
        error=TypeError,
    )


def test_a_series_of_objects_is_no_table(fitted):
    """The error is about the dimension, not the dtype."""
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array instead"):
        fitted[0].predict(pl.Series([object()] * N, dtype=pl.Object))


# ---------------------------------------------------------------------- numbers


def test_a_number_beyond_float64_is_named_by_its_place(fitted):
    """Python's OverflowError does not name the column."""
    rows = X.tolist()
    rows[2][1] = HUGE
    frame = pd.DataFrame(rows, dtype=object)
    for table in (rows, frame, frame.assign(c=LABELS).to_numpy()):
        refuses(fitted[0], "column 1 of X holds 10{9,}.*too large for dtype.*another unit", table, Y, methods=("fit",))
    with pytest.raises(ValueError, match=r"column 1 of X holds 10{9,}.*too large"):
        fitted[0].predict(rows)
    refuses(fitted[0], "y in row 3 holds 10{9,}.*too large", X, replaced(Y, HUGE), methods=TAKING_Y)
    message = "y holds the label 10{9,}.*Convert the labels to strings"
    refuses(fitted[1], message, X, replaced(CODES, HUGE), methods=TAKING_Y)
    weights = [HUGE, *[1] * (N - 1)]
    refuses(fitted[0], "sample_weight in row 0 holds 10{9,}.*too large", X, Y, sample_weight=weights)
    refuses(fitted[0], "sample_noise_variance in row 0 holds 10{9,}", X, Y, sample_noise_variance=weights)
    with pytest.raises(ValueError, match=r"class_weight holds 10{9,}.*too large"):
        classifier(class_weight={"up": HUGE}).fit(X, LABELS)


def test_a_given_net_is_told_of_the_column():
    """A user's net takes only numbers; the error is the same."""
    rows = X.tolist()
    rows[2][1] = HUGE
    with pytest.raises(ValueError, match=r"column 1 of X holds 10{9,}.*too large"):
        LaplaceRegressor(torch.nn.Linear(2, 1)).fit(rows, Y)


@pytest.mark.parametrize(
    "option",
    ["lr", "map_prior_precision", "memory_budget", "prior", "prior_precision", "sigma_noise", "temperature"],
)
def test_a_parameter_beyond_float64_is_named(option):
    """Also integers with more digits than Python prints."""
    for value in (HUGE, 10**5000):
        with pytest.raises(ValueError, match=rf"{option}=(10{{9,}}|a int with thousands of digits).* has to be"):
            regressor(**{option: GaussianPrior(mean=value) if option == "prior" else value}).fit(X, Y)


def test_other_numbers_that_are_too_large_are_named(fitted):
    """Layer sizes, seeds, levels and hyperparameters."""
    for sizes in ((HUGE,), (2**62,), (2**31,)):
        with pytest.raises(ValueError, match=r"hidden_layer_sizes=\(\d+.* has to be .* at most 1000000"):
            regressor(hidden_layer_sizes=sizes).fit(X, Y)
    for seed in (HUGE, -1, 2**32):
        with pytest.raises(ValueError, match=r"random_state=-?\d+.* has to be None, a whole number from 0 to 2\*\*32"):
            regressor(random_state=seed).fit(X, Y)
    model = fitted[0]
    for call in (
        lambda: model.predict_interval(X, confidence_level=HUGE),
        lambda: model.predict_quantiles(X, quantiles=[0.5, HUGE]),
    ):
        with pytest.raises(ValueError, match="has to hold numbers strictly between 0 and 1"):
            call()
    for option in ("prior_precision", "sigma_noise", "temperature"):
        with pytest.raises(ValueError, match=rf"{option}=10{{9,}}.* has to be a finite number"):
            model.log_marginal_likelihood(**{option: HUGE})
    with pytest.raises(ValueError, match=r"X_std=10{9,}"):
        model.predict_std(X, X_std=HUGE)


@pytest.mark.parametrize("kind", [Decimal, Fraction])
def test_exact_numbers_are_numbers(kind):
    """In X, y and weights, with the value of float(...)."""
    numbers = np.round(X, 3), np.round(Y, 3), np.arange(1.0, N + 1)
    exact = [np.vectorize(lambda value: kind(str(value)), otypes=[object])(part) for part in numbers]
    expected = regressor().fit(*numbers)
    for table in (exact[0], exact[0].tolist(), pd.DataFrame(exact[0])):
        model = regressor().fit(table, *exact[1:])
        np.testing.assert_array_equal(model.predict(table), expected.predict(numbers[0]))
    assert model.score(exact[0], exact[1]) == expected.score(*numbers[:2])


def test_decimals_may_be_missing_categories_and_of_polars():
    """Decimals are treated like floats."""
    column = [Decimal(f"{(k % 3) / 2:.1f}") for k in range(N)]
    for table in (pl.DataFrame({"a": column}), pd.DataFrame({"a": column})):
        for options in ({}, {"categorical_features": ["a"]}):
            floats = pd.DataFrame({"a": map(float, column)})
            expected = regressor(**options).fit(floats, Y)
            model = regressor(**options).fit(table, Y)
            np.testing.assert_array_equal(
                model.predict(table), expected.predict(pd.DataFrame({"a": map(float, column)}))
            )
    column[2] = Decimal("NaN")
    assert np.isfinite(regressor().fit(pd.DataFrame({"a": column}), Y).predict(pd.DataFrame({"a": column}))).all()


# ---------------------------------------------------------------------- times

DAYS = pd.Series(pd.date_range("2026-01-01", periods=N))
ZONED = DAYS.dt.tz_localize("UTC")


@pytest.mark.parametrize("library", [pd, pl])
def test_times_with_and_without_a_zone_do_not_mix(library):
    """They differ by an unknown number of hours."""

    def table(days):
        return pd.DataFrame({"when": days}) if library is pd else pl.DataFrame({"when": days.to_numpy()})

    naive, zoned = table(DAYS), table(DAYS if library is pl else ZONED)
    if library is pl:
        zoned = zoned.with_columns(pl.col("when").dt.replace_time_zone("UTC"))
    for first, second, words in ((naive, zoned, ("with", "without")), (zoned, naive, ("without", "with"))):
        model = regressor().fit(first, Y)
        expected = model.predict(first)
        message = (
            rf"column 'when' of X holds times {words[0]} a time zone, and the training rows had times {words[1]} a"
        )
        for call in (lambda: model.predict(second), lambda: model.partial_fit(second, Y)):  # noqa: B023
            with pytest.raises(
                ValueError, match=message + r" time zone. Convert both to UTC, .*to_datetime\(column, utc=T"
            ):
                call()
        np.testing.assert_array_equal(model.predict(first), expected)
    np.testing.assert_allclose(regressor().fit(zoned, Y).predict(zoned), regressor().fit(naive, Y).predict(naive))


def test_a_column_of_times_of_both_kinds_is_refused():
    """A mixed column has dtype object in pandas."""
    mixed = pd.Series([*DAYS[:5], *ZONED[5:]], dtype=object)
    for table in (pd.DataFrame({"when": mixed}), [[value] for value in mixed]):
        with pytest.raises(
            ValueError, match=r"column (0|'when') of X holds times with and without a time zone. Convert"
        ):
            regressor().fit(table, Y)
    with pytest.raises(ValueError, match=re.escape("y holds values such as Timestamp(")):
        regressor().fit(X, mixed)


# ---------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            [[1.0, 2.0]] * 3 + [[1.0]] + [[1.0, 2.0]] * (N - 4),
            "row 3 of X has 1 values, and row 0 has 2. Make all rows",
        ),
        (
            [["a", 2.0]] * 3 + [["a"]] + [["a", 2.0]] * (N - 4),
            "row 3 of X has 1 values, and row 0 has 2. Make all rows",
        ),
        (np.zeros(N, dtype=[("a", float), ("b", float)]), "X is a structured array. Pass its fields as columns"),
        (
            np.zeros(N, dtype=[("a", float), ("b", int)]).view(np.recarray),
            "X is a structured array. Pass its fields as columns",
        ),
        (
            [{"a": 1.0}] * N,
            r"Expected 2D array, got 1D array instead: X is a list of dicts. Pass pandas.DataFrame\(X\)",
        ),
        (["a"] * N, r"Expected 2D array, got 1D array instead: X has the shape \(24,\)"),
        (np.full((N, 2, 2), "a"), r"Expected 2D array, got 3D array instead: X has the shape \(24, 2, 2\)"),
        ((X + 1j).tolist(), "Complex data not supported. Pass the real and imaginary"),
        (FRAME[[]], r"Found array with 0 feature\(s\)"),
        (pd.DataFrame(), r"Found array with 0 feature\(s\)"),
    ],
)
def test_the_shape_is_to_blame(fitted, table, message):
    """numpy's error names the element that it could not convert instead of the shape."""
    refuses(fitted[0], message, table, Y)
    with pytest.raises(ValueError, match=message):
        fitted[0].predict(table)


@pytest.mark.skipif(not hasattr(pl, "Int128"), reason="of newer polars")
def test_a_data_type_that_numpy_has_not_is_refused(fitted):
    """The error names the column and suggests a cast."""
    table = pl.DataFrame({"a": pl.Series([2**100, 1] * (N // 2), dtype=pl.Int128), "b": Y})
    message = "column 'a' of X has the data type Int128, which numpy cannot read .* Cast it to numbers or strings"
    refuses(fitted[0], message, table, Y, error=TypeError)


def test_times_out_of_range_are_refused():
    """Times more than 290,000 years from 1970 would overflow."""
    years = np.array([["1000000"], ["2000000"]] * (N // 2), dtype="M8[Y]")
    with pytest.raises(ValueError, match="X holds times more than 290,000 years from 1970"):
        regressor().fit(years, Y)


# ---------------------------------------------------------------------- other types


class Colour(str, enum.Enum):  # noqa: UP042  # numpy and str() convert members to their names
    RED = "red"
    BLUE = "blue"


def test_an_enum_of_strings_is_its_values():
    """As labels and as categories, in lists and data frames."""
    members, values = [Colour.RED, Colour.BLUE] * (N // 2), ["red", "blue"] * (N // 2)
    expected, model = (classifier().fit(X, y) for y in (values, members))
    np.testing.assert_array_equal(model.classes_, ["blue", "red"])
    np.testing.assert_array_equal(model.predict_proba(X), expected.predict_proba(X))
    assert model.score(X, members) == expected.score(X, values)
    for make in (list, pd.DataFrame):
        levels, same = (make([[value] for value in column]) for column in (members, values))
        np.testing.assert_array_equal(
            regressor().fit(levels, Y).predict(levels), regressor().fit(same, Y).predict(levels)
        )
        assert np.ptp(regressor().fit(levels, CODES).predict(levels)) > 0


def test_nullable_labels_keep_their_type():
    """Integers and booleans do not become floats."""
    assert classifier().fit(X, pd.Series(CODES, dtype="Int64")).classes_.dtype.kind == "i"
    assert classifier().fit(X, pd.Series(CODES.astype(bool), dtype="boolean")).predict(X).dtype.kind == "b"


def test_sparse_targets_are_refused(fitted):
    """scipy's error says that their length is ambiguous."""
    for model in fitted:
        refuses(model, "Sparse data was passed for y, but dense", X, csr_matrix(Y[:, None]), error=TypeError)


def test_a_noise_of_another_order_than_the_targets_is_refused():
    """Its square in the units of the scaled targets would overflow."""
    with pytest.raises(ValueError, match=r"sigma_noise=0.1 is \d+e\+\d+ times the scale of y.*in the units of y"):
        regressor().fit(X, 1e-300 * Y)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (pd.Period("2020"), TypeError, "column 'b' of X holds Period.*argument must be a string or a real number"),
        (datetime.date(2020, 1, 1), TypeError, "column 'b' of X holds datetime.date.*argument must be a string or a"),
        (
            pd.NA,
            ValueError,
            "Input X contains NaN in column 'b', the first in row 3; the given net accepts only numbers",
        ),
        (
            None,
            ValueError,
            "Input X contains NaN in column 'b', the first in row 3; the given net accepts only numbers",
        ),
        ("text", ValueError, "the given net accepts only numbers; X has other values in column 'b'"),
    ],
)
def test_a_given_net_is_told_of_the_column_and_the_value(value, error, message):
    """In a data frame with object columns."""
    table = pd.DataFrame({"a": Y, "b": replaced(Y, value)})
    with pytest.raises(error, match=message):
        LaplaceRegressor(torch.nn.Linear(2, 1)).fit(table, Y)


@pytest.mark.parametrize("kind", [None, object])
def test_a_given_net_is_told_of_columns_of_times(kind):
    """In a data frame with a time type, and with objects."""
    table = pd.DataFrame({"a": Y, "b": pd.Series(pd.date_range("2020", periods=N), dtype=kind)})
    with pytest.raises(ValueError, match="the given net accepts only numbers; X has other values in column 'b'"):
        LaplaceRegressor(torch.nn.Linear(2, 1)).fit(table, Y)
