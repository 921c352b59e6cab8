r"""A fitted estimator as an ONNX graph: :func:`to_onnx`.

The graph holds what the predictive of the linearised net is made of, in closed form and in double precision: the net's
forward pass, its Jacobian by the chain rule, layer by layer, and

.. math:: f(x) \sim N\big(f_{\theta^*}(x) + J\,s,\; D D^\top\big), \qquad D = J R, \qquad R R^\top = P^{-1},

with the root R of the posterior as a constant of P × P numbers. That is any structure's posterior, over all weights or
some of them. Of Kronecker factors (``laplace/structures/kron.py``) only the bases are constants: with the cotangent g
and the input a of a layer, its part of D is :math:`(g\,Q_B) \otimes (a\,Q_A) / \sqrt m`. Of a mixture there is one such
part for each member, and the noise that varies with x is one more net. Built by hand from ``onnx.helper``: a chain of a
few kinds of layers needs no tracer. Single operators are of opset 17.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from .._approximation.noise_model import LARGEST_SPREAD, NODES, REACH, NoiseModel
from .._estimator.base import LaplaceEstimator
from .._validation.values import file_path
from ..classifier import LaplaceClassifier
from ..errors import MemoryBudgetError, UnsupportedCombinationError
from ..laplace.links import Moderated, Plugin, Probit
from ..laplace.links._base import Link
from ..laplace.links.moderated import INVERSE
from ..laplace.network.network import Network
from ..laplace.predictives import GLM
from ..laplace.structures._base import Posterior
from ..laplace.structures.kron import KronPosterior
from ..nets import TableMLP
from ..nets.mlp import Scale
from .atomic import write_whole
from .onnx_layers import LAYERS, PLAIN, Graph, array, square, unsqueezed

CLOSED_FORMS = Moderated, Probit, Plugin
LARGEST_FILE = 1.5e9
"""Bytes; a graph of ONNX holds 2 GB at most."""


def to_onnx(estimator: Any, path: str | os.PathLike[str] | None = None) -> Any:
    """A fitted estimator as an ONNX graph, which predicts without this package, torch and scikit-learn.

    Inputs are the raw columns, ``X`` of shape (n, n_features), float64; they are standardised inside. Outputs are
    float64 and in the units of y. A regressor has ``mean``, ``std`` (noise included) and ``std_epistemic``, of the
    shape of ``predict``; a classifier ``probabilities`` of shape (n, n_classes), in the order of the labels that the
    graph's metadata hold under ``classes`` (JSON). They are those of the estimator up to rounding; values that are not
    finite come out as such, where the estimator refuses them.

    Parameters
    ----------
    estimator : LaplaceRegressor or LaplaceClassifier
        Fitted, with any structure, subset of the weights, number of members and temperature; its net is the built-in
        one for numbers (or pieces of them), or a ``torch.nn.Sequential`` of linear layers and activations.
    path : str or path, optional
        Where to write the graph, too; replaced once the new file is complete.

    Returns
    -------
    onnx.ModelProto
        Of P² numbers for each member and P random weights; of the factors of each layer where the structure is "kron".

    Raises
    ------
    UnsupportedCombinationError
        For nets of other layers or over categories and missing values, ``predictive="mc"``, counts, and links other
        than "moderated", "probit" and "plugin". The message says what to use.
    MemoryBudgetError
        When the graph would be larger than ONNX allows.
    ImportError
        Without the package onnx (``pip install sklearn-laplace[onnx]``).

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> from sklearn_laplace import LaplaceRegressor, to_onnx
    >>> X, y = make_regression(30, 2, noise=1.0, random_state=0)
    >>> model = LaplaceRegressor(hidden_layer_sizes=(5,), n_members=1, random_state=0).fit(X, y)
    >>> graph = to_onnx(model)
    >>> [output.name for output in graph.graph.output]
    ['mean', 'std', 'std_epistemic']
    """
    if not isinstance(estimator, LaplaceEstimator):
        raise TypeError(
            f"to_onnx was given a {type(estimator).__name__}; it takes a fitted LaplaceRegressor or LaplaceClassifier. "
            "Export the steps before it by their own packages (skl2onnx)."
        )
    check_is_fitted(estimator)
    onnx = _onnx()
    _check(estimator)
    graph = Graph()
    outputs = (_probabilities if isinstance(estimator, LaplaceClassifier) else _moments)(graph, estimator)
    for name, value in outputs.items():
        graph.nodes.append(("Identity", [value], name, {}))
    model = graph.model(onnx, estimator.n_features_in_, {name: _shape(estimator) for name in outputs})
    described = {"estimator": type(estimator).__name__}
    if isinstance(estimator, LaplaceClassifier):
        described["classes"] = json.dumps(estimator.classes_.tolist(), default=str)
    onnx.helper.set_model_props(model, described)
    onnx.checker.check_model(model)
    if path is not None:
        write_whole(file_path(path), model.SerializeToString())
    return model


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            "sklearn_laplace.to_onnx needs the package onnx, which is not installed. Install it by `pip install "
            "sklearn-laplace[onnx]`.",
            name="onnx",
        ) from error
    return onnx


def _check(estimator: LaplaceEstimator) -> None:
    """What has no closed form here is refused.

    Raises
    ------
    UnsupportedCombinationError, MemoryBudgetError
    """
    options, likelihood = estimator._options(), estimator.laplace_.likelihood
    if options.predictive is not GLM:
        raise UnsupportedCombinationError(
            f"predictive={estimator.get_params()['predictive']!r} has no closed form for ONNX; use "
            "refit_laplace(predictive='glm')."
        )
    if not (likelihood.over_classes or likelihood.additive_noise):
        raise UnsupportedCombinationError(
            f"likelihood={type(likelihood).__name__.lower()!r} is not exported to ONNX; use likelihood='gaussian' or a "
            "classifier."
        )
    if options.link is not None and likelihood.over_classes and options.link not in CLOSED_FORMS:
        raise UnsupportedCombinationError(
            f"link={estimator.get_params()['link']!r} is not exported to ONNX; use refit_laplace(link='moderated'), "
            "'probit' or 'plugin'."
        )
    parts = [(member.fit.network, member.posterior) for member in estimator._ensemble.members]
    parts += [(noise.fit.network, noise.posterior) for noise in _noise_models(estimator).values()]
    size = sum(_bytes(network, posterior) for network, posterior in parts)
    if size > LARGEST_FILE and options.link is not Plugin:
        largest = max(network.n_parameters for network, _ in parts)
        raise MemoryBudgetError(
            f"a graph of {size / 1e9:.1f} GB is more than ONNX holds (2 GB): the posterior is over {largest} weights, "
            f"and their covariance is stored for each of {len(parts)} nets. Fit with hessian_structure='kron', with "
            "subset_of_weights='last_layer', or with fewer members."
        )


def _bytes(network: Network, posterior: Posterior) -> int:
    """Of the constants of a posterior."""
    if _factors(network, posterior) is None:
        return 8 * network.n_parameters**2
    return 8 * sum(block.outputs**2 + block.inputs**2 + block.size for block in network.blocks)


def _factors(network: Network, posterior: Posterior) -> KronPosterior | None:
    """The posterior if it is one of Kronecker factors, of whole linear layers; else None."""
    whole = not network.layout.elements and all(block.factored for block in network.blocks)
    return posterior if isinstance(posterior, KronPosterior) and whole else None


def _noise_models(estimator: Any) -> dict[int, NoiseModel]:
    """Those of the kinds of nets, by their identity: members of a kind share one."""
    found = (member.noise_model for member in estimator._ensemble.members)
    return {id(noise): noise for noise in found if noise is not None}


def _shape(estimator: LaplaceEstimator) -> tuple[int, ...]:
    if isinstance(estimator, LaplaceClassifier):
        return (len(estimator.classes_),)
    return () if estimator._single_output else (estimator.n_outputs_,)


def _moments(graph: Graph, estimator: Any) -> dict[str, str]:
    """Mean and standard deviations of a regressor, in the units of y."""
    found, ratios = [], {key: _mean_ratio(graph, noise) for key, noise in _noise_models(estimator).items()}
    for member in estimator._ensemble.members:
        fit = member.fit
        latent = _gaussian(graph, fit.network, member.posterior, fit.shift)
        variance = graph("ReduceSumSquare", latent.root, axes=[2], keepdims=0)
        if member.noise_model is None:
            aleatoric = graph.constant(member.noise_variance.cpu().numpy())
        else:
            aleatoric = graph("Mul", ratios[id(member.noise_model)], member.hyper.dispersion)
        found.append((latent.mean, variance, aleatoric))
    weights = estimator.member_weights_
    mean = _weighted(graph, [one[0] for one in found], weights)
    spreads = [
        graph("Add", variance, square(graph, graph("Sub", own, mean))) if len(found) > 1 else variance
        for own, variance, _ in found
    ]
    epistemic = _weighted(graph, spreads, weights)
    total = graph("Add", epistemic, _weighted(graph, [one[2] for one in found], weights))
    scale = estimator._scale
    in_units = graph("Add", graph("Mul", mean, scale.scale), scale.mean)
    stds = [graph("Mul", graph("Sqrt", variance), scale.scale) for variance in (total, epistemic)]
    names = ("mean", "std", "std_epistemic")
    outputs = dict(zip(names, (in_units, *stds), strict=True))
    if estimator._single_output:
        outputs = {name: graph("Squeeze", value, np.array([1])) for name, value in outputs.items()}
    return outputs


def _mean_ratio(graph: Graph, noise: NoiseModel) -> str:
    """E[e^h], shape (n, C): what the noise is at x over what it is on average."""
    latent = _gaussian(graph, noise.fit.network, noise.posterior, None)
    mean = graph("Sub", latent.mean, noise.log_level + noise.spread**2 / 2)
    variance = graph("ReduceSumSquare", latent.root, axes=[2], keepdims=0)
    std = graph("Sqrt", graph("Add", graph("Min", variance, LARGEST_SPREAD**2), noise.spread**2))
    roots, weights = np.polynomial.hermite_e.hermegauss(NODES)
    at_nodes = graph("Add", unsqueezed(graph, mean, 2), graph("Mul", unsqueezed(graph, std, 2), roots))
    values = graph("Exp", graph("Max", graph("Min", at_nodes, REACH), -REACH))
    return graph("MatMul", values, weights / weights.sum())


def _probabilities(graph: Graph, estimator: Any) -> dict[str, str]:
    """Class probabilities by the link."""
    to_logits = estimator.laplace_.likelihood.logits(torch.eye(estimator.n_outputs_, dtype=torch.float64)).numpy()
    found, link = [], estimator._options().link
    for member in estimator._ensemble.members:
        fit = member.fit
        if link is Plugin:
            outputs, *_ = _linearised(graph, fit.network, fit.shift)
            found.append(graph("Softmax", graph("MatMul", outputs, to_logits), axis=-1))
        else:
            latent = _gaussian(graph, fit.network, member.posterior, fit.shift)
            root = graph("MatMul", np.ascontiguousarray(to_logits.T), latent.root)
            found.append(_moderated(graph, graph("MatMul", latent.mean, to_logits), root, link))
    return {"probabilities": _weighted(graph, found, estimator.member_weights_)}


def _moderated(graph: Graph, logits: str, root: str, link: type[Link]) -> str:
    """The formulas of these links, from logits (n, K) and the root (n, K, P) of their covariance."""
    variance = graph("ReduceSumSquare", root, axes=[2], keepdims=0)
    covariance = graph("Einsum", root, root, equation="nkp,nlp->nkl")  # runtimes fuse a transpose, in single precision
    sums = graph("Add", unsqueezed(graph, variance, 2), unsqueezed(graph, variance, 1))
    spread = graph("Max", graph("Sub", sums, graph("Mul", covariance, 2.0)), 0.0)
    difference = graph("Sub", unsqueezed(graph, logits, 2), unsqueezed(graph, logits, 1))
    logs = _log_coupled(graph, difference, graph("Mul", spread, math.pi / 8))
    if link is Probit:
        return graph("Softmax", logs, axis=-1)
    normaliser = graph("ReduceLogSumExp", logs, axes=[1], keepdims=1)
    roots = graph("ReduceLogSumExp", graph("Mul", logs, 0.5), axes=[1], keepdims=1)
    excess = graph("Max", graph("Sub", graph("Sub", graph("Mul", roots, 2.0), normaliser), math.log(2)), 0.0)
    constant = graph.constant(INVERSE[-1])
    for coefficient in INVERSE[-2::-1]:
        constant = graph("Add", graph("Mul", excess, constant), coefficient)
    widening = graph("Div", spread, unsqueezed(graph, constant, 2))
    return graph("Softmax", _log_coupled(graph, difference, widening), axis=-1)


def _log_coupled(graph: Graph, difference: str, widening: str) -> str:
    """Of ``laplace/links/_base.py``, up to a constant of each row."""
    width = graph("Sqrt", graph("Add", widening, 1.0))
    moderated = graph("Neg", graph("Div", difference, width))
    return graph("Neg", graph("ReduceLogSumExp", moderated, axes=[2], keepdims=0))


def _weighted(graph: Graph, values: Sequence[str], weights: np.ndarray) -> str:
    if len(values) == 1:
        return values[0]
    parts = [graph("Mul", value, float(weight)) for value, weight in zip(values, weights, strict=True)]
    return graph("Sum", *parts)


class Latent(NamedTuple):
    """The Gaussian over the outputs: mean (n, C), and D (n, C, P) of the covariance D Dᵀ."""

    mean: str
    root: str


class Step(NamedTuple):
    """A layer in the graph: its name, itself, its input, and how a cotangent (n, C, …) goes back through it."""

    name: str
    layer: nn.Module
    input: str
    back: Callable[[str], str]


def _gaussian(graph: Graph, network: Network, posterior: Posterior, shift: Tensor | None) -> Latent:
    """The linearised net's outputs, with the posterior's root."""
    mean, jacobian, steps = _linearised(graph, network, shift)
    if (factors := _factors(network, posterior)) is not None:
        return Latent(mean, _factored_root(graph, network, factors, steps))
    identity = torch.eye(network.n_parameters, dtype=torch.float64, device=posterior.device)
    root = posterior.apply_root(identity).mT.cpu().numpy()
    return Latent(mean, graph("MatMul", jacobian(), np.ascontiguousarray(root)))


def _linearised(graph: Graph, network: Network, shift: Tensor | None) -> tuple[str, Callable[[], str], Sequence[Step]]:
    """The mean of the outputs (n, C), what makes their Jacobian, and the layers."""
    steps, outputs = _forward(graph, network)
    made = cache(lambda: _jacobian(graph, network, steps))
    if shift is not None:
        outputs = graph("Add", outputs, graph("MatMul", made(), shift.cpu().numpy()))
    return outputs, made, steps


def _forward(graph: Graph, network: Network) -> tuple[list[Step], str]:
    """The layers one after the other, and the last one's output.

    Raises
    ------
    UnsupportedCombinationError
    """
    module = network.module
    shared = any(name != first for name, first in network.layout.aliases.items())
    layers = _layers(module)
    if layers is None or shared:
        raise UnsupportedCombinationError(
            f"the net {type(module).__name__} is not exported to ONNX: it has to be the built-in net for columns of "
            "numbers without missing values (encode categories and impute beforehand, in a pipeline), or a "
            f"torch.nn.Sequential of {_names()}."
        )
    if network.log_outputs:
        raise UnsupportedCombinationError(
            f"the net {type(module).__name__} returns probabilities, which are not exported to ONNX; let it return "
            "logits."
        )
    steps, value = [], "X"
    for name, layer in layers:
        kind = type(layer)
        if kind not in LAYERS or (kind in PLAIN and repr(layer) != repr(kind())):
            raise UnsupportedCombinationError(
                f"the layer '{name}' of the net, {layer!r}, is not exported to ONNX, which takes {_names()}. Use "
                "one of these."
            )
        before = value
        value, back = LAYERS[kind](graph, layer, before)
        steps.append(Step(name, layer, before, back))
    return steps, value


def _layers(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """The layers that a net is made of, one after the other, by their names; None where it is something else."""
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        return list(module.named_children())
    if not isinstance(module, TableMLP) or module.first is None or len(module.flagged) or len(module.categorical):
        return None
    behind = [(f"behind.{name}", layer) for name, layer in module.behind.named_children()]
    return [("standardise", module.standardise), ("scale", Scale(module.factor)), ("first", module.first), *behind]


def _names() -> str:
    return ", ".join(sorted(kind.__name__ for kind in LAYERS if kind.__module__.startswith("torch.")))


def _cotangents(graph: Graph, network: Network, steps: Sequence[Step]) -> dict[str, tuple[str, str]]:
    """By name of a random tensor: the cotangent (n, C, O) of its layer's output, and the layer's input."""
    wanted = set(network.parameter_names)
    found: dict[str, tuple[str, str]] = {}
    outputs = _n_outputs(steps)
    rows = graph("Shape", "X", end=1)
    cotangent = graph("Expand", np.eye(outputs)[None], graph("Concat", rows, np.array([outputs, outputs]), axis=0))
    for step in reversed(steps):
        found |= {name: (cotangent, step.input) for name in _tensors(step) if name in wanted}
        if wanted <= set(found):
            break
        cotangent = step.back(cotangent)
    return found


def _tensors(step: Step) -> tuple[str, str]:
    return f"{step.name}.weight", f"{step.name}.bias"


def _n_outputs(steps: Sequence[Step]) -> int:
    return int(next(step.layer.out_features for step in reversed(steps) if isinstance(step.layer, nn.Linear)))


def _jacobian(graph: Graph, network: Network, steps: Sequence[Step]) -> str:
    """J (n, C, P): the order of the weights is that of the network's blocks."""
    layout, outputs = network.layout, _n_outputs(steps)
    pieces = {}
    for name, (cotangent, inputs) in _cotangents(graph, network, steps).items():
        pieces[name] = cotangent
        if name.endswith(".weight"):
            pieces[name] = graph("Mul", unsqueezed(graph, cotangent, 3), graph("Unsqueeze", inputs, np.array([1, 2])))
    parts = []
    for block in layout.blocks:
        side_by_side = [
            graph("Reshape", pieces[name], np.array([0, outputs, block.outputs, width]))
            for name, width in layout.columns[block.name]
        ]
        part = graph("Concat", *side_by_side, axis=3) if len(side_by_side) > 1 else side_by_side[0]
        part = graph("Reshape", part, np.array([0, outputs, block.size]))
        if block.name in layout.elements:
            part = graph("Gather", part, layout.elements[block.name].cpu().numpy(), axis=2)
        parts.append(part)
    return graph("Concat", *parts, axis=2) if len(parts) > 1 else parts[0]


def _factored_root(graph: Graph, network: Network, posterior: KronPosterior, steps: Sequence[Step]) -> str:
    """D (n, C, P) in the bases of the Kronecker factors."""
    layout, outputs = network.layout, _n_outputs(steps)
    found, parts = _cotangents(graph, network, steps), []
    one = graph("Expand", np.ones((1, 1)), graph("Concat", graph("Shape", "X", end=1), np.array([1]), axis=0))
    for block, part in zip(layout.blocks, posterior.parts, strict=True):
        names = [name for name, _ in layout.columns[block.name]]
        columns = [found[name][1] if name.endswith(".weight") else one for name in names]
        inputs = graph("Concat", *columns, axis=1) if len(columns) > 1 else columns[0]
        left = graph("MatMul", found[names[0]][0], array(part.output_basis))
        right = graph("MatMul", inputs, array(part.input_basis))
        product = graph("Mul", unsqueezed(graph, left, 3), graph("Unsqueeze", right, np.array([1, 2])))
        scaled = graph("Mul", product, array(part.spectrum.rsqrt()))
        parts.append(graph("Reshape", scaled, np.array([0, outputs, block.size])))
    return graph("Concat", *parts, axis=2) if len(parts) > 1 else parts[0]
