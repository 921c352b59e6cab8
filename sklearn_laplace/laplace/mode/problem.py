r"""The objective whose minimum is the mode."""

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
"""A mode is found when the Newton decrement falls below this many posterior standard deviations."""


@dataclass(frozen=True)
class Problem:
    """The data behind a mode search, as two functions of the network.

    Parameters
    ----------
    linearise : callable
        Network → LaplaceFit: a pass over the data with curvature.
    loss : callable
        Network → :class:`~sklearn_laplace.laplace.mode.DataLoss`, the data's loss as a function of the weights.
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


def newton_decrement(fit: LaplaceFit, hyper: Hyper) -> float:
    """√(∇Lᵀ P⁻¹ ∇L) at the fit's weights, by one solve with the posterior at temperature 1."""
    gradient = fit.objective_gradient(hyper)
    return math.sqrt(max(float(gradient @ _posterior(fit, hyper).solve(gradient)), 0.0))


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


def _posterior(fit: LaplaceFit, hyper: Hyper, damping: float = 0.0) -> Posterior:
    """H/φ + (1 + μ) diag(δ), factorised, at temperature 1."""
    damped = replace(hyper, prior_precision=hyper.prior_precision * (1.0 + damping), temperature=1.0)
    return fit.posterior(damped, spectral=False)
