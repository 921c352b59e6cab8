r"""Selection by held-out rows: what nets that were trained without them say of them (cross-fitting).

.. math:: L(\delta, \varphi) = \sum_k \sum_{n \in \text{fold } k} w_n \log p(y_n \mid D_{-k}, \delta, \varphi)

Each net is trained from a start of its own, so that what it finds in other rows than another net, other features in
another basin, counts as an error; evidence and leave-one-out see one basin, and of nets that have shaped their features
on all rows both are too sure. The weights of the nets stay, and the prior precisions are those of the training times a
common factor f.

For a Gaussian likelihood the posterior at (fδ, φ) is that at (ρδ, 1) with :math:`\rho = f\varphi`, its covariance times
φ; with the errors :math:`e_n` of the held-out rows and :math:`V_n(\rho)` their variances at (ρδ, 1), noise included,

.. math:: L = -\tfrac12 \sum_n w_n \Big[ C \log 2\pi\varphi + \log |V_n(\rho)|
          + \tfrac1\varphi\, e_n^\top V_n(\rho)^{-1} e_n \Big],

so that two sums along a grid of ρ serve every choice, whichever of δ and φ is given, without the data.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...errors import BoundWarning
from ..evidence import PRECISION_BOUNDS
from ..fit import Hyper, LaplaceFit, Rows
from ..latent import LatentGaussian
from ..leave_one_out.densities import Density, normal_terms
from ..leave_one_out.rows import LinearRows, linear_rows
from ..likelihoods._base import without_noise

DECADES = 3
"""The common factor goes this far to either side of the training's precision."""
POINTS, DEAR_POINTS = 49, 13
"""On the grid: where one eigendecomposition serves all of them, and where each has a factorisation of its own."""
WORTH = 1.0
"""Nats that make a prior further from the training's worth taking: where it hardly matters the density is flat. With a
tenth of that classes are told better by .002 nats a row on the validation rows of two tables, and with a posterior so
narrow that rows far away look as familiar as those of the training."""
TRUSTED = math.log(1.05)
"""How much more noise than the evidence the nets are believed to see, logarithm of a standard deviation: a mixture errs
less than each of its nets. On inner splits 1.05 and 1.1 are level in log-likelihood (energy −.006 nats a row, yacht
−.02, boston and concrete .003), and 95 % intervals cover .979 and .987 on energy; 1.4 was worse by .05 there."""
WIDER = 0.5
"""Power to which a factor below 1 counts, of classes and counts: nets of two thirds of the rows err by more than a net
of all rows does, and each net by more than their mixture. Of 52 random tables three had such factors, .07, .03 and .18;
the log-likelihood of new rows was −.864, −.940 and −.628 under the factor itself, −.849, −.926 and −.615 under its
root, and −.844, −.928 and −.605 under 1."""
PROPORTIONAL = 1e-9
"""Part by which precisions may differ from a common multiple of those of the training."""


@dataclass(frozen=True)
class HeldOut:
    """What nets say of rows that they have not seen.

    Parameters
    ----------
    errors : Tensor of shape (n, C), float64
        e, of the rows as they were trained with.
    variance : Tensor of shape (n, C), float64
        Of the predictions, noise apart.
    noise : Tensor of shape (n, C), float64
        Known noise variances, in units of φ.
    weights : Tensor of shape (n,), float64
    """

    errors: Tensor
    variance: Tensor
    noise: Tensor
    weights: Tensor


@dataclass(frozen=True)
class HeldOutScores:
    """The log density of held-out rows along a grid of ρ, k points.

    Parameters
    ----------
    unit : Tensor of shape (G,)
        The training's prior precisions.
    ridge : Tensor of shape (k,)
        ρ: the common factor f of the precisions, times φ where the likelihood has a dispersion.
    squares : Tensor of shape (k,)
        Σ w eᵀ V⁻¹ e; zero where there is no dispersion.
    constants : Tensor of shape (k,)
        −½ Σ w log |V|; the log density itself, nats, where there is no dispersion.
    freedom : float
        C Σ w; zero where there is no dispersion.
    bounds : tuple of float
        Of φ.

    Examples
    --------
    >>> grid, zero = torch.tensor([0.1, 1.0, 10.0]).double(), torch.zeros(3).double()
    >>> scores = HeldOutScores(torch.ones(1).double(), grid, torch.tensor([9.0, 4.0, 5.0]).double(), zero, 4.0)
    >>> found = scores.chosen(Hyper(torch.ones(1).double(), 0.98), free_prior=True, free_dispersion=True)
    >>> round(found.dispersion, 3), found.prior_precision.round(decimals=3)  # φ = 4 / 4, δ = 1 · ρ / φ
    (1.0, tensor([1.], dtype=torch.float64))
    """

    unit: Tensor
    ridge: Tensor
    squares: Tensor
    constants: Tensor
    freedom: float
    bounds: tuple[float, float] = (0.0, math.inf)

    def suits(self, hyper: Hyper) -> bool:
        """Whether the precisions are a multiple of those of the training, and not so far off that the grid ends."""
        ratio = float(hyper.prior_precision[0] / self.unit[0])
        return self.is_multiple(hyper) and abs(math.log10(ratio)) <= DECADES - 1

    def is_multiple(self, hyper: Hyper) -> bool:
        """Whether the precisions are a multiple of those of the training."""
        if hyper.prior_precision.shape != self.unit.shape:
            return False
        ratio = hyper.prior_precision / self.unit
        return bool((ratio / ratio[0] - 1).abs().max() < PROPORTIONAL)

    def around(self, hyper: Hyper) -> HeldOutScores:
        """The same scores for another net of these rows, whose training has ended under other precisions and noise."""
        ratio = hyper.dispersion / math.sqrt(float(self.ridge[0] * self.ridge[-1])) if self.freedom else 1.0
        return replace(self, unit=hyper.prior_precision, ridge=ratio * self.ridge, squares=ratio * self.squares)

    def is_capped(self, dispersion: float) -> bool:
        """Whether more noise was asked for than is believed."""
        training = math.sqrt(float(self.ridge[0] * self.ridge[-1]))
        return abs(0.5 * math.log(dispersion / training)) > 0.9 * TRUSTED

    def warn_at_end(self, hyper: Hyper) -> None:
        """Report, where there is a noise, precisions that are as far from the training's as the grid goes.

        Warns
        -----
        BoundWarning
        """
        factor = float(hyper.prior_precision[0] / self.unit[0])
        if self.freedom and abs(math.log10(factor)) > DECADES - 1e-6:
            warnings.warn(
                f"the density of rows that were held out is largest at the end of the search, at {factor:.0e} times "
                "the prior_precision of the training. A sigma_noise that is far off does that: let it be chosen "
                "(sigma_noise='auto'), or give prior_precision as a number.",
                BoundWarning,
                stacklevel=4,
            )

    def chosen(self, hyper: Hyper, *, free_prior: bool, free_dispersion: bool) -> Hyper:
        r"""The point of largest density; of those as good, the one whose prior is closest to the training's.

        A noise goes only a part of the way from the training's, and the prior with it. The nets have seen fewer rows
        and find more of it than there is, the evidence less: with :math:`q = \tfrac12 \log(\hat\varphi / \varphi)`
        that part is :math:`\tanh(q/q_0)\,q_0/q`: a part of the fifth that one basin usually hides, and a factor of
        1.05 at most where a third of the rows more would have made better nets. Where there is no noise, a prior
        weaker than the training's goes half of its way, on a logarithmic scale.

        Parameters
        ----------
        hyper : Hyper
            Of the training; what is not free keeps its value.
        free_prior, free_dispersion : bool
        """
        if not self.freedom:
            factor = self.ridge[_closest(self.constants, self.ridge)]
            found = torch.where(factor < 1, factor**WIDER, factor) * self.unit
            return replace(hyper, prior_precision=found) if free_prior else hyper
        noise, density, factors = self.points(hyper, free_prior=free_prior, free_dispersion=free_dispersion)
        best = _closest(density, factors) if free_prior else int(density.argmax())
        away = 0.5 * math.log(float(noise[best]) / hyper.dispersion) / TRUSTED
        part = math.tanh(away) / away if abs(away) > 1e-6 else 1.0
        values = factors[best] ** part * self.unit if free_prior else hyper.prior_precision
        values = values.clamp(*PRECISION_BOUNDS) if free_prior else values
        return replace(hyper, prior_precision=values, dispersion=hyper.dispersion * math.exp(2 * TRUSTED * part * away))

    def points(self, hyper: Hyper, *, free_prior: bool, free_dispersion: bool) -> tuple[Tensor, Tensor, Tensor]:
        """At each point (k,) of the grid: φ, the log density under it, and the factor of the precisions.

        Parameters
        ----------
        hyper, free_prior, free_dispersion
            As for :meth:`chosen`.
        """
        if free_dispersion:
            factor = hyper.prior_precision[0] / self.unit[0]
            noise = (self.squares / self.freedom if free_prior else self.ridge / factor).clamp(*self.bounds)
        else:
            noise = torch.full_like(self.ridge, hyper.dispersion)
        return noise, self.log_density(noise), self.ridge / noise

    def log_density(self, dispersion: Tensor) -> Tensor:
        """Σ w log p of the held-out rows at each point (k,), nats, for a φ of each."""
        return self.constants - 0.5 * (self.freedom * (2 * math.pi * dispersion).log() + self.squares / dispersion)


def held_out_scores(
    parts: Iterable[tuple[LaplaceFit, Iterable[Rows]]], hyper: Hyper, density: Density
) -> HeldOutScores:
    """The scores of rows that were held out from nets.

    Costs an eigendecomposition of each net's curvature and, for n rows in all, n C² P products a point. Where the
    structure has no such basis, or the precisions are several, it costs a factorisation and n C covariances a point.
    The rows of Kronecker factors with one precision a block are rotated once for all points.

    Parameters
    ----------
    parts : iterable of (fit, batches)
        The curvature of each net over the rows that it has seen, and those that it has not. Where the likelihood has a
        dispersion: a Gaussian one, and a rule with H at power one.
    hyper : Hyper
        Of the training, which the grid is around.
    density : callable
        See :data:`~sklearn_laplace.laplace.leave_one_out.densities.Density`; of a likelihood without dispersion.

    Returns
    -------
    HeldOutScores

    Examples
    --------
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
    >>> strong = scores.ridge.argmax()  # of a strong prior, the errors are noise: 2² each
    >>> round(float(scores.squares[strong] / scores.freedom), 1)
    4.0
    """
    parts = list(parts)
    likelihood = parts[0][0].likelihood
    dear = any(fit.curvature.eigenbasis() is None for fit, _ in parts) or len(hyper.prior_precision) > 1
    factors = torch.logspace(-DECADES, DECADES, DEAR_POINTS if dear else POINTS, dtype=torch.float64)
    ridge = factors.to(hyper.prior_precision) * (hyper.dispersion if likelihood.has_dispersion else 1.0)
    squares, constants, freedom = torch.zeros_like(ridge), torch.zeros_like(ridge), 0.0
    for fit, batches in parts:
        for place, rows, covariance in _covariances(fit, batches, ridge[:, None] * hyper.prior_precision, dear):
            if likelihood.has_dispersion:
                y, noise = without_noise(rows.targets, fit.n_outputs)
                square, logdet = normal_terms(y - rows.outputs, covariance, noise.expand_as(rows.outputs))
                squares[place] += rows.weights @ square
                constants[place] -= 0.5 * (rows.weights @ logdet)
                freedom += float(rows.weights.sum()) * fit.n_outputs if place == 0 else 0.0
            else:
                latent = LatentGaussian(rows.outputs, covariance)
                constants[place] += rows.weights @ density(latent, rows.targets, 1.0)
    return HeldOutScores(hyper.prior_precision, ridge, squares, constants, freedom, likelihood.dispersion_bounds)


def _closest(density: Tensor, factors: Tensor) -> int:
    """Of the points within WORTH of the largest density, the one whose factor is closest to 1."""
    near = density >= density.max() - WORTH
    return int(torch.where(near, factors.log().abs(), math.inf).argmin())


def _covariances(
    fit: LaplaceFit, batches: Iterable[Rows], precisions: Tensor, dear: bool
) -> Iterator[tuple[int, LinearRows, Tensor]]:
    """Of each point of the grid (k, G) and each batch: the point's number, the rows, covariances (n, C, C) at φ = 1."""
    every = linear_rows(fit.network, batches)
    basis = None if dear else fit.curvature.eigenbasis()
    if basis is None and (rotate := fit.curvature.rotation(fit.prior.groups)) is not None:
        for rows in every:
            covariance = rotate(rows.jacobian)
            for place, values in enumerate(precisions):
                yield place, rows, covariance(fit.prior.precision(values))
        return
    if basis is None:
        for place, values in enumerate(precisions):
            posterior = fit.posterior(Hyper(values))
            for rows in every:
                yield place, rows, posterior.covariance(rows.jacobian)
        return
    size = fit.network.n_parameters
    for rows in every:
        projected, outside = basis.rows(rows.jacobian), None
        if len(basis.values) < size:  # what a direction outside of the basis has is the prior's variance alone
            ones = torch.ones(size, dtype=torch.float64, device=projected.device)
            outside = _positive(rows.jacobian.weighted_inner(ones) - projected @ projected.mT)
        for place, value in enumerate(precisions[:, 0]):
            inside = (projected / (basis.values.clamp_min(0.0) + value)) @ projected.mT
            yield place, rows, inside if outside is None else inside + outside / value


def _positive(matrices: Tensor) -> Tensor:
    """Without the negative eigenvalues that differences round to, (n, C, C)."""
    if matrices.shape[-1] == 1:
        return matrices.clamp_min(0.0)
    values, vectors = torch.linalg.eigh(matrices)
    return (vectors * values.clamp_min(0.0)[:, None]) @ vectors.mT
