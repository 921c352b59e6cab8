r"""Export of a fitted estimator as an ONNX graph: :func:`to_onnx`.

The graph computes the closed-form predictive distribution of the linearised net in double precision. It contains the
forward pass of the net, the Jacobian (by the chain rule, layer by layer), and the distribution of the outputs

.. math:: f(x) \sim N\big(f_{\theta^*}(x) + J\,s,\; D D^\top\big), \qquad D = J R, \qquad R R^\top = P^{-1},

with the Jacobian J, the shift s of the weights after ``partial_fit``, the posterior precision P, and the root R of its
inverse. In general, R is stored as a square matrix with one row per weight with a posterior. For Kronecker factors
(``laplace/structures/kron.py``), the bases :math:`Q_A, Q_B` and the eigenvalues m of each layer are stored instead.
With the cotangent g and the input a of a layer, its block of D is :math:`(g\,Q_B) \otimes (a\,Q_A) / \sqrt m`. The
graph of an ensemble has one such part for each member. A model of noise that varies with x adds one more net.
"""

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

from .._ensemble.noise_model import LARGEST_SPREAD, NODES, REACH, NoiseModel
from .._estimator.base import LaplaceEstimator
from .._estimator.classifier import LaplaceClassifier
from .._files import write_whole
from .._validation.arguments import explained, file_path
from ..errors import MemoryBudgetError, UnsupportedCombinationError
from ..laplace.extrapolation import FARTHEST
from ..laplace.layers import StandardisedLinear
from ..laplace.links import Moderated, Plugin, Probit
from ..laplace.links._base import Link
from ..laplace.links.moderated import INVERSE
from ..laplace.network.network import Network
from ..laplace.predictives import GLM
from ..laplace.structures._base import Posterior
from ..laplace.structures.kron import KronPosterior
from ..nets import TableMLP
from ..nets.mlp import Scale
from .onnx_layers import LAYERS, PLAIN, Graph, array, square, unsqueezed

CLOSED_FORMS = Moderated, Probit, Plugin
"""Links that can be exported."""
LARGEST_FILE = 1.5e9
"""Largest total size of the constants in bytes. ONNX files are limited to 2 GB."""


@explained
def to_onnx(estimator: Any, path: str | os.PathLike[str] | None = None) -> Any:
    """Export a fitted estimator as an ONNX graph that predicts without torch, scikit-learn or this package.

    The input is ``X`` of shape (n, n_features), float64, with the raw columns; the graph standardises them. The outputs
    are float64. A regressor has the outputs ``mean``, ``std`` (noise included) and ``std_epistemic``, in the units and
    the shape of ``predict``. A classifier has the output ``probabilities`` of shape (n, n_classes); its class labels
    are stored as JSON in the metadata of the graph, under ``classes``.

    The outputs equal the predictions of the estimator up to rounding. Non-finite inputs give non-finite outputs,
    whereas the estimator raises an error.

    Parameters
    ----------
    estimator : LaplaceRegressor or LaplaceClassifier
        Fitted estimator with any structure, subset of the weights, number of members and temperature. Its net is the
        built-in net for numeric columns, or a ``torch.nn.Sequential`` of linear layers and activations.
    path : str or path, optional
        File to write the graph to. An existing file is replaced after the new one is complete.

    Returns
    -------
    onnx.ModelProto
        For each member, the graph stores P² numbers for P weights with a posterior, or with "kron" the factors of each
        layer.

    Raises
    ------
    TypeError, NotFittedError
        If the estimator is not a Laplace estimator, or not fitted.
    ValueError
        If ``path`` has the suffix of another format.
    UnsupportedCombinationError
        For nets with other layers, categorical columns or missing values, ``predictive="mc"``, counts, and transformed
        targets; also for links other than "moderated", "probit" and "plugin". The message names the alternatives.
    MemoryBudgetError
        If the graph would be larger than ONNX allows.
    ImportError
        If the package onnx is not installed (``pip install "sklearn-laplace[onnx]"``).

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
            f"to_onnx was given a {type(estimator).__name__}; expected a fitted LaplaceRegressor or LaplaceClassifier. "
            "Export the other steps of a pipeline with skl2onnx."
        )
    check_is_fitted(estimator)
    target = None if path is None else file_path(path, ".onnx")
    onnx = _onnx()
    estimator._check_transformed(to_onnx=True)
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
    if target is not None:
        write_whole(target, model.SerializeToString())
    return model


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            "sklearn_laplace.to_onnx needs the package onnx, which is not installed. Install it with `pip install "
            '"sklearn-laplace[onnx]"`.',
            name="onnx",
        ) from error
    return onnx


def _check(estimator: LaplaceEstimator) -> None:
    """Reject estimators without a closed form in ONNX, and constants of more than :data:`LARGEST_FILE` bytes."""
    options, likelihood = estimator._options(), estimator.laplace_.likelihood
    if options.predictive is not GLM:
        raise UnsupportedCombinationError(
            f"predictive={estimator.get_params()['predictive']!r} has no closed form for ONNX; use "
            "refit_laplace(predictive='auto')."
        )
    if not (likelihood.over_classes or likelihood.additive_noise):
        raise UnsupportedCombinationError(
            f"likelihood={likelihood.key()!r} cannot be exported to ONNX; use likelihood='gaussian' or a classifier."
        )
    if likelihood.over_classes and options.link not in CLOSED_FORMS:
        raise UnsupportedCombinationError(
            f"link={estimator.get_params()['link']!r} cannot be exported to ONNX; use "
            "refit_laplace(link='moderated'), or link='probit' or 'plugin'."
        )
    parts: list[Any] = [*estimator._ensemble.members, *_noise_models(estimator).values()]
    size = sum(_bytes(part.fit.network, part.posterior) for part in parts)
    if size > LARGEST_FILE and options.link is not Plugin:
        largest = max(part.fit.network.n_parameters for part in parts)
        raise MemoryBudgetError(
            f"the graph would have {size / 1e9:.1f} GB, and ONNX is limited to 2 GB: the posterior is over {largest} "
            f"weights, and their covariance is stored for each of {len(parts)} nets. Fit with "
            "hessian_structure='kron', with subset_of_weights='last_layer', or with fewer members."
        )


def _bytes(network: Network, posterior: Posterior) -> int:
    if _factors(network, posterior) is None:
        return 8 * network.n_parameters**2
    return 8 * sum(block.outputs**2 + block.inputs**2 + block.size for block in network.blocks)


def _factors(network: Network, posterior: Posterior) -> KronPosterior | None:
    """The posterior if it is made of Kronecker factors of whole linear layers; otherwise None."""
    whole = not network.layout.elements and all(block.factored for block in network.blocks)
    return posterior if isinstance(posterior, KronPosterior) and whole else None


def _noise_models(estimator: Any) -> dict[int, NoiseModel]:
    """Distinct noise models of the members, by object identity. Members with the same encoding share one."""
    noise_models = (member.noise_model for member in estimator._ensemble.members)
    return {id(noise): noise for noise in noise_models if isinstance(noise, NoiseModel)}


def _shape(estimator: LaplaceEstimator) -> tuple[int, ...]:
    if isinstance(estimator, LaplaceClassifier):
        return (len(estimator.classes_),)
    return () if estimator._single_output else (estimator.n_outputs_,)


def _moments(graph: Graph, estimator: Any) -> dict[str, str]:
    """Add a regressor's mean, total and epistemic standard deviation, in units of y; return their names."""
    outside = _outside(graph, estimator)
    means, variances, noises = list[str](), list[str](), list[str]()
    ratios = {key: _mean_ratio(graph, noise) for key, noise in _noise_models(estimator).items()}
    for member in estimator._ensemble.members:
        fit = member.fit
        latent = _gaussian(graph, fit.network, member.posterior, fit.shift, outside)
        means.append(latent.mean)
        variances.append(graph("ReduceSumSquare", latent.root, axes=[2], keepdims=0))
        if isinstance(noise := member.noise_model, NoiseModel):
            noises.append(graph("Mul", ratios[id(noise)], member.hyper.dispersion))
        else:
            noises.append(graph.constant(member.noise_variance.cpu().numpy()))
    weights = estimator.member_weights_
    mean = _weighted(graph, means, weights)
    if len(means) > 1:
        pairs = zip(means, variances, strict=True)
        variances = [graph("Add", variance, square(graph, graph("Sub", centre, mean))) for centre, variance in pairs]
    epistemic = _weighted(graph, variances, weights)
    total = graph("Add", epistemic, _weighted(graph, noises, weights))
    scale = estimator._scale
    in_units = graph("Add", graph("Mul", mean, scale.scale), scale.mean)
    stds = [graph("Mul", graph("Sqrt", variance), scale.scale) for variance in (total, epistemic)]
    names = ("mean", "std", "std_epistemic")
    outputs = dict(zip(names, (in_units, *stds), strict=True))
    if estimator._single_output:
        outputs = {name: graph("Squeeze", value, np.array([1])) for name, value in outputs.items()}
    return outputs


def _mean_ratio(graph: Graph, noise: NoiseModel) -> str:
    """E[e^h], shape (n, C): mean ratio of the noise variance at x to that of an average row."""
    latent = _gaussian(graph, noise.fit.network, noise.posterior, None)
    mean = graph("Sub", latent.mean, noise.log_level + noise.spread**2 / 2)
    variance = graph("ReduceSumSquare", latent.root, axes=[2], keepdims=0)
    std = graph("Sqrt", graph("Add", graph("Min", variance, LARGEST_SPREAD**2), noise.spread**2))
    roots, weights = np.polynomial.hermite_e.hermegauss(NODES)
    at_nodes = graph("Add", unsqueezed(graph, mean, 2), graph("Mul", unsqueezed(graph, std, 2), roots))
    values = graph("Exp", graph("Max", graph("Min", at_nodes, REACH), -REACH))
    return graph("MatMul", values, weights / weights.sum())


def _probabilities(graph: Graph, estimator: Any) -> dict[str, str]:
    """Add class probabilities under the link, averaged over the members; return their name."""
    to_logits = estimator.laplace_.likelihood.logits(torch.eye(estimator.n_outputs_, dtype=torch.float64)).numpy()
    probabilities, link, outside = [], estimator._options().link, _outside(graph, estimator)
    for member in estimator._ensemble.members:
        fit = member.fit
        if link is Plugin:
            outputs, *_ = _linearised(graph, fit.network, fit.shift)
            probabilities.append(graph("Softmax", graph("MatMul", outputs, to_logits), axis=-1))
        else:
            latent = _gaussian(graph, fit.network, member.posterior, fit.shift, outside)
            root = graph("MatMul", np.ascontiguousarray(to_logits.T), latent.root)
            probabilities.append(_moderated(graph, graph("MatMul", latent.mean, to_logits), root, link))
    return {"probabilities": _weighted(graph, probabilities, estimator.member_weights_)}


def _moderated(graph: Graph, logits: str, root: str, link: type[Link]) -> str:
    """Probabilities of "moderated" or "probit", for logits with mean (n, K) and covariance root (n, K, P)."""
    variance = graph("ReduceSumSquare", root, axes=[2], keepdims=0)
    # not MatMul with a transpose, which runtimes fuse into an operator of single precision
    covariance = graph("Einsum", root, root, equation="nkp,nlp->nkl")
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
    """``log_coupled`` of ``laplace/links/_base.py``, up to an additive constant in each row."""
    width = graph("Sqrt", graph("Add", widening, 1.0))
    moderated = graph("Neg", graph("Div", difference, width))
    return graph("Neg", graph("ReduceLogSumExp", moderated, axes=[2], keepdims=0))


def _weighted(graph: Graph, values: Sequence[str], weights: np.ndarray) -> str:
    if len(values) == 1:
        return values[0]
    parts = [graph("Mul", value, float(weight)) for value, weight in zip(values, weights, strict=True)]
    return graph("Sum", *parts)


class Latent(NamedTuple):
    """Gaussian over the outputs: mean (n, C), and root D (n, C, P) of the covariance D Dᵀ."""

    mean: str
    root: str


class Step(NamedTuple):
    """Layer in the graph: name, module, input, and the map from the output's cotangent (n, C, …) to the input's."""

    name: str
    layer: nn.Module
    input: str
    back: Callable[[str], str]


def _gaussian(
    graph: Graph, network: Network, posterior: Posterior, shift: Tensor | None, outside: str | None = None
) -> Latent:
    """Distribution of the outputs; ``outside`` (n, C) are additional standard deviations."""
    mean, jacobian, steps = _linearised(graph, network, shift)
    if (factors := _factors(network, posterior)) is not None:
        root = _factored_root(graph, network, factors, steps)
    else:
        identity = torch.eye(network.n_parameters, dtype=torch.float64, device=posterior.device)
        constant = posterior.apply_root(identity).mT.cpu().numpy()
        root = graph("MatMul", jacobian(), np.ascontiguousarray(constant))
    if outside is not None:
        columns = graph("Mul", unsqueezed(graph, outside, 2), np.eye(_n_outputs(steps))[None])
        root = graph("Concat", root, columns, axis=2)
    return Latent(mean, root)


def _outside(graph: Graph, estimator: Any) -> str | None:
    """Standard deviations (n, C) that :class:`.Extrapolation` adds outside the training range; None without it."""
    outside = estimator._extrapolating(estimator._options()).outside
    if outside is None:
        return None
    low, high, width = (part.numpy() for part in (outside.low, outside.high, outside.width))
    beyond = graph("Max", graph("Sub", low, "X"), graph("Sub", "X", high))
    excess = graph("Min", graph("Max", graph("Div", beyond, width), 0.0), FARTHEST)
    variance = graph("ReduceSum", graph("Mul", square(graph, excess), excess), np.array([1]), keepdims=1)
    return graph("Mul", graph("Sqrt", variance), outside.scale.numpy())


def _linearised(graph: Graph, network: Network, shift: Tensor | None) -> tuple[str, Callable[[], str], Sequence[Step]]:
    """Mean of the outputs (n, C), a function that adds their Jacobian to the graph once, and the layers."""
    steps, outputs = _forward(graph, network)
    jacobian = cache(lambda: _jacobian(graph, network, steps))
    if shift is not None:
        outputs = graph("Add", outputs, graph("MatMul", jacobian(), shift.cpu().numpy()))
    return outputs, jacobian, steps


def _forward(graph: Graph, network: Network) -> tuple[list[Step], str]:
    """Add the forward pass of a chain of supported layers; return the layers in order and the last output."""
    module = network.module
    shared = any(name != first for name, first in network.layout.aliases.items())
    layers = _layers(module)
    if layers is None or shared:
        raise UnsupportedCombinationError(
            f"the net {type(module).__name__} cannot be exported to ONNX: it must be the built-in net for numeric "
            "columns without missing values (encode categories and impute before it, in a pipeline), or a "
            f"torch.nn.Sequential of {_names()}, each used once."
        )
    if network.log_outputs:
        raise UnsupportedCombinationError(
            f"the net {type(module).__name__} returns probabilities and cannot be exported to ONNX; use a net that "
            "returns logits."
        )
    steps, value = [], "X"
    for name, layer in layers:
        kind = type(layer)
        if kind not in LAYERS or (kind in PLAIN and repr(layer) != repr(kind())):
            raise UnsupportedCombinationError(
                f"the layer '{name}' of the net, {layer!r}, cannot be exported to ONNX. Use the layers {_names()}, "
                "with the default options of the activations."
            )
        before = value
        value, back = LAYERS[kind](graph, layer, before)
        steps.append(Step(name, layer, before, back))
    return steps, value


def _layers(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """Names and modules of the layers in order; None if the net is not a chain of layers."""
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        return [step for name, layer in module.named_children() for step in _with_standardisation(name, layer)]
    if not isinstance(module, TableMLP) or module.first is None or len(module.flagged) or len(module.categorical):
        return None
    behind = [(f"behind.{name}", layer) for name, layer in module.behind.named_children()]
    return [("standardise", module.standardise), ("scale", Scale(module.factor)), ("first", module.first), *behind]


def _with_standardisation(name: str, layer: nn.Module) -> list[tuple[str, nn.Module]]:
    before = [(f"{name}.standardise", layer.standardise)] if isinstance(layer, StandardisedLinear) else []
    return [*before, (name, layer)]


def _names() -> str:
    return ", ".join(sorted(kind.__name__ for kind in LAYERS if kind.__module__.startswith("torch.")))


def _cotangents(graph: Graph, network: Network, steps: Sequence[Step]) -> dict[str, tuple[str, str]]:
    """By name of each tensor with a posterior: the cotangent (n, C, O) of its layer's output, and the layer's input."""
    random_tensors = set(network.parameter_names)
    cotangents: dict[str, tuple[str, str]] = {}
    outputs = _n_outputs(steps)
    rows = graph("Shape", "X", end=1)
    cotangent = graph("Expand", np.eye(outputs)[None], graph("Concat", rows, np.array([outputs, outputs]), axis=0))
    for step in reversed(steps):
        cotangents |= {name: (cotangent, step.input) for name in _tensors(step) if name in random_tensors}
        if random_tensors <= set(cotangents):
            break
        cotangent = step.back(cotangent)
    return cotangents


def _tensors(step: Step) -> tuple[str, str]:
    return f"{step.name}.weight", f"{step.name}.bias"


def _n_outputs(steps: Sequence[Step]) -> int:
    return int(next(step.layer.out_features for step in reversed(steps) if isinstance(step.layer, nn.Linear)))


def _jacobian(graph: Graph, network: Network, steps: Sequence[Step]) -> str:
    """Jacobian J (n, C, P), with the weights in the order of the blocks of the network."""
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
    """Root D (n, C, P) in the eigenbases of the Kronecker factors."""
    layout, outputs = network.layout, _n_outputs(steps)
    cotangents, parts = _cotangents(graph, network, steps), []
    ones = graph("Expand", np.ones((1, 1)), graph("Concat", graph("Shape", "X", end=1), np.array([1]), axis=0))
    for block, part in zip(layout.blocks, posterior.parts, strict=True):
        names = [name for name, _ in layout.columns[block.name]]
        columns = [cotangents[name][1] if name.endswith(".weight") else ones for name in names]
        inputs = graph("Concat", *columns, axis=1) if len(columns) > 1 else columns[0]
        left = graph("MatMul", cotangents[names[0]][0], array(part.output_basis))
        right = graph("MatMul", inputs, array(part.input_basis))
        product = graph("Mul", unsqueezed(graph, left, 3), graph("Unsqueeze", right, np.array([1, 2])))
        scaled = graph("Mul", product, array(part.spectrum.rsqrt()))
        parts.append(graph("Reshape", scaled, np.array([0, outputs, block.size])))
    return graph("Concat", *parts, axis=2) if len(parts) > 1 else parts[0]
