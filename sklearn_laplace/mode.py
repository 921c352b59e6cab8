r"""The mode of the posterior at fixed hyperparameters.

The MAP objective is :math:`L(\theta) = \sum_n w_n\,\mathrm{nll}_n/\varphi + \tfrac12 (\theta - \mu_0)^\top
\mathrm{diag}(\delta) (\theta - \mu_0)`. Two ways to lower it, both in the metric of the structure's own posterior
:math:`P`:

- :func:`gauss_newton_step`, :math:`(H/\varphi + (1+\mu)\,\mathrm{diag}(\delta))\,\Delta = -\nabla L` (Levenberg 1944;
  Marquardt 1963, the damping scaled by the prior), for the way to the mode;
- :func:`refine`, L-BFGS (Nocedal & Wright 2006, alg. 7.4 and 7.5) that starts from :math:`P^{-1}` as inverse Hessian,
  for the last digits: gradients only, and superlinear where Gauss–Newton alone converges slowly (large residuals).

For a linear network and a Gaussian likelihood either finds the exact mode in its first step. The distance left is the
Newton decrement :math:`\sqrt{\nabla L^\top P^{-1} \nabla L}`: how far the weights are from the mode of the linearised
model, in posterior standard deviations, whatever the units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from .data_loss import DataLoss
from .laplace import Hyper, LaplaceFit
from .network import Network
from .structures._base import Posterior

MAX_TRIALS = 12
"""Dampings tried in one Gauss–Newton step before the search gives up."""
MAX_DAMPING = 1e12
DECREMENT = 1e-10
"""A mode is found when the Newton decrement falls below this many posterior standard deviations."""
MEMORY = 20
"""Pairs of steps and gradient changes that L-BFGS keeps."""


@dataclass(frozen=True)
class Problem:
    """The data behind a mode search, as two functions of the network.

    Parameters
    ----------
    linearise : callable
        Network → LaplaceFit: a pass over the data with curvature.
    loss : callable
        Network → :class:`~sklearn_laplace.data_loss.DataLoss`, the data's loss as a function of the weights.
    is_over : callable
        → bool, whether a search has to end where it is.
    """

    linearise: Callable[[Network], LaplaceFit]
    loss: Callable[[Network], DataLoss]
    is_over: Callable[[], bool] = bool  # never


@dataclass(frozen=True)
class Mode:
    """Where a search ended.

    Parameters
    ----------
    fit : LaplaceFit
        The pass over the data at the final weights.
    hyper : Hyper
    n_steps : int
        Steps taken.
    damping : float
        μ of the last Gauss–Newton step.
    """

    fit: LaplaceFit
    hyper: Hyper
    n_steps: int
    damping: float = 0.0

    @cached_property
    def decrement(self) -> float:
        """:func:`newton_decrement` there: a factorisation, for whoever asks."""
        return newton_decrement(self.fit, self.hyper)


@dataclass(frozen=True)
class Step:
    """The result of one damped Gauss–Newton step.

    Parameters
    ----------
    fit : LaplaceFit or None
        The pass over the data at the new weights; None when no damping lowered the objective.
    damping : float
        Damping for the next step.
    decrement : float
        Newton decrement, in the damped metric, where the step began.
    """

    fit: LaplaceFit | None
    damping: float
    decrement: float


def newton_decrement(fit: LaplaceFit, hyper: Hyper) -> float:
    """√(∇Lᵀ P⁻¹ ∇L) at the fit's weights, by one solve with the posterior at temperature 1."""
    gradient = fit.objective_gradient(hyper)
    return math.sqrt(max(float(gradient @ _posterior(fit, hyper).solve(gradient)), 0.0))


def gauss_newton_step(problem: Problem, fit: LaplaceFit, hyper: Hyper, damping: float) -> Step:
    """One accepted step of damped Gauss–Newton.

    Parameters
    ----------
    problem : Problem
    fit : LaplaceFit
        The pass over the data at the present weights.
    hyper : Hyper
        Fixed during the step.
    damping : float
        μ ≥ 0, tried first; larger ones follow while the objective does not fall.

    Returns
    -------
    Step
    """
    gradient, value = fit.objective_gradient(hyper), fit.objective(hyper)
    objective = _Objective(problem, fit, hyper)
    decrement = 0.0
    for _ in range(MAX_TRIALS):
        step = -_posterior(fit, hyper, damping).solve(gradient)
        decrement = math.sqrt(max(-float(gradient @ step), 0.0))
        theta = objective.held(fit.theta + step)
        reached = objective(theta)
        promised = 0.5 * decrement**2
        rounding = 1e-13 * (abs(value) + 1.0)
        gain = (value - reached) / max(promised, 1e-300)
        if math.isfinite(reached) and (gain > 1e-4 or (promised <= rounding and abs(value - reached) <= rounding)):
            moved = problem.linearise(fit.network.with_parameters(theta))
            return Step(moved, _next_damping(damping, gain), decrement)
        damping = max(damping * 4.0, 1e-3)
        if damping > MAX_DAMPING:
            break
    return Step(None, damping, decrement)


def refine(problem: Problem, fit: LaplaceFit, hyper: Hyper, max_steps: int, damping: float = 0.0) -> Mode:
    """Move to the mode under fixed hyperparameters.

    Parameters
    ----------
    problem : Problem
    fit : LaplaceFit
        Where to start; its posterior is the metric throughout.
    hyper : Hyper
    max_steps : int
        Largest number of L-BFGS steps, each a few gradient passes over the data.
    damping : float
        μ of the metric where its undamped first step is too long.

    Returns
    -------
    Mode
        With a fresh linearisation at the final weights.
    """
    objective, theta = _Objective(problem, fit, hyper), fit.theta
    value, gradient = fit.objective(hyper), fit.objective_gradient(hyper)
    metric, solved = _metric(objective, fit, hyper, value, gradient, damping)
    memory = _Memory()
    steps, size = 0, 1.0
    decrement = float(gradient @ solved)
    while steps < max_steps and decrement > DECREMENT**2 and not problem.is_over():
        direction = -memory.inverse_hessian(gradient, solved)
        found = _armijo(objective, theta, direction, value, float(gradient @ direction), min(1.0, 4 * size))
        if found is None:
            break
        moved, reached, size = found
        new_gradient = objective.gradient()
        new_solved = metric.solve(new_gradient)
        memory.add(moved - theta, new_gradient - gradient, new_solved - solved)
        steps += 1
        stalled = value - reached <= 1e-14 * (abs(value) + 1.0)
        theta, gradient, solved, value = moved, new_gradient, new_solved, reached
        before, decrement = decrement, float(gradient @ solved)
        # Below the rounding of the objective the gradient alone tells progress.
        if stalled and decrement > 0.25 * before:
            break
    if steps:
        fit = problem.linearise(fit.network.with_parameters(theta))
    return Mode(fit, hyper, steps, damping)


class _Objective:
    """The MAP objective at fixed hyperparameters as a function of the weights."""

    def __init__(self, problem: Problem, fit: LaplaceFit, hyper: Hyper) -> None:
        self.prior, self.hyper = fit.prior, hyper
        self.loss = problem.loss(fit.network)
        self.held = self.loss.held
        self.theta = fit.theta

    def __call__(self, theta: Tensor) -> float:
        """At weights (P,) as the module can hold them."""
        self.theta = theta
        quadratic = self.prior.quadratic(self.hyper.prior_precision, theta)
        return self.loss(theta) / self.hyper.dispersion + 0.5 * float(quadratic)

    def gradient(self) -> Tensor:
        """Its gradient (P,) where it was asked for last."""
        of_prior = self.prior.gradient(self.hyper.prior_precision, self.theta)
        return self.loss.gradient() / self.hyper.dispersion + of_prior


def _metric(
    objective: _Objective, fit: LaplaceFit, hyper: Hyper, value: float, gradient: Tensor, damping: float
) -> tuple[Posterior, Tensor]:
    """P itself where its full step lowers the objective, as near a mode it does; else damped. And P⁻¹ ∇L (P,)."""
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
    """The first of the step sizes s, s/2, s/4, … with a sufficient decrease.

    Returns
    -------
    (Tensor of shape (P,), float, float) or None
        Where it leads to, the objective there, and s; None when there is none above rounding.
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
    """The last pairs of steps s and gradient changes y, and P⁻¹ y: the inverse Hessian of L-BFGS around P⁻¹.

    The two-loop recursion as two triangular solves (Byrd, Nocedal & Schnabel 1994), with R the upper triangle of s yᵀ
    over the pairs: a = R⁻¹ s g, r = P⁻¹ (g − yᵀ a), c = R⁻ᵀ (diag(R) a − y r), and r + sᵀ c.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, step: Tensor, change: Tensor, solved_change: Tensor) -> None:
        """A pair that is curved upwards, in place of the oldest where there are enough."""
        if float(step @ change) > 0:
            self.pairs = [*self.pairs[-MEMORY + 1 :], (step, change, solved_change)]

    def inverse_hessian(self, vector: Tensor, solved: Tensor) -> Tensor:
        """Times a vector g (P,) of which P⁻¹ g is known."""
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


def _next_damping(damping: float, gain: float) -> float:
    """Smaller where the quadratic model was good, and zero once it is negligible."""
    if gain > 0.75:
        damping /= 5.0
    elif gain < 0.25:
        damping = max(damping * 2.0, 1e-3)
    return 0.0 if damping < 1e-6 else damping


def _posterior(fit: LaplaceFit, hyper: Hyper, damping: float = 0.0) -> Posterior:
    """H/φ + (1 + μ) diag(δ), factorised, at temperature 1."""
    damped = replace(hyper, prior_precision=hyper.prior_precision * (1.0 + damping), temperature=1.0)
    return fit.posterior(damped, spectral=False)
