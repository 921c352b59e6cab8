r"""Base class of layers with a closed-form Jacobian.

The outputs of such a layer are linear in its tensors. The row's part :math:`S_n^\top J_n` is a product of features,
which depend on the layer's inputs (once per batch), and cotangents, the gradients at its outputs (once per output
factor S).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from ..jacobian.jacobian import Factor, LayerFactor, ParameterBlock, SharedFactor


@dataclass(frozen=True)
class FactoredLayer(ABC):
    """A layer called exactly once in the forward pass, with one input per row."""

    name: str  # dotted name of the layer in the module
    weight: int  # columns of the weight in the layer's block; 0 if it is not selected
    bias: int  # the same of the bias

    @staticmethod
    @abstractmethod
    def handles(layer: nn.Module, inputs: Tensor) -> bool:
        """True if this class describes ``layer``; not for subclasses of torch's layers, which may override anything."""

    @classmethod
    @abstractmethod
    def of(cls, name: str, layer: nn.Module, selected: set[str], inputs: Tensor) -> Self:
        """Describe a layer. ``selected`` holds the short names of its tensors that are random."""

    @property
    @abstractmethod
    def block(self) -> ParameterBlock:
        """The layer's block of the parameter vector."""

    @property
    def columns(self) -> tuple[tuple[str, int], ...]:
        """Names of the tensors side by side in the block, with their numbers of columns."""
        parts = ((f"{self.name}.weight", self.weight), (f"{self.name}.bias", self.bias))
        return tuple((name.lstrip("."), width) for name, width in parts if width)

    @property
    def bias_block(self) -> ParameterBlock | None:
        """Dense block of the bias alone; None if there is no bias or the layer's block is already dense."""
        if not (self.bias and self.block.factored):
            return None
        return ParameterBlock(f"{self.name}.bias".lstrip("."), 1, self.bias * self.block.outputs, factored=False)

    @abstractmethod
    def features(self, layer: nn.Module, inputs: Tensor) -> Tensor:
        """Features that are multiplied with the cotangents, from the layer's current state and its inputs (n, …)."""

    @abstractmethod
    def factor(self, features: Tensor, cotangents: Tensor) -> Factor:
        """The layer's part of SᵀJ from its features and the cotangents (n, K, …), shaped like the outputs of a row."""


def shared_factor(inputs: Tensor, cotangents: Tensor, positions: int) -> LayerFactor | SharedFactor:
    """Factor of a layer from inputs (n, L, I), cotangents (n, K, L, O): a LayerFactor if L was 1 when traced."""
    if positions > 1:
        return SharedFactor(inputs, cotangents)
    return LayerFactor(inputs.squeeze(1), cotangents.squeeze(2))
