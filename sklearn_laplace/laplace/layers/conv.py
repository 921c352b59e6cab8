r"""Convolutions: the same linear map, applied to the patch of the padded input at every position.

Let :math:`a_{nl}` be the patches of row n, and :math:`g_{nkl}` the cotangents at the output positions l. The part is
:math:`\sum_l g_{nkl} \otimes [a_{nl}, 1]`, as for a linear layer at several positions. A grouped convolution is one
such map per group. It has no single input, so its part is stored densely.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..jacobian.jacobian import DenseFactor, Factor, ParameterBlock
from ._base import FactoredLayer, shared_factor

AXES: dict[type[nn.Module], int] = {nn.Conv1d: 3, nn.Conv2d: 4}
"""Supported convolutions, and the ``ndim`` of their input including the rows."""
BY_NAME = {"valid": 0, "same": 1}
"""Total padding for each ``padding`` given as a string, in multiples of dilation · (kernel size − 1)."""
FILLS = {"zeros": "constant"}
"""Padding modes of a layer that have another name in ``torch.nn.functional.pad``."""


@dataclass(frozen=True)
class Conv(FactoredLayer):
    """A convolution in one or two dimensions, called once in the forward pass with an input of shape (n, C, …).

    ``weight`` is the number of inputs of one output channel, and ``bias`` is 1. With groups, they are the numbers of
    elements of the two tensors. Either is 0 if its tensor is not selected.

    >>> layer = torch.nn.Conv2d(3, 8, kernel_size=5)
    >>> images = torch.zeros(2, 3, 28, 28)
    >>> conv = Conv.of("0", layer, {"weight", "bias"}, images)
    >>> conv.block
    ParameterBlock(name='0', outputs=8, inputs=76, factored=True, positions=576)
    >>> conv.features(layer, images).shape
    torch.Size([2, 576, 76])
    """

    n_outputs: int  # output channels
    positions: int  # output positions L
    groups: int  # number of channel groups; 1 without grouping

    @staticmethod
    def handles(layer: nn.Module, inputs: Tensor) -> bool:
        """True for a 1-D or 2-D convolution that owns its weight; transposed convolutions are not handled."""
        axes = AXES.get(type(layer))
        return axes == inputs.ndim and "weight" in layer._parameters

    @classmethod
    def of(cls, name: str, layer: nn.Module, selected: set[str], inputs: Tensor) -> Self:
        assert isinstance(layer, nn.Conv1d | nn.Conv2d)
        rows = layer.out_channels if layer.groups > 1 else 1
        weight = rows * layer.weight[0].numel() * ("weight" in selected)
        bias = rows * ("bias" in selected)
        positions = _patches(layer, inputs[:1]).shape[-1]
        return cls(name, weight, bias, layer.out_channels, positions, layer.groups)

    @property
    def block(self) -> ParameterBlock:
        """[W | b] with the patch as inputs. With groups: all elements of W, then b, in one row."""
        columns = self.weight + self.bias
        if self.groups > 1:
            return ParameterBlock(self.name, 1, columns, factored=False)
        return ParameterBlock(self.name, self.n_outputs, columns, True, self.positions)

    def features(self, layer: nn.Module, inputs: Tensor) -> Tensor:
        """Patches with a column of ones for the bias, shape (n, L, I + 1), without columns of unselected tensors.

        With groups: the patches without a column of ones, shape (n, C·kernel, L).
        """
        assert isinstance(layer, nn.Conv1d | nn.Conv2d)
        if self.groups > 1:
            return _patches(layer, inputs) if self.weight else inputs
        if not self.weight:
            return inputs.new_ones(len(inputs), self.positions, 1)
        patches = _patches(layer, inputs)
        ones = [torch.ones_like(patches[:, :1])] if self.bias else []
        return torch.cat([patches, *ones], 1).mT

    def factor(self, features: Tensor, cotangents: Tensor) -> Factor:
        cotangents = cotangents.flatten(3)
        if self.groups > 1:
            return self._grouped_factor(features, cotangents)
        return shared_factor(features, cotangents.mT, self.positions)

    def _grouped_factor(self, patches: Tensor, cotangents: Tensor) -> DenseFactor:
        """Σ_l g ⊗ a for each group, in the order of the weight's elements."""
        parts = [cotangents.sum(-1)] if self.bias else []
        if self.weight:
            by_group = cotangents.unflatten(2, (self.groups, -1))
            inputs = patches.unflatten(1, (self.groups, -1))
            parts = [torch.einsum("nkgol,ngil->nkgoi", by_group, inputs).flatten(2), *parts]
        return DenseFactor(torch.cat(parts, -1))


def _patches(layer: nn.Conv1d | nn.Conv2d, inputs: Tensor) -> Tensor:
    """Patch of each output position, by channel, (n, C · kernel size, L). 1-D inputs get a height of one."""
    padded = F.pad(inputs, _margins(layer), FILLS.get(layer.padding_mode, layer.padding_mode))
    if padded.ndim == 3:
        padded = padded[:, :, None]
    kernel, dilation, stride = (
        (1, *sizes) if len(sizes) == 1 else sizes for sizes in (layer.kernel_size, layer.dilation, layer.stride)
    )
    return F.unfold(padded, kernel, dilation, stride=stride)


def _margins(layer: nn.Conv1d | nn.Conv2d) -> list[int]:
    """Elements added before and after each axis, the last axis first, in the format of ``F.pad``."""
    margins: list[int] = []
    for axis in reversed(range(len(layer.kernel_size))):
        if isinstance(layer.padding, str):
            both = BY_NAME[layer.padding] * layer.dilation[axis] * (layer.kernel_size[axis] - 1)
            margins += [both // 2, both - both // 2]
        else:
            margins += [layer.padding[axis]] * 2
    return margins
