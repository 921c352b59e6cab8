"""Base class of predictives. A predictive uses a network and a posterior over its weights, but no likelihood."""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import Tensor

from ..latent import LatentGaussian
from ..network.network import Network
from ..structures._base import Posterior


class PosteriorPredictive(ABC):
    """Map from a posterior over weights to a distribution over outputs.

    ``shift`` (P,) is the change of the posterior mean from θ* due to later additions and removals of rows, or None.
    """

    takes_link: ClassVar[bool]
    """True if a link maps the Gaussian to probabilities. Otherwise the softmax is averaged over the samples."""

    @classmethod
    @abstractmethod
    def prepared(cls, posterior: Posterior, n_samples: int, seed: int) -> Self:
        """Return the predictive for a posterior. Weight samples, if any, are drawn here once and shared by all rows."""

    @abstractmethod
    def latent(self, network: Network, posterior: Posterior, x: Tensor, shift: Tensor | None = None) -> LatentGaussian:
        """Mean and covariance of each row's outputs, float64, with the output samples if there are any."""

    @abstractmethod
    def mean(self, network: Network, x: Tensor, shift: Tensor | None = None) -> Tensor:
        """Mean of :meth:`latent`, shape (n, C), without computing the covariance."""

    @abstractmethod
    def joint_covariance(
        self, network: Network, posterior: Posterior, x: Tensor, shift: Tensor | None = None
    ) -> Tensor:
        """Joint covariance over rows and outputs, shape (n·C, n·C), float64; row-major in (row, output)."""

    @staticmethod
    @abstractmethod
    def functions(network: Network, deviations: Tensor, x: Tensor, shift: Tensor | None = None) -> Tensor:
        """Outputs (n, C, s), float64, for each of the weight deviations (s, P) from the posterior mean."""
