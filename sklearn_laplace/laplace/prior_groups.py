r"""From names of tensors and layers to one value for each selected weight: prior groups, prior means, temperatures.

A grouping says which weights share a prior precision: all of them, those of a layer, of a tensor, of an input column of
the first layer (automatic relevance determination; MacKay 1994, Neal 1996), or none. It knows the traced network and no
values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import UnsupportedCombinationError
from .jacobian.blocks import ParameterBlock
from .network.network import Network
from .prior import Prior

LISTED = 12
"""Names that a message lists before it says how many there are."""
Label = Callable[[str, torch.Size], tuple[Tensor, Sequence[str]]]
"""From a tensor's name and shape to the group of each of its elements, counted from 0, and the groups' names."""


@dataclass(frozen=True)
class Grouping:
    """Which weights share a prior precision.

    Parameters
    ----------
    labels : callable
        From a network to the :data:`Label` of its tensors.
    each : str
        What a group is, for messages.
    unit : str
        Within what the precisions are equal at least: one of
        :attr:`~sklearn_laplace.laplace.structures._base.Curvature.holds`.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> network = trace(nn.Linear(2, 1), torch.zeros(1, 2))
    >>> GROUPINGS["layer"].prior(network).names, GROUPINGS["ard"].prior(network).names
    (('Linear',), ('weight[:, 0]', 'weight[:, 1]', 'bias'))
    """

    labels: Callable[[Network], Label]
    each: str
    unit: str

    def prior(self, network: Network) -> Prior:
        """The prior of the network's selected weights, of mean zero.

        Raises
        ------
        UnsupportedCombinationError
            When the network has no such groups.
        """
        label, index = self.labels(network), dict[str, int]()

        def of_tensor(name: str, rows: int, width: int) -> Tensor:
            local, names = label(name, network.layout.shapes[name])
            numbers = torch.tensor([index.setdefault(group, len(index)) for group in names])
            return numbers[local].reshape(rows, width).to(network.theta.device)

        # Groups all of whose weights a mask leaves out are none.
        present, groups = network.layout.matrices(of_tensor).unique(return_inverse=True)
        every = list(index)
        return Prior(groups, tuple(every[i] for i in present.tolist()))

    def names(self, network: Network, tensors: Sequence[str]) -> tuple[str, ...]:
        """Names of the groups of other tensors of the same module, selected or not.

        Parameters
        ----------
        network : Network
        tensors : sequence of str

        Examples
        --------
        >>> from sklearn_laplace.laplace.network import select, trace
        >>> whole = trace(nn.Linear(2, 1), torch.zeros(1, 2))
        >>> part = select(whole, ["bias"], torch.zeros(1, 2))
        >>> GROUPINGS["tensor"].prior(part).names, GROUPINGS["tensor"].names(part, whole.parameter_names)
        (('bias',), ('weight', 'bias'))
        """
        label, shapes = self.labels(network), network.layout.shapes
        return tuple(dict.fromkeys(group for name in tensors for group in label(name, shapes[name])[1]))


class ColumnsModule(nn.Module):
    """A module that says which columns of a table its first weights are of.

    Attributes
    ----------
    column_of : mapping of str to tuple of int
        For tensors that see the columns: the column of each of their inputs.
    apart : tuple of str
        Tensors that have a prior precision of their own under any grouping: the embeddings of a categorical column,
        whose last one is that of an unknown level.
    """

    column_of: Mapping[str, tuple[int, ...]]
    apart: tuple[str, ...]


def _one(shape: torch.Size, group: str) -> tuple[Tensor, Sequence[str]]:
    return torch.zeros(shape, dtype=torch.long), [group]


def _by_network(network: Network) -> Label:
    apart = network.module.apart if isinstance(network.module, ColumnsModule) else ()
    return lambda name, shape: _one(shape, name if name in apart else "all")


def _by_tensor(network: Network) -> Label:
    return lambda name, shape: _one(shape, name)


def _by_layer(network: Network) -> Label:
    """The tensors of each module together; the net itself is called by its type."""
    whole = type(network.module).__name__
    return lambda name, shape: _one(shape, _owner(name) or whole)


def _by_input(network: Network) -> Label:
    """Each input column of the first layer, and each other tensor."""
    columns = input_columns(network)
    if isinstance(network.module, ColumnsModule):
        column_of = network.module.column_of

        def in_table(name: str, shape: torch.Size) -> tuple[Tensor, Sequence[str]]:
            known = name in column_of and shape[1] > 0
            return (torch.tensor(column_of[name]).expand(shape), columns) if known else _one(shape, name)

        return in_table
    if not columns:
        first, layer = _first_layer(network)
        raise UnsupportedCombinationError(
            "prior_structure='ard' needs a torch.nn.Linear as the first layer with weights, whose columns are the "
            f"inputs; found '{first}' ({type(layer).__name__}). Use prior_structure='tensor' or 'layer'."
        )
    split = columns[0].removesuffix("[:, 0]")

    def label(name: str, shape: torch.Size) -> tuple[Tensor, Sequence[str]]:
        return (torch.arange(shape[1]).expand(shape), columns) if name == split else _one(shape, name)

    return label


def input_columns(network: Network) -> tuple[str, ...]:
    """Names of the groups of the first layer's input columns under "ard"; none where that layer is not linear.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> input_columns(trace(nn.Linear(2, 1), torch.zeros(1, 2)))
    ('weight[:, 0]', 'weight[:, 1]')
    """
    if isinstance(network.module, ColumnsModule):
        return tuple(f"column {k}" for k in range(1 + max(itertools.chain(*network.module.column_of.values()))))
    first, layer = _first_layer(network)
    if type(layer) is not nn.Linear:
        return ()
    return tuple(f"{f'{first}.weight'.lstrip('.')}[:, {column}]" for column in range(layer.in_features))


def inputs_of(network: Network) -> Tensor:
    """How many inputs of mean square one each of :func:`input_columns` makes of a row, times the share that was seen.

    Shape (d,): 1 for a number, 2 for one with an indicator of what is missing, and for the V + 1 embeddings of a
    category, of which a row takes one and the last is never seen, (V + 1) / V.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> inputs_of(trace(nn.Linear(2, 1), torch.zeros(1, 2)))
    tensor([1., 1.], dtype=torch.float64)
    """
    found = torch.zeros(len(input_columns(network)), dtype=torch.float64)
    if not isinstance(network.module, ColumnsModule):
        return found + 1
    for name, columns in network.module.column_of.items():
        many = len(columns)
        size = 1 / (many - 1) if name in network.module.apart else 1.0
        found.index_add_(0, torch.tensor(columns, dtype=torch.long), torch.full((many,), size, dtype=torch.float64))
    return found


def _first_layer(network: Network) -> tuple[str, nn.Module]:
    first = network.called[0] if network.called else ""
    return first, network.module.get_submodule(first)


def _by_parameter(network: Network) -> Label:
    """Each weight alone."""

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
"""The groupings by name."""


def prior_mean(network: Network, values: Mapping[str, Tensor]) -> Tensor:
    """Prior means μ₀ (P,), float64: the given tensors, zero where none is given.

    Parameters
    ----------
    network : Network
    values : mapping of str to Tensor
        By names of the module's parameters, as in a state_dict; what it has of the module's buffers, and of parameters
        that are not selected, is left aside.

    Raises
    ------
    ValueError
        For a name that the module does not have, or a tensor of another shape.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> network = trace(nn.Linear(2, 1), torch.zeros(1, 2))
    >>> prior_mean(network, {"weight": torch.tensor([[3.0, 4.0]])})
    tensor([3., 4., 0.], dtype=torch.float64)
    """
    layout = network.layout
    buffers = dict(network.module.named_buffers())
    if unknown := [name for name in values if name not in layout.aliases and name not in buffers]:
        raise ValueError(f"prior_mean names {unknown}; the net's parameters are {listed(list(layout.aliases))}.")
    given: dict[str, Tensor] = {}
    for name, value in values.items():
        if name not in layout.aliases:
            continue
        first = layout.aliases[name]
        if value.shape != layout.shapes[first]:
            raise ValueError(
                f"prior_mean has an array of shape {tuple(value.shape)} for {name!r}; expected "
                f"{tuple(layout.shapes[first])}."
            )
        given[first] = value.to(network.theta)

    def of_tensor(name: str, rows: int, width: int) -> Tensor:
        return given[name].reshape(rows, width) if name in given else network.theta.new_zeros(rows, width)

    return layout.matrices(of_tensor)


def temperatures(network: Network, values: Mapping[str, float]) -> Tensor:
    """The temperature of each weight (P,), float64: that of its tensor or of the closest module around it, else 1.

    Parameters
    ----------
    network : Network
    values : mapping of str to float
        By names of tensors or modules.

    Raises
    ------
    ValueError
        For a name that is neither.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> network = trace(nn.Sequential(nn.Linear(2, 1)), torch.zeros(1, 2))
    >>> temperatures(network, {"0": 3.0, "0.bias": 0.5})
    tensor([3.0000, 3.0000, 0.5000], dtype=torch.float64)
    """
    aliases = network.layout.aliases
    around = {name: [name, *_modules_around(name)] for name in aliases}
    known = {part for parts in around.values() for part in parts}
    if unknown := [name for name in values if name not in known]:
        raise ValueError(f"temperature names {unknown}; the net's layers and tensors are {listed(sorted(known))}.")
    by_tensor = {
        aliases[name]: values[part] for name, parts in around.items() for part in reversed(parts) if part in values
    }

    def of_tensor(name: str, rows: int, width: int) -> Tensor:
        return network.theta.new_full((rows, width), by_tensor.get(name, 1.0))

    return network.layout.matrices(of_tensor)


def tensors_of(network: Network, name: str) -> tuple[str, ...]:
    """The selected tensors that a name stands for: a tensor's, or a module's for all in it; none where it is neither.

    Parameters
    ----------
    network : Network
    name : str
        Of a tensor, any of its names where it has several, or of a module, whatever is inside it.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> network = trace(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1))), torch.zeros(1, 2))
    >>> tensors_of(network, "1"), tensors_of(network, "0.bias"), tensors_of(network, "2")
    (('1.0.weight', '1.0.bias'), ('0.bias',), ())
    """
    found = {first for other, first in network.layout.aliases.items() if name in (other, *_modules_around(other))}
    return tuple(first for first in network.parameter_names if first in found)


def modules_with_tensors(network: Network) -> tuple[str, ...]:
    """Names of the modules with a selected tensor somewhere inside; not the net itself.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> network = trace(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1))), torch.zeros(1, 2))
    >>> modules_with_tensors(network)
    ('0', '1', '1.0')
    """
    names = [name for name, first in network.layout.aliases.items() if first in network.parameter_names]
    return tuple(dict.fromkeys(module for name in names for module in reversed(_modules_around(name))))


def unit_of(blocks: Sequence[ParameterBlock], values: Tensor) -> str:
    """Within what the values (P,) are equal: one of ``Curvature.holds``.

    Examples
    --------
    >>> blocks = [ParameterBlock("0", outputs=2, inputs=2, factored=True)]
    >>> [unit_of(blocks, torch.tensor(v)) for v in ([1, 1, 1, 1], [1, 2, 1, 2], [1, 1, 2, 2])]
    ['layer', 'column', 'parameter']
    """
    parts = values.split([block.size for block in blocks])
    matrices = [part.view(block.outputs, block.inputs) for block, part in zip(blocks, parts, strict=True)]
    if all(bool((matrix == matrix[0, 0]).all()) for matrix in matrices):
        return "layer"
    return "column" if all(bool((matrix == matrix[0]).all()) for matrix in matrices) else "parameter"


def listed(names: Sequence[str]) -> str:
    """Names for a message, the first of many.

    Examples
    --------
    >>> listed(["a", "b"]), listed([str(i) for i in range(99)])
    ('a, b', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … (99 in all)')
    """
    shown = ", ".join(names[:LISTED])
    return shown if len(names) <= LISTED else f"{shown}, … ({len(names)} in all)"


def _owner(name: str) -> str:
    """The module that a tensor belongs to; empty for the net itself."""
    return name.rpartition(".")[0]


def _modules_around(name: str) -> list[str]:
    """The modules that hold a tensor, from the inside out; not the net itself."""
    found = []
    while name := _owner(name):
        found.append(name)
    return found
