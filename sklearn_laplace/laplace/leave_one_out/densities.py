r"""Predictive log densities of the targets, for leave-one-out scores."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..latent import LatentGaussian
from ..likelihoods._base import Likelihood, Link, without_noise

Density = Callable[[LatentGaussian, Tensor, float], Tensor]
"""Maps a Gaussian over the outputs, targets and a dispersion to log p(y) of each row (n,), nats."""


def gaussian_density(latent: LatentGaussian, targets: Tensor, dispersion: float) -> Tensor:
    """Log density log N(y; mean, covariance + φ diag(v)) of each row (n,), nats; v are known noise variances or 1."""
    y, noise = without_noise(targets.double(), latent.mean.shape[-1])
    squares, logdet = normal_terms(y - latent.mean, latent.covariance, dispersion * noise)
    return -0.5 * (squares + logdet + latent.mean.shape[-1] * math.log(2 * math.pi))


def normal_terms(residual: Tensor, covariance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Terms eᵀ V⁻¹ e and log |V|, each of shape (…), of a normal density with V = covariance + diag(noise).

    The residual e and the noise variances have shape (…, C), the covariance (…, C, C).
    """
    factor = torch.linalg.cholesky(covariance + torch.diag_embed(noise))
    white = torch.linalg.solve_triangular(factor, residual[..., None], upper=False)[..., 0]
    return white.square().sum(-1), 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def class_density(likelihood: Likelihood, link: Link) -> Density:
    """Density function for classes: the log probability, under the link, of the target's class."""

    def density(latent: LatentGaussian, targets: Tensor, dispersion: float) -> Tensor:
        probabilities = link.mean(likelihood.class_logits(latent)).gather(1, targets[:, None])[:, 0]
        return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()

    return density
