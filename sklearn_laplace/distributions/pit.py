r"""Probability integral transform (PIT): the predictive distribution function at the target, :math:`u_n = F_n(y_n)`.

It is uniform for a calibrated model (Dawid 1984). For counts, where F has jumps, u is drawn uniformly between
:math:`F_n(y_n - 1)` and :math:`F_n(y_n)` (Czado, Gneiting & Held 2009, sec. 2).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import rv_discrete

from .mixtures import CountMixture
from .poisson_log_normal import PoissonLogNormal


def is_discrete(distribution: Any) -> bool:
    """True if a predictive distribution is over counts."""
    return isinstance(distribution, PoissonLogNormal | CountMixture) or isinstance(
        getattr(distribution, "dist", None), rv_discrete
    )


def check_counts(distribution: Any, targets: np.ndarray) -> None:
    """Refuse targets (n,) that are no whole numbers if a predictive distribution is over counts."""
    parts = targets[targets != np.rint(targets)] if is_discrete(distribution) else targets[:0]
    if parts.size:
        raise ValueError(
            f"y holds {parts[0]:g}, and the predictive distribution is over whole numbers. Counts divided by an "
            "exposure have another distribution. Judge rows of exposure 1, or, under likelihood='poisson', the counts "
            "by scipy.stats.poisson(exposure * model.predict(X)), which omits the uncertainty of the rate."
        )


def pit_of(distribution: Any, targets: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Probability integral transform of each target, in [0, 1]; ``random`` draws the uniforms for counts."""
    pit = np.asarray(distribution.cdf(targets), dtype=np.float64)
    if is_discrete(distribution):
        below = distribution.cdf(targets - 1)
        pit = below + random.uniform(size=pit.shape) * (pit - below)
    return pit.clip(0, 1)
