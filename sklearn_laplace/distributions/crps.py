"""Continuous ranked probability score of predictive distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import erf

from .mixtures import NormalMixture
from .other_models import is_normal
from .transformed import TransformedMixture

N_NODES = 64
"""Nodes of the integral over the quantiles on each side of the target."""


def crps_of(distribution: Any, y: np.ndarray) -> np.ndarray:
    r"""CRPS :math:`\int (F(t) - 1[t \ge y])^2 dt` of each target, in the units of y; smaller is better.

    Mixtures and normals have closed forms. With :math:`z = (y - \mu) / s`, that of a normal is
    :math:`s\,[z (2 \Phi(z) - 1) + 2 \varphi(z) - 1 / \sqrt{\pi}]` (Gneiting & Raftery 2007, sec. 4.2). For others the
    score is :math:`2 \int_0^1 (1[y < q_\tau] - \tau) (q_\tau - y)\, d\tau` (Laio & Tamea 2007, eq. 9).
    """
    if isinstance(distribution, NormalMixture | TransformedMixture):
        return distribution.crps(y)
    if not is_normal(distribution):
        return _by_quantiles(distribution, y)
    scale = distribution.std()
    z = (y - distribution.mean()) / scale
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    values: np.ndarray = scale * (z * erf(z / np.sqrt(2)) + 2 * density - 1 / np.sqrt(np.pi))
    return values


def _by_quantiles(distribution: Any, y: np.ndarray) -> np.ndarray:
    """CRPS by Gauss–Legendre quadrature of the quantile score, below and above the level of the target."""
    level = np.clip(distribution.cdf(y), 0, 1)
    nodes, weights = np.polynomial.legendre.leggauss(N_NODES)
    total = np.zeros(np.shape(level))
    for t, weight in zip((nodes + 1) / 2, weights, strict=True):  # tails shrink as t²: quantiles may be infinite at 0
        below, beyond = level * t**2, (1 - level) * t**2
        distances = y - distribution.ppf(below), distribution.ppf(np.minimum(1 - beyond, 1 - 1e-16)) - y
        shares = below * level, beyond * (1 - level)
        total += weight * 2 * t * sum(np.where(s > 0, s * d, 0.0) for s, d in zip(shares, distances, strict=True))
    return total
