"""Advice of errors and warnings about rows, followed to the letter."""

from __future__ import annotations

import operator
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn.preprocessing
from scipy.sparse import csr_array
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.errors import TableWarning

pytestmark = pytest.mark.usefixtures("short_trainings")

N = 40
RNG = np.random.default_rng(6)
TABLE = pd.DataFrame({"x": RNG.normal(size=N), "town": np.array(["Bern", "Graz"] * (N // 2)), "n": np.arange(N) % 7})
TABLE.loc[3, "x"] = np.nan
Y = np.nan_to_num(TABLE["x"]) + 0.3 * RNG.normal(size=N)
FIXED = {"hidden_layer_sizes": (4,), "prior_precision": 1.0, "sigma_noise": 0.3, "random_state": 0}
STATEMENT = re.compile(r"(?:X = pandas\.DataFrame\(X\); )?X\[.+?\] = .+?\)(?=[.,;]? |\.?$)")


@pytest.fixture(scope="module")
def model():
    return LaplaceRegressor(**FIXED).fit(TABLE, Y)


def message_of(call, *arguments, error=(TypeError, ValueError)) -> str:
    with pytest.raises(error) as refused:
        call(*arguments)
    return str(refused.value)


def executed(statement: str, X):
    names = {"X": X.copy(), "pandas": pd, "numpy": np}
    exec(statement, names)
    return names["X"]


# ---------------------------------------------------------------------- one row, one column


def test_a_dict_or_a_series_of_one_row_is_a_row_after_the_advice(model):
    """As web services and loops over rows have it; its values have the names of columns."""
    expected = model.predict(TABLE[5:6])
    for row, advice in ((TABLE.loc[5].to_dict(), "pandas.DataFrame([X])"), (TABLE.loc[5], "X.to_frame().T")):
        assert advice in message_of(model.predict, row)
        np.testing.assert_allclose(model.predict(eval(advice, {"X": row, "pandas": pd})), expected, rtol=1e-9)
    columns = TABLE.to_dict("list")
    assert "such as pandas.DataFrame(X)" in message_of(model.predict, columns)
    np.testing.assert_array_equal(model.predict(pd.DataFrame(columns)), model.predict(TABLE))


@pytest.mark.parametrize("row", [[0.5, "Bern", 3], (0.5, "Bern", 3), np.array([0.5, "Bern", 3], dtype=object)])
def test_values_of_one_row_are_a_row_after_the_advice(row):
    rows = TABLE.to_numpy()
    model = LaplaceRegressor(**FIXED).fit(rows, Y)
    assert "pass [list(X)] for one row" in message_of(model.predict, row)
    np.testing.assert_array_equal(model.predict([list(row)]), model.predict([[0.5, "Bern", 3]]))


@pytest.mark.parametrize(
    "column", [TABLE["n"], pl.Series("n", range(N)), list(range(N)), TABLE["town"], ["a", "b"] * (N // 2)], ids=str
)
def test_one_column_is_a_table_after_the_advice(column):
    message = message_of(LaplaceRegressor(**FIXED).fit, column, Y)
    advice = re.search(r"for one row, (.*) for one column", message).group(1)
    table = eval(advice, {"X": column})
    assert LaplaceRegressor(**FIXED).fit(table, Y).predict(table).shape == (N,)


# ---------------------------------------------------------------------- text and numbers


@pytest.mark.parametrize("form", ["named", "numbered", "array"])
def test_text_in_a_column_of_numbers_and_the_reverse_are_read_after_the_advice(form):
    """New rows from a form or a file hold "1.5", or a word; codes change their type."""
    shapes = {"named": lambda X: X, "numbered": lambda X: X.set_axis([4, 5, 6], axis=1), "array": pd.DataFrame.to_numpy}
    shaped = shapes[form]
    as_text = TABLE.assign(n=TABLE["n"].map("n{}".format))
    model, coded = (LaplaceRegressor(**FIXED).fit(shaped(X), Y) for X in (TABLE, as_text))
    words = TABLE.assign(x=["many", *TABLE["x"][1:].map(str)])
    expected = TABLE.assign(x=[np.nan, *TABLE["x"][1:]])
    for fitted, rows, same in ((model, words, expected), (coded, as_text.assign(n=1), as_text.assign(n="1"))):
        (statement,) = STATEMENT.findall(message_of(fitted.predict, shaped(rows)))
        cured = executed(statement, shaped(rows))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("sklearn_laplace._table.column.MANY_ROWS", N + 1)
            np.testing.assert_allclose(fitted.predict(cured), fitted.predict(shaped(same)), rtol=1e-12)


CONCERNS = {
    "days first": pd.date_range("2024-01-01", periods=N).strftime("%d.%m.%Y"),
    "months first": pd.date_range("2024-01-01", periods=N).strftime("%m/%d/%Y"),
    "repeated": np.repeat(pd.date_range("2024-01-01", periods=N // 2).strftime("%Y-%m-%d"), 2),
    "percent": [f"{k} %" for k in range(N)],
}


@pytest.mark.parametrize("kind", CONCERNS)
def test_text_is_read_as_dates_or_numbers_after_the_advice_of_the_warning(kind):
    """Named columns, numbered ones and arrays."""
    table = TABLE.assign(text=CONCERNS[kind])
    for X in (table, table.set_axis(range(4), axis=1), table.to_numpy()):
        with pytest.warns(TableWarning) as issued:
            LaplaceRegressor(**FIXED).fit(X, Y)
        (statement,) = STATEMENT.findall(str(issued[0].message))
        if kind == "months first":
            assert "or dayfirst=False where the month comes first" in str(issued[0].message)
            statement = statement.replace("dayfirst=True", "dayfirst=False")
        cured = LaplaceRegressor(**FIXED).fit(executed(statement, X), Y)
        assert cured.table_.rows[3][1].split(",")[0] == ("number" if kind == "percent" else "date")


def test_a_column_of_names_is_dropped_after_the_advice_of_the_warning():
    table = TABLE.assign(name=[f"person {k}" for k in range(N)])
    for X in (table, table.to_numpy()):
        with pytest.warns(TableWarning, match="most new rows") as issued:
            LaplaceRegressor(**FIXED).fit(X, Y)
        advice = re.search(r"Omit it \((.*?\))\)", str(issued[0].message)).group(1)
        assert LaplaceRegressor(**FIXED).fit(eval(advice, {"X": X, "pandas": pd}), Y).n_features_in_ == 3


def test_large_identifiers_doubled_names_and_time_zones_are_read_after_the_advice():
    large = TABLE.assign(code=pd.Categorical([2**60 + k % 5 for k in range(N)]))
    (statement,) = STATEMENT.findall(message_of(LaplaceRegressor(**FIXED).fit, large, Y))
    assert LaplaceRegressor(**FIXED).fit(executed(statement, large), Y)._table.levels[3] == 5

    doubled = pd.concat([TABLE, TABLE["n"]], axis=1)
    advice = message_of(LaplaceRegressor(**FIXED).fit, doubled, Y).split("first of each name: ")[1].rstrip(".")
    assert LaplaceRegressor(**FIXED).fit(eval(advice, {"X": doubled}), Y).n_features_in_ == 3

    dated = pd.DataFrame({"when": pd.date_range("2024-01-01", periods=N)})
    zoned = dated.assign(when=dated["when"].dt.tz_localize("Europe/Zurich"))
    message = message_of(LaplaceRegressor(**FIXED).fit(dated, Y).predict, zoned)
    advice = re.search(r"Convert both to UTC, for example with (.*)\.$", message).group(1)
    both = (pd.DataFrame({"when": eval(advice, {"column": X["when"], "pandas": pd})}) for X in (dated, zoned))
    model = LaplaceRegressor(**FIXED).fit(next(both), Y)
    assert model.predict(next(both)).shape == (N,)


# ---------------------------------------------------------------------- sparse rows


def test_sparse_rows_are_dense_after_the_advice():
    """An encoder in a pipeline makes them, where no user can call toarray."""
    X = TABLE[["town", "n"]]
    message = message_of(make_pipeline(OneHotEncoder(), LaplaceRegressor(**FIXED)).fit, X, Y)
    step = re.search(r"FunctionTransformer\(.*?\), accept_sparse=True\)", message).group()
    dense = eval(step, {"operator": operator, **vars(sklearn.preprocessing)})
    option = eval(f"dict({re.search('sparse_output=False', message).group()})")
    threshold = eval(f"dict({re.search('sparse_threshold=0', message).group()})")
    columns = ColumnTransformer([("towns", OneHotEncoder(), ["town", "n"])], **threshold)
    steps = [(OneHotEncoder(), dense), (OneHotEncoder(**option),), (columns,)]
    predicted = [make_pipeline(*first, LaplaceRegressor(**FIXED)).fit(X, Y).predict(X) for first in steps]
    np.testing.assert_array_equal(predicted[0], predicted[1])
    np.testing.assert_array_equal(predicted[0], predicted[2])
    rows = csr_array(np.eye(N))
    assert "required: X.toarray()" in message_of(LaplaceRegressor(**FIXED).fit, rows, Y, error=TypeError)
    assert LaplaceRegressor(**FIXED).fit(rows.toarray(), Y).n_features_in_ == N
