"""Log predictive density of held-out targets for each likelihood."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..laplace.latent import LatentGaussian
from ..laplace.leave_one_out.densities import Density, class_density, gaussian_density
from ..laplace.likelihoods._base import Likelihood, Link
from .negative_binomial_log_normal import counts_of


def density_of(likelihood: Likelihood, link: Link | None = None) -> Density:
    """Log predictive density of a target under the posterior without its row.

    Parameters
    ----------
    likelihood : Likelihood
        Determines the density if no link is given.
    link : Link, optional
        Link approximation of a classifier. If given, the density is the class probability.

    Returns
    -------
    Density
        Class probability with a link, normal density for a likelihood with dispersion, and the probability
        under a log-normal mean for counts; always as a logarithm, in nats.

    Examples
    --------
    >>> from sklearn_laplace.laplace.likelihoods import Gaussian, Poisson
    >>> density_of(Gaussian()) is gaussian_density
    True
    >>> latent = LatentGaussian(torch.zeros(1, 1).double(), torch.full((1, 1, 1), 1e-9).double())
    >>> density_of(Poisson())(latent, torch.zeros(1, 1), 1.0).round(decimals=6)  # e^{-1}
    tensor([-1.], dtype=torch.float64)
    """
    if link is not None:
        return class_density(likelihood, link)
    return gaussian_density if likelihood.has_dispersion else partial(_count_density, likelihood)


def _count_density(likelihood: Likelihood, latent: LatentGaussian, targets: Tensor, dispersion: float) -> Tensor:
    mean, variance = latent.mean.cpu().numpy(), latent.variance.cpu().numpy()
    log_probability = counts_of(likelihood, mean, variance).logpmf(targets.double().cpu().numpy())
    return torch.from_numpy(log_probability).sum(-1).to(latent.mean)
