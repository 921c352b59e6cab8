r"""Laplace bridge: the Dirichlet whose Laplace approximation is the Gaussian over the logits (MacKay 1998).

For logits that sum to zero, Laplace's approximation of a Dirichlet with concentrations α has mode :math:`\mu_c =
\log\alpha_c - \tfrac1C\sum_j\log\alpha_j` and variances :math:`\Sigma_{cc} = (1 - \tfrac2C)/\alpha_c +
\tfrac1{C^2}\sum_j 1/\alpha_j`. Solved for α (Hobbhahn et al. 2022),

.. math:: \alpha_c = \frac{1}{\Sigma_{cc}} \Big(1 - \frac{2}{C} + \frac{e^{\mu_c}}{C^2} \sum_j e^{-\mu_j}\Big).

First, the part common to all logits is removed: the mean becomes :math:`\mu - \bar\mu 1` and the covariance
:math:`M \Sigma M`, with :math:`M = I - 11^\top/C`. The distribution of the probabilities stays the same.
"""

import math

import torch
from torch import Tensor

from ..latent import LatentGaussian
from ._base import Link, centred

ROUNDING = 1e3
"""A variance counts as zero if it is below ``ROUNDING`` machine epsilons times the largest variance of the row."""


class Bridge(Link):
    """Mean and variance of a Dirichlet, O(n C²).

    For two classes the mean is the softmax of the mean logits, whatever their variance.

    >>> latent = LatentGaussian(torch.tensor([[2.0, 0.0, 0.0]]), 0.5 * torch.eye(3)[None])
    >>> Bridge(torch.zeros(1, 3)).mean(latent).round(decimals=3)
    tensor([[0.6460, 0.1770, 0.1770]])
    """

    def mean(self, latent: LatentGaussian) -> Tensor:
        """α / Σα, shape (n, C), or the softmax of the mean logits if an α is infinite (a logit of zero variance)."""
        log_alpha, degenerate = _log_concentration(latent)
        return torch.where(degenerate, latent.mean, log_alpha).softmax(-1)

    def variance(self, latent: LatentGaussian) -> Tensor:
        """p (1 − p) / (1 + Σα), shape (n, C), or the variance over the draws if a logit has zero variance."""
        log_alpha, degenerate = _log_concentration(latent)
        p = log_alpha.softmax(-1)
        dirichlet = p * (1 - p) * (-log_alpha.logsumexp(-1, keepdim=True)).sigmoid()
        return torch.where(degenerate, super().variance(latent), dirichlet)


def _log_concentration(latent: LatentGaussian) -> tuple[Tensor, Tensor]:
    """log α, shape (n, C), and a mask (n, 1) of rows without a finite α. Logarithms avoid overflow at large logits."""
    n_classes = latent.mean.shape[1]
    logits = centred(latent)
    least = ROUNDING * torch.finfo(logits.mean.dtype).eps * latent.variance.amax(-1, keepdim=True)
    degenerate = (logits.variance <= least).any(-1, keepdim=True)
    bend = logits.mean + (-logits.mean).logsumexp(-1, keepdim=True) - 2 * math.log(n_classes)
    flat = torch.full_like(bend, 1 - 2 / n_classes).log()
    return torch.logaddexp(flat, bend) - torch.where(degenerate, 1.0, logits.variance).log(), degenerate
