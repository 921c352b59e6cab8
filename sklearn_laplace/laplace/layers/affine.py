r"""Normalisation layers, :math:`y = \gamma \hat x + \beta` with one γ and one β per channel or element.

The normalised input :math:`\hat x` does not depend on γ and β. The part of row n is :math:`[\sum_l g_{nkl} \hat x_{nl}
\mid \sum_l g_{nkl}]`, summed over the positions l that share γ and β.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..jacobian.jacobian import DenseFactor, ParameterBlock
from ._base import FactoredLayer


def _by_statistics(layer: Any, x: Tensor) -> Tensor:
    return F.batch_norm(x, layer.running_mean, layer.running_var, None, None, False, 0.0, layer.eps)


def _by_instance(layer: Any, x: Tensor) -> Tensor:
    statistics = layer.running_mean, layer.running_var
    return F.instance_norm(x, *statistics, None, None, not layer.track_running_stats, 0.0, layer.eps)


def _by_group(layer: Any, x: Tensor) -> Tensor:
    return F.group_norm(x, layer.num_groups, None, None, layer.eps)


def _by_layer(layer: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, layer.normalized_shape, None, None, layer.eps)


def _by_size(layer: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, layer.normalized_shape, None, layer.eps)


Normalisation = Callable[[Any, Tensor], Tensor]
BY_CHANNEL: dict[type[nn.Module], tuple[Normalisation, tuple[int, ...]]] = {
    nn.BatchNorm1d: (_by_statistics, (2, 3)),
    nn.BatchNorm2d: (_by_statistics, (4,)),
    nn.BatchNorm3d: (_by_statistics, (5,)),
    nn.InstanceNorm1d: (_by_instance, (3,)),
    nn.InstanceNorm2d: (_by_instance, (4,)),
    nn.InstanceNorm3d: (_by_instance, (5,)),
    nn.GroupNorm: (_by_group, (2, 3, 4, 5)),
}
"""Layers with one γ per channel (the axis after the rows): their normalisation, and the valid ``ndim`` of inputs."""
BY_ELEMENT: dict[type[nn.Module], Normalisation] = {nn.LayerNorm: _by_layer, nn.RMSNorm: _by_size}
"""Layers with one γ per element of the last axes, and their normalisation."""


@dataclass(frozen=True)
class Affine(FactoredLayer):
    """A normalisation layer in eval mode, called once in the forward pass with an input of shape (n, …).

    ``weight`` and ``bias`` are the numbers of elements of γ and β; 0 if the tensor is not selected.

    >>> layer = torch.nn.LayerNorm(5)
    >>> sequences = torch.zeros(2, 7, 5)
    >>> affine = Affine.of("0", layer, {"weight", "bias"}, sequences)
    >>> affine.block.size, affine.features(layer, sequences).shape
    (10, torch.Size([2, 5, 7]))
    """

    last_axes: int  # number of last axes that γ spans; 0 if it spans the channels (axis 1)

    @staticmethod
    def handles(layer: nn.Module, inputs: Tensor) -> bool:
        """True for a normalisation layer that treats rows independently. Batch norm must have running statistics."""
        kind = type(layer)
        if kind in BY_ELEMENT:
            assert isinstance(layer, nn.LayerNorm | nn.RMSNorm)
            return inputs.ndim > len(layer.normalized_shape)
        if kind not in BY_CHANNEL:
            return False
        normalise, axes = BY_CHANNEL[kind]
        alone = normalise is not _by_statistics or layer.running_mean is not None
        return alone and inputs.ndim in axes

    @classmethod
    def of(cls, name: str, layer: nn.Module, selected: set[str], inputs: Tensor) -> Self:
        tensors = dict(layer.named_parameters(recurse=False))
        weight, bias = (tensors[name].numel() if name in selected else 0 for name in ("weight", "bias"))
        last_axes = len(layer.normalized_shape) if isinstance(layer, nn.LayerNorm | nn.RMSNorm) else 0
        return cls(name, weight, bias, last_axes)

    @property
    def block(self) -> ParameterBlock:
        return ParameterBlock(self.name, 1, self.weight + self.bias, factored=False)

    def features(self, layer: nn.Module, inputs: Tensor) -> Tensor:
        """Normalised input, shape (n, p, L) for p elements of γ at L positions."""
        kind = type(layer)
        normalise = BY_ELEMENT[kind] if kind in BY_ELEMENT else BY_CHANNEL[kind][0]
        return self._by_position(normalise(layer, inputs), 1)

    def factor(self, features: Tensor, cotangents: Tensor) -> DenseFactor:
        """[Σ g∘x̂ | Σ g], without unselected tensors, from x̂ (n, p, L) and cotangents (n, K, …)."""
        cotangents = self._by_position(cotangents, 2)
        parts = [(cotangents * features[:, None]).sum(-1)] if self.weight else []
        return DenseFactor(torch.cat([*parts, cotangents.sum(-1)] if self.bias else parts, -1))

    def _by_position(self, values: Tensor, leading: int) -> Tensor:
        """Reshape values to (…, p, L). The ``leading`` axes of rows and columns are kept."""
        if self.last_axes:
            values = values.flatten(-self.last_axes)
            return values.reshape(*values.shape[:leading], -1, values.shape[-1]).mT
        return values.reshape(*values.shape[: leading + 1], -1)
