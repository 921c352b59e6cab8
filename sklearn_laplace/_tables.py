r"""A table as it was read, coded as numbers: what a column holds, its levels, what is missing, which tails are heavy.

A column is numeric or categorical. Numbers stay what they are (booleans are 0 and 1, times days, since 1970 where they
are dates), and a missing one is NaN. A level becomes its position among the levels of the training; one that did not
occur there gets the position behind them. All that comes later sees a float64 matrix.

Values decide, not types: 1, 1.0 and True are one level, in a categorical column of integers as in one of floats. Sums
over rows are by weight, and rows of weight zero say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.utils import _safe_indexing, check_array, check_X_y
from sklearn.utils.validation import _num_samples, validate_data

from ._given import NUMBERS, as_float, is_missing, no_table, readable, shown
from .errors import NonFiniteError

MAX_LEVELS = 1000
"""Levels of a column with embeddings of their own, the most frequent ones; rarer ones share one."""
CATEGORIES = ("category", "categorical", "enum")
"""How the data types begin by which pandas and polars call a column categorical."""
TIMES = {"datetime": "datetime64[us]", "date": "datetime64[us]", "timedelta": "timedelta64[us]"}
TIMES["duration"] = TIMES["timedelta"]
COARSE = {"Y", "M", "W", "D", "h", "m", "s", "ms"}
"""Units of times that microseconds hold exactly."""
DAY = 86_400e6
"""Microseconds."""
HEAVY_TAIL = 20.0
"""Distance from the median, in robust standard deviations, that only heavy tails reach."""
DECADES = 1e3
"""Quotient of the ends of the central 90 % of positive numbers from which on their logarithm is what varies."""
TAILS = 0.05
"""Left out at each end by the robust standard deviation."""
NORMAL_RANGE = 3.2897072539029444
"""Of the central 90 % of a standard normal distribution."""
KNOWN = ("Complex", "Expected", "Found", "Sparse")
"""How scikit-learn's messages begin that give the reason themselves."""
NAMED = 5
"""Values, columns or rows that a message lists."""


@dataclass(frozen=True)
class Categorical:
    """Which columns are categorical, as it was asked for.

    Parameters
    ----------
    by_type : bool
        Those whose values are strings or whose data type is categorical.
    columns : tuple of str, int or bool
        Names, positions, or a mask.
    """

    by_type: bool
    columns: tuple[Any, ...] = ()

    def positions(self, names: Sequence[str] | None, d: int) -> set[int]:
        """The positions of the columns that were given, of d columns with or without names.

        Raises
        ------
        ValueError

        Examples
        --------
        >>> Categorical(False, (True, False)).positions(["a", "b"], 2), Categorical(False, (-1,)).positions(None, 2)
        ({0}, {1})
        """
        given = self.columns
        if given and all(isinstance(column, bool | np.bool_) for column in given):
            if len(given) != d:
                raise ValueError(f"categorical_features is a mask of {len(given)} values, and X has {d} columns.")
            return {place for place, chosen in enumerate(given) if chosen}
        found = set()
        for column in given:
            if isinstance(column, str):
                if names is None:
                    raise ValueError(
                        f"categorical_features names {column!r}, and X has no column names; give positions or a mask."
                    )
                if column not in names:
                    raise ValueError(f"categorical_features names {column!r}; the columns of X are {_few(names, 20)}.")
                found.add(list(names).index(column))
            elif not -d <= int(column) < d:
                raise ValueError(f"categorical_features holds {column!r}, and X has {d} columns, 0 to {d - 1}.")
            else:
                found.add(int(column) % d)
        return found


@dataclass(frozen=True)
class Column:
    """What the training has seen in a column.

    Parameters
    ----------
    name : str
        For messages.
    n_levels : int
        V, with those of the missing and of the rare ones; 0 for numbers.
    codes : tuple of (level, int)
        The code of each level.
    missing : int or None
        The code of a missing level; V where none was missing.
    has_missing : bool
        Whether some numbers were missing.
    is_empty : bool
        Whether all were.
    heavy : bool
        Whether numbers have heavy tails.
    zoned : bool or None
        Whether times have a time zone; None for what are no times.
    """

    name: str
    n_levels: int = 0
    codes: tuple[tuple[Any, int], ...] = ()
    missing: int = 0
    has_missing: bool = False
    is_empty: bool = False
    heavy: bool = False
    zoned: bool | None = None

    @property
    def flagged(self) -> bool:
        """Whether an indicator says which numbers are missing."""
        return self.has_missing and not self.is_empty


@dataclass(frozen=True)
class Table:
    """The columns of a training.

    Parameters
    ----------
    columns : tuple of Column

    Examples
    --------
    >>> X = np.array([["a", 1.0], ["b", None], ["a", 3.0]], dtype=object)
    >>> table = Table.of(X, np.ones(3), Categorical(True))
    >>> table.coded(X)
    array([[ 0.,  1.],
           [ 1., nan],
           [ 0.,  3.]])
    >>> table.coded(np.array([["c", 2.0]], dtype=object))
    array([[2., 2.]])
    """

    columns: tuple[Column, ...]

    @property
    def levels(self) -> tuple[int, ...]:
        """Levels of each column, 0 for numbers."""
        return tuple(column.n_levels for column in self.columns)

    @property
    def flagged(self) -> tuple[bool, ...]:
        """Which columns have an indicator of what is missing."""
        return tuple(column.flagged for column in self.columns)

    @property
    def numeric(self) -> np.ndarray:
        """Positions of the columns of numbers."""
        return np.flatnonzero(np.asarray(self.levels) == 0)

    @classmethod
    def of(cls, X: Any, weights: np.ndarray, asked: Categorical, names: Sequence[str] | None = None) -> Table:
        """The table of a training.

        Parameters
        ----------
        X : ndarray of shape (n, d), dataframe or list of rows
        weights : ndarray of shape (n,)
        asked : Categorical
        names : sequence of str, optional
            Of the columns, where X has them no longer.
        """
        values, is_category, zoned = _read(X)
        names = column_names(X) if names is None else names
        given, found = asked.positions(names, len(values)), []
        for place, (column, is_one) in enumerate(zip(values, is_category, strict=True)):
            label = _label(names, place)
            if place in given or (asked.by_type and (is_one or _kinds(column, label) == {str})):
                found.append(_levels_of(label, column, weights))
            else:
                numbers = _numbers_of(label, column[weights > 0], weights[weights > 0])
                found.append(replace(numbers, zoned=zoned[place]))
        return cls(tuple(found))

    def coded(self, X: Any, weights: np.ndarray | None = None) -> np.ndarray:
        """Rows as numbers, shape (n, d), float64.

        Raises
        ------
        ValueError
            For infinite numbers, and for missing ones where the training had none, in rows that count.
        TypeError
            For values that are neither strings nor numbers.
        """
        text = [any(isinstance(level, str) for level, _ in column.codes) for column in self.columns]
        values, _, zoned = _read(X, text)
        coded = np.empty((len(values[0]), len(values)))
        for place, (column, given) in enumerate(zip(self.columns, values, strict=True)):
            _check_zone(column, zoned[place])
            if column.n_levels:
                coded[:, place] = _codes(column, given)
            else:
                coded[:, place] = _numbers(given, column.name)
                _check_numbers(column, coded[:, place], weights)
        return coded


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


def _check_zone(column: Column, zoned: bool | None) -> None:
    """Times with and without a zone differ by hours that nobody knows."""
    if column.zoned is not None and zoned is not None and column.zoned != zoned:
        kinds = [f"times {'with' if zone else 'without'} a time zone" for zone in (zoned, column.zoned)]
        raise ValueError(
            f"{column.name} of X holds {kinds[0]}, and the training had {kinds[1]}. Give both in UTC, for example by "
            "pandas.to_datetime(column, utc=True)."
        )


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


def _check_numbers(column: Column, values: np.ndarray, weights: np.ndarray | None) -> None:
    if np.isinf(values).any():
        raise ValueError(
            f"Input X contains infinity or a value too large for dtype('float64'), in {column.name}. Replace it by a "
            "number, or by NaN where it is not known."
        )
    absent = np.flatnonzero(np.isnan(values) & (True if weights is None else weights > 0))
    if absent.size and not column.has_missing:
        raise ValueError(
            f"Input X contains NaN in {column.name}, in {len(absent)} rows, first in row {absent[0]}, and no row of "
            "the training had a missing value there, so that nothing is known of what that means. Impute it "
            "(SimpleImputer in a pipeline), or fit on rows some of which have none either."
        )


def _level(value: Any, name: str) -> Any:
    """A plain Python value that equals it."""
    if isinstance(value, str):
        return str.__str__(value)  # of an enum the value, not the name
    return int(value) if isinstance(value, Integral | np.bool_) else as_float(value, f"{name} of X")


def _levels_of(name: str, values: np.ndarray, weights: np.ndarray) -> Column:
    """A categorical column: its levels in order, the most frequent ones where there are many."""
    _kinds(values, name)
    weights_of: dict[Any, list[float]] = {}
    some_missing = False
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        if weight > 0 and is_missing(value):
            some_missing = True
        elif weight > 0:
            level = _level(value, name)
            weights_of.setdefault(level, []).append(weight)
    totals = {level: math.fsum(own) for level, own in weights_of.items()}  # the same for rows in any order
    ordered = sorted(totals)
    frequent = set(sorted(ordered, key=lambda level: -totals[level])[:MAX_LEVELS])
    own = {level: code for code, level in enumerate(level for level in ordered if level in frequent)}
    some_rare = len(own) < len(ordered)
    codes = tuple((level, own.get(level, len(own))) for level in ordered)
    n_levels = len(own) + some_rare + some_missing
    return Column(name, n_levels, codes, n_levels - 1 if some_missing else n_levels)


def _codes(column: Column, values: np.ndarray) -> np.ndarray:
    _kinds(values, column.name)
    known, unknown = dict(column.codes), column.n_levels
    return np.array([column.missing if is_missing(v) else known.get(v, unknown) for v in values.tolist()], dtype=float)


def _numbers_of(name: str, values: np.ndarray, weights: np.ndarray) -> Column:
    """A column of numbers, of the rows that count."""
    numbers = _numbers(values, name)
    absent = np.isnan(numbers)
    column = Column(name, has_missing=bool(absent.any()), is_empty=bool(absent.all()))
    finite = np.isfinite(numbers)
    return replace(column, heavy=robust(numbers[finite], weights[finite]) is not None)


def robust(values: np.ndarray, weights: np.ndarray) -> tuple[float, float] | None:
    """Centre and width of the asinh that draws the tails of a column in; None where they are not heavy.

    They are where a value is twenty robust standard deviations, those of a normal distribution with the same central
    90 %, away from the median: centre and width are median and deviation. Positive numbers that go over three decades
    within their central 90 % have a centre of zero and its lower end as width, which makes a logarithm. Quantiles are
    those of the weighted empirical distribution, without interpolation: a weight of k is the same as k copies.

    Parameters
    ----------
    values : ndarray of shape (n,)
    weights : ndarray of shape (n,)

    Examples
    --------
    >>> t = np.linspace(0.0005, 0.9995, 1000)
    >>> robust(-np.log(t), np.ones(1000)) is None, robust(np.tan(np.pi * (t - 0.5)), np.ones(1000)) is None
    (True, False)
    """
    if len(values) == 0:
        return None
    least, low, median, high, most = weighted_quantiles(values, weights, np.array([0.0, TAILS, 0.5, 1 - TAILS, 1.0]))
    if least > 0 and high / DECADES > low:
        return 0.0, float(low)
    with np.errstate(over="ignore"):
        width, reach = (high - low) / NORMAL_RANGE, max(most - median, median - least)
        heavy = 0 < width < np.inf and reach > HEAVY_TAIL * width
    return (float(median), float(width)) if heavy else None


def weighted_quantiles(values: np.ndarray, weights: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Those of the weighted empirical distribution, without interpolation; values of weight zero are no ends either.

    Examples
    --------
    >>> weighted_quantiles(np.array([3.0, 1.0, 2.0]), np.array([2.0, 1.0, 0.0]), np.array([0.0, 0.5, 1.0]))
    array([1., 3., 3.])
    """
    order = np.lexsort((weights, values))  # equal values by weight: the sums are the same for rows in any order
    ordered, sums = values[order], np.cumsum(weights[order])
    # The least level is not above the first value's share, and rounding takes no level past the last one.
    at = np.maximum(levels * sums[-1] * (1 - 1e-12), np.finfo(float).smallest_subnormal)
    found: np.ndarray = ordered[np.searchsorted(sums, at)]
    return found


@contextmanager
def naming_rows(X: Any, table_of: Callable[[], Table | None]) -> Iterator[None]:
    """An error about values that are not finite says which rows of X they come from."""
    try:
        yield
    except NonFiniteError as error:
        if error.inputs is None or not len(error.inputs):
            raise
        table, X = table_of(), readable(X, "X")
        X = check_array(X, dtype=np.float64, ensure_all_finite=False) if table is None else table.coded(with_gaps(X))
        rows, found = torch.tensor(X).to(error.inputs), error.inputs[:NAMED, None]
        same = ((rows == found) | (rows.isnan() & found.isnan())).all(-1).any(0)
        numbers = ", ".join(map(str, same.nonzero()[:, 0].tolist()))
        raise type(error)(f"{error} First in rows of X: {numbers}.", error.inputs) from error
