"""What a curvature rule answers. A rule only chooses the output factor S; it knows no structure and no prior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from ..jacobian.jacobian import Batch
from ..likelihoods._base import Likelihood
from ..network.linearisation import Linearisation


class CurvatureRule(ABC):
    """One row contributes Jₙᵀ Sₙ Sₙᵀ Jₙ. Plain data; two equal rules give the same curvature of the same rows."""

    provides: ClassVar[frozenset[str]]
    """Forms in which the contribution is available: "rows", "layers", "matrix"."""
    dispersion_power: ClassVar[int]
    """The curvature scales with 1 / φ to this power."""

    @abstractmethod
    def batch(self, line: Linearisation, likelihood: Likelihood, targets: Tensor, weights: Tensor) -> Batch:
        """The weighted SᵀJ of a batch: √w enters S here, once."""

    @abstractmethod
    def n_columns(self, likelihood: Likelihood, n_outputs: int) -> int:
        """Columns K of S: as many backward passes, and dense rows, as one row of the data makes."""

    def memory(self, n_parameters: int) -> int:
        """Bytes that one contribution takes beside the structure; nothing for rows, which come in chunks."""
        return 0

    def sampling(self, n_samples: int, seed: int) -> CurvatureRule:
        """The same rule with this number of draws a row and this seed; itself where it draws nothing."""
        return self
