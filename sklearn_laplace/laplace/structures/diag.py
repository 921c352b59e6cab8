r"""Diag: the exact diagonal of the curvature, from one matrix product per layer, :math:`(\sum_k g^2)^\top (a^2)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..jacobian.jacobian import Batch, FactoredJacobian, ParameterBlock
from ..linalg import clipped, require_semidefinite
from ._base import Curvature, Posterior


@dataclass(frozen=True)
class Diag(Curvature):
    """The diagonal of H.

    Negative entries, which only occur if batches hold matrices (``Batch.matrix``), are treated as zero.

    >>> Diag(torch.tensor([1.0, 3.0]), (2,)).posterior(torch.tensor(1.0), 1.0).marginal_variance().tolist()
    [0.5, 0.25]
    """

    diagonal: Tensor  # (P,), float64, as accumulated
    sizes: tuple[int, ...]  # parameters of each block
    semidefinite: bool = True  # True for a sum of squares
    accepts: ClassVar[frozenset[str]] = frozenset({"rows", "matrix"})

    @classmethod
    def zero(cls, blocks: Sequence[ParameterBlock], device: torch.device) -> Self:
        sizes = tuple(block.size for block in blocks)
        return cls(torch.zeros(sum(sizes), dtype=torch.float64, device=device), sizes)

    @staticmethod
    def memory(blocks: Sequence[ParameterBlock], n_dual: int) -> int:
        return 2 * 8 * sum(block.size for block in blocks)

    def add_(self, batch: Batch) -> Self:
        if batch.matrix is not None:
            self.diagonal.add_(batch.matrix.diagonal())
            return replace(self, semidefinite=False)
        self.diagonal.add_(batch.jacobian.square_sum())
        return self

    def merge(self, other: Self) -> Self:
        return type(self)(self.diagonal + other.diagonal, self.sizes, self.semidefinite and other.semidefinite)

    def subtract(self, other: Self) -> Self:
        difference = self.diagonal - other.diagonal
        if not (self.semidefinite and other.semidefinite):
            return type(self)(difference, self.sizes, semidefinite=False)
        require_semidefinite(difference.min(), self.diagonal.max())
        return type(self)(difference.clamp_min(0.0), self.sizes)

    def times(self, vector: Tensor) -> Tensor:
        return self.eigenvalues() * vector

    @cached_property
    def _clipped(self) -> Tensor:
        return clipped(self.diagonal)

    def eigenvalues(self) -> Tensor:
        return self.diagonal if self.semidefinite else self._clipped

    def posterior(self, precision: Tensor, scale: float) -> DiagPosterior:
        return DiagPosterior(scale * self.eigenvalues() + precision, precision.expand_as(self.diagonal), self.sizes)


@dataclass(frozen=True)
class DiagPosterior(Posterior):
    """Posterior with independent weights."""

    total: Tensor  # posterior precisions p = s·h + δ, (P,)
    precision: Tensor  # δ, (P,)
    sizes: tuple[int, ...]  # parameters of each block

    @property
    def device(self) -> torch.device:
        return self.total.device

    @property
    def n_parameters(self) -> int:
        return len(self.total)

    def logdet_precision(self) -> Tensor:
        return self.total.log().sum()

    def apply_root(self, vectors: Tensor) -> Tensor:
        return vectors * self.total.rsqrt()

    def solve(self, vector: Tensor) -> Tensor:
        return vector / self.total

    def covariance(self, jacobian: FactoredJacobian) -> Tensor:
        """Σ_p J_kp J_lp / P_pp from the factors; the dense Jacobian of linear layers is never formed."""
        return jacobian.weighted_inner(1 / self.total)

    def left_out_covariance(self, jacobian: FactoredJacobian, factor: Tensor) -> Tensor:
        """Covariance after the row's part is subtracted from each precision; rows are dense in one block at a time."""
        total = torch.zeros((), dtype=torch.float64, device=self.total.device)
        pieces = zip(jacobian.factors, self.total.split(self.sizes), self.precision.split(self.sizes), strict=True)
        for part, precision, least in pieces:
            rows = part.rows().double()
            left = (precision - (factor.mT @ rows).square().sum(1)).maximum(least)
            total = total + (rows / left[:, None]) @ rows.mT
        return total

    def cross_covariance(self, jacobian: FactoredJacobian, other: FactoredJacobian) -> Tensor:
        return (jacobian.rows().flatten(0, 1).double() / self.total) @ other.rows().flatten(0, 1).double().mT

    def marginal_variance(self) -> Tensor:
        return 1 / self.total

    def prior_statistics(self, groups: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        # Σ is diagonal, and so is the second statistic
        share = self.precision / self.total
        zeros = torch.zeros(n_groups, dtype=torch.float64, device=share.device)
        return self.shrinkage(groups, n_groups), torch.diag(zeros.index_add(0, groups, share.square()))

    def shrinkage(self, groups: Tensor, n_groups: int) -> Tensor:
        zeros = torch.zeros(n_groups, dtype=torch.float64, device=self.total.device)
        return zeros.index_add(0, groups, self.precision / self.total)
