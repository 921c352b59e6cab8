"""Locate the source of NaN or infinite values with a slow pass over the rows, when a sum is not finite.

The order of checks is: weights, layer inputs and outputs, loss, layer gradients, weight gradients.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import NonFiniteError
from .likelihoods._base import Likelihood
from .linalg import pulled_back
from .network.network import Network
from .replica import replicate

Finding = tuple[str, Tensor]
"""Name of a quantity, and a boolean tensor that marks its elements that are not finite."""
ADVICE = "Scale the inputs, avoid points where an operation or its derivative is infinite, or use float64."


def not_finite(
    network: Network, batches: Iterable[tuple[Tensor, ...]], likelihood: Likelihood | None = None
) -> NonFiniteError:
    """Error that names the first non-finite quantity, from batches of (inputs, targets, weights) or of (inputs,)."""
    if what := _weights(network.module):
        return NonFiniteError(f"{what}. Train the net again, or give it other weights.")
    for inputs, *rest in batches:
        finding = _in_forward(network, inputs)
        if finding is None and likelihood is not None:
            finding = _in_loss(network, likelihood, inputs, *rest) or _in_backward(network, likelihood, inputs, *rest)
        elif finding is None:
            finding = _in_backward(network, None, inputs)
        if finding is not None:
            what, bad = finding
            rows = inputs[bad.reshape(len(bad), -1).any(1)] if bad.ndim and len(bad) == len(inputs) else inputs[:0]
            return NonFiniteError(f"{what} is NaN or infinite. {ADVICE}", rows)
    dtype = next(network.module.parameters()).dtype
    return NonFiniteError(
        f"every layer's output and gradient is finite in {dtype}, but products of them, or outputs under sampled "
        f"weights, are not. {ADVICE}"
    )


def _weights(module: nn.Module) -> str:
    """Message for the first layer with tensors that are not finite; empty if all are finite."""
    for name, layer in module.named_modules():
        for short, tensor in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)):
            if not bool(torch.isfinite(tensor).all()):
                return f"{_titled(name, layer)} has NaN or infinite values in {short!r}"
    return ""


def _in_forward(network: Network, x: Tensor) -> Finding | None:
    """First layer input or output that is not finite, in the order of the forward pass."""
    findings: list[Finding] = []

    def look(what: str, values: Any) -> None:
        for tensor in _tensors(values):
            bad = ~torch.isfinite(tensor)
            if not findings and bool(bad.any()):
                findings.append((what, bad))

    replica = replicate(network.module, {}, network.shallow)
    for name, layer in replica.named_modules():
        title = _titled(name, layer)
        before = f"the input of {title}" if name else f"X, as {x.dtype},"
        layer.register_forward_pre_hook(lambda layer, args, what=before: look(what, args))
        layer.register_forward_hook(lambda layer, args, output, what=f"the output of {title}": look(what, output))
    with torch.no_grad():
        replica(x)
    return findings[0] if findings else None


def _in_loss(network: Network, likelihood: Likelihood, x: Tensor, targets: Tensor, weights: Tensor) -> Finding | None:
    """Rows whose loss or its derivatives with respect to the outputs are not finite, or None."""
    outputs = network(x)
    parts = likelihood.nll(outputs, targets)[:, None], _cotangents(likelihood, outputs, targets, weights).flatten(1)
    bad = ~torch.isfinite(torch.cat(parts, 1))
    name = likelihood.key()
    return (f"the {name} loss of outputs up to {float(outputs.abs().max()):.2g}", bad) if bool(bad.any()) else None


def _in_backward(network: Network, likelihood: Likelihood | None, x: Tensor, *rest: Tensor) -> Finding | None:
    """First layer, from the outputs backwards, whose gradient is not finite; else the first such parameter."""
    leaves = {name: p.detach().clone().requires_grad_() for name, p in network.module.named_parameters()}
    by_any_name = {name: leaves[first] for name, first in network.layout.aliases.items()}
    replica = replicate(network.module, by_any_name, network.shallow)
    hooked: dict[tuple[int, int], tuple[Tensor, list[str]]] = {}
    findings: list[Finding] = []

    def watch(title: str, values: Any) -> None:
        for tensor in _tensors(values):
            if tensor.requires_grad:
                # An in-place operation gives the same tensor a new version.
                key = id(tensor), tensor._version
                if key not in hooked:
                    titles: list[str] = []
                    hooked[key] = tensor, titles
                    tensor.register_hook(lambda gradient, titles=titles: look(titles[-1], gradient))
                hooked[key][1].append(title)

    def look(what: str, gradient: Tensor) -> None:
        bad = ~torch.isfinite(gradient)
        if not findings and bool(bad.any()):
            findings.append((what, bad))

    for name, layer in replica.named_modules():
        title = _titled(name, layer)
        into, out = f"the gradient of the input of {title}", f"the gradient of the output of {title}"
        layer.register_forward_pre_hook(lambda layer, args, what=into: watch(what, args))
        layer.register_forward_hook(lambda layer, args, output, what=out: watch(what, output))
    with torch.enable_grad():
        outputs = network.transform_outputs(replica(x))
    cotangents = torch.ones_like(outputs)[..., None] if likelihood is None else _cotangents(likelihood, outputs, *rest)
    for column in cotangents.detach().unbind(-1):
        gradients = pulled_back(outputs, list(leaves.values()), column, keeps=True)
        for name, gradient in zip(leaves, gradients, strict=True):
            look(f"the gradient of parameter {name!r}", gradient.sum())
        if findings:
            return findings[0]
    return None


def _cotangents(likelihood: Likelihood, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted cotangents of the backward pass, shape (n, C, 1 + K): the residual and the curvature factor."""
    residual = likelihood.residual(outputs, targets) * weights[:, None]
    factor = likelihood.hessian_factor(outputs, targets) * weights.sqrt()[:, None, None]
    return torch.cat([residual[..., None], factor], -1)


def _tensors(values: Any) -> Iterator[Tensor]:
    """Floating-point tensors in the arguments or the output of a layer."""
    if isinstance(values, Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)


def _titled(name: str, layer: nn.Module) -> str:
    return f"layer {name!r} ({type(layer).__name__})" if name else f"the module {type(layer).__name__} itself"
