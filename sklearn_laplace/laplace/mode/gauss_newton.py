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
from dataclasses import dataclass

from ..fit import Hyper, LaplaceFit
from .problem import Problem, _Objective, _posterior

MAX_TRIALS = 12
"""Dampings tried in one Gauss–Newton step before the search gives up."""
MAX_DAMPING = 1e12


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


def _next_damping(damping: float, gain: float) -> float:
    """Smaller where the quadratic model was good, and zero once it is negligible."""
    if gain > 0.75:
        damping /= 5.0
    elif gain < 0.25:
        damping = max(damping * 2.0, 1e-3)
    return 0.0 if damping < 1e-6 else damping
