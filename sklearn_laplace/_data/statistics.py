"""Weighted means, scales and quantiles of columns."""

from __future__ import annotations

import numpy as np

ROUNDING = 10 * np.finfo(float).eps
"""Standard deviation of a column, relative to its largest value, that is rounding."""
HEAVY_TAIL = 20.0
"""Distance from the median, in robust standard deviations, that only heavy tails reach."""
DECADES = 1e3
"""Quotient of the ends of the central 90 % of positive numbers from which on their logarithm is what varies."""
TAILS = 0.05
"""Left out at each end by the robust standard deviation."""
NORMAL_RANGE = 3.2897072539029444
"""Of the central 90 % of a standard normal distribution."""


def as_counts(weights: np.ndarray) -> np.ndarray:
    r"""Weights (n,) that count rows; shares, which sum to one at most, of the rows that they are worth.

    Several rows that weigh one together are no data that anybody has: AdaBoost and its kin normalise their weights, and
    taken at their word the prior would outweigh all of them. What shares are worth is Kish's (1965) effective sample
    size, :math:`(\sum w)^2 / \sum w^2`: n where they are equal, fewer where a few rows have most.

    Examples
    --------
    >>> as_counts(np.array([0.25, 0.25, 0.25, 0.25])), as_counts(np.array([2.0, 1.0])), as_counts(np.array([0.5]))
    (array([1., 1., 1., 1.]), array([2., 1.]), array([0.5]))
    """
    if len(weights) == 1 or weights.sum() > 1 + 1e-9:
        return weights
    shares = weights / np.exp2(np.frexp(weights.max())[1])  # of a power of two: squares of 1e-200 would vanish
    return shares * (shares.sum() / (shares**2).sum())


def spread(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weighted mean and standard deviation of each column, and which columns are constant but for rounding.

    The weights are those of the rows (n,), or of each value.

    Raises
    ------
    ValueError
        When the values of a column differ by more than the largest float64.

    Examples
    --------
    >>> spread(np.array([[1e-13, 5.0], [3e-13, 5.0]]), np.ones(2))
    (array([2.e-13, 5.e+00]), array([1.e-13, 0.e+00]), array([False,  True]))
    """
    largest = np.abs(values).max(axis=0)
    # A power of two, so that squares neither overflow nor vanish and nothing is rounded.
    unit = np.exp2(np.frexp(largest)[1] - 1.0)
    scaled = values / unit
    mean = np.average(scaled, axis=0, weights=weights)
    deviation = np.sqrt(np.average((scaled - mean) ** 2, axis=0, weights=weights))
    constant = deviation * unit <= ROUNDING * largest
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation, width = mean * unit, deviation * unit, np.ptp(values, axis=0)
    if not np.isfinite(width).all():
        raise ValueError(
            f"a column reaches {np.abs(values).max():.1e} and its values differ by more than a float64 can hold; use "
            "another unit for it."
        )
    return mean, deviation, constant


def robust(values: np.ndarray, weights: np.ndarray) -> tuple[float, float] | None:
    """Centre and width of the asinh that draws the tails of a column in; None where they are not heavy.

    They are where a value is twenty robust standard deviations, those of a normal distribution with the same central
    90 %, away from the median: centre and width are median and deviation. Positive numbers that go over three decades
    within their central 90 % have a centre of zero and its lower end as width, which makes a logarithm. Quantiles are
    those of the weighted empirical distribution, without interpolation: a weight of k is the same as k copies.

    Parameters
    ----------
    values : ndarray of shape (n,)
    weights : ndarray of shape (n,)

    Examples
    --------
    >>> t = np.linspace(0.0005, 0.9995, 1000)
    >>> robust(-np.log(t), np.ones(1000)) is None, robust(np.tan(np.pi * (t - 0.5)), np.ones(1000)) is None
    (True, False)
    """
    if len(values) == 0:
        return None
    least, low, median, high, most = weighted_quantiles(values, weights, np.array([0.0, TAILS, 0.5, 1 - TAILS, 1.0]))
    if least > 0 and high / DECADES > low:
        return 0.0, float(low)
    with np.errstate(over="ignore"):
        width, reach = (high - low) / NORMAL_RANGE, max(most - median, median - least)
        heavy = 0 < width < np.inf and reach > HEAVY_TAIL * width
    return (float(median), float(width)) if heavy else None


def weighted_quantiles(values: np.ndarray, weights: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Those of the weighted empirical distribution, without interpolation; values of weight zero are no ends either.

    Examples
    --------
    >>> weighted_quantiles(np.array([3.0, 1.0, 2.0]), np.array([2.0, 1.0, 0.0]), np.array([0.0, 0.5, 1.0]))
    array([1., 3., 3.])
    """
    order = np.lexsort((weights, values))  # equal values by weight: the sums are the same for rows in any order
    ordered, sums = values[order], np.cumsum(weights[order])
    # The least level is not above the first value's share, and rounding takes no level past the last one.
    at = np.maximum(levels * sums[-1] * (1 - 1e-12), np.finfo(float).smallest_subnormal)
    found: np.ndarray = ordered[np.searchsorted(sums, at)]
    return found
