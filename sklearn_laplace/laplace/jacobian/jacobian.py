r"""Factored Jacobians: produced by layers, consumed by structures. Data only.

Row n of a batch contributes :math:`S_n^\top J_n` (K × P). Here :math:`J_n` (C × P) is the Jacobian of the outputs and
:math:`S_n` (C × K) is an output factor. The parameters are divided into blocks. A block is one of:

- a linear layer. The row's part is :math:`g_{nk} \otimes a_n`, with the layer's input a and the output cotangents g.
  The product is formed only on request;
- a linear layer at several positions of each row (a sequence, the patches of a convolution), with the part
  :math:`\sum_l g_{nkl} \otimes a_{nl}`;
- one tensor of any other layer. The part is stored densely.

The block of a layer is [W | b] (outputs × inputs, the bias as last column), flattened row by row. This module is
independent of likelihoods, priors and structures.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .factors import DenseFactor, Factor, _in_float64


@dataclass(frozen=True)
class ParameterBlock:
    """A contiguous part of the parameter vector: a matrix of ``outputs`` rows and ``inputs`` columns.

    It is [W | b] for a factored layer, whose Jacobian is inputs and cotangents. A dense tensor is a single row.
    """

    name: str  # of the layer or tensor in the module
    outputs: int
    inputs: int
    factored: bool
    positions: int = 1  # at which a factored layer is applied in each row

    @property
    def size(self) -> int:
        """Number of parameters in the block."""
        return self.outputs * self.inputs

    def width(self, n_columns: int) -> int:
        """Elements per row of the block's part with K columns. A layer at several positions includes its dense form."""
        if not self.factored:
            return n_columns * self.size
        factors = self.positions * (self.inputs + n_columns * self.outputs)
        return factors if self.positions == 1 else factors + n_columns * self.size


@dataclass(frozen=True)
class FactoredJacobian:
    """Matrix SᵀJ of a batch of n rows, as one factor per block: J the Jacobian of the outputs, SSᵀ their Hessian."""

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
        """Dense form, shape (n, K, P). Needs n·K·P elements of memory."""
        parts = [factor.rows() for factor in self.factors]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def total(self) -> Tensor:
        """Sum over rows and columns, shape (P,), float64. The gradient, if K = 1 and S is the residual."""
        return torch.cat([factor.total().double() for factor in self.factors])

    def times(self, vectors: Tensor) -> Tensor:
        """Product SᵀJ V with vectors V (P, s), shape (n, K, s)."""
        sizes = [f.n_parameters for f in self.factors]
        parts = zip(self.factors, vectors.split(sizes), strict=True)
        total = functools.reduce(torch.add, (factor.times(part).double() for factor, part in parts))
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
        """Convert to float64; each factor keeps its type."""
        return FactoredJacobian(tuple(_in_float64(factor) for factor in self.factors))


@dataclass(frozen=True)
class Batch:
    """Contribution of a batch of rows to a curvature, as computed by a curvature rule."""

    jacobian: FactoredJacobian  # SᵀJ with √w in S; without columns if ``matrix`` is given
    outputs: Tensor  # at the MAP, (n, C)
    weights: Tensor  # of the rows, (n,)
    matrix: Tensor | None = None  # (P, P), float64, of a rule without S

    @property
    def total_weight(self) -> Tensor:
        """Sum of the row weights, float64. A 0-d tensor, since a float would synchronise a GPU."""
        return self.weights.double().sum()
