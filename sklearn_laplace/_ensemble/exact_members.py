"""Nets with exact Gauss–Newton steps, as one repeat of a joint ensemble.

**Targets with noise.** Each net is trained without one of ``FOLDS_OF_MANY`` folds, beside the other repeats. The
evidence of the first net selects the prior precision of all, and the other three take few steps from initial weights
of their own. If the rows are many, gradient steps of all nets together come first (``_training/fit_map.py``).

**Targets almost free of noise.** There are no other repeats, and a net of all rows selects the prior precision. The
errors of held-out rows determine the noise model. Then each net goes on with all rows (``fit.py``), since errors that
are not noise decrease fast with the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._table.limits import SINGLE_THREAD_FLOPS, exact_cost
from .._training.built_in import built_in_net, of_one_net
from .._training.fit_map import (
    FEW_MEMBER_STEPS,
    NOISELESS_STEPS,
    NOISY_STEPS,
    SCHEDULE,
    fit_map,
    n_dual_rows,
    problem_of,
    started,
    starts_by_gradients,
)
from .._training.plan import NOISELESS, FitRequest, MapResult, Plan, planned
from .._training.progress import Steps, Task
from .._training.recipe import FOLDS_OF_MANY, held_out_rows
from ..laplace.fit import Hyper, TrainingRows
from ..laplace.mode.alternating import alternate
from ..laplace.network.network import Network
from ..laplace.network.tracing import trace
from ..laplace.torch_state import single_thread
from ..nets import TableMLP
from ..nets.skorch_net import build_net, initialise
from ..options.resolved import Options, is_auto
from .joint_members import JointMembers

WORTH = 1.1
"""Pieces are used if the squared held-out error of nets with numbers is this many times larger."""


@dataclass(frozen=True)
class ExactNets:
    """Nets of one shape that take exact steps, and how they are trained."""

    request: FitRequest
    options: Options
    rows: TrainingRows
    plan: Plan
    arguments: dict[str, Any]
    task: Task

    @classmethod
    def of(cls, request: FitRequest, n_bins: int | None, task: Task) -> ExactNets:
        parameters = {**of_one_net(request.parameters), "n_bins": n_bins}
        options, rows, plan = planned(replace(request, parameters=parameters), task)
        _, arguments = built_in_net(parameters, request.data, options.likelihood, 0, as_table=True)
        return cls(request, options, rows, plan, arguments, task)

    def net(self, seed: int) -> tuple[Any, Network]:
        """New net with initial weights, and its trace."""
        training: dict[str, Any] = {"max_epochs": None, "lr": None, "batch_size": None, "seed": seed, "verbose": 0}
        arguments = self.arguments | {"seed": seed}
        net = build_net(TableMLP, arguments, self.options.likelihood, self.rows, **training)
        initialise(net, self.rows.weights.dtype, self.rows)
        return net, trace(net.module_, self.rows.inputs)

    def trained(self, net: Any, network: Network, rows: TrainingRows, plan: Plan) -> MapResult:
        """Train a net to its mode."""
        return fit_map(net, network, rows, plan, self.task, own_epochs=False)

    def few_steps(self, network: Network, rows: TrainingRows, plan: Plan, hyper: Hyper) -> Network:
        """The net after a few steps with the prior precision of ``hyper``."""
        if plan.is_noisy:
            n_steps = FEW_MEMBER_STEPS
        else:
            n_steps = NOISY_STEPS if hyper.dispersion >= NOISELESS else NOISELESS_STEPS
        if plan.free_dispersion:
            hyper = replace(hyper, dispersion=plan.first_dispersion)
        n_dual = n_dual_rows(rows, plan.likelihood)
        problem = problem_of(network, plan.prior(network), rows, n_dual, plan, exact=True)
        is_small = exact_cost(network.blocks, n_dual)[0] <= SINGLE_THREAD_FLOPS
        with single_thread(is_small), self.task.subtask("net") as stage, Steps(stage, n_steps) as progress:
            problem = replace(problem, advance=progress.advance)
            start, short = problem.linearise(network), plan.is_noisy
            train = alternate(
                problem, start, hyper, free_prior=False, update_dispersion=plan.update, max_steps=n_steps, short=short
            )
        return train.fit.network

    def without_folds(self, masks: np.ndarray, first: int, *, lead: bool) -> tuple[JointMembers, Tensor]:
        """Nets without the rows ``masks`` (K, n), and their outputs for these rows (n, C).

        With a ``lead``, a net of all rows selects the prior precision, otherwise the first net.
        """
        rows, plan, n = self.rows, self.plan, len(masks)
        held_out = torch.from_numpy(masks).to(rows.inputs.device)
        nets = [self.net(self.request.seeds[0] + first + k) for k in range(n)]
        if starts_by_gradients(nets[0][1], rows, plan):
            log_volume, modules = self.request.data.scale.log_volume, [net.module_ for net, _ in nets]
            with self.task.subtask("epochs") as epochs, SCHEDULE.steps(epochs, len(rows), log_volume) as steps:
                seen = (~held_out).to(rows.weights)
                plan = started(modules, nets[0][1], rows, seen, plan, self.request.seeds[1], steps)
            nets = [(net, network.with_state_of(net.module_)) for net, network in nets]
        outputs = torch.zeros(len(rows), rows.n_outputs, dtype=torch.float64, device=rows.inputs.device)
        states, hyper, n_steps = list[dict[str, Tensor]](), None, 0
        if lead:
            of_all = self.trained(*self.net(self.request.seeds[0] + first + n), rows, plan)
            hyper, n_steps = of_all.mode.hyper, of_all.n_steps
        for (net, network), mask in zip(nets, held_out, strict=True):
            seen_rows = rows.taken((~mask).nonzero()[:, 0])
            if hyper is None:
                of_first = self.trained(net, network, seen_rows, plan)
                hyper, network, n_steps = of_first.mode.hyper, of_first.mode.fit.network, of_first.n_steps
            else:
                network = self.few_steps(network, seen_rows, plan, hyper)
            with torch.no_grad():
                outputs[mask] = network(rows.inputs[mask]).double()
            states.append({k: v.clone() for k, v in network.module.state_dict().items()})
        places, shares = tuple(range(first, first + n)), (1 / n,) * n
        members = JointMembers((self.arguments,) * n, tuple(states), held_out, shares, (), n_steps, places, n, hyper)
        return members, outputs


def exact_repeat(request: FitRequest, first: int, noise: Tensor | None, task: Task) -> tuple[JointMembers, Tensor]:
    """Repeat beside other ones, under the variances ``noise`` (n, C) of their rows, from fold ``first`` on."""
    data = request.data
    held_out = _held_out(request, first // FOLDS_OF_MANY)
    request = replace(request, data=data if noise is None else data.under_noise(noise.cpu().numpy()))
    n_bins = None if is_auto(request.parameters["n_bins"]) else request.parameters["n_bins"]
    return ExactNets.of(request, n_bins, task).without_folds(held_out, first, lead=False)


def exact_alone(request: FitRequest, kinds: Sequence[int | None], task: Task) -> JointMembers:
    """Nets without other repeats, with the encoding that ``WORTH`` decides by the errors of one fold."""
    held_out, candidates = _held_out(request, 0), [ExactNets.of(request, kind, task) for kind in kinds]
    if len(kinds) > 1:
        errors = []
        for nets in candidates:
            quick = replace(nets, plan=replace(nets.plan, quick=True))
            _, outputs = quick.without_folds(held_out[:1], 0, lead=False)
            errors.append(float((nets.rows.targets - outputs)[torch.from_numpy(held_out[0])].square().mean()))
        candidates = candidates if errors[0] <= WORTH * errors[1] else candidates[1:]
    members, _ = candidates[0].without_folds(held_out, 0, lead=True)
    return members


def _held_out(request: FitRequest, n_before: int) -> np.ndarray:
    """Mask (K, n) of the rows that each net holds out, of a repeat after others."""
    return held_out_rows(request.data.X, request.data.targets, n_before + 1, FOLDS_OF_MANY)[-FOLDS_OF_MANY:]
