r"""Weights of the members in a mixture of Laplace approximations.

"uniform" gives equal weights. "evidence" gives weights in proportion to the evidence (Bayesian model averaging). "loo"
is stacking (Yao et al. 2018): the weights maximise the leave-one-out density of the training rows under the mixture
(``laplace/leave_one_out/left_out.py``),

.. math:: w = \arg\max_{w \ge 0,\ \sum w = 1} \sum_n \omega_n \log \sum_k w_k\, p_k(y_n \mid D_{-n}),

where :math:`\omega_n` is the weight of row n. The problem is concave and is solved by expectation maximisation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import softmax

EM_STEPS = 100
"""Number of steps of expectation maximisation from equal weights. More steps take small weights closer to zero, and
hardly change the density of new rows."""


def by_evidence(log_evidences: np.ndarray) -> np.ndarray:
    """Weights (k,) in proportion to exp(log evidence)."""
    weights: np.ndarray = softmax(log_evidences)
    return weights


def by_stacking(
    log_densities: np.ndarray, row_weights: np.ndarray, updated: Callable[[np.ndarray], np.ndarray] | None = None
) -> np.ndarray:
    """Weights (k,) that maximise the density of the mixture, given log p_k(yₙ) (k, n) of held-out rows, in nats.

    If the densities have common parameters, ``updated`` returns the log densities for the best of them, given the
    part (k, n) of each row that belongs to each member; the parts have the sum 1.
    """
    shares = row_weights / row_weights.sum()
    weights = np.full(len(log_densities), 1 / len(log_densities))
    for _ in range(EM_STEPS):
        with np.errstate(divide="ignore"):
            joint = log_densities + np.log(weights)[:, None]
        parts = softmax(joint, axis=0) * shares
        weights, log_densities = parts.sum(1), log_densities if updated is None else updated(parts)
    normalised: np.ndarray = weights / weights.sum()
    return normalised
