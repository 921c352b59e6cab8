r"""Mode of the linearised network, the point at which leave-one-out formulas are evaluated."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from ..curvatures import GGN
from ..fit import Hyper, LaplaceFit, Rows, fit_laplace
from ..linalg import TOLERANCE, conjugate_gradients
from ..structures._base import Curvature
from .rows import LinearRows, held_rows

MAX_STEPS, MAX_HALVINGS = 50, 25
"""Maximum number of Newton steps, and of step sizes in each line search."""
DECREMENT = 1e-10
"""Convergence criterion: Newton decrement, in posterior standard deviations."""
ROUNDING = 1e-14
"""Relative changes of the objective up to this size are treated as rounding errors."""
LOOSE = 0.01
"""Maximum tolerance of the linear solve in a Newton step. A smaller Newton decrement takes its place."""


def linearised_mode(fit: LaplaceFit, batches: Iterable[Rows], hyper: Hyper) -> LaplaceFit:
    r"""Fit at the mode of the linearised network at temperature 1, by Newton's method on

    .. math:: \sum_n w_n\,\mathrm{nll}(f_n(\theta))/\varphi + \tfrac12(\theta - \mu_0)^\top
              \mathrm{diag}(\delta)(\theta - \mu_0)

    The result has ``shift`` = θ − θ*, and loss, gradient and curvature at θ ("hessian" keeps its Hessian at θ*).
    """
    return _settled(fit, held_rows(fit.network, batches), batches, hyper)


def _settled(fit: LaplaceFit, rows: Iterable[LinearRows], batches: Iterable[Rows], hyper: Hyper) -> LaplaceFit:
    hyper = replace(hyper, temperature=1.0)
    _check_weight(fit, rows)
    metric = fit.posterior(hyper)
    delta = fit.prior.precision(hyper.prior_precision)
    here = _at(fit, rows, torch.zeros_like(fit.network.theta) if fit.shift is None else fit.shift)
    moved, before = False, math.inf
    for _ in range(MAX_STEPS):
        gradient = here.objective_gradient(hyper)
        decrement = math.sqrt(max(float(gradient @ metric.solve(gradient)), 0.0))
        if decrement <= DECREMENT:
            break
        tolerance = 0.0 if fit.likelihood.quadratic else min(LOOSE, decrement)
        system = _system(here, rows, hyper.dispersion, delta)
        step = -conjugate_gradients(system, gradient, metric.solve, max(tolerance, TOLERANCE))
        following = _descend(here, rows, hyper, step, float(gradient @ step))
        if following is None or (following[1] and decrement > 0.25 * before):
            break
        here, moved, before = following[0], True, decrement
    if not moved:
        return replace(here, shift=fit.shift)
    return replace(here, curvature=_curvature_at(fit, batches, here.shift))


def _check_weight(fit: LaplaceFit, rows: Iterable[LinearRows]) -> None:
    weight = float(torch.stack([part.weights.sum() for part in rows]).sum())
    if not math.isclose(weight, fit.total_weight, rel_tol=1e-6):
        raise ValueError(
            f"the batches have total weight {weight:g}, but the rows of the fit have {fit.total_weight:g}. "
            "Leave-one-out needs all rows of the fit, including those of a previous posterior: add them to the batches."
        )


def _at(fit: LaplaceFit, rows: Iterable[LinearRows], shift: Tensor) -> LaplaceFit:
    """Return the fit with loss and gradient of the linearised network at ``shift``; its curvature is not updated."""
    gradient, nll = torch.zeros_like(shift), torch.zeros((), dtype=torch.float64, device=shift.device)
    for part in rows:
        outputs = part.at(shift)
        pull = fit.likelihood.residual(outputs, part.targets) * part.weights[:, None]
        gradient += part.jacobian.transposed_times(pull[..., None])[:, 0]
        nll += part.weights @ fit.likelihood.nll(outputs, part.targets)
    return replace(fit, nll=float(nll), gradient=gradient, shift=shift)


def _system(
    fit: LaplaceFit, rows: Iterable[LinearRows], dispersion: float, delta: Tensor
) -> Callable[[Tensor], Tensor]:
    """Function to multiply vectors by H/φ + diag(δ), for the exact Gauss–Newton H of the rows at the fit's shift."""
    factors = [part.factor(GGN(), fit.likelihood, part.at(fit.shift)) for part in rows]

    def times(vector: Tensor) -> Tensor:
        product = delta * vector
        for part, factor in zip(rows, factors, strict=True):
            weighted = factor @ (factor.mT @ part.jacobian.times(vector[:, None]))
            product = product + part.jacobian.transposed_times(weighted)[:, 0] / dispersion
        return product

    return times


def _descend(
    fit: LaplaceFit, rows: Iterable[LinearRows], hyper: Hyper, step: Tensor, slope: float
) -> tuple[LaplaceFit, bool] | None:
    """Fit at the first of step, step/2, … that lowers the objective, and whether the decrease is a rounding error.

    None if no step does.
    """
    assert fit.shift is not None
    value = fit.objective(hyper)
    rounding = ROUNDING * (abs(value) + 1.0)
    for power in range(MAX_HALVINGS):
        size = 0.5**power
        moved = _at(fit, rows, fit.shift + size * step)
        reached = moved.objective(hyper)
        if math.isfinite(reached) and reached <= value + 1e-4 * size * slope + rounding:
            return moved, value - reached <= rounding
    return None


def _curvature_at(fit: LaplaceFit, batches: Iterable[Rows], shift: Tensor | None) -> Curvature:
    """Curvature at ``shift`` (P,) of the linearised network; takes one pass if the curvature depends on the shift."""
    constant = fit.likelihood.quadratic and isinstance(fit.rule, GGN)
    if constant or shift is fit.shift or "rows" not in fit.rule.provides:
        return fit.curvature
    moved = fit_laplace(
        fit.network,
        fit.likelihood,
        fit.rule,
        type(fit.curvature),
        fit.prior,
        batches,
        like=fit.curvature,
        shift=shift,
    )
    return moved.curvature
