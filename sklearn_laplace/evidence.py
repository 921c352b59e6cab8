r"""The Laplace approximation of the log evidence, its gradient and its Hessian. Pure: the data are not revisited.

.. math::

    \log p(D) \approx \sum_n w_n \log p(y_n | \theta^*) - \tfrac12 \big[ \log|P| - \log|P_0|
        + \theta^{*\top} P_0 \theta^* \big], \qquad P_0 = \mathrm{diag}(\delta)

(MacKay 1992, eq. 2.14 ff.; the 2π terms cancel). In the logarithms of the group precisions and of the dispersion φ it
is concave for fixed θ*, with (the φ row is for likelihoods that have a dispersion), for
:math:`t_g = \sum_{i\in g} \delta_i \Sigma_{ii}`,
:math:`S_{gh} = \sum_{i\in g, j\in h} \delta_i\delta_j\Sigma_{ij}^2`, :math:`\gamma = P - \sum_g t_g` and the curvature
scaling with :math:`\varphi^{-p}`:

.. math::

    \partial_{\log\delta_g} &= \tfrac12 (n_g - t_g - \delta_g\|\theta_g\|^2), &
    \partial^2_{\log\delta_g\log\delta_h} &= -\tfrac12 ([g=h](t_g + \delta_g\|\theta_g\|^2) - S_{gh}), \\
    \partial_{\log\varphi} &= E/\varphi - \tfrac12 N_w C + \tfrac12 p\gamma, &
    \partial^2_{\log\varphi\log\delta_g} &= -\tfrac12 p\,(t_g - \textstyle\sum_h S_{gh}), \\
    & & \partial^2_{\log\varphi} &= -E/\varphi - \tfrac12 p^2 \textstyle\sum_g (t_g - \sum_h S_{gh}).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .laplace import Hyper, LaplaceFit
from .structures._base import Posterior

PRECISION_BOUNDS = (1e-6, 1e8)
"""Search interval of a prior precision; the network's inputs and targets are of order one."""


def log_evidence(fit: LaplaceFit, hyper: Hyper, posterior: Posterior | None = None) -> float:
    """Log marginal likelihood of the training targets, nats, in the network's target units.

    Costs what the structure's posterior costs; with one prior precision, and a structure that has its spectrum, O(P)
    once the eigenvalues are there; nothing where the posterior for the same ``hyper`` is given.
    """
    theta, delta = fit.theta, hyper.prior_precision
    if posterior is not None:
        logdet = posterior.logdet_precision()
    elif fit.prior.n_groups == 1 and fit.curvature.has_spectrum:
        logdet = (hyper.scale(fit.dispersion_power) * fit.curvature.eigenvalues() + delta).log().sum()
    else:
        logdet = fit.posterior(hyper).logdet_precision()
    occam = logdet - fit.prior.logdet(delta) + fit.prior.quadratic(delta, theta)
    return fit.log_likelihood(hyper) - 0.5 * float(occam)


def effective_parameters(fit: LaplaceFit, hyper: Hyper, posterior: Posterior | None = None) -> float:
    """MacKay's γ = Σ λ/(λ + δ): how many parameters the data determine, between 0 and P."""
    posterior = posterior or fit.posterior(hyper)
    shrinkage = posterior.shrinkage(fit.prior.groups, fit.prior.n_groups)
    return float(fit.prior.counts.sum() - shrinkage.sum())


@dataclass(frozen=True)
class EvidenceDerivatives:
    """Gradient and Hessian in (log δ_1, …, log δ_G, log φ).

    Parameters
    ----------
    gradient : Tensor of shape (G + 1,)
    hessian : Tensor of shape (G + 1, G + 1)
        Negative semi-definite.
    """

    gradient: Tensor
    hessian: Tensor


def evidence_derivatives(fit: LaplaceFit, hyper: Hyper) -> EvidenceDerivatives:
    """Exact derivatives of :func:`log_evidence` at fixed weights, for every structure."""
    first, second = prior_statistics(fit, hyper)
    power, delta = fit.dispersion_power, hyper.prior_precision
    counts = fit.prior.counts.to(delta.device)
    penalty = delta * fit.prior.group_sums(fit.theta.square())
    energy = fit.nll / hyper.dispersion
    mixed = first - second.sum(1)
    gamma = (counts - first).sum()
    slope = energy - 0.5 * fit.total_weight * fit.n_outputs + 0.5 * power * gamma
    if not fit.likelihood.has_dispersion:
        slope = slope * 0
    gradient = torch.cat([0.5 * (counts - first - penalty), slope[None]])
    hessian = torch.zeros(len(gradient), len(gradient), dtype=torch.float64, device=delta.device)
    hessian[:-1, :-1] = -0.5 * (torch.diag(first + penalty) - second)
    hessian[:-1, -1] = hessian[-1, :-1] = -0.5 * power * mixed
    hessian[-1, -1] = -energy - 0.5 * power**2 * mixed.sum()
    return EvidenceDerivatives(gradient, hessian)


def prior_statistics(fit: LaplaceFit, hyper: Hyper) -> tuple[Tensor, Tensor]:
    """The t (G,) and S (G, G) of the module's formulas; by the eigenvalues alone when there is one precision."""
    if fit.prior.n_groups > 1 or not fit.curvature.has_spectrum:
        return fit.posterior(hyper).prior_statistics(fit.prior.groups, fit.prior.n_groups)
    delta = hyper.prior_precision
    share = delta / (hyper.scale(fit.dispersion_power) * fit.curvature.eigenvalues() + delta)
    return share.sum()[None], share.square().sum()[None, None]


def mackay_fixed_point(fit: LaplaceFit, hyper: Hyper, posterior: Posterior | None = None) -> Hyper:
    r"""MacKay's (1992, eq. 4.9 and 4.10) re-estimates, within the bounds.

    :math:`\delta_g = \gamma_g/\|\theta_g\|^2` and :math:`\varphi = 2E/(N_w C - p\gamma)`, with γ the effective number
    of parameters under the present values. The optimum of the evidence at these weights is their fixed point.
    """
    posterior = posterior or fit.posterior(hyper, spectral=False)
    shrinkage = posterior.shrinkage(fit.prior.groups, fit.prior.n_groups)
    gamma = (fit.prior.counts.to(shrinkage.device) - shrinkage).clamp_min(1e-10)
    squares = fit.prior.group_sums(fit.theta.square()).clamp_min(1e-300)
    dispersion = hyper.dispersion
    if fit.likelihood.has_dispersion:
        freedom = max(fit.total_weight * fit.n_outputs - fit.dispersion_power * float(gamma.sum()), 0.5)
        low, high = fit.likelihood.dispersion_bounds
        dispersion = min(max(2 * fit.nll / freedom, low), high)
    return replace(hyper, prior_precision=(gamma / squares).clamp(*PRECISION_BOUNDS), dispersion=dispersion)
