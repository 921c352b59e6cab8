"""Prior groups, prior means and temperatures: maps from tensor and layer names to one value per selected weight.

A grouping defines which weights share a prior precision: all weights except a table's embeddings, or those of a layer,
tensor or input column of the first layer. Groups by column give automatic relevance determination (MacKay 1994, Neal
1996). In the finest grouping, each weight has its own precision. A grouping depends on the traced network only.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import UnsupportedCombinationError
from .jacobian.jacobian import ParameterBlock
from .layers import StandardisedLinear
from .network.network import Network
from .prior import Prior

LISTED = 12
"""Maximum number of names listed in a message."""
Label = Callable[[str, torch.Size], tuple[Tensor, Sequence[str]]]
"""Maps a tensor's name and shape to the group index of each element, counted from 0, and the names of the groups."""


@dataclass(frozen=True)
class Grouping:
    """Rule for which weights share a prior precision."""

    labels: Callable[[Network], Label]  # labels of a network's tensors
    each: str  # name of one group in messages
    unit: str  # largest unit of equal precisions, one of ``Curvature.holds``

    def prior(self, network: Network) -> Prior:
        """Zero-mean prior of the selected weights, or UnsupportedCombinationError if the network has no such groups."""
        label, index = self.labels(network), dict[str, int]()

        def of_tensor(name: str, rows: int, width: int) -> Tensor:
            local, names = label(name, network.layout.shapes[name])
            numbers = torch.tensor([index.setdefault(group, len(index)) for group in names])
            return numbers[local].reshape(rows, width).to(network.theta.device)

        # Drop groups whose weights are all masked out.
        present, groups = network.layout.matrices(of_tensor).unique(return_inverse=True)
        names = list(index)
        return Prior(groups, tuple(names[i] for i in present.tolist()))

    def names(self, network: Network, tensors: Sequence[str]) -> tuple[str, ...]:
        """Names of the groups of any tensors, selected or not."""
        label, shapes = self.labels(network), network.layout.shapes
        return tuple(dict.fromkeys(group for name in tensors for group in label(name, shapes[name])[1]))


class ColumnsModule(nn.Module):
    """A module that assigns the inputs of its first layer to the columns of a table."""

    column_of: Mapping[str, tuple[int, ...]]  # by tensor, the column of each of its inputs
    apart: tuple[str, ...]  # embeddings with their own precision; their last level stands for unknown levels


def _one(shape: torch.Size, group: str) -> tuple[Tensor, Sequence[str]]:
    return torch.zeros(shape, dtype=torch.long), [group]


def _by_network(network: Network) -> Label:
    apart = network.module.apart if isinstance(network.module, ColumnsModule) else ()
    return lambda name, shape: _one(shape, name if name in apart else "all")


def _by_tensor(network: Network) -> Label:
    return lambda name, shape: _one(shape, name)


def _by_layer(network: Network) -> Label:
    """One group per module, for its own tensors; the group of the root module is named after its type."""
    whole = type(network.module).__name__
    return lambda name, shape: _one(shape, _owner(name) or whole)


def _by_input(network: Network) -> Label:
    """One group per input column of the first layer, and one per other tensor."""
    columns = input_columns(network)
    if isinstance(network.module, ColumnsModule):
        column_of = network.module.column_of

        def in_table(name: str, shape: torch.Size) -> tuple[Tensor, Sequence[str]]:
            is_first = name in column_of and shape[1] > 0
            return (torch.tensor(column_of[name]).expand(shape), columns) if is_first else _one(shape, name)

        return in_table
    if not columns:
        first, layer = _first_layer(network)
        raise UnsupportedCombinationError(
            "prior='ard' needs a network whose first layer with weights is a torch.nn.Linear on the input "
            f"columns; found '{first}' ({type(layer).__name__}). Use prior='tensor' or 'layer'."
        )
    split = columns[0].removesuffix("[:, 0]")

    def label(name: str, shape: torch.Size) -> tuple[Tensor, Sequence[str]]:
        return (torch.arange(shape[1]).expand(shape), columns) if name == split else _one(shape, name)

    return label


def input_columns(network: Network) -> tuple[str, ...]:
    """Group names of the first layer's input columns under "ard"; empty if that layer is not linear."""
    if isinstance(network.module, ColumnsModule):
        return tuple(f"column {k}" for k in range(1 + max(itertools.chain(*network.module.column_of.values()))))
    first, layer = _first_layer(network)
    if not (isinstance(layer, nn.Linear) and type(layer) in (nn.Linear, StandardisedLinear)):
        return ()
    return tuple(f"{f'{first}.weight'.lstrip('.')}[:, {column}]" for column in range(layer.in_features))


def inputs_of(network: Network) -> Tensor:
    """Number of inputs per row (d,) for each of :func:`input_columns`.

    With V known levels, each embedding vector counts as 1 / V.
    """
    counts = torch.zeros(len(input_columns(network)), dtype=torch.float64)
    if not isinstance(network.module, ColumnsModule):
        return counts + 1
    for name, columns in network.module.column_of.items():
        width = len(columns)
        size = 1 / (width - 1) if name in network.module.apart else 1.0
        counts.index_add_(0, torch.tensor(columns, dtype=torch.long), torch.full((width,), size, dtype=torch.float64))
    return counts


def _first_layer(network: Network) -> tuple[str, nn.Module]:
    first = network.called[0] if network.called else ""
    return first, network.module.get_submodule(first)


def _by_parameter(network: Network) -> Label:
    def label(name: str, shape: torch.Size) -> tuple[Tensor, Sequence[str]]:
        places = itertools.product(*(range(n) for n in shape))
        return torch.arange(shape.numel()).view(shape), [f"{name}{list(place)}" for place in places]

    return label


GROUPINGS = {
    "scalar": Grouping(_by_network, "net", "layer"),
    "layer": Grouping(_by_layer, "layer", "layer"),
    "tensor": Grouping(_by_tensor, "tensor", "column"),
    "ard": Grouping(_by_input, "input column and other tensor", "column"),
    "parameter": Grouping(_by_parameter, "weight", "parameter"),
}
"""Groupings by the value of ``prior_structure``."""


def prior_mean(network: Network, values: Mapping[str, Tensor]) -> Tensor:
    """Prior means μ₀ (P,), float64, from named tensors; zero elsewhere. Buffers and fixed parameters are ignored."""
    layout = network.layout
    buffers = dict(network.module.named_buffers())
    if unknown := [name for name in values if name not in layout.aliases and name not in buffers]:
        raise ValueError(
            f"the prior mean has unknown parameters {unknown}; the net's parameters are {listed(list(layout.aliases))}."
        )
    means: dict[str, Tensor] = {}
    for name, value in values.items():
        if name not in layout.aliases:
            continue
        first = layout.aliases[name]
        if value.shape != layout.shapes[first]:
            raise ValueError(
                f"the prior mean has an array of shape {tuple(value.shape)} for {name!r}; expected "
                f"{tuple(layout.shapes[first])}."
            )
        means[first] = value.to(network.theta)

    def of_tensor(name: str, rows: int, width: int) -> Tensor:
        return means[name].reshape(rows, width) if name in means else network.theta.new_zeros(rows, width)

    return layout.matrices(of_tensor)


def temperatures(network: Network, values: Mapping[str, float]) -> Tensor:
    """Temperature of each weight (P,), float64: that of its tensor, else of its innermost module with one, else 1."""
    aliases = network.layout.aliases
    around = {name: [name, *_modules_around(name)] for name in aliases}
    valid = {part for parts in around.values() for part in parts}
    if unknown := [name for name in values if name not in valid]:
        raise ValueError(
            f"temperature has unknown names {unknown}; the net's layers and tensors are {listed(sorted(valid))}."
        )
    by_tensor = {
        aliases[name]: values[part] for name, parts in around.items() for part in reversed(parts) if part in values
    }

    def of_tensor(name: str, rows: int, width: int) -> Tensor:
        return network.theta.new_full((rows, width), by_tensor.get(name, 1.0))

    return network.layout.matrices(of_tensor)


def tensors_of(network: Network, name: str) -> tuple[str, ...]:
    """Selected tensors with a given name, or inside a module of that name; empty if there are none."""
    tensors = {first for other, first in network.layout.aliases.items() if name in (other, *_modules_around(other))}
    return tuple(first for first in network.parameter_names if first in tensors)


def modules_with_tensors(network: Network) -> tuple[str, ...]:
    """Names of the modules that contain a selected tensor, at any depth; the root module is excluded."""
    names = [name for name, first in network.layout.aliases.items() if first in network.parameter_names]
    return tuple(dict.fromkeys(module for name in names for module in reversed(_modules_around(name))))


def unit_of(blocks: Sequence[ParameterBlock], values: Tensor) -> str:
    """Largest unit within which the values (P,) are equal: an element of ``Curvature.holds``."""
    parts = values.split([block.size for block in blocks])
    matrices = [part.view(block.outputs, block.inputs) for block, part in zip(blocks, parts, strict=True)]
    if all(bool((matrix == matrix[0, 0]).all()) for matrix in matrices):
        return "layer"
    return "column" if all(bool((matrix == matrix[0]).all()) for matrix in matrices) else "parameter"


def listed(names: Sequence[str]) -> str:
    """Comma-separated names for a message, truncated after :data:`LISTED`."""
    shown = ", ".join(names[:LISTED])
    return shown if len(names) <= LISTED else f"{shown}, … ({len(names)} in all)"


def _owner(name: str) -> str:
    """Name of the module that owns a tensor; empty for the root module."""
    return name.rpartition(".")[0]


def _modules_around(name: str) -> list[str]:
    """Names of the modules around a tensor, innermost first; the root module is excluded."""
    modules = []
    while name := _owner(name):
        modules.append(name)
    return modules
