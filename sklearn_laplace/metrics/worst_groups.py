r"""Coverage in groups of rows: leaves of a tree grown to find wrong coverage, and strata of interval width.

The groups of the tree are honest: one half of the rows grows the tree, and the other half is evaluated (Athey &
Imbens 2016). The tree predicts :math:`|2u - 1|` from the columns, where u is the PIT. This value is the level of the
central interval that ends at the target. It is uniform for a calibrated model, and therefore has mean ½ in all groups.

Width strata are bins of interval width (Angelopoulos & Bates 2021, sec. 3.1, size-stratified coverage).

The observed coverages have binomial bands that hold for all groups together (Bonferroni).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.stats import binom
from sklearn.tree import DecisionTreeRegressor

from .._estimator.report import PLAUSIBLE, Frequency, as_date
from .._table.reading import named_columns
from .._table.statistics import effective_number
from .._validation.rows import is_missing
from .spread import equal_bins

MOST_LEAVES, MOST_DEPTH, LEAST_ROWS, N_STRATA = 6, 3, 40, 5
"""Maximum leaf count and depth of the tree, minimum number of training rows in a leaf, and maximum number of strata."""
LISTED = 3
"""Largest number of column levels listed in the name of a group."""
DIGITS, MOST_DIGITS = 4, 17
"""Significant digits in the name of a group: default, and maximum if more are needed to tell numbers apart."""
SAME_WIDTH = 1e-9
"""Differences of widths up to this size, relative to the largest width, are treated as rounding errors."""


@dataclass(frozen=True)
class GroupCoverage:
    """Coverage in groups of rows, with bands that hold for all groups together.

    ``pvalue`` is that of the worst group, adjusted for the number of groups (Bonferroni). ``equality_pvalue`` is
    the p-value for equal coverage: groups are compared with the pooled coverage instead of the nominal level.
    """

    groups: tuple[Frequency, ...]
    pvalue: float
    equality_pvalue: float

    @classmethod
    def of(
        cls, groups: dict[str, np.ndarray], inside: np.ndarray, level: float, weights: np.ndarray | None = None
    ) -> Self:
        """Compare coverage with its nominal level in groups (masks (n,)); ``inside`` (n,) marks covered targets."""
        w = np.ones(len(inside)) if weights is None else weights
        entries = [Frequency.of(name, inside[rows], level, len(groups), w[rows]) for name, rows in groups.items()]
        sizes = [effective_number(w[rows]) for rows in groups.values()]
        judged = np.any(list(groups.values()), axis=0)
        pooled = float(np.average(inside[judged], weights=w[judged]))
        return cls(tuple(entries), *(_family_pvalue(entries, sizes, expected) for expected in (level, pooled)))

    @property
    def is_off(self) -> bool:
        """True if a group is outside its band."""
        return self.pvalue < 1 - PLAUSIBLE

    @property
    def worst(self) -> Frequency:
        """Group whose coverage is furthest from the level, in standard errors."""
        return max(self.groups, key=lambda entry: entry.distance)


def leaves(
    X: Any, kept: np.ndarray, pit: np.ndarray, weights: np.ndarray, random: np.random.RandomState
) -> dict[str, np.ndarray] | None:
    """Rows to evaluate in each leaf of the tree, as masks (n,) keyed by names of leaves.

    ``kept`` (n_samples,) marks the n rows of the table X to use. Return None if X is not a table or n < 160.
    """
    if len(pit) < 4 * LEAST_ROWS:
        return None
    grows = np.zeros(len(pit), dtype=bool)
    grows[random.permutation(len(pit))[: len(pit) // 2]] = True
    target = np.abs(2 * pit - 1)
    features = list(_features(X, kept, grows, target))
    if not features:
        return None
    table = np.stack([feature.values for feature in features], axis=1)
    tree = DecisionTreeRegressor(
        max_depth=MOST_DEPTH, max_leaf_nodes=MOST_LEAVES, min_samples_leaf=LEAST_ROWS, random_state=0
    )
    tree.fit(table[grows], target[grows], sample_weight=weights[grows])
    reached = tree.apply(table)
    names = _names(tree.tree_, features)
    found = {names[leaf]: ~grows & (reached == leaf) for leaf in np.unique(reached[~grows]).tolist()}
    return found


def strata(widths: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Groups of rows with similar interval widths (n,), as masks (n,) keyed by names."""
    largest = float(np.abs(widths).max())
    if largest > 0:
        widths = largest * SAME_WIDTH * np.round(widths / (largest * SAME_WIDTH))
    index = equal_bins(widths, weights, N_STRATA)
    masks = [index == place for place in range(int(index.max()) + 1)]
    digits = digits_for([float(widths[rows].min()) for rows in masks])
    return {f"width {widths[rows].min():.{digits}g} to {widths[rows].max():.{digits}g}": rows for rows in masks}


def digits_for(values: Sequence[float]) -> int:
    """Number of significant digits for printing: ``DIGITS``, or more if different values would look equal."""
    whole = 1 + int(np.log10(max(1.0, *map(abs, values))))
    for digits in (DIGITS, *range(max(whole, DIGITS + 1), MOST_DIGITS)):
        if len({f"{value:.{digits}g}" for value in values}) == len(set(values)):
            return digits
    return MOST_DIGITS


def _family_pvalue(entries: list[Frequency], sizes: list[int], expected: float) -> float:
    """Two-sided p-value of the worst observed frequency, times the number of frequencies, at most 1."""
    n = np.array(sizes)
    successes = np.rint(n * [entry.observed for entry in entries])
    least = 2 * np.minimum(binom.cdf(successes, n, expected), binom.sf(successes - 1, n, expected)).min()
    return float(min(1.0, len(entries) * least))


@dataclass(frozen=True)
class _Feature:
    """A feature of the tree: its name, values (n,), and levels of a column that is not numeric."""

    name: str
    values: np.ndarray
    levels: list[str] | None = None
    is_time: bool = False

    def texts(self, thresholds: Sequence[float]) -> dict[float, str]:
        """Thresholds as texts that differ from each other and from the smallest and the largest value."""
        if self.is_time:
            return {threshold: as_date(threshold) for threshold in thresholds}
        digits = digits_for([*thresholds, float(self.values.min()), float(self.values.max())])
        return {threshold: f"{threshold:.{digits}g}" for threshold in thresholds}

    def condition(self, low: float, high: float, texts: dict[float, str]) -> str:
        if self.levels is not None:
            chosen = [level for k, level in enumerate(self.levels) if low < k <= high]
            rest = f", … ({len(chosen)} levels)" if len(chosen) > LISTED else ""
            listed = ", ".join(sorted(chosen)[:LISTED]) + rest
            return f"{self.name} = {listed}" if len(chosen) == 1 else f"{self.name} in ({listed})"
        if np.isinf(low):
            return f"{self.name} ≤ {texts[high]}"
        return f"{self.name} > {texts[low]}" if np.isinf(high) else f"{texts[low]} < {self.name} ≤ {texts[high]}"


def _features(X: Any, kept: np.ndarray, grows: np.ndarray, target: np.ndarray) -> Iterator[_Feature]:
    """Features of the tree.

    Text levels are ordered by their mean target in the half that grows the tree, so one split can separate good from
    bad levels.
    """
    for name, all_values, is_time in named_columns(X):
        values = all_values[kept]
        missing = np.array([is_missing(value) for value in values.tolist()], dtype=bool)
        if values.dtype.kind == "f":
            present = values[grows & ~missing]
            filled = np.where(missing, np.median(present) if len(present) else 0.0, values)
            yield _Feature(name, filled, is_time=is_time)
        else:
            texts = np.array(["missing" if gone else str(v) for v, gone in zip(values.tolist(), missing, strict=True)])
            levels, index = np.unique(texts, return_inverse=True)
            counts = np.bincount(index[grows], minlength=len(levels))
            sums = np.bincount(index[grows], target[grows], len(levels))
            means = np.where(counts > 0, sums / np.maximum(counts, 1), target[grows].mean())
            order = np.argsort(means, kind="stable")
            yield _Feature(name, np.argsort(order)[index].astype(np.float64), levels[order].tolist())
        if values.dtype.kind == "f" and missing.any():
            yield _Feature(name, missing.astype(np.float64), ["present", "missing"])


def _names(tree: Any, features: Sequence[_Feature]) -> dict[int, str]:
    """Readable condition of each leaf of a fitted tree."""
    inner = np.flatnonzero(tree.children_left >= 0)
    thresholds = {
        place: features[place].texts(sorted({float(tree.threshold[k]) for k in inner if tree.feature[k] == place}))
        for place in {int(tree.feature[k]) for k in inner}
    }
    found: dict[int, str] = {}
    stack: list[tuple[int, dict[int, tuple[float, float]]]] = [(0, {})]
    while stack:
        node, bounds = stack.pop()
        if tree.children_left[node] < 0:
            parts = [features[place].condition(*ends, thresholds[place]) for place, ends in bounds.items()]
            found[node] = " and ".join(parts) or "all rows"
            continue
        place, threshold = int(tree.feature[node]), float(tree.threshold[node])
        low, high = bounds.get(place, (-np.inf, np.inf))
        stack.append((int(tree.children_right[node]), bounds | {place: (threshold, high)}))
        stack.append((int(tree.children_left[node]), bounds | {place: (low, threshold)}))
    return found
