"""Base class of curvature rules. A rule defines only the output factor S, independent of structures and priors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from ..jacobian.jacobian import Batch
from ..likelihoods._base import Likelihood
from ..network.network import Linearisation


class CurvatureRule(ABC):
    """Rule by which row n contributes Jₙᵀ Sₙ Sₙᵀ Jₙ to the curvature; plain data, so that equal rules agree."""

    provides: ClassVar[frozenset[str]]
    """Forms in which the contribution is available: "rows", "layers", "matrix"."""
    dispersion_power: ClassVar[int]
    """Power of 1 / φ with which the curvature scales."""

    @abstractmethod
    def batch(self, line: Linearisation, likelihood: Likelihood, targets: Tensor, weights: Tensor) -> Batch:
        """Weighted SᵀJ of a batch. The factor √w enters S here and nowhere else."""

    @abstractmethod
    def n_columns(self, likelihood: Likelihood, n_outputs: int) -> int:
        """Number of columns K of S: the backward passes, and the dense rows, per data row."""

    def memory(self, n_parameters: int) -> int:
        """Bytes of one contribution, not counting the structure; zero for rows, which are processed in chunks."""
        return 0

    def sampling(self, n_samples: int, seed: int) -> CurvatureRule:
        """Return the same rule with the given number of draws per row and seed; ``self`` if the rule draws nothing."""
        return self
