r"""EKFAC: Kronecker eigenvectors, exact second moments in their basis (George et al. 2018; "EFB").

With the eigenvectors :math:`U_B, U_A` of kron's factors and the weight gradient :math:`G_{nk}` of row n (summed over
positions before it is squared),

.. math:: H_l \approx (U_B \otimes U_A)\, \mathrm{diag}(\Lambda)\, (U_B \otimes U_A)^\top, \qquad
          \Lambda = \sum_n w_n \sum_k (U_B^\top G_{nk} U_A)^{\circ 2} :

the diagonal that is closest to the true block in that basis (Frobenius norm), so never farther from it than kron. The
basis comes from all rows, so that a second pass over them is needed, and sums of two of these only exist in one basis.
One prior precision a layer: more would not be diagonal in the basis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...errors import UnsupportedCombinationError
from ..jacobian.blocks import ParameterBlock
from ..jacobian.factors import DenseFactor
from ..jacobian.jacobian import Batch
from ..linalg import require_semidefinite
from ._base import Curvature, WeightSharing
from .kron import Kron, KronBlockPosterior, KronPosterior, one_precision


@dataclass(frozen=True)
class EKFACBlock:
    """One layer's second moments in its basis; a dense tensor is the case of one output.

    Parameters
    ----------
    block : ParameterBlock
    output_basis : Tensor of shape (O, O)
        U_B, orthogonal.
    input_basis : Tensor of shape (I, I)
        U_A, orthogonal.
    values : Tensor of shape (O, I)
        Λ.
    """

    block: ParameterBlock
    output_basis: Tensor
    input_basis: Tensor
    values: Tensor

    def times(self, vector: Tensor) -> Tensor:
        """U (Λ ∘ Uᵀ V U) Uᵀ for v of shape (O·I,)."""
        rotated = self.output_basis.mT @ vector.view(self.values.shape) @ self.input_basis
        return (self.output_basis @ (self.values * rotated) @ self.input_basis.mT).flatten()


@dataclass(frozen=True)
class EKFAC(Curvature):
    """Kronecker eigenvectors with their own second moments.

    Parameters
    ----------
    kron : Kron
        The factors, from the first pass.
    parts : tuple of EKFACBlock
        The second moments, from the second pass; empty in the first one.

    Examples
    --------
    >>> import torch
    >>> EKFAC.zero([ParameterBlock("0", 3, 2, factored=True)], torch.device("cpu")).eigenvalues().tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """

    kron: Kron
    parts: tuple[EKFACBlock, ...] = ()
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
        """Of the first pass; the option is about the basis alone."""
        return cls(Kron.zero(blocks, device, weight_sharing))

    @property
    def options(self) -> dict[str, Any]:
        """Those of kron."""
        return self.kron.options

    def moments(self) -> tuple[EKFACBlock, ...]:
        """The second moments in their basis; before the second pass kron's eigenvalues in kron's."""
        if self.parts:
            return self.parts
        parts = []
        for part in self.kron.parts:
            (outputs, output_basis), (inputs, input_basis) = part.spectra(self.kron.total_weight)
            parts.append(EKFACBlock(part.block, output_basis, input_basis, torch.outer(outputs, inputs)))
        return tuple(parts)

    def next_pass(self) -> Self | None:
        """Zeros in the eigenvectors of the first pass."""
        return None if self.parts else self._zeros(self.moments())

    def emptied(self, blocks: Sequence[ParameterBlock], device: torch.device) -> Self:
        """Zeros in this one's basis."""
        return self._zeros(self.parts)

    def _zeros(self, parts: tuple[EKFACBlock, ...]) -> Self:
        return replace(self, parts=tuple(replace(part, values=torch.zeros_like(part.values)) for part in parts))

    @staticmethod
    def memory(
        blocks: Sequence[ParameterBlock], n_dual: int, weight_sharing: WeightSharing = WeightSharing.EXPAND
    ) -> int:
        """kron's, and the second moments: 8 · P bytes more."""
        return Kron.memory(blocks, n_dual) + 8 * sum(block.size for block in blocks)

    def copy(self) -> Self:
        """A copy of factors and moments."""
        parts = tuple(replace(part, values=part.values.clone()) for part in self.parts)
        return replace(self, kron=self.kron if parts else self.kron.copy(), parts=parts)

    def add_(self, batch: Batch) -> Self:
        """kron's products in the first pass; in the second a rotation and one product a layer."""
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
        """Sum of the moments of two that share their basis."""
        return self._moments(other, 1.0)

    def subtract(self, other: Self) -> Self:
        """Difference of the moments of two that share their basis."""
        return self._moments(other, -1.0)

    def times(self, vector: Tensor) -> Tensor:
        """U (Λ ∘ Uᵀ V U) Uᵀ, layer by layer."""
        if not self.parts:
            return self.kron.times(vector)
        pieces = vector.split([part.block.size for part in self.parts])
        return torch.cat([part.times(piece) for part, piece in zip(self.parts, pieces, strict=True)])

    def eigenvalues(self) -> Tensor:
        """The second moments; kron's eigenvalues before the second pass."""
        return torch.cat([part.values.flatten() for part in self.parts]) if self.parts else self.kron.eigenvalues()

    def posterior(self, precision: Tensor, scale: float) -> KronPosterior:
        """Diagonal in the basis: no factorisation at all."""
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
                "two curvatures of hessian_structure='ekfac' can only be put together in one basis, and each has the "
                "eigenvectors of its own rows. Use hessian_structure='kron' or 'block_diagonal', or fit all rows "
                "at once."
            )
        parts = []
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            values = mine.values + sign * theirs.values
            require_semidefinite(values.min(), mine.values.max())
            parts.append(replace(mine, values=values.clamp_min(0.0)))
        return replace(self, parts=tuple(parts))
