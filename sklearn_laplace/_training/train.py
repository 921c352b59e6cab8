"""Training of one net to its posterior mode, or of a user's net ("given net") by its own epochs.

:func:`train` is a pure function of its arguments (parameters, arrays, seeds), so its result can be cached. With a
previous posterior, training starts from the previous weights, after a check that the net is the same. Gradient training
may precede exact Gauss–Newton steps ("exact steps").
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNet
from torch import Tensor, nn

from .._table.rows import PreparedData
from ..laplace.fit import TrainingRows
from ..laplace.network.network import Network
from ..laplace.network.tracing import copy_of, trace
from ..nets.given_net import check_module, isolated_seed, returns_probabilities
from ..nets.skorch_net import build_net, first_layers, initialise, standardise_layers, statistic_of
from ..options.resolve import verbosity
from ..options.resolved import Options
from .built_in import built_in_net, statistics_of
from .fit_map import SCHEDULE, fit_map, is_exact, started, starts_by_gradients
from .own_epochs import MODULE_LR, is_linear, keep_weights, prepare_module, train_given
from .plan import FitRequest, GivenNet, MapResult, Plan, planned, posterior_layout
from .progress import Task
from .recipe import FOLDS_OF_MANY, held_out_rows

SAME_OUTPUTS = 1e-3
"""Maximum difference between the outputs of two equal nets of any precision, relative to 1 plus the largest output."""


def load(module: nn.Module, past: nn.Module) -> None:
    """Load weights and buffers of a previous net into ``module``; ``ValueError`` if names or shapes differ."""
    try:
        module.load_state_dict(past.state_dict())
    except RuntimeError as error:
        raise _other(module) from error


def check_same_net(network: Network, past: Network, inputs: Tensor) -> None:
    """Check that a new net with the previous weights computes the same function of ``inputs`` (n, …)."""
    if network.theta.device != past.theta.device:
        raise ValueError(
            f"the previous posterior is on device {past.theta.device}, and this fit is on {network.theta.device}. Use "
            "the same device for both."
        )
    same = network.parameter_names == past.parameter_names and network.blocks == past.blocks
    if same:
        new = network(inputs).double()
        old = past(inputs.to(next(past.module.parameters()).dtype)).double()
        same = bool((new - old).abs().max() <= SAME_OUTPUTS * (1 + old.abs().max()))
    if not same:
        raise _other(network.module)


def _other(module: nn.Module) -> ValueError:
    return ValueError(
        f"the net {type(module).__name__} is not that of the previous posterior, whose weights or architecture differ. "
        "Use the same net, or the same hidden_layer_sizes and activation, for both."
    )


STANDARD = 1e-6
"""Maximum difference of mean and scale from 0 and 1 for columns that count as standardised."""


def train(request: FitRequest, task: Task) -> MapResult | GivenNet:
    """Train a net to its posterior mode.

    A given net is trained by its own epochs only, unless it is linear and exact steps are affordable. The memory budget
    affects the result only by rounding. ``task`` gets at most two subtasks.
    """
    rows, plan = planned(request, task)
    parameters, seeds = request.parameters, request.seeds
    net = parameters["net"]
    if isinstance(net, FrozenEstimator):
        module = copy.deepcopy(net.estimator.module_).to(rows.weights)
        check_module(module.eval(), rows.inputs[:2], rows)
        network = _trace(module, rows, plan.options, verbose=verbosity(parameters["verbose"])[0])
        return keep_weights(net, network, rows, plan)
    if net is None:
        return _train_net(request, rows, plan, task)
    with isolated_seed(seeds[1], rows.inputs.device):
        return _train_net(request, rows, plan, task)


def _net_of(request: FitRequest, rows: TrainingRows, options: Options) -> tuple[NeuralNet, Network, bool]:
    """Initialised net, its trace, and True if the user sets the number of epochs."""
    parameters, data, seeds = request.parameters, request.data, request.seeds
    is_ours = parameters["net"] is None
    source: Any = parameters["net"]
    arguments: dict[str, Any] = {}
    options_of_net = {name: parameters[name] for name in ("max_epochs", "lr", "batch_size")} | {"seed": None}
    if is_ours:
        source, arguments = built_in_net(parameters, data, options.likelihood, seeds[0])
        options_of_net["seed"] = seeds[0]
    elif parameters["lr"] is None and not isinstance(source, NeuralNet):
        options_of_net["lr"] = MODULE_LR
    level, _ = verbosity(parameters["verbose"])
    net = build_net(
        source,
        arguments,
        options.likelihood,
        rows,
        **options_of_net,
        verbose=max(level - 1, 0),
    )
    initialise(net, rows.weights.dtype if is_ours else options.dtype, rows)
    if not is_ours:
        own = next(net.module_.parameters()).dtype
        _standardise(net.module_, rows.inputs[:2].to(own), data, options)
    if options.previous is not None:
        load(net.module_, options.previous.module)
    module = net.module_
    if not is_ours:  # the net trains in its own precision; the posterior has that of the rows
        module = copy_of(module).to(rows.weights.dtype)
        check_module(module, rows.inputs[:2], rows)
    network = _trace(module, rows, options, verbose=level)
    own_epochs = isinstance(parameters["net"], NeuralNet) or parameters["max_epochs"] is not None
    return net, network, own_epochs


def _train_net(request: FitRequest, rows: TrainingRows, plan: Plan, task: Task) -> MapResult | GivenNet:
    options, start, previous = plan.options, request.warm_start, plan.previous
    net, network, own_epochs = _net_of(request, rows, options)
    if request.parameters["net"] is None and not own_epochs:
        _check_used(request.parameters, is_exact(network, rows, plan), len(rows))
    if previous is not None:
        check_same_net(network, previous.fit.network, rows.inputs[:50])
        _start_at(net.module_, network.tensors(previous.fit.theta))
    elif start is not None and start.theta is not None:
        _start_at(net.module_, network.tensors(torch.from_numpy(start.theta).to(network.theta)))
    elif request.parameters["net"] is None and isinstance(options.prior_mean, dict):
        _start_at(net.module_, options.prior_mean)
    if request.parameters["net"] is not None:
        exact = options.map_precision != 0 and is_exact(network, rows, plan)
        if not (exact and is_linear(network, rows.inputs[:5])):
            level, _ = verbosity(request.parameters["verbose"])
            if not isinstance(request.parameters["net"], NeuralNet):
                prepare_module(net, network, rows, plan, by_rows=not own_epochs)
            return train_given(net, network, rows, plan, task, seed=request.seeds[1], level=level)
        net.module_.to(rows.weights.dtype)
    elif start is None and not (own_epochs or options.prior_mean) and starts_by_gradients(network, rows, plan):
        # A copy of the net is trained without one fold, to measure the held-out error.
        fold = held_out_rows(request.data.X, request.data.targets, 1, FOLDS_OF_MANY)[0]
        seen = torch.stack([torch.ones(len(rows)), torch.from_numpy(~fold)]).to(rows.weights)
        modules, log_volume = [net.module_, copy.deepcopy(net.module_)], request.data.scale.log_volume
        with task.subtask("epochs") as epochs, SCHEDULE.steps(epochs, len(rows), log_volume) as steps:
            plan = started(modules, network, rows, seen, plan, request.seeds[1], steps)
    trained = fit_map(net, network, rows, plan, task, own_epochs=own_epochs)
    return replace(trained, by_evidence=start is None or start.by_evidence) if request.is_member else trained


def _check_used(parameters: Mapping[str, Any], exact: bool, n_rows: int) -> None:
    """Raise ValueError for options of gradient training if the net is trained by exact Gauss–Newton steps."""
    useless = [f"{name}={parameters[name]!r}" for name in ("lr", "batch_size") if parameters[name] is not None]
    if useless and exact:
        raise ValueError(
            f"{' and '.join(useless)} would have no effect: with these {n_rows} rows the built-in net trains by exact "
            f"Gauss–Newton steps. Omit {'it' if len(useless) == 1 else 'them'}, or set max_epochs for gradient steps."
        )


def _standardise(module: nn.Module, x: Tensor, data: PreparedData, options: Options) -> None:
    """Make the user's linear layers that read X standardise their inputs, with a previous net's statistics if any."""
    if options.standardises is False:
        return
    layers, statistics = first_layers(module, x), statistics_of(data.X, data.weights)
    known = options.prior_mean if isinstance(options.prior_mean, dict) else None
    if options.previous is not None:
        known = options.previous.module.state_dict()
    if options.standardises is None:  # standardised columns stay exactly as they are
        layers = {
            name: columns
            for name, columns in layers.items()
            if (not _is_standard(statistics, columns) if known is None else statistic_of(name, "mean") in known)
        }
    elif not layers:
        raise ValueError(
            f"standardize_X=True needs a torch.nn.Linear with a bias whose input is X or some of its columns, and the "
            f"module {type(module).__name__} has none. Standardise X in a pipeline with StandardScaler, or use "
            "standardize_X='auto'."
        )
    standardise_layers(module, layers, statistics, known or {})


def _is_standard(statistics: tuple[Sequence[float], Sequence[float]], columns: slice) -> bool:
    """True if columns have mean 0 and scale 1 up to the rounding of float32."""
    mean, scale = (np.asarray(values[columns]) for values in statistics)
    return bool((np.abs(mean) < STANDARD).all() and (np.abs(scale - 1) < STANDARD).all())


def _start_at(module: nn.Module, means: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(means.get(name, parameter))


def _trace(module: nn.Module, rows: TrainingRows, options: Options, *, verbose: int) -> Network:
    """Trace the module, and check before any training that its posterior is supported and fits in memory."""
    log_outputs = rows.targets.ndim == 1 and returns_probabilities(module, rows.inputs[:20])
    if log_outputs and verbose:
        print("the net's outputs are probabilities; their logarithms are used as logits.")
    network = trace(module, rows.inputs, log_outputs=log_outputs)
    posterior_layout(network, rows, options)
    return network
