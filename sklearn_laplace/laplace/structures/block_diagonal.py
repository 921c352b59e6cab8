r"""Block-diagonal structure: the exact block of every layer, without correlations between layers.

For a linear layer, :math:`H_{ll} = \sum_n [\sum_k g_{nk} g_{nk}^\top] \otimes a_n a_n^\top`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..jacobian.jacobian import Batch, FactoredJacobian, ParameterBlock
from ._base import Curvature, Posterior
from .full import Full


@dataclass(frozen=True)
class BlockDiagonal(Curvature):
    """One dense curvature per block.

    >>> stretches = [ParameterBlock("0", 3, 2, factored=True), ParameterBlock("w", 1, 4, factored=False)]
    >>> len(BlockDiagonal.zero(stretches, torch.device("cpu")).eigenvalues())
    10
    """

    parts: tuple[Full, ...]
    sizes: tuple[int, ...]  # parameters of each block
    accepts: ClassVar[frozenset[str]] = frozenset({"rows", "matrix"})
    takes: ClassVar[frozenset[str]] = frozenset({"bias"})

    @classmethod
    def zero(cls, blocks: Sequence[ParameterBlock], device: torch.device) -> Self:
        return cls(tuple(Full.zero([block], device) for block in blocks), tuple(block.size for block in blocks))

    @staticmethod
    def memory(blocks: Sequence[ParameterBlock], n_dual: int) -> int:
        return sum(Full.memory([block], n_dual) for block in blocks)

    @classmethod
    def row_width(cls, blocks: Sequence[ParameterBlock], n_columns: int) -> int:
        return max(Full.row_width([block], n_columns) for block in blocks)

    def add_(self, batch: Batch) -> Self:
        """Add each block's outer product, at most N·K Σ p² multiply-adds."""
        parts, start = [], 0
        for part, factor, size in zip(self.parts, batch.jacobian.factors, self.sizes, strict=True):
            span = slice(start, start + size)
            matrix = None if batch.matrix is None else batch.matrix[span, span]
            parts.append(part.add_(Batch(FactoredJacobian((factor,)), batch.outputs, batch.weights, matrix)))
            start += size
        return self._with(parts)

    def merge(self, other: Self) -> Self:
        return self._with(mine.merge(theirs) for mine, theirs in zip(self.parts, other.parts, strict=True))

    def subtract(self, other: Self) -> Self:
        return self._with(mine.subtract(theirs) for mine, theirs in zip(self.parts, other.parts, strict=True))

    def times(self, vector: Tensor) -> Tensor:
        pieces = zip(self.parts, vector.split(self.sizes), strict=True)
        return torch.cat([part.times(piece) for part, piece in pieces])

    def eigenvalues(self) -> Tensor:
        return torch.cat([part.eigenvalues() for part in self.parts])

    def posterior(self, precision: Tensor, scale: float) -> BlockPosterior:
        pieces = precision.split(self.sizes) if precision.ndim else (precision,) * len(self.parts)
        posteriors = (part.posterior(piece, scale) for part, piece in zip(self.parts, pieces, strict=True))
        return BlockPosterior(tuple(posteriors), self.sizes)

    def _with(self, parts: object) -> Self:
        return type(self)(tuple(parts), self.sizes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class BlockPosterior(Posterior):
    """Independent blocks, each with its own posterior."""

    parts: tuple[Posterior, ...]
    sizes: tuple[int, ...]  # parameters of each block

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    @property
    def n_parameters(self) -> int:
        return sum(self.sizes)

    def row_width(self, blocks: Sequence[ParameterBlock], n_outputs: int) -> int:
        """Width of the largest block, since blocks are processed one at a time."""
        pairs = zip(self.parts, blocks, strict=True)
        return max(part.row_width([block], n_outputs) for part, block in pairs)

    def logdet_precision(self) -> Tensor:
        return torch.stack([part.logdet_precision() for part in self.parts]).sum()

    def apply_root(self, vectors: Tensor) -> Tensor:
        return self._map(vectors, lambda part, piece: part.apply_root(piece))

    def solve(self, vector: Tensor) -> Tensor:
        return self._map(vector, lambda part, piece: part.solve(piece))

    def covariance(self, jacobian: FactoredJacobian) -> Tensor:
        return _total(part.covariance(block) for part, block in zip(self.parts, _by_block(jacobian), strict=True))

    def left_out_covariance(self, jacobian: FactoredJacobian, factor: Tensor) -> Tensor:
        pieces = zip(self.parts, _by_block(jacobian), strict=True)
        return _total(part.left_out_covariance(block, factor) for part, block in pieces)

    def variance(self, jacobian: FactoredJacobian) -> Tensor:
        return _total(part.variance(block) for part, block in zip(self.parts, _by_block(jacobian), strict=True))

    def cross_covariance(self, jacobian: FactoredJacobian, other: FactoredJacobian) -> Tensor:
        triples = zip(self.parts, _by_block(jacobian), _by_block(other), strict=True)
        return _total(part.cross_covariance(a, b) for part, a, b in triples)

    def marginal_variance(self) -> Tensor:
        return torch.cat([part.marginal_variance() for part in self.parts])

    def prior_statistics(self, groups: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        # blocks are uncorrelated, so their statistics add up
        pieces = zip(self.parts, groups.split(self.sizes), strict=True)
        statistics = [part.prior_statistics(piece, n_groups) for part, piece in pieces]
        first, second = (torch.stack(parts).sum(0) for parts in zip(*statistics, strict=True))
        return first, second

    def shrinkage(self, groups: Tensor, n_groups: int) -> Tensor:
        pieces = zip(self.parts, groups.split(self.sizes), strict=True)
        return _total(part.shrinkage(piece, n_groups) for part, piece in pieces)

    def _map(self, vectors: Tensor, function: Callable[[Posterior, Tensor], Tensor]) -> Tensor:
        pieces = zip(self.parts, vectors.split(self.sizes, -1), strict=True)
        return torch.cat([function(part, piece) for part, piece in pieces], -1)


def _by_block(jacobian: FactoredJacobian) -> list[FactoredJacobian]:
    return [FactoredJacobian((factor,)) for factor in jacobian.factors]


def _total(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).sum(0)
