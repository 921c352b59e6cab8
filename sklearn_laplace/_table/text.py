"""Text columns that hold dates or numbers, as in CSV files, and text columns that are unsuitable as categories.

Common markers such as "n/a" count as missing values. Text is read as dates if all other values are dates in ISO order
(2024-05-31, 2024/05/31 14:00) and few rows share a date. ISO order is unambiguous. Text is read as numbers if it has a
marker, and all other values are numbers. All other text is categorical. A warning is issued if it looks like dates or
numbers, or if most values differ.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache

import numpy as np

from .._validation.rows import is_missing, shown
from .reading import in_pandas

DATES, NUMBERS = "dates", "numbers"
"""Kinds of text columns, apart from categories."""
EXPECTED = {DATES: "a date such as 2024-05-31", NUMBERS: "a number"}
"""Description of a valid value of each kind, for messages."""
MARKERS = {
    "",
    "?",
    "-",
    "--",
    ".",
    "#",
    "na",
    "n/a",
    "#n/a",
    "n.a.",
    "nan",
    "nil",
    "none",
    "null",
    "missing",
    "unknown",
}
"""Strings that mark a missing number, in lower case."""
ISO_ORDER = re.compile(r"\s*(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ]\s*(\d.*\S))?\s*")
"""A date with the year first, with or without a time."""
DATE_LIKE = re.compile(
    r"\s*(\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}|\d{1,2}[- ]?[a-z]{3,9}[- ,]*\d{2,4}|[a-z]{3,9} \d{1,2},? \d{4})\b.*", re.I
)
"""Text that looks like a date, in any order."""
NUMBER_LIKE = re.compile(r"\s*[-+$€£]?\s*\d[\d.,' ]*(e[-+]?\d+)?\s*[%$€£]?\s*", re.I)
"""Text that looks like a number, with separators, a percent sign or a currency."""
DAY = 86_400.0
"""Seconds per day."""
MOST_PART = 0.5
"""Minimum share of values that look like numbers or dates, or of distinct values, for a warning."""
MOSTLY_DIFFERENT = 0.75
"""Minimum ratio of distinct dates to rows for a column that is read as dates. See docs/decisions.md."""
FEW_ROWS = 20
"""Minimum number of values for a warning about a column of mostly distinct values."""
OF_PERCENT = "X[k].str.rstrip('% ').astype(float)"
"""Conversion of a column of percentages, for messages."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_marker(text: str) -> bool:
    return text.strip().lower() in MARKERS


def days(text: str) -> tuple[float, bool] | None:
    """Days since 1970 of a date in ISO order, and whether it has a time zone; None for any other text."""
    if (match := ISO_ORDER.fullmatch(text)) is None:
        return None
    year, month, day, time = match.groups()
    try:
        moment = datetime.fromisoformat(f"{year}-{int(month):02}-{int(day):02}" + (f"T{time}" if time else ""))
    except ValueError:
        return None
    zoned = moment.tzinfo is not None
    return ((moment if zoned else moment.replace(tzinfo=UTC)) - EPOCH).total_seconds() / DAY, zoned


def number(text: str) -> float | None:
    """Value of a string that is a finite number; None for any other string."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) and "_" not in text else None


def read_as(texts: Collection[str], n_rows: float) -> str:
    """Kind of a column of ``n_rows`` rows with these distinct strings: ``DATES``, ``NUMBERS``, or "" for categories."""
    present = [text for text in texts if not is_marker(text)]
    if _are_dates(present):
        return DATES if len(present) > MOSTLY_DIFFERENT * n_rows else ""
    is_numeric = 0 < len(present) < len(texts) and all(number(text) is not None for text in present)
    return NUMBERS if is_numeric else ""


def _are_dates(texts: Sequence[str]) -> bool:
    """True if all strings are dates, and either all or none of them have a time zone."""
    moments = [days(text) for text in texts]
    return all(moments) and len({moment[1] for moment in moments if moment}) == 1


def converted(
    values: np.ndarray, kind: str, name: str, weights: np.ndarray | None = None
) -> tuple[np.ndarray, bool | None]:
    """Convert objects (n,) to numbers or days since 1970, NaN if missing; also return whether dates have a zone."""
    numbers, zoned, meaning_of = np.full(len(values), np.nan), None, cache(_meaning)
    for row, value in enumerate(values):
        if is_missing(value):
            continue
        if not isinstance(value, str):
            numbers[row] = value
            continue
        meaning = meaning_of(value, kind)
        counts = weights is None or weights[row] > 0
        if meaning is not None:
            numbers[row], has_zone = meaning
            if not counts:
                continue
            if zoned not in (None, has_zone):
                raise ValueError(
                    f"{name} of X holds times with and without a time zone, such as {shown(value)} in row {row}. "
                    "Convert all of them to UTC, for example with "
                    "pandas.to_datetime(column, format='mixed', utc=True)."
                )
            zoned = has_zone
        elif counts and not is_marker(value):
            raise ValueError(
                f"{name} of X holds {shown(value)} in row {row}, and the training rows had {kind} in this column; "
                f"expected {EXPECTED[kind]}, or a missing value (NaN or None)."
            )
    return numbers, zoned


def _meaning(text: str, kind: str) -> tuple[float, bool | None] | None:
    """Return (number, None), or (days, whether the date has a time zone); None for text that is not of the kind."""
    if kind == DATES:
        return days(text)
    value = number(text)
    return None if value is None else (value, None)


def concern(texts: Iterable[str], name: str) -> str:
    """Reason for a warning about a categorical column with these texts; empty if no warning is needed."""
    values = list(texts)
    levels, key = dict.fromkeys(values), name.removeprefix("column ")
    read = f"{name} of X is text and is read as {len(levels):,} categories"
    like_dates = [text for text in levels if DATE_LIKE.fullmatch(text)]
    if levels and len(like_dates) > MOST_PART * len(levels):
        in_order = all(map(days, like_dates))
        conversion = "pandas.to_datetime(X[k])" if in_order else "pandas.to_datetime(X[k], dayfirst=True)"
        return (
            f"{read}, and its values look like dates, such as {shown(like_dates[0])}. To read it as time, convert it: "
            f"{in_pandas(name, conversion)}{'' if in_order else ', or dayfirst=False where the month comes first'}."
        )
    unlike = _text_among_numbers(levels)
    if unlike is not None:
        return (
            f"{read}, and most of its values look like numbers, but not {shown(unlike)}. Convert it, for example "
            "by pandas.read_csv with decimal=',' for decimal commas, thousands=',' for separators of thousands, "
            f"na_values=['-'] for marks of missing values; for percentages: "
            f"{in_pandas(name, OF_PERCENT)}."
        )
    if len(values) >= FEW_ROWS and len(levels) > MOST_PART * len(values):
        return (
            f"{read} in {len(values):,} rows, such as {shown(values[0])}, so most new rows will have unknown "
            f"categories. Omit it (pandas.DataFrame(X).drop(columns={key})), or derive columns from it that have few "
            "values."
        )
    return ""


def _text_among_numbers(levels: Collection[str]) -> str | None:
    """Return the first level that is not a number, if most levels look like numbers; otherwise None."""
    like_numbers = [text for text in levels if NUMBER_LIKE.fullmatch(text)]
    is_mostly_numbers = len(like_numbers) > MOST_PART * len(levels)
    return next((text for text in levels if number(text) is None), None) if is_mostly_numbers else None
