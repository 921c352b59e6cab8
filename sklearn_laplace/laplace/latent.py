"""Data classes for predictive distributions: a Gaussian over the outputs, and moments of the targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LatentGaussian:
    """Gaussian distribution of the network's outputs f at n inputs."""

    mean: Tensor  # (n, C)
    covariance: Tensor  # epistemic, (n, C, C)
    samples: Tensor | None = None  # output samples from which the moments were computed, (S, n, C)

    @property
    def variance(self) -> Tensor:
        """Diagonal of the covariance, shape (n, C)."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)


@dataclass(frozen=True)
class Predictive:
    """Moments of targets y at new inputs. For class indicators with mean p, the two variances add up to p (1 − p)."""

    mean: Tensor  # (n, C)
    epistemic_variance: Tensor  # the part that more data would reduce, (n, C)
    aleatoric_variance: Tensor  # of the observation noise, (n, C)

    @property
    def total_variance(self) -> Tensor:
        """Epistemic plus aleatoric variance, shape (n, C)."""
        return self.epistemic_variance + self.aleatoric_variance


@dataclass(frozen=True)
class Components:
    """Mixture of J distributions of the targets, stored as the moments of each (see :class:`Predictive`)."""

    weights: Tensor  # (J,), with sum 1
    mean: Tensor  # (n, C, J)
    epistemic_variance: Tensor  # (n, C, J)
    aleatoric_variance: Tensor  # (n, C, J)

    @classmethod
    def of(cls, moments: Predictive) -> Components:
        """Mixture with a single component."""
        parts = (moments.mean, moments.epistemic_variance, moments.aleatoric_variance)
        one = torch.ones(1, dtype=moments.mean.dtype, device=moments.mean.device)
        return cls(one, *(part[..., None] for part in parts))

    @classmethod
    def joined(cls, parts: Sequence[Components], weights: Tensor) -> Components:
        """Mixture of k mixtures over the same rows, with weights (k,)."""
        if len(parts) == 1:
            return parts[0]
        shares = torch.cat([part.weights * weight for part, weight in zip(parts, weights, strict=True)])
        return cls(shares, *(torch.cat([getattr(part, name) for part in parts], -1) for name in _MOMENTS))

    @classmethod
    def of_rows(cls, chunks: Sequence[Components]) -> Components:
        """Mixture for all rows of ``chunks``, which share the weights."""
        return cls(chunks[0].weights, *(torch.cat([getattr(chunk, name) for chunk in chunks]) for name in _MOMENTS))

    @property
    def moments(self) -> Predictive:
        """Moments of the mixture. Disagreement between the component means counts as epistemic variance."""
        if len(self.weights) == 1:
            return Predictive(*(getattr(self, name)[..., 0] for name in _MOMENTS))
        mean = self.mean @ self.weights
        epistemic = self.epistemic_variance + (self.mean - mean[..., None]).square()
        return Predictive(mean, epistemic @ self.weights, self.aleatoric_variance @ self.weights)


_MOMENTS = "mean", "epistemic_variance", "aleatoric_variance"
