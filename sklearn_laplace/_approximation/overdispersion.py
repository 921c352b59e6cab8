r"""Overdispersion α of negative binomial counts: the value of largest likelihood, each output by itself.

The criterion is the expected log likelihood of rows, as in the EM algorithm:

.. math:: \sum_n w_n \int \log \mathrm{NB}(y_n \mid e^g, \alpha)\, N(g \mid m_n, v_n)\, dg

For a net that is trained alone, they are its training rows under its posterior; training and selection alternate. For
members that train together, they are the held-out rows of the trial of prior precisions, with v = 0. Later, the density
of held-out rows decides (``_ensemble/approximate_counts_and_classes.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from .._host.rows import CHUNK, TrainingRows, some_rows
from ..distributions.poisson_log_normal import N_NODES, hermite
from ..laplace.fit import Hyper, LaplaceFit, Rows
from ..laplace.leave_one_out.rows import linear_rows
from ..laplace.likelihoods import NegativeBinomial
from ..laplace.likelihoods._base import Likelihood
from .target_noise import MOST_SCORED

ROUNDS = 3
"""Number of further trainings of a net, each under the overdispersion of the training before."""
LEAST_EXCESS, MOST_ALPHA = 1e-3, 1e3
"""Bounds of the search: smallest α times the mean count, if that is above 1, and largest α."""


@dataclass(frozen=True)
class CountRows:
    """Counts of one output, and the moments of the normal distributions of their log means; each array is (n,)."""

    means: np.ndarray
    variances: np.ndarray
    counts: np.ndarray
    weights: np.ndarray

    def criterion(self, alpha: float) -> float:
        """Expected log likelihood of α, in nats.

        >>> rows = CountRows(np.zeros(2), np.full(2, 1e-9), np.array([0.0, 2.0]), np.ones(2))
        >>> round(rows.criterion(1.0), 3)  # log 0.5 + log 0.125
        -2.773
        """
        nodes, shares = (torch.from_numpy(part) for part in hermite(N_NODES if self.variances.any() else 1))
        g = torch.from_numpy(self.means)[:, None] + torch.from_numpy(np.sqrt(2 * self.variances))[:, None] * nodes
        counts = torch.from_numpy(self.counts)[:, None].expand_as(g)
        losses = NegativeBinomial((alpha,)).nll(g.reshape(-1, 1), counts.reshape(-1, 1)).view(g.shape)
        return -float(torch.from_numpy(self.weights) @ losses @ shares) / math.sqrt(math.pi)

    def best(self) -> float:
        """The α with the largest criterion, by Brent's method on log α."""
        mean = float(self.weights @ self.counts / self.weights.sum())
        bounds = math.log(LEAST_EXCESS / max(mean, 1.0)), math.log(MOST_ALPHA)
        return math.exp(
            minimize_scalar(lambda value: -self.criterion(math.exp(value)), bounds=bounds, method="bounded").x
        )


def best_overdispersion(fit: LaplaceFit, hyper: Hyper, rows: TrainingRows) -> tuple[float, ...]:
    """Select the overdispersion of each output for a trained net, on the rows of its training."""
    few = rows.taken(some_rows(len(rows), MOST_SCORED).to(rows.weights.device))
    return _best(*_moments(fit, replace(hyper, temperature=1.0), few.chunks(CHUNK)))


def overdispersion_of(
    likelihood: Likelihood, outputs: Tensor, rows: TrainingRows, weights: Tensor
) -> tuple[float, ...]:
    """Overdispersion of each output of nets (K, n, C) whose row weights (K, n) are 0 for rows of their training.

    Empty if the likelihood has none.
    """
    if not likelihood.is_overdispersed:
        return ()
    held_out = weights.nonzero()
    net, row = held_out[some_rows(len(held_out), MOST_SCORED).to(held_out.device)].T
    means = outputs[net, row].double()
    return _best(means, torch.zeros_like(means), rows.targets[row], weights[net, row])


def _best(means: Tensor, variances: Tensor, counts: Tensor, weights: Tensor) -> tuple[float, ...]:
    m, v, y, w = (part.double().cpu().numpy() for part in (means, variances, counts, weights))
    return tuple(CountRows(m[:, c], v[:, c], y[:, c], w).best() for c in range(m.shape[1]))


def _moments(fit: LaplaceFit, hyper: Hyper, chunks: Iterable[Rows]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean and variance of the outputs of rows, with their counts, shape (n, C) each, and their weights (n,)."""
    posterior, found = fit.posterior(hyper, spectral=False), []
    for rows in linear_rows(fit.network, chunks):
        variance = posterior.covariance(rows.jacobian).diagonal(dim1=1, dim2=2)
        found.append((rows.at(fit.shift), variance, rows.targets, rows.weights))
    means, variances, counts, weights = (torch.cat(values).double() for values in zip(*found, strict=True))
    return means, variances, counts, weights
