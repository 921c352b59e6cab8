r"""Laplace approximation of the log evidence, its gradient and its Hessian, from the sums stored in a fit.

.. math::

    \log p(D) \approx \sum_n w_n \log p(y_n | \theta^*) - \tfrac12 \big[ \log|P| - \log|P_0|
        + (\theta^* - \mu_0)^\top P_0 (\theta^* - \mu_0) \big], \qquad P_0 = \mathrm{diag}(\delta)

(MacKay 1992, eq. 2.14 ff.; the 2π terms cancel). For fixed θ*, the evidence is concave in the logarithms of the group
precisions and of the dispersion φ. Let Σ be the posterior covariance, :math:`t_g = \sum_{i\in g} \delta_i
\Sigma_{ii}`, :math:`S_{gh} = \sum_{i\in g, j\in h} \delta_i\delta_j\Sigma_{ij}^2` and :math:`\gamma = P - \sum_g
t_g`, where P is the number of weights, not the precision. Group g has :math:`n_g` weights. Let E be the loss at unit
dispersion, :math:`N_w` the total weight of the rows and C the number of outputs. The curvature scales with
:math:`\varphi^{-p}`. For a likelihood with a dispersion, the derivatives are

.. math::

    \partial_{\log\delta_g} &= \tfrac12 (n_g - t_g - \delta_g\|\theta_g - \mu_g\|^2), &
    \partial^2_{\log\delta_g\log\delta_h} &= -\tfrac12 ([g=h](t_g + \delta_g\|\theta_g - \mu_g\|^2) - S_{gh}), \\
    \partial_{\log\varphi} &= E/\varphi - \tfrac12 N_w C + \tfrac12 p\gamma, &
    \partial^2_{\log\varphi\log\delta_g} &= -\tfrac12 p\,(t_g - \textstyle\sum_h S_{gh}), \\
    & & \partial^2_{\log\varphi} &= -E/\varphi - \tfrac12 p^2 \textstyle\sum_g (t_g - \sum_h S_{gh}).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .fit import Hyper, LaplaceFit
from .structures._base import Posterior

PRECISION_BOUNDS = (1e-6, 1e8)
"""Search interval of a prior precision, for network inputs and targets of order one."""


def log_evidence(fit: LaplaceFit, hyper: Hyper, posterior: Posterior | None = None) -> float:
    """Log marginal likelihood of the training targets, nats, in the network's target units."""
    theta, delta = fit.theta, hyper.prior_precision
    if posterior is not None:
        logdet = posterior.logdet_precision()
    elif hyper.is_uniform and fit.curvature.has_spectrum:
        logdet = (hyper.scale(fit.dispersion_power) * fit.curvature.eigenvalues() + delta).log().sum()
    else:
        logdet = fit.posterior(hyper).logdet_precision()
    occam = logdet - fit.prior.logdet(delta) + fit.prior.quadratic(delta, theta)
    return fit.log_likelihood(hyper) - 0.5 * float(occam)


def effective_parameters(fit: LaplaceFit, hyper: Hyper, posterior: Posterior | None = None) -> float:
    """MacKay's effective number of parameters γ. For one δ, it is Σ λ/(λ + δ), with λ the eigenvalues of P − P₀."""
    posterior = posterior or fit.posterior(hyper)
    one_group = torch.zeros_like(fit.prior.groups)  # cheaper than several groups, which can need a matrix each
    return float(fit.prior.counts.sum() - posterior.shrinkage(one_group, 1)[0])


@dataclass(frozen=True)
class EvidenceDerivatives:
    """Gradient and Hessian of the log evidence with respect to (log δ_1, …, log δ_G, log φ)."""

    gradient: Tensor  # (G + 1,)
    hessian: Tensor  # (G + 1, G + 1), negative semi-definite; or a diagonal, (G + 1,)


def evidence_derivatives(fit: LaplaceFit, hyper: Hyper) -> EvidenceDerivatives:
    """Exact derivatives of :func:`log_evidence` at fixed weights, for every structure."""
    first, second = prior_statistics(fit, hyper)
    power, gradient = fit.dispersion_power, _gradient(fit, hyper, first)
    penalty = hyper.prior_precision * fit.prior.squares(fit.theta)
    mixed = first - second.sum(1)
    hessian = torch.zeros(len(gradient), len(gradient), dtype=torch.float64, device=gradient.device)
    hessian[:-1, :-1] = -0.5 * (torch.diag(first + penalty) - second)
    hessian[:-1, -1] = hessian[-1, :-1] = -0.5 * power * mixed
    hessian[-1, -1] = -fit.nll / hyper.dispersion - 0.5 * power**2 * mixed.sum()
    return EvidenceDerivatives(gradient, hessian)


def diagonal_derivatives(fit: LaplaceFit, hyper: Hyper) -> EvidenceDerivatives:
    r"""Exact gradient, and a bound on the Hessian's diagonal that does not need S, for many groups.

    Each entry of the bound is at least as large in magnitude as the exact one: :math:`S_{gg} \ge t_g^2/n_g`
    (with equality if every weight is its own group), and :math:`\sum_g (t_g - \sum_h S_{gh}) \le \gamma`.
    """
    delta = hyper.prior_precision
    first = fit.posterior(hyper, spectral=False).shrinkage(fit.prior.groups, fit.prior.n_groups)
    counts = fit.prior.counts.to(delta.device)
    groups = 0.5 * (first + delta * fit.prior.squares(fit.theta) - first.square() / counts)
    dispersion = fit.nll / hyper.dispersion + 0.5 * fit.dispersion_power**2 * (counts - first).sum()
    return EvidenceDerivatives(_gradient(fit, hyper, first), -torch.cat([groups, dispersion[None]]))


def _gradient(fit: LaplaceFit, hyper: Hyper, first: Tensor) -> Tensor:
    counts = fit.prior.counts.to(first.device)
    gamma = (counts - first).sum()
    penalty = hyper.prior_precision * fit.prior.squares(fit.theta)
    data = fit.nll / hyper.dispersion - 0.5 * fit.total_weight * fit.n_outputs
    slope = (data + 0.5 * fit.dispersion_power * gamma) * fit.likelihood.has_dispersion
    return torch.cat([0.5 * (counts - first - penalty), slope[None]])


def prior_statistics(fit: LaplaceFit, hyper: Hyper) -> tuple[Tensor, Tensor]:
    """Statistics t (G,) and S (G, G) of the module docstring. For one prior precision, eigenvalues of H can suffice."""
    if not (hyper.is_uniform and fit.curvature.has_spectrum):
        return fit.posterior(hyper).prior_statistics(fit.prior.groups, fit.prior.n_groups)
    delta = hyper.prior_precision
    share = delta / (hyper.scale(fit.dispersion_power) * fit.curvature.eigenvalues() + delta)
    return share.sum()[None], share.square().sum()[None, None]


def mackay_fixed_point(fit: LaplaceFit, hyper: Hyper) -> Hyper:
    r"""Re-estimated hyperparameters (MacKay 1992, eq. 4.9 and 4.10), clipped to the search bounds.

    :math:`\delta_g = \gamma_g/\|\theta_g - \mu_g\|^2` and :math:`\varphi = 2E/(N_w C - p\gamma)`, with
    :math:`\gamma_g = n_g - t_g` under the current values, and γ their sum.
    """
    shrinkage = fit.posterior(hyper, spectral=False).shrinkage(fit.prior.groups, fit.prior.n_groups)
    gamma = (fit.prior.counts.to(shrinkage.device) - shrinkage).clamp_min(1e-10)
    squares = fit.prior.squares(fit.theta).clamp_min(1e-300)
    precision = (gamma / squares).clamp(*PRECISION_BOUNDS)
    return replace(hyper, prior_precision=precision, dispersion=_mackay_dispersion(fit, hyper, float(gamma.sum())))


def mackay_dispersion(fit: LaplaceFit, hyper: Hyper) -> Hyper:
    """Return ``hyper`` with φ updated as in :func:`mackay_fixed_point`. The update needs only γ, not each γ_g."""
    gamma = effective_parameters(fit, hyper, fit.posterior(hyper, spectral=False))
    return replace(hyper, dispersion=_mackay_dispersion(fit, hyper, max(gamma, 1e-10)))


def _mackay_dispersion(fit: LaplaceFit, hyper: Hyper, gamma: float) -> float:
    if not fit.likelihood.has_dispersion:
        return hyper.dispersion
    freedom = max(fit.total_weight * fit.n_outputs - fit.dispersion_power * gamma, 0.5)
    low, high = fit.likelihood.dispersion_bounds
    return min(max(2 * fit.nll / freedom, low), high)


def residual_dispersion(fit: LaplaceFit, hyper: Hyper) -> Hyper:
    """Return ``hyper`` with the maximum-likelihood φ = 2E / (N_w C) within its bounds, if there is a dispersion."""
    if not fit.likelihood.has_dispersion:
        return hyper
    value = 2 * fit.nll / (fit.total_weight * fit.n_outputs)
    low, high = fit.likelihood.dispersion_bounds
    return replace(hyper, dispersion=min(max(value, low), high))
