"""Standardisation of X in the first linear layers of the user's net.

A linear layer with a bias whose input is X, or a range of the columns of X, standardises that input. This leaves the
functions that the net can represent, and the names of its parameters, as they are; gradients with respect to X stay in
the units of X. Any other use of X in the net, such as the indices of an embedding, gets the values themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..laplace.layers import StandardisedLinear
from ..nets.mlp import Standardise


def first_layers(module: nn.Module, x: Tensor) -> dict[str, slice]:
    """Linear layers with a bias that take X itself, by name, each with its columns of X.

    They are found by one forward pass of rows x (n, …); the module is in eval mode and is not changed.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    >>> first_layers(net, torch.zeros(4, 2))
    {'0': slice(0, 2, None)}
    """
    found: dict[str, list[slice | None]] = {}
    original, handles = x.clone(), []
    for name, layer in module.named_modules():
        if type(layer) is nn.Linear and layer.bias is not None and "weight" in layer._parameters:

            def record(layer: nn.Module, inputs: tuple[Any, ...], name: str = name) -> None:
                found.setdefault(name, []).append(_columns(inputs[0], x, original) if inputs else None)

            handles.append(layer.register_forward_pre_hook(record))
    try:
        with torch.no_grad():
            module(x)
    finally:
        for handle in handles:
            handle.remove()
    return {name: calls[0] for name, calls in found.items() if len(calls) == 1 and calls[0] is not None}


def _columns(inputs: Tensor, x: Tensor, original: Tensor) -> slice | None:
    """Columns of X of which a layer's input is a view; None for other inputs."""
    start = inputs.storage_offset() - x.storage_offset()
    shares = inputs.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and inputs.stride() == x.stride()
    if not (shares and inputs.ndim == 2 == x.ndim and inputs.dtype == x.dtype and 0 <= start < x.shape[1]):
        return None
    columns = slice(start, start + inputs.shape[1])
    return columns if torch.equal(inputs, original[:, columns]) else None


def standardise_layers(
    module: nn.Module,
    layers: Mapping[str, slice],
    statistics: tuple[Sequence[float], Sequence[float]],
    known: Mapping[str, Tensor],
) -> None:
    """Let linear layers of the net's own copy of the user's module standardise their inputs, in place.

    ``layers`` is the result of :func:`first_layers`, and ``statistics`` are means and scales of the columns of X. In
    the state ``known`` of another net, statistics of a layer replace the given ones.

    Examples
    --------
    >>> net = nn.Linear(1, 1)
    >>> standardise_layers(net, {"": slice(0, 1)}, ([5.0], [2.0]), {})
    >>> bool(torch.allclose(net(torch.tensor([[5.0]])), net.bias))
    True
    """
    for name, columns in layers.items():
        layer = module.get_submodule(name)
        mean, scale = (
            known[key].tolist() if (key := statistic_of(name, which)) in known else list(values[columns])
            for which, values in zip(("mean", "scale"), statistics, strict=True)
        )
        standardise = Standardise(len(mean), mean, scale).to(next(layer.parameters()))
        # The class changes in place: the layer may also be part of a list or a closure of the user's module.
        layer.__class__ = StandardisedLinear
        layer.add_module("standardise", standardise)


def statistic_of(layer: str, which: str) -> str:
    """Name of a statistic of a standardised layer in the state of its net.

    Examples
    --------
    >>> statistic_of("body.0", "mean")
    'body.0.standardise.mean'
    """
    return f"{layer}.standardise.{which}".lstrip(".")
