r"""The trained module as a function of its selected weights; yields factored Jacobians.

Owns a private copy of the module in eval mode (no dropout, running statistics in batch norm) whose weights need no
gradient, and the order of the parameters: blocks as in :mod:`~sklearn_laplace.laplace.jacobian.jacobian`. The forward
pass runs on a throw-away replica that shares the tensors, so that hooks never touch the copy and threads never meet. It
must not know a likelihood, a structure or a prior's values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...errors import UnsupportedCombinationError
from ..jacobian.blocks import ParameterBlock
from ..jacobian.factors import DenseFactor, Factor, bias_apart, picked
from ..jacobian.jacobian import FactoredJacobian
from ..layers import FactoredLayer, Generic
from ..prior import Prior
from ..replica import Tape, replicate
from .hessian import ASYMMETRY, HESSIAN_BUDGET, _derivative_of_gradient
from .layout import Layout
from .linearisation import Linearisation


@dataclass(frozen=True)
class Network:
    """A module, the selected weights, and how each of its layers yields its Jacobian.

    Build one with :func:`~sklearn_laplace.laplace.network.tracing.trace`.

    Parameters
    ----------
    module : nn.Module
        Private copy in eval mode.
    layers : tuple of FactoredLayer
        Layers whose Jacobian has a closed form.
    generic : Generic or None
        All other selected tensors.
    layout : Layout
        Order and shapes of the parameters.
    called : tuple of str
        Names of the modules with own parameters in the order in which the forward pass calls them.
    log_outputs : bool
        Whether the module ends in probabilities, taken through their logarithm.
    shallow : bool
        Whether replicas copy the module tree only; a forward pass that reaches layers by other ways than registered
        attributes (bound methods, lists) needs deep ones.
    folds_biases : bool
        Whether the bias of a layer with a closed form is a column of its block [W | b]; otherwise it is a dense block.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    >>> network = trace(module, torch.zeros(4, 2))
    >>> network.n_parameters, [block.name for block in network.blocks]
    (13, ['0', '2'])
    >>> line = network.linearise(torch.ones(5, 2))
    >>> line.pullback(torch.ones(5, 1, 1)).rows().shape
    torch.Size([5, 1, 13])
    """

    module: nn.Module
    layers: tuple[FactoredLayer, ...]
    generic: Generic | None
    layout: Layout
    called: tuple[str, ...]
    log_outputs: bool = False
    shallow: bool = True
    folds_biases: bool = True

    # ------------------------------------------------------------------ building

    def with_separate_biases(self) -> Network:
        """The same tensors, each as a whole, with a dense block for every bias that was a column.

        The order of the parameters changes with the blocks. Of the bias itself a layer-wise structure then holds the
        exact block, whatever it makes of the weight's, and nothing of what the two have in common.

        Examples
        --------
        >>> from sklearn_laplace.laplace.network import trace
        >>> import torch
        >>> network = trace(torch.nn.Linear(2, 3), torch.zeros(1, 2)).with_separate_biases()
        >>> [(block.name, block.outputs, block.inputs) for block in network.blocks]
        [('', 3, 2), ('bias', 1, 3)]
        """
        layout = Layout.of(self.module, self.layers, self.generic, folds_biases=False)
        return replace(self, layout=layout, folds_biases=False)

    def restrict(self, masks: Mapping[str, Tensor]) -> Network:
        """The same network with some elements alone of some of its selected tensors.

        Parameters
        ----------
        masks : mapping of str to Tensor of bool
            For each selected tensor that is random in part only, which of its elements are: of its own shape, at least
            one of them. The others keep the module's values.
        """
        elements = {}
        for block in self.layout.blocks:
            columns = self.layout.columns[block.name]
            if any(name in masks for name, _ in columns):
                every = torch.ones(block.outputs, block.inputs, dtype=torch.bool, device=self.theta.device)
                pieces = [
                    masks[name].to(every.device).reshape(len(every), width) if name in masks else every[:, :width]
                    for name, width in columns
                ]
                elements[block.name] = torch.cat(pieces, 1).flatten().nonzero()[:, 0]
        return replace(self, layout=replace(self.layout, elements=elements))

    def with_parameters(self, theta: Tensor) -> Network:
        """A network whose selected weights are θ (P,); everything else is shared with this one."""
        dtype = next(self.module.parameters()).dtype
        tensors = self.tensors(theta.to(dtype))
        # Tensors of their own, not views of θ: those of a saved and loaded network are, and round in the same way.
        own = {name: value.clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
        replaced = {name: nn.Parameter(value, requires_grad=False) for name, value in own.items()}
        moved = replace(self, module=self.replica(replaced))
        object.__setattr__(moved, "theta", theta.to(dtype).double())  # what the cached property would gather again
        return moved

    def with_state_of(self, module: nn.Module) -> Network:
        """A network with the present weights and buffers of the module that was traced."""
        return replace(self, module=copy.deepcopy(module).eval().requires_grad_(False))

    # ------------------------------------------------------------------ evaluating

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs (n, C); a graph leads to x where x asks for a gradient, and there is none otherwise."""
        with torch.set_grad_enabled(x.requires_grad):
            return self.transform_outputs(self.module(x))

    def linearise(self, x: Tensor) -> Linearisation:
        """Outputs and pullback at inputs (n, …): one forward pass; each pullback costs K backward passes.

        Where x asks for a gradient, outputs and Jacobian are functions of x that can be differentiated again.
        """
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
                    f"layer '{layer.name}' saw {len(a)} of {len(x)} rows: the module treats rows of one batch "
                    "differently, and its Jacobian cannot be taken a batch at a time."
                )
            features.append(layer.features(self.module.get_submodule(layer.name), a))

        pullback = partial(self._pulled, x, raw, outputs, heads, features)
        found = outputs if x.requires_grad else outputs.detach()
        return Linearisation(x, found, pullback, lambda loss: self.hessian(x, loss))

    def _pulled(
        self,
        x: Tensor,
        raw: Tensor,
        outputs: Tensor,
        heads: Sequence[Tensor],
        features: Sequence[Any],
        factor: Tensor,
    ) -> FactoredJacobian:
        """Backward passes for each column of a factor (n, C, K): see :meth:`linearise`."""
        if factor.shape[-1] == 0:
            empty = (factor.new_zeros(len(x), 0, block.size) for block in self.blocks)
            return FactoredJacobian(tuple(DenseFactor(values) for values in empty))
        cotangents: list[list[Tensor]] = [[] for _ in heads]
        for k in range(factor.shape[-1] if heads else 0):
            gradients = torch.autograd.grad(
                outputs,
                heads,
                factor[..., k],
                retain_graph=True,
                create_graph=x.requires_grad,
                materialize_grads=True,
            )
            for column, gradient in zip(cotangents, gradients, strict=True):
                column.append(gradient)
        parts: dict[str, Factor] = {
            layer.name: layer.factor(a, g[0][:, None] if len(g) == 1 else torch.stack(g, 1))
            for layer, a, g in zip(self.layers, features, cotangents, strict=True)
        }
        if self.generic is not None:
            # On a replica, since functional_call swaps tensors in place.
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
        """Outputs (n, C) and the Jacobian of each of them, K = C."""
        line = self.linearise(x)
        return line.outputs, line.jacobian()

    def hessian(self, x: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
        """Second derivative of a scalar function of the outputs in the selected weights.

        The forward pass is the module's own; each of the P rows is a backward pass through the gradient.

        Parameters
        ----------
        x : Tensor of shape (n, …)
        loss : callable
            From the outputs (n, C) to a 0-d tensor.

        Returns
        -------
        Tensor of shape (P, P), float64

        Raises
        ------
        UnsupportedCombinationError
            When torch has no second derivative of an operation of the module, or has a wrong one.
        """
        theta = self.theta.detach().to(next(self.module.parameters()).dtype).requires_grad_()
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # the others have a first derivative only
            value = loss(self.transform_outputs(self.replica(self.tensors(theta))(x)))
            (gradient,) = torch.autograd.grad(value, theta, create_graph=True, materialize_grads=True)
        if not gradient.requires_grad:  # an affine function of the weights
            return torch.zeros(len(theta), len(theta), dtype=torch.float64, device=theta.device)
        step = max(1, HESSIAN_BUDGET // (len(x) * sum(block.width(1) for block in self.blocks)))
        matrix = _derivative_of_gradient(gradient, theta, step, type(self.module).__name__)
        if bool((matrix - matrix.mT).abs().max() > ASYMMETRY * matrix.abs().max()):  # not where it is NaN
            raise UnsupportedCombinationError(
                f"curvature='hessian' found a matrix of second derivatives of {type(self.module).__name__} that is not "
                "symmetric: torch differentiates one of its operations wrongly the second time, as it does weight "
                "normalisation. Use curvature='ggn'."
            )
        return (matrix + matrix.mT) / 2

    def passing_by(self, layer: str, x: Tensor) -> tuple[str, ...]:
        """The selected tensors on which the outputs depend by a way that does not lead through this layer."""
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
        """A copy of the module that shares all its tensors but those replaced, by name, wherever they are tied."""
        by_any_name = {name: replaced[first] for name, first in self.layout.aliases.items() if first in replaced}
        return replicate(self.module, by_any_name, self.shallow)

    def transform_outputs(self, raw: Tensor) -> Tensor:
        """The module's raw outputs as a matrix (n, C), probabilities through their logarithm."""
        outputs = raw.reshape(-1, 1) if raw.ndim < 2 else raw
        return _log_probabilities(outputs) if self.log_outputs else outputs

    def _through_log(self, raw: Tensor, factor: Tensor) -> Tensor:
        """The factor with respect to the raw outputs: d log p / dp = 1/p."""
        if not self.log_outputs:
            return factor
        tiny = torch.finfo(raw.dtype).tiny
        return torch.where(raw > tiny, 1 / raw.clamp_min(tiny), 0.0)[..., None] * factor

    # ------------------------------------------------------------------ parameters

    @property
    def blocks(self) -> tuple[ParameterBlock, ...]:
        """The blocks in the order of the module's parameters."""
        return self.layout.random

    @property
    def n_parameters(self) -> int:
        """Number P of selected parameters."""
        return sum(block.size for block in self.blocks)

    def row_width(self, n_columns: int) -> int:
        """Elements that one row makes when it is linearised, K columns of the output factor."""
        made = sum(block.width(n_columns) for block in self.layout.blocks)
        picked_out = n_columns * self.n_parameters if self.layout.elements else 0
        return made + picked_out

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the selected tensors, in block order."""
        return tuple(name for block in self.layout.blocks for name, _ in self.layout.columns[block.name])

    @cached_property
    def theta(self) -> Tensor:
        """The selected weights (P,), float64."""
        return self.vector(dict(self.module.named_parameters())).double()

    def vector(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The selected elements of the module's tensors as a vector (P,): the reverse of :meth:`tensors`."""
        return self.layout.matrices(lambda name, rows, width: tensors[name].detach().reshape(rows, width))

    def tensors(self, theta: Tensor) -> dict[str, Tensor]:
        """θ (…, P) cut into the module's tensors, each with its own shape behind the leading dimensions.

        Elements that are not random have the module's values.
        """
        found: dict[str, Tensor] = {}
        parts = self._filled(theta.split([b.size for b in self.blocks], -1))
        for block, part in zip(self.layout.blocks, parts, strict=True):
            matrix = part.unflatten(-1, (block.outputs, block.inputs))
            columns = self.layout.columns[block.name]
            for (name, _), piece in zip(columns, matrix.split([width for _, width in columns], -1), strict=True):
                found[name] = piece.reshape((*theta.shape[:-1], *self.layout.shapes[name]))
        return found

    def masks(self) -> dict[str, Tensor]:
        """Which elements of each selected tensor are random, of its shape."""
        whole = replace(self, layout=replace(self.layout, elements={}))
        parts = [torch.zeros(block.size, dtype=torch.bool, device=self.theta.device) for block in whole.blocks]
        for block, part in zip(whole.blocks, parts, strict=True):
            part[self.layout.elements.get(block.name, slice(None))] = True
        return whole.tensors(torch.cat(parts))

    def _filled(self, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """Each block's part of θ (…, size), with what is not random filled in."""
        if not self.layout.elements:
            return parts
        whole = replace(self, layout=replace(self.layout, elements={}))
        found = []
        for block, part, values in zip(
            whole.blocks, parts, whole.theta.split([b.size for b in whole.blocks]), strict=True
        ):
            if block.name in self.layout.elements:
                filled = values.to(part).expand(*part.shape[:-1], -1).clone()
                filled[..., self.layout.elements[block.name]] = part
                part = filled
            found.append(part)
        return found

    def natural_precisions(self, prior: Prior) -> Tensor:
        """The precision of each group under which outputs are of order one, shape (G,): about the fan-in.

        The harmonic mean over the group of the fan-in for matrices, 1 for biases and other vectors.
        """
        shapes = self.layout.shapes

        def inverse_fan_in(name: str, rows: int, width: int) -> Tensor:
            fan_in = shapes[name][1:].numel() if len(shapes[name]) > 1 else 1
            return torch.full((rows, width), 1 / fan_in, dtype=torch.float64, device=self.theta.device)

        return prior.counts / prior.group_sums(self.layout.matrices(inverse_fan_in))

    def tensor_prior(self) -> Prior:
        """A prior with one group for each parameter tensor."""
        index = {name: i for i, name in enumerate(self.parameter_names)}
        device = self.theta.device
        groups = self.layout.matrices(lambda name, rows, width: torch.full((rows, width), index[name], device=device))
        return Prior(groups, tuple(index))

    def scalar_prior(self) -> Prior:
        """A prior with one precision for all selected weights."""
        return Prior(torch.zeros(self.n_parameters, dtype=torch.long, device=self.theta.device), ("all",))


def _log_probabilities(probabilities: Tensor) -> Tensor:
    """log p with p kept off zero: logits up to a constant per row, which nothing we compute depends on."""
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()
