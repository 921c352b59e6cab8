r"""What flows from layers to structures: factored Jacobians. Data only.

Row n of a batch contributes :math:`S_n^\top J_n` (K × P), where :math:`J_n` (C × P) is the Jacobian of the outputs
and :math:`S_n` (C × K) an output factor. The parameters are cut into blocks; a block is either

- a linear layer, where the row's part is :math:`g_{nk} \otimes a_n`: the layer's input a and the output cotangents
  g, never multiplied out unless asked for,
- a linear layer at several positions of each row (a sequence, the patches of a convolution), where the part is the sum
  :math:`\sum_l g_{nkl} \otimes a_{nl}`, or
- one tensor of any other layer, where the part is held densely.

The order of the parameters is that of the blocks. A layer's block is the matrix [W | b] (outputs × inputs, the bias
as last column), row by row. Nothing here knows a likelihood, a prior or a structure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .factors import DenseFactor, Factor, _in_float64


@dataclass(frozen=True)
class FactoredJacobian:
    """SᵀJ of a batch of n rows, block by block.

    Parameters
    ----------
    factors : tuple of LayerFactor, SharedFactor or DenseFactor
        One for each block, in the order of the parameters.

    Examples
    --------
    >>> from sklearn_laplace.laplace.jacobian import LayerFactor
    >>> import torch
    >>> jacobian = FactoredJacobian((LayerFactor(torch.ones(2, 3), torch.ones(2, 1, 4)),))
    >>> jacobian.n_rows, jacobian.n_columns, jacobian.rows().shape
    (2, 1, torch.Size([2, 1, 12]))
    """

    factors: tuple[Factor, ...]

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
        """The dense matrix (n, K, P). Costs n·K·P memory."""
        parts = [factor.rows() for factor in self.factors]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def total(self) -> Tensor:
        """Sum over rows and columns, shape (P,), float64; with K = 1 and S the residual, the gradient."""
        return torch.cat([factor.total().double() for factor in self.factors])

    def times(self, vectors: Tensor) -> Tensor:
        """SᵀJ V for vectors V of shape (P, s), shape (n, K, s)."""
        sizes = [f.n_parameters for f in self.factors]
        parts = zip(self.factors, vectors.split(sizes), strict=True)
        total = torch.stack([factor.times(part).double() for factor, part in parts]).sum(0)
        return total.view(self.n_rows, self.n_columns, -1)

    def transposed_times(self, vectors: Tensor) -> Tensor:
        """Σₙ of the transposed rows times vectors (n, K, s), shape (P, s), float64."""
        return torch.cat([factor.transposed_times(vectors.flatten(0, 1)).double() for factor in self.factors])

    def weighted_inner(self, weights: Tensor) -> Tensor:
        """Σ_p weights_p · row_kp · row_lp for each row, shape (n, K, K), float64, from weights of shape (P,)."""
        parts = zip(self.factors, weights.split([f.n_parameters for f in self.factors]), strict=True)
        return torch.stack([factor.weighted_inner(part).double() for factor, part in parts]).sum(0)

    def scaled(self, weights: Tensor) -> FactoredJacobian:
        """Each derivative times its parameter's weight, from weights (P,) equal within each input column of a layer."""
        parts = zip(self.factors, weights.split([f.n_parameters for f in self.factors]), strict=True)
        return FactoredJacobian(tuple(factor.scaled(part) for factor, part in parts))

    def square_sum(self) -> Tensor:
        """Sum of squares over rows and columns, shape (P,), float64."""
        return torch.cat([factor.square_sum().double() for factor in self.factors])

    def double(self) -> FactoredJacobian:
        """The same in float64, every factor in its own form."""
        return FactoredJacobian(tuple(_in_float64(factor) for factor in self.factors))


@dataclass(frozen=True)
class Batch:
    """What a curvature rule makes of a batch of rows.

    Parameters
    ----------
    jacobian : FactoredJacobian
        SᵀJ with √w in S; without columns where the contribution comes as a matrix.
    outputs : Tensor of shape (n, C)
        The network's outputs at the MAP.
    weights : Tensor of shape (n,)
        Row weights w.
    matrix : Tensor of shape (P, P), optional
        The batch's contribution itself, float64, from rules that have no S.

    Examples
    --------
    >>> import torch
    >>> jacobian = FactoredJacobian((DenseFactor(torch.ones(2, 1, 4)),))
    >>> Batch(jacobian, torch.zeros(2, 1), torch.ones(2)).total_weight
    tensor(2., dtype=torch.float64)
    """

    jacobian: FactoredJacobian
    outputs: Tensor
    weights: Tensor
    matrix: Tensor | None = None

    @property
    def total_weight(self) -> Tensor:
        """Sum of the row weights, 0-d, float64: a number would make a GPU wait."""
        return self.weights.double().sum()
