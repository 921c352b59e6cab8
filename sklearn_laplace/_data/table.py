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
"""Levels of a column with embeddings of their own, the most frequent ones; rarer ones share one."""
TIMES["duration"] = TIMES["timedelta"]
FROM_DTYPE = "from_dtype"


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


def _check_zone(column: Column, zoned: bool | None) -> None:
    """Times with and without a zone differ by hours that nobody knows."""
    if column.zoned is not None and zoned is not None and column.zoned != zoned:
        kinds = [f"times {'with' if zone else 'without'} a time zone" for zone in (zoned, column.zoned)]
        raise ValueError(
            f"{column.name} of X holds {kinds[0]}, and the training had {kinds[1]}. Give both in UTC, for example by "
            "pandas.to_datetime(column, utc=True)."
        )


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


def check_columns(fitted: Any, previous: Any) -> None:
    """The columns of the rows are those of the previous posterior, where there is one.

    Raises
    ------
    ValueError
    """
    given, known = (getattr(one, "feature_names_in_", None) for one in (fitted, previous))
    renamed = given is not None and known is not None and list(given) != list(known)
    if previous is not None and (fitted.n_features_in_ != previous.n_features_in_ or renamed):
        raise ValueError(
            f"X has the {fitted.n_features_in_} columns {'' if given is None else list(given)}, and the previous "
            f"posterior is of {previous.n_features_in_} {'' if known is None else list(known)}; give those, in their "
            "order."
        )


def categorical(value: Any) -> Categorical:
    """Which columns are categorical: by their type, none, or by names, positions or a mask.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> categorical("from_dtype").by_type, categorical([0, 2]).columns
    (True, (0, 2))
    >>> categorical("colour")
    Traceback (most recent call last):
        ...
    ValueError: categorical_features='colour' has to be 'from_dtype', None, or a list of column names or positions, or \
a mask.
    """
    if isinstance(value, str) and value == FROM_DTYPE:
        return Categorical(True)
    given = () if value is None else value
    columns = given.tolist() if isinstance(given, np.ndarray) else given
    valid = isinstance(columns, Sequence) and not isinstance(columns, str)
    if not (valid and all(isinstance(column, str | Integral | np.bool_) for column in columns)):
        raise ValueError(
            f"categorical_features={value!r} has to be {FROM_DTYPE!r}, None, or a list of column names or positions, "
            "or a mask."
        )
    return Categorical(False, tuple(columns))
