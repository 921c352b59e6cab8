r"""Encode a table as numbers: the kind, levels, missing values and heavy tails of each column.

A column is numeric or categorical. Numbers are kept, with NaN for missing ones. Booleans become 0 and 1; durations
become days, dates days since 1970. A level becomes its index among the training levels, and an unseen level gets the
next index after them. All later steps receive a float64 matrix.

Levels are compared by value, not by type: 1, 1.0 and True are the same level, in integer and float columns. Statistics
over rows are weighted, and rows of weight zero are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_array

from .._validation.inputs import is_missing, readable
from ..errors import NonFiniteError
from .reading import NAMED, TIMES, _few, _kinds, _label, _level, _numbers, _read, column_names, with_gaps
from .statistics import robust

MAX_LEVELS = 1000
"""Maximum number of levels of a column with separate embeddings; all rarer levels share one embedding."""
TIMES["duration"] = TIMES["timedelta"]
FROM_DTYPE = "from_dtype"
"""Value of ``categorical_features`` that selects the categorical columns by their type."""


@dataclass(frozen=True)
class Categorical:
    """User's choice of the categorical columns.

    Parameters
    ----------
    by_type : bool
        If True, columns with string values or a categorical data type are categorical.
    columns : tuple of str, int or bool
        Names, positions, or a mask of categorical columns.
    """

    by_type: bool
    columns: tuple[Any, ...] = ()

    def positions(self, names: Sequence[str] | None, d: int) -> set[int]:
        """Positions of the columns in ``columns``.

        Parameters
        ----------
        names : sequence of str, or None
            Names of the columns of X, if any.
        d : int
            Number of columns of X.

        Raises
        ------
        ValueError
            If a name or position does not exist, or a mask does not have d values.

        Examples
        --------
        >>> Categorical(False, (True, False)).positions(["a", "b"], 2), Categorical(False, (-1,)).positions(None, 2)
        ({0}, {1})
        """
        columns = self.columns
        if columns and all(isinstance(column, bool | np.bool_) for column in columns):
            if len(columns) != d:
                raise ValueError(
                    f"categorical_features is a mask of {len(columns)} values, and X has {d} columns; pass one value "
                    "per column."
                )
            return {place for place, chosen in enumerate(columns) if chosen}
        positions = set()
        for column in columns:
            if isinstance(column, str):
                if names is None:
                    raise ValueError(
                        f"categorical_features names {column!r}, and X has no column names; pass positions or a mask."
                    )
                if column not in names:
                    raise ValueError(f"categorical_features names {column!r}; the columns of X are {_few(names, 20)}.")
                positions.add(list(names).index(column))
            elif not -d <= int(column) < d:
                raise ValueError(
                    f"categorical_features holds position {column!r}, and X has {d} columns; expected 0 to {d - 1}."
                )
            else:
                positions.add(int(column) % d)
        return positions


@dataclass(frozen=True)
class Column:
    """Encoding of a column, determined by the training rows.

    Parameters
    ----------
    name : str
        Name in messages.
    n_levels : int
        Number V of levels, including the shared level of rare values and that of missing values; 0 for a numeric
        column.
    codes : tuple of (level, int)
        Code of each level.
    missing : int
        Code of a missing level; V if no level was missing in the training.
    has_missing : bool
        True if some numbers were missing.
    is_empty : bool
        True if all numbers were missing.
    heavy : bool
        True if the numbers have heavy tails.
    zoned : bool or None
        True for times with a time zone, False for times without; None for other columns.
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
        """True if the column has an indicator of missing values."""
        return self.has_missing and not self.is_empty


@dataclass(frozen=True)
class Table:
    """Encoding of all columns, determined by the training rows.

    Parameters
    ----------
    columns : tuple of Column
        Encoding of each column.

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
        """Number of levels of each column; 0 for numeric columns."""
        return tuple(column.n_levels for column in self.columns)

    @property
    def flagged(self) -> tuple[bool, ...]:
        """True for each column with an indicator of missing values."""
        return tuple(column.flagged for column in self.columns)

    @property
    def numeric(self) -> np.ndarray:
        """Positions of the numeric columns."""
        return np.flatnonzero(np.asarray(self.levels) == 0)

    @classmethod
    def of(cls, X: Any, weights: np.ndarray, categorical: Categorical, names: Sequence[str] | None = None) -> Table:
        """Determine the encoding from the training rows.

        Parameters
        ----------
        X : ndarray of shape (n, d), dataframe or list of rows
            Training rows.
        weights : ndarray of shape (n,)
            Weights of the rows.
        categorical : Categorical
            User's choice of the categorical columns.
        names : sequence of str, optional
            Names of the columns, if X no longer has them.
        """
        values, is_category, zoned = _read(X)
        names = column_names(X) if names is None else names
        chosen, columns = categorical.positions(names, len(values)), []
        for place, (column, has_category_type) in enumerate(zip(values, is_category, strict=True)):
            label = _label(names, place)
            if place in chosen or (categorical.by_type and (has_category_type or _kinds(column, label) == {str})):
                columns.append(_levels_of(label, column, weights))
            else:
                numbers = _numbers_of(label, column[weights > 0], weights[weights > 0])
                columns.append(replace(numbers, zoned=zoned[place]))
        return cls(tuple(columns))

    def coded(self, X: Any, weights: np.ndarray | None = None) -> np.ndarray:
        """Encode rows as numbers, shape (n, d), float64.

        Raises
        ------
        ValueError
            For infinite numbers, and for missing numbers in a column without missing training values. Rows of weight
            zero may have missing numbers.
        TypeError
            For values that are neither strings nor numbers.
        """
        text = [any(isinstance(level, str) for level, _ in column.codes) for column in self.columns]
        values, _, zoned = _read(X, text)
        coded = np.empty((len(values[0]), len(values)))
        for place, (column, column_values) in enumerate(zip(self.columns, values, strict=True)):
            _check_zone(column, zoned[place])
            if column.n_levels:
                coded[:, place] = _codes(column, column_values)
            else:
                coded[:, place] = _numbers(column_values, column.name)
                _check_numbers(column, coded[:, place], weights)
        return coded


def _check_zone(column: Column, zoned: bool | None) -> None:
    """Refuse times with a time zone if the training had none, and the reverse: their offset is unknown."""
    if column.zoned is not None and zoned is not None and column.zoned != zoned:
        kinds = [f"times {'with' if zone else 'without'} a time zone" for zone in (zoned, column.zoned)]
        raise ValueError(
            f"{column.name} of X holds {kinds[0]}, and the training rows had {kinds[1]}. Convert both to UTC, for "
            "example with pandas.to_datetime(column, utc=True)."
        )


def _check_numbers(column: Column, values: np.ndarray, weights: np.ndarray | None) -> None:
    if np.isinf(values).any():
        raise ValueError(
            f"Input X contains infinity or a value too large for dtype('float64'), in {column.name}. Replace it by a "
            "number, or by NaN if it is unknown."
        )
    absent = np.flatnonzero(np.isnan(values) & (True if weights is None else weights > 0))
    if absent.size and not column.has_missing:
        raise ValueError(
            f"Input X contains NaN in {column.name}, in {len(absent)} rows, the first in row {absent[0]}; no training "
            "row had a missing value in this column. Impute it (SimpleImputer in a pipeline), or fit on rows with "
            "missing values in this column."
        )


def _levels_of(name: str, values: np.ndarray, weights: np.ndarray) -> Column:
    """Encoding of a categorical column: codes of the sorted levels; the rarest share a code if there are many."""
    _kinds(values, name)
    weights_of: dict[Any, list[float]] = {}
    some_missing = False
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        if weight > 0 and is_missing(value):
            some_missing = True
        elif weight > 0:
            level = _level(value, name)
            weights_of.setdefault(level, []).append(weight)
    totals = {level: math.fsum(parts) for level, parts in weights_of.items()}  # independent of the order of rows
    ordered = sorted(totals)
    frequent = set(sorted(ordered, key=lambda level: -totals[level])[:MAX_LEVELS])
    code_of = {level: code for code, level in enumerate(level for level in ordered if level in frequent)}
    some_rare = len(code_of) < len(ordered)
    codes = tuple((level, code_of.get(level, len(code_of))) for level in ordered)
    n_levels = len(code_of) + some_rare + some_missing
    return Column(name, n_levels, codes, n_levels - 1 if some_missing else n_levels)


def _codes(column: Column, values: np.ndarray) -> np.ndarray:
    _kinds(values, column.name)
    known, unknown = dict(column.codes), column.n_levels
    return np.array([column.missing if is_missing(v) else known.get(v, unknown) for v in values.tolist()], dtype=float)


def _numbers_of(name: str, values: np.ndarray, weights: np.ndarray) -> Column:
    """Encoding of a numeric column; ``values`` and ``weights`` are those of rows with positive weight."""
    numbers = _numbers(values, name)
    absent = np.isnan(numbers)
    column = Column(name, has_missing=bool(absent.any()), is_empty=bool(absent.all()))
    finite = np.isfinite(numbers)
    return replace(column, heavy=robust(numbers[finite], weights[finite]) is not None)


@contextmanager
def naming_rows(X: Any, table_of: Callable[[], Table | None]) -> Iterator[None]:
    """Add the affected rows of X to the message of a :class:`NonFiniteError`.

    Parameters
    ----------
    X : array-like of shape (n, d)
        Rows given by the user.
    table_of : callable
        Returns the encoding of X, or None for a net that takes X unchanged.
    """
    try:
        yield
    except NonFiniteError as error:
        if error.inputs is None or not len(error.inputs):
            raise
        table, X = table_of(), readable(X, "X")
        X = check_array(X, dtype=np.float64, ensure_all_finite=False) if table is None else table.coded(with_gaps(X))
        rows, inputs = torch.tensor(X).to(error.inputs), error.inputs[:NAMED, None]
        same = ((rows == inputs) | (rows.isnan() & inputs.isnan())).all(-1).any(0)
        numbers = ", ".join(map(str, same.nonzero()[:, 0].tolist()))
        raise type(error)(f"{error} First affected rows of X: {numbers}.", error.inputs) from error


def check_columns(fitted: Any, previous: Any) -> None:
    """Check that X has the columns of the previous posterior, if there is one.

    Raises
    ------
    ValueError
        If the number, names or order of the columns differ.
    """
    names, previous_names = (getattr(estimator, "feature_names_in_", None) for estimator in (fitted, previous))
    renamed = names is not None and previous_names is not None and list(names) != list(previous_names)
    if previous is not None and (fitted.n_features_in_ != previous.n_features_in_ or renamed):
        raise ValueError(
            f"X has {fitted.n_features_in_} columns{'' if names is None else f', {list(names)}'}; expected the "
            f"{previous.n_features_in_} columns of the previous posterior"
            f"{'' if previous_names is None else f', {list(previous_names)}'}, in the same order."
        )


def categorical(value: Any) -> Categorical:
    """Read the option ``categorical_features``: by type, none, or a list of names, positions or a mask.

    Raises
    ------
    ValueError
        For any other value.

    Examples
    --------
    >>> categorical("from_dtype").by_type, categorical([0, 2]).columns
    (True, (0, 2))
    >>> categorical("colour")
    Traceback (most recent call last):
        ...
    ValueError: categorical_features='colour' has to be 'from_dtype', None, a list of column names or positions, or a \
mask.
    """
    if isinstance(value, str) and value == FROM_DTYPE:
        return Categorical(True)
    sequence = () if value is None else value
    columns = sequence.tolist() if isinstance(sequence, np.ndarray) else sequence
    valid = isinstance(columns, Sequence) and not isinstance(columns, str)
    if not (valid and all(isinstance(column, str | Integral | np.bool_) for column in columns)):
        raise ValueError(
            f"categorical_features={value!r} has to be {FROM_DTYPE!r}, None, a list of column names or positions, or "
            "a mask."
        )
    return Categorical(False, tuple(columns))
