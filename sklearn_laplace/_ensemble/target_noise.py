r"""Noise level of each of several targets, the same in all rows, and overdispersion of counts.

The noise of target c has the variance :math:`\varphi r_c`. The levels r are estimated from the held-out errors e of
nets and from the variances V of their predictions. The nets were trained under noise variances :math:`\varphi v`.

**Nets trained under one level** have v = 1. Where the rows determine a prediction, its variance is proportional to the
noise of the target. The error of target c in row n is then normal with the variance
:math:`r_c (V_{nc} + \varphi)`. With row weights w of sum W,

.. math:: r_c = \frac1W \sum_n \frac{w_n e_{nc}^2}{V_{nc} + \varphi} .

**Nets trained under several levels.** The variances V already reflect similar levels. The error has the variance
:math:`s_c V_{nc} + \varphi r_c`; r maximises the density of the errors. The factor
:math:`s_c = \min(1, (\sum_n w_n e_{nc}^2 / W \varphi)^{1/2})` is the same as for varying noise (``noise_model.py``).

All targets share one level if this has the smaller Bayesian information criterion (Schwarz 1978). The gain in log
density from several levels is :math:`\tfrac12 W \sum_c \log(\bar r / r_c)`, with the mean :math:`\bar r` of the levels.

**Counts.** The noise level of counts is the overdispersion α of the negative binomial likelihood. For each output, α
maximises the expected log likelihood of rows, as in the EM algorithm:

.. math:: \sum_n w_n \int \log \mathrm{NB}(y_n \mid e^g, \alpha)\, N(g \mid m_n, v_n)\, dg

Here g is the log mean of a count; its distribution has mean m and variance v. For a net trained alone, the rows are the
training rows, and m and v are those of the posterior. Training alternates with the selection of α. For jointly trained
members, the rows are held out in a trial that selects dropout (``train_members.py``), with v = 0. Later, the density
of held-out rows selects α (``approximate_counts_and_classes.py``).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from ..distributions.poisson_log_normal import N_NODES, hermite
from ..laplace.fit import CHUNK, Hyper, LaplaceFit, Rows, TrainingRows, some_rows
from ..laplace.leave_one_out.rows import linear_rows
from ..laplace.likelihoods import NegativeBinomial
from ..laplace.likelihoods._base import Likelihood
from ..laplace.selection import HeldOutErrors
from .noise_model import REACH, NoiseModel

SMALLEST = math.exp(-REACH)
"""Smallest level relative to the largest."""
MOST_SCORED = 10_000
"""Maximum number of rows for estimating levels and overdispersion, and for selecting cycles and repeat weights."""


@dataclass(frozen=True)
class TargetNoise:
    """Noise variances of the C targets, in units of φ; their mean is 1."""

    levels: tuple[float, ...]
    is_trained_under: ClassVar[bool] = True
    varies: ClassVar[bool] = False

    def ratios(self, inputs: Tensor) -> Tensor:
        """Noise ratios of rows (n, d), shape (n, C)."""
        return torch.tensor(self.levels, dtype=torch.float64, device=inputs.device).expand(len(inputs), -1)

    def ratios_of(self, X: np.ndarray) -> np.ndarray:
        return np.tile(self.levels, (len(X), 1))

    def mean_ratio(self, inputs: Tensor) -> Tensor:
        return self.ratios(inputs)

    def nodes(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Weight (1,) and values (n, C, 1) of the noise ratios."""
        ratios = self.ratios(inputs)
        return ratios.new_ones(1), ratios[..., None]

    def merged_nodes(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.nodes(inputs)


Noise = NoiseModel | TargetNoise | None
"""Noise of an ensemble: a model by inputs, a model by target, or None for one level."""


def target_noise(held_out: HeldOutErrors, dispersion: float) -> TargetNoise | None:
    """Relative noise level r of each target from held-out errors (n, C) at dispersion φ; None if one level fits all."""
    n_outputs = held_out.errors.shape[1]
    if n_outputs == 1:
        return None
    rows = some_rows(len(held_out.errors), MOST_SCORED).to(held_out.errors.device)
    parts = (held_out.errors.square(), held_out.variance, held_out.noise, held_out.weights)
    squares, variance, noise, weights = (part[rows].double().cpu().numpy() for part in parts)
    total = float(weights.sum())
    if (noise == noise[0, 0]).all():
        levels = weights @ (squares / (variance + dispersion)) / total
    else:
        levels = _of_largest_density(squares, variance, weights, dispersion)
    levels = np.clip(levels, SMALLEST * max(levels.max(), np.finfo(float).tiny), None)
    ratios = levels / levels.mean()
    if -0.5 * total * np.log(ratios).sum() <= 0.5 * (n_outputs - 1) * math.log(total):
        return None
    return TargetNoise(tuple(ratios.tolist()))


def _of_largest_density(
    squares: np.ndarray, variance: np.ndarray, weights: np.ndarray, dispersion: float
) -> np.ndarray:
    """Levels (C,) that maximise the density of the errors of nets trained under similar levels."""
    log_rough = np.log(np.maximum(weights @ squares / weights.sum() / dispersion, SMALLEST))
    variance = variance * np.exp(np.minimum(0.5 * log_rough, 0.0))

    def best(k: int) -> float:
        def nll(log_level: float) -> float:
            total = variance[:, k] + dispersion * math.exp(log_level)
            return float(weights @ (np.log(total) + squares[:, k] / total))

        bounds = log_rough[k] - REACH, log_rough[k] + 1.0
        return math.exp(minimize_scalar(nll, bounds=bounds, method="bounded").x)

    return np.array([best(k) for k in range(len(log_rough))])


ROUNDS = 3
"""Maximum number of further training runs of a net, each under the overdispersion selected after the previous one."""
MOST_ALPHA = 1e3
"""Maximum α in the search. The minimum is its inverse, divided by the mean count if the mean is above 1."""


@dataclass(frozen=True)
class CountRows:
    """Counts of one output, and means and variances of their normally distributed log means; each array is (n,)."""

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
        bounds = math.log(1 / MOST_ALPHA / max(mean, 1.0)), math.log(MOST_ALPHA)
        return math.exp(
            minimize_scalar(lambda value: -self.criterion(math.exp(value)), bounds=bounds, method="bounded").x
        )


def best_overdispersion(fit: LaplaceFit, hyper: Hyper, rows: TrainingRows) -> tuple[float, ...]:
    """Select the overdispersion of each output for a trained net, on its training rows."""
    few = rows.taken(some_rows(len(rows), MOST_SCORED).to(rows.weights.device))
    return _best(*_moments(fit, replace(hyper, temperature=1.0), few.chunks(CHUNK)))


def overdispersion_of(
    likelihood: Likelihood, outputs: Tensor, rows: TrainingRows, weights: Tensor
) -> tuple[float, ...]:
    """Overdispersion of each output, from outputs (K, n, C) and row weights (K, n); () if the likelihood has none."""
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
