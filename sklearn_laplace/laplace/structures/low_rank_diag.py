r"""LowRankDiag: the leading eigenpairs of ekfac and the exact diagonal (Lee et al. 2020, the information form).

For each layer, with the L largest second moments Λ of :mod:`~sklearn_laplace.laplace.structures.ekfac` and their
directions V,

.. math:: H_l \approx V \Lambda V^\top + D, \qquad D = \max(0,\ \mathrm{diag}\,H_l - \mathrm{diag}(V \Lambda V^\top)),

with the exact diagonal of H. Of equal moments, such as several Gaussian outputs have in the last layer, any may be
among the largest. The posterior's precision is a diagonal :math:`D' = s D + \mathrm{diag}(\delta)`, for any pattern of
δ, and a matrix of rank L. With :math:`W = D'^{-1/2} V (s\Lambda)^{1/2}` and the eigendecomposition
:math:`W^\top W = Z\,\mathrm{diag}(l)\,Z^\top` of L × L numbers, :math:`Q = Z^\top W^\top` has orthogonal rows and

.. math:: P^{-1} = D'^{-1/2} (I - Q^\top \mathrm{diag}(1 / (1 + l))\, Q) D'^{-1/2}, \qquad
          R = D'^{-1/2} (I - Q^\top \mathrm{diag}(r)\, Q), \quad
          r = \frac{1 - (1 + l)^{-1/2}}{l} = \frac{1}{\sqrt{1 + l}\,(1 + \sqrt{1 + l})} .

:math:`R R^\top = P^{-1}` to rounding; the source's own sampler is an approximation, and is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..jacobian.blocks import ParameterBlock
from ..jacobian.jacobian import Batch, FactoredJacobian
from ..linalg import eigh, eigvalsh
from ._base import RANK, Curvature, Posterior, WeightSharing
from .block_diagonal import BlockPosterior
from .diag import Diag
from .ekfac import EKFAC, EKFACBlock


@dataclass(frozen=True)
class InfBlock:
    """One layer: the leading eigenpairs, and the diagonal that they leave.

    Parameters
    ----------
    leading : EKFACBlock
        Its second moments, all but the largest at zero.
    rest : Tensor of shape (p,)
        D, not negative.
    """

    leading: EKFACBlock
    rest: Tensor

    @classmethod
    def of(cls, moments: EKFACBlock, diagonal: Tensor, rank: int) -> Self:
        """The ``rank`` largest of the moments, and what their diagonal lacks of the exact one (p,)."""
        values = moments.values.flatten()
        kept = torch.zeros_like(values)
        largest = values.topk(min(rank, len(values))).indices
        kept[largest] = values[largest]
        leading = replace(moments, values=kept.view(moments.values.shape))
        explained = leading.output_basis.square() @ leading.values @ leading.input_basis.square().mT
        return cls(leading, (diagonal - explained.flatten()).clamp_min(0.0))

    def rows(self) -> Tensor:
        """Λ^½ Vᵀ, shape (L, p), without those of moments that are zero."""
        outputs, inputs = self.leading.values.nonzero(as_tuple=True)
        roots = self.leading.values[outputs, inputs].sqrt()
        basis = self.leading.output_basis[:, outputs] * roots
        return torch.einsum("ol,il->loi", basis, self.leading.input_basis[:, inputs]).flatten(1)

    def times(self, vector: Tensor) -> Tensor:
        """(V Λ Vᵀ + D) v, without V."""
        return self.leading.times(vector) + self.rest * vector

    def eigenvalues(self) -> Tensor:
        """Those of V Λ Vᵀ + D, from the dense matrix: O(p³)."""
        rows = self.rows()
        return eigvalsh(rows.mT @ rows + self.rest.diag())

    def posterior(self, delta: Tensor, scale: float) -> InfBlockPosterior:
        """One eigendecomposition of L × L numbers, and products of O(L² p)."""
        total = scale * self.rest + delta
        white = self.rows() * (scale / total).sqrt()
        values, basis = eigh(white @ white.mT)
        return InfBlockPosterior(total, delta, values, basis.mT @ white)


@dataclass(frozen=True)
class LowRankDiag(Curvature):
    """Leading eigenpairs and the exact diagonal of every layer.

    Parameters
    ----------
    ekfac : EKFAC
        All second moments.
    diagonal : Diag
        Of H, from the last pass.
    rank : int
        L, eigenpairs kept in each layer.

    Examples
    --------
    >>> import torch
    >>> LowRankDiag.zero([ParameterBlock("0", 3, 2, factored=True)], torch.device("cpu"), rank=4).eigenvalues().tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """

    ekfac: EKFAC
    diagonal: Diag
    rank: int
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
        """Of the first pass."""
        return cls(EKFAC.zero(blocks, device, weight_sharing), Diag.zero(blocks, device), rank)

    @property
    def options(self) -> dict[str, Any]:
        """Those of ekfac, and the rank."""
        return {**self.ekfac.options, "rank": self.rank}

    def next_pass(self) -> Self | None:
        """ekfac's, and no diagonal yet: of the passes the last one counts."""
        following = self.ekfac.next_pass()
        return None if following is None else self._with(following, torch.zeros_like(self.diagonal.diagonal))

    def emptied(self, blocks: Sequence[ParameterBlock], device: torch.device) -> Self:
        """Zeros in this one's basis."""
        return self._with(self.ekfac.emptied(blocks, device), torch.zeros_like(self.diagonal.diagonal))

    @staticmethod
    def memory(
        blocks: Sequence[ParameterBlock],
        n_dual: int,
        weight_sharing: WeightSharing = WeightSharing.EXPAND,
        rank: int = RANK,
    ) -> int:
        """ekfac's, the diagonal's, and three times the eigenvectors while they are whitened: 24 · Σ p L bytes."""
        vectors = sum(min(rank, block.size) * block.size for block in blocks)
        return EKFAC.memory(blocks, n_dual) + Diag.memory(blocks, n_dual) + 3 * 8 * vectors

    def copy(self) -> Self:
        """A copy of both."""
        return replace(self, ekfac=self.ekfac.copy(), diagonal=self.diagonal.copy())

    def add_(self, batch: Batch) -> Self:
        """ekfac's products and diag's."""
        return replace(self, ekfac=self.ekfac.add_(batch), diagonal=self.diagonal.add_(batch))

    def merge(self, other: Self) -> Self:
        """Sums of the moments of two that share their basis, and of their diagonals."""
        return replace(self, ekfac=self.ekfac.merge(other.ekfac), diagonal=self.diagonal.merge(other.diagonal))

    def subtract(self, other: Self) -> Self:
        """Differences of both."""
        return replace(self, ekfac=self.ekfac.subtract(other.ekfac), diagonal=self.diagonal.subtract(other.diagonal))

    @cached_property
    def _blocks(self) -> tuple[InfBlock, ...]:
        moments = self.ekfac.moments()
        pieces = self.diagonal.eigenvalues().split([part.block.size for part in moments])
        return tuple(InfBlock.of(part, piece, self.rank) for part, piece in zip(moments, pieces, strict=True))

    def times(self, vector: Tensor) -> Tensor:
        """Layer by layer, O(p (O + I))."""
        pieces = vector.split(self.diagonal.sizes)
        return torch.cat([block.times(piece) for block, piece in zip(self._blocks, pieces, strict=True)])

    def eigenvalues(self) -> Tensor:
        """From dense matrices, O(Σ p³): to look at; the evidence goes by the posterior."""
        return torch.cat([block.eigenvalues() for block in self._blocks])

    def posterior(self, precision: Tensor, scale: float) -> BlockPosterior:
        """Layer by layer; any pattern of precisions."""
        sizes = self.diagonal.sizes
        pieces = precision.expand(sum(sizes)).split(sizes)
        parts = (block.posterior(piece, scale) for block, piece in zip(self._blocks, pieces, strict=True))
        return BlockPosterior(tuple(parts), sizes)

    def _with(self, ekfac: EKFAC, diagonal: Tensor) -> Self:
        return replace(self, ekfac=ekfac, diagonal=replace(self.diagonal, diagonal=diagonal))


@dataclass(frozen=True)
class InfBlockPosterior(Posterior):
    """A diagonal and a matrix of low rank, with the module's symbols.

    Parameters
    ----------
    total : Tensor of shape (p,)
        D′.
    precision : Tensor of shape (p,)
        Prior precisions δ.
    values : Tensor of shape (L,)
        l.
    rows : Tensor of shape (L, p)
        Q, orthogonal, of squared norms l.
    """

    total: Tensor
    precision: Tensor
    values: Tensor
    rows: Tensor

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.total.device

    @property
    def n_parameters(self) -> int:  # type: ignore[override]
        """Number p of weights."""
        return len(self.total)

    def row_width(self, blocks: Sequence[ParameterBlock], n_outputs: int) -> int:
        """The leading directions, seen from every output of the layer and of the network."""
        return len(self.values) * (n_outputs + max(block.outputs for block in blocks))

    @property
    def _explained(self) -> Tensor:
        """diag(1 + l)^−½ Q, whose outer product is what the whitened covariance lacks of the identity, (L, p)."""
        return self.rows * (1 + self.values).rsqrt()[:, None]

    def logdet_precision(self) -> Tensor:
        """log |D′| + Σ log(1 + l)."""
        return self.total.log().sum() + self.values.log1p().sum()

    def apply_root(self, vectors: Tensor) -> Tensor:
        """D′^−½ (v − Qᵀ r Q v) for each row v."""
        root = (1 + self.values).sqrt()
        shrink = 1 / (root * (1 + root))
        return (vectors - (vectors @ self.rows.mT * shrink) @ self.rows) * self.total.rsqrt()

    def solve(self, vector: Tensor) -> Tensor:
        """D′^−½ (I − Qᵀ diag(1/(1 + l)) Q) D′^−½ v."""
        white, explained = self.total.rsqrt() * vector, self._explained
        return self.total.rsqrt() * (white - explained.mT @ (explained @ white))

    def covariance(self, jacobian: FactoredJacobian) -> Tensor:
        """Of the diagonal minus what the leading directions explain; a linear layer is not multiplied out."""
        (factor,) = (part.double() for part in jacobian.factors)
        projected = factor.times((self._explained * self.total.rsqrt()).mT)
        projected = projected.view(jacobian.n_rows, jacobian.n_columns, -1)
        return factor.weighted_inner(1 / self.total) - projected @ projected.mT

    def left_out_covariance(self, jacobian: FactoredJacobian, factor: Tensor) -> Tensor:
        """:meth:`covariance` itself: in the moments, sums over all rows, a single one hardly counts."""
        return self.covariance(jacobian)

    def cross_covariance(self, jacobian: FactoredJacobian, other: FactoredJacobian) -> Tensor:
        """The same between all rows and outputs, from dense rows."""
        left, right = (j.rows().double().flatten(0, 1) * self.total.rsqrt() for j in (jacobian, other))
        explained = self._explained
        return left @ right.mT - (left @ explained.mT) @ (right @ explained.mT).mT

    def marginal_variance(self) -> Tensor:
        """What is not explained, over D′."""
        return (1 - self._explained.square().sum(0)) / self.total

    def prior_statistics(self, groups: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        """From G matrices of L × L, O(L² p): with e the columns of what is explained and ρ = δ/D′,
        δᵢδⱼΣᵢⱼ² = ρᵢρⱼ([i=j] (1 − 2 eᵢᵀeᵢ) + (eᵢᵀeⱼ)²).
        """
        explained, share = self._explained, self.precision / self.total
        norms = explained.square().sum(0)
        zeros = torch.zeros(n_groups, dtype=torch.float64, device=share.device)
        first = zeros.index_add(0, groups, share * (1 - norms))
        second = torch.diag(zeros.index_add(0, groups, share.square() * (1 - 2 * norms)))
        weighted = [explained * torch.where(groups == g, share, 0.0) for g in range(n_groups)]
        grams = torch.stack([part @ explained.mT for part in weighted]).flatten(1)
        return first, second + grams @ grams.mT
