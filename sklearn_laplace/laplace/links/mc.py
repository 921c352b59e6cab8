"""Monte Carlo link: the average softmax over shared draws. With more draws it converges to the exact integral."""

from torch import Tensor

from ..latent import LatentGaussian
from ._base import Link, softmax_samples


class MC(Link):
    """E[softmax(f)] over S quasi-random draws, O(S n C²) for n rows and C classes.

    >>> import torch
    >>> from sklearn_laplace.laplace.links._base import standard_normals
    >>> latent = LatentGaussian(torch.tensor([[4.0, 0.0]]), 50 * torch.eye(2)[None])
    >>> MC(standard_normals(1024, 2, seed=0)).mean(latent).round(decimals=2)
    tensor([[0.6500, 0.3500]])
    """

    def mean(self, latent: LatentGaussian) -> Tensor:
        return softmax_samples(latent, self.draws).mean(0)
