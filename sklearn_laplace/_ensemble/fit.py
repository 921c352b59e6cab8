"""Fit of an ensemble: which members it has, how they are trained, and their weights.

**Joint ensemble.** A default fit of at least 40 rows of numbers, or 100 of classes or counts, trains members together
(``conditions.py``): two repeats of four, each without a fold of the rows (``train_members.py``). Up to 1,000 rows of
numbers have three repeats of eight, the last of linear nets. If the noise is normal and exact Gauss–Newton steps are
cheap, one net with such steps is added. It is trained on all rows, and is uncertain in regions without rows. Held-out
rows, by cross-fitted nets, determine its weight, which is at least ``LEAST_EXACT``. If the targets are almost free of
noise, nets with exact steps replace the members.

**Nets with exact steps**, in all other fits. A kind of nets is an encoding (``n_bins``). The first net of a kind is
trained on all rows, and cross-fitted nets each without one fold. The other members of the kind continue the training of
the cross-fitted nets, on all rows. Several kinds are weighted by stacking the densities of their held-out rows. These
also select a factor of all variances, because a mixture is more accurate than its members. Without cross-fitted nets
only the first kind is used.

In either case, a linear net replaces nets that are all nearly constant, unless its evidence is smaller (``linear.py``).
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import partial

import joblib
import numpy as np
import torch

from .._approximation.approximate import approximate
from .._approximation.choose import SelectionState, choose, with_scores_of
from .._approximation.fixed_weights import approximate_once
from .._approximation.noise_model import NoiseModel
from .._approximation.target_noise import TargetNoise
from .._data.rows import row_keys
from .._host.given_net import is_list
from .._options.options import is_number
from .._options.resolve import resolve
from .._options.training import number_of_members
from .._runtime.progress import Task
from .._runtime.torch_state import single_thread
from .._training.built_in import of_one_net
from .._training.cache import cached_training
from .._training.plan import GivenNet, MapResult
from .._training.random_weights import fixed_dispersion, tempering
from .._training.train import TRAINING_STAGES, begin, may_begin, train
from ..errors import MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError
from ..laplace.fit import Hyper, LaplaceFit
from .approximate_members import approximate_jointly
from .approximate_others import approximate_others
from .caught import Caught, issue, kept_back
from .conditions import check_in_memory, trains_jointly
from .encodings import affords_exact_net, exact_kinds, kinds_of_nets
from .ensemble import Ensemble, mixture_of_kinds
from .in_time import within_time
from .linear import AS_PROBABLE, has_learnt_nothing, linear_request
from .member import Member, hyper_fields
from .noise import fitted_noise
from .overdispersion import with_overdispersion
from .parts import LEAST_SHARE, FittedMember, JointPart
from .request import FitRequest
from .train_members import train_jointly
from .weights import of_kinds

FAILURES = NonFiniteError, NotPositiveDefiniteError
"""Errors that exclude a net from the ensemble, unless it was explicitly requested."""
MEMBER_STAGES = 2
"""Number of subtasks of a member: training and posterior."""
WORTH = 1.6
"""Nets with pieces replace a joint ensemble if the squared error of nets with numbers is this many times larger."""


def fit_ensemble(request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Fit an ensemble, and a linear net in its place if it has learnt nothing.

    ``n_stages`` is the maximum number of subtasks of a member.
    """
    if is_list(request.parameters["net"]):
        return _fit_given(request, n_stages, task)
    if request.resolved.likelihood.is_overdispersed:
        request = with_overdispersion(request, task)
    ensemble, linear = _fit_nets(request, n_stages, task), None
    if task.clock.is_over() or not has_learnt_nothing(request, ensemble):
        return ensemble
    with suppress(*FAILURES, MemoryBudgetError), kept_back() as caught:
        linear = _fit_kinds(linear_request(request), (None,), n_stages, task)
    if linear is None or linear.first.log_evidence < ensemble.first.log_evidence - AS_PROBABLE:
        return ensemble
    issue(caught, of_others=False)
    return linear


def _fit_nets(request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Fit a joint ensemble if the request meets its conditions, otherwise one kind of nets after the other."""
    options, shape = request.options_for_rows(), request.data.shape()
    of_one = replace(request, parameters=of_one_net(request.parameters))
    together = trains_jointly(request.parameters, shape, options, is_streamed=request.stream is not None)
    check_in_memory(request, options, is_joint=together)
    if not together:
        return _fit_kinds(of_one, kinds_of_nets(of_one.parameters), n_stages, task)
    # Learning rate and batch size apply to the members that train together, not to nets with exact steps.
    request = within_time(request, task.clock)
    parameters, shape = {**of_one.parameters, "lr": None, "batch_size": None}, request.data.shape()
    of_one = replace(request, parameters=parameters)
    part, ensemble = _fit_jointly(request, task), None
    if part is None:
        best = _best_kind(of_one, exact_kinds(parameters, shape, options.likelihood), task)
        return _fit_kinds(best, (best.parameters["n_bins"],), n_stages, task)
    adds_exact_net = request.stream is None and affords_exact_net(parameters, shape, options.likelihood)
    if adds_exact_net and not task.clock.is_over():
        with suppress(*FAILURES, MemoryBudgetError), kept_back() as caught:
            ensemble = _with_exact_net(part, of_one, n_stages, task)
    if ensemble is None:
        return mixture_of_kinds(request, [part.members], part.weights)
    issue(caught, of_others=True)
    return ensemble


def _fit_given(request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Approximate the posterior of each of the user's trained nets, as if it was the only one."""
    members: list[Member] = []
    for place, net in enumerate(request.parameters["net"]):
        parameters = {**request.parameters, "net": net, "n_members": 1}
        of_one = replace(request, parameters=parameters, resolved=resolve(request.kind, parameters))
        try:
            members += fit_ensemble(of_one, n_stages, task).members
        except ValueError as error:
            error.args = (f"net[{place}]: {error.args[0]}", *error.args[1:])
            raise
    return Ensemble.of(members)


def _with_exact_net(part: JointPart, request: FitRequest, n_stages: int, task: Task) -> Ensemble | None:
    """Ensemble of one net with exact steps, under the noise model of the members, and of these members.

    None if there are no held-out rows that determine the weight of the net.
    """
    noise_model = part.members[0].noise_model
    of_members = request if noise_model is None else request.under_noise(noise_model)
    n_bins = kinds_of_nets(request.parameters)[0]
    of_members = replace(of_members, parameters={**request.parameters, "n_bins": n_bins})
    with task.subtask("member", n_stages) as stages:
        exact = fit_member(of_members, stages, noise_model=noise_model, learns_noise=False)
    if (weighed := part.weighed_with(exact, request.data.weights)) is None:
        return None
    weights, factor = weighed
    return mixture_of_kinds(request, [[exact.member], part.members], weights, factor)


def _best_kind(request: FitRequest, kinds: tuple[int | None, ...], task: Task) -> FitRequest:
    """Request for the kind with the smallest held-out error after gradient training, which is its warm start."""
    if len(kinds) == 1:
        return replace(request, parameters={**request.parameters, "n_bins": kinds[0]})
    drawn = np.random.RandomState(request.seeds[1]).randint(np.iinfo(np.int32).max, size=(len(kinds), 3)).tolist()
    candidates = []
    for n_bins, seeds in zip(kinds, drawn, strict=True):
        candidate = replace(request, parameters={**request.parameters, "n_bins": n_bins}, seeds=seeds)
        with task.subtask("training", TRAINING_STAGES) as stages:
            start = cached_training(begin, candidate.training, candidate.resolved, stages)
        candidates.append((candidate, start))
    errors = [math.inf if start is None else start.dispersion for _, start in candidates]
    best = int(np.argmin([error * (1.0 if place == 0 else WORTH) for place, error in enumerate(errors)]))
    chosen, start = candidates[best]
    return chosen if start is None else replace(chosen, warm_start=start)


def _fit_kinds(request: FitRequest, kinds: tuple[int | None, ...], n_stages: int, task: Task) -> Ensemble:
    """Fit the first net of each kind, then the other members of kinds with more than ``LEAST_SHARE`` of the weight."""
    leads = _fit_leads(request, kinds, n_stages, task)
    densities = [lead.densities for lead, _, _ in leads if lead.densities is not None]
    row_weights = leads[0][0].member.fit.likelihood.score_weights(torch.from_numpy(request.data.weights)).numpy()
    shares, factor = of_kinds(densities, row_weights) if len(leads) > 1 else (np.ones(1), 1.0)
    counted = [share > LEAST_SHARE for share in shares.tolist()]
    for place, (_, _, caught) in enumerate(leads):
        if place == 0 or counted[place]:
            issue(caught, of_others=place > 0, counts=counted[place])
    members: list[list[Member]] = []
    weights: list[float] = []
    for place, (lead, lead_request, _) in enumerate(leads):
        if place == 0 or counted[place]:
            later = _fit_later(lead_request, lead, task) if counted[place] else []
            members.append([lead.member, *later])
            weights += [float(shares[place]) / (1 + len(later))] * (1 + len(later))
    if not any(counted[1:]):
        return mixture_of_kinds(request, members)
    return mixture_of_kinds(request, members, np.array(weights) / sum(weights), factor)


def _fit_leads(
    request: FitRequest, kinds: tuple[int | None, ...], n_stages: int, task: Task
) -> list[tuple[FittedMember, FitRequest, Caught]]:
    """First net of each kind, with its request and its recorded warnings."""
    drawn = np.random.RandomState(request.seeds[1]).randint(np.iinfo(np.int32).max, size=(len(kinds) - 1, 3)).tolist()
    leads: list[tuple[FittedMember, FitRequest, Caught]] = []
    for n_bins, seeds in zip(kinds, (request.seeds, *drawn), strict=True):
        is_first = not leads
        lead_request = replace(request, parameters={**request.parameters, "n_bins": n_bins}, seeds=seeds)
        with task.subtask("member", n_stages) as stages, kept_back() as caught:
            lead = fit_member(lead_request, stages, is_compared=len(kinds) > 1)
            if is_first or lead.densities is not None:
                leads.append((lead, lead_request, caught))
        if leads[0][0].densities is None or task.clock.is_over():
            break
    return leads


def _fit_later(request: FitRequest, lead: FittedMember, task: Task) -> list[Member]:
    """Members of a kind after its first, with the prior precisions and the noise of the first.

    Cross-fitted nets are trained on with all rows, further members from new initial weights. Without cross-fitted nets,
    the evidence of each member selects its prior precisions. A net whose training fails is omitted, unless a number of
    members was given.
    """
    first, start, noise_model = lead.member, lead.start, lead.member.noise_model
    if request.data.noise is None and noise_model is not None and noise_model.is_trained_under:
        request = request.under_noise(noise_model)
    n_nets = 0 if first.origin.cross is None else len(start.folds)
    n_members = request.parameters["n_members"]
    n_others = 0 if task.clock.is_over() else number_of_members(n_members, n_nets) - 1
    dispensable = () if is_number(n_members) else FAILURES

    def fitted(place: int, seeds: list[int], subtask: Task) -> Member | None:
        if subtask.clock.is_over():
            return None
        begun = start.for_fold(place) if start.folds else None
        later = replace(request, seeds=seeds, is_candidate=True, is_member=True, warm_start=begun)
        with subtask, single_thread(n_jobs > 1), suppress(*dispensable):
            return fit_member(later, subtask, lead=first.origin, noise_model=noise_model).member
        return None

    drawn = np.random.RandomState(request.seeds[0]).randint(np.iinfo(np.int32).max, size=(n_others, 3)).tolist()
    n_jobs = min(joblib.effective_n_jobs(request.parameters["n_jobs"]), max(n_others, 1))
    places = [(place + 2, n_others + 1) for place in range(n_others)]
    # Numbered before the threads start.
    tasks = [task.subtask("member", MEMBER_STAGES, place=place, n_jobs=n_jobs) for place in places]
    fits = (joblib.delayed(fitted)(place, *pair) for place, pair in enumerate(zip(drawn, tasks, strict=True)))
    with kept_back() as caught:
        members = joblib.Parallel(n_jobs, require="sharedmem")(fits)
    issue(caught, of_others=True)
    return [member for member in members if member is not None]


def fit_member(
    request: FitRequest,
    task: Task,
    *,
    lead: SelectionState | None = None,
    noise_model: NoiseModel | TargetNoise | None = None,
    is_compared: bool = False,
    learns_noise: bool = True,
    trained: MapResult | GivenNet | None = None,
) -> FittedMember:
    """Train one net and approximate its posterior; if the noise varies, train again under the learnt noise model.

    ``task`` gets at most ``MEMBER_STAGES`` subtasks, twice as many if the noise may vary. ``lead`` is the state of the
    first member of the kind, ``noise_model`` that of an earlier fit; ``trained`` replaces the first training. If
    ``is_compared``, densities of held-out rows are computed.
    """
    data = request.data
    if trained is None:
        with task.subtask("training", TRAINING_STAGES) as stages:
            if lead is None and may_begin(request, request.resolved):
                request = replace(
                    request, warm_start=cached_training(begin, request.training, request.resolved, stages)
                )
            trained = cached_training(train, request.training, request.resolved, stages)
    request = request.without_held_out(trained)
    with task.subtask("posterior") as stage, single_thread(trained.is_small):
        options = request.options_for_rows()
        if isinstance(trained, GivenNet):
            fit, origin = approximate_once(trained, data, options, request.parameters, request.seeds[2])
        else:
            fit, origin = approximate(trained, data, options, built_in=request.parameters["net"] is None)
            origin = origin if lead is None else with_scores_of(lead, origin, fit, options)
        left_out = partial(request.left_out, fit, trained.input_dtype)
        hyper = choose(fit, origin, options, fixed_dispersion(options, data.scale), left_out)
        stage.score = origin.held_out_score(fit, hyper, data.scale) if lead is None else None
        if learns_noise and lead is None and noise_model is None:
            noise_model = fitted_noise(request, fit, hyper, origin, options, left_out)
            if noise_model is not None and noise_model.is_trained_under and task.clock.is_over():
                noise_model = None  # no time is left for a training under it
    if noise_model is not None and noise_model.is_trained_under and data.noise is None:
        again = request.under_noise(noise_model)
        kept = replace(trained, key="") if isinstance(trained, GivenNet) else None  # the weights of a given net stay
        again = again if kept is not None else replace(again, warm_start=trained.warm_start())
        return fit_member(again, task, lead=lead, noise_model=noise_model, is_compared=is_compared, trained=kept)
    with single_thread(trained.is_small):
        member = _member(request, trained, fit, hyper, origin, noise_model)
        densities, held_out = None, None
        if (cross := origin.cross) is not None and cross.parts:
            untempered = replace(hyper, temperature=1.0)
            if fit.likelihood.has_dispersion:
                held_out = cross.held_out(untempered)
            densities = cross.densities_of_rows(untempered, held_out) if is_compared else None
            member = replace(member, origin=replace(origin, cross=cross.scored()))
    return FittedMember(member, trained.warm_start(), densities, held_out)


def _fit_jointly(request: FitRequest, task: Task) -> JointPart | None:
    """Train members together, each without a fold of the rows; None if nets with exact steps suit the data better."""
    data = request.data
    with task.subtask("member", MEMBER_STAGES) as stages:
        with stages.subtask("training", TRAINING_STAGES) as training:
            joint_nets = cached_training(train_jointly, request.training, request.resolved, training)
        if joint_nets is None:
            return None
        with stages.subtask("posterior") as stage, single_thread(joint_nets.is_small):
            normal = request.resolved.likelihood.has_dispersion
            joint_fits = (approximate_jointly if normal else approximate_others)(joint_nets, request, task.clock)
            if normal:
                stage.score = joint_fits.origin.held_out_score(joint_fits.members[0][1], joint_fits.hyper, data.scale)
    temperature = tempering(joint_fits.members[0][1].network, request.resolved.temperature)
    members, hyper, keys = [], replace(joint_fits.hyper, temperature=temperature), row_keys(data.X, data.targets)
    for place, (trained, fit) in enumerate(joint_fits.members):
        member = _member(
            replace(request, data=joint_fits.data), trained, fit, hyper, joint_fits.origin, joint_fits.noise_model
        )
        unseen = np.unique(keys[joint_fits.held_out[place]])
        kept = None if request.kept is None else request.kept.without(unseen)
        n_bins, streamed = joint_fits.n_bins[place], request.stream is not None
        members.append(replace(member, unseen=unseen, kept=kept, n_bins=n_bins, is_streamed=streamed))
    return JointPart(tuple(members), joint_fits.shares, joint_fits.densities, joint_fits.scored)


def _member(
    request: FitRequest,
    trained: MapResult | GivenNet,
    fit: LaplaceFit,
    hyper: Hyper,
    origin: SelectionState,
    noise_model: NoiseModel | TargetNoise | None,
) -> Member:
    unseen = None
    fields = hyper_fields(fit, hyper, request.data.scale, request.resolved)
    if isinstance(trained, GivenNet):  # distance of the random weights from the mode under the selected prior
        gradient = fit.objective_gradient(hyper)
        distance = math.sqrt(max(float(gradient @ fields["posterior"].solve(gradient)), 0.0))
        unseen = request.data.unshared_keys(trained.held_out.cpu().numpy()) if len(trained.held_out) else None
    else:
        gradient = trained.mode.fit.objective_gradient(trained.mode.hyper)
        distance = trained.mode.decrement
    return Member(
        **fields,
        net=trained.net,
        origin=origin,
        scale=request.data.scale,
        noise_model=noise_model,
        kept=request.kept,
        unseen=unseen,
        n_bins=request.parameters["n_bins"],
        seed=request.seeds[2],
        input_dtype=trained.input_dtype,
        is_small=trained.is_small,
        gradient_norm=float(gradient.norm()) / max(fit.total_weight, 1.0),
        mode_distance=distance,
        history=trained.history,
        n_steps=trained.n_steps,
        is_given=isinstance(trained, GivenNet),
    )
