r"""``torch.nn.Linear``: the part of row n is :math:`g_{nk} \otimes [a_n, 1]`, summed over the positions of a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..jacobian import Block, LayerFactor, SharedFactor


@dataclass(frozen=True)
class Linear:
    """A linear layer, called once in the forward pass with an input of shape (n, …, I).

    Parameters
    ----------
    name : str
        Dotted name of the layer in the module.
    weight, bias : bool
        Which of its tensors are selected.
    n_outputs, n_inputs : int
        Shape of the weight.
    positions : int
        Vectors in each row.

    Examples
    --------
    >>> Linear("0", weight=True, bias=True, n_outputs=3, n_inputs=2, positions=1).block.inputs
    3
    """

    name: str
    weight: bool
    bias: bool
    n_outputs: int
    n_inputs: int
    positions: int

    @staticmethod
    def handles(layer: nn.Module, inputs: Tensor) -> bool:
        """Whether a layer that saw these inputs is of this kind; subclasses may do anything, so they are not."""
        return type(layer) is nn.Linear and "weight" in layer._parameters and inputs.ndim >= 2

    @classmethod
    def of(cls, name: str, layer: nn.Module, selected: set[str], inputs: Tensor) -> Linear:
        """The description of a layer whose tensors in ``selected`` (their own short names) are random."""
        assert isinstance(layer, nn.Linear)
        sizes = layer.out_features, layer.in_features
        return cls(name, "weight" in selected, "bias" in selected, *sizes, inputs[0, ..., 0].numel())

    @property
    def block(self) -> Block:
        """[W | b], with the columns that are selected."""
        columns = self.n_inputs * self.weight + self.bias
        return Block(self.name, self.n_outputs, columns, True, self.positions)

    @property
    def columns(self) -> tuple[tuple[str, int], ...]:
        """The tensors side by side in the block, with their number of columns."""
        parts = ((f"{self.name}.weight", self.n_inputs * self.weight), (f"{self.name}.bias", int(self.bias)))
        return tuple((name.lstrip("."), width) for name, width in parts if width)

    def factor(self, inputs: Tensor, cotangents: Tensor) -> LayerFactor | SharedFactor:
        """The layer's part from its inputs (n, …, I) and back-propagated cotangents (n, K, …, O)."""
        ones = [inputs.new_ones(*inputs.shape[:-1], 1)] if self.bias else []
        inputs = torch.cat([inputs, *ones] if self.weight else ones, -1)
        if inputs.ndim == 2:
            return LayerFactor(inputs, cotangents)
        return SharedFactor(inputs.flatten(1, -2), cotangents.flatten(2, -2))
