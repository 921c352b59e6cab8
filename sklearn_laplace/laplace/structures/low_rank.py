r"""Low rank: the leading eigenpairs of H, updated batch by batch.

The eigenpairs are stored as L rows :math:`R = \Lambda^{1/2} V^\top`. Rows SᵀJ (``jacobian.py``) are appended to R.
Whenever enough have accumulated, the matrix is truncated to its L largest singular values (Ross et al. 2008,
incremental SVD without the mean). The posterior applies Woodbury's formula to R, as ``functional.py`` does. It is
exact if the rank is at least the number of rows of SᵀJ or of parameters. Otherwise directions of little curvature keep
their prior variance, and the result depends slightly on the order of the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...errors import UnsupportedCombinationError
from ..jacobian.jacobian import Batch, DenseFactor, ParameterBlock
from ..linalg import cholesky, eigh
from ._base import RANK, Curvature
from .functional import FunctionalPosterior, padded

SLACK, PIECE = 2, 256
"""Rows are added in groups of max(``PIECE``, rank). If more than ``SLACK`` · rank rows result, they are truncated."""


@dataclass(frozen=True)
class LowRank(Curvature):
    """Leading eigenpairs, as rows whose outer products sum to an approximation of H.

    >>> LowRank.zero([ParameterBlock("w", 1, 3, factored=False)], torch.device("cpu"), rank=2).eigenvalues().tolist()
    [0.0, 0.0, 0.0]
    """

    blocks: tuple[ParameterBlock, ...]
    kept: Tensor  # R, (L, P), float64, with orthogonal rows after a truncation
    rank: int  # maximum number of rows in a posterior
    accepts: ClassVar[frozenset[str]] = frozenset({"rows"})
    forgets: ClassVar[bool] = False
    is_monoid: ClassVar[bool] = False
    takes: ClassVar[frozenset[str]] = frozenset({"rank"})

    @classmethod
    def zero(cls, blocks: Sequence[ParameterBlock], device: torch.device, rank: int = RANK) -> Self:
        size = sum(block.size for block in blocks)
        return cls(tuple(blocks), torch.zeros(0, size, dtype=torch.float64, device=device), rank)

    @property
    def options(self) -> dict[str, Any]:
        return {"rank": self.rank}

    @staticmethod
    def memory(blocks: Sequence[ParameterBlock], n_dual: int, rank: int = RANK) -> int:
        """Bytes of kept rows, new rows, the posterior's copy and its linear system: about 8 · P · (3 L + 256)."""
        rank = min(rank, n_dual, size := sum(block.size for block in blocks))
        return 8 * (size * ((SLACK + 1) * rank + min(PIECE, n_dual)) + 3 * rank**2)

    @classmethod
    def row_width(cls, blocks: Sequence[ParameterBlock], n_columns: int) -> int:
        return n_columns * sum(block.size for block in blocks)

    def add_(self, batch: Batch) -> Self:
        """Append the batch's dense rows and truncate, O((L + M)² P) for M = n·K rows."""
        rows = batch.jacobian.rows().flatten(0, 1).double()
        total: Self = self
        for piece in rows.split(max(self.rank, PIECE)):
            total = replace(total, kept=torch.cat([total.kept, piece]))
            if len(total.kept) > SLACK * total.rank:
                total = replace(total, kept=total._leading)
        return total

    def merge(self, other: Self) -> Self:
        return replace(self, kept=replace(self, kept=torch.cat([self._leading, other._leading]))._leading)

    def subtract(self, other: Self) -> Self:
        """Not supported: truncated parts of rows are lost."""
        raise UnsupportedCombinationError(
            "hessian_structure='low_rank' has truncated the training rows and cannot remove rows from them. Use "
            "hessian_structure='full', 'block_diagonal', 'kron' or 'diag'."
        )

    def times(self, vector: Tensor) -> Tensor:
        return self._leading.mT @ (self._leading @ vector)

    @cached_property
    def _leading(self) -> Tensor:
        """Leading singular directions times their singular values, at most ``rank`` rows."""
        if len(self.kept) <= self.rank:
            return self.kept
        rows, width = self.kept.shape
        if width < rows:
            values, vectors = eigh(self.kept.mT @ self.kept)
            return (vectors * values.sqrt()).mT[-self.rank :]
        return eigh(self.kept @ self.kept.mT)[1].mT[-self.rank :] @ self.kept

    def eigenvalues(self) -> Tensor:
        """Squared singular values of R, padded with zeros or truncated to P."""
        return self._eigenvalues

    @cached_property
    def _eigenvalues(self) -> Tensor:
        rows = self._leading
        return padded(eigh(rows @ rows.mT)[0], rows.shape[1])

    def posterior(self, precision: Tensor, scale: float) -> FunctionalPosterior:
        """Posterior by Woodbury's formula on the kept rows, O(L² P), for any pattern of precisions."""
        rows, sizes = self._leading, [block.size for block in self.blocks]
        precision = precision.expand(rows.shape[1])
        gram = (rows / precision) @ rows.mT
        system = scale * gram
        system.diagonal().add_(1.0)
        dense = tuple(ParameterBlock(block.name, 1, block.size, factored=False) for block in self.blocks)
        # Contiguous, as after loading from a file: other strides give other rounding errors.
        factors = tuple(DenseFactor(part[:, None].contiguous()) for part in rows.split(sizes, 1))
        return FunctionalPosterior(dense, factors, precision, scale, gram, cholesky(system))
