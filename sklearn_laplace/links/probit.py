r"""Probit link on pairwise differences of logits.

.. math:: p_c \propto 1 \Big/ \sum_j \exp\!\Big(-\frac{f_c - f_j}{\sqrt{1 + \tfrac{\pi}{8}\,\mathrm{Var}(f_c-f_j)}}\Big)

For two classes this is MacKay's (1992) moderated logistic. It does not change when a constant is added to all
logits, with or without variance of its own. It is closer to the integral than the per-class formula where logits share
what varies, as those of one net do, and for few classes; for many logits of independent variances that one is closer,
and the link "moderated" closer than both (tests/test_links.py).
"""

from __future__ import annotations

import math

from torch import Tensor

from ..latent import LatentGaussian
from ._base import Link


class Probit(Link):
    """Moderated softmax in closed form, O(n C²).

    Examples
    --------
    >>> import torch
    >>> wide = LatentGaussian(torch.tensor([[4.0, 0.0]]), 50 * torch.eye(2)[None])
    >>> Probit(torch.zeros(1, 2)).mean(wide).round(decimals=3)
    tensor([[0.6530, 0.3470]])
    """

    def mean(self, latent: LatentGaussian) -> Tensor:
        """Class probabilities (n, C)."""
        difference, variance = differences(latent)
        return log_coupled(difference, math.pi / 8 * variance).exp()


def differences(latent: LatentGaussian) -> tuple[Tensor, Tensor]:
    """Mean and variance (n, C, C) of f_c − f_j.

    Examples
    --------
    >>> import torch
    >>> mean, variance = differences(LatentGaussian(torch.tensor([[3.0, 1.0]]), torch.eye(2)[None]))
    >>> mean.tolist(), variance.tolist()
    ([[[0.0, 2.0], [-2.0, 0.0]]], [[[0.0, 2.0], [2.0, 0.0]]])
    """
    own = latent.variance
    variance = own[:, :, None] + own[:, None, :] - 2 * latent.covariance
    return latent.mean[:, :, None] - latent.mean[:, None, :], variance.clamp_min(0.0)


def log_coupled(difference: Tensor, widening: Tensor) -> Tensor:
    """log p (n, C) of p_c ∝ 1/Σ_j exp(−d_cj/√(1 + w_cj)).

    Examples
    --------
    >>> import torch
    >>> d = torch.tensor([[[0.0, 2.0], [-2.0, 0.0]]])
    >>> log_coupled(d, torch.tensor(3.0)).exp(), torch.tensor([1.0]).sigmoid()
    (tensor([[0.7311, 0.2689]]), tensor([0.7311]))
    """
    moderated = difference / (1 + widening).sqrt()
    return (-(-moderated).logsumexp(-1)).log_softmax(-1)
