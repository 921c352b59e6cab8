r"""Scores of a fit under other prior precisions, at the same weights: what each way of choosing one looks at.

The prior precisions are those of the fit times a common factor. Where the noise is free, each score has its own best
one at each point: the evidence :math:`\max_\varphi \log p(D \mid \delta, \varphi)`, leave-one-out
:math:`\max_\varphi L(\delta, \varphi)`. With :math:`\hat\varphi(\rho)` and :math:`\hat L(\rho)` along
:math:`\rho = \delta\varphi` (see ``laplace/selection/loo.py``) the latter has, for F = C Σ w,

.. math:: L(\delta, \varphi) = \hat L(\delta\varphi) - \tfrac12 F \big[\log\tfrac{\varphi}{\hat\varphi(\delta\varphi)}
          + \tfrac{\hat\varphi(\delta\varphi)}{\varphi} - 1\big],

so that one curve in ρ, between whose points a cubic spline is taken, serves all points.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

from .._options.options import Options
from .._runtime.budget import LARGE, exact_cost
from ..errors import MemoryBudgetError
from ..laplace.curvatures import GGN
from ..laplace.evidence import log_evidence
from ..laplace.fit import Hyper, LaplaceFit, Rows
from ..laplace.leave_one_out.left_out import leave_one_out, loo_log_density
from ..laplace.leave_one_out.linearised import linearised_mode
from ..laplace.selection import at_best_noise, has_path, loo_path, maximise_evidence
from .left_out import LeftOut

FACTORS = np.logspace(-4, 4, 25)
RIDGES, DEAR_RIDGES = 240, 60
"""Points of the curve in ρ, where they come from one pass over the rows and where each has its own."""
NOISES = 2000
"""Noise variances that are tried at each point of the spline."""


def prior_path(
    fit: LaplaceFit, hyper: Hyper, options: Options, left_out: LeftOut | None, log_volume: float, scores: Any
) -> dict[str, np.ndarray]:
    """The scores along a grid of k points.

    Parameters
    ----------
    fit : LaplaceFit
    hyper : Hyper
        Those of the fit.
    options : Options
    left_out : LeftOut or None
        Its rows, where they are known.
    log_volume : float
        What one row of weight 1 subtracts from a log density in the network's units.
    scores : object or None
        Scores that were made before: ``grid`` (k,), of prior precisions that all groups have, ``mean`` (k,), ``kind``.

    Returns
    -------
    dict of str to ndarray of shape (k,)
        ``prior_precision``, (k, G) where there are several; ``log_marginal_likelihood`` and ``loo_log_density``, nats,
        of y in its own units; ``cv_score`` and ``validation_score``. NaN where a score is not available.
    """
    groups = hyper.prior_precision
    if scores is None:
        grid = torch.from_numpy(FACTORS).to(groups)[:, None] * groups
    else:
        grid = torch.as_tensor(np.asarray(scores.grid, dtype=float)).to(groups)[:, None].expand(-1, len(groups))
    values = grid.cpu().numpy()
    found = {"prior_precision": values[:, 0] if len(groups) == 1 else values}
    found["log_marginal_likelihood"] = _evidence(fit, hyper, grid, options) - fit.total_weight * log_volume
    found["loo_log_density"] = _left_out(fit, hyper, grid, options, left_out) - fit.total_weight * log_volume
    found |= {"cv_score": np.full(len(grid), np.nan), "validation_score": np.full(len(grid), np.nan)}
    return found if scores is None else found | {f"{scores.kind}_score": np.asarray(scores.mean, dtype=float)}


def _evidence(fit: LaplaceFit, hyper: Hyper, grid: Tensor, options: Options) -> np.ndarray:
    found, noise = [], hyper.dispersion
    for values in grid:
        point = replace(hyper, prior_precision=values.contiguous(), dispersion=noise)
        if options.rechooses_noise:
            cold = replace(point, temperature=1.0)
            noise = maximise_evidence(fit, cold, free_prior=False, warn=False).dispersion
            point = replace(point, dispersion=noise)
        found.append(log_evidence(fit, point))
    return np.array(found)


def _left_out(fit: LaplaceFit, hyper: Hyper, grid: Tensor, options: Options, left_out: LeftOut | None) -> np.ndarray:
    nothing = np.full(len(grid), np.nan)
    if left_out is None or isinstance(hyper.temperature, Tensor):
        return nothing
    n_dual = len(left_out.rows) * GGN().n_columns(fit.likelihood, fit.n_outputs)
    cost, _ = exact_cost(fit.network.blocks, n_dual)
    if cost * (1 if has_path(fit, fit) else DEAR_RIDGES) > LARGE.exact_posterior:
        return nothing
    try:
        exact = left_out.exact(fit)
        batches = left_out.batches(exact)
    except MemoryBudgetError:
        return nothing
    if options.rechooses_noise and fit.likelihood.quadratic and fit.dispersion_power == 1:
        return _at_best_noises(fit, exact, batches, hyper, grid)
    if has_path(fit, exact):
        noise = torch.full_like(grid[:, 0], hyper.dispersion)
        return loo_path(fit, batches, grid[:, 0] * noise, noise, float(hyper.temperature)).log_density.cpu().numpy()
    found, settled = [], exact
    for values in grid.flip(0):  # from the strongest prior on, each mode from the one before
        point = replace(hyper, prior_precision=values.contiguous())
        settled = linearised_mode(settled, batches, point)
        own = settled if fit is exact else fit
        found.append(loo_log_density(own, settled, batches, point, left_out.density))
    return np.array(found[::-1])


def _at_best_noises(fit: LaplaceFit, exact: LaplaceFit, batches: list[Rows], hyper: Hyper, grid: Tensor) -> np.ndarray:
    """max over φ of L at each point, from a spline in log ρ; ρ stands for the first of several precisions."""
    deltas = grid[:, 0].cpu().numpy()
    low, high = hyper.dispersion / 100, 10 * max(hyper.dispersion, fit.likelihood.dispersion_start)
    ends = np.log(deltas.min() * low), np.log(deltas.max() * high)
    whole = has_path(fit, exact)
    ridges = np.linspace(*ends, RIDGES if whole else DEAR_RIDGES)
    if whole:
        path = loo_path(fit, batches, torch.from_numpy(np.exp(ridges)).to(grid), None, float(hyper.temperature))
        densities, noises = path.log_density.cpu().numpy(), path.dispersion.cpu().numpy()
    else:
        pattern = grid[0] / grid[0, 0]
        points = [Hyper(pattern * float(np.exp(ridge)), 1.0, hyper.temperature) for ridge in ridges]
        best = [at_best_noise(fit, leave_one_out(fit, exact, batches, point), batches, point) for point in points]
        densities, noises = np.array([[value, found.dispersion] for value, found in best]).T
    curve = CubicSpline(ridges, np.stack([densities, np.log(noises)], 1))
    tried = np.linspace(np.log(low), np.log(high), NOISES)
    density, best_noise = np.moveaxis(curve(np.log(deltas)[:, None] + tried), -1, 0)
    away = tried - best_noise
    with np.errstate(over="ignore"):
        values = density - 0.5 * fit.total_weight * fit.n_outputs * (away + np.exp(-away) - 1)
    found: np.ndarray = values.max(axis=1)
    return found
