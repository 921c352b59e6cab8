"""Continuous ranked probability score of predictive distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import erf

from .mixtures import NormalMixture
from .transformed import TransformedMixture


def crps_of(distribution: Any, y: np.ndarray) -> np.ndarray:
    r"""CRPS :math:`\int (F(t) - 1[t \ge y])^2 dt` of each target, in the units of y; smaller is better.

    For a normal distribution, with :math:`z = (y - \mu) / s`:
    :math:`\mathrm{CRPS} = s\,[z (2 \Phi(z) - 1) + 2 \varphi(z) - 1 / \sqrt{\pi}]` (Gneiting & Raftery 2007, sec. 4.2).

    Parameters
    ----------
    distribution : NormalMixture, TransformedMixture or frozen scipy.stats.norm
    y : ndarray in the shape of the distribution

    Examples
    --------
    >>> from scipy.stats import norm
    >>> crps_of(norm(0.0, 1.0), np.array([0.0])).round(4)
    array([0.2337])
    """
    if isinstance(distribution, NormalMixture | TransformedMixture):
        return distribution.crps(y)
    scale = distribution.std()
    z = (y - distribution.mean()) / scale
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    values: np.ndarray = scale * (z * erf(z / np.sqrt(2)) + 2 * density - 1 / np.sqrt(np.pi))
    return values
