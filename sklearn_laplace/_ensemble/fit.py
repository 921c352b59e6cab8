"""How the members of an ensemble are trained and weighed.

A default regression trains its members together (``train.py``). Where exact steps cost little, nets that take such
steps stand beside them, of one kind (``n_bins``). Held-out rows weigh both. In any other fit the first net of each kind
is trained first. Cross-fitted nets hold out a part of the rows each. Their densities of these rows weigh the kinds by
stacking, and choose a factor of all variances, since a mixture errs less than its members. Without such nets the first
kind is the only one. Further members of a kind continue these nets on all rows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import joblib
import numpy as np

from .._approximation.approximate import approximate
from .._approximation.calibration import HeldOutDensities
from .._approximation.choose import SelectionState, choose, with_scores_of
from .._approximation.diagnosis import diagnose
from .._approximation.noise_model import NoiseModel
from .._approximation.row_densities import RowDensities
from .._data.rows import row_keys
from .._options import members as _members
from .._options.options import Options, is_auto, is_number
from .._runtime.progress import Task
from .._runtime.threads import single_thread
from .._training.built_in import of_one_net
from .._training.cache import cached_training
from .._training.plan import MapResult, WarmStart
from .._training.random_weights import fixed_dispersion
from .._training.train import TRAINING_STAGES, begin, may_begin, train
from ..errors import (
    BoundWarning,
    ClippedWarning,
    JitterWarning,
    MemoryBudgetError,
    ModeWarning,
    NonFiniteError,
    NotPositiveDefiniteError,
)
from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.selection import HeldOutErrors
from .approximate_members import approximate_bag
from .encodings import exact_kinds, kinds_of_nets
from .ensemble import Ensemble
from .member import Member, conditioned
from .noise import fitted_noise
from .request import FitRequest
from .train_members import is_bagged, train_bag
from .weights import of_kinds

OF_MEMBERS = ModeWarning, ClippedWarning, JitterWarning
"""Warnings that concern one net alone."""
FAILURES = NonFiniteError, NotPositiveDefiniteError
"""Errors after which a net is left out, unless it was explicitly requested."""
MEMBER_STAGES = 2
"""Training and posterior: the tasks of a member."""
LEAST_SHARE = 0.1
"""Least weight of a kind of nets that has more than one member."""
LEAST_EXACT = 0.15
"""Least weight of nets that take exact steps beside members that train together."""
WORTH = 1.6
"""Nets of pieces have to err so many times less than those of numbers, since members that train together have pieces
themselves."""
Caught: TypeAlias = "list[warnings.WarningMessage]"


@dataclass(frozen=True)
class FittedMember:
    """A member that was trained alone, with what later ones need.

    Parameters
    ----------
    member : Member
    start : WarmStart
        End state of its training and of the cross-fitted nets.
    densities : RowDensities or None
        Densities of held-out rows, if they were requested and there are such nets.
    held_out : HeldOutErrors or None
        Errors of these rows, if their noise is normal.
    """

    member: Member
    start: WarmStart
    densities: RowDensities | None
    held_out: HeldOutErrors | None


@dataclass(frozen=True)
class Part:
    """Members of one kind, and what tells how much they count.

    Parameters
    ----------
    members : tuple of Member
    weights : ndarray of shape (k,)
        Of each member in the part; of sum 1.
    densities : HeldOutDensities
        Of held-out rows.
    rows : ndarray of int64
        These rows.
    """

    members: tuple[Member, ...]
    weights: np.ndarray
    densities: HeldOutDensities
    rows: np.ndarray


def fit_ensemble(request: FitRequest, n_stages: int, task: Task) -> Ensemble:
    """Train members together, and nets that take exact steps where these cost little; or one kind after the other.

    Parameters
    ----------
    request : FitRequest
    n_stages : int
        Tasks of a member, at most.
    task : Task

    Returns
    -------
    Ensemble
        With uniform weights, or the weights of the kinds.
    """
    options = request.settled()
    of_one = replace(request, parameters=of_one_net(request.parameters))
    if not is_bagged(request.parameters, request.data, options):
        return _fit_kinds(of_one, kinds_of_nets(of_one.parameters, request.data, options.likelihood), n_stages, task)
    # The members that train together use learning rate and batch size; nets with exact steps have neither.
    of_one = replace(of_one, parameters={**of_one.parameters, "lr": None, "batch_size": None})
    together = _fit_bag(request, task)
    kinds = exact_kinds(of_one.parameters, request.data, options.likelihood, beside=together is not None)
    if together is None:
        own = _best_kind(of_one, kinds, task)
        return _fit_kinds(own, (own.parameters["n_bins"],), n_stages, task)
    found = None
    if kinds and not task.clock.is_over():
        with suppress(*FAILURES, MemoryBudgetError), _kept_back() as caught:
            found = _beside(together, of_one, kinds, n_stages, task)
    if found is None:
        return Ensemble.of(together.members, together.weights)
    _issue(caught, of_others=True)
    return found


def _beside(
    together: Part, request: FitRequest, kinds: tuple[int | None, ...], n_stages: int, task: Task
) -> Ensemble | None:
    """Members that train together beside nets of one kind that take exact steps, under the noise of the members.

    The net with exact steps that has seen all rows comes first: its attributes are the estimator's. Held-out rows give
    both their weights. They say nothing of places without rows, where members that see pieces are too sure, and nets of
    numbers are not. So these have at least ``LEAST_EXACT``. None if no held-out rows weigh them.
    """
    noise_model = together.members[0].noise_model
    request = request if noise_model is None else request.under_noise(noise_model)
    own = _best_kind(request, kinds, task)
    with task.subtask("member", n_stages) as stages:
        lead = fit_member(own, stages, noise_model=noise_model, is_compared=True, learns_noise=False)
    if lead.held_out is None:
        return None
    densities = together.densities.of_net(lead.held_out, lead.member.hyper.dispersion, together.rows)
    shares, factor = of_kinds((together.densities, densities), request.data.weights[together.rows])
    share = max(float(shares[1]), LEAST_EXACT)
    exact = [lead.member, *_fit_later(own, lead, task)]
    weights = np.concatenate([np.full(len(exact), share / len(exact)), (1 - share) * together.weights])
    return _mixture([*exact, *together.members], weights, factor, request.resolved)


def _mixture(members: Sequence[Member], weights: np.ndarray, factor: float, options: Options) -> Ensemble:
    """Members of several kinds, with all variances multiplied by a factor."""
    members = [member.conditioned(member.fit, mixed(member.hyper, factor, options), options) for member in members]
    return Ensemble.of(members, weights, factor)


def _best_kind(request: FitRequest, kinds: tuple[int | None, ...], task: Task) -> FitRequest:
    """The request for the kind whose nets err least on held-out rows after steps by gradients."""
    if len(kinds) == 1:
        return replace(request, parameters={**request.parameters, "n_bins": kinds[0]})
    drawn = np.random.RandomState(request.seeds[1]).randint(np.iinfo(np.int32).max, size=(len(kinds), 3)).tolist()
    found = []
    for n_bins, seeds in zip(kinds, drawn, strict=True):
        own = replace(request, parameters={**request.parameters, "n_bins": n_bins}, seeds=seeds)
        with task.subtask("training", TRAINING_STAGES) as stages:
            start = cached_training(begin, own.training, stages)
        found.append((own, start))
    errors = [math.inf if start is None else start.dispersion for _, start in found]
    best = int(np.argmin([error * (1.0 if place == 0 else WORTH) for place, error in enumerate(errors)]))
    own, start = found[best]
    return own if start is None else replace(own, warm_start=start)


def _fit_kinds(request: FitRequest, kinds: tuple[int | None, ...], n_stages: int, task: Task) -> Ensemble:
    """One kind of nets after the other: the first net of each, then the others of those that count."""
    leads = _fit_leads(request, kinds, n_stages, task)
    densities = [lead.densities for lead, _, _ in leads if lead.densities is not None]
    shares, factor = of_kinds(densities, request.data.weights) if len(leads) > 1 else (np.ones(1), 1.0)
    counted = [share > LEAST_SHARE for share in shares.tolist()]
    for place, (_, _, caught) in enumerate(leads):
        if place == 0 or counted[place]:
            _issue(caught, of_others=place > 0, counts=counted[place])
    members: list[Member] = []
    weights: list[float] = []
    for place, (lead, own, _) in enumerate(leads):
        if place == 0 or counted[place]:
            later = _fit_later(own, lead, task) if counted[place] else []
            members += [lead.member, *later]
            weights += [float(shares[place]) / (1 + len(later))] * (1 + len(later))
    if not any(counted[1:]):
        return Ensemble.of(members)
    return _mixture(members, np.array(weights) / sum(weights), factor, request.resolved)


def mixed(hyper: Hyper, factor: float, options: Options) -> Hyper:
    """The hyperparameters with all variances multiplied by a factor, if held-out rows have chosen them."""
    if factor == 1 or not all(options.by_held_out):
        return hyper
    return replace(hyper, prior_precision=hyper.prior_precision / factor, dispersion=hyper.dispersion * factor)


def _fit_leads(
    request: FitRequest, kinds: tuple[int | None, ...], n_stages: int, task: Task
) -> list[tuple[FittedMember, FitRequest, Caught]]:
    """The first net of each kind, with its request and its warnings."""
    drawn = np.random.RandomState(request.seeds[1]).randint(np.iinfo(np.int32).max, size=(len(kinds) - 1, 3)).tolist()
    dispensable = (*FAILURES, MemoryBudgetError) if is_auto(request.parameters["n_bins"]) else ()
    leads: list[tuple[FittedMember, FitRequest, Caught]] = []
    for n_bins, seeds in zip(kinds, (request.seeds, *drawn), strict=True):
        is_first = not leads
        own = replace(request, parameters={**request.parameters, "n_bins": n_bins}, seeds=seeds)
        with (
            task.subtask("member", n_stages) as stages,
            suppress(*() if is_first else dispensable),
            _kept_back() as caught,
        ):
            lead = fit_member(own, stages, is_compared=len(kinds) > 1)
            if is_first or lead.densities is not None:
                leads.append((lead, own, caught))
        if leads[0][0].densities is None or task.clock.is_over():
            break
    return leads


def _fit_later(request: FitRequest, lead: FittedMember, task: Task) -> list[Member]:
    """The members of a kind after its first one, under its prior precisions and its noise.

    The cross-fitted nets continue on all rows. Any further member starts from initial weights of its own. Without
    cross-fitted nets each member has the precisions of its own evidence. A net that cannot be trained is left out,
    unless a number of members was given.
    """
    first, start, noise_model = lead.member, lead.start, lead.member.noise_model
    if request.data.noise is None and noise_model is not None and noise_model.is_trained_under:
        request = request.under_noise(noise_model)
    n_nets = 0 if first.origin.cross is None else len(start.folds)
    n_members = request.parameters["n_members"]
    n_others = 0 if task.clock.is_over() else _members.n_members(n_members, n_nets) - 1
    dispensable = () if is_number(n_members) else FAILURES

    def fitted(place: int, seeds: list[int], own: Task) -> Member | None:
        if own.clock.is_over():
            return None
        begun = start.for_fold(place) if start.folds else None
        asked = replace(request, seeds=seeds, is_candidate=True, is_member=True, warm_start=begun)
        with own, single_thread(n_jobs > 1), suppress(*dispensable):
            return replace(fit_member(asked, own, lead=first.origin, noise_model=noise_model).member, is_later=True)
        return None

    drawn = np.random.RandomState(request.seeds[0]).randint(np.iinfo(np.int32).max, size=(n_others, 3)).tolist()
    n_jobs = min(joblib.effective_n_jobs(request.parameters["n_jobs"]), max(n_others, 1))
    tasks = [task.subtask("member", MEMBER_STAGES) for _ in drawn]  # numbered here, before there are threads
    fits = (joblib.delayed(fitted)(place, *given) for place, given in enumerate(zip(drawn, tasks, strict=True)))
    with _kept_back() as caught:
        found = joblib.Parallel(n_jobs, require="sharedmem")(fits)
    _issue(caught, of_others=True)
    return [other for other in found if other is not None]


def fit_member(
    request: FitRequest,
    task: Task,
    *,
    lead: SelectionState | None = None,
    noise_model: NoiseModel | None = None,
    is_compared: bool = False,
    learns_noise: bool = True,
) -> FittedMember:
    """Train one net and approximate its posterior; if the noise varies, train on under the noise that was found.

    Parameters
    ----------
    request : FitRequest
    task : Task
        With at most ``MEMBER_STAGES`` subtasks, twice as many if the noise may vary.
    lead : SelectionState or None
        That of the first member of the kind, whose choice of hyperparameters is followed.
    noise_model : NoiseModel or None
        One that was found before.
    is_compared : bool
        Whether densities of held-out rows are needed.
    learns_noise : bool
        Whether a model of noise that varies may be found.
    """
    data = request.data
    with task.subtask("training", TRAINING_STAGES) as own:
        if lead is None and may_begin(request, request.resolved):
            request = replace(request, warm_start=cached_training(begin, request.training, own))
        trained = cached_training(train, request.training, own)
    with task.subtask("posterior"), single_thread(trained.is_small):
        options = request.settled()
        fit, origin = approximate(trained, data, options, built_in=request.parameters["net"] is None)
        origin = origin if lead is None else with_scores_of(lead, origin, fit, options)
        left_out = partial(request.left_out, fit, trained.input_dtype)
        hyper = choose(fit, origin, options, fixed_dispersion(options, data.scale), left_out)
        if learns_noise and lead is None and noise_model is None and options.varying_noise is not False:
            noise_model = fitted_noise(request, fit, hyper, origin, options, left_out)
            if noise_model is not None and noise_model.is_trained_under and task.clock.is_over():
                noise_model = None  # there is no time for a training under it
    if noise_model is not None and noise_model.is_trained_under and data.noise is None:
        again = replace(request.under_noise(noise_model), warm_start=trained.warm_start())
        return fit_member(again, task, lead=lead, noise_model=noise_model, is_compared=is_compared)
    with single_thread(trained.is_small):
        member = _member(request, trained, fit, hyper, origin, noise_model)
        densities, held_out = None, None
        if origin.cross is not None and origin.cross.networks:
            if is_compared:
                one = replace(hyper, temperature=1.0)
                held_out = origin.cross.held_out(one) if fit.likelihood.has_dispersion else None
                densities = origin.cross.densities_of_rows(one, held_out)
            scored = origin.cross.scored(hyper, partial(left_out, in_order=False), fit)
            member = replace(member, origin=replace(origin, cross=scored))
        if not request.is_candidate:
            diagnosed(member, options, request.resolved, len(data.X) if options.previous is None else None)
    return FittedMember(member, trained.warm_start(), densities, held_out)


def _fit_bag(request: FitRequest, task: Task) -> Part | None:
    """Train members together, each without a part of the rows; None where other nets suit the rows better."""
    data = request.data
    with task.subtask("member", MEMBER_STAGES) as stages:
        with stages.subtask("training", TRAINING_STAGES) as own:
            bag = cached_training(train_bag, request.training, own)
        if bag is None:
            return None
        with stages.subtask("posterior"), single_thread(bag.is_small):
            found = approximate_bag(bag, request, task.clock)
    members = []
    for place, (trained, fit) in enumerate(found.members):
        origin = found.origin if place == 0 else found.origin_of_others
        member = _member(replace(request, data=found.data), trained, fit, found.hyper, origin, found.noise_model)
        unseen = np.unique(row_keys(data.X, data.targets)[found.held_out[place]])
        member = replace(member, unseen=unseen, n_bins=found.n_bins[place], is_later=place > 0)
        kept = None if request.kept is None else member.without_unseen(request.kept)
        members.append(replace(member, kept=kept))
    return Part(tuple(members), found.shares, found.densities, found.scored)


def _member(
    request: FitRequest,
    trained: MapResult,
    fit: LaplaceFit,
    hyper: Hyper,
    origin: SelectionState,
    noise_model: NoiseModel | None,
) -> Member:
    gradient = trained.mode.fit.objective_gradient(trained.mode.hyper)
    return Member(
        **conditioned(fit, hyper, request.data.scale, request.resolved),
        net=trained.net,
        origin=origin,
        scale=request.data.scale,
        noise_model=noise_model,
        kept=request.kept,
        unseen=None,
        n_bins=request.parameters["n_bins"],
        seed=request.seeds[2],
        input_dtype=trained.input_dtype,
        is_small=trained.is_small,
        gradient_norm=float(gradient.norm()) / max(trained.mode.fit.total_weight, 1.0),
        mode_distance=trained.mode.decrement,
        history=trained.history,
        n_steps=trained.n_steps,
        is_later=False,
    )


def diagnosed(member: Member, settled: Options, options: Options, n_different: int | None = None) -> None:
    """Warn if the posterior of a member should not be trusted.

    Parameters
    ----------
    member : Member
    settled : Options
        Under the units of the rows.
    options : Options
        As the user has set them.
    n_different : int or None
        Number of different rows, if it is known.
    """
    evidence = member.log_evidence + member.fit.total_weight * member.scale.log_volume
    scores, (prior, noise) = member.origin.held_out(member.fit, member.hyper), settled.by_held_out
    held_out = (False, False)
    if scores is not None:
        held_out = prior, prior and noise and not scores.is_capped(member.hyper.dispersion)
    given = member.fit, member.hyper, member.n_effective_parameters, evidence, options
    diagnose(*given, held_out, n_different)


@contextmanager
def _kept_back() -> Iterator[Caught]:
    """Record all warnings, to be issued later."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def _issue(caught: Caught, *, of_others: bool, counts: bool = True) -> None:
    """Issue recorded warnings, except those about a net that does not count.

    For later members, issue one warning per category; the first member has already issued bound warnings. A training
    factorises hundreds of times, so that one jitter warning stands for all.
    """
    issued: set[type[Warning]] = set()
    for one in caught:
        message: Warning | str = one.message
        if issubclass(one.category, OF_MEMBERS):
            if not counts or (one.category in issued and (of_others or issubclass(one.category, JitterWarning))):
                continue
            message = f"another member of the mixture: {message}" if of_others else message
        elif of_others and issubclass(one.category, BoundWarning):
            continue
        issued.add(one.category)
        warnings.warn_explicit(message, one.category, one.filename, one.lineno)
