r"""How much each member of a mixture of Laplace approximations counts.

"uniform": all the same. "evidence": in proportion to the evidence, as if one of the nets were the true one. "loo":
stacking (Yao et al. 2018), the weights under which the mixture gives the training rows the largest density, each as of
the members without it (``laplace/leave_one_out/left_out.py``):

.. math:: w = \arg\max_{w \ge 0,\ \sum w = 1} \sum_n \omega_n \log \sum_k w_k\, p_k(y_n \mid D_{-n}),

a concave problem, solved by expectation maximisation. Kinds of nets are weighed so as well, by rows that were held out
from one net of each (:func:`of_kinds`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax

from .._approximation.row_densities import Densities

ITERATIONS, RESTING = 2000, 1e-9
"""Steps of the expectation maximisation, and the gain a row, nats, that ends them."""
LEAST_FACTOR = 0.25
"""Of the variances of a mixture of kinds."""
DECISIVE = 10.0
"""Nats of all rows that further kinds have to be worth together where no factor of the variances makes up for it that a
mixture errs less than its parts: of classes and counts. Nine were worth nothing on other rows (australian, .001 ± .009
nats a row), on phoneme there are many more."""


def of_kinds(kinds: Sequence[Densities], row_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """The weights of kinds (k,), by stacking, and the factor of all variances under which they are best together.

    Each kind has the noise that suits it alone; a mixture of them errs less. Without a noise the first kind is alone
    where the others are not worth much.

    Parameters
    ----------
    kinds : sequence of Densities
    row_weights : ndarray of shape (n,)

    Examples
    --------
    >>> from sklearn_laplace._approximation.row_densities import RowDensities
    >>> errors = np.array([1.0, -1.0, 1.0, -1.0])
    >>> def normal(e, variance):
    ...     return RowDensities(-0.5 * (np.log(2 * np.pi * variance) + e**2 / variance), e**2 / variance, 1)
    >>> weights, factor = of_kinds([normal(errors, 4.0), normal(errors, 4.0)], np.ones(4))
    >>> weights, round(factor, 3)
    (array([0.5, 0.5]), 0.25)
    """
    logs = np.stack([kind.scaled(1.0) for kind in kinds])
    weights = by_stacking(logs, row_weights)
    if not all(kind.is_normal for kind in kinds):
        with np.errstate(divide="ignore"):
            gain = row_weights @ (logsumexp(logs + np.log(weights)[:, None], axis=0) - logs[0])
        return (weights if gain > DECISIVE else np.eye(len(kinds))[0]), 1.0
    shares = row_weights / row_weights.sum()

    def loss(log_factor: float) -> float:
        scaled = np.stack([kind.scaled(float(np.exp(log_factor))) for kind in kinds])
        with np.errstate(divide="ignore"):
            return -float(shares @ logsumexp(scaled + np.log(weights)[:, None], axis=0))

    found = minimize_scalar(loss, bounds=(np.log(LEAST_FACTOR), 0.0), method="bounded")
    return weights, float(np.exp(found.x))


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
