r"""Factored Jacobians: data that layers produce and structures consume.

Row n of a batch contributes :math:`S_n^\top J_n` (K × P). Here :math:`J_n` (C × P) is the Jacobian of the outputs and
:math:`S_n` (C × K) is an output factor. The parameters are divided into blocks of three kinds:

- A linear layer. Row n has the part :math:`g_{nk} \otimes a_n`, with the layer's input a and the output cotangents g.
  The product is formed only on request.
- A linear layer at several positions of each row (a sequence, the patches of a convolution). The part is
  :math:`\sum_l g_{nkl} \otimes a_{nl}`.
- One tensor of any other layer. The part is stored densely.

The block of a linear layer is [W | b] (outputs × inputs, with the bias as last column), flattened row by row.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from typing import Self

import torch
from torch import Tensor

from .khatri_rao import add_khatri_rao_, add_square_


@dataclass(frozen=True)
class _LinearFactor:
    """Part of SᵀJ of a linear layer with I inputs and O outputs: two tensors, whose last axes have sizes I and O."""

    inputs: Tensor
    cotangents: Tensor

    @property
    def n_parameters(self) -> int:
        """Number of parameters O·I."""
        return self.cotangents.shape[-1] * self.inputs.shape[-1]

    def scaled(self, weights: Tensor) -> Self:
        """Multiply each entry by its parameter's weight (O·I,). Weights must be equal within an input column."""
        columns = weights[: self.inputs.shape[-1]]
        return type(self)(self.inputs * columns.to(self.inputs.dtype), self.cotangents)

    def rotate(self, output_basis: Tensor, input_basis: Tensor) -> Self:
        """Rotate into other bases: ``cotangents @ output_basis`` and ``inputs @ input_basis``."""
        return type(self)(self.inputs @ input_basis, self.cotangents @ output_basis)


@dataclass(frozen=True)
class LayerFactor(_LinearFactor):
    """Part of SᵀJ of a linear layer: entry (n, k, (o, i)) is ``cotangents[n, k, o] * inputs[n, i]``."""

    inputs: Tensor  # (n, I), with a column of ones if the bias is selected
    cotangents: Tensor  # (n, K, O), output factors back-propagated to the layer's output

    def rows(self) -> Tensor:
        """Dense form, shape (n, K, O·I)."""
        return torch.einsum("nko,ni->nkoi", self.cotangents, self.inputs).flatten(2)

    def total(self) -> Tensor:
        """Sum over rows and columns, shape (O·I,)."""
        return (self.cotangents.sum(1).mT @ self.inputs).flatten()

    def square_sum(self) -> Tensor:
        """Sum of squares over rows and columns, shape (O·I,)."""
        squares = self.cotangents.square()
        squares = squares[:, 0] if squares.shape[1] == 1 else squares.sum(1)
        return (squares.mT @ self.inputs.square()).flatten()

    def weighted_inner(self, weights: Tensor) -> Tensor:
        """Σ_p weights_p · part_kp · part_lp for each row, shape (n, K, K), from weights of shape (O·I,)."""
        outputs, inputs = self.cotangents.shape[-1], self.inputs.shape[-1]
        per_output = self.inputs.square() @ weights.to(self.inputs.dtype).view(outputs, inputs).mT
        return (self.cotangents * per_output[:, None]) @ self.cotangents.mT

    def gram(self, other: LayerFactor, weights: Tensor) -> Tensor:
        r"""Weighted Gram matrix Σ_p weights_p part part′ᵀ, shape (n·K, m·K), for weights (I,) or (O, I).

        Weights v (I,) give :math:`(a_n^\top \mathrm{diag}(v)\, a'_m)\,(g_{nk}^\top g'_{ml})`. Weights (O, I) give the
        sum of such products over the outputs.
        """
        if weights.ndim == 2:
            parts = (self._of_output(o).gram(other._of_output(o), row) for o, row in enumerate(weights))
            return reduce(Tensor.add_, parts)
        n, k, _ = self.cotangents.shape
        m, l, _ = other.cotangents.shape
        outputs = self.cotangents.flatten(0, 1) @ other.cotangents.flatten(0, 1).mT
        inputs = (self.inputs * weights.to(self.inputs.dtype)) @ other.inputs.mT
        outputs.view(n, k, m, l).mul_(inputs[:, None, :, None])
        return outputs

    def _of_output(self, o: int) -> LayerFactor:
        return LayerFactor(self.inputs, self.cotangents[..., o : o + 1])

    def times(self, vectors: Tensor) -> Tensor:
        """Product of the part with vectors (O·I, s), shape (n·K, s)."""
        outputs, inputs = self.cotangents.shape[-1], self.inputs.shape[-1]
        by_input = vectors.view(outputs, inputs, -1).transpose(0, 1).to(self.inputs.dtype).flatten(1)
        inner = (self.inputs @ by_input).unflatten(1, (outputs, -1))
        return (self.cotangents @ inner).flatten(0, 1)

    def transposed_times(self, vectors: Tensor) -> Tensor:
        """Product of the transposed part with vectors (n·K, s), shape (O·I, s)."""
        weights = vectors.view(*self.cotangents.shape[:2], vectors.shape[1]).to(self.inputs.dtype)
        outputs = torch.einsum("nko,nks->nso", self.cotangents, weights)
        return torch.einsum("nso,ni->ois", outputs, self.inputs).flatten(0, 1)

    def double(self) -> LayerFactor:
        """Part in float64."""
        return LayerFactor(self.inputs.double(), self.cotangents.double())

    def add_cross_(self, other: Factor, total: Tensor) -> None:
        r"""Add Σₙₖ partᵀ other to a matrix (O·I, p′), float64.

        The sum is :math:`\sum_n [\sum_k g_{nk} g'^\top_{nk}] \otimes a_n a'^\top_n` for two layers. Its cost hardly
        depends on K. For a layer with itself, only the lower triangle of the result is valid.
        """
        if isinstance(other, LayerFactor) and self.cotangents.shape[1] > 1:
            if other is self:
                add_square_(self.cotangents, self.inputs, total)
            else:
                add_khatri_rao_((self.cotangents, other.cotangents), (self.inputs, other.inputs), total)
        else:
            total += self.rows().flatten(0, 1).mT @ other.rows().flatten(0, 1)


@dataclass(frozen=True)
class DenseFactor:
    """Part of SᵀJ of one tensor, stored densely."""

    values: Tensor  # (n, K, p)

    @property
    def n_parameters(self) -> int:
        """Number of parameters p."""
        return self.values.shape[-1]

    def rows(self) -> Tensor:
        """Dense form, shape (n, K, p)."""
        return self.values

    def total(self) -> Tensor:
        """Sum over rows and columns, shape (p,)."""
        return self.values.sum((0, 1))

    def square_sum(self) -> Tensor:
        """Sum of squares over rows and columns, shape (p,)."""
        return self.values.square().sum((0, 1))

    def weighted_inner(self, weights: Tensor) -> Tensor:
        """Σ_p weights_p · part_kp · part_lp for each row, shape (n, K, K), from weights of shape (p,)."""
        return (self.values * weights.to(self.values.dtype)) @ self.values.mT

    def gram(self, other: DenseFactor, weights: Tensor) -> Tensor:
        """Weighted Gram matrix Σ_p weights_p part part′ᵀ, shape (n·K, m·K), from weights of shape (p,)."""
        left = self.values.flatten(0, 1) * weights.to(self.values.dtype)
        return left @ other.values.flatten(0, 1).mT

    def times(self, vectors: Tensor) -> Tensor:
        """Product of the part with vectors (p, s), shape (n·K, s)."""
        return self.values.flatten(0, 1) @ vectors.to(self.values.dtype)

    def transposed_times(self, vectors: Tensor) -> Tensor:
        """Product of the transposed part with vectors (n·K, s), shape (p, s)."""
        return self.values.flatten(0, 1).mT @ vectors.to(self.values.dtype)

    def add_cross_(self, other: Factor, total: Tensor) -> None:
        """Add Σₙₖ partᵀ other to a matrix (p, p′), float64."""
        total += self.values.flatten(0, 1).mT @ other.rows().flatten(0, 1)

    def scaled(self, weights: Tensor) -> DenseFactor:
        """Multiply each entry by its parameter's weight (p,)."""
        return DenseFactor(self.values * weights.to(self.values.dtype))

    def double(self) -> DenseFactor:
        """Part in float64."""
        return DenseFactor(self.values.double())


@dataclass(frozen=True)
class SharedFactor(_LinearFactor):
    """Part of SᵀJ of a linear layer at L positions per row: Σ_l ``cotangents[n, k, l, o] * inputs[n, l, i]``."""

    inputs: Tensor  # (n, L, I)
    cotangents: Tensor  # (n, K, L, O)

    @cached_property
    def dense(self) -> DenseFactor:
        """Dense form with n·K·O·I elements."""
        n, n_columns = self.cotangents.shape[:2]  # one product per row: broadcasting over K would copy the inputs
        return DenseFactor((self.cotangents.mT.flatten(1, 2) @ self.inputs).view(n, n_columns, -1))

    def rows(self) -> Tensor:
        """Dense form, shape (n, K, O·I)."""
        return self.dense.values

    def total(self) -> Tensor:
        """Sum over rows and columns, shape (O·I,)."""
        return (self.cotangents.sum(1).flatten(0, 1).mT @ self.inputs.flatten(0, 1)).flatten()

    def square_sum(self) -> Tensor:
        """Sum of squares over rows and columns, shape (O·I,)."""
        return self.dense.square_sum()

    def weighted_inner(self, weights: Tensor) -> Tensor:
        """Σ_p weights_p · part_kp · part_lp for each row, shape (n, K, K), from weights of shape (O·I,)."""
        return self.dense.weighted_inner(weights)

    def times(self, vectors: Tensor) -> Tensor:
        """Product of the part with vectors (O·I, s), shape (n·K, s)."""
        return self.dense.times(vectors)

    def transposed_times(self, vectors: Tensor) -> Tensor:
        """Product of the transposed part with vectors (n·K, s), shape (O·I, s)."""
        return self.dense.transposed_times(vectors)

    def reduced(self) -> LayerFactor:
        """Mean of the inputs and sum of the cotangents over positions; exact if either is equal at all positions."""
        return LayerFactor(self.inputs.mean(1), self.cotangents.sum(2))

    def add_cross_(self, other: Factor, total: Tensor) -> None:
        """Add Σₙₖ partᵀ other to a matrix (O·I, p′), float64."""
        self.dense.add_cross_(other, total)

    def double(self) -> DenseFactor:
        """Dense form in float64."""
        return self.dense.double()


def picked(factor: Factor, index: Tensor) -> DenseFactor:
    """Dense part of SᵀJ for the parameters at positions ``index`` (p,) of the block's flattened matrix."""
    if isinstance(factor, LayerFactor):
        width = factor.inputs.shape[-1]
        return DenseFactor(factor.cotangents[..., index // width] * factor.inputs[:, None, index % width])
    return DenseFactor(factor.rows()[..., index])


def bias_apart(factor: LayerFactor | SharedFactor) -> tuple[Factor, DenseFactor]:
    """Split the part of [W | b] into parts of W and b. The part of b is the sum of the cotangents over positions."""
    inputs = factor.inputs[..., :-1]
    if isinstance(factor, SharedFactor):
        return SharedFactor(inputs, factor.cotangents), DenseFactor(factor.cotangents.sum(2))
    return LayerFactor(inputs, factor.cotangents), DenseFactor(factor.cotangents)


def _in_float64(factor: Factor) -> Factor:
    """Factor of the same class in float64, unlike :meth:`SharedFactor.double`."""
    return replace(factor, **{field.name: getattr(factor, field.name).double() for field in fields(factor)})


Factor = LayerFactor | SharedFactor | DenseFactor
"""Part of SᵀJ of one block."""


@dataclass(frozen=True)
class ParameterBlock:
    """A contiguous part of the parameter vector: [W | b] (``outputs`` × ``inputs``) of a layer, or one tensor."""

    name: str  # of the layer or tensor in the module
    outputs: int
    inputs: int
    factored: bool
    positions: int = 1  # number of positions in each row at which a factored layer is applied

    @property
    def size(self) -> int:
        """Number of parameters in the block."""
        return self.outputs * self.inputs

    def width(self, n_columns: int) -> int:
        """Elements per row of the block's part with K columns, including the dense form if ``positions`` > 1."""
        if not self.factored:
            return n_columns * self.size
        factors = self.positions * (self.inputs + n_columns * self.outputs)
        return factors if self.positions == 1 else factors + n_columns * self.size


@dataclass(frozen=True)
class FactoredJacobian:
    """Matrix SᵀJ of a batch of n rows, as one factor per block (symbols of the module docstring)."""

    factors: tuple[Factor, ...]  # in the order of the parameters

    @cached_property
    def _shape(self) -> tuple[int, int]:
        first = self.factors[0]
        source = first.values if isinstance(first, DenseFactor) else first.cotangents
        return source.shape[0], source.shape[1]

    @property
    def n_rows(self) -> int:
        """Number of rows n."""
        return self._shape[0]

    @property
    def n_columns(self) -> int:
        """Number of columns K of the output factor (C for a plain Jacobian)."""
        return self._shape[1]

    def rows(self) -> Tensor:
        """Dense form, shape (n, K, P)."""
        parts = [factor.rows() for factor in self.factors]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def total(self) -> Tensor:
        """Sum over rows and columns, shape (P,), float64."""
        return torch.cat([factor.total().double() for factor in self.factors])

    def times(self, vectors: Tensor) -> Tensor:
        """Product SᵀJ V with vectors V (P, s), shape (n, K, s)."""
        sizes = [f.n_parameters for f in self.factors]
        parts = zip(self.factors, vectors.split(sizes), strict=True)
        total = reduce(torch.add, (factor.times(part).double() for factor, part in parts))
        return total.view(self.n_rows, self.n_columns, -1)

    def transposed_times(self, vectors: Tensor) -> Tensor:
        """Sum over rows of Jₙᵀ Sₙ times vectors (n, K, s), shape (P, s), float64."""
        return torch.cat([factor.transposed_times(vectors.flatten(0, 1)).double() for factor in self.factors])

    def weighted_inner(self, weights: Tensor) -> Tensor:
        """Σ_p weights_p · row_kp · row_lp for each row, shape (n, K, K), float64, from weights of shape (P,)."""
        parts = zip(self.factors, weights.split([f.n_parameters for f in self.factors]), strict=True)
        return torch.stack([factor.weighted_inner(part).double() for factor, part in parts]).sum(0)

    def scaled(self, weights: Tensor) -> FactoredJacobian:
        """Multiply each derivative by its parameter's weight (P,); weights must be equal within each input column."""
        parts = zip(self.factors, weights.split([f.n_parameters for f in self.factors]), strict=True)
        return FactoredJacobian(tuple(factor.scaled(part) for factor, part in parts))

    def square_sum(self) -> Tensor:
        """Sum of squares over rows and columns, shape (P,), float64."""
        return torch.cat([factor.square_sum().double() for factor in self.factors])

    def double(self) -> FactoredJacobian:
        """Matrix in float64, with factors of the same classes."""
        return FactoredJacobian(tuple(_in_float64(factor) for factor in self.factors))


@dataclass(frozen=True)
class Batch:
    """Contribution of a batch of rows to a curvature, as computed by a curvature rule."""

    jacobian: FactoredJacobian  # SᵀJ with √w in S; without columns if ``matrix`` is given
    outputs: Tensor  # at the MAP, (n, C)
    weights: Tensor  # of the rows, (n,)
    matrix: Tensor | None = None  # (P, P), float64, of a rule without S
