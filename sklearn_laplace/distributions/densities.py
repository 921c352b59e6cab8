"""Log predictive density of held-out targets for each likelihood."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..laplace.latent import LatentGaussian
from ..laplace.leave_one_out.rows import Density, class_density, gaussian_density
from ..laplace.likelihoods._base import Likelihood, Link
from ..laplace.links import LINKS
from .negative_binomial_log_normal import counts_of


def density_of(likelihood: Likelihood, link: Link | None = None) -> Density:
    """Log predictive density of a target under the posterior without its row, in nats.

    With a link it is a class probability, with dispersion a normal density, and else the probability of a count.
    """
    if link is not None:
        return class_density(likelihood, link)
    return gaussian_density if likelihood.has_dispersion else partial(_count_density, likelihood)


def density_for(likelihood: Likelihood, link: str = "probit") -> Density:
    """As :func:`density_of`, for a selection by held-out rows. The link is fixed, because that of a fit may change.

    "probit" is underconfident for many classes. A net of fewer rows prefers a wider posterior, and this offsets it.
    """
    return density_of(likelihood, LINKS[link](torch.zeros(0, 0)) if likelihood.over_classes else None)


def _count_density(likelihood: Likelihood, latent: LatentGaussian, targets: Tensor, dispersion: float) -> Tensor:
    mean, variance = latent.mean.cpu().numpy(), latent.variance.cpu().numpy()
    log_probability = counts_of(likelihood, mean, variance).logpmf(targets.double().cpu().numpy())
    return torch.from_numpy(log_probability).sum(-1).to(latent.mean)
