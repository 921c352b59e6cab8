"""Standardisation of X in the first linear layers of the user's net.

A linear layer with a bias whose input is X, or a range of its columns, standardises that input. The functions that the
net can represent, the names of its parameters, and the units of gradients with respect to X stay the same. Any other
use of X, such as the indices of an embedding, gets the values themselves.
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

    They are found by a forward pass of rows x (n, …) in eval mode; the module is not changed.
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
    """Let the :func:`first_layers` standardise their inputs in place, by means and scales of the columns of X.

    Statistics of a layer in the state ``known`` of another net replace the given ones.
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
    """Name of a statistic of a standardised layer in the state of its net, such as "body.0.standardise.mean"."""
    return f"{layer}.standardise.{which}".lstrip(".")
