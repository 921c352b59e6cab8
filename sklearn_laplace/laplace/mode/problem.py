r"""The MAP objective, and damped Gauss–Newton steps towards its mode at fixed hyperparameters.

The MAP objective is :math:`L(\theta) = \sum_n w_n\,\mathrm{nll}_n/\varphi + \tfrac12 (\theta - \mu_0)^\top
\mathrm{diag}(\delta) (\theta - \mu_0)`. Two methods minimise it, both in the metric of the posterior precision
:math:`P` of the structure:

- :func:`gauss_newton_step`, :math:`(H/\varphi + (1+\mu)\,\mathrm{diag}(\delta))\,\Delta = -\nabla L` (Levenberg 1944;
  Marquardt 1963, with the damping scaled by the prior), far from the mode;
- ``refine`` (``lbfgs.py``), L-BFGS (Nocedal & Wright 2006, alg. 7.4 and 7.5) with :math:`P^{-1}` as the initial
  inverse Hessian, near the mode. It needs gradients only, and converges superlinearly where Gauss–Newton is slow
  (large residuals).

For a linear network and a Gaussian likelihood, either reaches the exact mode in its first step. The remaining distance
is the Newton decrement :math:`\sqrt{\nabla L^\top P^{-1} \nabla L}`: the distance from the weights to the mode of the
linearised model, in posterior standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from ..fit import Hyper, LaplaceFit
from ..network.network import Network
from ..structures._base import Posterior
from .data_loss import DataLoss

DECREMENT = 1e-10
"""Convergence criterion: Newton decrement, in posterior standard deviations."""


@dataclass(frozen=True)
class Problem:
    """The data of a mode search, as functions of the network."""

    linearise: Callable[[Network], LaplaceFit]  # a pass over the data, with the curvature
    loss: Callable[[Network], DataLoss]
    is_over: Callable[[], bool] = bool  # True if the search must stop; never by default
    advance: Callable[[float], object] = float  # gets the mean loss after each step; no effect by default


@dataclass(frozen=True)
class Mode:
    """Result of a mode search."""

    fit: LaplaceFit  # at the final weights
    hyper: Hyper
    n_steps: int
    damping: float = 0.0  # μ of the last Gauss–Newton step

    @cached_property
    def decrement(self) -> float:
        """Newton decrement at the final weights, see :func:`newton_decrement`. Costs one factorisation."""
        return newton_decrement(self.fit, self.hyper)


def newton_decrement(fit: LaplaceFit, hyper: Hyper) -> float:
    """Newton decrement √(∇Lᵀ P⁻¹ ∇L) at the fit's weights, by one solve with the posterior at temperature 1."""
    gradient = fit.objective_gradient(hyper)
    return math.sqrt(max(float(gradient @ _posterior(fit, hyper).solve(gradient)), 0.0))


class _Objective:
    """MAP objective at fixed hyperparameters, as a function of the weights."""

    def __init__(self, problem: Problem, fit: LaplaceFit, hyper: Hyper) -> None:
        self.prior, self.hyper = fit.prior, hyper
        self.loss = problem.loss(fit.network)
        self.held = self.loss.held
        self.theta = fit.theta

    def __call__(self, theta: Tensor) -> float:
        """Objective at weights (P,), which must be rounded by :meth:`DataLoss.held`."""
        self.theta = theta
        quadratic = self.prior.quadratic(self.hyper.prior_precision, theta)
        return self.loss(theta) / self.hyper.dispersion + 0.5 * float(quadratic)

    def gradient(self) -> Tensor:
        """Gradient (P,) at the weights of the last call."""
        of_prior = self.prior.gradient(self.hyper.prior_precision, self.theta)
        return self.loss.gradient() / self.hyper.dispersion + of_prior


def _posterior(fit: LaplaceFit, hyper: Hyper, damping: float = 0.0) -> Posterior:
    """Factorised posterior with precision H/φ + (1 + μ) diag(δ), at temperature 1."""
    damped = replace(hyper, prior_precision=hyper.prior_precision * (1.0 + damping), temperature=1.0)
    return fit.posterior(damped, spectral=False)


MAX_TRIALS = 12
"""Maximum number of dampings tried in one Gauss–Newton step."""
MAX_DAMPING = 1e12
"""A Gauss–Newton step fails if the damping exceeds this value."""


@dataclass(frozen=True)
class Step:
    """Result of one damped Gauss–Newton step."""

    fit: LaplaceFit | None  # at the new weights; None if no damping lowered the objective
    damping: float  # μ for the next step
    decrement: float  # at the start of the step, in the damped metric


def gauss_newton_step(problem: Problem, fit: LaplaceFit, hyper: Hyper, damping: float) -> Step:
    """Damped Gauss–Newton step from the weights of ``fit`` that lowers the objective.

    The damping μ ≥ 0 is increased until the objective decreases.
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


def _next_damping(damping: float, gain: float) -> float:
    """Damping for the next step: smaller after a gain near the quadratic model's, and zero once negligible."""
    if gain > 0.75:
        damping /= 5.0
    elif gain < 0.25:
        damping = max(damping * 2.0, 1e-3)
    return 0.0 if damping < 1e-6 else damping
