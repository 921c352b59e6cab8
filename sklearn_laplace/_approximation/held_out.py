r"""Cross-fitting: a few additional nets, each trained without one fold of the rows, and their held-out errors.

The nets are trained under the prior precision that the evidence has selected for all rows, each from its own initial
weights. They take at most fourteen Gauss–Newton steps and some L-BFGS steps, and estimate their own noise level. Later
they can be trained further on all rows, as ensemble members (``_ensemble/fit.py``). Their held-out rows have up to two
uses.

**Selection.** They select prior precision and noise level of the posterior (``laplace/selection/held_out.py``).

**Training prior of classes and counts.** They show whether the prior of the training is too strong. With few rows and
many classes, the evidence can prefer a prior precision that is too large for the held-out rows.

The nets take full-batch Gauss–Newton steps, which are exact if those of the training are. If exact steps are too
expensive, nets for classes and counts take steps in Kronecker form for up to 10,000 rows. In regression there are then
no cross-fitted nets. Cross-fitting also requires the built-in net, and is omitted if the training of a net fails. Rows
are assigned to folds in turn, stratified by class; equal rows share a fold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..distributions.densities import density_for
from ..laplace.fit import Hyper, LaplaceFit, Rows
from ..laplace.leave_one_out.rows import linear_rows
from ..laplace.likelihoods._base import without_noise
from ..laplace.selection import HeldOutErrors, HeldOutScores, held_out_scores, log_densities
from .row_densities import Densities, RowDensities

LEAST_LEVEL = 1e-100
"""Minimum of the mean squared error over its variance, for constant targets without any errors."""


@dataclass(frozen=True)
class CrossFit:
    """Cross-fitted nets and their predictions for held-out rows.

    ``densities`` are None for a likelihood with dispersion that is not Gaussian, or a curvature rule of dispersion
    power other than 1.
    """

    fold: Tensor  # (n,), int64: index of the net that holds a row out
    densities: HeldOutScores | None  # under other prior precisions and noise levels
    parts: tuple[tuple[LaplaceFit, list[Rows]], ...] = ()  # fit of each net and its held-out rows; empty once scored

    def scored(self) -> CrossFit:
        """Copy without rows and nets."""
        return replace(self, parts=())

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

    def densities_of_rows(self, hyper: Hyper, held_out: HeldOutErrors | None) -> Densities:
        """Log density of each row under the net that holds it out. Not available after :meth:`scored`.

        With a noise level (``held_out`` is not None), all variances are multiplied by the factor of largest density of
        these rows: the noise level of a fit is too small for held-out rows.
        """
        if held_out is not None:
            variance = held_out.variance + hyper.dispersion * held_out.noise
            squares = held_out.errors.square() / variance
            factor = (held_out.weights @ squares.mean(1) / held_out.weights.sum()).clamp_min(LEAST_LEVEL)
            squares = squares / factor
            logs = -0.5 * ((2 * math.pi * factor * variance).log() + squares).sum(1)
            return RowDensities(logs.cpu().numpy(), squares.sum(1).cpu().numpy(), squares.shape[1])
        density, precisions = density_for(self.parts[0][0].likelihood), hyper.prior_precision[None]
        found = [log_densities(part, chunks, precisions, density)[0] for part, chunks in self.parts]
        place = self.fold.argsort(stable=True).argsort()  # of each row, after those of all folds before its own
        of_rows = torch.cat(found)[place].cpu().numpy()
        return RowDensities(of_rows, np.zeros_like(of_rows), 0)


@dataclass(frozen=True)
class FoldFit:
    """Laplace fit of a cross-fitted net on the rows of its training."""

    fit: LaplaceFit
    held_out: Tensor  # (m,), int64: positions of the other rows
    rows: list[Rows]  # the held-out rows, in chunks


def cross_fit(parts: Sequence[FoldFit], hyper: Hyper) -> CrossFit:
    """Compute the held-out scores of cross-fitted nets; each row is held out from one of them.

    ``hyper`` are the hyperparameters of the training, for the random weights.
    """
    positions, fit = torch.cat([part.held_out for part in parts]), parts[0].fit
    fold_of_row = torch.zeros_like(positions)
    for k, part in enumerate(parts):
        fold_of_row[part.held_out] = k
    has_scores = not fit.likelihood.has_dispersion or (fit.likelihood.quadratic and fit.dispersion_power == 1)
    pairs = tuple((part.fit, part.rows) for part in parts)
    densities = held_out_scores(pairs, hyper, density_for(fit.likelihood)) if has_scores else None
    return CrossFit(fold_of_row, densities, pairs)
