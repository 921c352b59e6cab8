r"""Overdispersion α of negative binomial counts: the value of largest likelihood, each output by itself.

The criterion is the expected log likelihood of the training rows under the posterior, as in the EM algorithm:

.. math:: \sum_n w_n \int \log \mathrm{NB}(y_n \mid e^g, \alpha)\, N(g \mid m_n, v_n)\, dg
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from .._host.rows import CHUNK, TrainingRows
from ..distributions.poisson_log_normal import hermite
from ..laplace.fit import Hyper, LaplaceFit, Rows
from ..laplace.leave_one_out.rows import linear_rows
from ..laplace.likelihoods import NegativeBinomial

MOST_ROWS = 20_000
"""Maximum number of training rows in the criterion, evenly spaced."""
N_NODES = 20
"""Gauss–Hermite nodes of an expected log likelihood."""
LEAST_EXCESS, MOST_ALPHA = 1e-3, 1e3
"""Bounds of the search: smallest α times the mean count, if that is above 1, and largest α."""
N_GRID = 12
"""Number of values of α between the bounds, from the best of which the search starts."""
TOLERANCE = 0.01
"""Tolerance of log α."""


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
        nodes, shares = (torch.from_numpy(part) for part in hermite(N_NODES))
        g = torch.from_numpy(self.means)[:, None] + torch.from_numpy(np.sqrt(2 * self.variances))[:, None] * nodes
        counts = torch.from_numpy(self.counts)[:, None].expand_as(g)
        losses = NegativeBinomial((alpha,)).nll(g.reshape(-1, 1), counts.reshape(-1, 1)).view(g.shape)
        return -float(torch.from_numpy(self.weights) @ losses @ shares) / math.sqrt(math.pi)

    def best(self) -> float:
        """The α with the largest criterion: the best of a grid, refined by Brent's method."""
        mean = float(self.weights @ self.counts / self.weights.sum())
        low, high = math.log(LEAST_EXCESS / max(mean, 1.0)), math.log(MOST_ALPHA)
        grid = np.linspace(low, high, N_GRID)
        place = int(np.argmax([self.criterion(math.exp(value)) for value in grid]))
        ends = grid[max(place - 1, 0)], grid[min(place + 1, N_GRID - 1)]
        found = minimize_scalar(
            lambda value: -self.criterion(math.exp(value)), bounds=ends, method="bounded", options={"xatol": TOLERANCE}
        )
        return math.exp(float(found.x))


def best_overdispersion(fit: LaplaceFit, hyper: Hyper, rows: TrainingRows) -> tuple[float, ...]:
    """Select the overdispersion of each output for a trained net, on the rows of its training."""
    hyper = replace(hyper, temperature=1.0)
    every = torch.arange(0, len(rows), math.ceil(len(rows) / MOST_ROWS), device=rows.weights.device)
    moments = _moments(fit, hyper, rows.taken(every).chunks(CHUNK))
    means, variances, counts, weights = (values.cpu().numpy() for values in moments)
    return tuple(CountRows(means[:, c], variances[:, c], counts[:, c], weights).best() for c in range(fit.n_outputs))


def _moments(fit: LaplaceFit, hyper: Hyper, chunks: Iterable[Rows]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean and variance of the outputs of rows, with their counts, shape (n, C) each, and their weights (n,)."""
    posterior, found = fit.posterior(hyper, spectral=False), []
    for rows in linear_rows(fit.network, chunks):
        variance = posterior.covariance(rows.jacobian).diagonal(dim1=1, dim2=2)
        found.append((rows.at(fit.shift), variance, rows.targets, rows.weights))
    means, variances, counts, weights = (torch.cat(values).double() for values in zip(*found, strict=True))
    return means, variances, counts, weights


def has_settled(before: tuple[float, ...], after: tuple[float, ...], mean: np.ndarray, change: float) -> bool:
    """True if the variance 1 + α μ̄ in units of the mean changes by less than a factor, for every output.

    α is one value per output, or one for all. ``mean`` (C,) are the mean counts μ̄, and ``change`` is the largest ratio
    of the variances.

    >>> has_settled((0.5,), (0.01,), np.array([0.1]), 1.2), has_settled((0.5,), (0.01,), np.array([10.0]), 1.2)
    (True, False)
    """
    ratio = (1 + np.array(after) * mean) / (1 + np.array(before) * mean)
    return bool(np.abs(np.log(ratio)).max() < math.log(change))
