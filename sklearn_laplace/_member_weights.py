r"""How much each member of a mixture of Laplace approximations counts.

"uniform": all the same. "evidence": in proportion to the evidence, as if one of the nets were the true one. "loo":
stacking (Yao et al. 2018), the weights under which the mixture gives the training rows the largest density, each as of
the members without it (``leave_one_out.py``):

.. math:: w = \arg\max_{w \ge 0,\ \sum w = 1} \sum_n \omega_n \log \sum_k w_k\, p_k(y_n \mid D_{-n}),

a concave problem, solved by expectation maximisation.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp, softmax

ITERATIONS, RESTING = 2000, 1e-9
"""Steps of the expectation maximisation, and the gain a row, nats, that ends them."""


def by_evidence(log_evidences: np.ndarray) -> np.ndarray:
    """Weights (k,) in proportion to exp(log evidence).

    Examples
    --------
    >>> by_evidence(np.array([-10.0, -10.0, -200.0])).round(2)
    array([0.5, 0.5, 0. ])
    """
    found: np.ndarray = softmax(log_evidences)
    return found


def by_stacking(log_densities: np.ndarray, row_weights: np.ndarray) -> np.ndarray:
    """Weights (k,) of largest mixed density.

    Parameters
    ----------
    log_densities : ndarray of shape (k, n)
        log p_k(yₙ) of left-out rows, nats.
    row_weights : ndarray of shape (n,)

    Examples
    --------
    >>> each_knows_a_half = np.log([[0.9, 0.9, 0.1, 0.1], [0.1, 0.1, 0.9, 0.9]])
    >>> by_stacking(each_knows_a_half, np.ones(4)).round(2)
    array([0.5, 0.5])
    >>> by_stacking(each_knows_a_half, np.array([1.0, 1.0, 0.0, 0.0])).round(2)
    array([1., 0.])
    """
    shares = row_weights / row_weights.sum()
    weights, before = np.full(len(log_densities), 1 / len(log_densities)), -np.inf
    for _ in range(ITERATIONS):
        with np.errstate(divide="ignore"):
            joint = log_densities + np.log(weights)[:, None]
        mixed = logsumexp(joint, axis=0)
        if (now := float(shares @ mixed)) < before + RESTING:
            break
        weights, before = np.exp(joint - mixed) @ shares, now
    found: np.ndarray = weights / weights.sum()
    return found
