r"""Reports on the quality of predictions: accuracy, log density, calibration, and the worst groups of rows.

Each observed frequency has a band: the range that contains it with probability .95 if the model is calibrated. Rows
are treated as independent. With G groups or G classes, each band has the probability :math:`1 - .05 / G` (Bonferroni).
The probability integral transform (PIT) :math:`u_n = F_n(y_n)` of a calibrated model is uniform (Dawid 1984), which a
Kolmogorov–Smirnov test checks. For counts, :math:`u_n` is drawn uniformly between :math:`F_n(y_n - 1)` and
:math:`F_n(y_n)`, with a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
from scipy.stats import binom, kstest

from .._table.reading import named_columns
from .._table.statistics import count_hint, effective_number, weighted_quantiles, zeros_hint
from .._validation.rows import is_missing
from ..distributions.evaluation import check_counts, crps_of, pit_of

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Levels of the central intervals."""
GROUP_LEVEL = 0.9
"""Level of the intervals whose coverage is compared between groups."""
PLAUSIBLE = 0.95
"""Probability that a band contains the observed frequency of a calibrated model."""
LEAST_ROWS, MOST_GROUPS, MOST_LISTED = 20, 4, 3
"""Minimum number of rows in a group; maximum numbers of groups per column and per report."""

LEAST_BELOW = 0.01
"""A report on positive targets has a note if more than this share of intervals reaches below zero."""
BELOW_ZERO = (
    "all targets are positive, but {:.0%} of the {:.0%} intervals reach below zero: target_transform='log' keeps "
    "them above."
)
OUTSIDE = (
    "{:.0%} of the rows have values outside the range of the training rows, or new levels, most often in {}. "
    "outside(X) returns the distances."
)
LEAST_OUTSIDE = 0.05
"""A report has a note if at least this share of rows has values outside the training ranges."""


@dataclass(frozen=True)
class Frequency:
    """Observed and expected frequency of an event, and the band for a calibrated model."""

    name: str  # the event, or the group of rows
    n: int  # rows
    observed: float
    expected: float  # mean predicted probability
    low: float  # ends of the band for a calibrated model
    high: float
    n_effective: float  # effective number of rows, smaller than n if weights differ

    @classmethod
    def of(
        cls, name: str, events: np.ndarray, expected: float, n_bands: int = 1, weights: np.ndarray | None = None
    ) -> Frequency:
        """Frequency of events (n,) whose mean probability is ``expected``, with one of ``n_bands`` simultaneous bands.

        The band assumes equal probabilities. If the probabilities differ, it is too wide rather than too narrow. For
        weighted rows, the band is computed from the effective number of rows.
        """
        n = len(events) if weights is None else effective_number(weights)
        tail = (1 - PLAUSIBLE) / 2 / n_bands
        low, high = (float(binom.ppf(share, n, expected)) / n for share in (tail, 1 - tail))
        return cls(name, len(events), float(np.average(events, weights=weights)), expected, low, high, float(n))

    @property
    def is_off(self) -> bool:
        """True if the frequency is outside its band."""
        return not self.low <= self.observed <= self.high

    @property
    def distance(self) -> float:
        """Distance from the expected frequency in standard errors, for the effective number of rows."""
        error = max(self.expected * (1 - self.expected), 1e-12) / self.n_effective
        return abs(self.observed - self.expected) / error**0.5

    def __str__(self) -> str:
        mark = "  <--" if self.is_off else ""
        return f"{self.observed:.3f}, expected {self.low:.3f} to {self.high:.3f}{mark}"


@dataclass(frozen=True)
class Report:
    """Quality of predictions on held-out rows; printed as text."""

    n_rows: int
    scores: dict[str, float]  # by name; "log density" in nats per row
    coverage: tuple[Frequency, ...]  # targets inside central intervals; for classes, rows of each class
    groups: tuple[Frequency, ...]  # groups of rows furthest from the expected frequency, worst first
    pit_pvalue: float | None = None  # p-value of the test for a uniform PIT; None for classes
    notes: tuple[str, ...] = ()  # advice to the user

    def __str__(self) -> str:
        width = max(len(name) for name in [*self.scores, *(entry.name for entry in self.coverage)])
        lines = [f"{self.n_rows:,} rows", *(f"{name:<{width}}  {value:.4g}" for name, value in self.scores.items())]
        lines += [f"{entry.name:<{width}}  {entry}" for entry in self.coverage]
        if self.pit_pvalue is not None:
            mark = "  <--" if self.pit_pvalue < 1 - PLAUSIBLE else ""
            lines.append(f"{'PIT test':<{width}}  p = {self.pit_pvalue:.2g}{mark}")
        if self.groups:
            lines.append("groups with the largest deviation:")
            lines += [f"  {entry.name} ({entry.n:,} rows): {entry}" for entry in self.groups]
        return "\n".join([*lines, *self.notes])

    __repr__ = __str__

    def with_outside(self, excess: np.ndarray, names: Sequence[str]) -> Report:
        """Return the report, with a note if many rows have a positive ``excess`` (n, d) over the training ranges."""
        share = float((excess > 0).any(1).mean())
        if share < LEAST_OUTSIDE:
            return self
        by_column = (excess > 0).mean(0)
        worst = [names[k] for k in np.argsort(-by_column, kind="stable")[:MOST_LISTED] if by_column[k] > 0]
        return replace(self, notes=(*self.notes, OUTSIDE.format(share, ", ".join(worst))))


def output_position(output: int | None, n_outputs: int) -> int:
    """Return the checked position of the target to report on; None stands for the only target."""
    if output is None and n_outputs == 1:
        return 0
    if not isinstance(output, Integral) or not 0 <= output < n_outputs:
        raise ValueError(f"output={output!r} has to be the position of one of the {n_outputs} targets, from 0.")
    return int(output)


def regression_report(distribution: Any, X: Any, targets: np.ndarray, output: int, *, is_count: bool) -> Report:
    """Return a report on numeric targets and their predictive distribution, as returned by ``predict_dist``.

    The rows X (n, d) define the groups; ``output`` is the position of a target in ``targets`` (n,) or (n, C).
    """

    def of_output(values: np.ndarray) -> np.ndarray:
        return values.reshape(len(values), -1)[:, output]

    y = of_output(targets)
    check_counts(distribution, y)
    scores = {"RMSE": float(np.sqrt(np.mean((y - of_output(distribution.mean())) ** 2)))}
    scores["R2"] = 1 - scores["RMSE"] ** 2 / max(float(y.var()), np.finfo(float).tiny)
    scores["log density"] = float(np.mean(of_output(distribution.logpdf(targets))))
    if not is_count:
        scores["CRPS"] = float(np.mean(of_output(crps_of(distribution, targets))))
    pit = of_output(pit_of(distribution, targets, np.random.RandomState(0)))
    inside = {level: np.abs(2 * pit - 1) <= level for level in LEVELS}
    coverage = tuple(Frequency.of(f"{level:.0%} intervals", events, level) for level, events in inside.items())
    expected = np.full(len(y), GROUP_LEVEL)
    groups = _worst(X, inside[GROUP_LEVEL], expected, f"{GROUP_LEVEL:.0%} intervals")
    ends = of_output(distribution.ppf((1 - GROUP_LEVEL) / 2))
    share = float((ends < 0).mean()) if (y > 0).all() else 0.0
    note = "" if is_count else count_hint(y) or zeros_hint(y)
    if not note and share > LEAST_BELOW:
        note = BELOW_ZERO.format(share, GROUP_LEVEL)
    return Report(len(y), scores, coverage, groups, float(kstest(pit, "uniform").pvalue), (note,) if note else ())


def classification_report(probabilities: np.ndarray, classes: np.ndarray, X: Any, labels: np.ndarray) -> Report:
    """Return a report on probabilities (n, K) of classes (K,) for true labels (n,). Rows X (n, d) define the groups."""
    true, confidence = labels[:, None] == classes, probabilities.max(1)
    right = true[np.arange(len(true)), probabilities.argmax(1)]
    bins = np.searchsorted(np.linspace(0, 1, 11)[1:-1], confidence)  # the bins of metrics.expected_calibration_error
    sums = [np.bincount(bins, part, 10) for part in (right, confidence)]
    with np.errstate(divide="ignore"):
        density = float(np.mean(np.log((probabilities * true).sum(1))))
    scores = {
        "accuracy": float(right.mean()),
        "log density": density,
        "Brier score": float(np.mean(((probabilities - true) ** 2).sum(1))),
        "calibration error": float(np.abs(sums[0] - sums[1]).sum() / len(true)),
    }
    coverage = tuple(
        Frequency.of(f"class {label}", true[:, k], float(probabilities[:, k].mean()), len(classes))
        for k, label in enumerate(classes.tolist())
    )
    return Report(len(true), scores, coverage, _worst(X, right, confidence, "accuracy"))


def _worst(X: Any, events: np.ndarray, expected: np.ndarray, event: str) -> tuple[Frequency, ...]:
    """Return the groups of rows, at most three, with the largest :attr:`Frequency.distance`."""
    groups = [(name, rows) for name, rows in _groups(X) if rows.sum() >= LEAST_ROWS]
    entries = [
        Frequency.of(f"{event}, {name}", events[rows], float(expected[rows].mean()), len(groups))
        for name, rows in groups
    ]
    return tuple(sorted(entries, key=lambda entry: -entry.distance)[:MOST_LISTED])


def _groups(X: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and mask of each group: by column, quarters of numbers or frequent values, and missing values."""
    for name, values, is_time in named_columns(X):
        missing = np.array([is_missing(value) for value in values.tolist()], dtype=bool)
        if values.dtype.kind == "f":
            yield from _quarters(name, values, ~missing, as_date if is_time else "{:.4g}".format)
        else:
            yield from _levels(name, values, ~missing)
        yield f"{name} missing", missing


def as_date(days: float) -> str:
    """Return the date of a time in days since 1970 as text, with hour and minute unless it is midnight."""
    return str(np.datetime64(round(days * 1440), "m")).replace("T00:00", "").replace("T", " ")


def _quarters(
    name: str, values: np.ndarray, present: np.ndarray, written: Callable[[float], str]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield groups between the quartiles of a column of numbers or times, or one per value if it has up to four."""
    different = np.unique(values[present])
    if len(different) <= MOST_GROUPS:
        for value in different.tolist():
            yield f"{name} = {written(value)}", present & (values == value)
        return
    inner = weighted_quantiles(values[present], np.ones(present.sum()), np.arange(1, MOST_GROUPS) / MOST_GROUPS)
    low, high = values[present].min(), values[present].max()
    edges: Sequence[float] = np.unique([low, *inner, high]).tolist()
    for k, (start, stop) in enumerate(pairwise(edges)):
        rows = present & (values <= stop) & ((values >= start) if k == 0 else (values > start))
        yield f"{name} from {written(start)} to {written(stop)}", rows


def _levels(name: str, values: np.ndarray, present: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield one group for each of the most frequent values of a column."""
    texts = np.array([str(value) for value in values.tolist()], dtype=object)
    levels, counts = np.unique(texts[present].astype(str), return_counts=True)
    for level in levels[np.argsort(-counts, kind="stable")][:MOST_GROUPS].tolist():
        yield f"{name} = {level}", present & (texts == level)
