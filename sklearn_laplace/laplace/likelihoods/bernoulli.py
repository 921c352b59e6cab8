r"""Bernoulli likelihood over one logit: :math:`-\log p(y|f) = \mathrm{softplus}(f) - y f`.

:math:`\Lambda = p(1-p)` and :math:`r = p - y`, where :math:`p = \sigma(f)` is the probability of class 1. Links take
the equivalent pair of logits :math:`(-f/2, f/2)`, whose softmax is :math:`(1 - p, p)`.
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..latent import LatentGaussian, Predictive
from ..links._base import Link
from ._base import LOGIT_OUTSIDE, Likelihood, class_moments


class Bernoulli(Likelihood):
    """Two classes, given the logit of the second. Targets are class indices 0 and 1, int64.

    >>> Bernoulli().residual(torch.zeros(2, 1), torch.tensor([0, 1])).flatten()
    tensor([ 0.5000, -0.5000])
    """

    has_dispersion: ClassVar[bool] = False
    over_classes: ClassVar[bool] = True

    @property
    def scale_outside(self) -> float:
        return LOGIT_OUTSIDE

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -logsigmoid((2 * targets - 1) * outputs[:, 0])  # softplus(f) - y f would lose digits at large f

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        sign = (1 - 2 * targets)[:, None]
        return sign * (sign * outputs).sigmoid()

    def hessian_factor(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """√(p (1 − p)), shape (n, 1, 1), computed from logarithms to stay accurate at saturated logits."""
        return (0.5 * (logsigmoid(outputs) + logsigmoid(-outputs))).exp()[..., None]

    def sample(self, outputs: Tensor, uniforms: Tensor, targets: Tensor | None = None) -> Tensor:
        return (uniforms[:, 0] > (-outputs[:, 0].double()).sigmoid()).long()

    def logits(self, outputs: Tensor) -> Tensor:
        return torch.cat([-0.5 * outputs, 0.5 * outputs], 1)

    def predict(self, latent: LatentGaussian, dispersion: float, link: Link | None) -> Predictive:
        return class_moments(self.class_logits(latent), link)
