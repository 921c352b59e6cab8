r"""The trained module as a function of its selected weights, with factored Jacobians.

A :class:`Network` owns a private copy of the module in eval mode (no dropout, running statistics in batch norm),
without gradients. It also owns the layout of the selected parameters: their order and shapes, in the blocks of
:mod:`~sklearn_laplace.laplace.jacobian.jacobian`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...errors import UnsupportedCombinationError
from ..jacobian.jacobian import DenseFactor, Factor, FactoredJacobian, ParameterBlock, bias_apart, picked
from ..layers import FactoredLayer, Generic
from ..linalg import pulled_back
from ..prior import Prior
from ..replica import Tape, replicate

ASYMMETRY = 1e-3
"""Tolerated asymmetry of a Hessian, relative to its largest entry. Rounding errors are well below this value."""
HESSIAN_BUDGET = 2**22
"""Maximum number of activation elements for the Hessian rows computed at once, 32 MB in float64."""


@dataclass(frozen=True)
class Layout:
    """Layout of the parameter vector. Networks that differ only in their weights share it."""

    blocks: tuple[ParameterBlock, ...]  # in the order of the module's parameters
    columns: Mapping[str, tuple[tuple[str, int], ...]]  # tensors of each block, with their numbers of columns
    shapes: Mapping[str, torch.Size]  # of each parameter of the module
    aliases: Mapping[str, str]  # from each name of a parameter to its first name; tied weights have several
    elements: Mapping[str, Tensor] = field(default_factory=dict)  # flat positions of random elements, by block

    @property
    def random(self) -> tuple[ParameterBlock, ...]:
        """Blocks of the parameter vector.

        A block in which :meth:`Network.restrict` fixes elements is dense and contains only random elements.
        """
        if not self.elements:
            return self.blocks
        sizes = {name: len(part) for name, part in self.elements.items()}
        return tuple(
            ParameterBlock(b.name, 1, sizes[b.name], factored=False) if b.name in sizes else b for b in self.blocks
        )

    @classmethod
    def of(
        cls, module: nn.Module, layers: Sequence[FactoredLayer], generic: Generic | None, *, folds_biases: bool = True
    ) -> Layout:
        """Layout of a module whose selected tensors belong to ``layers`` or ``generic``."""
        blocks = {layer.name: layer.block for layer in layers}
        columns = {layer.name: layer.columns for layer in layers}
        for layer in () if folds_biases else layers:
            if (bias := layer.bias_block) is None:
                continue
            blocks |= {layer.name: replace(layer.block, inputs=layer.weight), bias.name: bias}
            columns |= {layer.name: layer.columns[:-1], bias.name: ((bias.name, bias.inputs),)}
        if generic is not None:
            blocks |= {block.name: block for block in generic.blocks}
            columns |= {block.name: ((block.name, block.inputs),) for block in generic.blocks}
        owner = {pieces[0][0]: name for name, pieces in columns.items() if pieces}
        first = {id(p): name for name, p in module.named_parameters()}
        return cls(
            tuple(blocks[owner[name]] for name in first.values() if name in owner),
            columns,
            {name: p.shape for name, p in module.named_parameters()},
            {name: first[id(p)] for name, p in module.named_parameters(remove_duplicate=False)},
        )

    def matrices(self, value: Callable[[str, int, int], Tensor]) -> Tensor:
        """Assemble a vector (P,) from ``value(name, rows, columns)``, the matrix of each tensor within its block."""
        parts = []
        for block in self.blocks:
            pieces = [value(name, block.outputs, width) for name, width in self.columns[block.name]]
            part = torch.cat(pieces, 1).flatten()
            parts.append(part[self.elements[block.name]] if block.name in self.elements else part)
        return torch.cat(parts)


@dataclass(frozen=True)
class Linearisation:
    """Outputs of a network at n inputs, and on request their derivatives with respect to the weights."""

    inputs: Tensor  # (n, …)
    outputs: Tensor  # (n, C)
    pullback: Callable[[Tensor], FactoredJacobian]  # maps S (n, C, K) to SᵀJ
    hessian: Callable[[Callable[[Tensor], Tensor]], Tensor]  # maps a scalar function of outputs to its Hessian (P, P)

    def jacobian(self) -> FactoredJacobian:
        """Jacobian of the outputs: the pullback of S = I, with K = C."""
        n, n_outputs = self.outputs.shape
        identity = torch.eye(n_outputs, dtype=self.outputs.dtype, device=self.outputs.device)
        return self.pullback(identity.expand(n, n_outputs, n_outputs))

    def moved(self, shift: Tensor) -> Linearisation:
        """Linearised network at θ* + shift, for a shift (P,): outputs f + J·shift, and the same derivatives."""
        change = self.jacobian().times(shift[:, None])[..., 0]
        return replace(self, outputs=self.outputs + change.to(self.outputs.dtype))


@dataclass(frozen=True)
class Network:
    """A module, its selected weights, and the form in which each layer provides its Jacobian."""

    module: nn.Module  # private copy in eval mode
    layers: tuple[FactoredLayer, ...]  # with a Jacobian in closed form
    generic: Generic | None  # all other selected tensors
    layout: Layout
    called: tuple[str, ...]  # modules that own parameters, in the order of the forward pass
    log_outputs: bool = False  # take the logarithm of probabilities
    shallow: bool = True  # replicas copy only the module tree; deep replicas also copy bound methods and lists
    folds_biases: bool = True  # a bias is a column of [W | b], else a dense block

    # ------------------------------------------------------------------ building

    def with_separate_biases(self) -> Network:
        """Network with the same selected tensors, without masks, and with a separate dense block for each bias."""
        layout = Layout.of(self.module, self.layers, self.generic, folds_biases=False)
        return replace(self, layout=layout, folds_biases=False)

    def restrict(self, masks: Mapping[str, Tensor]) -> Network:
        """Network in which a tensor with a mask is random only where its mask is True."""
        elements = {}
        for block in self.layout.blocks:
            columns = self.layout.columns[block.name]
            if any(name in masks for name, _ in columns):
                full = torch.ones(block.outputs, block.inputs, dtype=torch.bool, device=self.theta.device)
                pieces = [
                    masks[name].to(full.device).reshape(len(full), width) if name in masks else full[:, :width]
                    for name, width in columns
                ]
                elements[block.name] = torch.cat(pieces, 1).flatten().nonzero()[:, 0]
        return replace(self, layout=replace(self.layout, elements=elements))

    def with_parameters(self, theta: Tensor) -> Network:
        """Network whose selected weights are set to θ (P,). Everything else is shared with this network."""
        dtype = next(self.module.parameters()).dtype
        tensors = self.tensors(theta.to(dtype))
        # Contiguous copies instead of views of θ, so that a saved and loaded network rounds in the same way.
        copies = {name: value.clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
        replaced = {name: nn.Parameter(value, requires_grad=False) for name, value in copies.items()}
        moved = replace(self, module=self.replica(replaced))
        object.__setattr__(moved, "theta", theta.to(dtype).double())  # fills the cached property
        return moved

    def with_state_of(self, module: nn.Module) -> Network:
        """Network with the weights and buffers of ``module``, which has the same architecture."""
        return replace(self, module=copy.deepcopy(module).eval().requires_grad_(False))

    # ------------------------------------------------------------------ evaluating

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs (n, C). They are part of the graph of x if x requires a gradient, and detached otherwise."""
        with torch.set_grad_enabled(x.requires_grad):
            return self.transform_outputs(self.module(x))

    def linearise(self, x: Tensor) -> Linearisation:
        """Outputs and pullback at inputs (n, …). Both are differentiable functions of x if x requires a gradient."""
        tape = Tape(self.replica({}), [layer.name for layer in self.layers])
        with torch.enable_grad():
            raw = tape.run(x)
            outputs = self.transform_outputs(raw)
        heads = [tape.outputs[layer.name] for layer in self.layers]
        features = []
        for layer in self.layers:
            a = tape.inputs[layer.name]
            if len(a) != len(x):
                raise ValueError(
                    f"layer '{layer.name}' received {len(a)} rows in a batch of {len(x)}: the Jacobian needs a module "
                    "that treats all rows of a batch alike. Make every layer process every row."
                )
            features.append(layer.features(self.module.get_submodule(layer.name), a))

        pullback = partial(self._pulled, x, raw, outputs, heads, features)
        values = outputs if x.requires_grad else outputs.detach()
        return Linearisation(x, values, pullback, lambda loss: self.hessian(x, loss))

    def _pulled(
        self,
        x: Tensor,
        raw: Tensor,
        outputs: Tensor,
        heads: Sequence[Tensor],
        features: Sequence[Any],
        factor: Tensor,
    ) -> FactoredJacobian:
        """Pullback of :meth:`linearise`: one backward pass per column of a factor (n, C, K)."""
        if factor.shape[-1] == 0:
            empty = (factor.new_zeros(len(x), 0, block.size) for block in self.blocks)
            return FactoredJacobian(tuple(DenseFactor(values) for values in empty))
        cotangents: list[list[Tensor]] = [[] for _ in heads]
        for k in range(factor.shape[-1] if heads else 0):
            gradients = pulled_back(outputs, heads, factor[..., k], keeps=True, differentiable=x.requires_grad)
            for column, gradient in zip(cotangents, gradients, strict=True):
                column.append(gradient)
        parts: dict[str, Factor] = {
            layer.name: layer.factor(a, g[0][:, None] if len(g) == 1 else torch.stack(g, 1))
            for layer, a, g in zip(self.layers, features, cotangents, strict=True)
        }
        if self.generic is not None:
            # Use a replica, since functional_call swaps tensors in place.
            fixed = raw if x.requires_grad else raw.detach()
            dense = self.generic.factors(self.replica({}), x, self._through_log(fixed, factor))
            parts |= dict(zip(self.generic.names, dense, strict=True))
        for layer in () if self.folds_biases else self.layers:
            if (bias := layer.bias_block) is not None:
                whole = parts[layer.name]
                assert not isinstance(whole, DenseFactor)
                parts[layer.name], parts[bias.name] = bias_apart(whole)
        parts |= {name: picked(parts[name], index) for name, index in self.layout.elements.items()}
        return FactoredJacobian(tuple(parts[block.name] for block in self.blocks))

    def jacobian(self, x: Tensor) -> tuple[Tensor, FactoredJacobian]:
        """Outputs (n, C) and their Jacobian with K = C columns."""
        line = self.linearise(x)
        return line.outputs, line.jacobian()

    def hessian(self, x: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
        """Hessian (P, P), float64, of a scalar function of the outputs with respect to θ, by P backward passes."""
        theta = self.theta.detach().to(next(self.module.parameters()).dtype).requires_grad_()
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # other attention backends have no second derivative
            value = loss(self.transform_outputs(self.replica(self.tensors(theta))(x)))
            (gradient,) = torch.autograd.grad(value, theta, create_graph=True, materialize_grads=True)
        if not gradient.requires_grad:  # the loss is affine in the weights
            return torch.zeros(len(theta), len(theta), dtype=torch.float64, device=theta.device)
        step = max(1, HESSIAN_BUDGET // (len(x) * sum(block.width(1) for block in self.blocks)))
        matrix = _derivative_of_gradient(gradient, theta, step, type(self.module).__name__)
        if bool((matrix - matrix.mT).abs().max() > ASYMMETRY * matrix.abs().max()):  # False for NaN
            raise UnsupportedCombinationError(
                f"curvature='hessian' needs second derivatives, but the Hessian of {type(self.module).__name__} is not "
                "symmetric: torch computes a wrong second derivative of one of its operations, for example weight "
                "normalisation. Use curvature='ggn'."
            )
        return (matrix + matrix.mT) / 2

    def passing_by(self, layer: str, x: Tensor) -> tuple[str, ...]:
        """Selected tensors on which the outputs depend along a path that bypasses this layer."""
        theta = self.theta.to(next(self.module.parameters()).dtype, copy=True)
        parameters = {name: tensor.requires_grad_() for name, tensor in self.tensors(theta).items()}
        replica = self.replica(parameters)
        replica.get_submodule(layer).register_forward_hook(lambda module, args, output: output.detach())
        with torch.enable_grad():
            outputs = self.transform_outputs(replica(x))
        if not outputs.requires_grad:
            return ()
        gradients = torch.autograd.grad(outputs.sum(), list(parameters.values()), allow_unused=True)
        return tuple(name for name, gradient in zip(parameters, gradients, strict=True) if gradient is not None)

    def replica(self, replaced: Mapping[str, Tensor]) -> nn.Module:
        """Replica of the module that shares all but the ``replaced`` tensors. Tied tensors are replaced everywhere."""
        by_any_name = {name: replaced[first] for name, first in self.layout.aliases.items() if first in replaced}
        return replicate(self.module, by_any_name, self.shallow)

    def transform_outputs(self, raw: Tensor) -> Tensor:
        """Raw outputs of the module as a matrix (n, C), or their logarithm if they are probabilities."""
        outputs = raw.reshape(-1, 1) if raw.ndim < 2 else raw
        return outputs.clamp_min(torch.finfo(outputs.dtype).tiny).log() if self.log_outputs else outputs

    def _through_log(self, raw: Tensor, factor: Tensor) -> Tensor:
        """Output factor with respect to the raw outputs, from d log p / dp = 1/p."""
        if not self.log_outputs:
            return factor
        tiny = torch.finfo(raw.dtype).tiny
        return torch.where(raw > tiny, 1 / raw.clamp_min(tiny), 0.0)[..., None] * factor

    # ------------------------------------------------------------------ parameters

    @property
    def blocks(self) -> tuple[ParameterBlock, ...]:
        """Blocks of the parameter vector, in the order of the module's parameters."""
        return self.layout.random

    @property
    def n_parameters(self) -> int:
        """Number P of selected parameters."""
        return sum(block.size for block in self.blocks)

    def row_width(self, n_columns: int) -> int:
        """Elements per row of a linearisation for an output factor with K columns."""
        of_blocks = sum(block.width(n_columns) for block in self.layout.blocks)
        of_selection = n_columns * self.n_parameters if self.layout.elements else 0
        return of_blocks + of_selection

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the selected tensors, in block order."""
        return tuple(name for block in self.layout.blocks for name, _ in self.layout.columns[block.name])

    @cached_property
    def theta(self) -> Tensor:
        """Selected weights (P,), float64."""
        return self.vector(dict(self.module.named_parameters())).double()

    def vector(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Selected elements of the module's tensors as a vector (P,), the inverse of :meth:`tensors`."""
        return self.layout.matrices(lambda name, rows, width: tensors[name].detach().reshape(rows, width))

    def tensors(self, theta: Tensor) -> dict[str, Tensor]:
        """Split θ (…, P) into tensors of shape ``(…, *shape)``. Fixed elements have the module's values."""
        tensors: dict[str, Tensor] = {}
        parts = self._filled(theta.split([b.size for b in self.blocks], -1))
        for block, part in zip(self.layout.blocks, parts, strict=True):
            matrix = part.unflatten(-1, (block.outputs, block.inputs))
            columns = self.layout.columns[block.name]
            for (name, _), piece in zip(columns, matrix.split([width for _, width in columns], -1), strict=True):
                tensors[name] = piece.reshape((*theta.shape[:-1], *self.layout.shapes[name]))
        return tensors

    def masks(self) -> dict[str, Tensor]:
        """Mask of the random elements of each selected tensor, with the tensor's shape."""
        whole = replace(self, layout=replace(self.layout, elements={}))
        parts = [torch.zeros(block.size, dtype=torch.bool, device=self.theta.device) for block in whole.blocks]
        for block, part in zip(whole.blocks, parts, strict=True):
            part[self.layout.elements.get(block.name, slice(None))] = True
        return whole.tensors(torch.cat(parts))

    def _filled(self, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """Parts of θ, completed to (…, size) with the module's values of fixed elements."""
        if not self.layout.elements:
            return parts
        whole = replace(self, layout=replace(self.layout, elements={}))
        complete = []
        for block, part, values in zip(
            whole.blocks, parts, whole.theta.split([b.size for b in whole.blocks]), strict=True
        ):
            if block.name in self.layout.elements:
                filled = values.to(part).expand(*part.shape[:-1], -1).clone()
                filled[..., self.layout.elements[block.name]] = part
                part = filled
            complete.append(part)
        return complete

    def natural_precisions(self, prior: Prior) -> Tensor:
        """Prior precision of each group (G,) for outputs of order one: harmonic mean of its fan-ins (1 for vectors)."""
        shapes = self.layout.shapes

        def inverse_fan_in(name: str, rows: int, width: int) -> Tensor:
            fan_in = shapes[name][1:].numel() if len(shapes[name]) > 1 else 1
            return torch.full((rows, width), 1 / fan_in, dtype=torch.float64, device=self.theta.device)

        return prior.counts / prior.group_sums(self.layout.matrices(inverse_fan_in))

    def scalar_prior(self) -> Prior:
        """Prior with a single precision for all selected weights."""
        return Prior(torch.zeros(self.n_parameters, dtype=torch.long, device=self.theta.device), ("all",))


def _derivative_of_gradient(gradient: Tensor, theta: Tensor, step: int, name: str) -> Tensor:
    """Hessian (P, P), computed in batches of ``step`` rows if all operations support batching, else row by row."""
    identity = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
    try:
        rows = [
            torch.autograd.grad(gradient, theta, directions, retain_graph=True, is_grads_batched=True)[0].double()
            for directions in identity.split(step)
        ]
        return torch.cat(rows)
    except RuntimeError:  # raised by torch for operations without a batching rule
        try:
            single = [torch.autograd.grad(gradient, theta, row, retain_graph=True)[0].double() for row in identity]
        except RuntimeError as error:
            raise UnsupportedCombinationError(
                f"curvature='hessian' needs second derivatives, but torch does not implement one of an operation in "
                f"{name}: {error} Use curvature='ggn'."
            ) from error
        return torch.stack(single)
