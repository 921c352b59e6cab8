"""Values of any type in the cells of a table: levels, times, bytes."""

from __future__ import annotations

import datetime as dt
import enum
import io
import re
import uuid

import numpy as np
import pandas as pd
import pytest
import trainings
from scipy.io import arff
from sklearn.ensemble import StackingRegressor

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save

pytestmark = pytest.mark.usefixtures("short_trainings")

N = 30
X = np.random.default_rng(4).normal(size=N)
PART = np.arange(N) % 3
Y = PART + X + 0.3 * np.random.default_rng(5).normal(size=N)
FIXED = {"hidden_layer_sizes": (4,), "prior_precision": 1.0, "sigma_noise": 0.3, "random_state": 0}
FIXED["memory"] = trainings.MEMORY


def fitted(table, y=Y, **options):
    return LaplaceRegressor(**{**FIXED, **options}).fit(table, y)


def objects(values) -> pd.Series:
    return pd.Series([*values, None], dtype=object)[:-1]


def of_levels(levels) -> pd.Categorical:
    return pd.Categorical.from_codes(PART, categories=pd.Index(levels, tupleize_cols=False))


class Colour(enum.Enum):
    RED = 1
    BLUE = 2
    GREEN = 3


LEVELS = {
    "cut": pd.cut(PART, [-1, 0, 1, 2]),
    "qcut": pd.qcut(PART + X / 10, 3),
    "period": of_levels(pd.period_range("2024-01", periods=3, freq="M")),
    "tuple": of_levels([(1, "a"), (2, "b"), (3, None)]),
    "date": of_levels([dt.date(2024, 1, day) for day in (1, 2, 3)]),
    "datetime": of_levels(pd.date_range("2024-01-01", periods=3)),
    "zoned": of_levels(pd.date_range("2024-01-01", periods=3, tz="Asia/Tokyo")),
    "timedelta": of_levels(pd.to_timedelta([1, 2, 3], unit="h")),
    "enum": of_levels(list(Colour)),
    "uuid": of_levels([uuid.UUID(int=k) for k in range(3)]),
    "bytes": of_levels([b"a", b"b", b"c"]),
    "bool": of_levels([True, False, "maybe"]),
    "mixed": of_levels([1, "1", ("1",)]),
}


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_levels_of_a_categorical_type_may_be_of_any_hashable_type(levels, tmp_path):
    """The predictions are those of text levels; a file keeps them, and a missing or new level widens."""
    table = pd.DataFrame({"x": X, "part": levels})
    model = fitted(table)
    assert model._table.levels == (0, 3)
    assert np.corrcoef(model.predict(table), Y)[0, 1] > 0.8
    save(model, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(load(tmp_path / "model.safetensors").predict(table), model.predict(table))
    np.testing.assert_allclose(model.predict(table[3:4]), model.predict(table)[3:4], rtol=1e-10)
    gap = table[:3].assign(part=pd.Series([None] * 3, dtype=table["part"].dtype))
    assert np.isfinite(model.predict(gap)).all()


def test_text_of_a_level_is_the_level():
    """A table that was written to a file and read again holds the text of its intervals."""
    table = pd.DataFrame({"x": X, "part": LEVELS["cut"]})
    model = fitted(table)
    np.testing.assert_array_equal(model.predict(table.astype({"part": str})), model.predict(table))


START = dt.datetime(2024, 2, 27, 5)
ZONE = dt.timezone(dt.timedelta(hours=2))
TIMES = {
    "date": ([(START + dt.timedelta(k)).date() for k in range(N)], "date"),
    "datetime": ([START + dt.timedelta(k, 7 * k) for k in range(N)], "date"),
    "zoned": ([(START + dt.timedelta(k)).replace(tzinfo=ZONE) for k in range(N)], "date"),
    "Timestamp": ([pd.Timestamp(START) + pd.Timedelta(k, "h") for k in range(N)], "date"),
    "datetime64": ([np.datetime64("2024-02-27") + np.timedelta64(k, "D") for k in range(N)], "date"),
    "Period": (list(pd.period_range("2024-01", periods=N, freq="M")), "date"),
    "time": ([(START + dt.timedelta(0, 1800 * k)).time() for k in range(N)], "number"),
    "timedelta": ([dt.timedelta(0, 500 * k) for k in range(N)], "number"),
    "Timedelta": ([pd.Timedelta(k, "min") for k in range(N)], "number"),
    "timedelta64": ([np.timedelta64(k, "h") for k in range(N)], "number"),
}


def expected_days(values) -> np.ndarray:
    """Days by pandas, in UTC."""
    if isinstance(values[0], dt.time):
        return np.array([(v.hour * 3600 + v.minute * 60 + v.second) / 86400 for v in values])
    if isinstance(values[0], pd.Period):
        values = [value.to_timestamp() for value in values]
    if isinstance(values[0], dt.timedelta | np.timedelta64):
        return np.array(pd.to_timedelta(values) / pd.Timedelta(1, "D"))
    return np.array((pd.to_datetime(values, utc=True) - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(1, "D"))


@pytest.mark.parametrize(("values", "kind"), TIMES.values(), ids=TIMES)
def test_times_in_columns_of_objects_are_read_as_times(values, kind):
    """In frames, arrays and lists of rows, with gaps, whole or a row at a time."""
    values = [*values[:4], None, *values[5:]]
    table = pd.DataFrame({"when": objects(values), "x": X})
    model = fitted(table)
    days = expected_days([value for value in values if value is not None])
    np.testing.assert_allclose(np.delete(model._table.coded(table)[:, 0], 4), days, rtol=1e-12)
    assert model.table_.rows[0][1].split(",")[0] == kind
    array = table.to_numpy()
    for rows in (array, array.tolist()):
        np.testing.assert_array_equal(model._table.coded(rows), model._table.coded(table))
        np.testing.assert_array_equal(fitted(rows).predict(rows), model.predict(table))
    row = table.loc[7].to_frame().T
    np.testing.assert_allclose(model.predict(row), model.predict(table)[7:8], rtol=1e-9)


def test_a_column_of_a_time_type_and_one_of_objects_are_the_same():
    """Stacking passes a table on as an array of objects."""
    table = pd.DataFrame({"x": X, "when": pd.date_range("2024-01-01", periods=N)})
    model = fitted(table)
    np.testing.assert_array_equal(model.predict(table.astype(object)), model.predict(table))
    numbers = pd.DataFrame({"x": X, "part": PART, "when": table["when"]})
    stack = StackingRegressor(
        [("first", LaplaceRegressor(**FIXED))], LaplaceRegressor(**FIXED), passthrough=True, cv=2
    ).fit(numbers, Y)
    assert np.corrcoef(stack.predict(numbers), Y)[0, 1] > 0.8


def test_a_period_type_is_read_as_its_start():
    table = pd.DataFrame({"x": X, "when": pd.period_range("2024-01", periods=N, freq="M")})
    as_times = table.assign(when=table["when"].dt.to_timestamp())
    np.testing.assert_array_equal(fitted(table).predict(table), fitted(as_times).predict(as_times))


ODD = {
    "interval": list(pd.interval_range(0, N)),
    "tuple": [(k % 3, "a") for k in range(N)],
    "list": [[k % 3] for k in range(N)],
    "dict": [{"a": k % 3} for k in range(N)],
    "set": [{k % 3} for k in range(N)],
    "array": [np.ones(2) * (k % 3) for k in range(N)],
    "date among numbers": [dt.date(2024, 1, 1), *range(N - 1)],
    "date among text": [dt.date(2024, 1, 1), *"ab" * (N // 2 - 1), "c"],
    "duration among dates": [dt.timedelta(1), *[dt.date(2024, 1, 1)] * (N - 1)],
    "number among text": [*"ab" * (N // 2 - 1), "c", 1.0],
    "zones": [START, *[START.replace(tzinfo=ZONE)] * (N - 1)],
}


def follow(message: str, X) -> pd.DataFrame:
    """Execute the last statements that a message gives; a table of objects is changed in a copy."""
    statement = re.findall(r"(?:X = pandas\.DataFrame\(X\); )?X\[.+?\] = .+?\)(?=[.,]? |\.?$)", message)[-1]
    names = {"X": X.copy(), "pandas": pd, "numpy": np}
    exec(statement, names)
    return names["X"]


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.TableWarning")
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("form", ["named", "numbered", "array"])
def test_the_advice_for_values_of_other_types_reads_them(kind, form):
    """Each message names the column; its statement is executed."""
    table = pd.DataFrame({"x": X, "odd": objects(ODD[kind])})
    table = {"named": table, "numbered": table.set_axis([5, 6], axis=1), "array": table.to_numpy()}[form]
    name = {"named": "column 'odd'", "numbered": "column 6", "array": "column 1"}[form]
    with pytest.raises((TypeError, ValueError), match=re.escape(name)) as refused:
        fitted(table)
    cured = follow(str(refused.value), table)
    assert np.isfinite(fitted(cured).predict(cured)).all()


# ---------------------------------------------------------------------- bytes, and NumPy's text

ARFF = "@relation r\n@attribute x numeric\n@attribute town {Bern,Graz}\n@attribute class {yes,no}\n@data\n"


def of_arff() -> pd.DataFrame:
    """Rows as scipy reads them from ARFF: nominal values are bytes."""
    rows = "".join(f"{x},{'Bern' if k % 2 else 'Graz'},{'yes' if x > 0 else 'no'}\n" for k, x in enumerate(X))
    data, _ = arff.loadarff(io.StringIO(ARFF + rows))
    return pd.DataFrame(data)


def test_bytes_of_arff_are_text_in_rows_and_labels():
    """As columns and labels of a frame, and as arrays of NumPy's type of bytes."""
    table = of_arff()
    labels, rows = table.pop("class"), table.to_numpy()
    options = {"hidden_layer_sizes": (4,), "prior_precision": 1.0, "n_members": 1, "random_state": 0}
    model = LaplaceClassifier(**options).fit(table, labels)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.table_.rows[1] == ("town", "category", "2 levels: Bern, Graz", "")
    as_text = table.map(lambda value: value.decode() if isinstance(value, bytes) else value)
    np.testing.assert_array_equal(model.predict_proba(as_text), model.predict_proba(table))
    np.testing.assert_array_equal(LaplaceClassifier(**options).fit(rows, labels).predict(rows), model.predict(table))
    for given in (
        labels,
        labels.to_numpy().astype("S"),
        list(labels.to_numpy().astype("S")),
        labels.str.decode("utf8"),
    ):
        assert model.score(table, given) > 0.8
        LaplaceClassifier(**options).fit(table, given).partial_fit(table, given).log_predictive_density(table, given)
    as_bytes = np.array([["1.5", "Bern"], ["2", "Graz"]], dtype="S")
    np.testing.assert_array_equal(model._table.coded(as_bytes), [[1.5, 0], [2, 1]])


def test_bytes_that_are_not_utf8_stay_apart():
    table = pd.DataFrame({"town": objects([b"Z\xfcrich", b"Z\xe4ziwil", b"Bern"] * 10)})
    assert fitted(table)._table.levels == (3,)


def test_missing_and_mixed_bytes_are_refused_as_other_labels():
    with pytest.raises(ValueError, match="1 of 3 values missing"):
        LaplaceClassifier().fit(X[:3, None], [b"a", None, b"b"])
    with pytest.raises(ValueError, match="a regressor needs numbers"):
        fitted(X[:3, None], np.array([b"a", b"b", b"c"]))


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy 1 has no type of text")
def test_labels_of_numpys_text_type_are_text():
    labels = np.where(X > 0, "yes", "no").astype(np.dtypes.StringDType())
    model = LaplaceClassifier(hidden_layer_sizes=(4,), prior_precision=1.0, n_members=1, random_state=0)
    model.fit(X[:, None], labels)
    assert model.classes_.dtype.kind == "U"
    assert model.score(X[:, None], labels) > 0.8
    with pytest.raises(ValueError, match="a regressor needs numbers"):
        fitted(X[:, None], labels)
    gaps = np.array([*labels[:2], None, *labels[3:]], dtype=np.dtypes.StringDType(na_object=None))
    with pytest.raises(ValueError, match="1 of 30 values missing, the first in row 2"):
        model.fit(X[:, None], gaps)
