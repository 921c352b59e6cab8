"""Trace a module: find the layers whose Jacobian has a closed form."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..layers import FACTORED, FactoredLayer, Generic
from ..replica import Tape, replicas_follow, replicate
from .layout import Layout
from .network import Network

CHECKED_ROWS = 3
"""Rows of the example on which the factored layers are checked against plain autodiff."""


def trace(
    module: nn.Module, example: Tensor, names: Sequence[str] | None = None, *, log_outputs: bool = False
) -> Network:
    """Look at one forward pass and decide how each selected tensor yields its Jacobian.

    A layer is taken in factored form when its kind is known, it is called exactly once, it owns its tensors
    alone, and its part agrees with plain autodiff on a few rows; everything else is generic.

    Parameters
    ----------
    module : nn.Module
        Copied; neither it nor its mode is touched.
    example : Tensor of shape (n, …), n ≥ 1
        Inputs to trace.
    names : sequence of str, optional
        Selected parameters; all that require a gradient by default.
    log_outputs : bool
        Take the module's outputs, probabilities, through their logarithm.

    Raises
    ------
    ValueError
        If a name is unknown or no parameter is selected.
    """
    private = copy.deepcopy(module).eval()
    known = dict(private.named_parameters())
    selected = tuple(n for n, p in known.items() if p.requires_grad) if names is None else tuple(names)
    if unknown := [name for name in selected if name not in known]:
        raise ValueError(f"unknown parameters {unknown}; the module has {list(known)}.")
    if not selected:
        raise ValueError("no parameter is selected: every parameter of the module has requires_grad=False.")
    private.requires_grad_(False)
    for shallow in (True, False):
        if replicas_follow(private, example[:1], shallow):
            break
    else:
        raise ValueError(
            f"the forward pass of {type(module).__name__} does not follow copies of the module: it reaches its "
            "layers through a closure or a global. Let it use attributes of the module itself."
        )
    # Three rows even where there is one: a layer that sees them folded with something else must stand out.
    example = example[torch.arange(CHECKED_ROWS, device=example.device) % len(example)]
    tape = Tape(replicate(private, {}, shallow), [name for name, _ in private.named_modules()])
    with torch.no_grad():
        tape.run(example)
    layers = _factored_layers(private, selected, tape)
    network = _with_layers(private, selected, layers, tuple(tape.order), log_outputs, shallow)
    agreeing = _agreeing_layers(network, selected, example)
    if len(agreeing) < len(layers):
        network = _with_layers(private, selected, agreeing, tuple(tape.order), log_outputs, shallow)
    return _decide_batching(network, example)


def select(network: Network, names: Sequence[str], example: Tensor) -> Network:
    """The same module with other selected parameters; itnetwork where all of its own are."""
    if tuple(names) == network.parameter_names and not network.layout.elements:
        return network
    found = trace(network.module, example, names, log_outputs=network.log_outputs)
    return found if network.folds_biases else found.with_separate_biases()


def _factored_layers(module: nn.Module, selected: Sequence[str], tape: Tape) -> tuple[FactoredLayer, ...]:
    """The layers of a known kind that are called once and own their selected tensors alone."""
    owners: dict[int, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    found = []
    for name, layer in module.named_modules():
        own = {short for short, _ in layer.named_parameters(recurse=False) if f"{name}.{short}".lstrip(".") in selected}
        if not own or tape.calls.get(name) != 1 or name not in tape.inputs:
            continue
        if any(owners[id(p)] > 1 for _, p in layer.named_parameters(recurse=False)):
            continue
        for kind in FACTORED:
            if tape.inputs[name].shape[:1] == (CHECKED_ROWS,) and kind.handles(layer, tape.inputs[name]):
                found.append(kind.of(name, layer, own, tape.inputs[name]))
                break
    return tuple(found)


def _with_layers(
    module: nn.Module,
    selected: Sequence[str],
    layers: tuple[FactoredLayer, ...],
    called: tuple[str, ...],
    log_outputs: bool,
    shallow: bool,
) -> Network:
    """A network in which the given layers are factored and the other selected tensors generic."""
    covered = {name for layer in layers for name, _ in layer.columns}
    parameters = dict(module.named_parameters())
    rest = tuple(name for name in parameters if name in selected and name not in covered)
    generic = Generic(rest, tuple(parameters[name].numel() for name in rest), batched=True) if rest else None
    return Network(module, layers, generic, Layout.of(module, layers, generic), called, log_outputs, shallow)


def _agreeing_layers(network: Network, selected: Sequence[str], example: Tensor) -> tuple[FactoredLayer, ...]:
    """The factored layers whose part equals plain autodiff's on the example's rows, each row's in its own place."""
    if not network.layers:
        return ()
    module = copy.deepcopy(network.module)
    tensors = dict(module.named_parameters())
    for name in selected:
        tensors[name].requires_grad_()
    with torch.enable_grad():
        outputs = network.transform_outputs(module(example))
    if not outputs.requires_grad:
        raise ValueError(
            f"the outputs of {type(module).__name__} do not depend on its parameters differentiably; remove detach() "
            "or no_grad() from its forward pass."
        )
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(outputs.shape, generator=generator, dtype=torch.float64).to(outputs)
    wanted = [tensors[name] for layer in network.layers for name, _ in layer.columns]
    truth = iter(torch.autograd.grad(outputs, wanted, cotangent, materialize_grads=True))
    known = replace(network, generic=None, layout=Layout.of(network.module, network.layers, None))
    # One column for each row: what a row does to another one's part, as where an input has no rows, stands out.
    columns = cotangent[..., None] * torch.eye(len(example)).to(cotangent)[:, None]
    parts = known.linearise(example).pullback(columns).factors
    by_name = {block.name: part for block, part in zip(known.blocks, parts, strict=True)}
    agreeing = []
    for layer in network.layers:
        pieces = [next(truth).reshape(layer.block.outputs, width) for _, width in layer.columns]
        expected = torch.cat(pieces, 1).flatten()
        part, size = by_name[layer.name], expected.abs().max()
        error = (part.total() - expected).abs().max()
        probe = torch.randn(layer.block.size, 1, generator=generator, dtype=torch.float64).to(cotangent)
        shares = part.times(probe).view(len(example), -1).abs()
        own = shares.diagonal().sum()
        if bool((error <= 1e-3 * size) & (shares.sum() - own <= 1e-3 * own)) or not bool(torch.isfinite(size)):
            agreeing.append(layer)
    return tuple(agreeing)


def _decide_batching(network: Network, example: Tensor) -> Network:
    """Generic layers run batched where the module allows it, else row by row."""
    if network.generic is None:
        return network
    try:
        network.jacobian(example[:1])
    except RuntimeError:  # what torch.func raises for data-dependent control flow and in-place updates
        slow = replace(network, generic=replace(network.generic, batched=False))
        slow.jacobian(example[:1])
        return slow
    return network
