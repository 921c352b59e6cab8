"""Central intervals of predictive distributions, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np


def central_intervals(distribution: Any, levels: np.ndarray) -> np.ndarray:
    """Quantiles (1 ∓ p)/2 for each of L levels p, shape (n, 2, L) or (n, k, 2, L)."""
    ends = [[distribution.ppf((1 + side * level) / 2) for level in levels] for side in (-1, 1)]
    return np.moveaxis(np.array(ends), (0, 1), (-2, -1))


def central_interval(distribution: Any, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends of the central interval of one level, from the quantile function alone."""
    return distribution.ppf((1 - level) / 2), distribution.ppf((1 + level) / 2)


def quantiles_of(distribution: Any, levels: np.ndarray) -> np.ndarray:
    """Quantiles (n, L) or (n, L, k) that increase with their level, although those of close levels may cross by
    rounding.
    """
    return _increasing(np.stack([distribution.ppf(level) for level in levels], axis=1), levels, 1)


def nested(intervals: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Widen intervals (..., 2, L) where those of a lower level reach beyond them, as those of close levels can by
    rounding.
    """
    ends = -_increasing(-intervals[..., 0, :], levels, -1), _increasing(intervals[..., 1, :], levels, -1)
    return np.stack(ends, -2)


def _increasing(values: np.ndarray, levels: np.ndarray, axis: int) -> np.ndarray:
    """Largest value of all levels up to each level, along an axis of L levels in any order."""
    order = np.argsort(levels, kind="stable")
    largest = np.maximum.accumulate(np.take(values, order, axis), axis)
    return np.take(largest, np.argsort(order), axis)


def without_level_axis(intervals: np.ndarray, confidence_level: Any) -> np.ndarray:
    """Drop the last axis if a single level was given, not a sequence."""
    return intervals[..., 0] if np.ndim(confidence_level) == 0 else intervals
