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

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from .linalg import lower_gram, mirror_lower

PAIR_BUDGET = 2**21
"""Elements of a Khatri–Rao panel (rows × pairs) that are formed at once, 16 MB in float64."""
FEW_PAIRS = 128
"""Pairs of outputs below which a layer's block is that many Gram matrices instead of one product."""


@dataclass(frozen=True)
class Block:
    """One stretch of the parameter vector: a matrix of ``outputs`` rows and ``inputs`` columns.

    Parameters
    ----------
    name : str
        The layer's or the tensor's name in the module.
    outputs, inputs : int
        Shape of [W | b] for a factored layer; (1, number of elements) for a dense tensor.
    factored : bool
        Whether the block's Jacobian comes as inputs and cotangents.
    positions : int
        L, at how many positions of each row a factored layer is applied.

    Examples
    --------
    >>> Block("0", outputs=3, inputs=5, factored=True).size
    15
    """

    name: str
    outputs: int
    inputs: int
    factored: bool
    positions: int = 1

    @property
    def size(self) -> int:
        """Number of parameters in the block."""
        return self.outputs * self.inputs

    def width(self, n_columns: int) -> int:
        """Elements that one row's part makes, K columns: a shared layer is multiplied out for its sum."""
        if not self.factored:
            return n_columns * self.size
        factors = self.positions * (self.inputs + n_columns * self.outputs)
        return factors if self.positions == 1 else factors + n_columns * self.size


@dataclass(frozen=True)
class LayerFactor:
    """A linear layer's part of SᵀJ: entry (n, k, (o, i)) is ``cotangents[n, k, o] * inputs[n, i]``.

    Parameters
    ----------
    inputs : Tensor of shape (n, I)
        The layer's input, with a column of ones where the bias is selected.
    cotangents : Tensor of shape (n, K, O)
        The output factors back-propagated to the layer's output.

    Examples
    --------
    >>> import torch
    >>> LayerFactor(torch.ones(2, 3), torch.ones(2, 1, 4)).rows().shape
    torch.Size([2, 1, 12])
    """

    inputs: Tensor
    cotangents: Tensor

    @property
    def n_parameters(self) -> int:
        """Number of parameters O·I."""
        return self.cotangents.shape[-1] * self.inputs.shape[-1]

    def rows(self) -> Tensor:
        """The dense part (n, K, O·I)."""
        return torch.einsum("nko,ni->nkoi", self.cotangents, self.inputs).flatten(2)

    def total(self) -> Tensor:
        """Sum over rows and columns, shape (O·I,)."""
        return (self.cotangents.sum(1).mT @ self.inputs).flatten()

    def square_sum(self) -> Tensor:
        """Sum of squares over rows and columns, shape (O·I,): one matrix product, independent of K."""
        squares = self.cotangents.square()
        squares = squares[:, 0] if squares.shape[1] == 1 else squares.sum(1)
        return (squares.mT @ self.inputs.square()).flatten()

    def weighted_inner(self, weights: Tensor) -> Tensor:
        """Σ_p weights_p · part_kp · part_lp for each row, shape (n, K, K), from weights of shape (O·I,)."""
        outputs, inputs = self.cotangents.shape[-1], self.inputs.shape[-1]
        per_output = self.inputs.square() @ weights.to(self.inputs.dtype).view(outputs, inputs).mT
        return (self.cotangents * per_output[:, None]) @ self.cotangents.mT

    def gram(self, other: LayerFactor, weights: Tensor) -> Tensor:
        r"""Σ_p weights_p part parts′ᵀ, shape (n·K, m·K): products of small Gram matrices, never (n·K, O·I).

        :math:`(a_n^\top \mathrm{diag}(v)\, a'_m)\,(g_{nk}^\top g'_{ml})` for weights v of shape (I,), one a column; for
        weights of shape (O, I) the sum of such products over the outputs.
        """
        if weights.ndim == 2:
            parts = (self._of_output(o).gram(other._of_output(o), row) for o, row in enumerate(weights))
            return functools.reduce(Tensor.add_, parts)
        n, k, _ = self.cotangents.shape
        m, l, _ = other.cotangents.shape
        outputs = self.cotangents.flatten(0, 1) @ other.cotangents.flatten(0, 1).mT
        inputs = (self.inputs * weights.to(self.inputs.dtype)) @ other.inputs.mT
        outputs.view(n, k, m, l).mul_(inputs[:, None, :, None])
        return outputs

    def _of_output(self, o: int) -> LayerFactor:
        return LayerFactor(self.inputs, self.cotangents[..., o : o + 1])

    def times(self, vectors: Tensor) -> Tensor:
        """The part times (O·I, s) vectors, shape (n·K, s)."""
        shape = (self.cotangents.shape[-1], self.inputs.shape[-1])
        matrices = vectors.mT.unflatten(-1, shape).to(self.inputs.dtype)
        inner = torch.einsum("ni,soi->nso", self.inputs, matrices)
        return (self.cotangents @ inner.mT).flatten(0, 1)

    def transposed_times(self, vectors: Tensor) -> Tensor:
        """The transposed part times (n·K, s) vectors, shape (O·I, s)."""
        weights = vectors.view(*self.cotangents.shape[:2], vectors.shape[1]).to(self.inputs.dtype)
        outputs = torch.einsum("nko,nks->nso", self.cotangents, weights)
        return torch.einsum("nso,ni->ois", outputs, self.inputs).flatten(0, 1)

    def scaled(self, weights: Tensor) -> LayerFactor:
        """Each entry times its weight, from weights (O·I,) that are equal within a column."""
        columns = weights[: self.inputs.shape[-1]]
        return LayerFactor(self.inputs * columns.to(self.inputs.dtype), self.cotangents)

    def double(self) -> LayerFactor:
        """The same in float64."""
        return LayerFactor(self.inputs.double(), self.cotangents.double())

    def rotate(self, output_basis: Tensor, input_basis: Tensor) -> LayerFactor:
        """The same part in other bases: ``cotangents @ output_basis`` and ``inputs @ input_basis``."""
        return LayerFactor(self.inputs @ input_basis, self.cotangents @ output_basis)

    def add_cross_(self, other: Factor, total: Tensor) -> None:
        r"""Add Σₙₖ partᵀ other to a matrix (O·I, p′), float64.

        Between two layers with K > 1 it is :math:`\sum_n [\sum_k g_{nk} g'^\top_{nk}] \otimes a_n a'^\top_n`, one
        Khatri–Rao product of cost N·O·O′·I·I′ whatever K; each panel is summed in float64. Of a layer with itself the
        lower triangle is added, and nothing above its diagonal blocks.
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
    """One tensor's part of SᵀJ, held densely, shape (n, K, p).

    Examples
    --------
    >>> import torch
    >>> DenseFactor(torch.ones(2, 1, 4)).square_sum()
    tensor([2., 2., 2., 2.])
    """

    values: Tensor

    @property
    def n_parameters(self) -> int:
        """Number of parameters p."""
        return self.values.shape[-1]

    def rows(self) -> Tensor:
        """The dense part (n, K, p)."""
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
        """Σ_p weights_p part part′ᵀ, shape (n·K, m·K), from weights of shape (p,)."""
        left = self.values.flatten(0, 1) * weights.to(self.values.dtype)
        return left @ other.values.flatten(0, 1).mT

    def times(self, vectors: Tensor) -> Tensor:
        """The part times (p, s) vectors, shape (n·K, s)."""
        return self.values.flatten(0, 1) @ vectors.to(self.values.dtype)

    def transposed_times(self, vectors: Tensor) -> Tensor:
        """The transposed part times (n·K, s) vectors, shape (p, s)."""
        return self.values.flatten(0, 1).mT @ vectors.to(self.values.dtype)

    def add_cross_(self, other: Factor, total: Tensor) -> None:
        """Add Σₙₖ partᵀ other to a matrix (p, p′), float64."""
        total += self.values.flatten(0, 1).mT @ other.rows().flatten(0, 1)

    def scaled(self, weights: Tensor) -> DenseFactor:
        """Each entry times its weight (p,)."""
        return DenseFactor(self.values * weights.to(self.values.dtype))

    def double(self) -> DenseFactor:
        """The same in float64."""
        return DenseFactor(self.values.double())


@dataclass(frozen=True)
class SharedFactor:
    """The part of a linear layer at L positions of each row: Σ_l ``cotangents[n, k, l, o] * inputs[n, l, i]``.

    A row's part is the sum over its positions, taken before anything is squared; all but the Kronecker structures see
    it multiplied out.

    Parameters
    ----------
    inputs : Tensor of shape (n, L, I)
    cotangents : Tensor of shape (n, K, L, O)

    Examples
    --------
    >>> import torch
    >>> SharedFactor(torch.ones(2, 5, 3), torch.ones(2, 1, 5, 4)).rows()[0, 0, 0]
    tensor(5.)
    """

    inputs: Tensor
    cotangents: Tensor

    @property
    def n_parameters(self) -> int:
        """Number of parameters O·I."""
        return self.cotangents.shape[-1] * self.inputs.shape[-1]

    @cached_property
    def dense(self) -> DenseFactor:
        """Multiplied out, n·K·O·I elements."""
        n, n_columns = self.cotangents.shape[:2]  # one product a row: a broadcast over K would copy the inputs K times
        return DenseFactor((self.cotangents.mT.flatten(1, 2) @ self.inputs).view(n, n_columns, -1))

    def rows(self) -> Tensor:
        """The dense part (n, K, O·I)."""
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
        """The part times (O·I, s) vectors, shape (n·K, s)."""
        return self.dense.times(vectors)

    def transposed_times(self, vectors: Tensor) -> Tensor:
        """The transposed part times (n·K, s) vectors, shape (O·I, s)."""
        return self.dense.transposed_times(vectors)

    def reduced(self) -> LayerFactor:
        """One position for all: mean of the inputs, sum of the cotangents; the part itself where either is constant."""
        return LayerFactor(self.inputs.mean(1), self.cotangents.sum(2))

    def rotate(self, output_basis: Tensor, input_basis: Tensor) -> SharedFactor:
        """The same part in other bases: ``cotangents @ output_basis`` and ``inputs @ input_basis``."""
        return SharedFactor(self.inputs @ input_basis, self.cotangents @ output_basis)

    def add_cross_(self, other: Factor, total: Tensor) -> None:
        """Add Σₙₖ partᵀ other to a matrix (O·I, p′), float64."""
        self.dense.add_cross_(other, total)

    def scaled(self, weights: Tensor) -> SharedFactor:
        """Each entry times its weight, from weights (O·I,) that are equal within a column."""
        columns = weights[: self.inputs.shape[-1]]
        return SharedFactor(self.inputs * columns.to(self.inputs.dtype), self.cotangents)

    def double(self) -> DenseFactor:
        """Multiplied out, in float64."""
        return self.dense.double()


Factor = LayerFactor | SharedFactor | DenseFactor
"""One block's part of SᵀJ."""


def picked(factor: Factor, index: Tensor) -> DenseFactor:
    """The part of some of a block's parameters, densely: of a layer at one position these alone are multiplied out.

    Parameters
    ----------
    factor : LayerFactor, SharedFactor or DenseFactor
    index : Tensor of shape (p,), int64
        Positions in the block's flattened matrix.

    Examples
    --------
    >>> import torch
    >>> factor = LayerFactor(torch.tensor([[1.0, 2.0]]), torch.tensor([[[3.0, 5.0]]]))
    >>> factor.rows().tolist(), picked(factor, torch.tensor([1, 2])).rows().tolist()
    ([[[3.0, 6.0, 5.0, 10.0]]], [[[6.0, 5.0]]])
    """
    if isinstance(factor, LayerFactor):
        width = factor.inputs.shape[-1]
        return DenseFactor(factor.cotangents[..., index // width] * factor.inputs[:, None, index % width])
    return DenseFactor(factor.rows()[..., index])


def bias_apart(factor: LayerFactor | SharedFactor) -> tuple[Factor, DenseFactor]:
    """The parts of [W | b] as those of W and of b: the bias's is the cotangents, summed over the positions.

    Parameters
    ----------
    factor : LayerFactor or SharedFactor
        With the column of ones as last input.

    Examples
    --------
    >>> import torch
    >>> factor = SharedFactor(torch.ones(2, 5, 3), torch.ones(2, 1, 5, 4))
    >>> weight, bias = bias_apart(factor)
    >>> weight.rows().shape, bias.rows().tolist()[0]
    (torch.Size([2, 1, 8]), [[5.0, 5.0, 5.0, 5.0]])
    """
    inputs = factor.inputs[..., :-1]
    if isinstance(factor, SharedFactor):
        return SharedFactor(inputs, factor.cotangents), DenseFactor(factor.cotangents.sum(2))
    return LayerFactor(inputs, factor.cotangents), DenseFactor(factor.cotangents)


@dataclass(frozen=True)
class FactoredJacobian:
    """SᵀJ of a batch of n rows, block by block.

    Parameters
    ----------
    factors : tuple of LayerFactor, SharedFactor or DenseFactor
        One for each block, in the order of the parameters.

    Examples
    --------
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


def _in_float64(factor: Factor) -> Factor:
    """A factor of the same kind; ``double`` of one at several positions multiplies it out."""
    return replace(factor, **{field.name: getattr(factor, field.name).double() for field in fields(factor)})


def add_khatri_rao_(
    cotangents: tuple[Tensor, Tensor], inputs: tuple[Tensor, Tensor], total: Tensor
) -> None:
    """Add Σₙ [Σₖ g gᵀ′] ⊗ [a a′ᵀ] of two layers to a matrix (O·I, O′·I′)."""
    (n_out, m_out), (n_in, m_in) = (tuple(part.shape[-1] for part in pair) for pair in (cotangents, inputs))
    product = _sum_over_panels(
        len(inputs[0]),
        max(n_out * m_out, n_in * m_in),
        lambda span: torch.einsum("nko,nkp->nop", cotangents[0][span], cotangents[1][span]).flatten(1),
        lambda span: torch.einsum("ni,nj->nij", inputs[0][span], inputs[1][span]).flatten(1),
    )
    total.unflatten(1, (m_out, m_in)).unflatten(0, (n_out, n_in)).add_(
        product.view(n_out, m_out, n_in, m_in).transpose(1, 2)
    )


def add_square_(cotangents: Tensor, inputs: Tensor, total: Tensor) -> None:
    """The diagonal block of a layer, as ``add_khatri_rao_``, with both symmetric panels packed: a quarter of the cost.

    A panel of few pairs makes a skinny product; few pairs of outputs are taken one by one, a weighted Gram matrix each.
    """
    device = inputs.device
    n_out, n_in = cotangents.shape[-1], inputs.shape[-1]
    o, p = torch.tril_indices(n_out, n_out, device=device)
    i, j = torch.tril_indices(n_in, n_in, device=device)

    def output_pairs(span: slice) -> Tensor:
        part = cotangents[span]
        return (part.mT @ part).flatten(1).index_select(1, o * n_out + p)

    if len(o) < FEW_PAIRS < len(i):
        blocks = _weighted_grams(output_pairs(slice(None)), inputs)
    else:
        packed = _sum_over_panels(
            inputs.shape[0],
            max(len(o), len(i)),
            output_pairs,
            lambda span: _packed_products(inputs[span]),
        )
        blocks = packed.index_select(1, _pair_of(i, j, n_in)).view(len(o), n_in, n_in)
    by_output = total.unflatten(1, (n_out, n_in)).unflatten(0, (n_out, n_in))
    for row, pairs in enumerate(blocks.split(list(range(1, n_out + 1)))):
        by_output[row, :, : row + 1] += pairs.transpose(0, 1)


def _packed_products(inputs: Tensor) -> Tensor:
    """a_i a_j for i ≥ j of each row, in the order of ``tril_indices``, shape (n, I (I + 1) / 2)."""
    n, size = inputs.shape
    panel = inputs.new_empty(n, size * (size + 1) // 2)
    for i, piece in enumerate(panel.split(list(range(1, size + 1)), 1)):
        torch.mul(inputs[:, : i + 1], inputs[:, i : i + 1], out=piece)
    return panel


def _pair_of(first: Tensor, second: Tensor, size: int) -> Tensor:
    """Where each of the size² ordered pairs is among the packed ones, shape (size²,)."""
    place = torch.empty(size, size, dtype=torch.long, device=first.device)
    place[first, second] = place[second, first] = torch.arange(len(first), device=first.device)
    return place.flatten()


def _weighted_grams(weights: Tensor, inputs: Tensor) -> Tensor:
    """Σₙ weights[n, q] a aᵀ for each q, shape (q, I, I), float64."""
    found = [lower_gram(inputs, inputs * column[:, None]) for column in weights.unbind(1)]
    return mirror_lower(torch.stack(found))


def _sum_over_panels(
    n_rows: int, width: int, left: Callable[[slice], Tensor], right: Callable[[slice], Tensor]
) -> Tensor:
    """Σ leftᵀ right over panels of rows that stay within the budget, summed in float64."""
    step = max(1, PAIR_BUDGET // max(width, 1))
    spans = [slice(start, start + step) for start in range(0, n_rows, step)]
    total = (left(spans[0]).mT @ right(spans[0])).double()
    for span in spans[1:]:
        total += left(span).mT @ right(span)
    return total
