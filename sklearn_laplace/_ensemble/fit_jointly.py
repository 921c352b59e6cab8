"""Fit of members that train together, each without a fold of the rows, within a time limit; see ``fit.py``.

Under a time limit, a sample of the rows may be all that there is time for. Encoding the columns, outputs after each
cycle, curvatures and held-out errors are passes over all rows. Their cost per row is about ``PASSES`` times that of a
training step. The time limit over this cost is the number of rows of the fit.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from .._table.rows import row_keys
from .._training.batched import seconds_of_step
from .._training.built_in import of_one_net
from .._training.cache import cached_training
from .._training.plan import FitRequest, WarmStart, tempering
from .._training.progress import STAGES, Clock, Task
from .._training.recipe import FOLDS_OF_MANY
from .._training.stacked import Stacked, loss_of
from ..laplace.fit import Hyper, some_rows
from ..laplace.torch_state import single_thread
from .approximate_counts_and_classes import approximate_counts_and_classes
from .approximate_members import approximate_jointly, initialised, noise_of_folds, pieces_of, traced
from .conditions import LEAST_EVENTS
from .ensemble import Ensemble
from .fit_alone import fit_alone
from .joint_members import JointMembers
from .member import member_of
from .train_members import PROBED_ROWS, arguments_of, modules_of, recipes_of, train_jointly

PASSES = 16.0
"""Cost of all passes over a row, in units of its cost in a step of the first repeat: about half of the time."""
FEWEST_ROWS = 2000
"""Number of rows below which none are omitted."""


def within_time(request: FitRequest, clock: Clock) -> FitRequest:
    """Request for a random sample of the rows, if the time limit is not sufficient for all of them.

    The other rows have weight zero among the unmerged rows, so that leave-one-out treats them as new rows.
    """
    n_rows = len(request.data.X)
    most = request.saved.result("rows", partial(_affordable, request, clock))
    if most >= n_rows:
        return request
    clock.was_cut, kept = True, request.kept
    chosen = some_rows(n_rows, most).numpy()
    if kept is not None:
        kept = kept.without(request.data.unshared_keys(np.delete(np.arange(n_rows), chosen)))
    return replace(request, data=request.data.taken(chosen), kept=kept)


def _affordable(request: FitRequest, clock: Clock) -> int:
    """Number of rows that the time allows, from a few timed steps of the first repeat; never below a minimum."""
    data, n_rows = request.data, len(request.data.X)
    if clock.max_time is None or n_rows <= FEWEST_ROWS:
        return n_rows
    options, few = request.options_for_rows(), data.taken(some_rows(n_rows, PROBED_ROWS).numpy())
    rows = few.training_rows(options.dtype, options.device, built_in=True)
    recipe = recipes_of(request.parameters, data, n_rows)[0]
    stacked = Stacked(modules_of(arguments_of(recipe, data, options), rows, 0, FOLDS_OF_MANY))
    with single_thread(stacked.is_small(recipe.schedule)):
        step = seconds_of_step(stacked, loss_of(options.likelihood), rows, recipe.schedule)
    most = max(clock.left / (PASSES * step) * min(recipe.schedule.batch_size, len(rows)), FEWEST_ROWS)
    if not (options.likelihood.has_dispersion or options.likelihood.over_classes):
        most = max(most, n_rows * LEAST_EVENTS / data.shape().least_total)
    return clock.group.of_first(min(int(most), n_rows))


def fit_jointly(request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Train members together, each without a fold of the rows."""
    data = request.data
    with task.subtask("member", STAGES) as stages:
        with stages.subtask("training", STAGES) as training:
            joint_nets = cached_training(train_jointly, request, training)
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
    under = request if model is None else request.under_noise(model.ratios_of)
    return fit_alone(replace(under, parameters=parameters), n_stages, task, starts, model)
