r"""Log densities of held-out rows, as functions of a factor of all variances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Densities(Protocol):
    """Protocol of log densities of held-out rows, as a function of a factor of all variances."""

    @property
    def is_normal(self) -> bool:
        """True if the densities have variances that can be scaled."""

    def scaled(self, factor: float) -> np.ndarray:
        """Log density (n,) of each row, nats, with all variances multiplied by ``factor``."""


@dataclass(frozen=True)
class RowDensities:
    """Log densities of held-out rows, each under one net.

    Parameters
    ----------
    logs : ndarray of shape (n,)
        Log density of each row, nats.
    squares : ndarray of shape (n,)
        Σ e²/v over the targets of a row: squared errors over variances. Zero if the densities are not Gaussian.
    n_targets : int
        Number C of targets. Zero if the densities are not Gaussian.
    """

    logs: np.ndarray
    squares: np.ndarray
    n_targets: int

    @property
    def is_normal(self) -> bool:
        """True if the densities are Gaussian."""
        return self.n_targets > 0

    def scaled(self, factor: float) -> np.ndarray:
        """Log density (n,) of each row, nats, with all variances multiplied by ``factor``.

        Examples
        --------
        >>> row = RowDensities(np.array([-0.5 * np.log(2 * np.pi) - 2.0]), np.array([4.0]), 1)  # e = 2, v = 1
        >>> bool(np.isclose(row.scaled(4.0)[0], -0.5 * np.log(2 * np.pi * 4) - 0.5))
        True
        """
        scaled: np.ndarray = self.logs - 0.5 * (self.n_targets * np.log(factor) + self.squares * (1 / factor - 1))
        return scaled
