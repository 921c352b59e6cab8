"""Selection by evidence: Newton's method in the logarithms of the prior precisions and the noise variance.

At fixed weights the log evidence is concave in these logarithms. Newton's method with a limited step therefore finds
the unique optimum, usually in six to ten iterations. For many groups, a diagonal bound replaces the Hessian. A line
search ensures that no step decreases the evidence.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from ...errors import BoundWarning
from ...errors.warn import warn_user
from ..evidence import PRECISION_BOUNDS, diagonal_derivatives, evidence_derivatives, log_evidence
from ..fit import Hyper, LaplaceFit

MAX_STEP = 3.0
"""Longest step of a logarithm in one Newton iteration: a factor of twenty."""
MAX_ITERATIONS = 50
TOLERANCE, DIAGONAL_TOLERANCE = 1e-9, 1e-4
"""Stop if the predicted gain is below this many nats, for the full and for the diagonal Hessian."""
NEWTON_GROUPS = 20
"""Largest number G of groups for a full Hessian, which needs G matrices of the posterior's size and G² products."""
LISTED = 6
"""Number of hyperparameters listed in a warning."""


def maximise_evidence(
    fit: LaplaceFit, hyper: Hyper, *, free_prior: bool = True, free_dispersion: bool = True, warn: bool = True
) -> Hyper:
    """Return the hyperparameters that maximise the evidence at the fit's weights. Fixed values are kept.

    The dispersion is optimised if the likelihood has one. If ``warn``, an optimum at a bound issues a BoundWarning.

    >>> from sklearn_laplace.laplace.network import trace
    >>> from sklearn_laplace.laplace.curvatures import GGN
    >>> from sklearn_laplace.laplace import fit_laplace
    >>> from sklearn_laplace.laplace.likelihoods import Gaussian
    >>> from sklearn_laplace.laplace.structures import Full
    >>> network = trace(torch.nn.Linear(1, 1, bias=False).double(), torch.ones(1, 1).double())
    >>> x = torch.tensor([[1.0], [2.0], [3.0]]).double()
    >>> rows = [(x, 2 * x + torch.tensor([[0.1], [0.0], [-0.1]]), torch.ones(3).double())]
    >>> near = network.with_parameters(torch.tensor([2.0]).double())
    >>> fit = fit_laplace(near, Gaussian(), GGN(), Full, network.scalar_prior(), rows)
    >>> optimum = maximise_evidence(fit, Hyper(torch.ones(1).double()))
    >>> bool(log_evidence(fit, optimum) > log_evidence(fit, Hyper(torch.ones(1).double())))
    True
    >>> round(optimum.prior_precision.item(), 2)  # about 1 / θ²
    0.25
    """
    n_groups = fit.prior.n_groups
    free_dispersion = free_dispersion and fit.likelihood.has_dispersion
    free = torch.tensor([free_prior] * n_groups + [free_dispersion], device=hyper.prior_precision.device)
    dispersion_low, dispersion_high = fit.likelihood.dispersion_bounds
    low = torch.tensor([PRECISION_BOUNDS[0]] * n_groups + [dispersion_low], dtype=torch.float64).log()
    high = torch.tensor([PRECISION_BOUNDS[1]] * n_groups + [dispersion_high], dtype=torch.float64).log()
    low, high = low.to(free.device), high.to(free.device)
    start = torch.cat([hyper.prior_precision, hyper.prior_precision.new_tensor([hyper.dispersion])]).log()
    point = torch.where(free, start.clamp(low, high), start)
    value = log_evidence(fit, _at(hyper, point))
    few = n_groups <= NEWTON_GROUPS
    derive, tolerance = (evidence_derivatives, TOLERANCE) if few else (diagonal_derivatives, DIAGONAL_TOLERANCE)
    for _ in range(MAX_ITERATIONS):
        derivatives = derive(fit, _at(hyper, point))
        gradient = derivatives.gradient
        # A coordinate at a bound stays fixed while its gradient points outwards.
        active = free & ~((point <= low) & (gradient < 0)) & ~((point >= high) & (gradient > 0))
        if not bool(active.any()):
            break
        step = _newton_step(gradient, derivatives.hessian, active)
        predicted_gain = float(gradient @ step)
        if predicted_gain < tolerance:
            break
        point, value, moved = _line_search(fit, hyper, point, step, value, low, high)
        if not moved:
            break
    optimum = _at(hyper, point)
    if warn:
        warn_at_bounds(fit, optimum, free_prior=free_prior, free_dispersion=free_dispersion)
    return optimum


def warn_at_bounds(
    fit: LaplaceFit, hyper: Hyper, *, free_prior: bool, free_dispersion: bool, what: str = "the evidence"
) -> None:
    """Issue a BoundWarning for values at a bound. Upper bounds of prior precisions count only if all are reached."""
    at_bounds = _at_bounds(fit, hyper, free_prior, free_dispersion)
    if at_bounds:
        n_more = len(at_bounds) - LISTED
        shown = [*at_bounds[:LISTED], f"{n_more} more"] if n_more > 1 else at_bounds
        warn_user(
            f"{what} is largest at the bound of the search: {', '.join(shown)} (in units of standardised "
            "targets). The data do not determine this value. Give it as a number, or check for targets that are "
            "constant, noise-free or unrelated to the inputs.",
            BoundWarning,
        )


def _at_bounds(fit: LaplaceFit, hyper: Hyper, free_prior: bool, free_dispersion: bool) -> list[str]:
    """Free hyperparameters at a bound that indicates a problem, with their values."""
    at_bounds = []
    values = hyper.prior_precision.tolist()
    all_high = all(_at_bound(value, PRECISION_BOUNDS) > 0 for value in values)
    for name, value in zip(fit.prior.names, values, strict=True):
        if free_prior and (_at_bound(value, PRECISION_BOUNDS) < 0 or all_high):
            at_bounds.append(f"prior_precision of '{name}' = {value:.0e}")
    if free_dispersion and fit.likelihood.has_dispersion:
        bounds = fit.likelihood.dispersion_bounds
        if _at_bound(hyper.dispersion, bounds):
            at_bounds.append(f"noise variance = {hyper.dispersion / fit.likelihood.dispersion_start:.0e}")
    return at_bounds


def _at_bound(value: float, bounds: tuple[float, float]) -> int:
    """−1 at the lower bound, 1 at the upper bound, else 0."""
    return int(value >= bounds[1] * (1 - 1e-6)) - int(value <= bounds[0] * (1 + 1e-6))


def _newton_step(gradient: Tensor, hessian: Tensor, active: Tensor) -> Tensor:
    """−H⁻¹g on the active coordinates, limited to MAX_STEP: as a whole, or elementwise for a diagonal H."""
    step = torch.zeros_like(gradient)
    if hessian.ndim == 1:
        step[active] = (gradient[active] / -hessian[active].clamp_max(-1e-12)).clamp(-MAX_STEP, MAX_STEP)
        return step
    curvature = -hessian[active][:, active]
    ridge = 1e-12 * curvature.diagonal().abs().max().clamp_min(1e-12)
    curvature = curvature + ridge * torch.eye(len(curvature), dtype=curvature.dtype, device=curvature.device)
    step[active] = torch.linalg.solve(curvature, gradient[active])
    if not bool(torch.isfinite(step).all()) or float(gradient @ step) < 0:
        step = torch.where(active, gradient, torch.zeros_like(gradient))
    longest = float(step.abs().max())
    return step * min(1.0, MAX_STEP / max(longest, 1e-300))


def _line_search(
    fit: LaplaceFit, hyper: Hyper, point: Tensor, step: Tensor, value: float, low: Tensor, high: Tensor
) -> tuple[Tensor, float, bool]:
    """Halve the step until the evidence does not decrease. Return the point, its evidence, and True on success."""
    for _ in range(30):
        candidate = torch.where(step != 0, (point + step).clamp(low, high), point)
        reached = log_evidence(fit, _at(hyper, candidate))
        if math.isfinite(reached) and reached >= value - 1e-12 * abs(value):
            return candidate, reached, True
        step = step / 2
    return point, value, False


def _at(hyper: Hyper, point: Tensor) -> Hyper:
    values = point.exp()
    return replace(hyper, prior_precision=values[:-1], dispersion=float(values[-1]))
