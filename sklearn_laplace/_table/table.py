"""Encode a table as numbers, according to kind, levels, missing values and tails of each column.

A column is numeric or categorical. Numbers are kept, with NaN for missing ones. Booleans become 0 and 1, durations
become numbers of days, and dates become days since 1970. Text is categorical, unless it holds dates or numbers
(``text.py``). A level becomes its index among the training levels, and an unknown level gets the next index. Levels are
compared by value: 1, 1.0 and True are the same.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils import check_array

from .._validation.rows import readable
from ..errors import NonFiniteError, TableWarning
from ..errors.warn import warn_user
from ..laplace.extrapolation import Extrapolation
from .column import (
    Column,
    check_numbers,
    check_zone,
    codes_of,
    column_of_text,
    dated,
    far,
    levels_of,
    numbers_of,
    reach_of,
    warn_of_unknown,
)
from .fillings import Fillings, order
from .reading import NAMED, _kinds, _label, _numbers, column_names, first_of, read_columns, with_gaps
from .text import converted

FROM_DTYPE = "from_dtype"
"""Value of ``categorical_features`` that selects the categorical columns by their data type."""


Categorical = tuple[Any, ...] | None
"""Names, positions or a mask of the categorical columns; None selects strings and categorical data types."""


def _positions(columns: tuple[Any, ...], names: Sequence[Any] | None, d: int) -> set[int]:
    """Positions of columns among d; ``ValueError`` for an unknown name or position, or a mask of the wrong size."""
    if columns and all(isinstance(column, bool | np.bool_) for column in columns):
        if len(columns) != d:
            raise ValueError(
                f"categorical_features is a mask of {len(columns)} values, and X has {d} columns; pass one value "
                "per column."
            )
        return {place for place, chosen in enumerate(columns) if chosen}
    return {_position(column, names, d) for column in columns}


def _position(column: Any, names: Sequence[Any] | None, d: int) -> int:
    """Position of a column given by its name or by a position, which may be negative."""
    if isinstance(column, str | tuple):
        if names is None:
            raise ValueError(
                f"categorical_features names {column!r}, and X has no column names; pass positions or a mask."
            )
        if column not in names:
            raise ValueError(f"categorical_features names {column!r}; the columns of X are {first_of(names, 20)}.")
        return list(names).index(column)
    if names is not None and column in names and list(names).index(column) != int(column) % d:
        raise ValueError(
            f"categorical_features holds the position {column!r}, and X has a column named {column!r} at position "
            f"{list(names).index(column)}. Pass a mask: X.columns.isin([{column!r}]) for the name, "
            f"numpy.arange({d}) == {int(column) % d} for the position."
        )
    if not -d <= int(column) < d:
        raise ValueError(
            f"categorical_features holds position {column!r}, and X has {d} columns; expected 0 to {d - 1}."
        )
    return int(column) % d


@dataclass(frozen=True)
class Table:
    """Encoding of all columns, determined by the training rows."""

    columns: tuple[Column, ...]

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of levels of each column; 0 for numeric columns."""
        return tuple(column.n_levels for column in self.columns)

    @property
    def flagged(self) -> tuple[bool, ...]:
        return tuple(column.has_missing and not column.is_empty for column in self.columns)

    @property
    def n_added(self) -> int:
        """Number of further inputs of the net: missing-value indicators, and a sine and a cosine for each cycle."""
        return sum(self.flagged) + 2 * sum(len(column.cycles) for column in self.columns)

    @property
    def numeric(self) -> np.ndarray:
        return np.flatnonzero(np.asarray(self.levels) == 0)

    @cached_property
    def is_numeric(self) -> bool:
        """True if finite numbers need no encoding in any column."""
        return not any(column.n_levels or column.of_text or column.zoned is not None for column in self.columns)

    @cached_property
    def _reported(self) -> set[tuple[str, Any]]:
        return set()

    @classmethod
    def of(cls, X: Any, weights: np.ndarray, categorical: Categorical, names: Sequence[str] | None = None) -> Self:
        """Determine the encoding from the training rows, with ``names`` if X no longer has them."""
        values, is_category, zoned = read_columns(X)
        names = column_names(X) if names is None else names
        by_type, columns = categorical is None, []
        chosen = _positions(categorical or (), names, len(values))
        for place, (column, has_category_type) in enumerate(zip(values, is_category, strict=True)):
            label = _label(names, place)
            if place in chosen or (by_type and has_category_type):
                columns.append(levels_of(label, column, weights, mixed=has_category_type))
            elif by_type and _kinds(column, label) == {str}:
                columns.append(column_of_text(label, column, weights))
            else:
                present, zone = column[weights > 0], zoned[place]
                numbers = numbers_of(label, present, weights[weights > 0])
                columns.append(numbers if zone is None else dated(numbers, present, zoned=zone))
        return cls(tuple(columns))

    @classmethod
    def of_numbers(cls, X: np.ndarray, names: Sequence[str] | None) -> Self:
        """Table for inputs (n, d) of a user's net: column names and extremes; :meth:`with_reach` adds the ranges."""
        ends = zip(X.min(0).tolist(), X.max(0).tolist(), strict=True)
        return cls(tuple(Column(_label(names, k), low=low, high=high) for k, (low, high) in enumerate(ends)))

    def warn(self) -> None:
        """Issue a ``TableWarning`` for each column with a :attr:`Column.concern`."""
        for column in self.columns:
            if column.concern:
                warn_user(column.concern, TableWarning)

    def warn_of_far(self, coded: np.ndarray, warned: set[int]) -> None:
        """Warn once about each column of ``coded`` (n, d) whose numbers are far larger than the training values."""
        for place in self.numeric:
            column, sizes = self.columns[place], np.abs(coded[:, place])
            usual = max(abs(column.low or 0.0), abs(column.high or 0.0))
            concern = far(column.name, sizes[~np.isnan(sizes)], usual)
            if concern and place not in warned:
                warned.add(int(place))
                warn_user(concern, TableWarning)

    def coded(self, X: Any, weights: np.ndarray | None = None, *, warn: bool = True) -> np.ndarray:
        """Encode rows as numbers (n, d), float64; warn about mostly unknown categories and unexpected gaps."""
        if self.is_numeric and _are_finite(X):
            return X.copy()
        text = ["text" in column.level_kinds for column in self.columns]
        values, _, zoned = read_columns(X, text)
        coded, unknown = np.empty((len(values[0]), len(values))), list[tuple[Column, np.ndarray]]()
        for place, (column, column_values) in enumerate(zip(self.columns, values, strict=True)):
            zone, kind = zoned[place], column.kind_of_text
            if kind and column_values.dtype == object:
                column_values, zone = converted(column_values, kind, column.name, weights)
            check_zone(column, zone, column_values)
            if column.n_levels:
                coded[:, place], unseen = codes_of(column, column_values)
                unknown.append((column, unseen))
            else:
                coded[:, place] = _numbers(column_values, column.name, of_fit=False)
                check_numbers(column, coded[:, place], weights)
        if warn:
            warn_of_unknown(unknown, len(coded), self._reported)
            if weights is None:
                self._warn_of_gaps(coded)
        return coded

    def _warn_of_gaps(self, coded: np.ndarray) -> None:
        gaps = np.isnan(coded).sum(0)
        names = [column.name for column, n_gaps in zip(self.columns, gaps, strict=True) if n_gaps and column.spread]
        if names:
            warn_user(
                f"X has missing numbers in {first_of(names)}, where no training row had one. Predictions average over "
                "the column's training values, with larger standard deviations. For better predictions, fit on rows "
                "with such gaps, or impute them (SimpleImputer in a pipeline).",
                TableWarning,
            )

    def fillings(self, coded: np.ndarray) -> Fillings | None:
        """Training values that stand for missing numbers and unknown levels of coded rows; None without such gaps."""
        unknown = np.array([column.n_levels or np.nan for column in self.columns])
        gaps = (np.isnan(coded) | (coded == unknown)).any(0)
        filled = [k for k, column in enumerate(self.columns) if column.spread]
        if not gaps[filled].any():
            return None
        values = np.full((len(self.columns[filled[0]].spread), len(self.columns)), np.nan)
        for place, k in enumerate(filled):
            if gaps[k]:
                values[:, k] = np.array(self.columns[k].spread)[order(place)]
        return Fillings(torch.from_numpy(values), torch.from_numpy(unknown))

    @cached_property
    def reach(self) -> np.ndarray:
        """Ends of the range of each column, shape (2, d); infinite for columns without one."""
        return np.array([column.later or column.reach or (-math.inf, math.inf) for column in self.columns]).T

    def has_outside(self, coded: np.ndarray) -> bool:
        """True if a number of coded rows (n, d) lies outside the range of its column."""
        low, high = self.reach
        return bool(((coded < low) | (coded > high)).any())

    def excess(self, coded: np.ndarray) -> np.ndarray:
        """Distance of coded rows (n, d) from ranges, in units of high − low; infinite for new levels and new gaps."""
        fillings, d = self.fillings(coded), len(self.columns)
        sides = self.extrapolation(torch.ones(1)).excess(torch.from_numpy(coded)).numpy()
        excess: np.ndarray = np.maximum(sides[:, :d], sides[:, d:])
        return excess if fillings is None else np.where(fillings.gaps(torch.from_numpy(coded)), np.inf, excess)

    def with_trained_rows(self, coded: np.ndarray) -> Self:
        """Encoding after training on coded rows: unknown levels share a trained embedding; ranges include the rows."""
        columns = [
            replace(column, spread=()) if column.n_levels and (values == column.n_levels).any() else column
            for column, values in zip(self.columns, coded.T, strict=True)
        ]
        return replace(self, columns=tuple(columns)).with_later(coded)

    def with_later(self, coded: np.ndarray) -> Self:
        """Encoding whose ranges include coded rows (n, d) added after the fit."""
        columns = []
        for column, values in zip(self.columns, coded.T, strict=True):
            if column.reach and not np.isnan(values).all():
                low, high = column.later or column.reach
                wider = min(low, float(np.nanmin(values))), max(high, float(np.nanmax(values)))
                column = column if wider == (low, high) else replace(column, later=wider)
            columns.append(column)
        return replace(self, columns=tuple(columns))

    def with_reach(self, coded: np.ndarray) -> Self:
        """Encoding with the ranges of the distinct training rows (n, d), whatever their weights."""
        columns = [
            column if column.n_levels else replace(column, reach=reach_of(values[~np.isnan(values)]))
            for column, values in zip(self.columns, coded.T, strict=True)
        ]
        return replace(self, columns=tuple(columns))

    def without_rows(self, coded: np.ndarray) -> Self:
        """Encoding after removal of coded rows: ranges that these had extended are reset to the training ranges."""
        columns = [
            replace(column, later=()) if np.isin(values, [*{*column.later} - {*column.reach}]).any() else column
            for column, values in zip(self.columns, coded.T, strict=True)
        ]
        return replace(self, columns=tuple(columns))

    def extrapolation(self, scale: torch.Tensor) -> Extrapolation:
        """Rule for the variance outside the column ranges, with the ``scale`` (C,) of the outputs."""
        widths = [(column.high or 0.0) - (column.low or 0.0) if column.reach else 1.0 for column in self.columns]
        low, high = torch.from_numpy(self.reach).unbind()
        return Extrapolation(low, high, torch.tensor(widths, dtype=torch.float64), scale)


def _are_finite(X: Any) -> bool:
    return type(X) is np.ndarray and X.dtype == np.float64 and bool(np.isfinite(X).all())


@contextmanager
def naming_rows(X: Any, table_of: Callable[[], Table | None]) -> Iterator[None]:
    """Add the positions of affected rows of X, if in memory, to the message of a :class:`NonFiniteError`."""
    try:
        yield
    except NonFiniteError as error:
        if X is None or error.inputs is None or not len(error.inputs):
            raise
        table, X = table_of(), readable(X, "X")
        X = (
            check_array(X, dtype=np.float64, ensure_all_finite=False)
            if table is None
            else table.coded(with_gaps(X), warn=False)
        )
        rows, inputs = torch.tensor(X).to(error.inputs), error.inputs[:NAMED, None]
        same = ((rows == inputs) | (rows.isnan() & inputs.isnan())).all(-1).any(0)
        numbers = ", ".join(map(str, same.nonzero()[:, 0].tolist()))
        raise type(error)(f"{error} First affected rows of X: {numbers}.", error.inputs) from error


def check_columns(fitted: Any, previous: Any) -> None:
    """Raise ``ValueError`` if number, names or order of the columns differ from those of a previous posterior."""
    if previous is None:
        return
    names, previous_names = (
        getattr(estimator, "feature_names_in_", estimator._column_names or None) for estimator in (fitted, previous)
    )
    renamed = names is not None and previous_names is not None and list(names) != list(previous_names)
    if fitted.n_features_in_ != previous.n_features_in_ or renamed:
        raise ValueError(
            f"X has {fitted.n_features_in_} columns{'' if names is None else f', {list(names)}'}; expected the "
            f"{previous.n_features_in_} columns of the previous posterior"
            f"{'' if previous_names is None else f', {list(previous_names)}'}, in the same order."
        )


def categorical(value: Any) -> Categorical:
    """Return ``categorical_features`` as a tuple, or None for "from_dtype"; ``ValueError`` for an invalid value."""
    if isinstance(value, str) and value == FROM_DTYPE:
        return None
    sequence = () if value is None else value
    columns = sequence.tolist() if isinstance(sequence, np.ndarray) else sequence
    valid = isinstance(columns, Sequence) and not isinstance(columns, str)
    if not (valid and all(isinstance(column, str | tuple | Integral | np.bool_) for column in columns)):
        raise ValueError(
            f"categorical_features={value!r} has to be {FROM_DTYPE!r}, None, a list of column names or positions, or "
            "a mask."
        )
    return tuple(columns)
