r"""Build a skorch net for training, with skorch's training loop. NeuralNet is used as it is, never subclassed.

The net is a clone of the user's skorch net, or a new one around a torch module. It gets an iterator that slices instead
of collating, the sizes of the data, separate seeds, and as loss the MAP objective in mean form,

.. math:: \frac{\sum_n w_n\,\mathrm{nll}_n}{\sum_n w_n}
          + \frac{\varphi}{2 N_w}\,(\theta - \mu_0)^\top \mathrm{diag}(\delta)\,(\theta - \mu_0)
          + \frac{1}{N_w}\,\big(g^\top d + \tfrac12 d^\top H d\big) ,

with the likelihood of the estimator, which replaces the criterion of the user's net. The last term represents rows of
earlier fits: d is the difference from the weights at which their loss has gradient g and curvature H.

**Standardisation.** A linear layer with a bias whose input is X, or a range of its columns, standardises that input.
The functions that the net can represent, the names of its parameters, and the units of gradients with respect to X stay
the same. Any other use of X, such as the indices of an embedding, gets the values themselves.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sklearn.base import clone
from skorch import NeuralNet
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..laplace.fit import TrainingRows
from ..laplace.layers import StandardisedLinear
from ..laplace.likelihoods import Bernoulli
from ..laplace.likelihoods._base import Likelihood
from ..laplace.network.network import Network
from ..laplace.network.tracing import copy_of
from . import MLP, TableMLP
from .given_net import (
    INPUT_SIZES,
    OUTPUT_SIZES,
    _check_criterion,
    _name,
    _sizes,
    both_probabilities,
    check_iterator,
    check_module,
    check_monitors,
)
from .mlp import Standardise
from .skorch_loss import LateAdam, MAPLoss, SlicingIterator


def build_net(
    source: NeuralNet | type[nn.Module] | nn.Module,
    module_parameters: dict[str, Any],
    likelihood: Likelihood,
    rows: TrainingRows,
    *,
    max_epochs: int | None,
    lr: float | None,
    batch_size: int | None,
    seed: int | None,
    verbose: int,
) -> NeuralNet:
    """Skorch net configured for training, not yet initialised: a clone of the user's net, or a new one around a module.

    ``seed`` is that of the order of mini-batches; None for torch's global generator, as in skorch.
    """
    flat = {"max_epochs": max_epochs, "lr": lr, "batch_size": batch_size}
    chosen = {name: value for name, value in flat.items() if value is not None}
    own_training = isinstance(source, NeuralNet)
    net = clone(source) if isinstance(source, NeuralNet) else _net_around(source, module_parameters)
    net.set_params(**chosen, **_sizes(net, rows.inputs.shape[1], rows.n_outputs))
    if own_training:
        _check_criterion(net, likelihood)
        check_iterator(net)
        check_monitors(net)
        if isinstance(likelihood, Bernoulli) and isinstance(net.predict_nonlinearity, str):
            # skorch would infer it from the criterion, which is replaced.
            net.set_params(predict_nonlinearity=both_probabilities)
    for key in [k for k in vars(net) if k.startswith("criterion__")]:  # options of the user's criterion
        object.__delattr__(net, key)
    net.set_params(
        criterion=MAPLoss,
        criterion__likelihood=likelihood,
        criterion__total_weight=rows.total_weight,
        criterion__n_rows=len(rows),
        criterion__scale=2 / rows.n_outputs if own_training and likelihood.has_dispersion else 1.0,
        device=str(rows.inputs.device),
        verbose=verbose,
    )
    if net.iterator_train is DataLoader:
        given = {"shuffle": not own_training, "drop_last": False} | net.get_params_for("iterator_train")
        kept = {"shuffle": bool(given["shuffle"]), "drop_last": bool(given["drop_last"]), "seed": seed}
        for key in [k for k in vars(net) if k.startswith("iterator_train__") and k != "iterator_train__batch_size"]:
            object.__delattr__(net, key)
        net.set_params(iterator_train=SlicingIterator, **{f"iterator_train__{name}": v for name, v in kept.items()})
    if net.iterator_valid is DataLoader:
        net.set_params(iterator_valid=SlicingIterator)
    return net


def _net_around(source: type[nn.Module] | nn.Module, module_parameters: dict[str, Any]) -> NeuralNet:
    net = NeuralNet(
        source if inspect.isclass(source) else renewed(source),
        criterion=MAPLoss,
        optimizer=LateAdam,
        train_split=None,
        callbacks="disable",
        lr=1e-2,
        batch_size=-1,
        max_epochs=0,
    )
    return net.set_params(**{f"module__{name}": value for name, value in module_parameters.items()})


def initialise(net: NeuralNet, dtype: torch.dtype | None, rows: TrainingRows) -> None:
    """Initialise the net, convert it to ``dtype`` if given, and check it by a forward pass of two rows."""
    try:
        net.initialize()
    except TypeError as error:
        raise ValueError(
            f"the net's module {_name(net)} could not be built: {error}. Set missing arguments as net__module__… of a "
            f"skorch net. The number of columns is passed to an argument named one of {INPUT_SIZES}, the number of "
            f"outputs to one of {OUTPUT_SIZES}."
        ) from error
    if dtype is not None:
        net.module_.to(dtype)
    net.module_.eval()
    example = rows.inputs[:2]
    own = next((parameter.dtype for parameter in net.module_.parameters()), example.dtype)
    check_module(net.module_, example.to(own), rows)


def renewed(module: nn.Module) -> nn.Module:
    """Copy of the user's module; weights in the range of torch's defaults are drawn again if all can be reset."""
    module = copy_of(module)
    owners = [layer for layer in module.modules() if next(layer.parameters(recurse=False), None) is not None]
    resets: list[Any] = [getattr(layer, "reset_parameters", None) for layer in owners]
    is_open = all(parameter.requires_grad for parameter in module.parameters())
    if is_open and not isinstance(module, MLP | TableMLP) and all(map(callable, resets)) and all(map(_is_new, owners)):
        for reset in resets:
            reset()
    return module


def _is_new(layer: nn.Module) -> bool:
    """False if a weight of a linear layer or a convolution is out of the range ±1/√fan-in of its initialisation."""
    if not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return True
    bound = (1 + 1e-6) / math.sqrt(max(layer.weight[0].numel(), 1))
    return all(bool((parameter.abs() <= bound).all()) for parameter in layer.parameters(recurse=False))


def first_layers(module: nn.Module, x: Tensor) -> dict[str, slice]:
    """Linear layers with a bias that take X itself, by name, each with its columns of X."""
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
    """Let the :func:`first_layers` standardise their inputs in place, by means and scales of the columns of X."""
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


def finish(net: NeuralNet, network: Network) -> NeuralNet:
    """Copy the network's weights into the net and drop the parts that only training needs; the history is kept."""
    net.module_.load_state_dict(network.module.state_dict())
    net.module_.eval()
    history = list(net.history)
    net.trim_for_prediction()
    net.history.extend(history)
    if net.iterator_valid is SlicingIterator:  # the net's predict method then accepts arrays again
        net.iterator_valid = DataLoader
    return net
