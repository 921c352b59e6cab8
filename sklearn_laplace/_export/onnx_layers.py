"""Building blocks of an ONNX graph: nodes, constants, and layers with their vector-Jacobian products.

Operators that several runtimes have only in single precision are composed of other operators, to keep double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from ..laplace.layers import StandardisedLinear
from ..nets.mlp import CLIP, Compress, NumbersAndPieces, Pieces, Scale, Shift, Standardise

OPSET, IR_VERSION = 17, 8
"""Versions of the ONNX operator set and of the file format."""
FLOAT = 1  # TensorProto.FLOAT
DOUBLE = 11  # TensorProto.DOUBLE


def square(graph: Graph, value: str) -> str:
    return graph("Mul", value, value)


def unsqueezed(graph: Graph, value: str, axis: int) -> str:
    return graph("Unsqueeze", value, np.array([axis]))


Made = tuple[str, Callable[[str], str]]
"""Output of a layer, and the function that maps a cotangent of its output to one of its input."""


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


def _linear(graph: Graph, layer: nn.Linear, value: str) -> Made:
    weight = array(layer.weight)
    product = graph("MatMul", value, np.ascontiguousarray(weight.T))
    output = product if layer.bias is None else graph("Add", product, array(layer.bias))
    return output, lambda cotangent: graph("MatMul", cotangent, weight)


def _standardise(graph: Graph, layer: Standardise, value: str) -> Made:
    return _standardised(graph, layer, value, value)


def _standardised(graph: Graph, layer: Standardise, plain: str, value: str) -> Made:
    """Standardised inputs: ``plain`` inputs, then the cosines and sines of the cyclic columns of ``value``."""
    mean, scale, period = array(layer.mean), array(layer.scale), array(layer.period)
    if period.size:
        columns = graph("Gather", value, array(layer.cyclic).astype(np.int64), axis=1)
        columns = graph("Where", period > 1, graph("Floor", columns), columns)
        angles = graph("Mul", columns, 2 * math.pi / period)
        cosines = graph("Sin", graph("Add", angles, math.pi / 2))  # few runtimes have cosines in double precision
        plain = graph("Concat", plain, cosines, graph("Sin", angles), axis=1)
    return graph("Div", graph("Sub", plain, mean), scale), lambda g: graph("Div", g, scale)


def _compress(graph: Graph, layer: Compress, value: str) -> Made:
    return _standardised(graph, layer, _drawn_in(graph, layer, value), value)


def _pieces(graph: Graph, layer: Pieces, value: str) -> Made:
    return _standardised(graph, layer, _parts_of(graph, layer, value), value)


def _numbers_and_pieces(graph: Graph, layer: NumbersAndPieces, value: str) -> Made:
    z = graph("Div", graph("Sub", value, array(layer.median)), array(layer.quartile))
    root = graph("Sqrt", graph("Add", square(graph, graph("Div", z, CLIP)), 1.0))
    both = graph("Concat", graph("Div", z, root), _parts_of(graph, layer, value), axis=1)
    return _standardised(graph, layer, both, value)


def _parts_of(graph: Graph, layer: Pieces, value: str) -> str:
    """Piecewise linear encoding, before standardisation."""
    columns = graph("Gather", _drawn_in(graph, layer, value), array(layer.column).astype(np.int64), axis=1)
    parts = graph("Div", graph("Sub", columns, array(layer.left)), array(layer.length))
    return graph("Min", graph("Max", parts, array(layer.low)), array(layer.high))


def _drawn_in(graph: Graph, layer: Compress, value: str) -> str:
    """Compress heavy-tailed columns as asinh z = sign(z) log(|z| + √(z² + 1)); few runtimes have asinh in float64."""
    if bool(layer.width.isinf().all()):
        return value
    unchanged = layer.width.isinf().cpu().numpy()
    z = graph("Div", graph("Sub", value, array(layer.centre)), np.where(unchanged, 1.0, array(layer.width)))
    argument = graph("Add", graph("Abs", z), graph("Sqrt", graph("Add", square(graph, z), 1.0)))
    compressed = graph("Mul", graph("Sign", z), graph("Log", argument))
    return graph("Where", unchanged, value, compressed)


def _scale(graph: Graph, layer: Scale, value: str) -> Made:
    return graph("Mul", value, layer.factor), lambda cotangent: graph("Mul", cotangent, layer.factor)


def _shift(graph: Graph, layer: Shift, value: str) -> Made:
    return graph("Add", value, array(layer.values)), lambda cotangent: cotangent


def _same(graph: Graph, layer: nn.Module, value: str) -> Made:
    return value, lambda cotangent: cotangent


def _elementwise(
    function: Callable[[Graph, str], str], derivative: Callable[[Graph, str, str], str]
) -> Callable[[Graph, Any, str], Made]:
    """Elementwise layer. Its derivative is a function of input and output, added to the graph only if it is needed."""

    def made(graph: Graph, layer: nn.Module, value: str) -> Made:
        output = function(graph, value)
        return output, lambda g: graph("Mul", g, unsqueezed(graph, derivative(graph, value, output), 1))

    return made


def _normal_cdf(graph: Graph, value: str) -> str:
    """Φ(z) = ½ (1 + erf(z/√2)). erf is computed in single precision, because runtimes lack it in double."""
    single = graph("Cast", graph("Mul", value, math.sqrt(0.5)), to=FLOAT)
    erf = graph("Cast", graph("Erf", single), to=DOUBLE)
    return graph("Mul", graph("Add", erf, 1.0), 0.5)


def _gelu_slope(graph: Graph, value: str, output: str) -> str:
    """Derivative Φ(z) + z φ(z)."""
    density = graph("Mul", graph("Exp", graph("Mul", square(graph, value), -0.5)), 1 / math.sqrt(2 * math.pi))
    return graph("Add", _normal_cdf(graph, value), graph("Mul", value, density))


def _silu(graph: Graph, value: str) -> str:
    """z / (1 + e^−z). Some runtimes fuse the equivalent z σ(z) into an operator of single precision."""
    return graph("Div", value, graph("Add", graph("Exp", graph("Neg", value)), 1.0))


def _silu_slope(graph: Graph, value: str, output: str) -> str:
    """Derivative σ(z) + z σ(z) (1 − σ(z))."""
    sigmoid = graph("Sigmoid", value)
    return graph("Add", sigmoid, graph("Mul", output, graph("Sub", 1.0, sigmoid)))


def _softplus(graph: Graph, value: str) -> str:
    """max(z, 0) + log(1 + e^−|z|), because few runtimes have softplus in double precision."""
    exponential = graph("Exp", graph("Neg", graph("Abs", value)))
    return graph("Add", graph("Max", value, 0.0), graph("Log", graph("Add", exponential, 1.0)))


def _step(graph: Graph, value: str, output: str) -> str:
    """Derivative of the rectifier: 1 for z > 0, else 0."""
    return graph("Cast", graph("Greater", value, 0.0), to=DOUBLE)


PLAIN: dict[type[nn.Module], Callable[[Graph, Any, str], Made]] = {
    nn.Tanh: _elementwise(lambda graph, z: graph("Tanh", z), lambda graph, z, a: graph("Sub", 1.0, square(graph, a))),
    nn.Sigmoid: _elementwise(
        lambda graph, z: graph("Sigmoid", z), lambda graph, z, a: graph("Mul", a, graph("Sub", 1.0, a))
    ),
    nn.ReLU: _elementwise(lambda graph, z: graph("Max", z, 0.0), _step),
    nn.GELU: _elementwise(lambda graph, z: graph("Mul", z, _normal_cdf(graph, z)), _gelu_slope),
    nn.SiLU: _elementwise(_silu, _silu_slope),
    nn.Softplus: _elementwise(_softplus, lambda graph, z, a: graph("Sigmoid", z)),
}
"""Supported activations, with the default options of their torch modules."""
LAYERS: dict[type[nn.Module], Callable[[Graph, Any, str], Made]] = {
    **PLAIN,
    nn.Linear: _linear,
    StandardisedLinear: _linear,  # a separate layer standardises its input
    nn.Identity: _same,
    nn.Dropout: _same,
    Standardise: _standardise,
    Compress: _compress,
    Pieces: _pieces,
    NumbersAndPieces: _numbers_and_pieces,
    Scale: _scale,
    Shift: _shift,
}
"""Supported layers, by module type. Each function adds a layer to a graph."""


@dataclass
class Graph:
    """ONNX graph under construction; calling it adds a node and returns the name of the node's output.

    ``nodes`` are tuples (operator, input names, output name, attributes) in the order of computation.
    """

    nodes: list[tuple[str, list[str], str, dict[str, Any]]] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def __call__(self, operator: str, *inputs: str | float | np.ndarray, **attributes: Any) -> str:
        """Add a node, whose inputs are names of values or constants, and return the name of its output."""
        name = f"v{len(self.nodes)}"
        input_names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        self.nodes.append((operator, input_names, name, attributes))
        return name

    def constant(self, value: float | np.ndarray) -> str:
        """Add a constant and return its name. A Python float becomes float64; arrays keep their data type."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def model(self, onnx: Any, n_features: int, outputs: dict[str, tuple[int, ...]]) -> Any:
        """An ``onnx.ModelProto`` with the input ``X`` (n, n_features) and outputs (n, *shape), all float64."""
        helper, double = onnx.helper, onnx.TensorProto.DOUBLE
        graph = helper.make_graph(
            [helper.make_node(kind, inputs, [name], **attributes) for kind, inputs, name, attributes in self.nodes],
            "sklearn_laplace",
            [helper.make_tensor_value_info("X", double, ["n", n_features])],
            [helper.make_tensor_value_info(name, double, ["n", *shape]) for name, shape in outputs.items()],
            [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in self.constants.items()],
        )
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="sklearn_laplace")
