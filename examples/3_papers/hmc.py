r"""Hamiltonian Monte Carlo, several chains side by side: the reference that approximations are held against.

A chain's state θ gets a momentum p ~ N(0, I), and both follow the Hamiltonian
:math:`H = -\log\pi(\theta) + \tfrac12 p^\top p` for a while by leapfrog steps of size ε (Neal 2011, eq. 2.28–2.30); the
end is accepted with probability :math:`\min(1, e^{-\Delta H})`. The number of steps is drawn each time, so that no
direction is periodic. During the warm-up ε moves by dual averaging to a mean acceptance that is asked for (Hoffman &
Gelman 2014, §3.2); afterwards it is fixed, one for all chains. Symbols: C chains, P parameters, n draws. Nothing here
knows of networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LogDensity = Callable[[Tensor], Tensor]
"""From states (C, P) to log densities (C,), up to a constant."""
JITTER = 0.5
"""Trajectories are path_length · U(1 − JITTER, 1 + JITTER) long."""


@dataclass(frozen=True)
class Draws:
    """What the chains have visited after the warm-up.

    Parameters
    ----------
    theta : Tensor of shape (n, C, P)
    acceptance : Tensor of shape (C,)
        Mean acceptance probability of each chain.
    step_size : float
    """

    theta: Tensor
    acceptance: Tensor
    step_size: float


def sample(
    log_density: LogDensity,
    start: Tensor,
    n_draws: int,
    n_warmup: int,
    path_length: float,
    generator: torch.Generator,
    target: float = 0.8,
    step_size: float = 0.01,
) -> Draws:
    """Run the chains: (n_warmup + n_draws) · path_length / ε gradients of all of them together.

    Parameters
    ----------
    log_density : callable
    start : Tensor of shape (C, P)
    n_draws, n_warmup : int
        Draws of each chain, and iterations before them that choose ε.
    path_length : float
        Mean length of a trajectory, in units of θ.
    generator : torch.Generator
    target : float
        Mean acceptance probability that the warm-up aims at.
    step_size : float
        ε to begin with.
    """
    theta, averaging, accepted, kept = start, DualAveraging(step_size, target), [], []
    value, gradient = value_and_gradient(log_density, theta)
    for iteration in range(n_warmup + n_draws):
        step = averaging.step_size if iteration < n_warmup else averaging.final_step_size
        length = path_length * (1 + JITTER * (2 * float(torch.rand((), generator=generator)) - 1))
        momentum = torch.randn(theta.shape, generator=generator, dtype=theta.dtype)
        n_steps = max(round(length / step), 1)
        new, new_momentum, new_value, new_gradient = leapfrog(log_density, theta, momentum, gradient, step, n_steps)
        gain = new_value - value - (new_momentum.square() - momentum.square()).sum(-1) / 2  # −ΔH
        probability = gain.nan_to_num(nan=-math.inf).clamp(max=0.0).exp()
        taken = torch.rand(len(theta), generator=generator, dtype=theta.dtype) < probability
        theta = torch.where(taken[:, None], new, theta)
        gradient = torch.where(taken[:, None], new_gradient, gradient)
        value = torch.where(taken, new_value, value)
        if iteration < n_warmup:
            averaging.update(float(probability.mean()))
        else:
            kept.append(theta)
            accepted.append(probability)
    return Draws(torch.stack(kept), torch.stack(accepted).mean(0), averaging.final_step_size)


def value_and_gradient(log_density: LogDensity, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Log densities (C,) and their gradients (C, P)."""
    theta = theta.detach().requires_grad_()
    value = log_density(theta)
    (gradient,) = torch.autograd.grad(value.sum(), theta)
    return value.detach(), gradient


def leapfrog(
    log_density: LogDensity, theta: Tensor, momentum: Tensor, gradient: Tensor, step: float, n_steps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """θ, p, log density and gradient after n_steps; the gradient at the start is given. One gradient a step."""
    momentum = momentum + step / 2 * gradient
    for taken in range(1, n_steps + 1):
        theta = theta + step * momentum
        value, gradient = value_and_gradient(log_density, theta)
        momentum = momentum + (step if taken < n_steps else step / 2) * gradient
    return theta, momentum, value, gradient


class DualAveraging:
    """The step size whose mean acceptance is the target, by stochastic approximation in log ε (their Alg. 5).

    Parameters
    ----------
    step_size : float
        To begin with.
    target : float
    """

    shrinkage, delay, decay = 0.05, 10.0, 0.75  # γ, t₀, κ of theirs

    def __init__(self, step_size: float, target: float) -> None:
        self.target, self.centre = target, math.log(10 * step_size)
        self.step_size = self.final_step_size = step_size
        self.error, self.count = 0.0, 0

    def update(self, acceptance: float) -> None:
        """Take in the mean acceptance of an iteration."""
        self.count += 1
        share = 1 / (self.count + self.delay)
        self.error += share * (self.target - acceptance - self.error)
        self.step_size = math.exp(self.centre - math.sqrt(self.count) / self.shrinkage * self.error)
        weight = self.count**-self.decay
        self.final_step_size **= 1 - weight
        self.final_step_size *= self.step_size**weight


def split_r_hat(draws: Tensor) -> Tensor:
    """How far chains, cut in two, are from agreeing (Gelman et al. 2013, eq. 11.4): 1 when they do.

    Parameters
    ----------
    draws : Tensor of shape (n, C, …)
        Of any function of the state, n ≥ 4.

    Returns
    -------
    Tensor of shape (…)
    """
    half = len(draws) // 2
    chains = torch.cat([draws[:half], draws[-half:]], 1)
    within = chains.var(0).mean(0)
    return ((half - 1) / half + chains.mean(0).var(0) / within).sqrt()
