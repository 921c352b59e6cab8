r"""Cross-fitting: a few more nets, each trained without a part of the rows, that say what the net cannot say of itself.

They train under the prior precision that the evidence has chosen for all rows, each from initial weights of its own,
for fourteen Gauss–Newton steps and some of L-BFGS at most, and estimate their own noise on the way. Afterwards they can
train on with all rows, as members (``_ensemble/fit.py``). Before that they serve two purposes.
They choose the prior precision and noise of the posterior (``laplace/selection/held_out.py``). And they give prediction
intervals without a model of the noise's distribution: the jackknife+ with K folds (CV+, Barber et al. 2021). With
:math:`\mu_{-k(n)}` the net that has not seen row n, :math:`s_{-k(n)}` the standard deviation of its prediction (noise
included), and :math:`Z_n = |y_n - \mu_{-k(n)}(x_n)| / s_{-k(n)}(x_n)`, their ends are quantiles over the rows of

.. math:: \mu_{-k(n)}(x) \mp r\,Z_n\,s(x), \qquad r = \left(Q(Z') / Q(Z)\right)^{0.3}

where s is that of the net of all rows, Q the quantile of the level asked for, and :math:`Z'` the scores of closed-form
leave-one-out (``laplace/leave_one_out/left_out.py``). Alone, Z is too large, of nets with a third of the rows less, and
Z' too small, of a net that has found its features in all rows: on inner splits of five tables intervals for .90 covered
.91 to .94 with Z (.92 to .95 with residuals as they are), .84 to .89 with Z', .89 to .91 with the geometric mean of the
two quantiles, and .90 to .92 with the power .3, the largest, in tenths, that all five have what they ask for with.

Of classes and counts they say a third thing: whether the prior of the training is too strong. The evidence of their
nets is largest where few rows and many classes would do better with less of it.

They take Gauss–Newton steps over all of their rows, exact ones where the training does. Where exact ones are too dear,
those of classes and counts take theirs in Kronecker form, of up to 10,000 rows; of regression there are no nets then.
There are none either where the net is not the built-in one, or where one of them fails. Rows are dealt out in turn,
those of each class by themselves; equal rows stay together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .._host.rows import TrainingRows
from .._runtime.memory import MemoryBudget, held
from .._training.folds import CHUNK, density_for
from .._training.plan import MapResult
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
"""Of Q(Z') / Q(Z) in r: from 0, which is CV+ of standardised residuals, to 1."""
LEAST_LEVEL = 1e-100
"""Of the squared errors over their variances where targets do not vary: no errors at all say nothing of a noise."""


@dataclass(frozen=True)
class IntervalScores:
    """Errors over standard deviations, of rows that were left out.

    Parameters
    ----------
    hyper : Hyper
        Under which the standard deviations are, at temperature 1.
    prior : Prior
        Whose groups its precisions are those of.
    by_nets : Tensor of shape (n, C), float64
        Z, of the rows as they were trained with.
    weights : Tensor of shape (n,), float64
    by_formula : Tensor of shape (N, C), float64
        Z', of the rows as they were given.
    given_weights : Tensor of shape (N,), float64
    """

    hyper: Hyper
    prior: Prior
    by_nets: Tensor
    weights: Tensor
    by_formula: Tensor
    given_weights: Tensor

    def factors(self, levels: Tensor) -> Tensor:
        """r of each level and output, shape (C, L); 1 where there are too few rows, or no errors."""
        given, nets = (
            reached(scores.mT, weights, levels)
            for scores, weights in ((self.by_formula, self.given_weights), (self.by_nets, self.weights))
        )
        ratio = (given / nets) ** FORMULA_POWER
        return torch.where(ratio.isfinite() & (ratio > 0), ratio, 1.0)


@dataclass(frozen=True)
class CrossFit:
    """The nets of all folds and what they say of the rows that they have not seen.

    Parameters
    ----------
    networks : tuple of Network
    fold : Tensor of shape (n,), int64
        Which net has not seen a row.
    densities : HeldOutScores or None
        Of the rows, under other prior precisions and noises; None where the fit's rule has none.
    parts : tuple of (LaplaceFit, chunks of rows)
        The nets' posteriors and the rows that they have not seen, until these have their scores.
    scores : IntervalScores or None
        For intervals, of a likelihood with a dispersion.
    """

    networks: tuple[Network, ...]
    fold: Tensor
    densities: HeldOutScores | None
    parts: tuple[tuple[LaplaceFit, list[Rows]], ...] = ()
    scores: IntervalScores | None = None

    def scored(self, hyper: Hyper, left_out: Callable[[], LeftOut], fit: LaplaceFit) -> CrossFit:
        """The same with the scores of the rows, and without the rows.

        Parameters
        ----------
        hyper : Hyper
            As chosen for all rows.
        left_out : callable
            → LeftOut, the rows of the fit.
        fit : LaplaceFit
            Of all rows.
        """
        if not fit.likelihood.has_dispersion:  # there are no intervals that would ask the nets
            return replace(self, networks=(), parts=())
        hyper = replace(hyper, temperature=1.0)
        found = self.held_out(hyper)
        by_nets = _over_std(found.errors, found.variance, found.noise, hyper)
        scores = IntervalScores(hyper, fit.prior, by_nets, found.weights, by_nets, found.weights)
        with suppress(MemoryBudgetError):  # r is 1 then, and intervals are a little too wide
            given = left_out()
            latent = given.latent(fit, hyper)
            y, noise = without_noise(given.rows.observed, fit.n_outputs)
            by_formula = _over_std(y - latent.mean, latent.variance, noise, hyper)
            scores = replace(scores, by_formula=by_formula, given_weights=given.rows.weights.double())
        return replace(self, parts=(), scores=scores)

    @classmethod
    def of_another(cls, other: CrossFit, hyper: Hyper) -> CrossFit:
        """What the nets beside another one say of the choice for this one, whose training has ended under ``hyper``."""
        densities = None if other.densities is None else other.densities.around(hyper)
        return cls((), other.fold, densities)

    def held_out(self, hyper: Hyper) -> HeldOutErrors:
        """What the nets say of the rows that they have not seen, under these hyperparameters; until they are scored."""
        n, (fit, _) = len(self.fold), self.parts[0]
        shape = n, fit.n_outputs
        found = [torch.zeros(size, dtype=torch.float64, device=self.fold.device) for size in (shape, shape, shape, n)]
        for k, (part, chunks) in enumerate(self.parts):
            posterior, of_part = part.posterior(hyper, spectral=False), []
            for rows in linear_rows(part.network, chunks):
                y, noise = without_noise(rows.targets, fit.n_outputs)
                variance = posterior.covariance(rows.jacobian).diagonal(dim1=1, dim2=2)
                of_part.append((y - rows.outputs, variance, noise, rows.weights))
            for whole, values in zip(found, zip(*of_part, strict=True), strict=True):
                whole[self.fold == k] = torch.cat(values).double()
        return HeldOutErrors(*found)

    def densities_of_rows(self, hyper: Hyper, found: HeldOutErrors | None) -> RowDensities:
        """What each row has under the net that has not seen it; until they are scored.

        Where there is a noise, all variances are multiplied by what suits these rows best: the noise that a fit goes by
        is nearer to that of the rows that its net has seen.

        Parameters
        ----------
        hyper : Hyper
        found : HeldOutErrors or None
            :meth:`held_out` under it, where there is a noise.
        """
        likelihood, device = self.parts[0][0].likelihood, self.fold.device
        if found is not None:
            variance = found.variance + hyper.dispersion * found.noise
            squares = found.errors.square() / variance
            factor = (found.weights @ squares.mean(1) / found.weights.sum()).clamp_min(LEAST_LEVEL)
            squares = squares / factor
            logs = -0.5 * ((2 * math.pi * factor * variance).log() + squares).sum(1)
            return RowDensities(logs.cpu().numpy(), squares.sum(1).cpu().numpy(), squares.shape[1])
        logs, density = torch.zeros(len(self.fold), dtype=torch.float64, device=device), density_for(likelihood)
        for k, (part, chunks) in enumerate(self.parts):
            posterior = part.posterior(hyper, spectral=False)
            rows = linear_rows(part.network, chunks)
            latents = (LatentGaussian(own.outputs, posterior.covariance(own.jacobian)) for own in rows)
            of_part = [density(latent, own.targets, 1.0) for latent, own in zip(latents, rows, strict=True)]
            logs[self.fold == k] = torch.cat(of_part).double()
        return RowDensities(logs.cpu().numpy(), np.zeros(len(logs)), 0)

    def intervals(
        self, fit: LaplaceFit, inputs: Tensor, levels: Tensor, memory: MemoryBudget, noise: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Ends of the intervals at inputs (m, …), shape (m, 2, L, C), for levels (L,); m n C L log n operations.

        The noise is a function of the inputs, its variances (m, C) in units of φ.
        """
        assert self.scores is not None
        fit, n_outputs = replace(fit, prior=self.scores.prior), fit.n_outputs
        posterior = fit.posterior(self.scores.hyper, spectral=False)
        width = max(posterior.row_width(fit.network.blocks, n_outputs), fit.network.row_width(n_outputs))
        step = memory.chunk_rows(width + 6 * n_outputs * len(self.fold), held(fit.curvature, posterior))
        return torch.cat([self._interval(fit, posterior, chunk, levels, noise(chunk)) for chunk in inputs.split(step)])

    def _interval(self, fit: LaplaceFit, posterior: Posterior, x: Tensor, levels: Tensor, noise: Tensor) -> Tensor:
        assert self.scores is not None
        found = torch.stack([network(x).double() for network in self.networks], -1)[..., self.fold]
        _, jacobian = fit.network.jacobian(x)
        variance = posterior.covariance(jacobian).diagonal(dim1=1, dim2=2)
        std = (variance + self.scores.hyper.dispersion * noise.to(variance)).sqrt()
        scaled = std[..., None] * self.scores.by_nets.mT
        ends = []
        for level, factor in zip(levels.split(1), self.scores.factors(levels).unbind(1), strict=True):
            reach = factor[:, None] * scaled
            pair = [
                -reached(reach - found, self.scores.weights, level),
                reached(found + reach, self.scores.weights, level),
            ]
            ends.append(torch.stack(pair, 1))
        return torch.cat(ends, -1).mT


def _over_std(errors: Tensor, variance: Tensor, noise: Tensor, hyper: Hyper) -> Tensor:
    """|y − mean| over the standard deviation of y, (n, C); the noise in units of φ."""
    return errors.double().abs() / (variance + hyper.dispersion * noise.to(variance)).sqrt()


def cross_fit(
    trained: MapResult, rows: TrainingRows, hyper: Hyper, refit: Callable[[Network, TrainingRows], LaplaceFit]
) -> CrossFit | None:
    """What the nets say of the rows that they have not seen; None where there are no nets.

    Parameters
    ----------
    trained : MapResult
    rows : TrainingRows
    hyper : Hyper
        The training's, of the weights that are random.
    refit : callable
        (network with all of its weights, rows) → the fit that is asked for, of these rows at these weights.
    """
    if not trained.folds:
        return None
    everything = trained.mode.fit.network
    networks = tuple(everything.with_parameters(fold.theta) for fold in trained.folds)
    parts = []
    number = torch.zeros(len(rows), dtype=torch.long, device=rows.inputs.device)
    for k, (network, fold) in enumerate(zip(networks, trained.folds, strict=True)):
        parts.append((refit(network, rows.taken(fold.seen(len(rows)))), rows.taken(fold.held_out).chunks(CHUNK)))
        number[fold.held_out] = k
    fit = parts[0][0]
    known = not fit.likelihood.has_dispersion or (fit.likelihood.quadratic and fit.dispersion_power == 1)
    densities = held_out_scores(parts, hyper, density_for(fit.likelihood)) if known else None
    return CrossFit(networks, number, densities, tuple(parts))
