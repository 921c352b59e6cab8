r"""What a layer with a closed form answers.

Its outputs are linear in its own tensors, so the row's part :math:`S_n^\top J_n` is a product of two things: what the
layer makes of its inputs (:meth:`FactoredLayer.features`, once for each batch) and the cotangents that come back to its
outputs (:meth:`FactoredLayer.factor`, once for each output factor S). Nothing here knows the network around the layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from ..jacobian.blocks import ParameterBlock
from ..jacobian.factors import Factor, LayerFactor, SharedFactor


@dataclass(frozen=True)
class FactoredLayer(ABC):
    """A layer that the forward pass calls once, with one input for each row.

    Parameters
    ----------
    name : str
        Dotted name of the layer in the module.
    weight, bias : int
        Columns of the layer's block that are its weight and its bias; 0 where the tensor is not selected.
    """

    name: str
    weight: int
    bias: int

    @staticmethod
    @abstractmethod
    def handles(layer: nn.Module, inputs: Tensor) -> bool:
        """Whether a layer that saw these inputs is of this kind; subclasses may do anything, so they are not."""

    @classmethod
    @abstractmethod
    def of(cls, name: str, layer: nn.Module, selected: set[str], inputs: Tensor) -> Self:
        """The description of a layer whose tensors in ``selected`` (their own short names) are random."""

    @property
    @abstractmethod
    def block(self) -> ParameterBlock:
        """The layer's stretch of the parameter vector."""

    @property
    def columns(self) -> tuple[tuple[str, int], ...]:
        """The tensors side by side in the block, with their number of columns."""
        parts = ((f"{self.name}.weight", self.weight), (f"{self.name}.bias", self.bias))
        return tuple((name.lstrip("."), width) for name, width in parts if width)

    @property
    def bias_block(self) -> ParameterBlock | None:
        """A dense block of the bias alone; None where there is none, or where the layer's block is dense already."""
        if not (self.bias and self.block.factored):
            return None
        return ParameterBlock(f"{self.name}.bias".lstrip("."), 1, self.bias * self.block.outputs, factored=False)

    @abstractmethod
    def features(self, layer: nn.Module, inputs: Tensor) -> Tensor:
        """What the cotangents are multiplied with, from the layer as it is now and its inputs (n, …)."""

    @abstractmethod
    def factor(self, features: Tensor, cotangents: Tensor) -> Factor:
        """The layer's part from its features and the cotangents (n, K, …), shaped like the outputs of a row."""


def shared_factor(inputs: Tensor, cotangents: Tensor, positions: int) -> LayerFactor | SharedFactor:
    """The part of one matrix at the positions of each row; plain where every row has one.

    Parameters
    ----------
    inputs : Tensor of shape (n, L, I)
    cotangents : Tensor of shape (n, K, L, O)
    positions : int
        L when the layer was traced; where it is 1, structures rely on a
        :class:`~sklearn_laplace.laplace.jacobian.LayerFactor`.

    Examples
    --------
    >>> import torch
    >>> shared_factor(torch.ones(2, 5, 3), torch.ones(2, 1, 5, 4), positions=5).rows()[0, 0, 0]
    tensor(5.)
    >>> shared_factor(torch.ones(2, 1, 3), torch.ones(2, 1, 1, 4), positions=1).inputs.shape
    torch.Size([2, 3])
    """
    if positions > 1:
        return SharedFactor(inputs, cotangents)
    return LayerFactor(inputs.squeeze(1), cotangents.squeeze(2))
