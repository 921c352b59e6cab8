r"""Log densities of held-out rows, as functions of a factor of all variances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from torch import Tensor

from ..laplace.latent import LatentGaussian
from ..laplace.leave_one_out.densities import Density


class Densities(Protocol):
    """Protocol of log densities of held-out rows, as a function of a factor of all variances."""

    @property
    def is_normal(self) -> bool:
        """True if the densities are normal, so that a factor of the variances scales the noise as well."""

    def scaled(self, factor: float) -> np.ndarray:
        """Log density (n,) of each row, nats, with all variances multiplied by ``factor``."""


@dataclass(frozen=True)
class RowDensities:
    """Normal log densities of held-out rows, each under one net."""

    logs: np.ndarray  # (n,), nats
    squares: np.ndarray  # (n,): Σ e²/v over the C targets of a row, squared errors over variances
    n_targets: int
    is_normal: ClassVar[bool] = True

    def scaled(self, factor: float) -> np.ndarray:
        """Log density (n,) of each row, nats, with all variances multiplied by ``factor``."""
        scaled: np.ndarray = self.logs - 0.5 * (self.n_targets * np.log(factor) + self.squares * (1 / factor - 1))
        return scaled


@dataclass(frozen=True)
class LatentDensities:
    """Log densities of held-out rows under a likelihood without dispersion, each under one net."""

    latent: LatentGaussian  # of the outputs of each row
    targets: Tensor  # (n,) or (n, C)
    density: Density  # log density of a target
    is_normal: ClassVar[bool] = False

    def scaled(self, factor: float) -> np.ndarray:
        """Log density (n,) of each row, nats, with the covariance of the outputs multiplied by ``factor``."""
        latent = LatentGaussian(self.latent.mean, factor * self.latent.covariance)
        return self.density(latent, self.targets, 1.0).cpu().numpy()
