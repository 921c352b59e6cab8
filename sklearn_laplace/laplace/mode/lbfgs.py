r"""L-BFGS refinement of the mode, with a posterior precision as metric."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..fit import Hyper, LaplaceFit
from ..structures._base import Posterior
from .problem import DECREMENT, Mode, Problem, _Objective, _posterior

MEMORY = 20
"""Number of pairs of steps and gradient changes in the L-BFGS memory."""


def refine(
    problem: Problem,
    fit: LaplaceFit,
    hyper: Hyper,
    max_steps: int,
    damping: float = 0.0,
    *,
    is_far: bool = False,
) -> Mode:
    """Converge to the mode at fixed hyperparameters, with a new linearisation at the final weights.

    The posterior of ``fit``, at the initial weights, is the metric of all steps. Each of the ``max_steps`` takes a few
    gradient passes over the data. The metric has damping μ only if the undamped first step does not lower the
    objective; that step is not tried if ``is_far``.
    """
    objective, theta = _Objective(problem, fit, hyper), fit.theta
    value, gradient = fit.objective(hyper), fit.objective_gradient(hyper)
    if is_far:
        metric = _posterior(fit, hyper, damping)
        solved = metric.solve(gradient)
    else:
        metric, solved = _metric(objective, fit, hyper, value, gradient, damping)
    memory = _Memory()
    steps, size = 0, 1.0
    decrement = float(gradient @ solved)
    while steps < max_steps and decrement > DECREMENT**2 and not problem.is_over():
        direction = -memory.inverse_hessian(gradient, solved)
        accepted = _armijo(objective, theta, direction, value, float(gradient @ direction), min(1.0, 4 * size))
        if accepted is None:
            break
        moved, reached, size = accepted
        new_gradient = objective.gradient()
        new_solved = metric.solve(new_gradient)
        memory.add(moved - theta, new_gradient - gradient, new_solved - solved)
        steps += 1
        stalled = value - reached <= 1e-14 * (abs(value) + 1.0)
        theta, gradient, solved, value = moved, new_gradient, new_solved, reached
        before, decrement = decrement, float(gradient @ solved)
        # Below the rounding error of the objective, only the decrement measures progress.
        if stalled and decrement > 0.25 * before:
            break
    if steps:
        fit = problem.linearise(fit.network.with_parameters(theta))
    return Mode(fit, hyper, steps, damping)


def _metric(
    objective: _Objective, fit: LaplaceFit, hyper: Hyper, value: float, gradient: Tensor, damping: float
) -> tuple[Posterior, Tensor]:
    """Posterior that serves as the metric, and the solve P⁻¹ ∇L (P,).

    It is undamped if its full step lowers the objective, as it does near a mode; otherwise damped.
    """
    exact = _posterior(fit, hyper)
    solved = exact.solve(gradient)
    if damping == 0.0:
        return exact, solved
    reached = objective(objective.held(fit.theta - solved))
    if math.isfinite(reached) and reached <= value - 1e-4 * float(gradient @ solved):
        return exact, solved
    damped = _posterior(fit, hyper, damping)
    return damped, damped.solve(gradient)


def _armijo(
    objective: _Objective, start: Tensor, direction: Tensor, value: float, slope: float, size: float
) -> tuple[Tensor, float, float] | None:
    """Backtracking line search: the first of the step sizes s, s/2, s/4, … with a sufficient decrease, or None.

    Returns the new weights (P,), the objective there, and the step size.
    """
    rounding = 1e-14 * (abs(value) + 1.0)
    for _ in range(25):
        theta = objective.held(start + size * direction)
        reached = objective(theta)
        if math.isfinite(reached) and reached <= value + 1e-4 * size * slope + rounding:
            return theta, reached, size
        size /= 2
    return None


class _Memory:
    """Memory of L-BFGS: the last steps s, gradient changes y and P⁻¹ y. P⁻¹ is the initial inverse Hessian.

    The two-loop recursion is two triangular solves (Byrd, Nocedal & Schnabel 1994). The rows of s and y are the pairs,
    and R is the upper triangle of s yᵀ. The product with g is r + sᵀ c, where a = R⁻¹ s g, r = P⁻¹ (g − yᵀ a) and c =
    R⁻ᵀ (diag(R) a − y r).
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, step: Tensor, change: Tensor, solved_change: Tensor) -> None:
        """Add a pair if its curvature is positive, and drop the oldest if the memory is full."""
        if float(step @ change) > 0:
            self.pairs = [*self.pairs[-MEMORY + 1 :], (step, change, solved_change)]

    def inverse_hessian(self, vector: Tensor, solved: Tensor) -> Tensor:
        """Product of the inverse Hessian with a vector g (P,), given ``solved`` = P⁻¹ g."""
        if not self.pairs:
            return solved
        steps, changes, solved_changes = (torch.stack(part) for part in zip(*self.pairs, strict=True))
        triangle = (steps @ changes.mT).triu()
        backward = _solve(triangle, steps @ vector, upper=True)
        solved = solved - backward @ solved_changes
        forward = _solve(triangle.mT, triangle.diagonal() * backward - changes @ solved, upper=False)
        return solved + forward @ steps


def _solve(triangle: Tensor, vector: Tensor, *, upper: bool) -> Tensor:
    return torch.linalg.solve_triangular(triangle, vector[:, None], upper=upper)[:, 0]
