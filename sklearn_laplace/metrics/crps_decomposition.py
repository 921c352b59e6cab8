r"""Decomposition of the mean continuous ranked probability score (CRPS) by means of quantile scores.

The CRPS is an integral of quantile scores over their level τ (Laio & Tamea 2007, eq. 9):

.. math:: \mathrm{CRPS} = 2 \int_0^1 S_\tau\, d\tau, \qquad
          S_\tau = \frac1n \sum_n (1[y_n < q_{\tau,n}] - \tau)(q_{\tau,n} - y_n).

:math:`S_\tau^{rc}` is the score after the best increasing function is applied to the predicted quantiles (isotonic
quantile regression). :math:`S_\tau^{mg}` is the score of the best constant for all rows (Bentzien & Friederichs 2014;
Gneiting et al. 2023). The parts, integrated over τ, are

* miscalibration :math:`\mathrm{MCB} = S - S^{rc} \ge 0`, the gain from the best recalibration;
* discrimination :math:`\mathrm{DSC} = S^{mg} - S^{rc} \ge 0`, the gain of the recalibrated quantiles over a constant;
* uncertainty :math:`\mathrm{UNC} = S^{mg}`, the score of the best constant distribution.

CRPS = MCB − DSC + UNC holds exactly, for continuous distributions and for counts. The integral is computed by the
trapezoidal rule in :math:`\Phi^{-1}(\tau)`. The miscalibration that a calibrated model has by chance is simulated.

The isotonic quantile regression repeatedly halves the range of candidate values (Stout 2013). Each step is an
isotonic regression of the indicator that y is above the middle of this range, for all levels in one call. All steps
together cost O(k n log n) for k levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import ndtr
from sklearn.isotonic import isotonic_regression

from .._table.statistics import weighted_quantiles

STEP, REACH = 0.25, 5.0
"""Spacing and largest absolute value of the integration nodes, in normal scores."""
NODES = np.arange(-REACH, REACH + STEP / 2, STEP)
LEVELS = ndtr(NODES)
"""Levels τ of the quantiles, shape (41,)."""
SHARES = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()
"""Weights of the levels in the integral, which sum to 1."""


@dataclass(frozen=True)
class CrpsDecomposition:
    """CRPS and its non-negative parts, in the units of y: score = miscalibration − discrimination + uncertainty.

    ``expected`` is the mean miscalibration for targets simulated from the predictive distributions. The miscalibration
    of one calibrated model in 20 exceeds ``plausible``. Both are NaN without simulated targets.
    """

    score: float
    miscalibration: float
    discrimination: float
    uncertainty: float
    expected: float = np.nan
    plausible: float = np.nan

    @classmethod
    def of(
        cls,
        quantiles: np.ndarray,
        y: np.ndarray,
        weights: np.ndarray | None = None,
        draws: Sequence[np.ndarray] = (),
    ) -> Self:
        """Decompose the CRPS of targets y (n,), from predicted quantiles (41, n) at :data:`LEVELS`.

        ``draws`` are targets (n,) drawn from the predictive distributions, for the miscalibration due to chance.
        """
        w = np.ones(len(y)) if weights is None else weights
        raw, recalibrated = _score(quantiles, y, w), _score(isotonic_quantiles(quantiles, y, LEVELS, w), y, w)
        constant = _score(weighted_quantiles(y, w, LEVELS)[:, None], y, w)
        parts = raw - recalibrated, constant - recalibrated, constant
        chance = [_score(quantiles, d, w) - _score(isotonic_quantiles(quantiles, d, LEVELS, w), d, w) for d in draws]
        if not chance:
            return cls(raw, *parts)
        return cls(raw, *parts, float(np.mean(chance)), float(np.max(chance)))

    @property
    def is_off(self) -> bool:
        """True if the miscalibration exceeds that of every simulated set of targets."""
        return self.miscalibration > self.plausible


def isotonic_quantiles(predicted: np.ndarray, y: np.ndarray, levels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Values (k, n) of the increasing function of ``predicted`` (k, n) with the smallest quantile score at each level.

    Rows with equal predictions get the same value.
    """
    k, n = predicted.shape
    order = np.argsort(predicted, axis=1, kind="stable")
    ordered = np.take_along_axis(predicted, order, 1)
    starts = np.concatenate([np.ones((k, 1), bool), np.diff(ordered, axis=1) > 0], axis=1).ravel()
    ties = np.cumsum(starts) - 1  # rows with equal predictions at a level are one point
    candidates, rank = np.unique(y, return_inverse=True)
    rank, w = rank[order].ravel(), weights[order].ravel()
    total = np.bincount(ties, w)
    first = np.flatnonzero(starts)
    level = first // n
    low, high = np.zeros(len(first), int), np.full(len(first), len(candidates) - 1)
    while (low < high).any():
        middle = (low + high) // 2
        above = np.bincount(ties, w * (rank > middle[ties])) / total
        changes = (np.diff(level) > 0) | (np.diff(low) > 0) | (np.diff(high) > 0)
        block = 2.0 * np.concatenate([[0], np.cumsum(changes)])
        rises = isotonic_regression(above + block, sample_weight=total) - block > 1 - levels[level]
        low, high = np.where(rises & (low < high), middle + 1, low), np.where(rises, high, middle)
    fitted = np.empty((k, n))
    np.put_along_axis(fitted, order, candidates[low][ties].reshape(k, n), 1)
    return fitted


def _score(quantiles: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    """Twice the integral of the quantile scores, for quantiles of shape (41, n) or (41, 1)."""
    losses = ((y < quantiles) - LEVELS[:, None]) * (quantiles - y)
    return float(2 * SHARES @ losses @ weights / weights.sum())
