r"""Simultaneous bands for the empirical distribution function (ECDF) of a sample that should be uniform.

For n independent uniform values, :math:`n\hat F(z)` has the binomial distribution with probability z. A pointwise
band of level :math:`1 - \gamma` lies between the :math:`\gamma/2` and :math:`1 - \gamma/2` quantiles of this
distribution. A simultaneous band of level 1 − α contains the whole ECDF with probability 1 − α. The statistic is

.. math:: \gamma_{\min} = \min_k\, 2 \min\{P(B_k \le n\hat F(z_k)),\; P(B_k \ge n\hat F(z_k))\},
          \quad B_k \sim \mathrm{Bin}(n, z_k),

and γ is the α quantile of its distribution under uniformity (Säilynoja, Bürkner & Vehtari 2022, alg. 1). The simulation
draws the counts between the points from their exact multinomial distribution, at a cost that is independent of n.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
from scipy.stats import binom

from .._estimator.report import PLAUSIBLE
from .._table.statistics import effective_number

N_SIMULATED, SEED = 5000, 0
"""Number and seed of simulated samples. The level of the band has a standard error of √(.05 · .95 / 5000) = .003."""


@dataclass(frozen=True)
class EcdfBand:
    r"""Observed fractions :math:`\hat F(z)` of values that should be uniform, with the simultaneous band of level .95.

    The points z in (0, 1) ascend. ``pvalue`` is the probability of an ECDF at least as extreme, under uniformity.
    """

    points: np.ndarray
    observed: np.ndarray
    low: np.ndarray
    high: np.ndarray
    pvalue: float

    @classmethod
    def of(cls, values: np.ndarray, points: np.ndarray, weights: np.ndarray | None = None) -> Self:
        """Compare values (n,) with the uniform distribution. With weights, the band uses the effective sample size."""
        weights = np.ones(len(values)) if weights is None else weights
        order = np.argsort(values, kind="stable")
        shares = np.concatenate([[0.0], np.cumsum(weights[order])]) / weights.sum()
        observed = shares[np.searchsorted(values[order], points, side="right")]
        n = effective_number(weights)
        null = _simulated(n, tuple(points.tolist()))
        gamma = null[int((1 - PLAUSIBLE) * N_SIMULATED)]
        low, high = (binom.ppf(level, n, points) / n for level in (gamma / 2, 1 - gamma / 2))
        found = _tail(np.rint(n * observed), n, points).min()
        pvalue = (1 + np.searchsorted(null, found * (1 + 1e-9), side="right")) / (N_SIMULATED + 1)
        return cls(points, observed, low, high, float(pvalue))

    @property
    def is_off(self) -> bool:
        """True if the ECDF leaves its band."""
        return self.pvalue < 1 - PLAUSIBLE


@lru_cache(maxsize=32)
def _simulated(n: int, points: tuple[float, ...]) -> np.ndarray:
    """Sorted statistics γ_min (N_SIMULATED,) of uniform samples of n values."""
    cells = np.diff([0.0, *points, 1.0])
    counts = np.random.default_rng(SEED).multinomial(n, cells / cells.sum(), size=N_SIMULATED)
    null = np.sort(_least_tail(counts[:, :-1].cumsum(1), n, np.array(points)))
    null.flags.writeable = False
    return null


def _least_tail(counts: np.ndarray, n: int, points: np.ndarray) -> np.ndarray:
    """Smallest tail probability of each of m samples; ``counts`` (m, k) has the numbers of values up to each point."""
    least = np.ones(len(counts))
    for column, point in zip(counts.T, points, strict=True):
        start = int(column.min())
        values = np.arange(start, column.max() + 1)
        least = np.minimum(least, _tail(values, n, point)[column - start])
    return least


def _tail(counts: np.ndarray, n: int, points: np.ndarray) -> np.ndarray:
    return 2 * np.minimum(binom.cdf(counts, n, points), binom.sf(counts - 1, n, points))
