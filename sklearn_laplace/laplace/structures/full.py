r"""Full: the P × P curvature.

:math:`H_{ll'} = \sum_n [\sum_k g_{nk} g'^\top_{nk}] \otimes a_n a'^\top_n` for two linear layers. Only the lower
blocks are filled. With one prior precision for all weights, a single eigendecomposition serves every δ, φ and T. With
several precisions, each posterior needs a Cholesky factorisation, O(P³/3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..jacobian.jacobian import Batch, FactoredJacobian, ParameterBlock
from ..linalg import cholesky, downdated, eigh, inverse_root, lower_gram, mirror_lower, require_semidefinite
from ._base import Curvature, Eigenbasis, Posterior

MANY_COLUMNS = 8
"""With at least this many columns of a Jacobian, the inputs of each layer are multiplied with the root first."""


@dataclass(frozen=True)
class Full(Curvature):
    """Dense curvature with only the lower block triangle filled.

    Negative eigenvalues, which only occur if batches hold matrices (``Batch.matrix``), are treated as zero.

    >>> block = ParameterBlock("w", 1, 2, factored=False)
    >>> Full.zero([block], torch.device("cpu")).eigenvalues().tolist()
    [0.0, 0.0]
    """

    lower: Tensor  # (P, P), float64, as accumulated
    sizes: tuple[int, ...]  # parameters of each block
    semidefinite: bool = True  # True for a sum of outer products
    accepts: ClassVar[frozenset[str]] = frozenset({"rows", "matrix"})

    @classmethod
    def zero(cls, blocks: Sequence[ParameterBlock], device: torch.device) -> Self:
        sizes = tuple(block.size for block in blocks)
        return cls(torch.zeros(sum(sizes), sum(sizes), dtype=torch.float64, device=device), sizes)

    @staticmethod
    def memory(blocks: Sequence[ParameterBlock], n_dual: int) -> int:
        return 3 * 8 * sum(block.size for block in blocks) ** 2

    @classmethod
    def row_width(cls, blocks: Sequence[ParameterBlock], n_columns: int) -> int:
        """P for one column, since dense rows are formed; zero for several columns (:meth:`LayerFactor.add_cross_`)."""
        return sum(block.size for block in blocks) if n_columns == 1 else 0

    def add_(self, batch: Batch) -> Self:
        """Add a batch's outer product. Linear layers need N P²/4 to N P²/2 multiply-adds for any number of outputs."""
        if batch.matrix is not None:
            self.lower.add_(batch.matrix)
            return replace(self, semidefinite=False)
        return self._add_outer_products_(batch.jacobian)

    @classmethod
    def of_rows(
        cls, blocks: Sequence[ParameterBlock], pieces: Sequence[FactoredJacobian], device: torch.device
    ) -> Self:
        """Dense curvature from the rows SᵀJ (see ``jacobian.py``) that ``functional`` stores."""
        total = cls.zero(blocks, device)
        for piece in pieces:
            total = total._add_outer_products_(piece)
        return total

    def _add_outer_products_(self, jacobian: FactoredJacobian) -> Self:
        factors = jacobian.factors
        if jacobian.n_columns == 1:
            rows = jacobian.rows().flatten(0, 1)
            self.lower.add_(lower_gram(rows, rows))
            return self
        starts = torch.tensor((0, *self.sizes)).cumsum(0).tolist()
        for i, row in enumerate(factors):
            for j, column in enumerate(factors[: i + 1]):
                row.add_cross_(column, self.lower[starts[i] : starts[i + 1], starts[j] : starts[j + 1]])
        return self

    def merge(self, other: Self) -> Self:
        return type(self)(self.lower + other.lower, self.sizes, self.semidefinite and other.semidefinite)

    def subtract(self, other: Self) -> Self:
        """Difference of the matrices. For sums of outer products, its smallest eigenvalue is checked, O(P³)."""
        semidefinite = self.semidefinite and other.semidefinite
        difference = type(self)(self.lower - other.lower, self.sizes, semidefinite)
        if semidefinite:
            require_semidefinite(torch.linalg.eigvalsh(difference.matrix)[0], self.lower.diagonal().max())
        return difference

    def times(self, vector: Tensor) -> Tensor:
        return self.matrix @ vector

    @cached_property
    def matrix(self) -> Tensor:
        """The symmetric matrix (P, P), positive semi-definite."""
        if self.semidefinite:
            return mirror_lower(self.lower)
        values, vectors = self._spectrum
        return (vectors * values) @ vectors.mT

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        return eigh(mirror_lower(self.lower), semidefinite=self.semidefinite)

    def eigenvalues(self) -> Tensor:
        return self._spectrum[0]

    def eigenbasis(self) -> Eigenbasis:
        values, vectors = self._spectrum

        def rows(jacobian: FactoredJacobian) -> Tensor:
            dense = jacobian.rows()
            return (dense @ vectors.to(dtype=dense.dtype)).double()

        return Eigenbasis(values, rows, lambda vector: vectors.mT @ vector)

    def posterior(self, precision: Tensor, scale: float) -> FullPosterior:
        """Posterior from the eigendecomposition for a single precision, else from a Cholesky factorisation."""
        if precision.ndim == 0:
            values, vectors = self._spectrum
            total = scale * values + precision
            return FullPosterior(vectors * total.rsqrt(), total.log().sum(), precision.expand(len(values)), False)
        matrix = scale * self.matrix
        matrix.diagonal().add_(precision)
        factor = cholesky(matrix, precision)
        return FullPosterior(factor, 2 * factor.diagonal().log().sum(), precision, True)


@dataclass(frozen=True)
class FullPosterior(Posterior):
    """Posterior with a dense root R of the covariance. A prediction costs O(n K P²), or O(n P²) for many columns."""

    half: Tensor  # R, or the Cholesky factor L of the precision, (P, P)
    logdet: Tensor  # log |P|, 0-d
    precision: Tensor  # δ, (P,)
    triangular: bool  # True if ``half`` is L

    @cached_property
    def root(self) -> Tensor:
        """R, shape (P, P)."""
        return inverse_root(self.half) if self.triangular else self.half

    @property
    def device(self) -> torch.device:
        return self.half.device

    @property
    def n_parameters(self) -> int:
        return self.half.shape[0]

    def row_width(self, blocks: Sequence[ParameterBlock], n_outputs: int) -> int:
        """Elements per row of J R, or of a layer's inputs times R if that is larger."""
        widest = n_outputs if n_outputs < MANY_COLUMNS else max(n_outputs, *(block.outputs for block in blocks))
        return widest * self.n_parameters

    def logdet_precision(self) -> Tensor:
        return self.logdet

    def apply_root(self, vectors: Tensor) -> Tensor:
        return vectors @ self.root.mT

    def solve(self, vector: Tensor) -> Tensor:
        """P⁻¹ v = R Rᵀ v, O(P²)."""
        if not self.triangular:
            return self.half @ (self.half.mT @ vector)
        forward = torch.linalg.solve_triangular(self.half, vector[:, None], upper=False)
        return torch.linalg.solve_triangular(self.half.mT, forward, upper=True)[:, 0]

    def covariance(self, jacobian: FactoredJacobian) -> Tensor:
        projected = self._project(jacobian)
        return projected @ projected.mT

    def left_out_covariance(self, jacobian: FactoredJacobian, factor: Tensor) -> Tensor:
        """Covariance with each row left out, by Woodbury's formula with eigendecompositions of size K."""
        return downdated(self.covariance(jacobian), factor, jacobian.weighted_inner(1 / self.precision))

    def variance(self, jacobian: FactoredJacobian) -> Tensor:
        return self._project(jacobian).square().sum(-1)

    def cross_covariance(self, jacobian: FactoredJacobian, other: FactoredJacobian) -> Tensor:
        return self._project(jacobian).flatten(0, 1) @ self._project(other).flatten(0, 1).mT

    def marginal_variance(self) -> Tensor:
        return self.root.square().sum(-1)

    def shrinkage(self, groups: Tensor, n_groups: int) -> Tensor:
        zeros = torch.zeros(n_groups, dtype=torch.float64, device=self.device)
        return zeros.index_add(0, groups, self.precision * self.marginal_variance())

    def prior_statistics(self, groups: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        """Statistics from Σ = R Rᵀ, which is formed once, O(P³)."""
        root = self.root * self.precision.sqrt()[:, None]
        members = torch.nn.functional.one_hot(groups, n_groups).double()
        squares = (root @ root.mT).square_()
        return members.mT @ root.square().sum(-1), members.mT @ squares @ members

    def _project(self, jacobian: FactoredJacobian) -> Tensor:
        """J R. With many columns, the inputs of each layer are multiplied with R first, O(n P²) for any K."""
        if jacobian.n_columns >= MANY_COLUMNS:
            return jacobian.times(self.root)
        rows = jacobian.rows()
        return (rows @ self.root.to(rows.dtype)).double()
