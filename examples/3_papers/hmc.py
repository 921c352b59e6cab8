r"""Hamiltonian Monte Carlo with several parallel chains, the reference for the approximations.

A chain's state θ gets a momentum p ~ N(0, I). Both follow the Hamiltonian
:math:`H = -\log\pi(\theta) + \tfrac12 p^\top p` in leapfrog steps of size ε (Neal 2011, eq. 2.28–2.30). The end point
is accepted with probability :math:`\min(1, e^{-\Delta H})`. The number of steps is drawn for each trajectory, so that
no direction is periodic. During the warm-up, dual averaging adapts ε to the target mean acceptance (Hoffman & Gelman
2014, §3.2). In the first half of the warm-up, each chain has a separate ε, so that a chain can leave a steep starting
region. In the second half, all chains share one ε, which is fixed afterwards. Symbols: C chains, P parameters, n draws.
This module does not depend on networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Density = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Function that returns the log densities (C,) of states (C, P), up to a constant, and their gradients (C, P)."""
JITTER = 0.5
"""Trajectories have the length path_length · U(1 − JITTER, 1 + JITTER)."""


@dataclass(frozen=True)
class Draws:
    """States of the chains after the warm-up.

    Parameters
    ----------
    theta : ndarray of shape (n, C, P)
    acceptance : ndarray of shape (C,)
        Mean acceptance probability of each chain.
    step_size : float
    """

    theta: np.ndarray
    acceptance: np.ndarray
    step_size: float


def sample(
    density: Density,
    start: np.ndarray,
    n_draws: int,
    n_warmup: int,
    path_length: float,
    rng: np.random.Generator,
    target: float = 0.8,
    step_size: float = 0.01,
) -> Draws:
    """Run the chains and return their draws, with about (n_warmup + n_draws) · path_length / ε gradients per chain.

    Parameters
    ----------
    density : callable
    start : ndarray of shape (C, P)
    n_draws, n_warmup : int
        Draws of each chain, and preceding iterations that adapt ε (a few hundred).
    path_length : float
        Mean length of a trajectory, in units of θ.
    rng : numpy.random.Generator
    target : float
        Mean acceptance probability that the warm-up aims at.
    step_size : float
        Initial ε.
    """
    theta, averaging, accepted, kept = start, DualAveraging(np.full(len(start), step_size), target), [], []
    value, gradient = density(theta)
    for iteration in range(n_warmup + n_draws):
        if iteration == n_warmup // 2:
            averaging = DualAveraging(np.median(averaging.final_step_size, keepdims=True), target)
        step = averaging.step_size if iteration < n_warmup else averaging.final_step_size
        n_steps = max(round(path_length * rng.uniform(1 - JITTER, 1 + JITTER) / np.median(step)), 1)
        momentum = rng.normal(size=theta.shape)
        with np.errstate(over="ignore", invalid="ignore"):  # a trajectory that diverges is rejected
            new, new_momentum, new_value, new_gradient = leapfrog(density, theta, momentum, gradient, step, n_steps)
            gain = new_value - value - (new_momentum**2 - momentum**2).sum(-1) / 2  # −ΔH
        probability = np.exp(np.minimum(np.nan_to_num(gain, nan=-np.inf), 0.0))
        taken = rng.uniform(size=len(theta)) < probability
        theta = np.where(taken[:, None], new, theta)
        gradient = np.where(taken[:, None], new_gradient, gradient)
        value = np.where(taken, new_value, value)
        if iteration < n_warmup:
            averaging.update(probability if iteration < n_warmup // 2 else probability.mean(keepdims=True))
        else:
            kept.append(theta)
            accepted.append(probability)
    return Draws(np.stack(kept), np.mean(accepted, 0), averaging.final_step_size.item())


def leapfrog(
    density: Density, theta: np.ndarray, momentum: np.ndarray, gradient: np.ndarray, step: np.ndarray, n_steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return θ, p, log density and gradient after n_steps steps of sizes (C,) or (1,), given the initial gradient."""
    step = step[:, None]
    momentum = momentum + step / 2 * gradient
    for taken in range(1, n_steps + 1):
        theta = theta + step * momentum
        value, gradient = density(theta)
        momentum = momentum + (step if taken < n_steps else step / 2) * gradient
    return theta, momentum, value, gradient


class DualAveraging:
    """Step sizes with the target mean acceptance, by stochastic approximation in log ε (Hoffman & Gelman, Alg. 5).

    Parameters
    ----------
    step_size : ndarray of shape (C,) or (1,)
        Initial values.
    target : float
    """

    shrinkage, delay, decay = 0.05, 10.0, 0.75  # γ, t₀, κ of Hoffman & Gelman

    def __init__(self, step_size: np.ndarray, target: float) -> None:
        self.target, self.centre = target, np.log(10 * step_size)
        self.step_size = self.final_step_size = step_size
        self.error, self.count = np.zeros_like(step_size), 0

    def update(self, acceptance: np.ndarray) -> None:
        """Update with the acceptance probabilities of an iteration, in the shape of the step sizes."""
        self.count += 1
        share = 1 / (self.count + self.delay)
        self.error = self.error + share * (self.target - acceptance - self.error)
        self.step_size = np.exp(self.centre - math.sqrt(self.count) / self.shrinkage * self.error)
        weight = self.count**-self.decay
        self.final_step_size = self.final_step_size ** (1 - weight) * self.step_size**weight


def split_r_hat(draws: np.ndarray) -> np.ndarray:
    """Return split R-hat, the disagreement of half chains (Gelman et al. 2013, eq. 11.4): 1 if the halves agree.

    Parameters
    ----------
    draws : ndarray of shape (n, C, …)
        Draws of any function of the state, n ≥ 4.

    Returns
    -------
    ndarray of shape (…)
    """
    half = len(draws) // 2
    chains = np.concatenate([draws[:half], draws[-half:]], 1)
    within = chains.var(0, ddof=1).mean(0)
    return np.sqrt((half - 1) / half + chains.mean(0).var(0, ddof=1) / within)
