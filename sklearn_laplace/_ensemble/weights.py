r"""Weights of the members in a mixture of Laplace approximations.

"uniform" gives equal weights. "evidence" gives weights in proportion to the evidence (Bayesian model averaging). "loo"
is stacking (Yao et al. 2018): the weights maximise the leave-one-out density of the training rows under the mixture
(``laplace/leave_one_out/left_out.py``),

.. math:: w = \arg\max_{w \ge 0,\ \sum w = 1} \sum_n \omega_n \log \sum_k w_k\, p_k(y_n \mid D_{-n}),

where :math:`\omega_n` is the weight of row n. The problem is concave and is solved by expectation maximisation.
Stacking on held-out rows also gives the weights of kinds of nets (:func:`of_kinds`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax

from .._approximation.row_densities import Densities

ITERATIONS, RESTING = 2000, 1e-9
"""Maximum number of steps of expectation maximisation, and gain in nats per row below which they end."""
LEAST_FACTOR = 0.25
"""Minimum factor of the variances of a mixture of several kinds."""


def of_kinds(kinds: Sequence[Densities], row_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Stacking weights (k,) of several kinds of nets, with sum 1, and the best factor of all variances of the mixture.

    The noise level is that of each kind alone, but the mixture is more accurate, so that the factor is at most 1.
    """
    weights = by_stacking(np.stack([kind.scaled(1.0) for kind in kinds]), row_weights)
    shares = row_weights / row_weights.sum()

    def loss(log_factor: float) -> float:
        scaled = np.stack([kind.scaled(float(np.exp(log_factor))) for kind in kinds])
        with np.errstate(divide="ignore"):
            return -float(shares @ logsumexp(scaled + np.log(weights)[:, None], axis=0))

    minimum = minimize_scalar(loss, bounds=(np.log(LEAST_FACTOR), 0.0), method="bounded")
    return weights, float(np.exp(minimum.x)) if minimum.fun < loss(0.0) else 1.0  # without noise the loss is constant


def by_evidence(log_evidences: np.ndarray) -> np.ndarray:
    """Weights (k,) in proportion to exp(log evidence)."""
    weights: np.ndarray = softmax(log_evidences)
    return weights


def by_stacking(log_densities: np.ndarray, row_weights: np.ndarray) -> np.ndarray:
    """Weights (k,) that maximise the density of the mixture, given log p_k(yₙ) (k, n) of held-out rows, in nats."""
    shares = row_weights / row_weights.sum()
    weights, before = np.full(len(log_densities), 1 / len(log_densities)), -np.inf
    for _ in range(ITERATIONS):
        with np.errstate(divide="ignore"):
            joint = log_densities + np.log(weights)[:, None]
        mixed = logsumexp(joint, axis=0)
        if (now := float(shares @ mixed)) < before + RESTING:
            break
        weights, before = np.exp(joint - mixed) @ shares, now
    normalised: np.ndarray = weights / weights.sum()
    return normalised
