"""Plugin link: the softmax of the mean logits, as in a prediction at the MAP weights."""

from torch import Tensor

from ..latent import LatentGaussian
from ._base import Link


class Plugin(Link):
    """Softmax of the mean logits. Only :meth:`variance` uses the epistemic covariance.

    >>> import torch
    >>> Plugin(torch.zeros(1, 2)).mean(LatentGaussian(torch.zeros(1, 2), torch.eye(2)[None]))
    tensor([[0.5000, 0.5000]])
    """

    def mean(self, latent: LatentGaussian) -> Tensor:
        return latent.mean.softmax(-1)
