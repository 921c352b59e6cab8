r"""The linearised predictive (Immer et al. 2021): :math:`f(x) \sim N(f_{\theta^*}(x), J P^{-1} J^\top)`.

The formula is exact for the linearised model, whose Hessian is the Gauss–Newton curvature.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..extrapolation import Extrapolation
from ..jacobian.jacobian import FactoredJacobian
from ..latent import LatentGaussian
from ..network.network import Network
from ..structures._base import Posterior
from ._base import PosteriorPredictive


@dataclass(frozen=True)
class GLM(PosteriorPredictive):
    """Predictive of the network linearised at its MAP estimate, optionally with added variance outside the data range.

    >>> from sklearn_laplace.laplace.network import trace
    >>> from sklearn_laplace.laplace.structures import Diag
    >>> module = torch.nn.Linear(1, 1, bias=False).double()
    >>> network = trace(module, torch.ones(1, 1).double())
    >>> posterior = Diag.zero(network.blocks, torch.device("cpu")).posterior(torch.tensor(4.0).double(), 1.0)
    >>> GLM().latent(network, posterior, torch.full((1, 1), 2.0).double()).variance.tolist()
    [[1.0]]
    """

    outside: Extrapolation | None = None  # added variance, or None
    takes_link: ClassVar[bool] = True

    @classmethod
    def prepared(cls, posterior: Posterior, n_samples: int, seed: int) -> Self:
        return cls()

    def latent(self, network: Network, posterior: Posterior, x: Tensor, shift: Tensor | None = None) -> LatentGaussian:
        """Mean f + J·shift, shape (n, C), and covariance, shape (n, C, C), of the outputs, float64."""
        outputs, jacobian = network.jacobian(x)
        covariance = posterior.covariance(jacobian)
        if self.outside is not None:
            covariance = covariance + torch.diag_embed(self.outside.variance(x))
        return LatentGaussian(_moved(outputs, jacobian, shift), covariance)

    def mean(self, network: Network, x: Tensor, shift: Tensor | None = None) -> Tensor:
        """Mean of :meth:`latent`, shape (n, C). Without a shift, it costs one forward pass."""
        if shift is None:
            return network(x).double()
        return _moved(*network.jacobian(x), shift)

    def joint_covariance(
        self, network: Network, posterior: Posterior, x: Tensor, shift: Tensor | None = None
    ) -> Tensor:
        """Joint covariance over rows and outputs, shape (n·C, n·C), float64. It does not depend on the shift."""
        _, jacobian = network.jacobian(x)
        covariance = posterior.cross_covariance(jacobian, jacobian)
        covariance = torch.triu(covariance) + torch.triu(covariance, 1).mT
        return covariance if self.outside is None else covariance + self.outside.joint_covariance(x)

    @staticmethod
    def functions(network: Network, deviations: Tensor, x: Tensor, shift: Tensor | None = None) -> Tensor:
        outputs, jacobian = network.jacobian(x)
        moves = deviations if shift is None else deviations + shift
        return outputs.double()[..., None] + jacobian.times(moves.mT)


def _moved(outputs: Tensor, jacobian: FactoredJacobian, shift: Tensor | None) -> Tensor:
    return outputs.double() if shift is None else outputs.double() + jacobian.times(shift[:, None])[..., 0]
