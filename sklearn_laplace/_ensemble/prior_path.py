r"""Evidence and leave-one-out density of a fit as functions of the prior precision, at fixed weights.

The prior precisions are those of the fit times a common factor. If the noise level is free, each score is maximised
over φ at each point. The log evidence is :math:`\max_\varphi \log p(D \mid \delta, \varphi)`, and the leave-one-out log
density is :math:`\max_\varphi L(\delta, \varphi)`. For leave-one-out, let :math:`\hat\varphi(\rho)` be the best noise
level at :math:`\rho = \delta\varphi`, and :math:`\hat L(\rho)` its log density (see ``laplace/selection/loo.py``). With
F = C Σ w,

.. math:: L(\delta, \varphi) = \hat L(\delta\varphi) - \tfrac12 F \big[\log\tfrac{\varphi}{\hat\varphi(\delta\varphi)}
          + \tfrac{\hat\varphi(\delta\varphi)}{\varphi} - 1\big].

Therefore one curve in ρ is sufficient for all points.
"""

from dataclasses import replace

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

from .._table.limits import LARGE, exact_cost
from ..errors import MemoryBudgetError
from ..laplace.curvatures import GGN
from ..laplace.evidence import log_evidence
from ..laplace.fit import Hyper, LaplaceFit, Rows
from ..laplace.leave_one_out.left_out import leave_one_out, loo_log_density
from ..laplace.leave_one_out.linearised import linearised_mode
from ..laplace.selection import at_best_noise, has_path, loo_path, maximise_evidence
from ..options.resolved import Options
from .choose import LeftOut

FACTORS = np.logspace(-4, 4, 25)
"""Factors of the fit's prior precisions."""
RIDGES = 60
"""Number of points of the curve in ρ, each of which may need a pass over the rows."""
NOISES = 2000
"""Number of noise variances at which the spline is evaluated for each prior precision."""


def prior_path(
    fit: LaplaceFit, hyper: Hyper, options: Options, left_out: LeftOut | None, log_volume: float
) -> dict[str, np.ndarray]:
    """Return a dict with k prior precisions, and their log evidence and leave-one-out log density, (k,) each.

    With G > 1 groups, the prior precisions are (k, G). The scores are in nats, for y in its original units;
    unavailable ones are NaN. ``log_volume`` is the log factor from the network's units to those of y, per unit of row
    weight. ``left_out`` is None without stored rows.
    """
    groups = hyper.prior_precision
    grid = torch.from_numpy(FACTORS).to(groups)[:, None] * groups
    values = grid.cpu().numpy()
    path = {"prior_precision": values[:, 0] if len(groups) == 1 else values}
    path["log_marginal_likelihood"] = _evidence(fit, hyper, grid, options) - fit.total_weight * log_volume
    path["loo_log_density"] = _left_out(fit, hyper, grid, options, left_out) - fit.total_weight * log_volume
    return path


def _evidence(fit: LaplaceFit, hyper: Hyper, grid: Tensor, options: Options) -> np.ndarray:
    """Log evidence (k,) on the grid in nats, with the best φ at each point if φ is free."""
    evidences, noise = [], hyper.dispersion
    for values in grid:
        point = replace(hyper, prior_precision=values.contiguous(), dispersion=noise)
        if options.rechooses_noise:
            cold = replace(point, temperature=1.0)
            noise = maximise_evidence(fit, cold, free_prior=False, warn=False).dispersion
            point = replace(point, dispersion=noise)
        evidences.append(log_evidence(fit, point))
    return np.array(evidences)


def _left_out(fit: LaplaceFit, hyper: Hyper, grid: Tensor, options: Options, left_out: LeftOut | None) -> np.ndarray:
    """Leave-one-out log density (k,) in nats; NaN without rows, with several temperatures, or if too expensive."""
    unavailable = np.full(len(grid), np.nan)
    if left_out is None or isinstance(hyper.temperature, Tensor):
        return unavailable
    n_dual = len(left_out.rows) * GGN().n_columns(fit.likelihood, fit.n_outputs)
    cost, _ = exact_cost(fit.network.blocks, n_dual)
    if cost * (1 if has_path(fit, fit) else RIDGES) > LARGE.exact_posterior:
        return unavailable
    try:
        exact = left_out.exact(fit)
        batches = left_out.batches(exact)
    except MemoryBudgetError:
        return unavailable
    if options.rechooses_noise and fit.likelihood.quadratic and fit.dispersion_power == 1:
        return _at_best_noises(fit, exact, batches, hyper, grid)
    if has_path(fit, exact):
        noise = torch.full_like(grid[:, 0], hyper.dispersion)
        return loo_path(fit, batches, grid[:, 0] * noise, noise, float(hyper.temperature)).log_density.cpu().numpy()
    densities, mode = [], exact
    for values in grid.flip(0):  # start with the strongest prior; each mode is the start of the next search
        point = replace(hyper, prior_precision=values.contiguous())
        mode = linearised_mode(mode, batches, point)
        of_covariance = mode if fit is exact else fit
        densities.append(loo_log_density(of_covariance, mode, batches, point, left_out.density))
    return np.array(densities[::-1])


def _at_best_noises(fit: LaplaceFit, exact: LaplaceFit, batches: list[Rows], hyper: Hyper, grid: Tensor) -> np.ndarray:
    """Leave-one-out log density (k,) in nats, maximised over φ with a spline in log δφ; δ is the first precision."""
    deltas = grid[:, 0].cpu().numpy()
    low, high = hyper.dispersion / 100, 10 * max(hyper.dispersion, fit.likelihood.dispersion_start)
    ends = np.log(deltas.min() * low), np.log(deltas.max() * high)
    whole = has_path(fit, exact)
    ridges = np.linspace(*ends, RIDGES)
    if whole:
        path = loo_path(fit, batches, torch.from_numpy(np.exp(ridges)).to(grid), None, float(hyper.temperature))
        densities, noises = path.log_density.cpu().numpy(), path.dispersion.cpu().numpy()
    else:
        pattern = grid[0] / grid[0, 0]
        points = [Hyper(pattern * float(np.exp(ridge)), 1.0, hyper.temperature) for ridge in ridges]
        best = [at_best_noise(fit, leave_one_out(fit, exact, batches, point), batches, point) for point in points]
        densities, noises = np.array([[value, optimum.dispersion] for value, optimum in best]).T
    curve = CubicSpline(ridges, np.stack([densities, np.log(noises)], 1))
    log_noises = np.linspace(np.log(low), np.log(high), NOISES)
    density, best_noise = np.moveaxis(curve(np.log(deltas)[:, None] + log_noises), -1, 0)
    away = log_noises - best_noise
    with np.errstate(over="ignore"):
        values = density - 0.5 * fit.total_weight * fit.n_outputs * (away + np.exp(-away) - 1)
    maxima: np.ndarray = values.max(axis=1)
    return maxima
