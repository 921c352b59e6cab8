r"""Functional: the exact posterior in its dual form, computed from the (N·K) × (N·K) Gram matrix.

The curvature consists of the weighted rows SᵀJ, stored as factors. With D = diag(δ), :math:`\hat J = S^\top J
D^{-1/2}` and :math:`C = I + s \hat J \hat J^\top` (Woodbury; Rasmussen & Williams 2006, eq. A.9)

.. math:: P^{-1} = D^{-1/2} (I - s \hat J^\top C^{-1} \hat J) D^{-1/2}, \qquad
          \log|P| = \log|D| + \log|C| .

With one precision per input column, a linear layer's Gram matrix is the elementwise product of its inputs' and its
cotangents' Gram matrices. Otherwise it is a sum of such products over the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from ...errors import UnsupportedCombinationError
from ..jacobian.jacobian import Batch, DenseFactor, Factor, FactoredJacobian, LayerFactor, ParameterBlock
from ..linalg import cholesky, downdated, eigh, eigvalsh, trace_of_inverse
from ._base import Curvature, Eigenbasis, Posterior

SAME_RATIOS = 1e-14
"""Relative difference up to which two sets of precisions are treated as proportional."""


@dataclass(frozen=True)
class Functional(Curvature):
    """All weighted rows SᵀJ, stored as factors.

    >>> Functional.zero([ParameterBlock("w", 1, 2, factored=False)], torch.device("cpu")).eigenvalues().tolist()
    [0.0, 0.0]
    """

    blocks: tuple[ParameterBlock, ...]
    pieces: tuple[FactoredJacobian, ...]  # weighted rows of each batch, float64
    device: torch.device
    accepts: ClassVar[frozenset[str]] = frozenset({"rows"})
    forgets: ClassVar[bool] = False

    @classmethod
    def zero(cls, blocks: Sequence[ParameterBlock], device: torch.device) -> Self:
        return cls(tuple(blocks), (), device)

    @staticmethod
    def memory(blocks: Sequence[ParameterBlock], n_dual: int) -> int:
        """Bytes of factors, Gram matrix and factorisation: 8 M (Σ (O + I) + 3 M) with M = N·K.

        Dense factors count O·I instead of O + I.
        """
        row_size = sum(b.outputs + b.inputs if b.positions == 1 else b.size for b in blocks)
        return 8 * n_dual * (row_size + 3 * n_dual)

    @property
    def n_dual(self) -> int:
        """Number M = N·K of dual rows, the stored rows of SᵀJ."""
        return sum(piece.n_rows * piece.n_columns for piece in self.pieces)

    def add_(self, batch: Batch) -> Self:
        piece = FactoredJacobian(tuple(factor.double() for factor in batch.jacobian.factors))
        return type(self)(self.blocks, (*self.pieces, piece), self.device)

    def merge(self, other: Self) -> Self:
        return type(self)(self.blocks, self.pieces + other.pieces, self.device)

    def subtract(self, other: Self) -> Self:
        """Not supported: individual stored rows cannot be found."""
        raise UnsupportedCombinationError(
            "hessian_structure='functional' stores the training rows and cannot remove rows from them. Use "
            "hessian_structure='full' (the same posterior), 'kron' or 'diag'."
        )

    def times(self, vector: Tensor) -> Tensor:
        inner = _times(self.factors, vector[:, None])
        return torch.cat([factor.transposed_times(inner) for factor in self.factors])[:, 0]

    @cached_property
    def factors(self) -> tuple[Factor, ...]:
        """All rows as one factor per block."""
        if not self.pieces:
            return tuple(_empty(block, self.device) for block in self.blocks)
        if len(self.pieces) == 1:
            return self.pieces[0].factors
        return tuple(_join(parts) for parts in zip(*(piece.factors for piece in self.pieces), strict=True))

    @cached_property
    def _unit_gram(self) -> Tensor:
        n_parameters = sum(block.size for block in self.blocks)
        ones = torch.ones(n_parameters, dtype=torch.float64, device=self.device)
        return _gram(self.factors, self.factors, _columns(self.blocks, ones))

    def _gram_in_ratio(self, ratios: Tensor) -> Tensor:
        """J diag(1/ratios) Jᵀ for precision ratios (P,), cached for posteriors that differ only in damping."""
        if not self._kept or float((self._kept[0] / ratios - 1).abs().max()) > SAME_RATIOS:
            factors, columns = _side_by_side(self.factors, _columns(self.blocks, 1 / ratios))
            self._kept[:] = ratios, _gram(factors, factors, columns)
        return self._kept[1]

    @cached_property
    def _kept(self) -> list[Tensor]:
        return []

    @cached_property
    def _eigenvalues(self) -> Tensor:
        return padded(eigvalsh(self._unit_gram), sum(block.size for block in self.blocks))

    def eigenvalues(self) -> Tensor:
        """Eigenvalues of the Gram matrix, padded with zeros or truncated to P."""
        return self._eigenvalues

    def eigenbasis(self) -> Eigenbasis:
        """V = Jᵀ U l^−½ from the eigenvectors U and eigenvalues l of the Gram matrix; V is never formed."""
        values, towards = self._towards
        ones = _columns(self.blocks, torch.ones(sum(b.size for b in self.blocks), dtype=torch.float64).to(values))

        def rows(jacobian: FactoredJacobian) -> Tensor:
            cross = _gram(_matched(self.factors, jacobian), self.factors, ones)
            return (cross @ towards).view(jacobian.n_rows, jacobian.n_columns, -1)

        return Eigenbasis(values, rows, lambda vector: towards.mT @ _times(self.factors, vector[:, None])[:, 0])

    @cached_property
    def _towards(self) -> tuple[Tensor, Tensor]:
        values, vectors = _positive(*eigh(self._unit_gram))
        return values, vectors * values.rsqrt()

    def posterior(self, precision: Tensor, scale: float) -> FunctionalPosterior:
        """Posterior from one Gram matrix and its Cholesky factorisation, O(M³/3)."""
        n_parameters = sum(block.size for block in self.blocks)
        precision = precision.expand(n_parameters)
        if bool((precision == precision[0]).all()):
            gram = self._unit_gram / precision[0]
        else:
            gram = self._gram_in_ratio(precision / precision[0]) / precision[0]
        system = scale * gram
        system.diagonal().add_(ones := system.new_ones(len(system)))
        return FunctionalPosterior(self.blocks, self.factors, precision, scale, gram, cholesky(system, ones))


@dataclass(frozen=True)
class FunctionalPosterior(Posterior):
    """The posterior, computed by Woodbury's formula."""

    blocks: tuple[ParameterBlock, ...]
    factors: tuple[Factor, ...]  # the training rows SᵀJ
    precision: Tensor  # δ, (P,)
    scale: float
    gram: Tensor  # Ĵ Ĵᵀ, (M, M)
    factor: Tensor  # lower Cholesky factor of C, (M, M)

    @property
    def device(self) -> torch.device:
        return self.precision.device

    @property
    def n_parameters(self) -> int:
        return len(self.precision)

    def row_width(self, blocks: Sequence[ParameterBlock], n_outputs: int) -> int:
        """Size of the covariances with all training rows, or of the row's factors if larger."""
        return n_outputs * max(len(self.gram), sum(block.width(1) for block in blocks))

    def logdet_precision(self) -> Tensor:
        return self.precision.log().sum() + 2 * self.factor.diagonal().log().sum()

    def apply_root(self, vectors: Tensor) -> Tensor:
        """Product with the symmetric root in the whitened space: D^−½ (I − V diag(1 − (1 + s l)^−½) Vᵀ) v.

        The Gram matrix is U diag(l) Uᵀ, and V = Ĵᵀ U l^−½.
        """
        values, basis = self._spectrum
        shrink = (1 - (1 + self.scale * values).rsqrt()) / values
        white = self.precision.rsqrt()[:, None]
        inner = basis.mT @ _times(self.factors, white * vectors.mT)
        outer = self._transposed_times(basis @ (shrink[:, None] * inner))
        return (white * vectors.mT - white.square() * outer).mT

    def solve(self, vector: Tensor) -> Tensor:
        """D⁻¹ v − s D⁻¹ Jᵀ C⁻¹ J D⁻¹ v, shape (P,)."""
        scaled = (vector / self.precision)[:, None]
        inner = torch.cholesky_solve(_times(self.factors, scaled), self.factor)
        return (scaled - self.scale * self._transposed_times(inner) / self.precision[:, None])[:, 0]

    def covariance(self, jacobian: FactoredJacobian) -> Tensor:
        """Prior covariance of the outputs minus the part explained by the training rows, shape (n, K, K)."""
        n, k = jacobian.n_rows, jacobian.n_columns
        explained = self._explained(jacobian).view(-1, n, k).movedim(0, -1)
        return jacobian.double().weighted_inner(1 / self.precision) - self.scale * explained @ explained.mT

    def left_out_covariance(self, jacobian: FactoredJacobian, factor: Tensor) -> Tensor:
        """Covariance with each row left out, by Woodbury's formula in the training rows' span to avoid cancellation."""
        values, vectors = self._spectrum
        cross = _gram(_matched(self.factors, jacobian), self.factors, self._columns)
        rows = (cross @ (vectors * values.rsqrt())).view(jacobian.n_rows, jacobian.n_columns, -1)
        prior = jacobian.double().weighted_inner(1 / self.precision)
        return downdated((rows / (1 + self.scale * values)) @ rows.mT, factor, prior) + prior - rows @ rows.mT

    def cross_covariance(self, jacobian: FactoredJacobian, other: FactoredJacobian) -> Tensor:
        left, right = self._explained(jacobian), self._explained(other)
        prior = _gram(_matched(self.factors, jacobian), _matched(self.factors, other), self._columns)
        return prior - self.scale * left.mT @ right

    def marginal_variance(self) -> Tensor:
        """diag(D⁻¹) minus the explained part, from dense rows of one block at a time, O(M² P)."""
        parts = []
        precisions = self.precision.split([block.size for block in self.blocks])
        for factor, delta in zip(self.factors, precisions, strict=True):
            rows = factor.rows().flatten(0, 1) / delta
            explained = torch.linalg.solve_triangular(self.factor, rows, upper=False)
            parts.append(1 / delta - self.scale * explained.square().sum(0))
        return torch.cat(parts)

    def prior_statistics(self, groups: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        """Statistics from each group's Gram matrix K_g, by G solves of O(M³), with 2 G matrices (M, M) in memory."""
        counts = torch.bincount(groups, minlength=n_groups).double()
        grams = self._group_grams(groups, n_groups)
        solved = [self.scale * torch.cholesky_solve(gram, self.factor) for gram in grams]
        explained = torch.stack([matrix.diagonal().sum() for matrix in solved])
        second = torch.stack([torch.stack([(a * b.mT).sum() for b in solved]) for a in solved])
        return counts - explained, second + torch.diag(counts - 2 * explained)

    def shrinkage(self, groups: Tensor, n_groups: int) -> Tensor:
        """n_g − s tr(C⁻¹ K_g) of each group, from marginal variances if there are many groups."""
        if n_groups * sum(block.width(1) for block in self.blocks) > self.n_parameters:
            zeros = torch.zeros(n_groups, dtype=torch.float64, device=self.device)
            return zeros.index_add(0, groups, self.precision * self.marginal_variance())
        counts = torch.bincount(groups, minlength=n_groups).double()
        if n_groups == 1:  # s tr(C⁻¹ K) = M − tr(C⁻¹)
            return counts - (len(self.gram) - trace_of_inverse(self.factor))
        inverse = torch.cholesky_inverse(self.factor)
        grams = self._group_grams(groups, n_groups)
        return counts - self.scale * torch.stack([(inverse * gram).sum() for gram in grams])

    def _group_grams(self, groups: Tensor, n_groups: int) -> list[Tensor]:
        """Ĵ_g Ĵ_gᵀ of each group, G matrices of shape (M, M)."""
        if n_groups == 1:
            return [self.gram]
        covariance = 1 / self.precision
        grams = []
        for group in range(n_groups):
            weights = _columns(self.blocks, torch.where(groups == group, covariance, 0.0))
            pairs = [(f, w) for f, w in zip(self.factors, weights, strict=True) if bool(w.any())]
            factors = [factor for factor, _ in pairs]
            grams.append(_gram(factors, factors, [w for _, w in pairs]) if pairs else torch.zeros_like(self.gram))
        return grams

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        return _positive(*eigh(self.gram))

    @cached_property
    def _columns(self) -> list[Tensor]:
        return _columns(self.blocks, 1 / self.precision)

    def _transposed_times(self, vectors: Tensor) -> Tensor:
        """Jᵀ V for V (M, s), shape (P, s)."""
        return torch.cat([factor.transposed_times(vectors) for factor in self.factors])

    def _explained(self, jacobian: FactoredJacobian) -> Tensor:
        """L⁻¹ Ĵ Ĵ*ᵀ, with Ĵ* from ``jacobian`` and L = ``factor``, (M, n·K)."""
        cross = _gram(self.factors, _matched(self.factors, jacobian), self._columns)
        return torch.linalg.solve_triangular(self.factor, cross, upper=False)


def padded(eigenvalues: Tensor, size: int) -> Tensor:
    """The ``size`` largest of the ascending ``eigenvalues``, preceded by zeros if there are fewer."""
    kept = eigenvalues[max(len(eigenvalues) - size, 0) :]
    return torch.cat([kept.new_zeros(size - len(kept)), kept])


def _empty(block: ParameterBlock, device: torch.device) -> Factor:
    if block.factored and block.positions == 1:
        shape = (0, 1, block.outputs)
        inputs = torch.zeros(0, block.inputs, dtype=torch.float64, device=device)
        return LayerFactor(inputs, torch.zeros(shape, dtype=torch.float64, device=device))
    return DenseFactor(torch.zeros(0, 1, block.size, dtype=torch.float64, device=device))


def _positive(values: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenpairs whose eigenvalues exceed rounding errors."""
    kept = values > 1e-14 * values.max() if len(values) else values > 0
    return values[kept], vectors[:, kept]


def _join(parts: Sequence[Factor]) -> Factor:
    layers = [part for part in parts if isinstance(part, LayerFactor)]
    if layers:
        return LayerFactor(torch.cat([p.inputs for p in layers]), torch.cat([p.cotangents for p in layers]))
    return DenseFactor(torch.cat([part.rows() for part in parts]))


def _gram(left: Sequence[Factor], right: Sequence[Factor], block_weights: Sequence[Tensor]) -> Tensor:
    """Σ over blocks of left · diag(weights) · rightᵀ, shape (M, M′)."""
    total = None
    for a, b, weights in zip(left, right, block_weights, strict=True):
        if isinstance(a, LayerFactor) and isinstance(b, LayerFactor):
            part = a.gram(b, weights)
        else:
            assert isinstance(a, DenseFactor) and isinstance(b, DenseFactor)
            part = a.gram(b, weights)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _side_by_side(factors: Sequence[Factor], block_weights: Sequence[Tensor]) -> tuple[list[Factor], list[Tensor]]:
    """Merge adjacent layers with equal cotangents, such as embeddings of columns, into one layer with all inputs."""
    merged: list[Factor] = []
    columns: list[Tensor] = []
    for factor, weights in zip(factors, block_weights, strict=True):
        before = merged[-1] if merged else None
        if (
            isinstance(before, LayerFactor)
            and isinstance(factor, LayerFactor)
            and columns[-1].ndim == weights.ndim == 1
            and torch.equal(before.cotangents, factor.cotangents)
        ):
            merged[-1] = LayerFactor(torch.cat([before.inputs, factor.inputs], 1), factor.cotangents)
            columns[-1] = torch.cat([columns[-1], weights])
        else:
            merged.append(factor)
            columns.append(weights)
    return merged, columns


def _times(factors: Sequence[Factor], vectors: Tensor) -> Tensor:
    """J V for V (P, s), shape (M, s)."""
    parts = zip(factors, vectors.split([factor.n_parameters for factor in factors]), strict=True)
    return torch.stack([factor.times(part) for factor, part in parts]).sum(0)


def _matched(factors: Sequence[Factor], jacobian: FactoredJacobian) -> list[Factor]:
    """Factors of other rows in float64, dense for the blocks that are dense in the training rows."""
    pairs = zip(factors, jacobian.factors, strict=True)
    return [(DenseFactor(b.rows()) if isinstance(a, DenseFactor) else b).double() for a, b in pairs]


def _columns(blocks: Sequence[ParameterBlock], per_parameter: Tensor) -> list[Tensor]:
    """Weights of :func:`_gram` for each block: (I,) if equal within columns, else (O, I); (p,) if dense."""
    weights = []
    for block, part in zip(blocks, per_parameter.split([block.size for block in blocks]), strict=True):
        matrix = part.view(block.outputs, block.inputs)
        if block.positions > 1 or not block.factored:
            weights.append(part)
        else:
            weights.append(matrix[0] if bool((matrix == matrix[0]).all()) else matrix)
    return weights
