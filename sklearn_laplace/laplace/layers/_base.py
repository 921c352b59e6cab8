r"""Base class of layers with a closed-form Jacobian.

The outputs of such a layer are linear in its tensors. Its part of :math:`S_n^\top J_n` is a product of features and
cotangents. Features are computed from the layer's inputs, once per batch. Cotangents are the gradients with respect to
the layer's outputs, computed for each output factor S.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from ..jacobian.jacobian import Factor, LayerFactor, ParameterBlock, SharedFactor


@dataclass(frozen=True)
class FactoredLayer(ABC):
    """A layer called exactly once in the forward pass, on inputs whose first axis indexes rows."""

    name: str  # dotted name of the layer in the module
    weight: int  # columns of the weight in the layer's block; 0 if it is not selected
    bias: int  # columns of the bias, likewise

    @staticmethod
    @abstractmethod
    def handles(layer: nn.Module, inputs: Tensor) -> bool:
        """True if this class supports ``layer``. User subclasses are refused: they may override anything."""

    @classmethod
    @abstractmethod
    def of(cls, name: str, layer: nn.Module, selected: set[str], inputs: Tensor) -> Self:
        """Description of a layer, whose random tensors have the short names ``selected``."""

    @property
    @abstractmethod
    def block(self) -> ParameterBlock:
        """The layer's block of the parameter vector."""

    @property
    def columns(self) -> tuple[tuple[str, int], ...]:
        """Names of the tensors in the block, from left to right, with their numbers of columns."""
        parts = ((f"{self.name}.weight", self.weight), (f"{self.name}.bias", self.bias))
        return tuple((name.lstrip("."), width) for name, width in parts if width)

    @property
    def bias_block(self) -> ParameterBlock | None:
        """Dense block of the bias; None if there is no bias or the layer's block is already dense."""
        if not (self.bias and self.block.factored):
            return None
        return ParameterBlock(f"{self.name}.bias".lstrip("."), 1, self.bias * self.block.outputs, factored=False)

    @abstractmethod
    def features(self, layer: nn.Module, inputs: Tensor) -> Tensor:
        """Features, computed from the layer's current state and its inputs (n, …), that multiply the cotangents."""

    @abstractmethod
    def factor(self, features: Tensor, cotangents: Tensor) -> Factor:
        """The layer's part of SᵀJ, from features and cotangents (n, K, …), whose last axes are the layer's outputs."""


def shared_factor(inputs: Tensor, cotangents: Tensor, positions: int) -> LayerFactor | SharedFactor:
    """Factor from inputs (n, L, I) and cotangents (n, K, L, O); a LayerFactor if the traced layer has one position."""
    if positions > 1:
        return SharedFactor(inputs, cotangents)
    return LayerFactor(inputs.squeeze(1), cotangents.squeeze(2))
