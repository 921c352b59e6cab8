"""What a curvature rule answers. A rule only chooses the output factor S; it knows no structure and no prior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from ..jacobian import Batch
from ..likelihoods._base import Likelihood
from ..network import Linearisation


class CurvatureRule(ABC):
    """One row contributes Jₙᵀ Sₙ Sₙᵀ Jₙ."""

    provides: ClassVar[frozenset[str]]
    """Forms in which the contribution is available: "rows", "layers", "matrix"."""
    dispersion_power: ClassVar[int]
    """The curvature scales with 1 / φ to this power."""

    @abstractmethod
    def batch(self, line: Linearisation, likelihood: Likelihood, targets: Tensor, weights: Tensor) -> Batch:
        """The weighted SᵀJ of a batch: √w enters S here, once."""
