"""What flows from a posterior to the user: a Gaussian over outputs, then a predictive over targets. Data only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LatentGaussian:
    """Gaussian over the network's outputs f at n inputs.

    Parameters
    ----------
    mean : Tensor of shape (n, C)
        Outputs at the MAP.
    covariance : Tensor of shape (n, C, C)
        Epistemic covariance between the outputs of one row.
    samples : Tensor of shape (S, n, C), optional
        The samples whose moments these are, where the distribution is known by samples.

    Examples
    --------
    >>> import torch
    >>> LatentGaussian(torch.zeros(3, 2), torch.eye(2).expand(3, 2, 2)).variance.shape
    torch.Size([3, 2])
    """

    mean: Tensor
    covariance: Tensor
    samples: Tensor | None = None

    @property
    def variance(self) -> Tensor:
        """Diagonal of the covariance, shape (n, C)."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)


@dataclass(frozen=True)
class Predictive:
    """Moments of the targets y given new inputs.

    For a numeric target the moments are those of y; for a categorical one those of the indicator of each class,
    so that ``mean`` is the class probability and epistemic + aleatoric variance = p (1 − p).

    Parameters
    ----------
    mean : Tensor of shape (n, C)
    epistemic_variance : Tensor of shape (n, C)
        What more data would reduce.
    aleatoric_variance : Tensor of shape (n, C)
        What no data reduces: the observation noise.

    Examples
    --------
    >>> import torch
    >>> Predictive(torch.zeros(2, 1), torch.full((2, 1), 3.0), torch.ones(2, 1)).total_variance.tolist()
    [[4.0], [4.0]]
    """

    mean: Tensor
    epistemic_variance: Tensor
    aleatoric_variance: Tensor

    @property
    def total_variance(self) -> Tensor:
        """Epistemic plus aleatoric variance, shape (n, C)."""
        return self.epistemic_variance + self.aleatoric_variance


@dataclass(frozen=True)
class Components:
    """A mixture of J distributions of the targets, by the moments of each.

    Parameters
    ----------
    weights : Tensor of shape (J,)
        Of sum 1.
    mean, epistemic_variance, aleatoric_variance : Tensor of shape (n, C, J)
        See :class:`Predictive`.

    Examples
    --------
    >>> import torch
    >>> ones = torch.ones(1, 1)
    >>> parts = [Components.of(Predictive(mean * ones, ones, ones)) for mean in (-1.0, 1.0)]
    >>> moments = Components.joined(parts, torch.tensor([0.5, 0.5])).moments
    >>> float(moments.mean), float(moments.epistemic_variance), float(moments.aleatoric_variance)
    (0.0, 2.0, 1.0)
    """

    weights: Tensor
    mean: Tensor
    epistemic_variance: Tensor
    aleatoric_variance: Tensor

    @classmethod
    def of(cls, one: Predictive) -> Components:
        """A mixture of one."""
        parts = (one.mean, one.epistemic_variance, one.aleatoric_variance)
        return cls(torch.ones(1).to(one.mean), *(part[..., None] for part in parts))

    @classmethod
    def joined(cls, parts: Sequence[Components], weights: Tensor) -> Components:
        """A mixture of mixtures of the same rows, by weights (k,)."""
        if len(parts) == 1:
            return parts[0]
        shares = torch.cat([part.weights * weight for part, weight in zip(parts, weights, strict=True)])
        return cls(shares, *(torch.cat([getattr(part, name) for part in parts], -1) for name in _MOMENTS))

    @classmethod
    def of_rows(cls, chunks: Sequence[Components]) -> Components:
        """One after the other: the same mixture of several chunks of rows."""
        return cls(chunks[0].weights, *(torch.cat([getattr(chunk, name) for chunk in chunks]) for name in _MOMENTS))

    @property
    def moments(self) -> Predictive:
        """Those of the mixture: what its members disagree on is epistemic."""
        if len(self.weights) == 1:
            return Predictive(*(getattr(self, name)[..., 0] for name in _MOMENTS))
        mean = self.mean @ self.weights
        epistemic = self.epistemic_variance + (self.mean - mean[..., None]).square()
        return Predictive(mean, epistemic @ self.weights, self.aleatoric_variance @ self.weights)


_MOMENTS = "mean", "epistemic_variance", "aleatoric_variance"
