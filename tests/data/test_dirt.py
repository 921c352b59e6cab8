"""Columns as CSV files contain them: dates and numbers as text, markers of missing values, names, other spellings."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save
from sklearn_laplace._table.statistics import spread
from sklearn_laplace._table.text import concern, days, number, read_as
from sklearn_laplace.errors import TableWarning

pytestmark = pytest.mark.usefixtures("short_trainings")

N = 80
FIXED = {"hidden_layer_sizes": (4,), "prior_precision": 1.0, "sigma_noise": 0.3, "random_state": 0}
DAYS = pd.date_range("2023-01-01", periods=N, freq="D")
X = np.round(np.random.default_rng(0).normal(size=N), 2)
Y = X + np.arange(N) / N


def fitted(table, **options):
    return LaplaceRegressor(**FIXED, **options).fit(table, Y)


def of_csv(table: pd.DataFrame) -> pd.DataFrame:
    """The table after it was written to a CSV file and read again."""
    return pd.read_csv(io.StringIO(table.to_csv(index=False)))


# ---------------------------------------------------------------------- dates


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%Y/%m/%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M"])
def test_text_with_the_year_first_is_read_as_dates(form):
    """The model is that of a column of dates, and no warning is issued."""
    table = pd.DataFrame({"x": X, "day": DAYS})
    text = table.assign(day=DAYS.strftime(form))
    model, of_text = fitted(table), fitted(of_csv(text))
    np.testing.assert_array_equal(of_text.predict(text), model.predict(table))
    np.testing.assert_array_equal(of_text.predict(table), model.predict(table))
    np.testing.assert_array_equal(model.predict(text), model.predict(table))
    assert ("day", "date from text, day of week", "2023-01-01 to 2023-03-21", "") in of_text.table_.rows


def test_dates_beyond_the_training_rows_are_further_away_and_not_unknown():
    table = pd.DataFrame({"day": DAYS.strftime("%Y-%m-%d")})
    model = fitted(table)
    near, far = model.predict_std(pd.DataFrame({"day": ["2023-03-22", "2025-01-01"]}), kind="epistemic")
    assert near < 0.5 * far


def test_dates_with_a_time_zone_are_compared_in_utc():
    text = [f"2023-01-{day:02}T12:00:00+02:00" for day in range(1, 31)]
    model = LaplaceRegressor(**FIXED).fit(pd.DataFrame({"t": text}), np.arange(30.0))
    same = model.predict(pd.DataFrame({"t": [moment.replace("12:", "10:").replace("+02:00", "Z") for moment in text]}))
    np.testing.assert_array_equal(model.predict(pd.DataFrame({"t": text})), same)
    with pytest.raises(ValueError, match="holds times without a time zone, and the training rows had times with"):
        model.predict(pd.DataFrame({"t": ["2023-01-01 12:00"]}))


def test_a_zone_is_that_of_the_dates_alone(tmp_path):
    """A row without a date is predicted as it is beside others, a saved model opens, and zones do not mix."""
    text = [None if day == 4 else f"2023-01-{day:02}T12:00:00Z" for day in range(1, 31)]
    table = pd.DataFrame({"t": text, "town": np.tile(["u", "v", "w"], 10), "x": np.arange(30.0)})
    for rows in (table, table.assign(t=pd.to_datetime(table["t"]))):
        model = LaplaceRegressor(**FIXED).fit(rows, np.arange(30.0))
        expected = model.predict(rows)
        np.testing.assert_allclose(model.predict(rows[3:4]), expected[3:4])
        for missing in (None, pd.NaT):
            np.testing.assert_allclose(model.predict(rows[3:4].assign(t=[missing])), expected[3:4])
        save(model, tmp_path / "model")
        np.testing.assert_array_equal(load(tmp_path / "model").predict(rows), expected)
        for mixed in (["2023-01-01T12:00", "2023-01-01T12:00Z"], ["2023-01-01T12:00Z", "2023-01-01T12:00"]):
            with pytest.raises(ValueError, match="column 't' of X holds times with and without a time zone, such as"):
                model.predict(rows[:2].assign(t=mixed))


def test_a_row_of_weight_zero_may_have_another_zone():
    text, weights = [f"2023-01-{day:02}T12:00" for day in range(1, 31)], np.ones(30)
    text[5], weights[5] = text[5] + "Z", 0.0
    for order in (np.arange(30), np.arange(30)[::-1]):
        rows = pd.DataFrame({"t": np.array(text, dtype=object)[order]})
        model = LaplaceRegressor(**FIXED).fit(rows, np.arange(30.0)[order], sample_weight=weights[order])
        present = weights[order] > 0
        without = LaplaceRegressor(**FIXED).fit(rows[present], np.arange(30.0)[order][present])
        np.testing.assert_allclose(model.predict(rows[present]), without.predict(rows[present]), rtol=1e-8)


def test_text_that_is_no_date_is_named_at_predict():
    model = fitted(pd.DataFrame({"x": X, "day": DAYS.strftime("%Y-%m-%d")}))
    with pytest.raises(
        ValueError, match=r"column 'day' of X holds '3rd of May' in row 1, and the training rows had dat"
    ):
        model.predict(pd.DataFrame({"x": [0.0, 0.0], "day": ["2023-01-01", "3rd of May"]}))


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%m/%d/%Y", "%d %b %Y", "%B %d, %Y"])
def test_dates_in_another_order_are_categories_with_a_warning_that_converts_them(form):
    """Day and month cannot be told apart."""
    table = pd.DataFrame({"x": X, "day": DAYS.strftime(form)})
    with pytest.warns(
        TableWarning, match=r"column 'day' of X is text and is read as 80 categories, and its values look"
    ):
        model = fitted(table)
    assert model.table_.rows[1][1] == "category"
    assert "X['day'] = pandas.to_datetime(X['day'], dayfirst=True)" in model.table_.notes[0]
    fitted(table.assign(day=pd.to_datetime(table["day"], dayfirst="." in form)))


def test_dates_that_repeat_are_categories_with_a_warning():
    """Rows of a day have something in common. Copies of all rows and a common weight give the same reading."""
    table = pd.DataFrame({"x": X, "day": np.repeat(DAYS[: N // 2].strftime("%Y-%m-%d"), 2)})
    with pytest.warns(TableWarning, match=r"40 categories, .* X\['day'\] = pandas\.to_datetime\(X\['day'\]\)\."):
        assert fitted(table).table_.rows[1][1] == "category"
    single = table.assign(day=DAYS.strftime("%Y-%m-%d"))
    assert fitted(single).table_.rows[1][1] == "date from text, day of week"
    assert LaplaceRegressor(**FIXED).fit(single, Y, sample_weight=np.full(N, 1 / N)).table_.rows[1][1] != "category"
    with pytest.warns(TableWarning):
        twice = LaplaceRegressor(**FIXED).fit(pd.concat([single, single]), np.tile(Y, 2))
    with pytest.warns(TableWarning):
        weighted = LaplaceRegressor(**FIXED).fit(single, Y, sample_weight=np.full(N, 2.0))
    np.testing.assert_allclose(weighted.predict(single), twice.predict(single), rtol=1e-9)


def test_dates_listed_as_categories_stay_categories():
    table = pd.DataFrame({"x": X, "day": DAYS.strftime("%Y-%m-%d")})
    assert fitted(table, categorical_features=["day"]).table_.rows[1][1] == "category"
    assert fitted(table.astype({"day": "category"})).table_.rows[1][1] == "category"


# ---------------------------------------------------------------------- numbers


@pytest.mark.parametrize("marker", ["?", "n/a", "NA", " - ", "unknown"])
def test_a_marker_among_numbers_is_a_missing_value(marker):
    """The model is that of a numeric column with NaN, and a warning names the marker."""
    table = pd.DataFrame({"x": X, "size": np.where(np.arange(N) % 9 == 0, np.nan, np.round(X**2, 3))})
    dirty = table.assign(size=table["size"].map(lambda value: marker if np.isnan(value) else str(value)))
    with pytest.warns(TableWarning, match=r"column 'size' of X is text\. It is read as numbers, and '.*' as missing\."):
        model = fitted(dirty)
    clean = fitted(table)
    np.testing.assert_array_equal(model.predict(dirty), clean.predict(table))
    np.testing.assert_array_equal(model.predict(table), clean.predict(table))
    assert model.table_.rows[1][1] == "number from text" and model.table_.rows[1][3] == "11.2%"


def test_text_that_is_no_number_is_named_at_predict():
    table = pd.DataFrame({"x": X, "size": ["?", *map(str, range(N - 1))]})
    with pytest.warns(TableWarning):
        model = fitted(table)
    with pytest.raises(
        ValueError, match=r"column 'size' of X holds 'large' in row 0, and the training rows had numbers"
    ):
        model.predict(pd.DataFrame({"x": [0.0], "size": ["large"]}))


@pytest.mark.parametrize(
    "values", [[f"1,{k:03}" for k in range(N)], [f"{k} %" for k in range(N)], ["many", *map(str, range(N - 1))]]
)
def test_text_that_is_mostly_numbers_is_named(values):
    with pytest.warns(
        TableWarning, match=r"most of its values look like numbers, but not .*pandas\.read_csv with decimal=','"
    ):
        fitted(pd.DataFrame({"x": X, "size": values}))


def test_digits_without_a_marker_are_categories():
    """Codes, such as postcodes, were converted to text on purpose."""
    codes = pd.DataFrame({"x": X, "code": np.random.default_rng(1).choice(["01", "02", "03"], N)})
    assert fitted(codes).table_.rows[1] == ("code", "category", "3 levels: 01, 02, 03", "")


# ---------------------------------------------------------------------- categories


def test_text_with_a_different_value_in_most_rows_is_named():
    table = pd.DataFrame({"x": X, "name": [f"person {k}" for k in range(N)]})
    with pytest.warns(TableWarning, match=r"80 categories in 80 rows, such as 'person 0', .*\.drop\(columns='name'\)"):
        fitted(table)


def test_codes_as_text_in_the_fit_and_as_numbers_later_are_refused():
    """They would all be unknown categories, without any error."""
    codes = np.random.default_rng(1).integers(1, 4, N)
    table = pd.DataFrame({"x": X, "code": codes.astype(str)})
    model = fitted(table)
    with pytest.raises(ValueError, match=r"holds numbers, such as .*rows had text, such as '1'.*astype\(str\)"):
        model.predict(table.assign(code=codes))
    of_numbers = fitted(table.assign(code=codes), categorical_features=["code"])
    with pytest.raises(ValueError, match=r"holds text, such as '.', .*rows had numbers, such as 1.*astype\(float\)"):
        of_numbers.predict(table)


def test_a_column_of_mostly_unknown_categories_is_named():
    table = pd.DataFrame({"x": X, "town": np.random.default_rng(1).choice(["Bern", "Graz"], N)})
    model = fitted(table)
    with pytest.warns(
        TableWarning, match=r"most values of 1 column of X are unknown categories: column 'town' \(100%, such as 'b"
    ):
        model.predict(table.assign(town=table["town"].str.lower()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(table.assign(town=np.where(np.arange(N) % 3 == 0, "Oslo", table["town"])))
        model.predict(table[:3].assign(town="Oslo"))


def test_unknown_categories_of_several_columns_are_one_warning_and_old_news_later():
    """Each call of a program repeated eight lines; a new value, or an error in its place, is news."""
    rng = np.random.default_rng(3)
    table = pd.DataFrame({f"text {k}": np.append(rng.choice(["a", "b"], N - 1), None) for k in range(8)})
    model, foreign = fitted(table), table.map(str.upper, na_action="ignore")
    with pytest.raises(TableWarning, match="most values of 8 columns"):  # warnings are errors in this suite
        model.predict(foreign)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.predict(foreign)
        model.predict_interval(foreign)
        model.predict_std(foreign[20:])
        assert [str(record.message).count(" (") for record in caught] == [8]
        assert "column 'text 7'" in str(caught[0].message)
        model.predict(foreign.assign(**{"text 2": "C"}))
    assert len(caught) == 2


def test_columns_in_another_order_or_under_another_name_are_refused():
    table = pd.DataFrame({"x": X, "z": X**2})
    model = fitted(table)
    with pytest.raises(ValueError, match=r"(?s)names.*order"):
        model.predict(table[["z", "x"]])
    with pytest.raises(ValueError, match=r"(?s)unseen at fit time:\n- w"):
        model.predict(table.rename(columns={"z": "w"}))


def test_candidates_of_a_search_warn_once():
    table = pd.DataFrame({"x": X, "name": [f"person {k}" for k in range(N)]})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = LaplaceRegressor(hidden_layer_sizes=(4,), sigma_noise=0.3)
        GridSearchCV(model, {"prior_precision": [1.0, 10.0]}, cv=2, refit=False).fit(table, Y)
    assert len([record for record in caught if record.category is TableWarning]) == 1


# ---------------------------------------------------------------------- report


@pytest.mark.parametrize("kind", [np.asarray, pd.DataFrame])
def test_a_number_that_is_too_large_to_be_true_is_named(kind):
    """Damaged files and uninitialised memory hold such numbers; heavy tails, zeros and small units are no concern."""
    rows = np.stack([X, 1e-5 * X, np.where(X > 1, 1e20, 0.0)], axis=1)
    fitted(kind(rows))
    rows[3, 1] = -1e300
    with pytest.warns(TableWarning, match=r"column 1 of X holds a number of size 1e\+300, and others have") as caught:
        model = fitted(kind(rows))
    assert len(caught) == 1
    assert model.table_.notes == [str(caught[0].message)]


def test_the_report_lists_what_is_read_of_each_column():
    rng = np.random.default_rng(2)
    table = pd.DataFrame(
        {
            "x": np.round(X, 2),
            "tail": np.append(rng.normal(size=N - 1), 1e6),
            "town": rng.choice(["Bern", "Graz", "Lyon", "Oslo"], N),
            "gaps": np.where(np.arange(N) % 2 == 0, np.nan, 1.0),
            "time": DAYS + pd.Timedelta(hours=6),
        }
    )
    report = fitted(table).table_
    assert report.rows == [
        ("x", "number", f"{table['x'].min():.6g} to {table['x'].max():.6g}", ""),
        ("tail", "number, heavy tails", f"{table['tail'].min():.6g} to 1e+06", ""),
        ("town", "category", "4 levels: Bern, Graz, Lyon, …", ""),
        ("gaps", "number", "1", "50.0%"),
        ("time", "date, day of week", "2023-01-01 06:00 to 2023-03-21 06:00", ""),
    ]
    lines = repr(report).split("\n")
    assert len(lines) == 6 and lines[0].split() == ["column", "read", "as", "values", "missing"]
    assert lines[4].split() == ["gaps", "number", "1", "50.0%"]


def test_the_page_of_an_estimator_in_a_notebook_has_the_report():
    table = pd.DataFrame({"x": X, "<town>": np.random.default_rng(1).choice(["Bern & Graz", "Lyon"], N)})
    model = LaplaceRegressor(**FIXED)
    assert "read as" not in model._repr_mimebundle_()["text/html"]
    model.fit(table, Y)
    for page in (model._repr_mimebundle_()["text/html"], model._repr_html_()):
        assert "<td>&lt;town&gt;</td><td>category</td><td>2 levels: Bern &amp; Graz, Lyon</td>" in page
        assert page.index("LaplaceRegressor") < page.index("read as")
    pipe = make_pipeline(FunctionTransformer(), model)
    assert "LaplaceRegressor" in pipe._repr_html_()


def test_a_saved_model_reads_text_as_before(tmp_path):
    table = pd.DataFrame({"day": DAYS.strftime("%Y-%m-%d"), "size": ["?", *map(str, range(N - 1))]})
    with pytest.warns(TableWarning):
        model = fitted(table)
    save(model, tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.predict(table), model.predict(table))
    assert repr(loaded.table_) == repr(model.table_)


def test_other_libraries_and_arrays_are_read_in_the_same_way():
    text = {"day": list(DAYS.strftime("%Y-%m-%d")), "size": ["?", *map(str, range(N - 1))]}
    rows = list(map(list, zip(*text.values(), strict=True)))
    tables = pd.DataFrame(text), pl.DataFrame(text), np.array(rows), rows
    predictions = []
    for table in tables:
        with pytest.warns(TableWarning):
            predictions.append(fitted(table).predict(table))
    for prediction in predictions[1:]:
        np.testing.assert_array_equal(prediction, predictions[0])


def test_rows_of_weight_zero_and_later_rows_are_read_as_the_training_rows():
    table = pd.DataFrame({"x": X, "day": DAYS.strftime("%Y-%m-%d")})
    weights = np.where(np.arange(N) < 2, 0.0, 1.0)
    dirty = table.assign(day=["soon", "?", *table["day"][2:]])
    model = LaplaceRegressor(**FIXED).fit(dirty, Y, sample_weight=weights)
    clean = LaplaceRegressor(**FIXED).fit(table[2:], Y[2:])
    np.testing.assert_allclose(model.predict(table), clean.predict(table), rtol=1e-10)
    model.partial_fit(table[:2], Y[:2])
    classifier = LaplaceClassifier(hidden_layer_sizes=(4,), prior_precision=1.0, random_state=0).fit(table, Y > 0)
    assert classifier.table_.rows[1][1] == "date from text, day of week"


def test_a_given_net_has_no_report():
    from torch import nn

    model = LaplaceRegressor(nn.Linear(1, 1), prior_precision=1.0, sigma_noise=0.3, max_epochs=1).fit(X[:, None], Y)
    with pytest.raises(AttributeError, match=r"table_ belongs to the built-in net"):
        _ = model.table_


# ---------------------------------------------------------------------- rules


def test_dates_agree_with_pandas():
    rng = np.random.default_rng(3)
    for seconds in rng.integers(-(10**9), 10**10, 200):
        moment = pd.Timestamp(int(seconds), unit="s")
        expected = seconds / 86_400
        assert days(moment.strftime("%Y-%m-%d %H:%M:%S")) == (pytest.approx(expected, abs=1e-9), False)
        aware = moment.tz_localize("UTC").tz_convert("Asia/Kolkata").isoformat()
        assert days(aware) == (pytest.approx(expected, abs=1e-9), True)


@pytest.mark.parametrize("text", ["2023-02-30", "2023-1", "20230101", "23-01-01", "2023-01-01 25:00", "", "?"])
def test_other_text_is_no_date(text):
    assert days(text) is None


def test_what_text_is_read_as():
    assert read_as(["2023-01-01", "2023-01-02T01:00Z"], 2) == ""  # with and without a time zone
    assert read_as(["2023-01-01", "?"], 1) == "dates"
    assert read_as(["1", "2e3", "", "NaN"], 100) == "numbers"
    assert read_as([], 0) == read_as(["?"], 1) == read_as(["inf", "1"], 2) == read_as(["1", "two"], 2) == ""
    assert number("1,5") is None


def test_few_or_repeated_texts_are_no_concern():
    assert concern([f"t{k}" for k in range(19)], "column 'a'") == ""
    assert concern([f"t{k % 10}" for k in range(100)], "column 'a'") == ""
    assert concern(["1", "2", "3"], "column 'a'") == ""


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_warning_points_to_the_line_that_called_the_fit(wrapped):
    """Also from within a search of scikit-learn."""
    X = np.array([[f"{k // 60:02}:{k % 60:02} h", k] for k in range(80)], dtype=object)
    model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.5, n_members=1, random_state=0)
    if wrapped:
        model = GridSearchCV(model, {"temperature": [1.0]}, cv=2, scoring="r2")
    with pytest.warns(TableWarning) as caught:
        model.fit(X, np.arange(80.0))
    assert {warning.filename for warning in caught} == {__file__}


def test_rounding_of_many_rows_does_not_make_a_constant_column_vary():
    """A new value in a column that was constant in training may not become 10¹⁶ standard deviations."""
    rng = np.random.default_rng(0)
    x = np.c_[np.full(500, -1.8073e-08), rng.normal(size=(500, 2))]
    mean, deviation, constant = spread(x, np.ones(500))
    assert constant.tolist() == [True, False, False]
    assert (mean[0], deviation[0]) == (-1.8073e-08, 0.0)
    y = x[:, 1] + 0.1 * rng.normal(size=500)
    model = LaplaceRegressor(n_members=1, hidden_layer_sizes=(), random_state=0).fit(x, y)
    changed = np.c_[np.full(50, 1e-4), x[:50, 1:]]
    np.testing.assert_allclose(model.predict(changed), y[:50], atol=0.6)
