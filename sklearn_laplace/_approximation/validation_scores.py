r"""Selection for a net whose weights are fixed: the density of rows that it was not trained on.

Let :math:`e_n` be the errors of the net on these rows, and :math:`\varphi V_n(\rho)` their variances, noise included.
The variances are those of the structure of the posterior, at noise variance φ and prior precisions
:math:`\delta = f \delta_0 = (\rho/\varphi)\, \delta_0`. The selected f and φ maximise

.. math:: \sum_n w_n \log N(e_n; 0, \varphi V_n(\rho)) - \tfrac12 \Big(\frac{\log f}{s_f}\Big)^2
          - \tfrac12 \Big(\frac{\log \varphi / \bar{e^2}}{2 s_\sigma}\Big)^2

with φ within a factor of 2.5 of :math:`\bar{e^2}`. The two weak priors decide if the rows are few: a precision of
natural size, and noise as large as the errors. A structure whose posterior is too wide gets a larger f, not a larger φ,
because the errors bound φ. Without dispersion (classes and counts) the sum is the log density of the targets, and f is
selected alone, with a weak prior around :math:`f_0` = ``FACTOR_OF_CLASSES``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..laplace.fit import Hyper, LaplaceFit, Rows
from ..laplace.latent import LatentGaussian
from ..laplace.leave_one_out.densities import Density, normal_terms
from ..laplace.likelihoods._base import without_noise
from ..laplace.selection import HeldOutScores
from ..laplace.selection.held_out import covariances

LOWEST, HIGHEST = -5.0, 6.0
"""Range of f, in powers of ten."""
POINTS, DEAR_POINTS = 45, 23
"""Number of values of ρ if one eigendecomposition serves all of them, and if each needs its own factorisation."""
FINE = 441
"""Number of values of ρ after interpolation."""
RANGE, NOISES = 2.5, 81
"""Largest ratio of φ to the mean squared error, and of the latter to φ; number of values of φ."""
BIAS, SD_OF_BIAS = 0.2, 0.3
"""Logarithm of the mean squared error of new rows over that of leave-one-out: its mean and standard deviation."""
SD_OF_FACTOR, SD_OF_NOISE = math.log(10.0), 0.2
"""Standard deviations of log f and of log σ; chosen on inner splits, see docs/decisions.md."""
FACTOR_OF_CLASSES, SD_OF_CLASSES = 10.0, 0.6
"""The same for classes and counts: centre of f, and standard deviation of its logarithm."""


@dataclass(frozen=True, kw_only=True)
class ValidationScores(HeldOutScores):
    """Log density of rows that a fixed net was not trained on, on a grid of k values of ρ."""

    level: float  # mean squared error over known noise, see :func:`_level`
    widths: Tensor  # (k,): medians over the rows of the variance V, noise included, at φ = 1
    spread: float  # variance of a constant prediction, in units of φ

    def chosen(self, hyper: Hyper, *, free_prior: bool, free_dispersion: bool) -> Hyper:
        """Maximise the criterion of this module over the free hyperparameters."""
        ridges, squares, constants = self._interpolated()
        if not self.freedom:
            away = (ridges - math.log(FACTOR_OF_CLASSES)) / SD_OF_CLASSES
            factor = math.exp(ridges[(constants - 0.5 * away**2).argmax()])
            return replace(hyper, prior_precision=factor * self.unit) if free_prior else hyper
        noises = np.array([math.log(hyper.dispersion)])
        if free_dispersion:
            low, high = (math.log(bound) for bound in self.bounds)
            noises = math.log(self.level) + np.linspace(-1, 1, NOISES) * math.log(RANGE)
            noises = noises.clip(low, high)
        if not free_prior:
            factor = float(hyper.prior_precision[0] / self.unit[0])
            at = (math.log(factor) + noises).clip(ridges[0], ridges[-1])
            squares, constants = (np.interp(at, ridges, values) for values in (squares, constants))
            ridges = at
        else:
            ridges, squares, constants = ridges[:, None], squares[:, None], constants[:, None]
        density = constants - 0.5 * (self.freedom * (math.log(2 * math.pi) + noises) + squares * np.exp(-noises))
        penalty = ((noises - math.log(self.level)) / (2 * SD_OF_NOISE)) ** 2
        factors = ridges - noises
        if free_prior:
            penalty = penalty + (factors / SD_OF_FACTOR) ** 2
        best = np.unravel_index((density - 0.5 * penalty).argmax(), density.shape)
        noise = float(np.exp(np.broadcast_to(noises, density.shape)[best])) if free_dispersion else hyper.dispersion
        precision = math.exp(factors[best]) * self.unit if free_prior else hyper.prior_precision
        return replace(hyper, prior_precision=precision, dispersion=noise)

    def width(self, hyper: Hyper) -> float:
        """Median predictive standard deviation of the rows relative to that of a constant prediction.

        0 without dispersion.
        """
        if not self.freedom:
            return 0.0
        factor = float(hyper.prior_precision[0] / self.unit[0])
        ridges, widths = (values.log().cpu().numpy() for values in (self.ridge, self.widths))
        variance = hyper.dispersion * math.exp(np.interp(math.log(factor * hyper.dispersion), ridges, widths))
        return math.sqrt(variance / self.spread)

    def _interpolated(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log ρ, squares and constants on a finer grid, each of shape (``FINE``,)."""
        known = self.ridge.log().cpu().numpy()
        fine = np.linspace(known[0], known[-1], FINE)
        return fine, *(np.interp(fine, known, values.cpu().numpy()) for values in (self.squares, self.constants))


def validation_scores(
    parts: Iterable[tuple[LaplaceFit, Iterable[Rows]]], unit: Tensor, density: Density, left_out: Tensor | None = None
) -> ValidationScores:
    """Compute the scores of rows that the fits do not include.

    ``parts`` are Laplace fits at the weights of the net, each with batches of other rows; ``unit`` (G,) are natural
    prior precisions. ``left_out`` (n,) are squared leave-one-out errors of the training rows, in units of their known
    noise, which share in the level of the errors if the other rows are few.
    """
    listed = [(fit, list(batches)) for fit, batches in parts]
    first = listed[0][0]
    likelihood = first.likelihood
    normal = likelihood.has_dispersion
    level, factor = _level(first, _squares(listed), left_out) if normal else (1.0, 1.0)
    dear = any(fit.curvature.eigenbasis() is None for fit, _ in listed) or len(unit) > 1
    factors = torch.logspace(LOWEST, HIGHEST, DEAR_POINTS if dear else POINTS, dtype=torch.float64).to(unit)
    ridge = factors * level
    squares, constants, freedom = torch.zeros_like(ridge), torch.zeros_like(ridge), 0.0
    variances: list[list[Tensor]] = [[] for _ in ridge]
    for fit, batches in listed:
        for place, rows, covariance in covariances(fit, batches, ridge[:, None] * unit):
            if normal:
                y, noise = without_noise(rows.targets, fit.n_outputs)
                noise = noise.expand_as(rows.outputs)
                square, logdet = normal_terms(y - rows.outputs, covariance, noise)
                squares[place] += factor * (rows.weights @ square)
                constants[place] -= 0.5 * (rows.weights @ logdet)
                freedom += float(rows.weights.sum()) * fit.n_outputs if place == 0 else 0.0
                variances[place].append((covariance.diagonal(dim1=1, dim2=2) + noise).mean(1))
            else:
                scored = likelihood.scored(LatentGaussian(rows.outputs, covariance), rows.targets, rows.weights)
                constants[place] += likelihood.score_weights(rows.weights) @ density(*scored, 1.0)
    widths = torch.stack([torch.cat(part).median() for part in variances]) if normal else torch.zeros_like(ridge)
    return ValidationScores(
        unit=unit,
        ridge=ridge,
        squares=squares,
        constants=constants,
        freedom=freedom,
        bounds=likelihood.dispersion_bounds,
        level=level,
        widths=widths,
        spread=likelihood.dispersion_start,
    )


def _level(fit: LaplaceFit, of_rows: Tensor, left_out: Tensor | None) -> tuple[float, float]:
    """Level of the errors, and its ratio to the mean of the rows' squares.

    It is at least the mean square of the training rows.
    """
    smallest = fit.likelihood.dispersion_bounds[0]
    of_training = 2 * fit.nll / (fit.total_weight * fit.n_outputs)
    own = max(float(of_rows.mean()), smallest)
    level = max(own if left_out is None else _pooled(of_rows, left_out), of_training, smallest)
    return level, level / own


def relative_squares(errors: Tensor, observed: Tensor, weights: Tensor) -> Tensor:
    """Squares (n,) of errors (n, C) over their known noise variances, times the weights relative to their mean.

    ``observed`` are the targets combined with their known noise.
    """
    _, noise = without_noise(observed.double(), errors.shape[1])
    weights = weights.double()
    return weights / weights.mean() * (errors.square() / noise).mean(1)


def _squares(parts: Iterable[tuple[LaplaceFit, list[Rows]]]) -> Tensor:
    rows = [(fit, batch) for fit, batches in parts for batch in batches]
    observed, weights = (torch.cat([batch[k] for _, batch in rows]) for k in (1, 2))
    outputs = torch.cat([fit.network(batch[0]).double() for fit, batch in rows])
    targets, _ = without_noise(observed.double(), outputs.shape[1])
    return relative_squares(targets - outputs, observed, weights)


def _pooled(own: Tensor, left_out: Tensor) -> float:
    r"""Level of the errors from validation rows and leave-one-out: the mean of both logarithms, by their precisions.

    A mean m of n squares has the relative variance :math:`s^2 = \mathrm{var}(e^2) / (n m^2)`. Leave-one-out is smaller
    by ``BIAS`` and has the variance ``SD_OF_BIAS``² in addition: the features were learnt from the rows left out.
    """
    means = [max(float(squares.mean()), torch.finfo(squares.dtype).tiny) for squares in (own, left_out)]
    spreads = [_relative_variance(squares, mean) for squares, mean in zip((own, left_out), means, strict=True)]
    precisions = 1 / max(spreads[0], 1e-12), 1 / (spreads[1] + SD_OF_BIAS**2)
    share = precisions[0] / sum(precisions)
    return math.exp(share * math.log(means[0]) + (1 - share) * (math.log(means[1]) + BIAS))


def _relative_variance(squares: Tensor, mean: float) -> float:
    """Variance of the mean of squares over its square; 2, that of a normal error, for a single one."""
    return float(squares.var()) / (len(squares) * mean**2) if len(squares) > 1 else 2.0
