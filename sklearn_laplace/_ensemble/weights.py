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
DECISIVE = 10.0
"""Minimum gain, in nats over all held-out rows, for using more than one kind of nets with classes or counts. See
docs/decisions.md."""
LIKELY = 2.0
"""Minimum gain, in nats over all held-out rows, for a factor other than 1 with classes or counts: a likelihood ratio
test at 5 %. With noise the factor replaces a level that each kind has chosen for itself, and needs no such test."""


def of_kinds(kinds: Sequence[Densities], row_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Stacking weights (k,) of several kinds of nets, with sum 1, and the best factor of all variances of the mixture.

    The noise level is that of each kind alone, but the mixture is more accurate, so that the factor is at most 1. For
    classes and counts it is a factor of the covariance of the outputs, and 1 if its gain is below ``LIKELY``. There,
    the first kind gets all the weight if the gain of the mixture is below ``DECISIVE``.
    """
    logs = np.stack([kind.scaled(1.0) for kind in kinds])
    weights, is_normal = by_stacking(logs, row_weights), all(kind.is_normal for kind in kinds)
    total, shares = row_weights.sum(), row_weights / row_weights.sum()

    def loss(log_factor: float) -> float:
        scaled = np.stack([kind.scaled(float(np.exp(log_factor))) for kind in kinds])
        with np.errstate(divide="ignore"):
            return -float(shares @ logsumexp(scaled + np.log(weights)[:, None], axis=0))

    if not is_normal and total * loss(0.0) >= -row_weights @ logs[0] - DECISIVE:
        return np.eye(len(kinds))[0], 1.0
    minimum = minimize_scalar(loss, bounds=(np.log(LEAST_FACTOR), 0.0), method="bounded")
    is_used = is_normal or total * (loss(0.0) - minimum.fun) > LIKELY
    return weights, float(np.exp(minimum.x)) if is_used else 1.0


def of_all_nets(factor: float, weights: Sequence[np.ndarray]) -> float:
    r"""Factor of the covariance for a mixture of several nets of each kind, from that for one net of each kind.

    As in ``_approximation/calibration.py``, averaging with weights :math:`a_k` removes a fraction of the variance
    between nets that is proportional to :math:`1 - \sum_k a_k^2`, and the logarithm of the factor with it. ``weights``
    are those of the nets of each kind, of at least two kinds; their total is 1.

    >>> of_all_nets(0.64, [np.array([0.5]), np.array([0.5])])  # one net of each kind
    0.64
    >>> round(of_all_nets(0.64, [np.full(10**5, 0.5e-5)] * 2), 3)  # the square, for many nets
    0.41
    """
    of_nets = 1 - sum(float(np.square(part).sum()) for part in weights)
    of_one_each = 1 - sum(float(part.sum()) ** 2 for part in weights)
    return max(LEAST_FACTOR, factor ** (of_nets / of_one_each))


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
