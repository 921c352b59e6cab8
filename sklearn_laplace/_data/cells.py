"""Cells of columns of Python objects: bytes, times of any type, and levels of any hashable type.

Bytes become text. A column of dates, datetimes or periods becomes days since 1970 (a period counts from its start);
durations and times of day become days. Levels that are neither text nor numbers become their text, such as "(0, 5]".
"""

from __future__ import annotations

from collections.abc import Hashable, Set
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np

from .._validation.inputs import NUMBERS, as_text, is_missing
from .names import built_in

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
    present = [None if is_missing(value) else value for value in values.tolist()]
    kinds = {_time_kind(type(value)) for value in present if value is not None}
    zones = {value.tzinfo is not None for value in present if isinstance(value, datetime)}
    zones |= {False for value in present if value is not None and not isinstance(value, datetime)}
    if len(kinds) != 1 or kinds == {""} or len(zones) != 1:
        return values, None
    kind = kinds.pop()
    if kind == MOMENTS:
        return np.array([_moment(value) for value in present], dtype="datetime64[us]"), zones.pop()
    return np.array([_duration(value) for value in present], dtype="timedelta64[us]"), None


def _time_kind(kind: type) -> str:
    if issubclass(kind, date | np.datetime64) or kind.__name__ == "Period":
        return MOMENTS
    return DURATIONS if issubclass(kind, timedelta | np.timedelta64) else CLOCK if issubclass(kind, time) else ""


def _moment(value: Any) -> Any:
    if type(value).__name__ == "Period":
        return value.start_time.to_datetime64()
    zoned = isinstance(value, datetime) and value.tzinfo is not None
    return value.astimezone(UTC).replace(tzinfo=None) if zoned else value


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
