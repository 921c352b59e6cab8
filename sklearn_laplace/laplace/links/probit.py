r"""Probit link on pairwise differences of logits.

.. math:: p_c \propto 1 \Big/ \sum_j \exp\!\Big(-\frac{f_c - f_j}{\sqrt{1 + \tfrac{\pi}{8}\,\mathrm{Var}(f_c-f_j)}}\Big)

For two classes this is MacKay's (1992) moderated logistic. The result does not change when a constant, fixed or random,
is added to all logits.
"""

import math

from torch import Tensor

from ..latent import LatentGaussian
from ._base import Link, differences, log_coupled


class Probit(Link):
    """Moderated softmax in closed form, O(n C²).

    >>> import torch
    >>> wide = LatentGaussian(torch.tensor([[4.0, 0.0]]), 50 * torch.eye(2)[None])
    >>> Probit(torch.zeros(1, 2)).mean(wide).round(decimals=3)
    tensor([[0.6530, 0.3470]])
    """

    def mean(self, latent: LatentGaussian) -> Tensor:
        difference, variance = differences(latent)
        return log_coupled(difference, math.pi / 8 * variance).exp()
