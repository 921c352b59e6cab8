r"""Densities of the rows of a fit under models that did not see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Densities(Protocol):
    """Log densities of rows that a model has not seen, as functions of a factor of all variances."""

    @property
    def is_normal(self) -> bool:
        """Whether there are variances."""

    def scaled(self, factor: float) -> np.ndarray:
        """log p (n,), nats, with all variances times a factor."""


@dataclass(frozen=True)
class RowDensities:
    """What one net says of rows that it has not seen.

    Parameters
    ----------
    logs : ndarray of shape (n,)
        log p, nats.
    squares : ndarray of shape (n,)
        Σ over the targets of e²/v, the squared error over the variance; zero where p is not normal.
    n_targets : int
        C; zero where p is not normal.
    """

    logs: np.ndarray
    squares: np.ndarray
    n_targets: int

    @property
    def is_normal(self) -> bool:
        """Whether p is normal."""
        return self.n_targets > 0

    def scaled(self, factor: float) -> np.ndarray:
        """log p (n,) with all variances times a factor.

        Examples
        --------
        >>> one = RowDensities(np.array([-0.5 * np.log(2 * np.pi) - 2.0]), np.array([4.0]), 1)
        >>> bool(np.isclose(one.scaled(4.0)[0], -0.5 * np.log(2 * np.pi * 4) - 0.5))
        True
        """
        found: np.ndarray = self.logs - 0.5 * (self.n_targets * np.log(factor) + self.squares * (1 / factor - 1))
        return found
