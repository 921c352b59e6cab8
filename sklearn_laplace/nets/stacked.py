r"""Outputs and Jacobians of several built-in nets of the same shape, computed together and in closed form.

The nets read the same rows through the same encoding, up to the scale of each encoded column. The columns are encoded
once, and the ratios of the scales are multiplied into the first weights. The constant input factors of the other layers
are multiplied into their weights as well. Let :math:`h_l` be the pre-activations, :math:`a_{l+1} = \varphi(h_l)` the
inputs and :math:`W_l` the weights with these factors. The cotangents :math:`g_l`, the derivatives of output c
with respect to :math:`h_l`, are computed backwards from the last layer,

.. math:: g_L = e_c, \qquad g_l = \varphi'(h_l) \circ W_{l+1}^\top g_{l+1} .
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..laplace.jacobian import FactoredJacobian, LayerFactor
from ..laplace.network.network import Network
from .mlp import MLP, Scale, Shift, Standardise, TableMLP


def _through_gelu(g: Tensor, h: Tensor) -> Tensor:
    g, h = torch.broadcast_tensors(g, h)  # oneDNN, which torch uses in float32, refuses views that repeat values
    return torch.ops.aten.gelu_backward(g.contiguous(), h.contiguous())


SLOPES: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.Tanh: lambda g, h: g * (1 - h.tanh().square()),
    nn.ReLU: lambda g, h: g * (h > 0),
    nn.GELU: _through_gelu,
    nn.SiLU: torch.ops.aten.silu_backward,
    nn.Softplus: lambda g, h: g * h.sigmoid(),
}
"""Functions of (g, h) for activations: the gradient g times the derivative at h; g and h broadcast."""


@dataclass(frozen=True)
class StackedPass:
    """Inputs and cotangents of all layers of K nets for n rows.

    Inputs exclude the factors and the columns of ones for biases. ``outputs`` have shape (K, n, C). ``shared`` are the
    inputs (n, I) of the layers that read the columns, and ``hidden`` the inputs (K, n, I) of the other layers.
    ``cotangents`` (K, C, n, O) are derivatives of the outputs with respect to the pre-activations of each layer. The
    layers that read the columns share the first cotangent. The last has n = 1, as it does not depend on the row.
    """

    outputs: Tensor
    shared: tuple[Tensor, ...]
    hidden: tuple[Tensor, ...]
    cotangents: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class StackedNets:
    """K built-in nets of one shape, activation and encoding, built with :meth:`of`.

    The ``weights`` (K, O, I) of each layer are multiplied by the ``factors`` of its inputs, (K, I) or a float. For
    numeric columns, a factor is the first net's column scale divided by the net's own. ``biases`` are (K, O), and
    ``shift`` is (K, 1, C).
    """

    nets: tuple[MLP | TableMLP, ...]
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]
    factors: tuple[Tensor | float, ...]
    activations: tuple[nn.Module, ...]
    shift: Tensor | None

    @classmethod
    def of(cls, networks: Sequence[Network]) -> Self:
        """Stack traced networks that are built-in (:func:`is_built_in`) and of the same kind (:func:`is_same_kind`)."""
        nets: tuple[Any, ...] = tuple(network.module for network in networks)
        columns = list(zip(*(_linear(net).values() for net in nets), strict=True))
        weights = [torch.stack([layer.weight.detach() for layer in column]) for column in columns]
        factors: list[Any] = [1.0] * len(nets[0].embeddings)
        if nets[0].first is not None:
            scales = torch.stack([_standardise(net).scale for net in nets])
            factors = [scales.new_ones(len(nets), weights[0].shape[-1]), *factors]
            factors[0][:, : scales.shape[1]] = scales[0] / scales
        factors += [layer.factor for layer in nets[0].behind if isinstance(layer, Scale)]
        weights = [
            weight * (factor if isinstance(factor, float) else factor[:, None].to(weight))
            for weight, factor in zip(weights, factors, strict=True)
        ]
        biases = [
            None if column[0].bias is None else torch.stack([layer.bias.detach() for layer in column])
            for column in columns
        ]
        behind = nets[0].behind
        activations = tuple(layer for layer in behind if type(layer) in SLOPES)
        shifts = [layer.values for net in nets for layer in net.behind if isinstance(layer, Shift)]
        shift = torch.stack(shifts)[:, None] if shifts else None
        return cls(nets, tuple(weights), tuple(biases), tuple(factors), activations, shift)

    @property
    def n_shared(self) -> int:
        """Number of layers that read the columns."""
        return len(self.weights) - len(self.activations)

    def outputs(self, x: Tensor) -> Tensor:
        """Outputs (K, n, C) of rows (n, d)."""
        with torch.no_grad():
            return self._shifted(self._forward(x)[1][-1])

    def linearise(self, x: Tensor, dtype: torch.dtype | None = None) -> StackedPass:
        """Outputs, inputs and cotangents of all layers for rows (n, d); ``dtype`` is that of the cotangents."""
        with torch.no_grad():
            shared, heads, hidden = self._forward(x)
            n_outputs, dtype = heads[-1].shape[-1], dtype or heads[-1].dtype
            unit = torch.eye(n_outputs, dtype=dtype, device=x.device)
            cotangents = [unit[:, None].expand(len(self.nets), -1, -1, -1)]
            layers = zip(heads, self.weights[len(shared) :], self.activations, strict=False)
            for h, weight, activation in reversed(list(layers)):
                pulled = cotangents[0].flatten(1, 2) @ weight.to(dtype)
                pulled = pulled.unflatten(1, (n_outputs, -1))
                cotangents.insert(0, SLOPES[type(activation)](pulled, h[:, None].to(dtype)))
        return StackedPass(self._shifted(heads[-1]), tuple(shared), tuple(hidden), tuple(cotangents))

    def jacobian(self, line: StackedPass, k: int) -> FactoredJacobian:
        """Jacobian of the outputs of net k, in the order of its parameters."""
        n, n_shared = line.outputs.shape[1], len(line.shared)
        inputs = [*line.shared, *(a[k] for a in line.hidden)]
        parts = []
        for place, (a, bias, factor) in enumerate(zip(inputs, self.biases, self.factors, strict=True)):
            a = a * (factor if isinstance(factor, float) else factor[k].to(a))
            g = line.cotangents[max(place - n_shared + 1, 0)][k].transpose(0, 1)
            a = a if bias is None else torch.cat([a, a.new_ones(n, 1)], 1)
            parts.append(LayerFactor(a, g.expand(n, -1, -1)))
        return FactoredJacobian(tuple(parts))

    def _forward(self, x: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Inputs of the layers that read the columns, pre-activations, and inputs of the other layers."""
        net = self.nets[0]
        shared = [] if net.first is None else [net.numbers(x) * net.factor]
        if isinstance(net, TableMLP):
            columns = x.index_select(1, net.categorical).unbind(1)
            shared += [codes(column, self.weights[0]) for codes, column in zip(net.codes, columns, strict=True)]
        total: Any = 0.0
        for a, weight, bias in zip(shared, self.weights, self.biases, strict=False):
            flat = weight.flatten(0, 1).mT  # one product with the weights of all nets
            total = total + a @ flat if bias is None else total + torch.addmm(bias.flatten(), a, flat)
        heads, hidden = [total.unflatten(1, (len(self.nets), -1)).transpose(0, 1)], []
        later = zip(self.activations, self.weights[len(shared) :], self.biases[len(shared) :], strict=True)
        for activation, weight, bias in later:
            assert bias is not None
            hidden.append(activation(heads[-1]))
            heads.append(torch.baddbmm(bias[:, None], hidden[-1], weight.mT))
        return shared, heads, hidden

    def _shifted(self, outputs: Tensor) -> Tensor:
        return outputs if self.shift is None else outputs + self.shift


def _linear(net: nn.Module) -> dict[str, nn.Linear]:
    return {name: layer for name, layer in net.named_modules() if isinstance(layer, nn.Linear)}


def _standardise(net: MLP | TableMLP) -> Standardise:
    layer = net[0] if isinstance(net, MLP) else net.standardise
    assert isinstance(layer, Standardise)
    return layer


def is_built_in(network: Network) -> bool:
    """True for an unchanged built-in net with a posterior over all its weights."""
    net: Any = network.module
    if type(net) not in (MLP, TableMLP) or network.generic is not None or network.layout.elements:
        return False
    if not _are_built_in([layer for layer in net.behind if not isinstance(layer, Shift)]):
        return False
    sizes = {name: layer.in_features + (layer.bias is not None) for name, layer in _linear(net).items()}
    return {block.name: block.inputs for block in network.blocks if block.factored} == sizes


def _are_built_in(layers: Sequence[nn.Module]) -> bool:
    """True for activations with default options, each followed by a scale and a linear layer."""
    for activation, *others in (layers[k : k + 3] for k in range(0, len(layers), 3)):
        is_plain = type(activation) in SLOPES and repr(activation) == repr(type(activation)())
        if not is_plain or [type(layer) for layer in others] != [Scale, nn.Linear]:
            return False
    return True


def is_same_kind(one: Network, another: Network) -> bool:
    """True if two built-in nets differ only in their weights, column scales and output shifts."""
    first: Any = one.module
    other: Any = another.module
    if repr(first) != repr(other) or first.factor != other.factor or _factors(first) != _factors(other):
        return False
    own = [f"{name}.scale" for name, layer in first.named_modules() if isinstance(layer, Standardise)]
    own += [f"{name}.values" for name, layer in first.named_modules() if isinstance(layer, Shift)]
    pairs = zip(first.named_buffers(), other.named_buffers(), strict=True)
    return all(name in own or torch.equal(a, b) for (name, a), (_, b) in pairs)


def _factors(net: nn.Module) -> list[float]:
    return [layer.factor for layer in net.modules() if isinstance(layer, Scale)]
