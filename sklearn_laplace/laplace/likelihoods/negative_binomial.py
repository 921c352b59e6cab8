r"""Negative binomial likelihood over log means: counts with mean :math:`\mu = e^f`, variance :math:`\mu + \alpha\mu^2`.

Let :math:`t = f + \log\alpha`, and let :math:`\zeta` be the softplus. Summed over the outputs,

.. math:: -\log p(y|f) = y\,\zeta(-t) + \tfrac1\alpha\,\zeta(t)
          - \log\frac{\Gamma(y + 1/\alpha)}{\Gamma(1/\alpha)\,\Gamma(y + 1)} .

The gradient is :math:`r = (\mu - y)/(1 + \alpha\mu)`. The Hessian (``curvature="hessian"``) depends on the count. Its
expectation, the Fisher information, is :math:`\Lambda = \mathrm{diag}(\mu/(1 + \alpha\mu))` (Hilbe 2011, sec. 8.2).
The overdispersion α is a constant here, selected by ``_ensemble/target_noise.py``. A count is Poisson with a
gamma-distributed rate of mean μ and shape 1/α.

If the log mean is Gaussian with mean m and variance v, the epistemic variance is that of the Poisson likelihood, and
:math:`\mathrm{E}[\mu + \alpha\mu^2] = e^{m + v/2} + \alpha e^{2m + 2v}`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from ..latent import LatentGaussian, Predictive
from ..links._base import Link
from .poisson import Poisson

BITS = 2.0**26
"""A uniform draw of 52 bits is split into two of 26 bits, for the gamma-distributed rate and for the count."""
HALVINGS = 36
"""Bisection steps that resolve the logarithm of a gamma draw to 26 bits."""


@dataclass(frozen=True)
class NegativeBinomial(Poisson):
    """Overdispersed counts, given their log means. Targets (n, C) are non-negative integers.

    >>> likelihood = NegativeBinomial((1.0,))  # a geometric distribution: p(k) = 0.5^(k + 1) for mean 1
    >>> likelihood.nll(torch.tensor([[0.0]]), torch.tensor([[2.0]])).neg().exp()
    tensor([0.1250])
    """

    overdispersion: tuple[float, ...] = (0.5,)  # α > 0 of each output, or one for all
    is_overdispersed: ClassVar[bool] = True

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        alpha, t = self._shifted(outputs)
        size, y = 1 / self._alpha(targets.double()), targets.double()  # differences of lgamma lose digits
        constants = torch.lgamma(size) + torch.lgamma(y + 1) - torch.lgamma(y + size)
        return (targets * softplus(-t) + softplus(t) / alpha + constants.to(outputs)).sum(-1)

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        alpha, t = self._shifted(outputs)
        return t.sigmoid() / alpha - targets * (-t).sigmoid()

    def hessian_factor(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor:
        alpha, t = self._shifted(outputs)
        return torch.diag_embed((0.5 * (logsigmoid(t) - alpha.log())).exp())

    def sample(self, outputs: Tensor, uniforms: Tensor, targets: Tensor | None = None) -> Tensor:
        """A Poisson count whose rate is gamma-distributed, both drawn with quantile functions, shape (n, C)."""
        scaled = uniforms * BITS
        whole = scaled.floor()
        first, second = (whole + 0.5) / BITS, (scaled - whole).clamp(0.5 / BITS, 1 - 0.5 / BITS)
        size = (1 / self._alpha(uniforms)).expand_as(uniforms)
        low = (first.log() + torch.lgamma(size + 1)) / size  # the distribution function is at most x^a / Γ(a + 1)
        high = (size + 10 * size.sqrt() + 40).log()
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            reached = torch.special.gammainc(size, middle.exp()) >= first
            low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
        return super().sample(outputs.double() + high - size.log(), second).to(outputs.dtype)

    def joint_covariance(self, mean: Tensor, covariance: Tensor, dispersion: float = 1.0) -> Tensor:
        """As for Poisson counts, plus α E[μ²] on the diagonal, shape (n, n, C)."""
        variance = covariance.diagonal().mT
        extra = self._alpha(mean) * (2 * mean + variance).exp()
        return super().joint_covariance(mean, covariance) + torch.diag_embed(extra.mT).movedim(0, -1)

    def predict(self, latent: LatentGaussian, dispersion: float, link: Link | None = None) -> Predictive:
        moments = super().predict(latent, dispersion)
        extra = self._alpha(latent.mean) * moments.mean.square() * latent.variance.exp()
        return Predictive(moments.mean, moments.epistemic_variance, moments.aleatoric_variance + extra)

    def _alpha(self, like: Tensor) -> Tensor:
        """α in the dtype and on the device of a tensor, shape (C,) or (1,)."""
        return torch.tensor(self.overdispersion, dtype=like.dtype, device=like.device)

    def _shifted(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """α, and the logits t = f + log α."""
        alpha = self._alpha(outputs)
        return alpha, outputs + alpha.log()
