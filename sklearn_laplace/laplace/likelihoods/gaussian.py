r"""Gaussian likelihood: :math:`-\log p(y|f) = \tfrac12 \|y-f\|^2/\sigma^2 + \tfrac12 C \log 2\pi\sigma^2`.

At unit dispersion Λ = I and r = f − y. The dispersion φ is the noise variance σ², shared by the C outputs. If relative
noise variances v are known, per output or per row, target c of row n has noise variance :math:`\varphi v_{nc}`:

.. math:: \Lambda_n = \mathrm{diag}(1/v_n), \qquad r_{nc} = (f_{nc} - y_{nc})/v_{nc}, \qquad
          -\log p = \tfrac1\varphi \sum_c \frac{(y_{nc} - f_{nc})^2}{2 v_{nc}}
          + \tfrac12 C \log 2\pi\varphi + \tfrac12 \sum_c \log v_{nc} .
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..latent import LatentGaussian, Predictive
from ..links._base import Link
from ._base import Likelihood, with_noise


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Normal targets with one noise variance, or with noise variances in known ratios.

    ``target_variance``, the mean of the targets' variances, sets the scale of the search for φ. ``noise`` has the C
    known noise variances of new rows in units of φ; if it is empty, each variance is φ.

    >>> Gaussian().nll(torch.tensor([[1.0]]), torch.tensor([[3.0]]))
    tensor([2.])
    >>> Gaussian().nll(torch.tensor([[1.0]]), torch.tensor([[3.0, 0.5]]))  # target 3 with noise variance 0.5 φ
    tensor([4.])
    """

    target_variance: float = 1.0
    noise: tuple[float, ...] = ()
    has_dispersion: ClassVar[bool] = True
    quadratic: ClassVar[bool] = True
    takes_known_noise: ClassVar[bool] = True

    @property
    def dispersion_bounds(self) -> tuple[float, float]:
        """Squares of noise standard deviations from 10⁻⁴ to 10² times that of targets."""
        return 1e-8 * self.target_variance, 1e4 * self.target_variance

    @property
    def dispersion_start(self) -> float:
        return self.target_variance

    def scaled_to(self, target_variance: float, noise: tuple[float, ...] = ()) -> Gaussian:
        return Gaussian(target_variance if target_variance > 0 else 1.0, noise)

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        y, v = _parts(outputs, targets)
        return 0.5 * ((y - outputs).square() / v).sum(-1)

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        y, v = _parts(outputs, targets)
        return (outputs - y) / v

    def hessian_factor(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """The identity for every row, or diag(v^−½) if noise is known, shape (n, C, C)."""
        v = 1.0 if targets is None else _parts(outputs, targets)[1]
        if isinstance(v, Tensor):
            return torch.diag_embed(v.rsqrt())
        n, n_outputs = outputs.shape
        return torch.eye(n_outputs, dtype=outputs.dtype, device=outputs.device).expand(n, n_outputs, n_outputs)

    def sample(self, outputs: Tensor, uniforms: Tensor, targets: Tensor | None = None) -> Tensor:
        """f plus normal noise of variance v, shape (n, C); if v is known it is appended, shape (n, 2 C)."""
        noise = torch.special.ndtri(uniforms).to(outputs.dtype)
        v = 1.0 if targets is None else _parts(outputs, targets)[1]
        if isinstance(v, Tensor):
            return with_noise(outputs + v.sqrt() * noise, v)
        return outputs + noise

    def log_normaliser(self, dispersion: float, n_outputs: int) -> float:
        return 0.5 * n_outputs * math.log(2 * math.pi * dispersion)

    def log_noise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        v = _parts(outputs, targets)[1]
        return 0.5 * v.log().sum(-1) if isinstance(v, Tensor) else super().log_noise(outputs, targets)

    def noise_variance(self, dispersion: float, n_outputs: int, device: torch.device | None = None) -> Tensor:
        noise = super().noise_variance(dispersion, n_outputs, device)
        return noise * noise.new_tensor(self.noise) if self.noise else noise

    def predict(self, latent: LatentGaussian, dispersion: float, link: Link | None = None) -> Predictive:
        """Mean f, epistemic variance (that of f), and aleatoric variance (the noise of an average row)."""
        variance = latent.variance
        noise = self.noise_variance(dispersion, variance.shape[1], variance.device).to(variance)
        return Predictive(latent.mean, variance, noise.expand_as(variance))


def _parts(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | float]:
    """Targets (n, C) and their known noise variances (n, C) in units of φ; 1.0 if no noise is known."""
    n_outputs = outputs.shape[1]
    return (targets, 1.0) if targets.shape[1] == n_outputs else (targets[:, :n_outputs], targets[:, n_outputs:])
