"""Base class of links; softmax samples; pairwise coupling for the links "probit" and "moderated".

Samples use normal draws shared by all rows, so a prediction does not depend on other rows. The draws are
scrambled Sobol points mapped through the normal quantile function.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ..latent import LatentGaussian


@dataclass(frozen=True)
class Link(ABC):
    """Map from a Gaussian over C logits to class probabilities."""

    draws: Tensor  # (S, C), standard normal, shared by all rows (:func:`standard_normals`)

    @classmethod
    def drawn(cls, n_samples: int, n_outputs: int, seed: int) -> Self:
        """Link with draws for ``n_outputs`` outputs."""
        return cls(standard_normals(n_samples, max(n_outputs, 2), seed))

    @abstractmethod
    def mean(self, latent: LatentGaussian) -> Tensor:
        """Class probabilities, shape (n, C); each row sums to one."""

    def variance(self, latent: LatentGaussian) -> Tensor:
        """Variance of the class probabilities softmax(f)_c under the Gaussian over f, shape (n, C)."""
        return softmax_samples(latent, self.draws).var(0, correction=0)


def standard_normals(n_samples: int, dimension: int, seed: int) -> Tensor:
    """Quasi-random standard normal draws, shape (n_samples, dimension), float64. The global generator is not used."""
    points = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed).draw(n_samples, dtype=torch.float64)
    margin = 2.0**-40
    return torch.special.ndtri(points.clamp(margin, 1 - margin))


def centred(latent: LatentGaussian) -> LatentGaussian:
    """Gaussian over the logits after subtracting their mean over classes. Probabilities stay the same."""
    covariance = latent.covariance - latent.covariance.mean(-1, keepdim=True)
    covariance = covariance - covariance.mean(-2, keepdim=True)
    return LatentGaussian(latent.mean - latent.mean.mean(-1, keepdim=True), covariance)


def softmax_samples(latent: LatentGaussian, draws: Tensor) -> Tensor:
    """softmax(f_s) (S, n, C) of the samples in ``latent``, or of draws if it has none. Covariances may be singular."""
    if latent.samples is not None:
        return latent.samples.softmax(-1)
    values, vectors = torch.linalg.eigh(latent.covariance)
    root = vectors * (_signs(vectors) * values.clamp_min(0.0).sqrt())[:, None, :]
    draws = draws.to(latent.mean)
    return (latent.mean + torch.einsum("sk,nck->snc", draws, root)).softmax(-1)


def _signs(vectors: Tensor) -> Tensor:
    """Signs (n, C) that make the first large component of each eigenvector (n, C, C) negative."""
    magnitudes = vectors.abs()
    first = (magnitudes > 0.5 * magnitudes.amax(1, keepdim=True)).to(torch.uint8).argmax(1, keepdim=True)
    return -vectors.gather(1, first)[:, 0].sign()


def differences(latent: LatentGaussian) -> tuple[Tensor, Tensor]:
    """Mean and variance of f_c − f_j, each of shape (n, C, C)."""
    marginal = latent.variance
    variance = marginal[:, :, None] + marginal[:, None, :] - 2 * latent.covariance
    return latent.mean[:, :, None] - latent.mean[:, None, :], variance.clamp_min(0.0)


def log_coupled(difference: Tensor, widening: Tensor) -> Tensor:
    """log p (n, C), p_c ∝ 1/Σ_j exp(−d_cj/√(1 + w_cj)), for differences d and widenings w (n, C, C)."""
    moderated = difference / (1 + widening).sqrt()
    return (-(-moderated).logsumexp(-1)).log_softmax(-1)
