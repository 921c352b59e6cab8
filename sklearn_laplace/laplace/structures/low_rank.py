r"""Low rank: the leading eigenpairs of H, found while the rows stream by.

The rows SᵀJ are stacked under what is kept, :math:`R = \Lambda^{1/2} V^\top` (L × P), and cut back to the L largest
singular values whenever there are enough of them (Ross et al. 2008, incremental SVD without the mean). The posterior is
Woodbury's on R, which is :mod:`~sklearn_laplace.laplace.structures.functional`'s. With as many ranks as dual rows, or
as parameters, it is exact; with fewer, directions of little curvature keep their prior. Sums of truncated ones are
approximate, and depend a little on the order of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...errors import UnsupportedCombinationError
from ..jacobian.blocks import ParameterBlock
from ..jacobian.factors import DenseFactor
from ..jacobian.jacobian import Batch
from ..linalg import cholesky, eigh
from ._base import RANK, Curvature
from .functional import FunctionalPosterior

SLACK, PIECE = 2, 256
"""Rows are cut back when there are this many times the rank, and come in pieces of at least so many."""


@dataclass(frozen=True)
class LowRank(Curvature):
    """At least the ``rank`` leading eigenpairs, as rows whose outer products sum to H.

    Parameters
    ----------
    blocks : tuple of ParameterBlock
    kept : Tensor of shape (L, P), float64
        R, orthogonal rows once they have been cut back.
    rank : int
        Largest number of rows of a posterior.

    Examples
    --------
    >>> import torch
    >>> LowRank.zero([ParameterBlock("w", 1, 3, factored=False)], torch.device("cpu"), rank=2).eigenvalues().tolist()
    [0.0, 0.0, 0.0]
    """

    blocks: tuple[ParameterBlock, ...]
    kept: Tensor
    rank: int
    accepts: ClassVar[frozenset[str]] = frozenset({"rows"})
    forgets: ClassVar[bool] = False
    is_monoid: ClassVar[bool] = False
    takes: ClassVar[frozenset[str]] = frozenset({"rank"})

    @classmethod
    def zero(cls, blocks: Sequence[ParameterBlock], device: torch.device, rank: int = RANK) -> Self:
        """No rows."""
        size = sum(block.size for block in blocks)
        return cls(tuple(blocks), torch.zeros(0, size, dtype=torch.float64, device=device), rank)

    @property
    def options(self) -> dict[str, Any]:
        """The rank."""
        return {"rank": self.rank}

    @staticmethod
    def memory(blocks: Sequence[ParameterBlock], n_dual: int, rank: int = RANK) -> int:
        """Kept rows, a piece of new ones, a copy in the posterior, and its system: about 8 · P · (3 L + 256) bytes."""
        rank = min(rank, n_dual, size := sum(block.size for block in blocks))
        return 8 * (size * ((SLACK + 1) * rank + min(PIECE, n_dual)) + 3 * rank**2)

    @classmethod
    def row_width(cls, blocks: Sequence[ParameterBlock], n_columns: int) -> int:
        """Dense rows."""
        return n_columns * sum(block.size for block in blocks)

    def copy(self) -> Self:
        """Itself: rows are never changed in place."""
        return self

    def add_(self, batch: Batch) -> Self:
        """Stack the batch's dense rows and cut back: O((L + M)² P) for M = n·K of them."""
        rows = batch.jacobian.rows().flatten(0, 1).double()
        found: Self = self
        for piece in rows.split(max(self.rank, PIECE)):
            found = replace(found, kept=torch.cat([found.kept, piece]))
            if len(found.kept) > SLACK * found.rank:
                found = replace(found, kept=found._leading)
        return found

    def merge(self, other: Self) -> Self:
        """Rows of both, cut back."""
        return replace(self, kept=replace(self, kept=torch.cat([self._leading, other._leading]))._leading)

    def subtract(self, other: Self) -> Self:
        """Refused: what was cut off cannot be taken out."""
        raise UnsupportedCombinationError(
            "hessian_structure='low_rank' has cut off a part of every row and cannot take rows out again. Use "
            "hessian_structure='full', 'block_diagonal', 'kron' or 'diag'."
        )

    def times(self, vector: Tensor) -> Tensor:
        """Rᵀ (R v)."""
        return self._leading.mT @ (self._leading @ vector)

    @cached_property
    def _leading(self) -> Tensor:
        """The leading singular directions times their singular values, at most ``rank`` rows."""
        if len(self.kept) <= self.rank:
            return self.kept
        rows, width = self.kept.shape
        if width < rows:
            values, vectors = eigh(self.kept.mT @ self.kept)
            return (vectors * values.sqrt()).mT[-self.rank :]
        return eigh(self.kept @ self.kept.mT)[1].mT[-self.rank :] @ self.kept

    def eigenvalues(self) -> Tensor:
        """Squared singular values, padded with zeros (or cut) to P."""
        return self._eigenvalues

    @cached_property
    def _eigenvalues(self) -> Tensor:
        rows = self._leading
        found = eigh(rows @ rows.mT)[0]
        padded = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
        count = min(len(found), len(padded))
        padded[len(padded) - count :] = found[len(found) - count :]
        return padded

    def posterior(self, precision: Tensor, scale: float) -> FunctionalPosterior:
        """Woodbury on the kept rows, O(L² P); any pattern of precisions."""
        rows, sizes = self._leading, [block.size for block in self.blocks]
        precision = precision.expand(rows.shape[1])
        gram = (rows / precision) @ rows.mT
        system = scale * gram
        system.diagonal().add_(1.0)
        dense = tuple(ParameterBlock(block.name, 1, block.size, factored=False) for block in self.blocks)
        # contiguous, as they come back from a file: other strides round in another way
        factors = tuple(DenseFactor(part[:, None].contiguous()) for part in rows.split(sizes, 1))
        return FunctionalPosterior(dense, factors, precision, scale, gram, cholesky(system))
