"""Trace a module to find the layers whose Jacobian has a closed form."""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..layers import FACTORED, FactoredLayer, Generic
from ..linalg import pulled_back
from ..replica import Tape, replicas_follow, replicate
from .network import Layout, Network

CHECKED_ROWS = 3
"""Number of example rows on which factored layers are checked against autodiff."""


def trace(
    module: nn.Module, example: Tensor, names: Sequence[str] | None = None, *, log_outputs: bool = False
) -> Network:
    """Network from passes over ``example`` (n, …), with a form of Jacobian chosen for each selected tensor.

    A layer is factored if its type is supported, it is called once and it does not share its tensors. In addition, its
    Jacobian must agree with autodiff on a few rows. All other tensors are generic. If ``log_outputs``, the module
    returns probabilities, and the network takes their logarithm. Without ``names``, all trainable tensors are selected.
    """
    private = copy_of(module).eval()
    known = dict(private.named_parameters())
    selected = tuple(n for n, p in known.items() if p.requires_grad) if names is None else tuple(names)
    _check_names(selected, known)
    private.requires_grad_(False)
    for shallow in (True, False):
        if replicas_follow(private, example[:1], shallow):
            break
    else:
        raise ValueError(
            f"the forward pass of {type(module).__name__} does not use the layers of a copied module: it accesses its "
            "layers through a closure or a global variable. Use attributes of the module instead."
        )
    # Repeat rows if there are too few: with one row, a dimension merged with the rows would go unnoticed.
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


def _check_names(selected: Sequence[str], known: Mapping[str, Tensor]) -> None:
    if unknown := [name for name in selected if name not in known]:
        raise ValueError(f"unknown parameters {unknown}; the module has {list(known)}.")
    if not selected:
        raise ValueError(
            "no parameter is selected: every parameter of the module has requires_grad=False. Call requires_grad_() on "
            "at least one."
        )


def select(network: Network, names: Sequence[str], example: Tensor) -> Network:
    """Network of the same module with the given parameters selected; ``network`` itself if they already are."""
    if tuple(names) == network.parameter_names and not network.layout.elements:
        return network
    selected = trace(network.module, example, names, log_outputs=network.log_outputs)
    return selected if network.folds_biases else selected.with_separate_biases()


def _factored_layers(module: nn.Module, selected: Sequence[str], tape: Tape) -> tuple[FactoredLayer, ...]:
    """Layers of a supported type that are called once and do not share their tensors."""
    owners = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
    layers = []
    for name, layer in module.named_modules():
        own = [short for short, _ in layer.named_parameters(recurse=False)]
        tensors = {short for short in own if f"{name}.{short}".lstrip(".") in selected}
        if not tensors or tape.calls.get(name) != 1 or name not in tape.inputs:
            continue
        if any(owners[id(p)] > 1 for _, p in layer.named_parameters(recurse=False)):
            continue
        for kind in FACTORED:
            if tape.inputs[name].shape[:1] == (CHECKED_ROWS,) and kind.handles(layer, tape.inputs[name]):
                layers.append(kind.of(name, layer, tensors, tape.inputs[name]))
                break
    return tuple(layers)


def _with_layers(
    module: nn.Module,
    selected: Sequence[str],
    layers: tuple[FactoredLayer, ...],
    called: tuple[str, ...],
    log_outputs: bool,
    shallow: bool,
) -> Network:
    """Network in which the given layers are factored and all other selected tensors are generic."""
    covered = {name for layer in layers for name, _ in layer.columns}
    parameters = dict(module.named_parameters())
    rest = tuple(name for name in parameters if name in selected and name not in covered)
    generic = Generic(rest, tuple(parameters[name].numel() for name in rest), batched=True) if rest else None
    return Network(module, layers, generic, Layout.of(module, layers, generic), called, log_outputs, shallow)


def copy_of(module: nn.Module) -> nn.Module:
    """Deep copy of a module. Raises ValueError for tensors that cannot be copied (``torch.nn.utils.weight_norm``)."""
    try:
        return copy.deepcopy(module)
    except RuntimeError as error:
        raise ValueError(
            f"{type(module).__name__} cannot be copied by copy.deepcopy ({str(error).partition('.')[0]}). In place of "
            "torch.nn.utils.weight_norm use torch.nn.utils.parametrizations.weight_norm; keep no tensors in a module "
            "that are results of computations with its parameters."
        ) from error


def _agreeing_layers(network: Network, selected: Sequence[str], example: Tensor) -> tuple[FactoredLayer, ...]:
    """Factored layers without interaction between rows, whose Jacobian agrees with autodiff on the example."""
    if not network.layers:
        return ()
    parameters = dict(network.module.named_parameters())
    tensors = {name: parameters[name].detach().requires_grad_() for name in selected}
    with torch.enable_grad():
        outputs = network.transform_outputs(network.replica(tensors)(example))
    if not outputs.requires_grad:
        raise ValueError(
            f"the outputs of {type(network.module).__name__} do not depend on its parameters differentiably. Remove "
            "detach() and no_grad() from its forward pass."
        )
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(outputs.shape, generator=generator, dtype=torch.float64).to(outputs)
    wanted = [tensors[name] for layer in network.layers for name, _ in layer.columns]
    truth = iter(pulled_back(outputs, wanted, cotangent))
    known = replace(network, generic=None, layout=Layout.of(network.module, network.layers, None))
    # One column per row detects cross-talk between rows, for example if an input has no row dimension.
    columns = cotangent[..., None] * torch.eye(len(example)).to(cotangent)[:, None]
    parts = known.linearise(example).pullback(columns).factors
    by_name = {block.name: part for block, part in zip(known.blocks, parts, strict=True)}
    agreeing = []
    for layer in network.layers:
        expected = torch.cat([next(truth).reshape(layer.block.outputs, n) for _, n in layer.columns], 1).flatten()
        part, size = by_name[layer.name], expected.abs().max()
        error = (part.total() - expected).abs().max()
        probe = torch.randn(layer.block.size, 1, generator=generator, dtype=torch.float64).to(cotangent)
        shares = part.times(probe).view(len(example), -1).abs()
        within = shares.diagonal().sum()
        agrees = (error <= 1e-3 * size) & (shares.sum() - within <= 1e-3 * within)
        if bool(agrees | ~size.isfinite()):
            agreeing.append(layer)
    return tuple(agreeing)


def _decide_batching(network: Network, example: Tensor) -> Network:
    """Network that differentiates generic tensors in batches if this gives the right result, else row by row.

    ``torch.func`` fails for data-dependent control flow and in-place updates. For ``nn.PReLU`` its result is wrong.
    """
    if network.generic is None:
        return network
    slow, rows = replace(network, generic=replace(network.generic, batched=False)), example[:2]
    _, expected = slow.jacobian(rows)
    try:
        _, found = network.jacobian(rows)
    except RuntimeError:
        return slow
    for part, other in zip(found.factors, expected.factors, strict=True):
        values, truth = part.rows(), other.rows()
        if values.shape != truth.shape or not torch.allclose(values, truth, rtol=1e-3, atol=1e-6, equal_nan=True):
            return slow
    return network
