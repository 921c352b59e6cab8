r"""Poisson likelihood over log rates: :math:`-\log p(y|f) = e^f - y f + \log y!`, summed over the outputs.

Here :math:`\Lambda = \mathrm{diag}(e^f)` and :math:`r = e^f - y`. The term :math:`\log y!` depends on the target, so it
is part of ``nll``. If the log rate is Gaussian with mean m and variance v, the rate is log-normal:

.. math:: \mathrm{E}[y] = e^{m + v/2}, \qquad
          \mathrm{Var}[y] = \underbrace{(e^v - 1)\,e^{2m + v}}_{\text{epistemic}}
          + \underbrace{e^{m + v/2}}_{\text{aleatoric}} .
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..latent import LatentGaussian, Predictive
from ..links._base import Link
from ._base import Likelihood

LARGE_RATE = 1e8
"""Rate above which draws come from a normal distribution of equal mean and variance, without rounding."""


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts, given their log rates. Targets (n, C) are counts, or counts divided by their exposures.

    If ``of_rates``, a held-out row with weight w is a count w y with the exposure w. This count has the log mean
    f + log w. The score of the row is log p(w y) instead of w log p(y).

    A Laplace approximation of a log rate (mode m, variance v) corresponds to a gamma distribution of the rate, with
    shape 1/v and mean :math:`e^m` (MacKay 1998). Predictions therefore treat the log rate as normal with mean m −
    v/2 and variance v. The predicted means :math:`e^m` sum to about the observed total; :math:`e^{m + v/2}` would not.

    >>> Poisson().nll(torch.tensor([[0.0]]), torch.tensor([[3.0]])).exp()  # e · 3!
    tensor([16.3097])
    """

    of_rates: bool = field(default=False, kw_only=True)
    has_dispersion: ClassVar[bool] = False
    additive_noise: ClassVar[bool] = False
    least_target: ClassVar[float] = 0.0

    def output_start(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Log of the weighted mean count, shape (C,). Half a count is added to avoid the log of zero."""
        return ((weights @ targets + 0.5) / weights.sum()).log()

    def score_weights(self, weights: Tensor) -> Tensor:
        """If targets are rates, 1 for each row of positive weight and 0 for all others; else the weights."""
        return (weights > 0).to(weights) if self.of_rates else weights

    def scored(self, latent: LatentGaussian, targets: Tensor, weights: Tensor) -> tuple[LatentGaussian, Tensor]:
        """Log rates and counts of rows whose targets are rates."""
        if not self.of_rates:
            return latent, targets
        exposures = torch.where(weights > 0, weights, 1.0)[:, None].to(latent.mean)
        return replace(latent, mean=latent.mean + exposures.log()), targets * exposures

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.exp() - targets * outputs + torch.lgamma(targets + 1)).sum(-1)

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.exp() - targets

    def hessian_factor(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor:
        return torch.diag_embed((0.5 * outputs).exp())

    def sample(self, outputs: Tensor, uniforms: Tensor, targets: Tensor | None = None) -> Tensor:
        """The smallest count whose cumulative probability reaches the uniform, by bisection, shape (n, C)."""
        rate = outputs.double().exp()
        spread = rate.clamp_max(LARGE_RATE).sqrt()
        low = (rate - 10 * spread - 40).floor().clamp_min(-1.0)
        high = (rate + 10 * spread + 40).ceil()
        small = rate < LARGE_RATE
        while bool(((high - low > 1) & small).any()):
            middle = ((low + high) / 2).floor()
            reached = torch.special.gammaincc(middle + 1, rate) >= uniforms
            low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
        normal = rate + rate.sqrt() * torch.special.ndtri(uniforms)
        return torch.where(small, high, normal).to(outputs.dtype)

    def conditional_mean(self, outputs: Tensor) -> Tensor:
        return outputs.exp()

    def joint_covariance(self, mean: Tensor, covariance: Tensor, dispersion: float = 1.0) -> Tensor:
        """E[yᵢ] E[yⱼ] (e^{cᵢⱼ} − 1), plus the mean on the diagonal (Aitchison & Ho 1989), shape (n, n, C)."""
        rates = mean.exp()
        return covariance.expm1() * rates[:, None] * rates[None] + torch.diag_embed(rates.mT).movedim(0, -1)

    def predict(self, latent: LatentGaussian, dispersion: float, link: Link | None = None) -> Predictive:
        """Moments of the counts under a log-normal rate of mean e^m, shape (n, C)."""
        mean = latent.mean.exp()
        return Predictive(mean, latent.variance.expm1() * mean.square(), mean)
