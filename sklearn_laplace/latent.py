"""What flows from a posterior to the user: a Gaussian over outputs, then a predictive over targets. Data only."""

from __future__ import annotations

from dataclasses import dataclass

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
