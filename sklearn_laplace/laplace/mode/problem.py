r"""The MAP objective, and the definition of a mode search."""

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
    is_over: Callable[[], bool] = bool  # never  # True if the search must stop
    advance: Callable[[float], object] = float  # without effect  # gets the mean loss after each Gauss–Newton step


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
