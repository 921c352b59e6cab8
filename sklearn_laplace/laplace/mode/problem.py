r"""The MAP objective, and two methods that minimise it at fixed hyperparameters.

The MAP objective is :math:`L(\theta) = \sum_n w_n\,\mathrm{nll}_n/\varphi + \tfrac12 (\theta - \mu_0)^\top
\mathrm{diag}(\delta) (\theta - \mu_0)`. Both methods use the metric of the posterior precision :math:`P`:

- :func:`gauss_newton_step`, :math:`(H/\varphi + (1+\mu)\,\mathrm{diag}(\delta))\,\Delta = -\nabla L` (Levenberg 1944;
  Marquardt 1963, with the damping scaled by the prior), far from the mode;
- :func:`refine`, L-BFGS (Nocedal & Wright 2006, alg. 7.4 and 7.5) with :math:`P^{-1}` as the initial
  inverse Hessian, near the mode. It needs gradients only, and is fast where Gauss–Newton is slow (large residuals).

For a linear network, a Gaussian likelihood and an exact structure, the first undamped step of either method reaches the
mode. The Newton decrement :math:`\sqrt{\nabla L^\top P^{-1} \nabla L}` is the distance from the weights to the mode
of the linearised model, in posterior standard deviations.

Searches evaluate the loss of the rows and its gradient on one replica of the module (:class:`DataLoss`). If the rows
form one batch, the gradient reuses the graph of the preceding forward pass.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..evidence import log_evidence
from ..fit import Hyper, LaplaceFit, Rows
from ..leave_one_out.linearised import DECREMENT
from ..likelihoods._base import Likelihood
from ..linalg import pulled_back, sum_of_rows
from ..network.network import Network
from ..structures._base import Posterior


class DataLoss:
    """Loss Σ w·nll of the rows at unit dispersion, plus the quadratic model of the fit ``past``, at given weights."""

    def __init__(
        self, network: Network, likelihood: Likelihood, batches: Sequence[Rows], past: LaplaceFit | None = None
    ) -> None:
        self.network, self.likelihood, self.batches, self.past = network, likelihood, batches, past
        places = network.tensors(torch.arange(network.n_parameters, device=network.theta.device, dtype=torch.float64))
        random = torch.cat([mask.flatten() for mask in network.masks().values()])
        # Positions of the random elements among all elements of the selected tensors, concatenated.
        self._random = random.nonzero()[:, 0]
        # Index in θ of each random element.
        self._place = torch.cat([place.flatten() for place in places.values()])[self._random].long()
        values, dtype = network.tensors(network.theta), next(network.module.parameters()).dtype
        self._values = torch.cat([value.flatten() for value in values.values()]).to(dtype)
        pieces = self._values.split([value.numel() for value in values.values()])
        shaped = zip(values.items(), pieces, strict=True)
        self._leaves = {name: piece.view(value.shape).requires_grad_() for (name, value), piece in shaped}
        self._module = network.replica(self._leaves)
        self._theta = network.theta
        self._graph: tuple[Tensor, Tensor] | None = None

    def held(self, theta: Tensor) -> Tensor:
        """θ (P,) rounded to the dtype of the module, as float64."""
        return theta.to(self._values).double()

    def __call__(self, theta: Tensor) -> float:
        """Loss at the weights θ (P,). Costs one forward pass per batch."""
        self._theta, self._graph = theta, None
        self._values.index_copy_(0, self._random, theta[self._place].to(self._values))
        nll = torch.zeros((), dtype=torch.float64, device=theta.device)
        for inputs, targets, weights in self.batches:
            with torch.set_grad_enabled(len(self.batches) == 1):
                outputs = self._outputs(inputs)
            values = outputs.detach()
            nll += sum_of_rows(weights * self.likelihood.nll(values, targets))
            if len(self.batches) == 1:
                self._graph = outputs, self._cotangent(values, targets, weights)
        return float(nll) + (0.0 if self.past is None else self._of_past()[0])

    def gradient(self) -> Tensor:
        """Gradient (P,), float64, at the weights of the last call."""
        total = torch.zeros(len(self._values), dtype=torch.float64, device=self._values.device)
        if self._graph is not None:
            self._add_(total, *self._graph)
            self._graph = None
        else:
            for inputs, targets, weights in self.batches:
                outputs = self._outputs(inputs)
                self._add_(total, outputs, self._cotangent(outputs.detach(), targets, weights))
        gradient = torch.empty_like(self._theta, dtype=torch.float64)
        gradient[self._place] = total[self._random]
        return gradient if self.past is None else gradient + self._of_past()[1]

    def _outputs(self, inputs: Tensor) -> Tensor:
        return self.network.transform_outputs(self._module(inputs))

    def _cotangent(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return self.likelihood.residual(outputs, targets) * weights[:, None]

    def _add_(self, total: Tensor, outputs: Tensor, cotangent: Tensor) -> None:
        leaves = list(self._leaves.values())
        slopes = pulled_back(outputs, leaves, cotangent)
        total += torch.cat([slope.flatten() for slope in slopes])

    def _of_past(self) -> tuple[float, Tensor]:
        assert self.past is not None
        return self.past.quadratic_model(self._theta - self.past.theta)


@dataclass(frozen=True)
class Problem:
    """Inputs of a mode search: functions of the network, and callbacks."""

    linearise: Callable[[Network], LaplaceFit]  # a pass over the data, with the curvature
    loss: Callable[[Network], DataLoss]
    is_over: Callable[[], bool] = bool  # True if the search must stop; never by default
    advance: Callable[[float], object] = float  # receives the mean loss after each step; no effect by default


MAX_CORRECTION = 2.0
"""Largest decrement d in the correction ½ d² of the evidence for weights that have not quite converged."""


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

    @cached_property
    def evidence(self) -> float:
        """Log evidence, corrected for weights that have not quite converged. Costs one factorisation."""
        gradient, posterior = self.fit.objective_gradient(self.hyper), _posterior(self.fit, self.hyper)
        squared = float(gradient @ posterior.solve(gradient))
        return log_evidence(self.fit, self.hyper, posterior) + 0.5 * min(squared, MAX_CORRECTION**2)


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
    """Posterior whose precision matrix H/φ + (1 + μ) diag(δ) is factorised, at temperature 1; μ is ``damping``."""
    damped = replace(hyper, prior_precision=hyper.prior_precision * (1.0 + damping), temperature=1.0)
    return fit.posterior(damped, spectral=False)


MAX_TRIALS = 12
"""Maximum number of damping values tried in one Gauss–Newton step."""
MAX_DAMPING = 1e12
"""A Gauss–Newton step fails if the damping exceeds this value."""


@dataclass(frozen=True)
class Step:
    """Result of one damped Gauss–Newton step."""

    fit: LaplaceFit | None  # at the new weights; None if no damping lowered the objective
    damping: float  # μ for the next step
    decrement: float  # at the start of the step, in the damped metric


def gauss_newton_step(problem: Problem, fit: LaplaceFit, hyper: Hyper, damping: float) -> Step:
    """Damped Gauss–Newton step. The damping μ ≥ 0 is increased until the step lowers the objective."""
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
    """Damping for the next step: smaller if the quadratic model predicted the gain well, larger if it did not."""
    if gain > 0.75:
        damping /= 5.0
    elif gain < 0.25:
        damping = max(damping * 2.0, 1e-3)
    return 0.0 if damping < 1e-6 else damping


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
    """Mode found by L-BFGS at fixed hyperparameters, with a new linearisation at the final weights.

    The metric is the posterior of ``fit``, damped by μ if ``is_far`` or if the undamped first step lowers L too little.
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
    """Posterior that serves as the metric, damped if the full step lowers L too little, and P⁻¹ ∇L (P,)."""
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
    """Weights (P,), objective and step size for the first of ``size``, ``size``/2, … that lowers L enough; or None."""
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
