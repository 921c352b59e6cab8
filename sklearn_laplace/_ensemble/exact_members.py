"""Nets trained by exact Gauss–Newton steps ("exact steps"), as one repeat of a joint ensemble.

A repeat is a partition of the rows into ``FOLDS_OF_MANY`` folds. For each fold, one net is trained without it.

**Noisy targets.** The repeat is trained in addition to other repeats. The evidence of its first net selects the prior
precision of all its nets. The other nets take few steps, from initial weights of their own. For many rows, joint
gradient steps of all nets come first (``_training/fit_map.py``).

**Targets almost free of noise.** There are no other repeats. The evidence of a net trained on all rows selects the
prior precision, and held-out errors determine the noise model. Then each net is trained further on all rows
(``fit.py``), because errors that are not noise decrease fast with the number of rows.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from .._table.limits import SINGLE_THREAD_FLOPS, exact_cost
from .._training.built_in import built_in_net, initialised, of_one_net
from .._training.fit_map import (
    LATER_NOISELESS,
    LATER_NOISY_OF_FEW,
    NOISY,
    SCHEDULE,
    fit_map,
    n_dual_rows,
    problem_of,
    started,
    starts_by_gradients,
)
from .._training.plan import NOISELESS, FitRequest, Plan, planned
from .._training.progress import Steps, Task
from .._training.recipe import FOLDS_OF_MANY, held_out_rows
from ..laplace.fit import Hyper, TrainingRows
from ..laplace.mode.alternating import alternate
from ..laplace.network.network import Network
from ..laplace.network.tracing import trace
from ..laplace.torch_state import single_thread
from ..options.resolved import is_auto
from .joint_members import JointMembers

WORTH = 1.1
"""Mean squared held-out error without bins, relative to that with bins, above which bins are used."""


def exact_repeat(request: FitRequest, first: int, noise: Tensor | None, task: Task) -> tuple[JointMembers, Tensor]:
    """Train a repeat under ``noise`` variances (n, C) or None; return its members and outputs (:func:`without_folds`).

    ``first`` is the number of folds in all earlier repeats.
    """
    held_out = _held_out(request, first // FOLDS_OF_MANY)
    request = _with_pieces(request, None if is_auto(request.parameters["n_bins"]) else request.parameters["n_bins"])
    if noise is not None:
        request = replace(request, data=request.data.under_noise(noise.cpu().numpy()))
    rows, plan = planned(request, task)
    return without_folds(request, rows, plan, held_out, first, task, lead=False)


def exact_alone(request: FitRequest, kinds: Sequence[int | None], task: Task) -> JointMembers:
    """Train an ensemble of nets with exact steps, one per fold.

    ``kinds`` are one or two values of ``n_bins``. The second is used if it is better on a held-out fold, see ``WORTH``.
    """
    held_out, requests = _held_out(request, 0), [_with_pieces(request, kind) for kind in kinds]
    if len(kinds) > 1:
        errors = []
        for of_kind in requests:
            rows, plan = planned(of_kind, task)
            quick = replace(plan, quick=True)
            _, outputs = without_folds(of_kind, rows, quick, held_out[:1], 0, task, lead=False)
            errors.append(float((rows.targets - outputs)[torch.from_numpy(held_out[0])].square().mean()))
        requests = requests if errors[0] <= WORTH * errors[1] else requests[1:]
    rows, plan = planned(requests[0], task)
    members, _ = without_folds(requests[0], rows, plan, held_out, 0, task, lead=True)
    return members


def _held_out(request: FitRequest, n_before: int) -> np.ndarray:
    """Mask (K, n) of the rows held out from each net of the repeat that follows ``n_before`` others."""
    return held_out_rows(request.data.X, request.data.targets, n_before + 1, FOLDS_OF_MANY)[-FOLDS_OF_MANY:]


def _with_pieces(request: FitRequest, n_bins: int | None) -> FitRequest:
    return replace(request, parameters={**of_one_net(request.parameters), "n_bins": n_bins})


def without_folds(
    request: FitRequest,
    rows: TrainingRows,
    plan: Plan,
    masks: np.ndarray,
    first: int,
    task: Task,
    *,
    lead: bool,
) -> tuple[JointMembers, Tensor]:
    """Train net k of K without the rows of ``masks[k]`` (n,); return the nets and the held-out rows' outputs (n, C).

    If ``lead``, the evidence of a net trained on all rows selects the prior precision; otherwise that of the first net.
    """
    n, seed = len(masks), request.seeds[0] + first
    held_out = torch.from_numpy(masks).to(rows.inputs.device)
    _, arguments = built_in_net(request.parameters, request.data, plan.likelihood, 0, as_table=True)
    built = [initialised(arguments, plan.likelihood, rows, seed + k) for k in range(n)]
    nets = [(net, trace(net.module_, rows.inputs)) for net in built]
    if starts_by_gradients(nets[0][1], rows, plan):
        log_volume, modules = request.data.scale.log_volume, [net.module_ for net, _ in nets]
        with task.subtask("epochs") as epochs, SCHEDULE.steps(epochs, len(rows), log_volume) as steps:
            seen = (~held_out).to(rows.weights)
            plan = started(modules, nets[0][1], rows, seen, plan, request.seeds[1], steps)
        nets = [(net, network.with_state_of(net.module_)) for net, network in nets]
    outputs = torch.zeros(len(rows), rows.n_outputs, dtype=torch.float64, device=rows.inputs.device)
    states, hyper, n_steps = list[dict[str, Tensor]](), None, 0
    if lead:
        net = initialised(arguments, plan.likelihood, rows, seed + n)
        of_all = fit_map(net, trace(net.module_, rows.inputs), rows, plan, task, own_epochs=False)
        hyper, n_steps = of_all.mode.hyper, of_all.n_steps
    for (net, network), mask in zip(nets, held_out, strict=True):
        seen_rows = rows.taken((~mask).nonzero()[:, 0])
        if hyper is None:
            of_first = fit_map(net, network, seen_rows, plan, task, own_epochs=False)
            hyper, network, n_steps = of_first.mode.hyper, of_first.mode.fit.network, of_first.n_steps
        else:
            network = _after_few_steps(network, seen_rows, plan, hyper, task)
        with torch.no_grad():
            outputs[mask] = network(rows.inputs[mask]).double()
        states.append({k: v.clone() for k, v in network.module.state_dict().items()})
    places, shares = tuple(range(first, first + n)), (1 / n,) * n
    members = JointMembers((arguments,) * n, tuple(states), held_out, shares, (), n_steps, places, n, hyper)
    return members, outputs


def _after_few_steps(network: Network, rows: TrainingRows, plan: Plan, hyper: Hyper, task: Task) -> Network:
    """Return the net after a few exact steps under the prior precision of ``hyper``."""
    effort = NOISY if hyper.dispersion >= NOISELESS else LATER_NOISELESS
    n_steps = (LATER_NOISY_OF_FEW if plan.is_noisy else effort).gauss_newton
    if plan.free_dispersion:
        hyper = replace(hyper, dispersion=plan.first_dispersion)
    n_dual = n_dual_rows(rows, plan.likelihood)
    problem = problem_of(network, plan.prior(network), rows, n_dual, plan, exact=True)
    is_small = exact_cost(network.blocks, n_dual)[0] <= SINGLE_THREAD_FLOPS
    with single_thread(is_small), task.subtask("net") as stage, Steps(stage, n_steps) as progress:
        problem = replace(problem, advance=progress.advance)
        start, short = problem.linearise(network), plan.is_noisy
        train = alternate(
            problem, start, hyper, free_prior=False, update_dispersion=plan.update, max_steps=n_steps, short=short
        )
    return train.fit.network
