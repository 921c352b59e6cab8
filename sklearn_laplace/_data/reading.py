"""Read columns of arrays and data frames: values, names, data types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing, check_array, check_X_y
from sklearn.utils.validation import _num_samples, validate_data

from .._validation.inputs import NUMBERS, as_float, is_missing, no_table, readable, shown

CATEGORIES = ("category", "categorical", "enum")
"""How the data types begin by which pandas and polars call a column categorical."""
TIMES = {"datetime": "datetime64[us]", "date": "datetime64[us]", "timedelta": "timedelta64[us]"}
COARSE = {"Y", "M", "W", "D", "h", "m", "s", "ms"}
"""Units of times that microseconds hold exactly."""
DAY = 86_400e6
"""Microseconds."""
KNOWN = ("Complex", "Expected", "Found", "Sparse")
"""How scikit-learn's messages begin that give the reason themselves."""
NAMED = 5
"""Values, columns or rows that a message lists."""


def is_plain(X: Any) -> bool:
    """Whether X is a table of numbers already, or whatever else scikit-learn is to judge.

    Examples
    --------
    >>> is_plain([[1.0, 2]]), is_plain([["a", 2]])
    (True, False)
    """
    if column_names(X) is not None:
        return all(values.dtype.kind in "biufc" for values, _ in _arrays(X))
    if isinstance(X, list | tuple):
        try:
            X = np.asarray(X)
        except ValueError:
            return True
    return not (isinstance(X, np.ndarray) and X.ndim == 2 and X.size > 0 and X.dtype.kind in "OUSTMm")


def check_rows(estimator: Any, X: Any, y: Any = None, *, tables: bool, reset: bool, **how: Any) -> tuple[Any, Any]:
    """X and y as scikit-learn validates them; X of strings, categories or times as it is, to be coded.

    Parameters
    ----------
    estimator : estimator
        Whose ``n_features_in_`` and ``feature_names_in_`` are set, or checked.
    X, y : array-like
        No targets are validated where y is None and ``reset`` is not set.
    tables : bool
        Whether the net takes real tables; otherwise X has to hold finite numbers.
    reset : bool
        Whether this is a fit.
    **how
        Options of ``sklearn.utils.check_X_y`` for y.

    Raises
    ------
    ValueError
    TypeError
    """
    X = readable(X, "X")
    given: dict[str, Any] = {"y": y, **how} if how else {}
    X = with_gaps(X) if tables else _numbers_all_there(X)
    if not tables or is_plain(X):
        finite = {"ensure_all_finite": False} if tables else {}
        try:
            found = validate_data(estimator, X, dtype=np.float64, order="C", reset=reset, **given, **finite)
        except Exception as error:  # of numpy, scikit-learn or whoever has made the table
            _explain(X, error, tables)
            raise
        return found if how else (found, None)
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    rows = np.zeros((_num_samples(X), 1))
    if not how:
        check_array(rows, estimator=estimator)
        return X, None
    return X, check_X_y(rows, y, estimator=estimator, **how)[1]


def with_gaps(X: Any) -> Any:
    """X with its masked values as missing ones, where it is a numpy masked array.

    Examples
    --------
    >>> with_gaps(np.ma.array([[1, 2], [3, 4]], mask=[[False, True], [False, False]]))
    array([[ 1., nan],
           [ 3.,  4.]])
    """
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
            f"X is a masked array with {mask.sum()} masked values, first in row {np.argwhere(mask)[0, 0]}, and the "
            "given net needs numbers in all places. Impute them (sklearn.impute.SimpleImputer in a pipeline, on "
            "X.filled(numpy.nan)), or use net=None, which takes masked values as missing ones."
        )
    return X


def _explain(X: Any, error: Exception, tables: bool) -> None:
    """Raise an error that names the column of X, or what its shape lacks, where one of them is to blame.

    Raises
    ------
    ValueError
    TypeError
    """
    if not str(error).startswith(KNOWN) and (reason := no_table(X)):
        raise ValueError(reason) from error
    if tables or is_plain(X):
        return
    names, text, incomplete = column_names(X), [], []
    for place, column in enumerate(_read(X)[0]):
        label = _label(names, place)
        try:
            absent = np.flatnonzero(np.isnan(_numbers(column, label)))
        except ValueError as reason:
            if isinstance(error, OverflowError):
                raise reason from None
            text.append(label)
        else:
            incomplete += [f"{label}, first in row {absent[0]}"] if absent.size else []
    if text:
        raise ValueError(
            f"the given net takes numbers, and {_few(text)} of X holds something else. Encode it in a pipeline "
            "(sklearn.preprocessing.OneHotEncoder, or OrdinalEncoder for a net with embeddings), or use net=None, "
            "which takes the table as it is."
        ) from error
    if incomplete:
        raise ValueError(
            f"Input X contains NaN in {incomplete[0]}, and the given net takes numbers. Impute them (SimpleImputer in "
            "a pipeline), or use net=None, which takes missing values."
        ) from error


def column_names(X: Any) -> list[Any] | None:
    """The names of a dataframe's columns, whichever library it is of; None for arrays.

    Examples
    --------
    >>> column_names(np.zeros((2, 1))) is None
    True
    """
    names = getattr(X, "columns", None)
    return None if names is None or getattr(X, "dtypes", None) is None else list(names)


def _few(names: Sequence[object], most: int = NAMED) -> str:
    return ", ".join(map(str, names[:most])) + (", …" if len(names) > most else "")


def _width(X: Any) -> int:
    return int(X.shape[1])


def _label(names: Sequence[Any] | None, place: int) -> str:
    return f"column {place}" if names is None else f"column {names[place]!r}"


def _read(X: Any, text: Sequence[bool] | None = None) -> tuple[list[np.ndarray], list[bool], list[bool | None]]:
    """The values of the columns (float64 or object), which have a categorical data type, and which times a zone.

    Columns that were text in the training are text, whatever the values that happen to be there look like.
    """
    if column_names(X) is None:
        array = np.asarray(X, dtype=object) if isinstance(X, list | tuple) else np.asarray(X)
        columns, kept = [array[:, k] for k in range(_width(array))], text or [False] * _width(array)
        values = [
            column.astype(object) if is_text and column.dtype.kind in "US" else _plain(column)
            for column, is_text in zip(columns, kept, strict=True)
        ]
        is_time = array.dtype.kind == "M"
        return values, [False] * len(values), [False if is_time else None] * len(values)
    arrays, types = zip(*_arrays(X), strict=True)
    values, kinds = [_plain(column) for column in arrays], [str(kind).lower() for kind in types]
    zoned: list[bool | None] = [
        _zone(kind) if column.dtype.kind == "M" else None for column, kind in zip(arrays, types, strict=True)
    ]
    return values, [kind.startswith(CATEGORIES) for kind in kinds], zoned


def _arrays(X: Any) -> Iterator[tuple[np.ndarray, Any]]:
    """A dataframe's columns as arrays (n,), with their data types.

    Raises
    ------
    TypeError
        For several values in each row.
    """
    for place in range(_width(X)):
        series = _safe_indexing(X, place, axis=1)
        kind = str(series.dtype).lower()
        unit = next((unit for start, unit in TIMES.items() if kind.startswith(start)), None)
        try:
            values = np.asarray(series) if unit is None else np.asarray(series, dtype=unit)
        except Exception as error:  # whatever a conversion of somebody else's raises
            raise TypeError(
                f"{_label(column_names(X), place)} of X has the data type {series.dtype}, which numpy cannot read "
                f"({error}). Cast it to numbers or strings."
            ) from error
        if values.ndim != 1 or values.dtype.kind == "V":
            raise TypeError(
                f"{_label(column_names(X), place)} of X has the data type {series.dtype}, several values in each row. "
                "Make a column of each of them."
            )
        yield values, series.dtype


def _zone(kind: Any) -> bool:
    """Whether a data type of times, of pandas or of polars, has a time zone."""
    return getattr(kind, "tz", getattr(kind, "time_zone", None)) is not None


def _plain(values: np.ndarray) -> np.ndarray:
    """Numbers and times as float64, all else as it is."""
    if values.dtype.kind in "mM":
        micro = values.astype(f"{values.dtype.kind}8[us]")
        wrapped = (micro.astype(values.dtype) != values) & ~np.isnat(values)
        if np.datetime_data(values.dtype)[0] in COARSE and wrapped.any():
            raise ValueError("X holds times more than 290,000 years from 1970. Make numbers of them.")
        return np.where(np.isnat(micro), np.nan, micro.astype(np.int64) / DAY)
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    if values.dtype.kind in "US":  # an array has one type for all columns: numbers that it has turned to text
        try:
            return values.astype(np.float64)
        except ValueError:
            return values.astype(object)
    return values.astype(object)


def _kinds(values: np.ndarray, name: str) -> set[type]:
    """Of what is not missing: str, Real, or neither of them, which is refused.

    Raises
    ------
    TypeError
    ValueError
        For numbers and strings in one column.
    """
    if values.dtype.kind == "f":
        return {Real} if not np.isnan(values).all() else set()
    kinds = {type(value) for value in values if not is_missing(value)}
    text = {kind for kind in kinds if issubclass(kind, str)}
    numbers = {kind for kind in kinds if issubclass(kind, NUMBERS)}
    if other := kinds - text - numbers:
        zones = {value.tzinfo is None for value in values if isinstance(value, datetime) and not is_missing(value)}
        if len(zones) > 1:
            raise ValueError(
                f"{name} of X holds times with and without a time zone. Give all in UTC, for example by "
                "pandas.to_datetime(column, utc=True)."
            )
        example = next(value for value in values if type(value) in other)
        raise TypeError(
            f"{name} of X holds {shown(example)}; the argument must be a string or a real number, in each of its rows. "
            "Make a column of numbers or of strings of it (a date: pandas.to_datetime), or drop it."
        )
    if text and numbers:
        examples = [next(v for v in values if type(v) in kinds) for kinds in (numbers, text)]
        raise ValueError(
            f"{name} of X holds numbers and strings, such as {examples[0]!r} and {examples[1]!r}. Make numbers of all "
            "of them, with NaN for what is missing (pandas.to_numeric(column, errors='coerce')), or strings "
            "(column.astype(str)), which are categories."
        )
    return {str} if text else {Real} if numbers else set()


def _numbers(values: np.ndarray, name: str) -> np.ndarray:
    """Values as float64.

    Raises
    ------
    ValueError
        For strings.
    """
    if values.dtype.kind == "f":
        return values
    if _kinds(values, name) == {str}:
        example = next(value for value in values if not is_missing(value))
        raise ValueError(
            f"could not convert string to float: {example!r} in {name} of X, where numbers are expected. Make numbers "
            "of them, or fit with categorical_features='from_dtype', or with this column among categorical_features."
        )
    return np.array([np.nan if is_missing(value) else as_float(value, f"{name} of X") for value in values])


def _level(value: Any, name: str) -> Any:
    """A plain Python value that equals it."""
    if isinstance(value, str):
        return str.__str__(value)  # of an enum the value, not the name
    return int(value) if isinstance(value, Integral | np.bool_) else as_float(value, f"{name} of X")
