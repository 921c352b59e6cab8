"""Encoding of a column: numbers, categories, and text that holds dates or numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .._validation.rows import is_missing, shown
from ..errors import TableWarning
from ..errors.warn import warn_user
from .reading import _kinds, _level, _numbers, as_levels, first_of, in_pandas
from .statistics import robust, weighted_quantiles
from .text import DATES, concern, converted, is_marker, read_as

MAX_LEVELS = 1000
"""Maximum number of levels of a column with separate embeddings; all rarer levels share one embedding."""
LEVEL_TYPES = (str, int, float)
"""Types of levels; values of other types are converted to one of these."""
EXACT = 2.0**53
"""Smallest absolute value of a number that is refused as a category: float64 cannot represent all larger integers."""
FAR = 1e30
"""Minimum ratio, for a warning, of the largest absolute value to a usual one, such as the median of non-zero ones."""
MOST_UNKNOWN, MANY_ROWS = 0.5, 10
"""Maximum share of unknown categories in a column without a warning, and minimum number of rows for the warning."""
MOST_LISTED, MOST_REPORTED = 20, 100_000
"""Maximum number of columns in this warning, and of unknown categories stored to issue it only once."""
CYCLES = {1.0: "time of day", 7.0: "day of week", 365.2425: "day of year"}
"""Periods, in days, of the cycles with which dates are encoded if they span about two periods."""
N_PERIODS = 1.99
"""Minimum number of periods that dates span; the first and last day of two years are 729 or 730 days apart."""
SAME_PHASE = 0.999
"""Length of the mean phase vector above which dates count as constant in a cycle, such as dates all on 1 January."""
N_SPREAD = 16
"""Number of training values that stand for a missing number or an unknown level of a new row."""
MIDDLES = (np.arange(N_SPREAD) + 0.5) / N_SPREAD
"""Quantile levels of these values."""
MARGIN = 2.0
"""Margin of the range of a column, in units of the distance between an extreme and the quantile next to it."""


@dataclass(frozen=True)
class Column:
    """Encoding of a column, determined by the training rows.

    ``spread`` holds training values that stand for a missing number or an unknown level. It is empty if training rows
    had such values.
    """

    name: str  # in messages
    n_levels: int = 0  # V, with the shared levels of rare and of missing values; 0 for numbers
    codes: tuple[tuple[Any, int], ...] = ()
    missing: int = 0  # code of a missing level; V if none was missing in the training
    has_missing: bool = False  # some numbers were missing
    is_empty: bool = False  # all numbers were missing
    heavy: bool = False  # numbers with heavy tails
    zoned: bool | None = None  # times with a time zone, or without; None for other columns
    of_text: str = ""  # text read as "dates" or "numbers"
    missing_share: float = 0.0  # weighted
    low: float | None = None  # smallest number, in days since 1970 for dates; None without numbers
    high: float | None = None
    reach: tuple[float, ...] = ()  # range of the column with a margin; empty for levels and constant numbers
    later: tuple[float, ...] = ()  # range including rows added later; empty if they lie inside
    concern: str = ""  # reason for a warning
    spread: tuple[float, ...] = ()  # quantiles of numbers or codes at ``MIDDLES``
    cycles: tuple[float, ...] = ()  # periods, in days, with which dates are encoded

    @cached_property
    def level_kinds(self) -> set[str]:
        """Kinds of the levels in the training rows: "text", "numbers" or both."""
        return {"text" if isinstance(level, str) else "numbers" for level, _ in self.codes}

    @property
    def kind_of_text(self) -> str:
        """Kind of text in later rows: "dates", "numbers", or an empty string for categories."""
        return self.of_text or (DATES if self.zoned is not None else "")


def column_of_text(name: str, values: np.ndarray, weights: np.ndarray) -> Column:
    present = [value for value in values[weights > 0].tolist() if not is_missing(value)]
    kind = read_as(set(present), max(len(present), math.fsum(weights.tolist())))
    if not kind:
        return replace(levels_of(name, values, weights), concern=concern(present, name))
    numbers, has_zone = converted(values[weights > 0], kind, name)
    column = replace(numbers_of(name, numbers, weights[weights > 0]), of_text=kind)
    if kind == DATES:
        return dated(column, numbers, zoned=has_zone)
    markers = sorted({value for value in present if is_marker(value)})
    return replace(
        column,
        concern=f"{name} of X is text. It is read as numbers, and {markers[0]!r} as missing. "
        f"pandas.read_csv(…, na_values={markers}) does the same when it reads a file.",
    )


def check_zone(column: Column, zoned: bool | None, days: np.ndarray) -> None:
    """Refuse times with a time zone if those in training had no zone, or the reverse, as the offset is unknown."""
    differs = column.zoned is not None and zoned is not None and column.zoned != zoned
    if differs and not np.isnan(days).all():
        kinds = [f"times {'with' if zone else 'without'} a time zone" for zone in (zoned, column.zoned)]
        raise ValueError(
            f"{column.name} of X holds {kinds[0]}, and the training rows had {kinds[1]}. Convert both to UTC, for "
            "example with pandas.to_datetime(column, utc=True)."
        )


def check_numbers(column: Column, values: np.ndarray, weights: np.ndarray | None) -> None:
    """Refuse infinite numbers. With ``weights``, also refuse missing values in a column that had none in training.

    Weights are given for rows of a fit or an update. Predictions accept such missing values.
    """
    if np.isinf(values).any():
        raise ValueError(
            f"Input X contains infinity or a value too large for dtype('float64'), in {column.name}. Replace it by a "
            "number, or by NaN if it is unknown."
        )
    absent = np.flatnonzero(np.isnan(values) & (False if weights is None else weights > 0))
    if absent.size and not column.has_missing:
        raise ValueError(
            f"Input X contains NaN in {column.name}, in {len(absent)} rows, the first in row {absent[0]}; no training "
            "row had a missing value in this column. Impute it (SimpleImputer in a pipeline), or fit on rows with "
            "missing values in this column."
        )


def levels_of(name: str, values: np.ndarray, weights: np.ndarray, *, mixed: bool = False) -> Column:
    """Encoding of a categorical column: codes of the sorted levels. Beyond ``MAX_LEVELS``, the rarest share a code."""
    values = as_levels(values)
    _kinds(values, name, mixed=mixed)
    totals, some_missing = _weights_of_levels(name, values, weights)
    ordered = sorted(totals, key=lambda level: (isinstance(level, str), level))
    frequent = set(sorted(ordered, key=lambda level: -totals[level])[:MAX_LEVELS])
    code_of = {level: code for code, level in enumerate(level for level in ordered if level in frequent)}
    some_rare = len(code_of) < len(ordered)
    codes = tuple((level, code_of.get(level, len(code_of))) for level in ordered)
    n_levels = len(code_of) + some_rare + some_missing
    share = 1 - math.fsum(totals.values()) / math.fsum(weights.tolist())
    missing = n_levels - 1 if some_missing else n_levels
    of_levels = np.array([code for _, code in codes], float), np.array([totals[level] for level, _ in codes], float)
    spread = tuple(weighted_quantiles(*of_levels, MIDDLES).tolist()) if codes else ()
    return Column(name, n_levels, codes, missing, missing_share=max(share, 0.0), spread=spread)


def _weights_of_levels(name: str, values: np.ndarray, weights: np.ndarray) -> tuple[dict[Any, float], bool]:
    """Total weight of each level, and whether a value is missing, in the rows with positive weight."""
    weights_of: dict[Any, list[float]] = {}
    some_missing = False
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        if weight > 0 and is_missing(value):
            some_missing = True
        elif weight > 0:
            level = _level(value, name)
            if isinstance(level, int | float) and EXACT <= abs(level) < math.inf:
                raise ValueError(
                    f"{name} of X holds numbers of 2**53 or more as categories, such as {level:g}, which float64 "
                    f"may not tell apart. Convert them to text: {in_pandas(name, 'X[k].astype(str)')}."
                )
            weights_of.setdefault(level, []).append(weight)
    # math.fsum does not depend on the order of rows
    return {level: math.fsum(parts) for level, parts in weights_of.items()}, some_missing


def codes_of(column: Column, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (n,), float64, and the unknown values; ``ValueError`` if values and levels differ in type."""
    values, known = as_levels(values), dict(column.codes)
    kinds = _kinds(values, column.name, mixed=len(column.level_kinds) > 1)
    _check_level_types(column, values, kinds)
    absent = -1  # a missing level may have the code of unknown ones

    def code(value: Any) -> int:
        level = value if type(value) in LEVEL_TYPES else _level(value, column.name)
        return known.get(level, column.n_levels)

    codes = np.array([absent if is_missing(value) else code(value) for value in values.tolist()], dtype=float)
    unknown = values[codes == column.n_levels]
    codes[codes == absent] = column.missing
    return codes, unknown


def warn_of_unknown(unknown: Sequence[tuple[Column, np.ndarray]], n_rows: int, reported: set[tuple[str, Any]]) -> None:
    """Warn once (``TableWarning``) about all columns of mostly ``unknown`` values, given ``MANY_ROWS`` rows or more."""
    mostly = [(column, values.tolist()) for column, values in unknown if len(values) > MOST_UNKNOWN * n_rows]
    found = {(column.name, value) for column, values in mostly for value in values}
    if n_rows < MANY_ROWS or found <= reported:
        return
    parts = [
        f"{column.name} ({len(values) / n_rows:.0%}, such as {shown(values[0])}; the training rows had "
        f"{first_of([repr(level) for level, _ in column.codes])})"
        for column, values in mostly
    ]
    warn_user(
        f"most values of {len(parts)} column{'s' * (len(parts) > 1)} of X are unknown categories: "
        f"{first_of(parts, MOST_LISTED)}. Check that meaning and spelling are those of the training rows.",
        TableWarning,
    )
    if len(reported) > MOST_REPORTED:
        reported.clear()
    reported |= found


def _check_level_types(column: Column, values: np.ndarray, kinds: set[type]) -> None:
    """Refuse numbers if all training levels were text, or the reverse, since no value could equal a level."""
    if not kinds or len(column.level_kinds) != 1:
        return
    [before] = column.level_kinds
    now = "text" if kinds == {str} else "numbers"
    if now != before:
        example = next(value for value in values.tolist() if not is_missing(value))
        target = {"text": "str", "numbers": "float"}[before]
        raise ValueError(
            f"{column.name} of X holds {now}, such as {shown(example)}, and the training rows had {before}, such as "
            f"{shown(column.codes[0][0])}. Convert it: {in_pandas(column.name, f'X[k].astype({target})')}."
        )


def numbers_of(name: str, values: np.ndarray, weights: np.ndarray) -> Column:
    """Encoding of a numeric column; ``values`` and ``weights`` are those of rows with positive weight."""
    numbers = _numbers(values, name)
    absent = np.isnan(numbers)
    column = Column(name, has_missing=bool(absent.any()), is_empty=bool(absent.all()))
    finite = np.isfinite(numbers)
    heavy = robust(numbers[finite], weights[finite]) is not None
    share = math.fsum(weights[absent].tolist()) / math.fsum(weights.tolist())
    low, high = (float(numbers[finite].min()), float(numbers[finite].max())) if finite.any() else (None, None)
    spread = tuple(weighted_quantiles(numbers, weights, MIDDLES).tolist()) if finite.all() else ()
    sizes = np.abs(numbers[finite & (numbers != 0)])
    concern = far(name, sizes, float(np.quantile(sizes, 0.5, method="lower")) if sizes.size else 0.0)
    return replace(column, heavy=heavy, missing_share=share, low=low, high=high, spread=spread, concern=concern)


def reach_of(numbers: np.ndarray) -> tuple[float, ...]:
    """Ends of the range of numbers (n,) with margins that usually include further rows; empty if all are equal.

    A margin is twice the distance between the extreme and the quantile 1/(2√n) or 1 − 1/(2√n). If the distance from the
    extreme to the next value is larger, the margin is that distance.

    >>> reach_of(np.arange(101.0)), reach_of(np.array([0.0, 1.0, 1.0, 0.0]))
    ((-10.0, 110.0), (-1.0, 2.0))
    """
    if not numbers.size or (least := float(numbers.min())) == (most := float(numbers.max())):
        return ()
    level = 0.5 / math.sqrt(len(numbers))
    low, high = np.quantile(numbers, [level, 1 - level], method="inverted_cdf").tolist()
    second, last = float(numbers[numbers > least].min()), float(numbers[numbers < most].max())
    reach = least - max(MARGIN * (low - least), second - least), most + max(MARGIN * (most - high), most - last)
    return reach if np.isfinite(reach).all() else ()


def dated(column: Column, days: np.ndarray, *, zoned: bool | None) -> Column:
    return replace(column, zoned=zoned, cycles=cycles_of(days))


def cycles_of(days: np.ndarray) -> tuple[float, ...]:
    """Periods of the cycles in which dates vary. The dates, in days since 1970, have to span two periods."""
    days = days[np.isfinite(days)]
    span = np.ptp(days) if len(days) else 0.0
    reached = [period for period in CYCLES if span >= N_PERIODS * period]
    phases = {period: np.exp(2j * np.pi * (days if period == 1 else np.floor(days)) / period) for period in reached}
    return tuple(period for period, values in phases.items() if abs(values.mean()) < SAME_PHASE)


def far(name: str, sizes: np.ndarray, usual: float) -> str:
    """Reason for a warning if the largest of ``sizes`` exceeds ``usual`` by a factor above ``FAR``; otherwise empty."""
    largest = float(sizes.max(initial=0.0))
    if not 0 < usual < largest / FAR:
        return ""
    return (
        f"{name} of X holds a number of size {largest:.3g}, and others have the size {usual:.3g}. Check whether the "
        "file or the program that wrote it is damaged."
    )
