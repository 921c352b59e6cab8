"""Weighted statistics of columns, rescaled row weights, and advice about targets."""

import numpy as np

ROUNDING = 10 * np.finfo(float).eps
"""Standard deviation, relative to the largest absolute value, up to which a column counts as constant."""
HEAVY_TAIL = 20.0
"""Distance from the median, in robust standard deviations, beyond which a value indicates heavy tails."""
DECADES = 1e3
"""Ratio of the 95 % to the 5 % quantile above which a positive column is compressed logarithmically."""
TAILS = 0.05
"""Fraction of the values that the robust standard deviation ignores in each tail."""
NORMAL_RANGE = 3.2897072539029444
"""Width of the central 90 % interval of a standard normal distribution."""
MOST_EXACT = 2.0**53
"""All floating-point numbers above this value are whole."""
MOST_COPIES = 10
"""Maximum ratio of two weights at which whole multiples of the smallest count copies; others may be coincidences."""
FAR_TARGET = 1e6
"""Distance of a target from all others, in units of their range, above which a warning is issued."""
MOST_ZEROS = 0.5
"""Minimum share of zeros, among targets that are never negative, for a hint."""
LARGEST_COUNT, LEAST_VARIANCE = 100, 0.9
"""Targets look like counts if they are whole numbers up to this value, with a variance of at least this fraction of
their mean. The variance of ratings is smaller."""


def count_hint(targets: np.ndarray) -> str:
    """Advice on targets (n,) or (n, C) that look like small counts; empty for other targets."""
    low, high = float(targets.min()), float(targets.max())
    if low < 0 or not 2 <= high <= LARGEST_COUNT or (targets != np.floor(targets)).any():
        return ""
    if (targets.var(axis=0) < LEAST_VARIANCE * targets.mean(axis=0)).any():
        return ""
    return (
        f"y holds whole numbers from {low:g} to {high:g}, as counts do: likelihood='negative_binomial' has intervals "
        "of whole numbers from 0."
    )


def zeros_hint(targets: np.ndarray) -> str:
    """Advice on targets (n,) or (n, C) that are never negative and mostly zero; empty for other targets."""
    share = float((targets == 0).mean(axis=0).max())
    if targets.min() < 0 or not MOST_ZEROS <= share < 1 or len(np.unique(targets)) < 3:
        return ""
    return (
        f"y is 0 in {share:.0%} of the rows, and never negative. A normal distribution has no such peak: fit a "
        "LaplaceClassifier to y > 0, and a LaplaceRegressor(target_transform='log') to the rows with y > 0."
    )


def far_target(targets: np.ndarray, weights: np.ndarray) -> str:
    """Reason for a warning if one of the targets (n, C) is extremely far from all others; otherwise empty.

    >>> far_target(np.array([[1.0], [2.0], [1e12], [3.0]]), np.ones(4)).split(".")[0]
    'y holds 1e+12 in row 2, and the other targets lie between 1 and 3'
    """
    present = np.flatnonzero(weights > 0)
    for column in targets[present].T if len(present) > 2 else ():
        ordered = np.sort(column)
        for place, low, high in ((-1, ordered[0], ordered[-2]), (0, ordered[1], ordered[-1])):
            with np.errstate(over="ignore"):
                distance = abs(ordered[place] - (high if place else low))
            if 0 < (high - low) < distance / FAR_TARGET:
                row = present[np.flatnonzero(column == ordered[place])[0]]
                return (
                    f"y holds {ordered[place]:g} in row {row}, and the other targets lie between {low:.4g} and "
                    f"{high:.4g}. Error bars of all rows become useless: correct this target, or drop the row."
                )
    return ""


def as_counts(weights: np.ndarray) -> np.ndarray:
    """Return row weights (n,), rescaled to sum to Kish's effective sample size if n > 1 and their sum is at most one.

    >>> as_counts(np.array([0.25, 0.25, 0.25, 0.25])), as_counts(np.array([2.0, 1.0])), as_counts(np.array([0.5]))
    (array([1., 1., 1., 1.]), array([2., 1.]), array([0.5]))
    """
    if len(weights) == 1 or weights.sum() > 1 + 1e-9:
        return weights
    shares = weights / np.exp2(np.frexp(weights.max())[1])  # by a power of two; squares of 1e-200 would underflow
    return _of_effective_sum(shares)


def relative_weights(weights: np.ndarray) -> np.ndarray:
    """Rescale row weights (n,) of which only the ratios matter.

    Whole numbers are divided by their greatest common divisor and then count copies. Small integer multiples of the
    smallest weight are divided by it and also count copies. Other weights are rescaled to sum to Kish's effective
    sample size. Their ratios are rounded to 30 bits, because training amplifies rounding errors.

    >>> relative_weights(np.array([0.5, 0.0, 1.0])), relative_weights(np.array([20.0, 30.0]))
    (array([1., 0., 2.]), array([2., 3.]))
    >>> print(relative_weights(np.array([0.3, 0.4, 0.4])).sum().round(4))
    2.9512
    """
    if (copies := copies_of(weights)) is not None:
        return copies
    ratios = weights / weights[weights > 0].min()
    if ratios.max() <= MOST_COPIES and np.allclose(ratios, np.round(ratios), rtol=0, atol=1e-6):
        return np.round(ratios)
    mantissas, exponents = np.frexp(weights / weights.max())
    shares = np.ldexp(np.round(np.ldexp(mantissas, 30)), exponents - 30)
    return _of_effective_sum(shares)


def copies_of(weights: np.ndarray) -> np.ndarray | None:
    """Weights (n,) divided by their greatest common divisor; None if one is not whole or above 2**53."""
    if weights.max() > MOST_EXACT or (weights != np.floor(weights)).any():
        return None
    return weights / np.gcd.reduce(weights.astype(np.int64))


def _of_effective_sum(shares: np.ndarray) -> np.ndarray:
    """Rescale shares such that their sum is Kish's effective sample size, which depends only on the ratios."""
    return shares * (shares.sum() / (shares**2).sum())


def effective_number(weights: np.ndarray) -> int:
    r"""Kish's (1965) effective sample size, :math:`(\sum w)^2 / \sum w^2`, rounded; n for equal weights.

    >>> effective_number(np.ones(7)), effective_number(np.array([1.0, 1.0, 0.0, 0.0]))
    (7, 2)
    """
    return max(round(float(weights.sum() ** 2 / (weights**2).sum())), 1)


def spread(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and standard deviation (d,) of columns (n, d) with weights (n,) or (n, d), and a mask of constant columns.

    >>> spread(np.array([[1e-13, 5.0], [3e-13, 5.0]]), np.ones(2))
    (array([2.e-13, 5.e+00]), array([1.e-13, 0.e+00]), array([False,  True]))
    """
    largest = np.abs(values).max(axis=0)
    # Scaling by a power of two avoids overflow and underflow of squares without rounding.
    unit = np.exp2(np.frexp(largest)[1] - 1.0)
    scaled = values / unit
    # Subtract the first row, because the rounding error of a sum over many rows would make a constant column vary.
    first = scaled[:1]
    mean = first[0] + np.average(scaled - first, axis=0, weights=weights)
    deviation = np.sqrt(np.average((scaled - mean) ** 2, axis=0, weights=weights))
    constant = deviation * unit <= ROUNDING * largest
    ranges(values)
    return mean * unit, deviation * unit, constant


def ranges(values: np.ndarray) -> np.ndarray:
    """Largest minus smallest value of columns (n, d), or of one column (n,); ``ValueError`` if it is not finite."""
    with np.errstate(over="ignore"):
        found: np.ndarray = np.ptp(values, axis=0)
    if not np.isfinite(found).all():
        raise ValueError(
            f"a column reaches {np.abs(values).max():.1e}, and its values differ by more than the largest float64; use "
            "another unit for it."
        )
    return found


def robust(values: np.ndarray, weights: np.ndarray) -> tuple[float, float] | None:
    """Centre and width to compress a column (n,) by asinh, if it exceeds ``HEAVY_TAIL`` or ``DECADES``; else None."""
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
    """Quantiles (q,) of the weighted empirical distribution, without interpolation: a weight of k equals k copies.

    >>> weighted_quantiles(np.array([3.0, 1.0, 2.0]), np.array([2.0, 1.0, 0.0]), np.array([0.0, 0.5, 1.0]))
    array([1., 3., 3.])
    """
    if (weights == weights[0]).all():  # several times faster, with the same result
        ordered, sums = np.sort(values), np.cumsum(weights)
    else:
        order = np.lexsort((weights, values))  # ties are ordered by weight: sums do not depend on the order of rows
        ordered, sums = values[order], np.cumsum(weights[order])
    # A positive position skips leading values of weight zero; the factor keeps rounding from passing the last value.
    positions = np.maximum(levels * sums[-1] * (1 - 1e-12), np.finfo(float).smallest_subnormal)
    return ordered[np.searchsorted(sums, positions)]
