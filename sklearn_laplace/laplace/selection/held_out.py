r"""Selection on held-out rows, by the predictive density of nets for rows on which they were not trained.

.. math:: L(\delta, \varphi) = \sum_k \sum_{n \in \text{fold } k} w_n \log p(y_n \mid D_{-k}, \delta, \varphi)

Each net is trained from its own initialisation, and its weights stay fixed. The prior precisions are a common factor f
times those used in training.

For a Gaussian likelihood, the covariance at (fδ, φ) is φ times the covariance at (ρδ, 1), with :math:`\rho = f\varphi`.
Let the held-out rows have prediction errors :math:`e_n`, and covariances :math:`V_n(\rho)` at (ρδ, 1), including noise.
Then

.. math:: L = -\tfrac12 \sum_n w_n \Big[ C \log 2\pi\varphi + \log |V_n(\rho)|
          + \tfrac1\varphi\, e_n^\top V_n(\rho)^{-1} e_n \Big].

Two sums on a grid of ρ therefore suffice to select δ, φ or both, without the data.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..evidence import PRECISION_BOUNDS
from ..fit import Hyper, LaplaceFit, Rows
from ..latent import LatentGaussian
from ..leave_one_out.rows import Density, LinearRows, held_rows, linear_rows, normal_terms
from ..likelihoods._base import without_noise
from ..structures._base import Eigenbasis

DECADES, DECADES_WITHOUT_NOISE = 3, 6
"""The common factor of the precisions ranges over this many powers of ten above and below 1: for targets with noise,
and for classes and counts. If nets separate the classes of a small table, the curvature almost vanishes, and so does
the precision that maximises the evidence."""
PER_DECADE, DEAR_PER_DECADE = 8, 2
"""Grid points per decade: if one eigendecomposition serves all of them, and if each needs a factorisation."""
TOLERANCE = 0.002
"""Precisions are equivalent if log densities differ by at most this many nats per target, or by 1 nat in total."""
WEAKEST = 0.3
"""Smallest factor of the prior precisions used in training, for targets with noise. Under a weaker prior, the wide
posterior would explain varying noise, and leave nothing for a noise model."""
PROPORTIONAL = 1e-9
"""Relative difference up to which precisions count as a common multiple of those used in training."""


@dataclass(frozen=True)
class HeldOutErrors:
    """Prediction errors on held-out rows, with predictive variances, float64."""

    errors: Tensor  # e, (n, C), in the net's target units
    variance: Tensor  # of the predictions, without noise, (n, C)
    noise: Tensor  # known noise variances, in units of φ, (n, C)
    weights: Tensor  # (n,)


@dataclass(frozen=True)
class HeldOutScores:
    """Log density (nats) of held-out rows at m values of ρ; equal to ``constants`` if there is no dispersion."""

    unit: Tensor  # prior precisions used in training, (G,)
    ridge: Tensor  # ρ: common factor f, times φ if there is a dispersion, (m,)
    squares: Tensor  # Σ w eᵀ V⁻¹ e, (m,)
    constants: Tensor  # −½ Σ w log |V|, (m,)
    freedom: float  # C Σ w
    bounds: tuple[float, float] = (0.0, math.inf)  # search interval of φ
    total_weight: float = 0.0  # Σ w
    factor: float = 1.0  # of all variances, for a mixture of the nets

    def suits(self, hyper: Hyper) -> bool:
        """True if the precisions are a common multiple of those used in training."""
        if hyper.prior_precision.shape != self.unit.shape:
            return False
        ratio = hyper.prior_precision / self.unit
        return bool((ratio / ratio[0] - 1).abs().max() < PROPORTIONAL)

    def chosen(self, hyper: Hyper, *, free_prior: bool, free_dispersion: bool) -> Hyper:
        """Prior precision and noise that maximise the density. If both are free, ``factor`` multiplies all variances.

        Among precisions that are equivalent within ``TOLERANCE``, the one closest to ``unit`` is chosen.
        """
        noise, density, factors = self.points(hyper, free_prior=free_prior, free_dispersion=free_dispersion)
        if free_prior and self.freedom:
            density = torch.where(factors >= WEAKEST, density, -math.inf)
        near = density >= density.max() - max(1.0, TOLERANCE * self.freedom)
        best = int(torch.where(near, factors.log().abs(), math.inf).argmin()) if free_prior else int(density.argmax())
        values = factors[best] * self.unit if free_prior else hyper.prior_precision
        dispersion = float(noise[best])
        if free_prior and free_dispersion:
            values, dispersion = values / self.factor, dispersion * self.factor
        return replace(hyper, prior_precision=values.clamp(*PRECISION_BOUNDS), dispersion=dispersion)

    def points(self, hyper: Hyper, *, free_prior: bool, free_dispersion: bool) -> tuple[Tensor, Tensor, Tensor]:
        """φ, the log density under φ, and the factor of the precisions at each grid point: three tensors (m,)."""
        if free_dispersion:
            factor = hyper.prior_precision[0] / self.unit[0]
            noise = (self.squares / self.freedom if free_prior else self.ridge / factor).clamp(*self.bounds)
        else:
            noise = torch.full_like(self.ridge, hyper.dispersion)
        return noise, self.log_density(noise), self.ridge / noise

    def density_of(self, hyper: Hyper) -> float:
        """Σ w log p of the held-out rows at the grid point closest to the hyperparameters, nats."""
        ridge = float(hyper.prior_precision[0] / self.unit[0]) * (hyper.dispersion if self.freedom else 1.0)
        density = self.log_density(torch.full_like(self.ridge, hyper.dispersion)) if self.freedom else self.constants
        return float(density[(self.ridge / ridge).log().abs().argmin()])

    def log_density(self, dispersion: Tensor) -> Tensor:
        """Σ w log p of the held-out rows at each grid point, shape (m,), nats, for one φ per point."""
        return self.constants - 0.5 * (self.freedom * (2 * math.pi * dispersion).log() + self.squares / dispersion)


def held_out_scores(
    parts: Iterable[tuple[LaplaceFit, Iterable[Rows]]], hyper: Hyper, density: Density
) -> HeldOutScores:
    """Compute the scores of held-out rows on a grid of prior precisions around those of ``hyper``.

    ``parts`` holds the fit of each net and batches of its held-out rows. ``density`` scores rows of a likelihood
    without a dispersion. Other likelihoods must be Gaussian, and their curvature rule must have dispersion power 1. The
    cost is an eigendecomposition of each curvature, and n C² P multiply-adds per grid point. Without an eigenbasis,
    most structures need a factorisation and n covariances (C, C) per grid point.

    >>> from sklearn_laplace.laplace.network import trace
    >>> from sklearn_laplace.laplace.curvatures import GGN
    >>> from sklearn_laplace.laplace import fit_laplace
    >>> from sklearn_laplace.laplace.leave_one_out import gaussian_density
    >>> from sklearn_laplace.laplace.likelihoods import Gaussian
    >>> from sklearn_laplace.laplace.structures import Full
    >>> network = trace(torch.nn.Linear(1, 1, bias=False).double(), torch.ones(1, 1).double())
    >>> x, w = torch.ones(2, 1).double(), torch.ones(2).double()
    >>> far, near = ([(x, network(x) + error, w)] for error in (2.0, 0.5))
    >>> fit = fit_laplace(network, Gaussian(), GGN(), Full, network.scalar_prior(), near)
    >>> scores = held_out_scores([(fit, far)], Hyper(torch.ones(1).double(), 0.25), gaussian_density)
    >>> strong = scores.ridge.argmax()  # under a strong prior all errors are noise: 2² each
    >>> round(float(scores.squares[strong] / scores.freedom), 1)
    4.0
    """
    listed = [(fit, list(batches)) for fit, batches in parts]
    first, likelihood = listed[0][0], listed[0][0].likelihood
    factors = prior_factors(first, hyper)
    ridge = factors * (hyper.dispersion if likelihood.has_dispersion else 1.0)
    squares, constants, total = torch.zeros_like(ridge), torch.zeros_like(ridge), 0.0
    for fit, batches in listed:
        if not likelihood.has_dispersion:
            weights = likelihood.score_weights(torch.cat([weights for _, _, weights in batches])).double()
            constants += log_densities(fit, batches, factors[:, None] * hyper.prior_precision, density) @ weights
            total += float(weights.sum())
            continue
        for place, rows, covariance in covariances(fit, batches, ridge[:, None] * hyper.prior_precision):
            y, noise = without_noise(rows.targets, fit.n_outputs)
            square, logdet = normal_terms(y - rows.outputs, covariance, noise.expand_as(rows.outputs))
            squares[place] += rows.weights @ square
            constants[place] -= 0.5 * (rows.weights @ logdet)
            total += float(rows.weights.sum()) if place == 0 else 0.0
    freedom = first.n_outputs * total if likelihood.has_dispersion else 0.0
    return HeldOutScores(hyper.prior_precision, ridge, squares, constants, freedom, likelihood.dispersion_bounds, total)


def prior_factors(fit: LaplaceFit, hyper: Hyper) -> Tensor:
    """Factors (m,) of the prior precisions: a coarser grid if each factor needs its own factorisation."""
    dear = fit.curvature.eigenbasis() is None or len(hyper.prior_precision) > 1
    decades = DECADES if fit.likelihood.has_dispersion else DECADES_WITHOUT_NOISE
    n_points = 2 * decades * (DEAR_PER_DECADE if dear else PER_DECADE) + 1
    factors = torch.logspace(-decades, decades, n_points, dtype=torch.float64)
    return factors.to(hyper.prior_precision)


def log_densities(fit: LaplaceFit, batches: Iterable[Rows], precisions: Tensor, density: Density) -> Tensor:
    """Log density (m, n), nats, of held-out rows under each of the prior precisions (m, G), at dispersion 1."""
    found: list[list[Tensor]] = [[] for _ in precisions]
    for place, rows, covariance in covariances(fit, batches, precisions):
        scored = fit.likelihood.scored(LatentGaussian(rows.outputs, covariance), rows.targets, rows.weights)
        found[place].append(density(*scored, 1.0))
    return torch.stack([torch.cat(part) for part in found])


def covariances(
    fit: LaplaceFit, batches: Iterable[Rows], precisions: Tensor
) -> Iterator[tuple[int, LinearRows, Tensor]]:
    """For each grid point of the precisions (m, G) and each batch, yield grid index, rows and output covariances.

    The covariances (n, C, C) are those at φ = 1.
    """
    basis = fit.curvature.eigenbasis() if precisions.shape[1] == 1 else None
    if basis is None and (rotate := fit.curvature.rotation(fit.prior.groups)) is not None:
        for rows in linear_rows(fit.network, batches):
            covariance = rotate(rows.jacobian)
            for place, values in enumerate(precisions):
                yield place, rows, covariance(fit.prior.precision(values))
        return
    if basis is None:
        row_batches = held_rows(fit.network, batches)
        for place, values in enumerate(precisions):
            posterior = fit.posterior(Hyper(values))
            for rows in row_batches:
                yield place, rows, posterior.covariance(rows.jacobian)
        return
    yield from _covariances_in_basis(basis, linear_rows(fit.network, batches), precisions, fit.network.n_parameters)


def _covariances_in_basis(
    basis: Eigenbasis, row_batches: Iterable[LinearRows], precisions: Tensor, size: int
) -> Iterator[tuple[int, LinearRows, Tensor]]:
    """:func:`covariances` for a single prior precision: one projection for each batch."""
    for rows in row_batches:
        projected, outside = basis.rows(rows.jacobian), None
        if len(basis.values) < size:  # directions outside the basis have the prior variance
            ones = torch.ones(size, dtype=torch.float64, device=projected.device)
            outside = _positive(rows.jacobian.weighted_inner(ones) - projected @ projected.mT)
        for place, value in enumerate(precisions[:, 0]):
            inside = (projected / (basis.values.clamp_min(0.0) + value)) @ projected.mT
            yield place, rows, inside if outside is None else inside + outside / value


def _positive(matrices: Tensor) -> Tensor:
    """Matrices (n, C, C) with negative eigenvalues, which result from rounding, set to zero."""
    if matrices.shape[-1] == 1:
        return matrices.clamp_min(0.0)
    values, vectors = torch.linalg.eigh(matrices)
    return (vectors * values.clamp_min(0.0)[:, None]) @ vectors.mT
