r"""Functions of a predictive distribution: continuous ranked probability score, central intervals and PIT.

The probability integral transform (PIT) is the predictive distribution function at the target, :math:`u_n = F_n(y_n)`.
It is uniform for a calibrated model (Dawid 1984). For counts, where F has jumps, u is drawn uniformly between
:math:`F_n(y_n - 1)` and :math:`F_n(y_n)` (Czado, Gneiting & Held 2009, sec. 2).
"""

from typing import Any

import numpy as np
from scipy.special import erf
from scipy.stats import rv_discrete

from .mixtures import CountMixture, NormalMixture
from .other_models import is_normal
from .poisson_log_normal import PoissonLogNormal
from .transformed import TransformedMixture

N_NODES = 64
"""Number of quadrature nodes on each side of the target's level F(y)."""


def crps_of(distribution: Any, y: np.ndarray) -> np.ndarray:
    r"""CRPS :math:`\int (F(t) - 1[t \ge y])^2 dt` of each target, in the units of y; smaller is better.

    Mixtures of normals, transformed or not, have their own methods. With :math:`z = (y - \mu) / s`, the score of a
    normal is :math:`s\,[z (2 \Phi(z) - 1) + 2 \varphi(z) - 1 / \sqrt{\pi}]` (Gneiting & Raftery 2007, sec. 4.2). For
    other distributions it is :math:`2 \int_0^1 (1[y < q_\tau] - \tau) (q_\tau - y)\, d\tau` (Laio & Tamea 2007, eq. 9).
    """
    if isinstance(distribution, NormalMixture | TransformedMixture):
        return distribution.crps(y)
    if not is_normal(distribution):
        return _by_quantiles(distribution, y)
    scale = distribution.std()
    z = (y - distribution.mean()) / scale
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return scale * (z * erf(z / np.sqrt(2)) + 2 * density - 1 / np.sqrt(np.pi))


def _by_quantiles(distribution: Any, y: np.ndarray) -> np.ndarray:
    """CRPS by Gauss–Legendre quadrature of the quantile score, below and above the level of the target."""
    level = np.clip(distribution.cdf(y), 0, 1)
    nodes, weights = np.polynomial.legendre.leggauss(N_NODES)
    total = np.zeros(np.shape(level))
    for t, weight in zip((nodes + 1) / 2, weights, strict=True):  # t², as quantiles may be infinite at the ends
        below, beyond = level * t**2, (1 - level) * t**2
        distances = y - distribution.ppf(below), distribution.ppf(np.minimum(1 - beyond, 1 - 1e-16)) - y
        shares = below * level, beyond * (1 - level)
        total += weight * 2 * t * sum(np.where(s > 0, s * d, 0.0) for s, d in zip(shares, distances, strict=True))
    return total


def central_intervals(distribution: Any, levels: np.ndarray) -> np.ndarray:
    """Quantiles at (1 ∓ p)/2 for each of L levels p, shape (n, 2, L) or (n, k, 2, L)."""
    ends = [[distribution.ppf((1 + side * level) / 2) for level in levels] for side in (-1, 1)]
    return np.moveaxis(np.array(ends), (0, 1), (-2, -1))


def central_interval(distribution: Any, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends of the central interval of one level, from the quantile function."""
    return distribution.ppf((1 - level) / 2), distribution.ppf((1 + level) / 2)


def quantiles_of(distribution: Any, levels: np.ndarray) -> np.ndarray:
    """Quantiles (n, L) or (n, L, k), corrected where quantiles of close levels cross due to rounding."""
    return _increasing(np.stack([distribution.ppf(level) for level in levels], axis=1), levels, 1)


def nested(intervals: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Widen intervals (..., 2, L) where intervals of a lower level reach beyond them due to rounding."""
    ends = -_increasing(-intervals[..., 0, :], levels, -1), _increasing(intervals[..., 1, :], levels, -1)
    return np.stack(ends, -2)


def _increasing(values: np.ndarray, levels: np.ndarray, axis: int) -> np.ndarray:
    """Running maximum over ascending levels, along an axis of L levels in any order."""
    order = np.argsort(levels, kind="stable")
    largest = np.maximum.accumulate(np.take(values, order, axis), axis)
    return np.take(largest, np.argsort(order), axis)


def without_level_axis(intervals: np.ndarray, confidence_level: Any) -> np.ndarray:
    """Drop the last axis if ``confidence_level`` is a single level instead of a sequence."""
    return intervals[..., 0] if np.ndim(confidence_level) == 0 else intervals


def is_discrete(distribution: Any) -> bool:
    """True if a predictive distribution is over counts."""
    return isinstance(distribution, PoissonLogNormal | CountMixture) or isinstance(
        getattr(distribution, "dist", None), rv_discrete
    )


def check_counts(distribution: Any, targets: np.ndarray) -> None:
    """Raise a ValueError for fractional targets (n,) of a distribution over counts."""
    parts = targets[targets != np.rint(targets)] if is_discrete(distribution) else targets[:0]
    if parts.size:
        raise ValueError(
            f"y holds {parts[0]:g}, and the predictive distribution is over whole numbers. Counts divided by an "
            "exposure have another distribution. Use rows of exposure 1, or, under likelihood='poisson', the counts "
            "by scipy.stats.poisson(exposure * model.predict(X)), which omits the uncertainty of the rate."
        )


def pit_of(distribution: Any, targets: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Probability integral transform of each target, in [0, 1]; ``random`` draws the uniforms for counts."""
    pit = np.asarray(distribution.cdf(targets), dtype=np.float64)
    if is_discrete(distribution):
        below = distribution.cdf(targets - 1)
        pit = below + random.uniform(size=pit.shape) * (pit - below)
    return pit.clip(0, 1)
