"""What a predictive answers: it knows a network and a posterior over its weights, and no likelihood."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import Tensor

from ..latent import LatentGaussian
from ..network.network import Network
from ..structures._base import Posterior


class PosteriorPredictive(ABC):
    """From a posterior over weights to a distribution over outputs.

    ``shift`` (P,) is what rows that came after the training have added to the posterior's mean θ*, or None.
    """

    takes_link: ClassVar[bool]
    """Whether a link makes probabilities of its Gaussian; otherwise they are the average softmax of its samples."""

    @classmethod
    @abstractmethod
    def prepared(cls, posterior: Posterior, n_samples: int, seed: int) -> Self:
        """The predictive of one posterior: what all rows share is drawn here, once."""

    @abstractmethod
    def latent(self, network: Network, posterior: Posterior, x: Tensor, shift: Tensor | None = None) -> LatentGaussian:
        """Moments of the outputs of each row, float64, and the samples behind them where there are any."""

    @abstractmethod
    def mean(self, network: Network, x: Tensor, shift: Tensor | None = None) -> Tensor:
        """The mean of :meth:`latent` alone, shape (n, C), where that is cheaper."""

    @abstractmethod
    def joint_covariance(
        self, network: Network, posterior: Posterior, x: Tensor, shift: Tensor | None = None
    ) -> Tensor:
        """Covariance over rows and outputs together, shape (n·C, n·C), float64; row-major in (row, output)."""

    @staticmethod
    @abstractmethod
    def functions(network: Network, deviations: Tensor, x: Tensor, shift: Tensor | None = None) -> Tensor:
        """Outputs (n, C, s), float64, for each of the weights' deviations (s, P) from their mean."""
