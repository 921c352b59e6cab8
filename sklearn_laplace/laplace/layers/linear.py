r"""``torch.nn.Linear``: the part of row n is :math:`g_{nk} \otimes [a_n, 1]`, summed over the positions of the row."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from ..jacobian.jacobian import LayerFactor, ParameterBlock, SharedFactor
from ._base import FactoredLayer, shared_factor


class StandardisedLinear(nn.Linear):
    """Linear layer that first applies the fixed map ``standardise``, with the parameters of ``torch.nn.Linear``."""

    standardise: nn.Module

    def forward(self, input: Tensor) -> Tensor:
        """Outputs (n, O) of inputs (n, I)."""
        return super().forward(self.standardise(input))


@dataclass(frozen=True)
class Linear(FactoredLayer):
    """A linear layer, called once in the forward pass with an input of shape (n, …, I).

    ``weight`` and ``bias`` are I and 1, or 0 if the tensor is not selected.

    >>> Linear("0", weight=2, bias=1, n_outputs=3, positions=1).block.inputs
    3
    """

    n_outputs: int  # rows of the weight
    positions: int  # input vectors per row

    @staticmethod
    def handles(layer: nn.Module, inputs: Tensor) -> bool:
        return type(layer) in (nn.Linear, StandardisedLinear) and "weight" in layer._parameters and inputs.ndim >= 2

    @classmethod
    def of(cls, name: str, layer: nn.Module, selected: set[str], inputs: Tensor) -> Self:
        assert isinstance(layer, nn.Linear)
        weight, bias = layer.in_features * ("weight" in selected), int("bias" in selected)
        return cls(name, weight, bias, layer.out_features, inputs[0, ..., 0].numel())

    @property
    def block(self) -> ParameterBlock:
        """[W | b], restricted to the selected tensors."""
        return ParameterBlock(self.name, self.n_outputs, self.weight + self.bias, True, self.positions)

    def features(self, layer: nn.Module, inputs: Tensor) -> Tensor:
        """Inputs with a column of ones for the bias, shape (n, …, I + 1), without columns of unselected tensors."""
        inputs = layer.standardise(inputs) if isinstance(layer, StandardisedLinear) else inputs
        ones = [inputs.new_ones(*inputs.shape[:-1], 1)] if self.bias else []
        return torch.cat([inputs, *ones] if self.weight else ones, -1)

    def factor(self, features: Tensor, cotangents: Tensor) -> LayerFactor | SharedFactor:
        if features.ndim == 2:
            return LayerFactor(features, cotangents)
        return shared_factor(features.flatten(1, -2), cotangents.flatten(2, -2), self.positions)
