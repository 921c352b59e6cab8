"""What a likelihood answers. Nothing here knows a network, a structure or a prior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

from torch import Tensor

from ..latent import LatentGaussian, Predictive


class Link(Protocol):
    """What a likelihood over classes needs to know of a link (see ``links/``)."""

    def mean(self, latent: LatentGaussian) -> Tensor:
        """Class probabilities (n, C)."""

    def variance(self, latent: LatentGaussian) -> Tensor:
        """Variance (n, C) of the class probabilities under the Gaussian over the logits."""


class Likelihood(ABC):
    r"""p(y given f) at unit dispersion; the dispersion φ itself is a hyperparameter.

    The effective negative log-likelihood is ``nll / φ + log_normaliser(φ)``.
    """

    has_dispersion: ClassVar[bool]
    """Whether φ (the noise variance) is free; otherwise it is 1."""

    @property
    def dispersion_bounds(self) -> tuple[float, float]:
        """Search interval of φ."""
        return 1.0, 1.0

    @property
    def dispersion_start(self) -> float:
        """Where a search for φ starts: all variation of the targets is noise."""
        return 1.0

    def scaled_to(self, target_variance: float) -> Likelihood:
        """The same likelihood for targets of this mean variance; only the search for φ depends on it."""
        return self

    @abstractmethod
    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihood of each row at unit dispersion, without its normaliser, shape (n,)."""

    @abstractmethod
    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Gradient r of ``nll`` in the outputs, shape (n, C)."""

    @abstractmethod
    def hessian_factor(self, outputs: Tensor) -> Tensor:
        """S (n, C, K) with S Sᵀ = Λ, the expected Hessian of ``nll`` in the outputs."""

    @abstractmethod
    def log_normaliser(self, dispersion: float, n_outputs: int) -> float:
        """What one row of weight 1 adds to ``nll / φ`` to make it a negative log density."""

    @abstractmethod
    def predict(self, latent: LatentGaussian, dispersion: float, link: Link | None) -> Predictive:
        """Moments of new targets under a Gaussian over the outputs."""
