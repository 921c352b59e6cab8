"""Central intervals of predictive distributions, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np


def central_intervals(distribution: Any, levels: np.ndarray) -> np.ndarray:
    """Quantiles (1 − p)/2 and (1 + p)/2 for each level p.

    Parameters
    ----------
    distribution : frozen distribution over an array of shape (n,) or (n, k)
    levels : ndarray of shape (L,)
        Probabilities of the intervals, strictly between 0 and 1.

    Returns
    -------
    ndarray of shape (n, 2, L) or (n, k, 2, L)

    Examples
    --------
    >>> from scipy.stats import norm
    >>> central_intervals(norm([0.0, 1.0], 1.0), np.array([0.5, 0.9])).shape
    (2, 2, 2)
    """
    ends = [[distribution.ppf((1 + side * level) / 2) for level in levels] for side in (-1, 1)]
    return np.moveaxis(np.array(ends), (0, 1), (-2, -1))


def central_interval(distribution: Any, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends of the central interval of one level, from the quantile function alone.

    Examples
    --------
    >>> from scipy.stats import norm
    >>> [float(end.round(3)) for end in central_interval(norm(0.0, 1.0), 0.9)]
    [-1.645, 1.645]
    """
    return distribution.ppf((1 - level) / 2), distribution.ppf((1 + level) / 2)


def quantiles_of(distribution: Any, levels: np.ndarray) -> np.ndarray:
    """Quantiles that increase with their level, although those of close levels may cross by rounding.

    Parameters
    ----------
    distribution : frozen distribution over an array of shape (n,) or (n, k)
    levels : ndarray of shape (L,)
        Levels, strictly between 0 and 1.

    Returns
    -------
    ndarray of shape (n, L) or (n, L, k)

    Examples
    --------
    >>> from scipy.stats import norm
    >>> quantiles_of(norm([0.0, 1.0], 1.0), np.array([0.5, 0.1])).round(2)
    array([[ 0.  , -1.28],
           [ 1.  , -0.28]])
    """
    return _increasing(np.stack([distribution.ppf(level) for level in levels], axis=1), levels, 1)


def nested(intervals: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Widen intervals where those of a lower level reach beyond them.

    Ends of close levels can cross by rounding.

    Parameters
    ----------
    intervals : ndarray of shape (..., 2, L)
    levels : ndarray of shape (L,)

    Returns
    -------
    ndarray of shape (..., 2, L)

    Examples
    --------
    >>> nested(np.array([[-1.0, -0.9], [1.0, 2.0]]), np.array([0.5, 0.9])).tolist()
    [[-1.0, -1.0], [1.0, 2.0]]
    """
    ends = -_increasing(-intervals[..., 0, :], levels, -1), _increasing(intervals[..., 1, :], levels, -1)
    return np.stack(ends, -2)


def _increasing(values: np.ndarray, levels: np.ndarray, axis: int) -> np.ndarray:
    """Largest value of all levels up to each level, along an axis of L levels in any order."""
    order = np.argsort(levels, kind="stable")
    largest = np.maximum.accumulate(np.take(values, order, axis), axis)
    return np.take(largest, np.argsort(order), axis)


def without_level_axis(intervals: np.ndarray, confidence_level: Any) -> np.ndarray:
    """Drop the last axis if a single level was given, not a sequence.

    Examples
    --------
    >>> without_level_axis(np.zeros((3, 2, 1)), 0.9).shape, without_level_axis(np.zeros((3, 2, 1)), [0.9]).shape
    ((3, 2), (3, 2, 1))
    """
    return intervals[..., 0] if np.ndim(confidence_level) == 0 else intervals
