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


def without_level_axis(intervals: np.ndarray, confidence_level: Any) -> np.ndarray:
    """Drop the last axis if a single level was given, not a sequence.

    Examples
    --------
    >>> without_level_axis(np.zeros((3, 2, 1)), 0.9).shape, without_level_axis(np.zeros((3, 2, 1)), [0.9]).shape
    ((3, 2), (3, 2, 1))
    """
    return intervals[..., 0] if np.ndim(confidence_level) == 0 else intervals
