r"""Kron: a Kronecker product per layer (Martens & Grosse 2015; Botev et al. 2017; Ritter et al. 2018).

For [W | b] (outputs × inputs, row-major), inputs a and cotangents g without √wₙ, :math:`H_l \approx B \otimes A` with

.. math:: B = \sum_n w_n \sum_k g_{nk} g_{nk}^\top, \qquad A = \frac{1}{N_w} \sum_n w_n a_n a_n^\top .

A layer may be applied at several positions of each row (Eschenhagen et al. 2023). "expand" sums B and averages A over
positions (Grosse & Martens 2016), which suits networks with an output per position. "reduce" uses the mean input and
the summed cotangents of a row, which suits outputs that are an average over positions.

Layers are independent. A tensor without factors keeps its dense block. The prior precision may differ between the
columns of [W | b]. With D the diagonal matrix of the columns' precisions,

.. math:: s\,B \otimes A + I \otimes D = (I \otimes D^{1/2}) (s\,B \otimes \tilde A + I) (I \otimes D^{1/2}),
          \qquad \tilde A = D^{-1/2} A D^{-1/2},

and the eigenvectors of B and Ã diagonalise the middle factor. :meth:`Kron.damped_posterior` adds √δ to each factor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...errors import UnsupportedCombinationError
from ..jacobian.jacobian import Batch, DenseFactor, Factor, FactoredJacobian, ParameterBlock, SharedFactor
from ..linalg import eigh, gram, require_semidefinite
from ._base import Curvature, Posterior, Rotation, WeightSharing


@dataclass(frozen=True)
class KronBlock:
    """Factors of one layer. A tensor stored densely has one output, and its input factor is the whole block."""

    block: ParameterBlock
    output_sum: Tensor  # Σ w Σₖ g gᵀ, (O, O); unused (1, 1) for a dense tensor
    input_sum: Tensor  # Σ w a aᵀ, (I, I); the exact block for a dense tensor

    def factors(self, total_weight: Tensor) -> tuple[Tensor, Tensor]:
        """B (O, O) and A (I, I), with the block equal to B ⊗ A."""
        if not self.block.factored:
            return torch.ones_like(self.output_sum), self.input_sum
        return self.output_sum, self.input_sum / total_weight.clamp_min(torch.finfo(torch.float64).tiny)

    @cached_property
    def output_spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigendecomposition of B, which does not depend on hyperparameters."""
        return eigh(self.output_sum if self.block.factored else torch.ones_like(self.output_sum))

    @cached_property
    def _input_sum_spectrum(self) -> tuple[Tensor, Tensor]:
        return eigh(self.input_sum)

    def spectra(self, total_weight: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Eigendecompositions of B and A."""
        values, vectors = self._input_sum_spectrum
        if self.block.factored:
            values = values / total_weight.clamp_min(torch.finfo(torch.float64).tiny)
        return self.output_spectrum, (values, vectors)

    def __add__(self, other: KronBlock) -> KronBlock:
        return KronBlock(self.block, self.output_sum + other.output_sum, self.input_sum + other.input_sum)


@dataclass(frozen=True)
class Kron(Curvature):
    """Kronecker factors of every layer.

    >>> Kron.zero([ParameterBlock("0", 3, 2, factored=True)], torch.device("cpu")).eigenvalues().tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """

    parts: tuple[KronBlock, ...]
    total_weight: Tensor  # N_w, total weight of the rows, 0-d, since a float would synchronise a GPU
    weight_sharing: WeightSharing = WeightSharing.EXPAND
    accepts: ClassVar[frozenset[str]] = frozenset({"layers"})
    holds: ClassVar[frozenset[str]] = frozenset({"layer", "column"})
    takes: ClassVar[frozenset[str]] = frozenset({"bias", "weight_sharing", "damping"})

    @classmethod
    def zero(
        cls,
        blocks: Sequence[ParameterBlock],
        device: torch.device,
        weight_sharing: WeightSharing = WeightSharing.EXPAND,
    ) -> Self:
        def square(size: int) -> Tensor:
            return torch.zeros(size, size, dtype=torch.float64, device=device)

        parts = tuple(KronBlock(block, square(block.outputs), square(block.inputs)) for block in blocks)
        return cls(parts, torch.zeros((), dtype=torch.float64, device=device), weight_sharing)

    @property
    def options(self) -> dict[str, Any]:
        return {"weight_sharing": self.weight_sharing}

    @staticmethod
    def memory(
        blocks: Sequence[ParameterBlock], n_dual: int, weight_sharing: WeightSharing = WeightSharing.EXPAND
    ) -> int:
        """Bytes of the factors, their eigenvectors, and the input eigenvectors of a posterior: 8 · Σ (2 O² + 3 I²)."""
        return 8 * sum(2 * block.outputs**2 + 3 * block.inputs**2 for block in blocks)

    def add_(self, batch: Batch) -> Self:
        """Add two small products per layer: N K O² + N I² multiply-adds."""
        for part, factor in zip(self.parts, batch.jacobian.factors, strict=True):
            if isinstance(factor, DenseFactor):
                factor.add_cross_(factor, part.input_sum)
                continue
            if isinstance(factor, SharedFactor) and self.weight_sharing is WeightSharing.REDUCE:
                factor = factor.reduced()
            flat = factor.cotangents.flatten(0, -2)
            part.output_sum.add_(gram(flat, flat))
            if isinstance(factor, SharedFactor):
                weights = (batch.weights / factor.inputs.shape[1])[:, None, None]
                part.input_sum.add_(gram(factor.inputs.flatten(0, 1), (factor.inputs * weights).flatten(0, 1)))
            else:
                part.input_sum.add_(gram(factor.inputs, factor.inputs * batch.weights[:, None]))
        return replace(self, total_weight=self.total_weight + batch.weights.double().sum())

    def merge(self, other: Self) -> Self:
        parts = tuple(mine + theirs for mine, theirs in zip(self.parts, other.parts, strict=True))
        return replace(self, parts=parts, total_weight=self.total_weight + other.total_weight)

    def subtract(self, other: Self) -> Self:
        parts = []
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            part = KronBlock(mine.block, mine.output_sum - theirs.output_sum, mine.input_sum - theirs.input_sum)
            for left, before in ((part.output_sum, mine.output_sum), (part.input_sum, mine.input_sum)):
                require_semidefinite(torch.linalg.eigvalsh(left)[0], before.diagonal().max())
            parts.append(part)
        return replace(self, parts=tuple(parts), total_weight=self.total_weight - other.total_weight)

    def times(self, vector: Tensor) -> Tensor:
        """B V A, layer by layer, where the matrix V (O, I) is the layer's part of the vector."""
        pieces = []
        for part, piece in zip(self.parts, vector.split(self._sizes), strict=True):
            outputs, inputs = part.factors(self.total_weight)
            pieces.append((outputs @ piece.view(part.block.outputs, part.block.inputs) @ inputs).flatten())
        return torch.cat(pieces)

    def eigenvalues(self) -> Tensor:
        return self._eigenvalues

    @cached_property
    def _eigenvalues(self) -> Tensor:
        products = []
        for part in self.parts:
            (outputs, _), (inputs, _) = part.spectra(self.total_weight)
            products.append(torch.outer(outputs, inputs).flatten())
        return torch.cat(products)

    def posterior(self, precision: Tensor, scale: float) -> KronPosterior:
        """Posterior from cached eigendecompositions. Input factors with several precisions are decomposed again."""
        sizes = self._sizes
        precision = precision.expand(sum(sizes))
        posteriors = []
        for part, delta in zip(self.parts, precision.split(sizes), strict=True):
            matrix = delta.view(part.block.outputs, part.block.inputs)
            if not bool((matrix == matrix[0]).all()):
                raise UnsupportedCombinationError(
                    f"hessian_structure='kron' cannot represent different prior precisions within an input column of "
                    f"layer '{part.block.name}': the Kronecker form would be lost. Use prior='scalar', "
                    "'layer', 'tensor' or 'ard', or hessian_structure='full' or 'diag'."
                )
            if bool((matrix[0] == matrix[0, 0]).all()):
                (outputs, output_basis), (inputs, input_basis) = part.spectra(self.total_weight)
                total = scale * torch.outer(outputs, inputs) + matrix[0, 0]
                posteriors.append(KronBlockPosterior.diagonal(output_basis, input_basis, total, matrix[0, 0]))
                continue
            whiten = matrix[0].rsqrt()
            values, vectors = eigh(whiten[:, None] * part.factors(self.total_weight)[1] * whiten)
            outputs, output_basis = part.output_spectrum
            spectrum = 1 + scale * torch.outer(outputs, values)
            posteriors.append(KronBlockPosterior(output_basis, whiten[:, None] * vectors, spectrum, matrix[0]))
        return KronPosterior(tuple(posteriors), tuple(sizes))

    def rotation(self, groups: Tensor) -> Rotation | None:
        """Rotation into the eigenvectors of the factors; None if a block has several prior groups."""
        sizes = self._sizes
        if not all(bool((block_groups == block_groups[0]).all()) for block_groups in groups.split(sizes)):
            return None

        def rotate(jacobian: FactoredJacobian) -> Callable[[Tensor], Tensor]:
            parts = []
            for part, factor in zip(self.parts, jacobian.factors, strict=True):
                (outputs, output_basis), (inputs, input_basis) = part.spectra(self.total_weight)
                parts.append((torch.outer(outputs, inputs).flatten(), _rotated(factor, output_basis, input_basis)))

            def covariance(precision: Tensor) -> Tensor:
                deltas = precision.expand(sum(sizes)).split(sizes)
                inner = [
                    rotated.weighted_inner(1 / (values + delta[0])).double()
                    for (values, rotated), delta in zip(parts, deltas, strict=True)
                ]
                return torch.stack(inner).sum(0)

            return covariance

        return rotate

    @property
    def _sizes(self) -> list[int]:
        return [part.block.size for part in self.parts]

    def damped_posterior(self, precision: Tensor, scale: float) -> KronPosterior:
        r"""Posterior with √δ in each factor, eq. 9 of Ritter et al. (2018), for one precision per block.

        .. math:: P_l = (\sqrt{s N_w}\,\mathrm E[g g^\top] + \sqrt\delta I) \otimes (\sqrt{s N_w}\,A + \sqrt\delta I),
                  \qquad \mathrm E[g g^\top] = B / N_w .

        This is :math:`s\,B \otimes A + \delta I` plus two positive semi-definite terms. The N of the paper is
        :math:`s N_w` with :math:`s = 1/(T\varphi^p)`, so T enters only once. Dense tensors are not damped.
        """
        sizes = self._sizes
        rows = self.total_weight.clamp_min(torch.finfo(torch.float64).tiny)
        posteriors = []
        for part, piece in zip(self.parts, precision.expand(sum(sizes)).split(sizes), strict=True):
            instead = "Kron(damping='exact'), which supports one precision per tensor"
            delta = one_precision(piece, part.block, "Kron(damping='ritter')", instead)
            (outputs, output_basis), (inputs, input_basis) = part.spectra(rows)
            total = scale * torch.outer(outputs, inputs) + delta
            if part.block.factored:
                outer, inner = (scale / rows) ** 0.5 * outputs, (scale * rows) ** 0.5 * inputs
                total = torch.outer(outer + delta.sqrt(), inner + delta.sqrt())
            posteriors.append(KronBlockPosterior.diagonal(output_basis, input_basis, total, delta))
        return KronPosterior(tuple(posteriors), tuple(sizes))


def _rotated(factor: Factor, output_basis: Tensor, input_basis: Tensor) -> Factor:
    """A block's part of a Jacobian in the given bases; for a dense tensor only the input basis applies."""
    if isinstance(factor, DenseFactor):
        return DenseFactor(factor.values.double() @ input_basis)
    dtype = factor.inputs.dtype
    return factor.rotate(output_basis.to(dtype), input_basis.to(dtype))


def one_precision(values: Tensor, block: ParameterBlock, needed_by: str, instead: str) -> Tensor:
    """Prior precision (0-d) shared by a block's parameters. For several precisions, the error suggests ``instead``."""
    first = values.reshape(-1)[0]
    if not bool((values == first).all()):
        raise UnsupportedCombinationError(
            f"{needed_by} needs one prior precision for all parameters of layer '{block.name}', weights and bias: "
            "different precisions are not diagonal in its eigenbasis. Use prior='scalar', Kron(bias='separate') if "
            f"the precisions differ only between weight and bias, or {instead}."
        )
    return first


@dataclass(frozen=True)
class KronBlockPosterior:
    """Covariance of one layer: (Q_B ⊗ Q_A) diag(1/m) (Q_B ⊗ Q_A)ᵀ."""

    output_basis: Tensor  # Q_B, orthogonal, (O, O)
    input_basis: Tensor  # Q_A = D^−½ U, not orthogonal, (I, I)
    spectrum: Tensor  # m = 1 + s·l_B l_Aᵀ, (O, I)
    precision: Tensor  # diagonal of D, (I,)

    @classmethod
    def diagonal(cls, output_basis: Tensor, input_basis: Tensor, total: Tensor, delta: Tensor) -> Self:
        """Posterior whose precision is diagonal in orthogonal bases, with the entries ``total`` (O, I); δ is 0-d."""
        precision = delta.expand(total.shape[1])
        return cls(output_basis, input_basis * delta.rsqrt(), total / delta, precision)

    def logdet(self) -> Tensor:
        """log |P| of the layer, Σ log m + O Σ log D."""
        return self.spectrum.log().sum() + len(self.spectrum) * self.precision.log().sum()

    def to_eigen(self, matrices: Tensor) -> Tensor:
        """Q_Bᵀ M Q_A for matrices M (…, O, I)."""
        return self.output_basis.mT @ matrices @ self.input_basis

    def from_eigen(self, matrices: Tensor) -> Tensor:
        """Q_B M Q_Aᵀ for matrices M (…, O, I)."""
        return self.output_basis @ matrices @ self.input_basis.mT

    def rotate(self, factor: Factor) -> Factor:
        """The layer's part of a Jacobian in the eigenbasis."""
        return _rotated(factor, self.output_basis, self.input_basis)

    def marginal_variance(self) -> Tensor:
        """Diagonal of the covariance, shape (O, I)."""
        return self.output_basis.square() @ (1 / self.spectrum) @ self.input_basis.square().mT

    def shrinkage(self, columns: Tensor, n_groups: int) -> Tensor:
        """First statistic of :meth:`Posterior.prior_statistics`, from each column's group (I,), O(O I + I²)."""
        shares = (self.precision[:, None] * self.input_basis.square()) @ (1 / self.spectrum).sum(0)
        return shares.new_zeros(n_groups).index_add(0, columns, shares)

    def prior_statistics(self, columns: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        """Both statistics of :meth:`Posterior.prior_statistics`, from each column's group (I,), O(O I² min(I, G²)).

        In the whitened basis, the covariance has one block for each eigenvector u_b of B. Let vᵢ be the rows of U,
        m_b row b of 1/m, and E_g = Σ_{i∈g} vᵢ vᵢᵀ. The second statistic is Σ_b m_bᵀ (E_g ∘ E_h) m_b. For many groups it
        is summed over all pairs of columns, Σ_b (U diag(m_b) Uᵀ)^{∘2}.
        """
        vectors = self.input_basis * self.precision.sqrt()[:, None]
        shrink = 1 / self.spectrum
        present = columns.unique()
        second = shrink.new_zeros(n_groups, n_groups)
        if len(present) ** 2 > len(columns):
            squares = torch.zeros_like(vectors)
            for row in shrink:
                squares += ((vectors * row) @ vectors.mT).square_()
            second = second.index_add(
                0, columns, second.new_zeros(len(columns), n_groups).index_add(1, columns, squares)
            )
        else:
            grams = {g: vectors[columns == g].mT @ vectors[columns == g] for g in present.tolist()}
            for g in grams:
                for h in grams:
                    second[g, h] = (shrink @ (grams[g] * grams[h]) * shrink).sum()
        return self.shrinkage(columns, n_groups), second


@dataclass(frozen=True)
class KronPosterior(Posterior):
    """Independent layers, each with a Kronecker-factored covariance."""

    parts: tuple[KronBlockPosterior, ...]
    sizes: tuple[int, ...]  # parameters of each block

    @property
    def device(self) -> torch.device:
        return self.parts[0].spectrum.device

    @property
    def n_parameters(self) -> int:
        return sum(self.sizes)

    def logdet_precision(self) -> Tensor:
        return torch.stack([part.logdet() for part in self.parts]).sum()

    def apply_root(self, vectors: Tensor) -> Tensor:
        pieces = []
        for part, piece in zip(self.parts, vectors.split(self.sizes, -1), strict=True):
            matrices = piece.unflatten(-1, part.spectrum.shape)
            pieces.append(part.from_eigen(matrices * part.spectrum.rsqrt()).flatten(-2))
        return torch.cat(pieces, -1)

    def solve(self, vector: Tensor) -> Tensor:
        pieces = []
        for part, piece in zip(self.parts, vector.split(self.sizes), strict=True):
            matrix = part.to_eigen(piece.view(part.spectrum.shape))
            pieces.append(part.from_eigen(matrix / part.spectrum).flatten())
        return torch.cat(pieces)

    def covariance(self, jacobian: FactoredJacobian) -> Tensor:
        """Covariance of each row's outputs, without a dense Jacobian. Pairs of outputs share (Q_Aᵀa)²·(1/m)ᵀ."""
        total = torch.zeros((), dtype=torch.float64, device=self.parts[0].spectrum.device)
        for part, factor in zip(self.parts, jacobian.factors, strict=True):
            total = total + part.rotate(factor).weighted_inner((1 / part.spectrum).flatten()).double()
        return total

    def left_out_covariance(self, jacobian: FactoredJacobian, factor: Tensor) -> Tensor:
        """Same as :meth:`covariance`, with the factors of all rows (docs/decisions.md)."""
        return self.covariance(jacobian)

    def cross_covariance(self, jacobian: FactoredJacobian, other: FactoredJacobian) -> Tensor:
        left, right = (self._eigen_rows(j) for j in (jacobian, other))
        return left @ right.mT

    def _eigen_rows(self, jacobian: FactoredJacobian) -> Tensor:
        rows = []
        for part, factor in zip(self.parts, jacobian.factors, strict=True):
            matrices = factor.rows().double().flatten(0, 1).unflatten(-1, part.spectrum.shape)
            rows.append((part.to_eigen(matrices) * part.spectrum.rsqrt()).flatten(1))
        return torch.cat(rows, 1)

    def marginal_variance(self) -> Tensor:
        return torch.cat([part.marginal_variance().flatten() for part in self.parts])

    def prior_statistics(self, groups: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        # layers are uncorrelated, so their statistics add up
        first = groups.new_zeros(n_groups, dtype=torch.float64)
        second = groups.new_zeros(n_groups, n_groups, dtype=torch.float64)
        for part, piece in zip(self.parts, groups.split(self.sizes), strict=True):
            columns = piece.view(part.spectrum.shape)[0]
            layer_first, layer_second = part.prior_statistics(columns, n_groups)
            first, second = first + layer_first, second + layer_second
        return first, second

    def shrinkage(self, groups: Tensor, n_groups: int) -> Tensor:
        total = groups.new_zeros(n_groups, dtype=torch.float64)
        for part, piece in zip(self.parts, groups.split(self.sizes), strict=True):
            total = total + part.shrinkage(piece.view(part.spectrum.shape)[0], n_groups)
        return total
