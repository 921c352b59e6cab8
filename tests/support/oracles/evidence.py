"""Laplace evidence, its gradient by finite differences, and its numerical optimum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.integrate
import scipy.optimize
import scipy.special
import scipy.stats
import torch
from torch import Tensor

from .curvature import posterior_precision
from .functions import _vector


def log_evidence(
    log_lik_sum: float | Tensor,
    H: Tensor,
    delta: float | Tensor,
    scale: float | Tensor,
    theta: Tensor,
    prior_mean: float | Tensor = 0.0,
) -> Tensor:
    r"""Laplace approximation of the log marginal likelihood, in nats.

    .. math:: \log p(D\mid\theta) - \tfrac12[\log|P| - \log|P_0|
              + (\theta-\mu_0)^\top P_0(\theta-\mu_0)]

    Parameters
    ----------
    log_lik_sum : float
        Sum of w_n log p(y_n | theta), constants included, at the noise variance behind ``scale``.
    H : Tensor of shape (P, P)
        Curvature at unit dispersion.
    delta : float or Tensor of shape (P,)
    scale : float
        Factor on H: 1 / noise_variance for gaussian.
    theta : Tensor of shape (P,)
    prior_mean : float or Tensor of shape (P,)

    Returns
    -------
    Tensor, scalar
    """
    diagonal = _vector(delta).expand(len(H))  # of P_0
    sign, logdet = torch.linalg.slogdet(posterior_precision(H, delta, scale))
    if sign <= 0 or (diagonal <= 0).any():
        raise ValueError("a precision matrix is not positive definite")
    away = theta - _vector(prior_mean)
    return log_lik_sum - 0.5 * (logdet - diagonal.log().sum() + (diagonal * away**2).sum())


def evidence_gradient_by_differences(
    fn: Callable[[Tensor], float | Tensor], log_params: Tensor, eps: float = 1e-5
) -> Tensor:
    """Central differences of a scalar function, (fn(v + eps e_k) - fn(v - eps e_k)) / (2 eps).

    Parameters
    ----------
    fn : callable, (k,) -> scalar
    log_params : Tensor of shape (k,)
    eps : float
        Truncation grows with eps**2, rounding with |fn| * 1e-16 / eps.

    Returns
    -------
    Tensor of shape (k,)
    """
    steps = eps * torch.eye(len(log_params), dtype=torch.float64)
    slopes = [(float(fn(log_params + s)) - float(fn(log_params - s))) / (2 * eps) for s in steps]
    return torch.tensor(slopes, dtype=torch.float64)


def numerical_optimum(fn: Callable[[Tensor], float | Tensor], x0: Sequence[float] | Tensor) -> tuple[Tensor, float]:
    """Maximise a smooth scalar function of a few variables without derivatives.

    Nelder-Mead, restarted at its result until the value no longer improves.

    Parameters
    ----------
    fn : callable, (k,) -> scalar
    x0 : sequence of k floats

    Returns
    -------
    argument : Tensor of shape (k,)
        Good to about 1e-7, the square root of rounding; the value's own accuracy is full.
    value : float

    Raises
    ------
    RuntimeError
        If twenty restarts still improve the value.
    """
    x, best = np.asarray(x0, dtype=np.float64), -math.inf
    options = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 20_000, "maxfev": 20_000}
    for _ in range(20):
        result = scipy.optimize.minimize(
            lambda v: -float(fn(torch.tensor(v, dtype=torch.float64))),
            x,
            method="Nelder-Mead",
            options=options,
        )
        improved = -float(result.fun) > best + 1e-12 * max(1.0, abs(float(result.fun)))
        x, best = result.x, max(best, -float(result.fun))
        if not improved:
            return torch.tensor(x, dtype=torch.float64), best
    raise RuntimeError("no maximum found: is the function bounded above?")


def target_levels(errors, variance, weights, dispersion):
    """Noise variance of each target in units of φ, by a fine grid: normal errors of variance s V + φ r."""
    rough = (weights @ errors**2) / weights.sum() / dispersion
    variance = variance * np.minimum(1.0, np.sqrt(rough))
    grid = np.exp(np.linspace(np.log(1e-4), np.log(1e3), 20_001))
    levels = []
    for e, v in zip(errors.T, variance.T, strict=True):
        nll = [weights @ (np.log(v + dispersion * r) + e**2 / (v + dispersion * r)) for r in grid]
        levels.append(grid[int(np.argmin(nll))])
    return np.array(levels)
