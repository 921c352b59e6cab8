r"""Cross-fitting: a few additional nets, each trained without one fold of the rows, and their held-out errors.

The nets are trained under the prior precision that the evidence has selected for all rows, each from its own initial
weights. They take at most fourteen Gauss–Newton steps and some L-BFGS steps, and estimate their own noise level. Later
they can be trained further on all rows, as ensemble members (``_ensemble/fit.py``). Their held-out rows have up to
three uses.

**Selection.** They select prior precision and noise level of the posterior (``laplace/selection/held_out.py``).

**Intervals.** They give prediction intervals that do not depend on the shape of the noise distribution: the jackknife+
with K folds (CV+, Barber et al. 2021). Let :math:`\mu_{-k(n)}` be the prediction of the net that holds out row n,
:math:`s_{-k(n)}` its standard deviation with noise, and
:math:`Z_n = |y_n - \mu_{-k(n)}(x_n)| / s_{-k(n)}(x_n)`. The ends of the intervals are quantiles over the rows of

.. math:: \mu_{-k(n)}(x) \mp r\,Z_n\,s(x), \qquad r = \left(Q(Z') / Q(Z)\right)^{0.3}

Here s is the standard deviation of the net trained on all rows, and Q the quantile of the interval's level.
:math:`Z'` are the scores of closed-form leave-one-out (``laplace/leave_one_out/left_out.py``). Z alone is too large,
because its nets are trained on a third fewer rows. Z' alone is too small, because its net has learnt its features from
all rows. The exponent .3 is explained in ``docs/decisions.md``.

**Training prior of classes and counts.** They show whether the prior of the training is too strong. With few rows and
many classes, the evidence can prefer a prior precision that is too large for the held-out rows.

The nets take full-batch Gauss–Newton steps, which are exact if those of the training are. If exact steps are too
expensive, nets for classes and counts take steps in Kronecker form for up to 10,000 rows. In regression there are then
no cross-fitted nets. Cross-fitting also requires the built-in net, and is omitted if the training of a net fails. Rows
are assigned to folds in turn, stratified by class; equal rows share a fold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .._runtime.memory import MemoryBudget, held
from .._training.folds import density_for
from ..errors import MemoryBudgetError
from ..laplace.fit import Hyper, LaplaceFit, Rows
from ..laplace.latent import LatentGaussian
from ..laplace.leave_one_out.jackknife import reached
from ..laplace.leave_one_out.rows import linear_rows
from ..laplace.likelihoods._base import without_noise
from ..laplace.network.network import Network
from ..laplace.prior import Prior
from ..laplace.selection import HeldOutErrors, HeldOutScores, held_out_scores
from ..laplace.structures._base import Posterior
from .left_out import LeftOut
from .row_densities import RowDensities

FORMULA_POWER = 0.3
"""Exponent of Q(Z') / Q(Z) in r, between 0 (CV+ of standardised residuals) and 1. See docs/decisions.md."""
LEAST_LEVEL = 1e-100
"""Minimum of the mean squared error over its variance, for constant targets without any errors."""


@dataclass(frozen=True)
class IntervalScores:
    """Standardised errors of held-out and of left-out rows.

    Parameters
    ----------
    hyper : Hyper
        Hyperparameters of the standard deviations, at temperature 1.
    prior : Prior
        Prior with the groups of the precisions in ``hyper``.
    by_nets : Tensor of shape (n, C), float64
        Scores Z of the training rows, in which equal rows are merged.
    weights : Tensor of shape (n,), float64
        Weights of the training rows.
    by_formula : Tensor of shape (N, C), float64
        Scores Z' of the unmerged rows.
    given_weights : Tensor of shape (N,), float64
        Weights of the unmerged rows.
    """

    hyper: Hyper
    prior: Prior
    by_nets: Tensor
    weights: Tensor
    by_formula: Tensor
    given_weights: Tensor

    def jointly(self) -> IntervalScores:
        """Scores of intervals that hold jointly: the largest score of each row, for all of its outputs."""
        by_nets, by_formula = (
            scores.amax(1, keepdim=True).expand_as(scores) for scores in (self.by_nets, self.by_formula)
        )
        return replace(self, by_nets=by_nets, by_formula=by_formula)

    def factors(self, levels: Tensor) -> Tensor:
        """Factor r of each output and level, shape (C, L); 1 if there are too few rows or no errors."""
        by_formula, by_nets = (
            reached(scores.mT, weights, levels)
            for scores, weights in ((self.by_formula, self.given_weights), (self.by_nets, self.weights))
        )
        ratio = (by_formula / by_nets) ** FORMULA_POWER
        return torch.where(ratio.isfinite() & (ratio > 0), ratio, 1.0)


@dataclass(frozen=True)
class CrossFit:
    """Cross-fitted nets and their predictions for held-out rows.

    Parameters
    ----------
    networks : tuple of Network
        One net per fold.
    fold : Tensor of shape (n,), int64
        Fold of each row: the index of the net that holds it out.
    densities : HeldOutScores or None
        Log densities of the held-out rows under other prior precisions and noise levels. None for a likelihood with
        dispersion that is not Gaussian, or a curvature rule of dispersion power other than 1.
    parts : tuple of (LaplaceFit, chunks of rows)
        Laplace fit and held-out rows of each net. Empty after :meth:`scored`.
    scores : IntervalScores or None
        Scores for intervals, after :meth:`scored`; None for a likelihood without dispersion.
    """

    networks: tuple[Network, ...]
    fold: Tensor
    densities: HeldOutScores | None
    parts: tuple[tuple[LaplaceFit, list[Rows]], ...] = ()
    scores: IntervalScores | None = None

    def scored(self, hyper: Hyper, left_out: Callable[[], LeftOut], fit: LaplaceFit) -> CrossFit:
        """Compute the scores for intervals, and return an object without the rows.

        Parameters
        ----------
        hyper : Hyper
            Selected hyperparameters.
        left_out : callable
            Returns the rows of the fit as a LeftOut.
        fit : LaplaceFit
            Fit of all rows.

        Returns
        -------
        CrossFit
        """
        if not fit.likelihood.has_dispersion:  # only intervals need the nets
            return replace(self, networks=(), parts=())
        hyper = replace(hyper, temperature=1.0)
        held_out = self.held_out(hyper)
        by_nets = _over_std(held_out.errors, held_out.variance, held_out.noise, hyper)
        scores = IntervalScores(hyper, fit.prior, by_nets, held_out.weights, by_nets, held_out.weights)
        with suppress(MemoryBudgetError):  # in this case r is 1, and intervals are slightly too wide
            unmerged = left_out()
            latent = unmerged.latent(fit, hyper)
            y, noise = without_noise(unmerged.rows.observed, fit.n_outputs)
            by_formula = _over_std(y - latent.mean, latent.variance, noise, hyper)
            scores = replace(scores, by_formula=by_formula, given_weights=unmerged.rows.weights.double())
        return replace(self, parts=(), scores=scores)

    @classmethod
    def of_another(cls, other: CrossFit, hyper: Hyper) -> CrossFit:
        """Reuse the held-out scores of another net's folds for a net whose training ended with ``hyper``."""
        densities = None if other.densities is None else other.densities.around(hyper)
        return cls((), other.fold, densities)

    def held_out(self, hyper: Hyper) -> HeldOutErrors:
        """Held-out errors of all rows under these hyperparameters. Not available after :meth:`scored`."""
        n, (fit, _) = len(self.fold), self.parts[0]
        shape = n, fit.n_outputs
        fields = [torch.zeros(size, dtype=torch.float64, device=self.fold.device) for size in (shape, shape, shape, n)]
        for k, (part, chunks) in enumerate(self.parts):
            posterior, of_part = part.posterior(hyper, spectral=False), []
            for rows in linear_rows(part.network, chunks):
                y, noise = without_noise(rows.targets, fit.n_outputs)
                variance = posterior.covariance(rows.jacobian).diagonal(dim1=1, dim2=2)
                of_part.append((y - rows.outputs, variance, noise, rows.weights))
            for whole, values in zip(fields, zip(*of_part, strict=True), strict=True):
                whole[self.fold == k] = torch.cat(values).double()
        return HeldOutErrors(*fields)

    def densities_of_rows(self, hyper: Hyper, held_out: HeldOutErrors | None) -> RowDensities:
        """Log density of each row under the net that holds it out. Not available after :meth:`scored`.

        With a noise level, all variances are multiplied by the factor of largest density of these rows. The noise level
        of a fit is closer to that of its training rows, and therefore too small for held-out rows.

        Parameters
        ----------
        hyper : Hyper
        held_out : HeldOutErrors or None
            Result of :meth:`held_out` under ``hyper``; None for a likelihood without dispersion.

        Returns
        -------
        RowDensities
        """
        likelihood, device = self.parts[0][0].likelihood, self.fold.device
        if held_out is not None:
            variance = held_out.variance + hyper.dispersion * held_out.noise
            squares = held_out.errors.square() / variance
            factor = (held_out.weights @ squares.mean(1) / held_out.weights.sum()).clamp_min(LEAST_LEVEL)
            squares = squares / factor
            logs = -0.5 * ((2 * math.pi * factor * variance).log() + squares).sum(1)
            return RowDensities(logs.cpu().numpy(), squares.sum(1).cpu().numpy(), squares.shape[1])
        logs, density = torch.zeros(len(self.fold), dtype=torch.float64, device=device), density_for(likelihood)
        for k, (part, chunks) in enumerate(self.parts):
            posterior = part.posterior(hyper, spectral=False)
            rows = linear_rows(part.network, chunks)
            latents = (LatentGaussian(chunk.outputs, posterior.covariance(chunk.jacobian)) for chunk in rows)
            of_part = [density(latent, chunk.targets, 1.0) for latent, chunk in zip(latents, rows, strict=True)]
            logs[self.fold == k] = torch.cat(of_part).double()
        return RowDensities(logs.cpu().numpy(), np.zeros(len(logs)), 0)

    def intervals(
        self,
        fit: LaplaceFit,
        inputs: Tensor,
        levels: Tensor,
        memory: MemoryBudget,
        noise: Callable[[Tensor], Tensor],
        *,
        joint: bool = False,
    ) -> Tensor:
        """Ends of prediction intervals at new inputs. Costs O(m n C L log n).

        Parameters
        ----------
        fit : LaplaceFit
            Fit of all rows.
        inputs : Tensor of shape (m, …)
        levels : Tensor of shape (L,)
        memory : MemoryBudget
        noise : callable
            Maps inputs to noise variances (m, C), in units of φ.
        joint : bool
            If True, the intervals of all outputs of a row hold together.

        Returns
        -------
        Tensor of shape (m, 2, L, C)
            Lower and upper ends.
        """
        assert self.scores is not None
        if joint:
            scores = self.scores.jointly()
            return replace(self, scores=scores).intervals(fit, inputs, levels, memory, noise)
        fit, n_outputs = replace(fit, prior=self.scores.prior), fit.n_outputs
        posterior = fit.posterior(self.scores.hyper, spectral=False)
        width = max(posterior.row_width(fit.network.blocks, n_outputs), fit.network.row_width(n_outputs))
        step = memory.chunk_rows(width + 6 * n_outputs * len(self.fold), held(fit.curvature, posterior))
        return torch.cat([self._interval(fit, posterior, chunk, levels, noise(chunk)) for chunk in inputs.split(step)])

    def _interval(self, fit: LaplaceFit, posterior: Posterior, x: Tensor, levels: Tensor, noise: Tensor) -> Tensor:
        assert self.scores is not None
        held_out = torch.stack([network(x).double() for network in self.networks], -1)[..., self.fold]
        _, jacobian = fit.network.jacobian(x)
        variance = posterior.covariance(jacobian).diagonal(dim1=1, dim2=2)
        std = (variance + self.scores.hyper.dispersion * noise.to(variance)).sqrt()
        scaled = std[..., None] * self.scores.by_nets.mT
        ends = []
        for level, factor in zip(levels.split(1), self.scores.factors(levels).unbind(1), strict=True):
            reach = factor[:, None] * scaled
            pair = [
                -reached(reach - held_out, self.scores.weights, level),
                reached(held_out + reach, self.scores.weights, level),
            ]
            ends.append(torch.stack(pair, 1))
        return torch.cat(ends, -1).mT


def _over_std(errors: Tensor, variance: Tensor, noise: Tensor, hyper: Hyper) -> Tensor:
    """Standardised errors |y − mean| / std of y, shape (n, C), with the noise in units of φ."""
    return errors.double().abs() / (variance + hyper.dispersion * noise.to(variance)).sqrt()


@dataclass(frozen=True)
class FoldFit:
    """Laplace fit of a cross-fitted net.

    Parameters
    ----------
    network : Network
        Network of all weights.
    fit : LaplaceFit
        Fit of the random weights on the rows of the net's training.
    held_out : Tensor of shape (m,), int64
        Positions of the other rows.
    rows : list of Rows
        The other rows, in chunks.
    """

    network: Network
    fit: LaplaceFit
    held_out: Tensor
    rows: list[Rows]


def cross_fit(parts: Sequence[FoldFit], hyper: Hyper) -> CrossFit:
    """Compute the held-out scores of cross-fitted nets.

    Parameters
    ----------
    parts : sequence of FoldFit
        Fits of the nets; each row is held out from one of them.
    hyper : Hyper
        Hyperparameters of the training, for the random weights.

    Returns
    -------
    CrossFit
    """
    positions, fit = torch.cat([part.held_out for part in parts]), parts[0].fit
    fold_of_row = torch.zeros_like(positions)
    for k, part in enumerate(parts):
        fold_of_row[part.held_out] = k
    has_scores = not fit.likelihood.has_dispersion or (fit.likelihood.quadratic and fit.dispersion_power == 1)
    pairs = tuple((part.fit, part.rows) for part in parts)
    densities = held_out_scores(pairs, hyper, density_for(fit.likelihood)) if has_scores else None
    return CrossFit(tuple(part.network for part in parts), fold_of_row, densities, pairs)
