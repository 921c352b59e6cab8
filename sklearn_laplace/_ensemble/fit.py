"""Fit of an ensemble: which members it has, how they are trained, and their weights.

**Joint ensemble.** A default fit of at least 40 rows of numbers, or 100 of classes or counts, trains members together
(``conditions.py``): two repeats of four, each without a fold of the rows (``train_members.py``). Up to 1,000 rows of
numbers have three repeats of eight, the last of linear nets. If the noise is normal and exact Gauss–Newton steps are
cheap, four nets with such steps are a further repeat (``exact_members.py``). They are uncertain in regions without
rows, and have at least a fifth of the weight. If the targets are almost free of noise, there are only these nets: their
held-out rows determine the noise, and then each goes on with all rows.

**Nets that are trained alone**, in all other fits: each on all rows. The evidence of the first one selects the prior
precisions of all. For classes and counts a copy without a fold corrects it (``fold_copy.py``).

If nets that are trained alone are all nearly constant, a linear net replaces them, unless its evidence is smaller
(``linear.py``).
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import partial

import joblib
import numpy as np

from .._approximation.approximate import approximate
from .._approximation.choose import SelectionState, choose
from .._approximation.fixed_weights import approximate_once
from .._approximation.noise_model import NoiseModel
from .._approximation.overdispersion import ROUNDS, best_overdispersion
from .._approximation.target_noise import TargetNoise
from .._data.rows import row_keys
from .._host.given_net import is_list
from .._options.options import is_auto, is_number
from .._options.resolve import resolve
from .._options.training import number_of_members
from .._runtime.progress import Task
from .._runtime.torch_state import single_thread
from .._training.built_in import of_one_net
from .._training.cache import cached_training
from .._training.plan import GivenNet, MapResult, WarmStart
from .._training.random_weights import fixed_dispersion, tempering
from .._training.train import TRAINING_STAGES, train
from ..errors import MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError
from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.selection import HeldOutScores
from .approximate_members import approximate_jointly, initialised, noise_of_folds, pieces_of, traced
from .approximate_others import approximate_others
from .caught import issue, kept_back
from .conditions import check_in_memory, trains_jointly
from .ensemble import Ensemble
from .fold_copy import has_copy, with_copy
from .in_time import within_time
from .joint_members import JointMembers
from .linear import AS_PROBABLE, has_learnt_nothing, linear_request
from .member import Member, hyper_fields
from .noise import fitted_noise
from .request import FitRequest
from .train_members import train_jointly

FAILURES = NonFiniteError, NotPositiveDefiniteError
"""Errors that exclude a net from the ensemble, unless it was explicitly requested."""
MEMBER_STAGES, JOINT_STAGES = 2, 2
"""Number of subtasks of a member: training and posterior. Those of a joint training: steps, and nets with exact steps.
"""
Noise = NoiseModel | TargetNoise | None


def fit_ensemble(request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Fit an ensemble, and a linear net in its place if it has learnt nothing.

    ``n_stages`` is the maximum number of subtasks of a member.
    """
    if is_list(request.parameters["net"]):
        return _fit_given(request, n_stages, task)
    options, shape = request.options_for_rows(), request.data.shape()
    together = trains_jointly(request.parameters, shape, options, is_streamed=request.stream is not None)
    check_in_memory(request, options, is_joint=together)
    if together:
        return _fit_jointly(within_time(request, task.clock), n_stages, task)
    ensemble, linear = _fit_alone(_of_one(request), n_stages, task), None
    if task.clock.is_over() or not has_learnt_nothing(request, ensemble):
        return ensemble
    with suppress(*FAILURES, MemoryBudgetError), kept_back() as caught:
        linear = _fit_alone(linear_request(request), n_stages, task)
    if linear is None or linear.first.log_evidence < ensemble.first.log_evidence - AS_PROBABLE:
        return ensemble
    issue(caught, of_others=False)
    return linear


def _of_one(request: FitRequest) -> FitRequest:
    """Request for nets that are trained alone; "auto" pieces are none."""
    parameters = of_one_net(request.parameters)
    n_bins = None if is_auto(parameters["n_bins"]) else parameters["n_bins"]
    return replace(request, parameters={**parameters, "n_bins": n_bins})


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


def _fit_alone(
    request: FitRequest,
    n_stages: int,
    task: Task,
    starts: tuple[WarmStart, ...] = (),
    noise_model: Noise = None,
) -> Ensemble:
    """Fit nets that are trained alone, under a noise model or that of the first one.

    All have the prior precisions that the evidence of the first one selects. They go on from ``starts``, or else have
    initial weights of their own. A net whose training fails is omitted, unless a number of members was given.
    """
    lead = replace(request, warm_start=starts[0]) if starts else request
    with task.subtask("member", n_stages) as stages:
        request, first, start = _fit_first(lead, stages, noise_model)
    noise_model = first.noise_model
    if request.data.noise is None and noise_model is not None and noise_model.is_trained_under:
        request = request.under_noise(noise_model)
    n_members = request.parameters["n_members"]
    n_others = 0 if task.clock.is_over() else (len(starts) or number_of_members(n_members)) - 1
    dispensable = () if is_number(n_members) else FAILURES

    def fitted(place: int, seeds: list[int], subtask: Task) -> Member | None:
        if subtask.clock.is_over():
            return None
        begun = replace(start, theta=starts[1 + place].theta if starts else None)
        later = replace(request, seeds=seeds, is_member=True, warm_start=begun)
        with subtask, single_thread(n_jobs > 1), suppress(*dispensable):
            scores = first.origin.scores
            member, _ = fit_member(later, subtask, noise_model=noise_model, learns_noise=False, scores=scores)
            return member
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
    return Ensemble.of([first, *(member for member in members if member is not None)])


def _fit_first(request: FitRequest, task: Task, noise_model: Noise) -> tuple[FitRequest, Member, WarmStart]:
    """Fit the first member, for negative binomial counts in alternation with their overdispersion.

    The request that is returned has this overdispersion. Means and overdispersion depend on each other: a large α
    attributes the differences between rows to noise, which favours a strong prior.
    """
    member, trained = fit_member(request, task, noise_model=noise_model, learns_noise=noise_model is None)
    options = request.options_for_rows()
    rounds = ROUNDS if options.likelihood.is_overdispersed and options.previous is None else 0
    for place in range(rounds):
        if place and task.clock.is_over():
            break
        rows = request.data.training_rows(options.dtype, options.device, built_in=request.parameters["net"] is None)
        with single_thread(trained.is_small):
            of_training = member if isinstance(trained, GivenNet) else trained.mode
            alpha = best_overdispersion(of_training.fit, of_training.hyper, rows)
        request = request.with_overdispersion(alpha)
        member, trained = fit_member(request, task, trained=trained if isinstance(trained, GivenNet) else None)
    return request, member, trained.warm_start()


def fit_member(
    request: FitRequest,
    task: Task,
    *,
    noise_model: Noise = None,
    learns_noise: bool = True,
    trained: MapResult | GivenNet | None = None,
    scores: HeldOutScores | None = None,
) -> tuple[Member, MapResult | GivenNet]:
    """Train one net and approximate its posterior; if the noise varies, train again under the learnt noise model.

    ``task`` gets at most ``MEMBER_STAGES`` subtasks, twice as many if the noise may vary. ``noise_model`` is that of an
    earlier fit; ``trained`` replaces the first training, and ``scores`` are held-out scores of the first member. The
    second value is the training.
    """
    data = request.data
    if trained is None:
        with task.subtask("training", TRAINING_STAGES) as stages:
            trained = cached_training(train, request.training, request.resolved, stages)
    request = request.without_held_out(trained)
    with task.subtask("posterior") as stage, single_thread(trained.is_small):
        options = request.options_for_rows()
        if isinstance(trained, GivenNet):
            fit, origin = approximate_once(trained, data, options, request.parameters, request.seeds[2])
        else:
            fit, origin = approximate(trained, data, options, built_in=request.parameters["net"] is None)
            origin = origin if scores is None else replace(origin, scores=scores)
            if has_copy(request, options) and not task.clock.is_over():
                origin = with_copy(request, trained, fit, origin, options, stage)
        left_out = partial(request.left_out, fit, trained.input_dtype)
        hyper = choose(fit, origin, options, fixed_dispersion(options, data.scale), left_out)
        stage.score = origin.held_out_score(fit, hyper, data.scale)
        if learns_noise and noise_model is None:
            # Copies of a row are left out together, so that a weight equals as many copies.
            merged = None if request.kept is None else data
            of_noise = request if isinstance(trained, GivenNet) else replace(request, kept=merged)
            left_out = partial(of_noise.left_out, fit, trained.input_dtype)
            noise_model = fitted_noise(of_noise, fit, hyper, options, left_out)
            if noise_model is not None and noise_model.is_trained_under and task.clock.is_over():
                noise_model = None  # no time is left for a training under it
    if noise_model is not None and noise_model.is_trained_under and data.noise is None:
        again = request.under_noise(noise_model)
        kept = replace(trained, key="") if isinstance(trained, GivenNet) else None  # the weights of a given net stay
        again = again if kept is not None else replace(again, warm_start=trained.warm_start())
        return fit_member(again, task, noise_model=noise_model, learns_noise=False, trained=kept, scores=scores)
    with single_thread(trained.is_small):
        return _member(request, trained, fit, hyper, origin, noise_model), trained


def _fit_jointly(request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Train members together, each without a fold of the rows."""
    data = request.data
    with task.subtask("member", MEMBER_STAGES) as stages:
        with stages.subtask("training", JOINT_STAGES) as training:
            joint_nets = cached_training(train_jointly, request.training, request.resolved, training)
        if joint_nets.overdispersion:
            request = request.with_overdispersion(joint_nets.overdispersion)
        if joint_nets.lead is not None:
            return _fit_further(joint_nets, joint_nets.lead, request, n_stages, task)
        with stages.subtask("posterior") as stage, single_thread(joint_nets.is_small):
            normal = request.resolved.likelihood.has_dispersion
            joint_fits = (approximate_jointly if normal else approximate_others)(joint_nets, request, task.clock)
            if normal:
                trained, fit = joint_fits.members[0]
                stage.score = joint_fits.origins[0].held_out_score(fit, trained.mode.hyper, data.scale)
    temperature = tempering(joint_fits.members[0][1].network, request.resolved.temperature)
    members, keys, streamed = [], row_keys(data.X, data.targets), request.stream is not None
    under = replace(request, data=joint_fits.data)
    for place, ((trained, fit), origin) in enumerate(zip(joint_fits.members, joint_fits.origins, strict=True)):
        hyper = replace(trained.mode.hyper, temperature=temperature)
        member = _member(under, trained, fit, hyper, origin, joint_fits.noise_model)
        unseen = np.unique(keys[joint_fits.held_out[place]])
        kept = None if request.kept is None else request.kept.without(unseen)
        n_bins = joint_fits.n_bins[place]
        members.append(replace(member, unseen=unseen, kept=kept, n_bins=n_bins, is_streamed=streamed))
    return Ensemble.of(members, joint_fits.shares)


def _fit_further(joint_nets: JointMembers, lead: Hyper, request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Go on with all rows from nets that were trained without a fold, under the noise of their held-out rows.

    ``lead`` are the hyperparameters of the training.
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
    return _fit_alone(replace(under, parameters=parameters), n_stages, task, starts, model)


def _member(
    request: FitRequest,
    trained: MapResult | GivenNet,
    fit: LaplaceFit,
    hyper: Hyper,
    origin: SelectionState,
    noise_model: Noise,
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
