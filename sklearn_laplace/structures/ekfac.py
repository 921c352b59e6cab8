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
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..errors import UnsupportedCombinationError
from ..jacobian import Batch, Block, DenseFactor
from ..linalg import eigh, require_semidefinite
from ._base import Curvature
from .kron import Kron, KronBlockPosterior, KronPosterior


@dataclass(frozen=True)
class EKFACBlock:
    """One layer's second moments in its basis; a dense tensor is the case of one output.

    Parameters
    ----------
    block : Block
    output_basis : Tensor of shape (O, O)
        U_B, orthogonal.
    input_basis : Tensor of shape (I, I)
        U_A, orthogonal.
    values : Tensor of shape (O, I)
        Λ.
    """

    block: Block
    output_basis: Tensor
    input_basis: Tensor
    values: Tensor


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
    >>> EKFAC.zero([Block("0", 3, 2, factored=True)], torch.device("cpu")).eigenvalues().tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """

    kron: Kron
    parts: tuple[EKFACBlock, ...] = ()
    accepts: ClassVar[frozenset[str]] = frozenset({"layers"})
    holds: ClassVar[frozenset[str]] = frozenset({"layer"})
    is_monoid: ClassVar[bool] = False

    @classmethod
    def zero(cls, blocks: Sequence[Block], device: torch.device) -> Self:
        """Of the first pass."""
        return cls(Kron.zero(blocks, device))

    def next_pass(self) -> Self | None:
        """Zeros in the eigenvectors of the first pass."""
        if self.parts:
            return None
        parts = []
        for part in self.kron.parts:
            output_basis = part.output_spectrum[1]
            input_basis = eigh(part.factors(self.kron.total_weight)[1])[1]
            values = input_basis.new_zeros(part.block.outputs, part.block.inputs)
            parts.append(EKFACBlock(part.block, output_basis, input_basis, values))
        return replace(self, parts=tuple(parts))

    def emptied(self, blocks: Sequence[Block], device: torch.device) -> Self:
        """Zeros in this one's basis."""
        return replace(self, parts=tuple(replace(part, values=torch.zeros_like(part.values)) for part in self.parts))

    @staticmethod
    def memory(blocks: Sequence[Block], n_dual: int) -> int:
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
        pieces = []
        for part, piece in zip(self.parts, vector.split([part.block.size for part in self.parts]), strict=True):
            rotated = part.output_basis.mT @ piece.view(part.values.shape) @ part.input_basis
            pieces.append((part.output_basis @ (part.values * rotated) @ part.input_basis.mT).flatten())
        return torch.cat(pieces)

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
            delta = piece.reshape(-1)[0]
            if not bool((piece == delta).all()):
                raise UnsupportedCombinationError(
                    f"hessian_structure='ekfac' needs one prior precision for all of layer '{part.block.name}', "
                    "weights and bias: others are not diagonal in its basis. Use prior_structure='scalar' or 'layer', "
                    "or hessian_structure='kron', 'block', 'full' or 'diag'."
                )
            ones = part.values.new_ones(part.block.inputs)
            posteriors.append(
                KronBlockPosterior(
                    part.output_basis, part.input_basis * delta.rsqrt(), 1 + scale / delta * part.values, delta * ones
                )
            )
        return KronPosterior(tuple(posteriors), tuple(sizes))

    def _moments(self, other: Self, sign: float) -> Self:
        if not (self.parts or other.parts):
            factors = self.kron.merge(other.kron) if sign > 0 else self.kron.subtract(other.kron)
            return replace(self, kron=factors)
        if self.kron is not other.kron:
            raise UnsupportedCombinationError(
                "two curvatures of hessian_structure='ekfac' can only be put together in one basis, and each has the "
                "eigenvectors of its own rows. Use hessian_structure='kron' or 'block', or fit all rows at once."
            )
        parts = []
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            values = mine.values + sign * theirs.values
            require_semidefinite(values.min(), mine.values.max())
            parts.append(replace(mine, values=values.clamp_min(0.0)))
        return replace(self, parts=tuple(parts))
