r"""The mode of the linearised network, at which leave-one-out is exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from ..curvatures import GGN
from ..fit import Hyper, LaplaceFit, Rows, fit_laplace
from ..linalg import TOLERANCE, conjugate_gradients
from ..structures._base import Curvature
from .rows import LinearRows, linear_rows

MAX_STEPS, MAX_HALVINGS = 50, 25
DECREMENT = 1e-10
"""A mode is found when the Newton decrement falls below this many posterior standard deviations."""
ROUNDING = 1e-14
"""Changes of the objective below this part of it are none."""
LOOSE = 0.01
"""Tolerance of a Newton step's system far from the mode; nearer it is the decrement, for quadratic convergence."""


def linearised_mode(fit: LaplaceFit, batches: Iterable[Rows], hyper: Hyper) -> LaplaceFit:
    r"""The fit at the mode of the linearised network under other hyperparameters.

    Newton's method on :math:`\sum_n w_n\,\mathrm{nll}(f_n(\theta))/\varphi + \tfrac12(\theta - \mu_0)^\top
    \mathrm{diag}(\delta)(\theta - \mu_0)`; one step where the likelihood is Gaussian. Gradient and curvature are exact
    whatever the structure: the steps are solved by conjugate gradients, and the fit's posterior is the preconditioner
    only.

    Parameters
    ----------
    fit : LaplaceFit
        Any structure and rule; the search starts at its mean.
    batches : iterable of (inputs, targets, weights)
        All rows of the fit.
    hyper : Hyper
        The temperature does not enter.

    Returns
    -------
    LaplaceFit
        With the way from θ* as its shift, and loss, gradient and curvature as they are there (an exact Hessian stays
        that of the network at θ*).

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> from sklearn_laplace.laplace.likelihoods import Gaussian
    >>> from sklearn_laplace.laplace.structures import Full
    >>> network = trace(torch.nn.Linear(1, 1, bias=False).double(), torch.ones(1, 1).double())
    >>> batches = [(torch.ones(1, 1).double(), 3 * torch.ones(1, 1).double(), torch.ones(1).double())]
    >>> fit = fit_laplace(network, Gaussian(), GGN(), Full, network.scalar_prior(), batches)
    >>> found = linearised_mode(fit, batches, Hyper(torch.ones(1).double(), dispersion=0.5))
    >>> round(float(found.theta), 9)  # the target with precision 2, the prior's 0 with precision 1
    2.0
    """
    return _settled(fit, linear_rows(fit.network, batches), batches, hyper)


def _settled(fit: LaplaceFit, rows: Iterable[LinearRows], batches: Iterable[Rows], hyper: Hyper) -> LaplaceFit:
    hyper = replace(hyper, temperature=1.0)
    seen = float(torch.stack([part.weights.sum() for part in rows]).sum())
    if not math.isclose(seen, fit.total_weight, rel_tol=1e-6):
        raise ValueError(
            f"the batches weigh {seen:g} together and the rows of the fit {fit.total_weight:g}: leave-one-out needs "
            "all rows of the fit, those of a previous posterior too."
        )
    metric = fit.posterior(hyper)
    delta = fit.prior.precision(hyper.prior_precision)
    here = _at(fit, rows, torch.zeros_like(fit.network.theta) if fit.shift is None else fit.shift)
    moved, before = False, math.inf
    for _ in range(MAX_STEPS):
        gradient = here.objective_gradient(hyper)
        decrement = math.sqrt(max(float(gradient @ metric.solve(gradient)), 0.0))
        if decrement <= DECREMENT:
            break
        tolerance = 0.0 if fit.likelihood.quadratic else min(LOOSE, decrement)
        system = _system(here, rows, hyper.dispersion, delta)
        step = -conjugate_gradients(system, gradient, metric.solve, max(tolerance, TOLERANCE))
        following = _descend(here, rows, hyper, step, float(gradient @ step))
        if following is None or (following[1] and decrement > 0.25 * before):
            break
        here, moved, before = following[0], True, decrement
    if not moved:
        return replace(here, shift=fit.shift)
    return replace(here, curvature=_curvature_at(fit, batches, here.shift))


def _at(fit: LaplaceFit, rows: Iterable[LinearRows], shift: Tensor) -> LaplaceFit:
    """Loss and gradient of the linearised network at a shift; the curvature as it was."""
    gradient, nll = torch.zeros_like(shift), torch.zeros((), dtype=torch.float64, device=shift.device)
    for part in rows:
        outputs = part.at(shift)
        pull = fit.likelihood.residual(outputs, part.targets) * part.weights[:, None]
        gradient += part.jacobian.transposed_times(pull[..., None])[:, 0]
        nll += part.weights @ fit.likelihood.nll(outputs, part.targets)
    return replace(fit, nll=float(nll), gradient=gradient, shift=shift)


def _system(
    fit: LaplaceFit, rows: Iterable[LinearRows], dispersion: float, delta: Tensor
) -> Callable[[Tensor], Tensor]:
    """H/φ + diag(δ) times a vector, with the exact H of the rows at the fit's shift."""
    factors = [part.factor(GGN(), fit.likelihood, part.at(fit.shift)) for part in rows]

    def times(vector: Tensor) -> Tensor:
        found = delta * vector
        for part, factor in zip(rows, factors, strict=True):
            bent = factor @ (factor.mT @ part.jacobian.times(vector[:, None]))
            found = found + part.jacobian.transposed_times(bent)[:, 0] / dispersion
        return found

    return times


def _descend(
    fit: LaplaceFit, rows: Iterable[LinearRows], hyper: Hyper, step: Tensor, slope: float
) -> tuple[LaplaceFit, bool] | None:
    """The first of step, step/2, … that lowers the objective, and whether by rounding alone; None when none does."""
    assert fit.shift is not None
    value = fit.objective(hyper)
    rounding = ROUNDING * (abs(value) + 1.0)
    for power in range(MAX_HALVINGS):
        size = 0.5**power
        found = _at(fit, rows, fit.shift + size * step)
        reached = found.objective(hyper)
        if math.isfinite(reached) and reached <= value + 1e-4 * size * slope + rounding:
            return found, value - reached <= rounding
    return None


def _curvature_at(fit: LaplaceFit, batches: Iterable[Rows], shift: Tensor | None) -> Curvature:
    """The fit's curvature with the linearised network at another shift (P,): one pass where that makes a difference."""
    constant = fit.likelihood.quadratic and isinstance(fit.rule, GGN)
    if constant or shift is fit.shift or "rows" not in fit.rule.provides:
        return fit.curvature
    found = fit_laplace(
        fit.network,
        fit.likelihood,
        fit.rule,
        type(fit.curvature),
        fit.prior,
        batches,
        like=fit.curvature,
        shift=shift,
    )
    return found.curvature
