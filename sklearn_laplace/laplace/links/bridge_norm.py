r"""Laplace bridge of a rescaled Gaussian over logits, which keeps large variances within the valid range.

With :math:`c = \bar v / \sqrt{C/2}` and :math:`\bar v` the mean variance of centred logits, the bridge is applied
to :math:`N(\mu/\sqrt c, \Sigma/c)`, whose mean variance is √(C/2) (laplace-torch's correction). A c below one is set to
one.
"""

from torch import Tensor

from ..latent import LatentGaussian
from ._base import Link, centred
from .bridge import Bridge


class BridgeNorm(Link):
    """Laplace bridge with a correction for large variances, O(n C²).

    >>> import torch
    >>> wide = LatentGaussian(torch.tensor([[4.0, 0.0]]), 50 * torch.eye(2)[None])
    >>> BridgeNorm(torch.zeros(1, 2)).mean(wide).round(decimals=3)
    tensor([[0.6900, 0.3100]])
    """

    def mean(self, latent: LatentGaussian) -> Tensor:
        return Bridge(self.draws).mean(_normalised(latent))

    def variance(self, latent: LatentGaussian) -> Tensor:
        return Bridge(self.draws).variance(_normalised(latent))


def _normalised(latent: LatentGaussian) -> LatentGaussian:
    logits = centred(latent)
    size = (logits.variance.mean(-1) / (latent.mean.shape[1] / 2) ** 0.5).clamp_min(1.0)
    return LatentGaussian(latent.mean / size.sqrt()[:, None], latent.covariance / size[:, None, None])
