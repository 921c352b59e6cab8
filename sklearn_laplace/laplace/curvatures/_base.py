"""Base class of curvature rules. A rule depends on neither structures nor priors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from ..jacobian.jacobian import Batch
from ..likelihoods._base import Likelihood
from ..network.network import Linearisation


class CurvatureRule(ABC):
    """Rule for the contribution Jₙᵀ Sₙ Sₙᵀ Jₙ of row n to the curvature. Rules with the same options compare equal."""

    provides: ClassVar[frozenset[str]]
    """Forms in which the contribution is available: "rows", "layers", "matrix"."""
    dispersion_power: ClassVar[int]
    """Power of 1 / φ with which the curvature scales."""

    @abstractmethod
    def batch(self, line: Linearisation, likelihood: Likelihood, targets: Tensor, weights: Tensor) -> Batch:
        """Contribution of a batch. The factor √w enters S here and nowhere else."""

    @abstractmethod
    def n_columns(self, likelihood: Likelihood, n_outputs: int) -> int:
        """Number K of columns of S: backward passes per batch, and dense rows per data row."""

    def memory(self, n_parameters: int) -> int:
        """Bytes of a contribution given as a matrix; zero if it is given as rows, which are processed in chunks."""
        return 0

    def sampling(self, n_samples: int, seed: int) -> CurvatureRule:
        """Return the rule with this number of draws per row and this seed; ``self`` if it draws nothing."""
        return self
