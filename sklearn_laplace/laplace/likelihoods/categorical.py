r"""Categorical likelihood over C logits: :math:`-\log \mathrm{softmax}(f)_y`.

Here :math:`\Lambda = \mathrm{diag}(p) - pp^\top` and :math:`r = p - e_y`. Λ has rank C−1 and a Cholesky factor in
closed form (Tanabe & Sagae 1992). With :math:`q_k = \sum_{j \ge k} p_j` (indices start at 0),
:math:`S_{kk} = \sqrt{p_k q_{k+1}/q_k}` and :math:`S_{ik} = -p_i \sqrt{p_k/(q_k q_{k+1})}` for i > k.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from ..latent import LatentGaussian, Predictive
from ..links._base import Link
from ._base import LOGIT_OUTSIDE, Likelihood, class_moments


class Categorical(Likelihood):
    """C classes, given their logits. Targets are class indices, int64.

    >>> factor = Categorical().hessian_factor(torch.zeros(1, 2))
    >>> (factor @ factor.mT)[0]
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]])
    """

    has_dispersion: ClassVar[bool] = False
    over_classes: ClassVar[bool] = True

    @property
    def scale_outside(self) -> float:
        return LOGIT_OUTSIDE / math.sqrt(2)

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -outputs.log_softmax(-1).gather(-1, targets[:, None])[:, 0]

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        residual = outputs.softmax(-1)
        return residual.scatter_add(-1, targets[:, None], -torch.ones_like(residual[:, :1]))

    def hessian_factor(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """S (n, C, C−1), computed from log-probabilities to stay finite at saturated logits."""
        n_classes = outputs.shape[1]
        log_p = outputs.log_softmax(-1)
        log_q = log_p.flip(-1).logcumsumexp(-1).flip(-1)
        head, tail = log_q[:, :-1], log_q[:, 1:]
        # p_i sqrt(p_k / (q_k q_{k+1})); the exponent never exceeds log_p_k / 2 - log_q_k / 2 because p_i <= q_{k+1}.
        below = (log_p[:, :, None] + 0.5 * (log_p[:, None, :-1] - head[:, None] - tail[:, None])).exp()
        factor = -below.tril(-1)
        k = torch.arange(n_classes - 1, device=outputs.device)
        factor[:, k, k] = (0.5 * (log_p[:, :-1] + tail - head)).exp()
        return factor

    def sample(self, outputs: Tensor, uniforms: Tensor, targets: Tensor | None = None) -> Tensor:
        """The class whose interval of the cumulative probabilities contains the first uniform, shape (n,)."""
        cumulated = outputs.double().softmax(-1).cumsum(-1)
        return (cumulated[:, :-1] < uniforms[:, :1]).sum(-1)

    def predict(self, latent: LatentGaussian, dispersion: float, link: Link | None) -> Predictive:
        return class_moments(latent, link)
