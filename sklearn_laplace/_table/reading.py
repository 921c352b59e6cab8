"""Read columns of arrays and dataframes: values, names, data types, and cells that are Python objects.

Bytes become text. A column of dates, datetimes or periods becomes days since 1970; a period is represented by its
start. Durations and times of day become numbers of days.
"""

from collections.abc import Hashable, Iterator, Sequence, Set
from datetime import UTC, date, datetime, time, timedelta
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import _safe_indexing, check_array, check_X_y
from sklearn.utils.validation import _num_samples, validate_data

from .._validation.rows import (
    NUMBERS,
    UNDECODED,
    as_float,
    as_text,
    check_lengths,
    is_missing,
    no_table,
    readable,
    shown,
)

MOMENTS, DURATIONS, CLOCK = "moments", "durations", "clock"


def as_text_and_times(values: np.ndarray, *, keep_times: bool = False) -> tuple[np.ndarray, bool | None]:
    """Convert objects (n,): bytes to text, times of one kind to NumPy times. Also return a zone flag, or None."""
    types = set(map(type, values.tolist()))
    if any(issubclass(kind, bytes) for kind in types):
        values = np.array([*map(as_text, values.tolist()), None], dtype=object)[:-1]
    if keep_times or not any(map(_time_kind, types)):
        return values, None
    return _as_times(values)


def _as_times(values: np.ndarray) -> tuple[np.ndarray, bool | None]:
    """Convert times of one kind to NumPy times, and return whether they have a zone; leave other values unchanged."""
    present = [None if is_missing(value) else value for value in values.tolist()]
    known = [value for value in present if value is not None]
    kinds = {_time_kind(type(value)) for value in known}
    zones = set(map(_is_zoned, known))
    if len(kinds) != 1 or kinds == {""} or len(zones) != 1:
        return values, None
    if kinds == {MOMENTS}:
        return np.array(list(map(_moment, present)), dtype="datetime64[us]"), zones.pop()
    return np.array(list(map(_duration, present)), dtype="timedelta64[us]"), None


def _time_kind(kind: type) -> str:
    if issubclass(kind, date | np.datetime64) or kind.__name__ == "Period":
        return MOMENTS
    return DURATIONS if issubclass(kind, timedelta | np.timedelta64) else CLOCK if issubclass(kind, time) else ""


def _is_zoned(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _moment(value: Any) -> Any:
    if type(value).__name__ == "Period":
        return value.start_time.to_datetime64()
    return value.astimezone(UTC).replace(tzinfo=None) if _is_zoned(value) else value


def _duration(value: Any) -> Any:
    return datetime.combine(date.min, value.replace(tzinfo=None)) - datetime.min if isinstance(value, time) else value


def as_levels(values: np.ndarray) -> np.ndarray:
    """Levels (n,) as text or numbers. Other hashable values become their text, if their type defines it."""
    if values.dtype != object or all(_is_level(kind) for kind in set(map(type, values.tolist()))):
        return values
    levels = np.empty(len(values), dtype=object)
    levels[:] = [_text(value) for value in values.tolist()]
    return levels


def _is_level(kind: type) -> bool:
    return issubclass(kind, str) or (issubclass(kind, NUMBERS) and not _time_kind(kind))


def _text(value: Any) -> Any:
    unnamed = type(value).__str__ is object.__str__ and type(value).__repr__ is object.__repr__
    if is_missing(value) or _is_level(type(value)) or unnamed or not is_level_like(value):
        return value
    return str(built_in(value))


def is_level_like(value: Any) -> bool:
    """True if a value can be a level: it is hashable, and not a set, whose text has no fixed order."""
    try:
        hash(value)
    except TypeError:  # a tuple of lists
        return False
    return isinstance(value, Hashable) and not isinstance(value, Set)


def in_pandas(name: str, conversion: str) -> str:
    """Statement that converts a column, for messages; "X[k]" stands for the column in ``conversion``."""
    column = f"X[{name.removeprefix('column ')}]"
    start = "" if column.startswith(("X['", 'X["')) else "X = pandas.DataFrame(X); "
    return f"{start}{column} = {conversion.replace('X[k]', column)}"


def keys_of(names: Sequence[Any] | None) -> tuple[str, ...]:
    """Text of each name, the same for equal numbers of any type; empty without names or if all are strings."""
    if names is None or all(isinstance(name, str) for name in names):
        return ()
    return tuple(repr(built_in(name)) for name in names)


def built_in(name: Any) -> Any:
    """Convert a column name to built-in types, also within tuples; whole floats become integers."""
    if isinstance(name, tuple):
        return tuple(built_in(part) for part in name)
    name = name.item() if isinstance(name, np.generic) else name
    return int(name) if isinstance(name, float) and name.is_integer() else name


def check_names(estimator: Any, names: Sequence[Any] | None, *, reset: bool) -> None:
    """Store the column names of a fit; raise ``ValueError`` if a later table has other names or another order."""
    given, fitted = keys_of(names), estimator._column_names
    if reset:
        if given:
            estimator._column_names = given
        elif fitted:
            del estimator._column_names
    elif len(given) == len(fitted) and given != fitted:  # scikit-learn compares the numbers of columns
        place = next(k for k, pair in enumerate(zip(given, fitted, strict=True)) if pair[0] != pair[1])
        order = "in another order" if sorted(given) == sorted(fitted) else "under other names"
        raise ValueError(
            f"X has the columns of the fit {order}: column {place} is named {given[place]}, and was {fitted[place]} in "
            "the fit. Pass the same columns in the same order: X[list(X_train.columns)]."
        )


CATEGORIES = ("category", "categorical", "enum")
"""Beginnings of the names of categorical data types in pandas and polars, in lower case."""
TIMES = {
    **dict.fromkeys(("datetime", "date", "timestamp"), "datetime64[us]"),
    **dict.fromkeys(("timedelta", "duration"), "timedelta64[us]"),
}
"""Beginnings of the names of time data types in pandas, polars and Arrow, and the NumPy type they are read as."""
COARSE = {"Y", "M", "W", "D", "h", "m", "s", "ms"}
"""Time units that convert to microseconds without rounding."""
DAY = 86_400e6
"""Microseconds per day."""
KNOWN = ("Complex", "Expected", "Found", "Sparse")
"""Beginnings of scikit-learn's messages that already state the reason."""
AS_NUMBERS = "pandas.to_numeric(X[k], errors='coerce')"
"""Conversion of a column to numbers, for messages."""
NAMED = 5
"""Maximum number of values, columns or rows listed in a message."""


def is_plain(X: Any) -> bool:
    """True if X needs no encoding: a table of numbers only, or invalid input left to scikit-learn's checks."""
    if column_names(X) is not None:
        return all(values.dtype.kind in "biufc" and not _is_category(kind) for values, kind in _arrays(X))
    if isinstance(X, list | tuple):
        try:
            X = np.asarray(X)
        except ValueError:
            return True
    return not (isinstance(X, np.ndarray) and X.ndim == 2 and X.size > 0 and X.dtype.kind in "OUSTMm")


def check_rows(estimator: Any, X: Any, y: Any = None, *, tables: bool, reset: bool, **how: Any) -> tuple[Any, Any]:
    """Return X and y, validated by scikit-learn: X as float64 unless it needs encoding, y with the options ``how``.

    Without ``tables``, X must hold finite numbers. Without ``how``, the second value is None.
    """
    if X is None:
        raise ValueError("X is None; pass a table of shape (n_samples, n_features).")
    if tables and not (reset or how) and _is_ready(estimator, X):
        return X, None
    X = readable(X, "X")
    names = column_names(X)
    _check_unique(names)
    check_names(estimator, names, reset=reset)
    targets: dict[str, Any] = {"y": y, **how} if how else {}
    X = with_gaps(X) if tables else _numbers_all_there(X)
    if not tables or is_plain(X):
        finite = {"ensure_all_finite": False} if tables else {}
        try:
            validated = validate_data(estimator, X, dtype=np.float64, order="C", reset=reset, **targets, **finite)
        except Exception as error:  # raised by NumPy, scikit-learn or the library of the table
            _explain_rows(X, y, error)
            _explain(X, error, tables)
            raise
        return validated if how else (validated, None)
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    rows = np.zeros((_num_samples(X), 1))
    if not how:
        check_array(rows, estimator=estimator)
        return X, None
    check_lengths(len(rows), y)
    return X, check_X_y(rows, y, estimator=estimator, **how)[1]


def _is_ready(estimator: Any, X: Any) -> bool:
    """True for an array that a fitted estimator takes unchanged. Slower checks are then skipped."""
    if type(X) is not np.ndarray or X.dtype != np.float64 or X.ndim != 2 or not len(X):
        return False
    return X.shape[1] == estimator.n_features_in_ and getattr(estimator, "feature_names_in_", None) is None


def with_gaps(X: Any) -> Any:
    """Convert a NumPy masked array to an array with missing values; return other input unchanged."""
    if not isinstance(X, np.ma.MaskedArray):
        return X
    mask, values = np.ma.getmaskarray(X), X.data
    if not mask.any() or values.dtype.kind not in "biufmMOUS":
        return values
    if values.dtype.kind in "mM":
        return np.where(mask, np.array("NaT", dtype=values.dtype), values)
    gap, dtype = (np.nan, np.float64) if values.dtype.kind in "biuf" else (None, np.object_)
    return np.where(mask, np.array(gap, dtype=dtype), values.astype(dtype))


def _numbers_all_there(X: Any) -> Any:
    if isinstance(X, np.ma.MaskedArray) and (mask := np.ma.getmaskarray(X)).any():
        raise ValueError(
            f"X is a masked array with {mask.sum()} masked values, the first in row {np.argwhere(mask)[0, 0]}; the "
            "given net needs a number in every cell. Impute them (sklearn.impute.SimpleImputer in a pipeline, on "
            "X.filled(numpy.nan)), or use net=None, which treats masked values as missing."
        )
    return X


def _check_unique(names: Sequence[Any] | None) -> None:
    if names is not None and len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(
            f"X has {names.count(twice)} columns named {twice!r}. Rename them, or keep the first of each name: "
            "X.loc[:, ~X.columns.duplicated()]."
        )


def _explain_rows(X: Any, y: Any, error: Exception) -> None:
    """Raise a clearer ``ValueError`` if X and y are swapped or have different lengths."""
    if str(error).startswith("Found input variables with inconsistent"):
        check_lengths(_num_samples(X), y)
    if y is not None and str(error).startswith("Expected 2D array, got 1D") and np.ndim(y) == 2:
        raise ValueError(
            f"Expected 2D array, got 1D array instead: X has shape {np.shape(X)} and y has shape {np.shape(y)}. If "
            "they are swapped, call fit(X, y)."
        ) from error


def _explain(X: Any, error: Exception, tables: bool) -> None:
    """Raise a clearer ``ValueError`` or ``TypeError`` if the shape, sparsity or a column of X caused ``error``."""
    if issparse(X):
        raise TypeError(
            "Sparse data was passed for X, but dense data is required: X.toarray(). In a pipeline, set "
            "sparse_output=False in the encoder and sparse_threshold=0 in a ColumnTransformer, or add a step before "
            "this one: FunctionTransformer(operator.methodcaller('toarray'), accept_sparse=True) of "
            "sklearn.preprocessing."
        ) from error
    is_known = str(error).startswith(KNOWN) and (isinstance(X, np.ndarray) or not str(error).startswith("Expected"))
    if not is_known and (reason := no_table(X)):
        raise ValueError(reason) from error
    if not tables and (not is_plain(X) or str(error).startswith("Input X contains NaN")):
        _explain_columns(X, error)


def _explain_columns(X: Any, error: Exception) -> None:
    """Raise a clearer ``ValueError`` if columns hold text, times or missing values, which a user's net cannot read."""
    names, text, incomplete = column_names(X), [], []
    for place, (column, zone) in enumerate(zip(*read_columns(X)[::2], strict=True)):
        label = _label(names, place)
        if zone is not None:
            text.append(label)
            continue
        try:
            absent = np.flatnonzero(np.isnan(_numbers(column, label)))
        except ValueError as reason:
            if isinstance(error, OverflowError):
                raise reason from None
            text.append(label)
        else:
            incomplete += [f"{label}, the first in row {absent[0]}"] if absent.size else []
    if text:
        raise ValueError(
            f"the given net accepts only numbers; X has other values in {first_of(text)}. Encode them in a pipeline "
            "(sklearn.preprocessing.OneHotEncoder, or OrdinalEncoder for a net with embeddings), or use net=None, "
            "which encodes the table itself."
        ) from error
    if incomplete:
        raise ValueError(
            f"Input X contains NaN in {incomplete[0]}; the given net accepts only numbers. Impute the missing values "
            "(SimpleImputer in a pipeline), or use net=None, which accepts missing values."
        ) from error


def column_names(X: Any) -> list[Any] | None:
    names = getattr(X, "columns", None)
    return None if names is None or getattr(X, "dtypes", None) is None else list(names)


def first_of(names: Sequence[object], most: int = NAMED) -> str:
    """The first names, separated by commas, for a message."""
    return ", ".join(map(str, names[:most])) + (", …" if len(names) > most else "")


def _width(X: Any) -> int:
    return int(X.shape[1])


def _label(names: Sequence[Any] | None, place: int) -> str:
    return f"column {place}" if names is None else f"column {names[place]!r}"


def read_columns(X: Any, text: Sequence[bool] | None = None) -> tuple[list[np.ndarray], list[bool], list[bool | None]]:
    """Return for each column: values (n,), float64 or object; True for a categorical data type; and a zone flag.

    Columns marked in ``text`` were text in training. They stay text even if they look like numbers or times. The flag
    is True for times with a time zone, False for times without one, and None for other columns.
    """
    arrays, types = _arrays_and_types(X)
    kept = text or [False] * len(arrays)
    values, zoned = [], list[bool | None]()
    for column, kind, is_text in zip(arrays, types, kept, strict=True):
        zone = _zone(kind) if column.dtype.kind == "M" else None
        if column.dtype.kind == "S":
            column = np.char.decode(column, errors=UNDECODED)
        elif column.dtype.kind == "O":
            column, zone = as_text_and_times(column, keep_times=is_text or _is_category(kind))
        values.append(column.astype(object) if is_text and column.dtype.kind == "U" else _plain(column))
        zoned.append(zone)
    return values, [_is_category(kind) for kind in types], zoned


def _arrays_and_types(X: Any) -> tuple[list[np.ndarray], list[Any]]:
    """Columns of a table as arrays (n,), and their data types, which are None for an array."""
    if column_names(X) is None:
        array = np.asarray(X, dtype=object) if isinstance(X, list | tuple) else np.asarray(X)
        return [array[:, k] for k in range(_width(array))], [None] * _width(array)
    arrays, types = map(list, zip(*_arrays(X), strict=True))
    return arrays, types


def named_columns(X: Any) -> Iterator[tuple[str, np.ndarray, bool]]:
    """Yield the name, the values (n,) and a flag for times of each column; yield nothing if X is not a table.

    Numbers are float64, also in lists of rows and in arrays of objects; other values are objects.

    >>> [(name, values.dtype.kind) for name, values, _ in named_columns([[1.5, "a"], [None, "b"]])]
    [('column 0', 'f'), ('column 1', 'O')]
    """
    names = column_names(X)
    columns = X if names is not None else np.asarray(X, dtype=object if isinstance(X, list | tuple) else None)
    if len(np.shape(columns)) != 2:
        return
    for place, (values, zoned) in enumerate(zip(*read_columns(columns)[::2], strict=True)):
        name = f"column {place}" if names is None else str(names[place])
        is_number = values.dtype == object and _are_numbers(values.tolist())
        yield name, _numbers(values, name) if is_number else values, zoned is not None


def _are_numbers(values: Sequence[Any]) -> bool:
    """True if there are values that are not missing, and all of these are numbers other than True and False."""
    present = [value for value in values if not is_missing(value)]
    return bool(present) and all(isinstance(v, NUMBERS) and not isinstance(v, bool | np.bool_) for v in present)


def _arrays(X: Any) -> Iterator[tuple[np.ndarray, Any]]:
    """Columns of a dataframe as arrays (n,), each with its data type."""
    for place in range(_width(X)):
        series = _safe_indexing(X, place, axis=1)
        kind = str(series.dtype).lower()
        unit = next((unit for start, unit in TIMES.items() if kind.startswith(start)), None)
        try:
            values = np.asarray(series) if unit is None else _times(series, unit)
        except Exception as error:  # conversions of third-party types may raise anything
            raise TypeError(
                f"{_label(column_names(X), place)} of X has the data type {series.dtype}, which numpy cannot read "
                f"({error}). Cast it to numbers or strings."
            ) from error
        if values.ndim != 1 or values.dtype.kind == "V":
            raise TypeError(
                f"{_label(column_names(X), place)} of X has the data type {series.dtype}, with several values per "
                "row. Split it into one column per value."
            )
        yield values, series.dtype


def _is_category(kind: Any) -> bool:
    return str(kind).lower().startswith(CATEGORIES)


def _times(series: Any, unit: str) -> np.ndarray:
    """Times as a NumPy array, in UTC; pandas converts times of Arrow only as timestamps without a time zone."""
    of_arrow = getattr(series.dtype, "pyarrow_dtype", None)
    if of_arrow is not None and _zone(of_arrow):
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    elif of_arrow is not None and str(of_arrow).startswith("date"):
        series = series.astype("timestamp[us][pyarrow]")
    return np.asarray(series, dtype=unit)


def _zone(kind: Any) -> bool:
    """True if a time data type of pandas, polars or Arrow has a time zone."""
    kind = getattr(kind, "pyarrow_dtype", kind)
    return getattr(kind, "tz", getattr(kind, "time_zone", None)) is not None


def _plain(values: np.ndarray) -> np.ndarray:
    """Numbers, NumPy text that is all numeric, and times (in days) as float64; other values as objects."""
    if values.dtype.kind in "mM":
        micro = values.astype(f"{values.dtype.kind}8[us]")
        wrapped = (micro.astype(values.dtype) != values) & ~np.isnat(values)
        if np.datetime_data(values.dtype)[0] in COARSE and wrapped.any():
            raise ValueError("X holds times more than 290,000 years from 1970. Convert them to numbers.")
        return np.where(np.isnat(micro), np.nan, micro.astype(np.int64) / DAY)
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    if values.dtype.kind in "US":  # NumPy turns all columns of a mixed array into text; convert numeric ones back
        try:
            return values.astype(np.float64)
        except ValueError:
            return values.astype(object)
    return values.astype(object)


def _kinds(values: np.ndarray, name: str, *, mixed: bool = False) -> set[type]:
    """Kinds of the non-missing values of a column, subset of {str, Real}; ``ValueError`` for both unless ``mixed``."""
    if values.dtype.kind == "f":
        return {Real} if not np.isnan(values).all() else set()
    types_of: dict[type, set[type]] = {}
    for kind in {type(value) for value in values if not is_missing(value)}:
        types_of.setdefault(_kind(kind), set()).add(kind)
    if object in types_of:
        _refuse_objects(values, types_of[object], name)
    if len(types_of) > 1 and not mixed:
        number, text = _first(values, types_of[Real]), _first(values, types_of[str])
        raise ValueError(
            f"{name} of X holds numbers and strings, such as {number!r} and {text!r}. Convert all of "
            f"them to numbers, and others to NaN: {in_pandas(name, AS_NUMBERS)}. Or read all of them as categories: "
            f"{in_pandas(name, 'X[k].astype(str)')}."
        )
    return set(types_of)


def _kind(kind: type) -> type:
    """``str`` for types of text, ``Real`` for those of numbers, ``object`` for others."""
    if issubclass(kind, str):
        return str
    return Real if issubclass(kind, NUMBERS) and not issubclass(kind, np.timedelta64) else object


def _first(values: np.ndarray, types: set[type]) -> Any:
    return next(value for value in values if type(value) in types)


def _refuse_objects(values: np.ndarray, kinds: set[type], name: str) -> None:
    """Raise an error about values that are neither strings nor numbers; the message shows a conversion."""
    zones = {value.tzinfo is None for value in values if isinstance(value, datetime) and not is_missing(value)}
    if len(zones) > 1:
        raise ValueError(
            f"{name} of X holds times with and without a time zone. Convert all of them to UTC: "
            f"{in_pandas(name, 'pandas.to_datetime(X[k], utc=True)')}."
        )
    found = [value for value in values if type(value) in kinds and not is_missing(value)]
    if all(map(is_level_like, found)):
        cure, conversion = "categories", "X[k].astype('category')"
    else:
        cure, conversion = "text, or make a column of each part", "X[k].map(str)"
    raise TypeError(
        f"{name} of X holds {shown(found[0])}; each argument must be a string or a real number, or all of them times. "
        f"Convert the column to {cure}: {in_pandas(name, conversion)}."
    )


def _numbers(values: np.ndarray, name: str, *, of_fit: bool = True) -> np.ndarray:
    """Values of a numeric column as float64, NaN for missing ones; ``ValueError`` for strings."""
    if values.dtype.kind == "f":
        return values
    if _kinds(values, name) == {str}:
        example = next(value for value in values if not is_missing(value))
        cure = (
            "expected numbers. Convert the column to numbers, fit with categorical_features='from_dtype', or add this "
            "column to categorical_features."
            if of_fit
            else "the training rows had numbers. Convert the column to numbers, and other values to NaN: "
            f"{in_pandas(name, AS_NUMBERS)}."
        )
        raise ValueError(f"could not convert string to float: {example!r} in {name} of X; {cure}")
    return np.array([np.nan if is_missing(value) else as_float(value, f"{name} of X") for value in values])


def _level(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return str.__str__(value)  # the value of an enum, not its name
    return int(value) if isinstance(value, Integral | np.bool_) else as_float(value, f"{name} of X")
