"""The training of one net, with those that see a part of the rows beside it.

:func:`train` is a pure function of its arguments (parameters by name, arrays, seeds), so that its result can be cached.
:func:`begin` is what gradients do before its exact steps.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNet
from torch import Tensor, nn

from .._data.rows import PreparedData
from .._host.given_net import check_module, copied, isolated_seed, returns_probabilities
from .._host.net import build_net, initialise
from .._host.rows import Sizes, TrainingRows
from .._options.options import DISPERSION_RULES, Options
from .._runtime.budget import SMALL_ROWS
from .._runtime.progress import Task
from ..laplace.network.network import Network
from ..laplace.network.tracing import trace
from ..laplace.prior import Prior
from ..laplace.structures import Diag, Full, Functional, Kron
from ..laplace.structures._base import Curvature
from .built_in import built_in_net
from .fit_map import ROWS_FOR_MEMBERS, fit_map, is_exact, keep_mode
from .folds import N_FOLDS, cross_fitted, dealt
from .gradient_start import gradient_start, starts_by_gradients
from .plan import NOISELESS, MapResult, Plan, WarmStart
from .previous import check_same_net, load
from .random_weights import fixed_dispersion, grouped, posterior_layout, tensors_of
from .request import TrainingRequest

TRAINING_STAGES = 3
"""Epochs, the way to the mode, nets beside it: the tasks of a training at most."""


def train(request: TrainingRequest, memory_budget: object, task: Task) -> MapResult:
    """The MAP stage.

    Parameters
    ----------
    request : TrainingRequest
    memory_budget : None, int or str
        Beside the other parameters, since the result does not depend on it but for rounding.
    task : Task
        That this is; with at most ``TRAINING_STAGES`` subtasks.

    Returns
    -------
    MapResult
    """
    options, rows, plan = _planned(request, memory_budget, task)
    parameters, data, seeds = request.parameters, request.data, request.seeds
    net = parameters["net"]
    if isinstance(net, FrozenEstimator):
        module = copy.deepcopy(net.estimator.module_).to(rows.weights)
        check_module(module.eval(), rows.inputs[:2], Sizes.of(rows, data.n_outputs))
        network = _trace(module, rows, data, options, verbose=parameters["verbose"])
        fixed = plan.precision is not None and not plan.free_dispersion
        structure = _structure_of_pass(network, rows, data, options) if fixed else None
        return keep_mode(copied(net.estimator), network, rows, data.n_outputs, plan, structure)
    if net is None:
        return _train_net(request, rows, plan, options, task)
    with isolated_seed(seeds[1], rows.inputs.device):
        return _train_net(request, rows, plan, options, task)


def may_begin(request: TrainingRequest, options: Options) -> bool:
    """Whether gradients may train before exact steps: a built-in net of many rows with normal noise."""
    normal = options.likelihood.has_dispersion and options.likelihood.quadratic
    is_new = request.parameters["net"] is None and request.warm_start is None
    return is_new and normal and len(request.data.X) > SMALL_ROWS


def begin(request: TrainingRequest, memory_budget: object, task: Task) -> WarmStart | None:
    """Train a net and those beside it by gradients, from which exact steps go on.

    Parameters
    ----------
    request, memory_budget, task
        See :func:`train`.

    Returns
    -------
    WarmStart or None
        None where all steps are exact ones. Without weights where there is next to no noise: gradients lead to worse
        modes there.
    """
    options, rows, plan = _planned(request, memory_budget, task)
    nets = _Nets.of(request, rows, options)
    network = nets.network
    if not nets.beside or not starts_by_gradients(network, rows, request.data.n_outputs, plan):
        return None
    modules, prior = [nets.net.module_, *nets.others], plan.start(network, plan.prior(network)).prior_precision.mean()
    with task.subtask("epochs"):
        held_out = dealt(rows, N_FOLDS)
        found = gradient_start(modules, rows, held_out, float(prior), request.seeds[1] % 2**31, plan.is_over)
    if found.dispersion < NOISELESS:
        return WarmStart(None, np.ones(1), found.dispersion, (), by_gradients=True)
    thetas = []
    for module, state in zip(modules, found.states, strict=True):
        module.load_state_dict(state)
        thetas.append(network.vector(dict(module.named_parameters())).detach().cpu().numpy().astype(float))
    return WarmStart(thetas[0], np.ones(1), found.dispersion, tuple(thetas[1:]), by_gradients=True)


def _planned(request: TrainingRequest, memory_budget: object, task: Task) -> tuple[Options, TrainingRows, Plan]:
    """What a training is to find, and in which rows."""
    options, data, start = request.options(memory_budget), request.data, request.warm_start
    is_ours = request.parameters["net"] is None
    rows = tensors_of(data, options, built_in=is_ours)
    fixed_noise = options.map_precision is not None
    by_gradients = start is not None and start.by_gradients
    plan = Plan(
        options.likelihood,
        lambda network: _training_prior(network, options),
        _map_precision(options, request),
        options.likelihood.dispersion_start if fixed_noise else fixed_dispersion(options, data.scale),
        DISPERSION_RULES.get(options.sigma_noise.rule, lambda fit, hyper: hyper),
        natural_start=is_ours,
        memory=options.memory,
        previous=options.previous,
        again=None if start is None or by_gradients else start.hyper,
        begun=start.dispersion if start is not None and by_gradients and start.theta is not None else None,
        quick=request.is_quick,
        softens=options.by_held_out[0] and not options.likelihood.has_dispersion,
        many=len(rows) >= ROWS_FOR_MEMBERS,
        is_over=task.clock.is_over,
    )
    return options, rows, plan


def _structure_of_pass(network: Network, rows: TrainingRows, data: PreparedData, options: Options) -> type[Curvature]:
    """For a net whose weights, prior and noise are given: the posterior's own structure, so that one pass is enough."""
    own, structure, _, _ = posterior_layout(network, rows, data, options)
    whole = own.parameter_names == network.parameter_names and own.blocks == network.blocks
    return structure if whole and structure in (Full, Functional, Kron) else Diag


@dataclass(frozen=True)
class _Nets:
    """A net, and those that see a part of the rows each, before any training.

    Parameters
    ----------
    net : NeuralNet
    network : Network
        Its module, traced.
    others : tuple of Module
        Of the built-in net.
    own_epochs : bool
        Whether the user has said how long the net trains.
    beside : bool
        Whether there are to be nets beside it.
    """

    net: NeuralNet
    network: Network
    others: tuple[nn.Module, ...]
    own_epochs: bool
    beside: bool

    @classmethod
    def of(cls, request: TrainingRequest, rows: TrainingRows, options: Options) -> _Nets:
        """For these rows, at initial weights."""
        parameters, data, seeds = request.parameters, request.data, request.seeds
        is_ours = parameters["net"] is None
        source: Any = parameters["net"]
        arguments: dict[str, Any] = {}
        if is_ours:
            source, arguments = built_in_net(parameters, data, options.likelihood, seeds[0])
        sizes = Sizes.of(rows, data.n_outputs)
        given = source, arguments, options.likelihood, sizes
        options_of_net = {name: parameters[name] for name in ("max_epochs", "lr", "batch_size")}
        net = build_net(*given, **options_of_net, seed=seeds[0], verbose=max(int(parameters["verbose"]) - 1, 0))
        initialise(net, rows.inputs[:2], rows.weights.dtype, sizes)
        if options.previous is not None:
            load(net.module_, options.previous.module)
        network = _trace(net.module_, rows, data, options, verbose=parameters["verbose"])
        own_epochs = isinstance(parameters["net"], NeuralNet) or parameters["max_epochs"] is not None
        deep = is_ours and len(parameters["hidden_layer_sizes"]) > 0  # a linear net has one mode, and knows itself
        apart = options.previous is None and not data.has_copies and not isinstance(options.prior_mean, dict)
        beside = deep and apart and options.cross_fits and not (own_epochs or request.is_member)
        others = []
        if beside and (request.warm_start is None or not request.warm_start.folds):
            others = [source(**arguments | {"seed": seeds[0] + 1 + k}).to(network.theta) for k in range(N_FOLDS)]
        return cls(net, network, tuple(others), own_epochs, beside)


def _train_net(request: TrainingRequest, rows: TrainingRows, plan: Plan, options: Options, task: Task) -> MapResult:
    nets = _Nets.of(request, rows, options)
    net, network, start, previous = nets.net, nets.network, request.warm_start, options.previous
    if request.parameters["net"] is None and not nets.own_epochs:
        _check_used(request.parameters, is_exact(network, rows, request.data.n_outputs, plan), len(rows))
    if previous is not None:
        check_same_net(network, previous.fit.network, rows.inputs[:50])
        _start_at(net.module_, network.tensors(previous.fit.theta))
    elif start is not None and start.theta is not None:
        _start_at(net.module_, network.tensors(torch.from_numpy(start.theta).to(network.theta)))
    elif request.parameters["net"] is None and isinstance(options.prior_mean, dict):
        _start_at(net.module_, options.prior_mean)
    trained = fit_map(net, network, rows, request.data.n_outputs, plan, task, own_epochs=nets.own_epochs)
    if request.is_member:
        return replace(trained, by_evidence=start is None or start.by_evidence)
    if not nets.beside:
        return trained
    if start is not None and start.folds:
        before = [torch.from_numpy(fold).to(network.theta) for fold in start.folds]
    else:
        before = [network.vector(dict(other.named_parameters())).to(network.theta) for other in nets.others]
    return cross_fitted(trained, rows, plan, before, task)


def _check_used(parameters: Mapping[str, Any], exact: bool, n_rows: int) -> None:
    """Refuse options of gradient training for a net that trains by exact Gauss–Newton steps."""
    given = [f"{name}={parameters[name]!r}" for name in ("lr", "batch_size") if parameters[name] is not None]
    if given and exact:
        raise ValueError(
            f"{' and '.join(given)} would have no effect: with these {n_rows} rows the built-in net trains by exact "
            f"Gauss–Newton steps. Omit {'it' if len(given) == 1 else 'them'}, or give max_epochs for gradient training."
        )


def _start_at(module: nn.Module, means: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(means.get(name, parameter))


def _trace(module: nn.Module, rows: TrainingRows, data: PreparedData, options: Options, *, verbose: int) -> Network:
    """The module as a network; what its posterior cannot hold is refused here, before any training."""
    log_outputs = rows.targets.ndim == 1 and returns_probabilities(module, rows.inputs[:20])
    if log_outputs and verbose:
        print("the net's outputs are probabilities: their logarithms are taken as logits.")
    network = trace(module, rows.inputs, log_outputs=log_outputs)
    posterior_layout(network, rows, data, options)
    return network


def _map_precision(options: Options, request: TrainingRequest) -> Tensor | None:
    if request.is_member and request.warm_start is not None:  # the precisions of the first member
        return request.warm_start.hyper.prior_precision
    if options.map_precision is not None:
        return torch.tensor(options.map_precision, dtype=torch.float64)
    value = options.prior_precision.value
    return None if value is None else torch.as_tensor(value)


def _training_prior(network: Network, options: Options) -> Prior:
    """A training under one given precision does not depend on how the posterior's are grouped."""
    prior = grouped(network, network.parameter_names, options)
    return prior if options.map_precision is None else replace(network.scalar_prior(), mean=prior.mean)
