"""Cells of columns of Python objects: bytes, times of any type, and levels of any hashable type.

Bytes become text. A column of dates, datetimes or periods becomes days since 1970 (a period counts from its start);
durations and times of day become days. Levels that are neither text nor numbers become their text, such as "(0, 5]".
Names of columns that are not text are compared here too; scikit-learn compares only strings.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np

from .._validation.inputs import NUMBERS, as_text, is_missing

MOMENTS, DURATIONS, CLOCK = "moments", "durations", "clock"


def as_text_and_times(values: np.ndarray, *, keep_times: bool = False) -> tuple[np.ndarray, bool | None]:
    """Objects (n,) with bytes as text; times of one kind as NumPy times, and whether they have a time zone.

    The zone is None if the values are no moments. Columns of several kinds are returned for later checks.
    """
    types = set(map(type, values.tolist()))
    if any(issubclass(kind, bytes) for kind in types):
        values = np.array([*map(as_text, values.tolist()), None], dtype=object)[:-1]
    if keep_times or not any(map(_time_kind, types)):
        return values, None
    return _as_times(values)


def _as_times(values: np.ndarray) -> tuple[np.ndarray, bool | None]:
    """Times of one kind as NumPy times, and whether they have a time zone; other values unchanged."""
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
    """Levels (n,) as text or numbers: other hashable values become their text, if it tells them apart."""
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
    """True if a value can be a level: hashable, and no set, whose text has no fixed order."""
    try:
        hash(value)
    except TypeError:  # a tuple of lists
        return False
    return isinstance(value, Hashable) and not isinstance(value, Set)


def in_pandas(name: str, conversion: str) -> str:
    """Statement that converts a column; ``conversion`` holds "X[k]" for the column."""
    column = f"X[{name.removeprefix('column ')}]"
    start = "" if column.startswith(("X['", 'X["')) else "X = pandas.DataFrame(X); "
    return f"{start}{column} = {conversion.replace('X[k]', column)}"


def keys_of(names: Sequence[Any] | None) -> tuple[str, ...]:
    """Text of each name, equal for equal numbers of any type; empty without names, and if all names are strings."""
    if names is None or all(isinstance(name, str) for name in names):
        return ()
    return tuple(repr(built_in(name)) for name in names)


def built_in(name: Any) -> Any:
    """Equal value of built-in types, also within tuples; whole numbers are integers."""
    if isinstance(name, tuple):
        return tuple(built_in(part) for part in name)
    name = name.item() if isinstance(name, np.generic) else name
    return int(name) if isinstance(name, float) and name.is_integer() else name


def check_names(estimator: Any, names: Sequence[Any] | None, *, reset: bool) -> None:
    """Keep the names of a fit in ``_column_names``; ``ValueError`` if those of a later table or their order differ."""
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
