r"""Gaussian likelihood: :math:`-\log p(y|f) = \tfrac12 \|y-f\|^2/\sigma^2 + \tfrac12 C \log 2\pi\sigma^2`.

At unit dispersion Λ = I, r = f − y; the dispersion φ is the noise variance σ², shared by the C outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..latent import LatentGaussian, Predictive
from ._base import Likelihood, Link


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Normal targets with one noise variance.

    Parameters
    ----------
    target_variance : float
        Mean variance of the targets over the outputs: the unit of the search for φ.

    Examples
    --------
    >>> import torch
    >>> Gaussian().nll(torch.tensor([[1.0]]), torch.tensor([[3.0]]))
    tensor([2.])
    """

    target_variance: float = 1.0
    has_dispersion: ClassVar[bool] = True
    quadratic: ClassVar[bool] = True

    @property
    def dispersion_bounds(self) -> tuple[float, float]:
        """From a ten-thousandth of the targets' standard deviation to a hundred times it."""
        return 1e-8 * self.target_variance, 1e4 * self.target_variance

    @property
    def dispersion_start(self) -> float:
        """The targets' variance."""
        return self.target_variance

    def scaled_to(self, target_variance: float) -> Gaussian:
        """Constant targets count as of variance 1."""
        return Gaussian(target_variance if target_variance > 0 else 1.0)

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """½‖y − f‖², shape (n,)."""
        return 0.5 * (targets - outputs).square().sum(-1)

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """f − y, shape (n, C)."""
        return outputs - targets

    def hessian_factor(self, outputs: Tensor) -> Tensor:
        """The identity for every row, shape (n, C, C)."""
        n, n_outputs = outputs.shape
        return torch.eye(n_outputs, dtype=outputs.dtype, device=outputs.device).expand(n, n_outputs, n_outputs)

    def sample(self, outputs: Tensor, uniforms: Tensor) -> Tensor:
        """f plus standard normal noise, shape (n, C)."""
        return outputs + torch.special.ndtri(uniforms).to(outputs.dtype)

    def log_normaliser(self, dispersion: float, n_outputs: int) -> float:
        """½ C log 2πσ², nats."""
        return 0.5 * n_outputs * math.log(2 * math.pi * dispersion)

    def predict(self, latent: LatentGaussian, dispersion: float, link: Link | None = None) -> Predictive:
        """Mean f, epistemic variance of f, aleatoric variance σ²."""
        variance = latent.variance
        return Predictive(latent.mean, variance, torch.full_like(variance, dispersion))
