r"""EKFAC: Kronecker eigenvectors with exact second moments in their basis (George et al. 2018).

:math:`U_B` and :math:`U_A` are the eigenvectors of the factors of kron. The output factor :math:`S_n` (``jacobian.py``)
is taken without the row weight. Its column k, back-propagated to the layer's weights, gives :math:`G_{nk}`. Then

.. math:: H_l \approx (U_B \otimes U_A)\, \mathrm{diag}(\Lambda)\, (U_B \otimes U_A)^\top, \qquad
          \Lambda = \sum_n w_n \sum_k (U_B^\top G_{nk} U_A)^{\circ 2} .

The basis depends on all rows, so a second pass over them is needed. Two ekfac curvatures can only be added if they have
the same basis. Each layer has a single prior precision, because several precisions would not be diagonal in the basis.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...errors import UnsupportedCombinationError
from ..jacobian.jacobian import Batch, DenseFactor, ParameterBlock
from ..linalg import require_semidefinite
from ._base import Curvature, WeightSharing
from .kron import Kron, KronBlockPosterior, KronPosterior, one_precision


@dataclass(frozen=True)
class EKFACBlock:
    """Second moments of one layer in its basis. A tensor stored densely counts as a layer with one output."""

    block: ParameterBlock
    output_basis: Tensor  # U_B, orthogonal, (O, O)
    input_basis: Tensor  # U_A, orthogonal, (I, I)
    values: Tensor  # Λ, (O, I)

    def times(self, vector: Tensor) -> Tensor:
        """U_B (Λ ∘ (U_Bᵀ V U_A)) U_Aᵀ for v of shape (O·I,), with V the matrix (O, I) of v."""
        rotated = self.output_basis.mT @ vector.view(self.values.shape) @ self.input_basis
        return (self.output_basis @ (self.values * rotated) @ self.input_basis.mT).flatten()


@dataclass(frozen=True)
class EKFAC(Curvature):
    """Kronecker eigenvectors with exact second moments.

    >>> EKFAC.zero([ParameterBlock("0", 3, 2, factored=True)], torch.device("cpu")).eigenvalues().tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """

    kron: Kron  # from the first pass
    parts: tuple[EKFACBlock, ...] = ()  # from the second pass
    accepts: ClassVar[frozenset[str]] = frozenset({"layers"})
    holds: ClassVar[frozenset[str]] = frozenset({"layer"})
    is_monoid: ClassVar[bool] = False
    takes: ClassVar[frozenset[str]] = frozenset({"bias", "weight_sharing"})

    @classmethod
    def zero(
        cls,
        blocks: Sequence[ParameterBlock],
        device: torch.device,
        weight_sharing: WeightSharing = WeightSharing.EXPAND,
    ) -> Self:
        """Zero curvature of the first pass. ``weight_sharing`` affects the basis only."""
        return cls(Kron.zero(blocks, device, weight_sharing))

    @property
    def options(self) -> dict[str, Any]:
        return self.kron.options

    def moments(self) -> tuple[EKFACBlock, ...]:
        """Second moments in their basis. Before the second pass, the eigenvalues of kron take their place."""
        if self.parts:
            return self.parts
        parts = []
        for part in self.kron.parts:
            (outputs, output_basis), (inputs, input_basis) = part.spectra(self.kron.total_weight)
            parts.append(EKFACBlock(part.block, output_basis, input_basis, torch.outer(outputs, inputs)))
        return tuple(parts)

    def next_pass(self) -> Self | None:
        """Zero second moments in the eigenvectors of the first pass; None after the second pass."""
        return None if self.parts else self._zeros(self.moments())

    def emptied(self, blocks: Sequence[ParameterBlock], device: torch.device) -> Self:
        return self._zeros(self.parts)

    def _zeros(self, parts: tuple[EKFACBlock, ...]) -> Self:
        return replace(self, parts=tuple(replace(part, values=torch.zeros_like(part.values)) for part in parts))

    @staticmethod
    def memory(
        blocks: Sequence[ParameterBlock], n_dual: int, weight_sharing: WeightSharing = WeightSharing.EXPAND
    ) -> int:
        return Kron.memory(blocks, n_dual) + 8 * sum(block.size for block in blocks)

    def add_(self, batch: Batch) -> Self:
        """Add a batch: the products of kron in the first pass, one rotated product per layer in the second."""
        if not self.parts:
            return replace(self, kron=self.kron.add_(batch))
        for part, factor in zip(self.parts, batch.jacobian.factors, strict=True):
            input_basis = part.input_basis.to(batch.outputs.dtype)
            if isinstance(factor, DenseFactor):
                squares = (factor.values @ input_basis).square().sum((0, 1))
            else:
                squares = factor.rotate(part.output_basis.to(batch.outputs.dtype), input_basis).square_sum()
            part.values.add_(squares.double().view(part.values.shape))
        return self

    def merge(self, other: Self) -> Self:
        return self._moments(other, 1.0)

    def subtract(self, other: Self) -> Self:
        return self._moments(other, -1.0)

    def times(self, vector: Tensor) -> Tensor:
        if not self.parts:
            return self.kron.times(vector)
        pieces = vector.split([part.block.size for part in self.parts])
        return torch.cat([part.times(piece) for part, piece in zip(self.parts, pieces, strict=True)])

    def eigenvalues(self) -> Tensor:
        """Second moments, or the eigenvalues of kron before the second pass."""
        return torch.cat([part.values.flatten() for part in self.parts]) if self.parts else self.kron.eigenvalues()

    def posterior(self, precision: Tensor, scale: float) -> KronPosterior:
        """Posterior that is diagonal in the basis, so no factorisation is needed."""
        if not self.parts:
            return self.kron.posterior(precision, scale)
        sizes = [part.block.size for part in self.parts]
        pieces = precision.split(sizes) if precision.ndim else (precision,) * len(sizes)
        posteriors = []
        for part, piece in zip(self.parts, pieces, strict=True):
            others = "hessian_structure='kron', 'low_rank_diag', 'block_diagonal', 'full' or 'diag'"
            delta = one_precision(piece, part.block, "hessian_structure='ekfac'", others)
            total = scale * part.values + delta
            posteriors.append(KronBlockPosterior.diagonal(part.output_basis, part.input_basis, total, delta))
        return KronPosterior(tuple(posteriors), tuple(sizes))

    def _moments(self, other: Self, sign: float) -> Self:
        if not (self.parts or other.parts):
            factors = self.kron.merge(other.kron) if sign > 0 else self.kron.subtract(other.kron)
            return replace(self, kron=factors)
        if self.kron is not other.kron:
            raise UnsupportedCombinationError(
                "hessian_structure='ekfac' can only merge or subtract curvatures with the same eigenvectors, but these "
                "two have eigenvectors of different rows. Use hessian_structure='kron' or 'block_diagonal', or fit all "
                "rows at once."
            )
        parts = []
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            values = mine.values + sign * theirs.values
            require_semidefinite(values.min(), mine.values.max())
            parts.append(replace(mine, values=values.clamp_min(0.0)))
        return replace(self, parts=tuple(parts))
