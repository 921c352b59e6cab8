r"""Weights of the members in a mixture of Laplace approximations.

"uniform" keeps the weights of the fit: equal ones, or those that held-out rows select for members that train together.
"evidence" gives weights in proportion to the evidence (Bayesian model averaging). "loo" is stacking (Yao et al. 2018):
the weights maximise the leave-one-out density of the training rows under the mixture
(``laplace/leave_one_out/left_out.py``),

.. math:: w = \arg\max_{w \ge 0,\ \sum w = 1} \sum_n \omega_n \log \sum_k w_k\, p_k(y_n \mid D_{-n}),

where :math:`\omega_n` is the weight of row n. The problem is concave and is solved by expectation maximisation.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp, softmax

ITERATIONS, RESTING = 2000, 1e-9
"""Maximum number of steps of expectation maximisation, and gain in nats per row below which they end."""


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
