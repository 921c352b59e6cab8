r"""Log densities of held-out rows, as functions of a factor of all variances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Densities(Protocol):
    """Protocol of log densities of held-out rows, as a function of a factor of all variances."""

    def scaled(self, factor: float) -> np.ndarray:
        """Log density (n,) of each row, nats, with all variances multiplied by ``factor``."""


@dataclass(frozen=True)
class RowDensities:
    """Log densities of held-out rows, each under one net: normal ones, or those of classes and counts."""

    logs: np.ndarray  # (n,), nats
    squares: np.ndarray  # (n,): Σ e²/v over the C targets of a row, squared errors over variances; else 0
    n_targets: int  # with a noise variance: C, else 0

    def scaled(self, factor: float) -> np.ndarray:
        """Log density (n,) of each row, nats, with all variances multiplied by ``factor``."""
        scaled: np.ndarray = self.logs - 0.5 * (self.n_targets * np.log(factor) + self.squares * (1 / factor - 1))
        return scaled
