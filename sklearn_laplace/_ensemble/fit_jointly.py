"""Fit of members that train together, each without a fold of the rows; see ``fit.py``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .._data.rows import row_keys
from .._runtime.progress import Task
from .._runtime.torch_state import single_thread
from .._training.built_in import of_one_net
from .._training.cache import cached_training
from .._training.plan import WarmStart
from .._training.random_weights import tempering
from ..laplace.fit import Hyper
from .approximate_counts_and_classes import approximate_counts_and_classes
from .approximate_members import approximate_jointly, initialised, noise_of_folds, pieces_of, traced
from .ensemble import Ensemble
from .fit_alone import MEMBER_STAGES, fit_alone, member_of
from .joint_members import JointMembers
from .request import FitRequest
from .train_members import train_jointly

JOINT_STAGES = 2
"""Number of subtasks of a joint training: steps, and exact nets."""


def fit_jointly(request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Train members together, each without a fold of the rows."""
    data = request.data
    with task.subtask("member", MEMBER_STAGES) as stages:
        with stages.subtask("training", JOINT_STAGES) as training:
            joint_nets = cached_training(train_jointly, request.training, request.resolved, training)
        if joint_nets.overdispersion:
            request = request.with_overdispersion(joint_nets.overdispersion)
        if joint_nets.lead is not None:
            return _fit_on_all_rows(joint_nets, joint_nets.lead, request, n_stages, task)
        with stages.subtask("posterior") as stage, single_thread(joint_nets.is_small):
            normal = request.resolved.likelihood.has_dispersion
            joint_fits = (approximate_jointly if normal else approximate_counts_and_classes)(
                joint_nets, request, task.clock
            )
            if normal:
                trained, fit = joint_fits.members[0]
                stage.score = joint_fits.origins[0].held_out_score(fit, trained.mode.hyper, data.scale)
    temperature = tempering(joint_fits.members[0][1].network, request.resolved.temperature)
    members, keys, streamed = [], row_keys(data.X, data.targets), request.stream is not None
    under = replace(request, data=joint_fits.data)
    for place, ((trained, fit), origin) in enumerate(zip(joint_fits.members, joint_fits.origins, strict=True)):
        hyper = replace(trained.mode.hyper, temperature=temperature)
        member = member_of(under, trained, fit, hyper, origin, joint_fits.noise_model)
        unseen = np.unique(keys[joint_fits.held_out[place]])
        kept = None if request.kept is None else request.kept.without(unseen)
        n_bins = joint_fits.n_bins[place]
        members.append(replace(member, unseen=unseen, kept=kept, n_bins=n_bins, is_streamed=streamed))
    return Ensemble.of(members, joint_fits.shares)


def _fit_on_all_rows(joint_nets: JointMembers, lead: Hyper, request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Go on with all rows from exact nets that were trained without a fold, under the noise of their held-out rows.

    ``lead`` are the hyperparameters of a net of all rows.
    """
    options = request.options_for_rows()
    rows = request.data.training_rows(options.dtype, options.device, built_in=True)
    networks = traced(initialised(joint_nets, rows, options, request.seeds[0]), rows)
    model = noise_of_folds(joint_nets, networks, lead, rows, request)
    precision = lead.prior_precision.cpu().numpy()
    starts = tuple(WarmStart(net.theta.cpu().numpy().astype(float), precision, lead.dispersion) for net in networks)
    of_one = of_one_net(request.parameters)
    parameters = {**of_one, "lr": None, "batch_size": None, "n_bins": pieces_of(joint_nets)[0]}
    under = request if model is None else request.under_noise(model)
    return fit_alone(replace(under, parameters=parameters), n_stages, task, starts, model)
