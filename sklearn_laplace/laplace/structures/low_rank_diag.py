r"""LowRankDiag: the leading eigenpairs of ekfac plus the exact diagonal (Lee et al. 2020, the information form).

With a layer's L largest second moments Λ of :mod:`~sklearn_laplace.laplace.structures.ekfac` and their directions V,

.. math:: H_l \approx V \Lambda V^\top + D, \qquad D = \max(0,\ \mathrm{diag}\,H_l - \mathrm{diag}(V \Lambda V^\top)),

where :math:`\mathrm{diag}\,H_l` is exact. The posterior precision is the sum of a diagonal :math:`D' = s D +
\mathrm{diag}(\delta)`, for any pattern of δ, and a matrix of rank L. With :math:`W = D'^{-1/2} V (s\Lambda)^{1/2}` and
the L × L eigendecomposition :math:`W^\top W = Z\,\mathrm{diag}(l)\,Z^\top`, :math:`Q = Z^\top W^\top` has orthogonal
rows and

.. math:: P^{-1} = D'^{-1/2} (I - Q^\top \mathrm{diag}(1 / (1 + l))\, Q) D'^{-1/2}, \qquad
          R = D'^{-1/2} (I - Q^\top \mathrm{diag}(r)\, Q), \quad
          r = \frac{1 - (1 + l)^{-1/2}}{l} = \frac{1}{\sqrt{1 + l}\,(1 + \sqrt{1 + l})} .

:math:`R R^\top = P^{-1}` holds up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..jacobian.jacobian import Batch, FactoredJacobian, ParameterBlock
from ..linalg import eigh, eigvalsh
from ._base import RANK, Curvature, Posterior, WeightSharing
from .block_diagonal import BlockPosterior
from .diag import Diag
from .ekfac import EKFAC, EKFACBlock


@dataclass(frozen=True)
class InfBlock:
    """Leading eigenpairs of one layer, and the rest of its diagonal."""

    leading: EKFACBlock  # second moments, zero except for the largest
    rest: Tensor  # D, non-negative, (p,)

    @classmethod
    def of(cls, moments: EKFACBlock, diagonal: Tensor, rank: int) -> Self:
        """Block with the ``rank`` largest moments, and the part of ``diagonal`` (p,) that they do not explain."""
        values = moments.values.flatten()
        kept = torch.zeros_like(values)
        largest = values.topk(min(rank, len(values))).indices
        kept[largest] = values[largest]
        leading = replace(moments, values=kept.view(moments.values.shape))
        explained = leading.output_basis.square() @ leading.values @ leading.input_basis.square().mT
        return cls(leading, (diagonal - explained.flatten()).clamp_min(0.0))

    def rows(self) -> Tensor:
        """Λ^½ Vᵀ, shape (L, p), without the rows whose moment is zero."""
        outputs, inputs = self.leading.values.nonzero(as_tuple=True)
        roots = self.leading.values[outputs, inputs].sqrt()
        basis = self.leading.output_basis[:, outputs] * roots
        return torch.einsum("ol,il->loi", basis, self.leading.input_basis[:, inputs]).flatten(1)

    def times(self, vector: Tensor) -> Tensor:
        """(V Λ Vᵀ + D) v, without forming V."""
        return self.leading.times(vector) + self.rest * vector

    def eigenvalues(self) -> Tensor:
        """Eigenvalues of V Λ Vᵀ + D, from the dense matrix, O(p³)."""
        rows = self.rows()
        return eigvalsh(rows.mT @ rows + self.rest.diag())

    def posterior(self, delta: Tensor, scale: float) -> InfBlockPosterior:
        """Posterior from an L × L eigendecomposition and products of O(L² p)."""
        total = scale * self.rest + delta
        white = self.rows() * (scale / total).sqrt()
        values, basis = eigh(white @ white.mT)
        return InfBlockPosterior(total, delta, values, basis.mT @ white)


@dataclass(frozen=True)
class LowRankDiag(Curvature):
    """Leading eigenpairs and exact diagonal of every layer.

    >>> LowRankDiag.zero([ParameterBlock("0", 3, 2, factored=True)], torch.device("cpu"), rank=4).eigenvalues().tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """

    ekfac: EKFAC  # all second moments
    diagonal: Diag  # of H, from the last pass
    rank: int  # eigenpairs per layer
    accepts: ClassVar[frozenset[str]] = frozenset({"layers"})
    is_monoid: ClassVar[bool] = False
    takes: ClassVar[frozenset[str]] = frozenset({"bias", "weight_sharing", "rank"})
    has_spectrum: ClassVar[bool] = False

    @classmethod
    def zero(
        cls,
        blocks: Sequence[ParameterBlock],
        device: torch.device,
        weight_sharing: WeightSharing = WeightSharing.EXPAND,
        rank: int = RANK,
    ) -> Self:
        return cls(EKFAC.zero(blocks, device, weight_sharing), Diag.zero(blocks, device), rank)

    @property
    def options(self) -> dict[str, Any]:
        return {**self.ekfac.options, "rank": self.rank}

    def next_pass(self) -> Self | None:
        """Next pass of ekfac with a zero diagonal, since only the diagonal of the last pass is used."""
        following = self.ekfac.next_pass()
        return None if following is None else self._with(following, torch.zeros_like(self.diagonal.diagonal))

    def emptied(self, blocks: Sequence[ParameterBlock], device: torch.device) -> Self:
        return self._with(self.ekfac.emptied(blocks, device), torch.zeros_like(self.diagonal.diagonal))

    @staticmethod
    def memory(
        blocks: Sequence[ParameterBlock],
        n_dual: int,
        weight_sharing: WeightSharing = WeightSharing.EXPAND,
        rank: int = RANK,
    ) -> int:
        """Bytes of the parts, plus 24 · Σ p min(L, p) for the leading eigenvectors and two whitened copies of them."""
        vectors = sum(min(rank, block.size) * block.size for block in blocks)
        return EKFAC.memory(blocks, n_dual) + Diag.memory(blocks, n_dual) + 3 * 8 * vectors

    def add_(self, batch: Batch) -> Self:
        return replace(self, ekfac=self.ekfac.add_(batch), diagonal=self.diagonal.add_(batch))

    def merge(self, other: Self) -> Self:
        return replace(self, ekfac=self.ekfac.merge(other.ekfac), diagonal=self.diagonal.merge(other.diagonal))

    def subtract(self, other: Self) -> Self:
        return replace(self, ekfac=self.ekfac.subtract(other.ekfac), diagonal=self.diagonal.subtract(other.diagonal))

    @cached_property
    def _blocks(self) -> tuple[InfBlock, ...]:
        moments = self.ekfac.moments()
        pieces = self.diagonal.eigenvalues().split([part.block.size for part in moments])
        return tuple(InfBlock.of(part, piece, self.rank) for part, piece in zip(moments, pieces, strict=True))

    def times(self, vector: Tensor) -> Tensor:
        pieces = vector.split(self.diagonal.sizes)
        return torch.cat([block.times(piece) for block, piece in zip(self._blocks, pieces, strict=True)])

    def eigenvalues(self) -> Tensor:
        """Eigenvalues from dense matrices, O(Σ p³). The evidence uses the posterior instead."""
        return torch.cat([block.eigenvalues() for block in self._blocks])

    def posterior(self, precision: Tensor, scale: float) -> BlockPosterior:
        sizes = self.diagonal.sizes
        pieces = precision.expand(sum(sizes)).split(sizes)
        parts = (block.posterior(piece, scale) for block, piece in zip(self._blocks, pieces, strict=True))
        return BlockPosterior(tuple(parts), sizes)

    def _with(self, ekfac: EKFAC, diagonal: Tensor) -> Self:
        return replace(self, ekfac=ekfac, diagonal=replace(self.diagonal, diagonal=diagonal))


@dataclass(frozen=True)
class InfBlockPosterior(Posterior):
    """Posterior of a diagonal plus a low-rank matrix, in the symbols of the module docstring."""

    total: Tensor  # D′, (p,)
    precision: Tensor  # δ, (p,)
    values: Tensor  # l, (L,)
    rows: Tensor  # Q, (L, p), with orthogonal rows of squared norms l

    @property
    def device(self) -> torch.device:
        return self.total.device

    @property
    def n_parameters(self) -> int:
        return len(self.total)

    def row_width(self, blocks: Sequence[ParameterBlock], n_outputs: int) -> int:
        """Size of the leading directions' products with every output of the network and of the layer."""
        return len(self.values) * (n_outputs + max(block.outputs for block in blocks))

    @property
    def _explained(self) -> Tensor:
        """E = diag(1 + l)^−½ Q, shape (L, p). The posterior covariance is D′^−½ (I − Eᵀ E) D′^−½."""
        return self.rows * (1 + self.values).rsqrt()[:, None]

    def logdet_precision(self) -> Tensor:
        return self.total.log().sum() + self.values.log1p().sum()

    def apply_root(self, vectors: Tensor) -> Tensor:
        """D′^−½ (v − Qᵀ r Q v) for each row v."""
        root = (1 + self.values).sqrt()
        shrink = 1 / (root * (1 + root))
        return (vectors - (vectors @ self.rows.mT * shrink) @ self.rows) * self.total.rsqrt()

    def solve(self, vector: Tensor) -> Tensor:
        """P⁻¹ v = D′^−½ (I − Qᵀ diag(1/(1 + l)) Q) D′^−½ v."""
        white, explained = self.total.rsqrt() * vector, self._explained
        return self.total.rsqrt() * (white - explained.mT @ (explained @ white))

    def covariance(self, jacobian: FactoredJacobian) -> Tensor:
        """Covariance (n, K, K) under the precision D′ alone, minus the part explained by the leading directions."""
        (factor,) = (part.double() for part in jacobian.factors)
        projected = factor.times((self._explained * self.total.rsqrt()).mT)
        projected = projected.view(jacobian.n_rows, jacobian.n_columns, -1)
        return factor.weighted_inner(1 / self.total) - projected @ projected.mT

    def left_out_covariance(self, jacobian: FactoredJacobian, factor: Tensor) -> Tensor:
        """Same as :meth:`covariance`, with the moments of all rows, including the row itself."""
        return self.covariance(jacobian)

    def cross_covariance(self, jacobian: FactoredJacobian, other: FactoredJacobian) -> Tensor:
        left, right = (j.rows().double().flatten(0, 1) * self.total.rsqrt() for j in (jacobian, other))
        explained = self._explained
        return left @ right.mT - (left @ explained.mT) @ (right @ explained.mT).mT

    def marginal_variance(self) -> Tensor:
        return (1 - self._explained.square().sum(0)) / self.total

    def prior_statistics(self, groups: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        """Statistics from G matrices of shape (L, L), O(L² p) each.

        With the columns eᵢ of E = diag(1 + l)^−½ Q and ρ = δ/D′, δᵢδⱼΣᵢⱼ² = ρᵢρⱼ([i=j] (1 − 2 eᵢᵀeᵢ) + (eᵢᵀeⱼ)²).
        """
        explained, share = self._explained, self.precision / self.total
        norms = explained.square().sum(0)
        zeros = torch.zeros(n_groups, dtype=torch.float64, device=share.device)
        first = zeros.index_add(0, groups, share * (1 - norms))
        second = torch.diag(zeros.index_add(0, groups, share.square() * (1 - 2 * norms)))
        weighted = [explained * torch.where(groups == g, share, 0.0) for g in range(n_groups)]
        grams = torch.stack([part @ explained.mT for part in weighted]).flatten(1)
        return first, second + grams @ grams.mT
