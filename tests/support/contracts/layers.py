"""Contract of every layer type."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import oracles
import torch
from torch import Tensor, nn

from sklearn_laplace.laplace.layers import LAYERS, Generic
from sklearn_laplace.laplace.network import Network, trace

from .examples import close


@dataclass(frozen=True)
class LayerCase:
    """A net with layers of a single kind, the names of the selected parameters (None: all), and its rows."""

    what: str
    module: nn.Module
    x: Tensor
    names: tuple[str, ...] | None = None


class Around(nn.Module):
    """Layers on rows of any shape, each followed by a nonlinearity, and a readout to two outputs without parameters."""

    def __init__(self, shape: tuple[int, ...], *layers: nn.Module, indices: bool = False) -> None:
        super().__init__()
        self.shape, self.layers, self.indices = shape, nn.ModuleList(layers), indices
        generator = torch.Generator().manual_seed(3)
        self.double().eval()
        for tensor in itertools.chain(self.parameters(), self.buffers()):
            if tensor.is_floating_point():  # no ones or zeros, positive variances, a single gain that is exactly zero
                drawn = 0.6 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                tensor.data.copy_(drawn if tensor.requires_grad else 0.3 + drawn.abs())
        self.layers[0].weight.data.view(-1)[0] = 0.0
        with torch.no_grad():
            width = self.hidden(torch.zeros(1, math.prod(shape), dtype=torch.float64)).shape[1]
        self.register_buffer("readout", torch.randn(width, 2, generator=generator, dtype=torch.float64))

    def hidden(self, x: Tensor) -> Tensor:
        x = x.unflatten(1, self.shape)
        x = x.long() if self.indices else x
        for layer in self.layers:
            x = torch.sin(layer(x) + 0.5)
        return x.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(x) @ self.readout


def _rows_of(shape: tuple[int, ...], n: int = 5) -> Tensor:
    return torch.randn(n, math.prod(shape), generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _selections(module: nn.Module, index: int) -> tuple[str, ...] | None:
    """In turn: all parameters, the weights alone, everything but the weights."""
    names = [name for name, _ in module.named_parameters()]
    kinds = [names, [n for n in names if n.endswith("weight")], [n for n in names if not n.endswith("weight")]]
    return tuple(kinds[index % 3] or names) if index % 4 else None


def _linear_cases() -> list[LayerCase]:
    bare = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Softplus(), nn.Linear(4, 2)).double()
    x = _rows_of((3,))
    cases = [
        LayerCase("plain", oracles.random_mlp((3, 4, 2)), x),
        LayerCase("half of it", oracles.random_mlp((3, 4, 2)), x, ("0.bias", "2.weight")),
        LayerCase("no bias", bare, x),
        LayerCase("one layer", oracles.random_mlp((3, 1)), x),
    ]
    for index, shape in enumerate([(4, 2), (2, 3, 2), (1, 2), (1, 1, 2), (4, 1), (3, 2)]):
        module = Around(shape, nn.Linear(shape[-1], 3, bias=index != 1), nn.Linear(3, 2))
        cases.append(LayerCase(f"sequence {shape}", module, _rows_of(shape), _selections(module, index)))
    return cases


CONVOLUTIONS: dict[int, list[dict[str, Any]]] = {
    1: [
        {"kernel_size": 3},
        {"kernel_size": 1},
        {"kernel_size": 7},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 2, "stride": 3, "padding": 2, "dilation": 2},
        {"kernel_size": 4, "padding": "same"},
        {"kernel_size": 2, "padding": "same", "dilation": 3, "padding_mode": "circular"},
        {"kernel_size": 3, "padding": "valid", "dilation": 2},
        {"kernel_size": 3, "stride": 2, "padding": 2, "padding_mode": "reflect"},
        {"kernel_size": 3, "padding": 1, "padding_mode": "replicate"},
    ],
    2: [
        {"kernel_size": 3},
        {"kernel_size": 1, "stride": 2},
        {"kernel_size": (5, 4)},
        {"kernel_size": (2, 3), "stride": (2, 1), "padding": (0, 2)},
        {"kernel_size": 2, "padding": 1, "dilation": (3, 2)},
        {"kernel_size": (3, 2), "padding": "same"},
        {"kernel_size": 2, "padding": "same", "dilation": (2, 3), "padding_mode": "reflect"},
        {"kernel_size": 2, "padding": "valid", "stride": 2},
        {"kernel_size": 3, "padding": (2, 1), "stride": (1, 2), "padding_mode": "circular"},
        {"kernel_size": (3, 2), "padding": (1, 1), "padding_mode": "replicate"},
    ],
}
"""Kernels up to the size of the input, even and odd, in every padding mode."""


def convolution(dimensions: int, *sizes: int, **options: Any) -> nn.Module:
    """A convolution of one or two dimensions."""
    return {1: nn.Conv1d, 2: nn.Conv2d}[dimensions](*sizes, **options)


def _conv_cases() -> list[LayerCase]:
    cases = []
    choices = [(d, options, g) for d, every in CONVOLUTIONS.items() for options in every for g in (1, 2, 4)]
    for index, (dimensions, options, groups) in enumerate(choices):
        shape = (4, 7) if dimensions == 1 else (4, 5, 4)
        bias = index % 5 != 2
        layers = [convolution(dimensions, 4, (4, 8)[index % 2], groups=groups, bias=bias, **options)]
        if index % 3 == 0:  # followed by another layer, so that cotangents differ between positions
            layers.append(convolution(dimensions, (4, 8)[index % 2], 3, kernel_size=1))
        module = Around(shape, *layers)
        what = f"{dimensions}d, groups={groups}, bias={bias}, {options}"
        cases.append(LayerCase(what, module, _rows_of(shape), _selections(module, index)))
    return cases


def _embedding_cases() -> list[LayerCase]:
    cases = []
    shapes = [(1,), (4,), (2, 3), (3,)]
    for shape, padding in itertools.product(shapes, (None, 0, -1)):
        module = Around(shape, nn.Embedding(5, 3, padding_idx=padding), indices=True)
        x = _rows_of(shape).abs().mul(3).clamp(max=4).floor()  # some indices occur twice in a row, some never
        cases.append(LayerCase(f"{shape}, padding_idx={padding}", module, x))
    return cases


def _affine_cases() -> list[LayerCase]:
    layers: list[tuple[tuple[int, ...], Callable[[], nn.Module]]] = [
        ((4,), lambda: nn.BatchNorm1d(4)),
        ((4, 3), lambda: nn.BatchNorm1d(4, eps=0.1)),
        ((2, 3, 2), lambda: nn.BatchNorm2d(2)),
        ((2, 1, 3, 2), lambda: nn.BatchNorm3d(2)),
        ((5,), lambda: nn.LayerNorm(5)),
        ((3, 5), lambda: nn.LayerNorm(5, eps=0.1)),
        ((3, 5), lambda: nn.LayerNorm((3, 5))),
        ((2, 2, 3, 2), lambda: nn.LayerNorm((3, 2))),
        ((2, 5), lambda: nn.LayerNorm(5, bias=False)),
        ((2, 5), lambda: nn.RMSNorm(5)),
        ((3, 5), lambda: nn.RMSNorm((3, 5), eps=0.1)),
        ((6,), lambda: nn.GroupNorm(2, 6)),
        ((4, 3), lambda: nn.GroupNorm(2, 4)),
        ((4, 2, 3), lambda: nn.GroupNorm(1, 4, eps=0.1)),
        ((2, 5), lambda: nn.InstanceNorm1d(2, affine=True)),
        ((2, 3, 2), lambda: nn.InstanceNorm2d(2, affine=True, track_running_stats=True)),
        ((2, 2, 3, 2), lambda: nn.InstanceNorm3d(2, affine=True)),
    ]
    cases = []
    for (shape, build), index in itertools.product(layers, (0, 1, 2)):
        module = Around(shape, build(), build())
        cases.append(LayerCase(f"{module.layers[0]} on {shape}", module, _rows_of(shape), _selections(module, index)))
    return cases


LAYER_CASES: dict[str, Callable[[], list[LayerCase]]] = {
    "linear": _linear_cases,
    "conv": _conv_cases,
    "embedding": _embedding_cases,
    "affine": _affine_cases,
}
"""Nets for each kind of layer; ``generic`` is checked on all of them."""


def check_layer(key: str) -> None:
    """Jacobian of a layer against torch.func and row-by-row autodiff, in both precisions."""
    kinds = list(LAYER_CASES) if key == "generic" else [key]
    with warnings.catch_warnings():  # torch warns that padding an even kernel is slower
        warnings.filterwarnings("ignore", message="Using padding='same' with even kernel lengths")
        for case in itertools.chain.from_iterable(LAYER_CASES[kind]() for kind in kinds):
            _check_layer_case(key, case)


def _check_layer_case(key: str, case: LayerCase) -> None:
    module, x, what = case.module, case.x, f"{key}, {case.what}"
    network = trace(module, x, case.names)
    selected = network.parameter_names
    sizes = tuple(module.get_parameter(name).numel() for name in selected)
    generator = torch.Generator().manual_seed(2)
    factor = torch.randn(*network(x).shape, 2, generator=generator, dtype=torch.float64)
    truth = (factor.mT @ oracles.jacobian(module, selected, x)).split(sizes, -1)
    candidates = []
    for batched in (True, False) if key == "generic" else (True,):
        parts = Generic(selected, sizes, batched).factors(network.module, x, factor)
        candidates.append({name: part.rows() for name, part in zip(selected, parts, strict=True)})
    if key != "generic":
        assert {type(layer) for layer in network.layers} == {LAYERS[key]}, f"{what}: no layer is of this kind"
        assert network.generic is None
        candidates.append(_parts(network, x, factor))
        single = trace(copy.deepcopy(module).float(), x.float(), case.names)
        assert single.layers == network.layers, f"{what}: other layers in single precision"
        for name, expected in zip(selected, truth, strict=True):
            close(_parts(single, x.float(), factor.float())[name].double(), expected, 1e-4, f"{what}: {name}, single")
    for parts in candidates:
        for name, expected in zip(selected, truth, strict=True):
            close(parts[name], expected, 1e-10, f"{what}: Jacobian in {name}")


def _parts(network: Network, x: Tensor, factor: Tensor) -> dict[str, Tensor]:
    """SᵀJ of the network, (n, K, elements) for each tensor."""
    rows = network.linearise(x).pullback(factor).rows()
    return {name: part.flatten(2) for name, part in network.tensors(rows).items()}
