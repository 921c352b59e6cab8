"""Fit of nets that are trained independently, each on all rows; see ``fit.py``.

**Held-out rows.** For separable classes, the evidence prefers a prior so weak that all probabilities are nearly
uniform. Therefore a copy of a net for classes or counts is trained without one fold of the rows, under the net's prior
precision. The rows of this fold select a factor of the precision. Regression nets need no copy, because their noise
level compensates for a weak prior.

Warnings about members after the first are recorded, and issued after all of these have been fitted.
"""

import warnings
from contextlib import suppress
from dataclasses import replace
from functools import partial

import joblib
import numpy as np
import torch

from .._training.cache import cached_training
from .._training.plan import FitRequest, GivenNet, MapResult, SelectionState, WarmStart, fixed_dispersion
from .._training.progress import STAGES, Task
from .._training.recipe import FOLDS_OF_MANY, LEAST_ROWS, held_out_rows
from .._training.train import train
from ..errors import BoundWarning, ClippedWarning, JitterWarning, NonFiniteError, NotPositiveDefiniteError
from ..laplace.fit import CHUNK, LaplaceFit
from ..laplace.selection import HeldOutScores, held_out_scores
from ..laplace.torch_state import single_thread
from ..options.prior import check_left_out
from ..options.resolved import Options, is_number
from ..options.training import number_of_members
from .approximate import approximate
from .choose import LeftOut, _start, choose, density_for, left_out_of
from .ensemble import Ensemble
from .fixed_weights import approximate_once
from .member import Member, member_of
from .noise import fitted_noise
from .target_noise import ROUNDS, Noise, best_overdispersion

OF_MEMBERS = ClippedWarning, JitterWarning
"""Warnings that concern a single net."""


def issue(caught: list[warnings.WarningMessage]) -> None:
    """Issue the recorded warnings of later members: only one of each of ``OF_MEMBERS``, and none about bounds."""
    issued: set[type[Warning]] = set()
    for record in caught:
        message: Warning | str = record.message
        if issubclass(record.category, OF_MEMBERS):
            if record.category in issued:
                continue
            message = f"another member of the ensemble: {message}"
        elif issubclass(record.category, BoundWarning):
            continue
        issued.add(record.category)
        warnings.warn_explicit(message, record.category, record.filename, record.lineno)


def has_copy(request: FitRequest, options: Options) -> bool:
    """True if a copy of the net is needed to select its prior on held-out rows (classes and counts only)."""
    parameters, data = request.parameters, request.data
    is_deep = parameters["net"] is None and len(parameters["hidden_layer_sizes"]) > 0
    is_open = options.by_held_out[0] and options.map_precision is None and options.previous is None
    is_first = not request.is_member and parameters["max_epochs"] is None
    enough = len(data.X) >= LEAST_ROWS and not options.likelihood.has_dispersion
    return is_deep and is_open and is_first and enough


def with_copy(
    request: FitRequest, trained: MapResult, fit: LaplaceFit, origin: SelectionState, options: Options, task: Task
) -> SelectionState:
    """Train a copy of the net without one fold; return ``origin`` with the scores of this fold."""
    data = request.data
    mask = held_out_rows(data.X, data.targets, 1, FOLDS_OF_MANY)[0]
    seen = replace(request, data=data.taken(np.flatnonzero(~mask)), is_member=True)
    seen = replace(seen, warm_start=replace(trained.warm_start(), theta=None))
    with task.subtask("copy", STAGES) as stages:
        copy = cached_training(train, seen, stages)
    assert isinstance(copy, MapResult)
    of_copy, _ = approximate(copy, seen.data, options, built_in=True)
    rows = data.taken(np.flatnonzero(mask)).training_rows(options.dtype, options.device, built_in=True)
    hyper = replace(_start(origin, fit, options), temperature=1.0)
    scores = held_out_scores([(of_copy, rows.chunks(CHUNK))], hyper, density_for(fit.likelihood))
    return replace(origin, scores=scores)


FAILURES = NonFiniteError, NotPositiveDefiniteError
"""Exceptions after which a further net is left out of the ensemble, unless the user has set the number of members."""


def fit_alone(
    request: FitRequest,
    n_stages: int,
    task: Task,
    starts: tuple[WarmStart, ...] = (),
    noise_model: Noise = None,
) -> Ensemble:
    """Return an ensemble of independently fitted nets. ``noise_model`` is by default that of the first net.

    All nets are trained under the first net's prior precisions. ``starts`` give the number and initial weights of nets.
    """
    lead = replace(request, warm_start=starts[0]) if starts else request
    with task.subtask("member", n_stages) as stages:
        request, first, start = _fit_first(lead, stages, noise_model)
    noise_model = first.noise_model
    if request.data.noise is None and noise_model is not None and noise_model.is_trained_under:
        request = request.under_noise(noise_model.ratios_of)
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
    # The tasks are numbered before the threads start.
    tasks = [task.subtask("member", STAGES, place=(k + 2, n_others + 1), n_jobs=n_jobs) for k in range(n_others)]
    fits = (joblib.delayed(fitted)(place, *pair) for place, pair in enumerate(zip(drawn, tasks, strict=True)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        members = joblib.Parallel(n_jobs, require="sharedmem")(fits)
    issue(caught)
    return Ensemble.of([first, *filter(None, members)])


def _fit_first(request: FitRequest, task: Task, noise_model: Noise) -> tuple[FitRequest, Member, WarmStart]:
    """Fit the first member; return the request (with α), the member and its warm start.

    For negative binomial counts, training alternates with the selection of the overdispersion α. A large α attributes
    differences between rows to noise, which favours a strong prior.
    """
    trained, options = _trained(request, task), request.options_for_rows()
    rounds = ROUNDS if options.likelihood.is_overdispersed and options.previous is None else 0
    for _ in range(rounds):
        if task.clock.is_over():
            break
        rows = request.data.training_rows(options.dtype, options.device, built_in=request.parameters["net"] is None)
        # A user's net is not trained again; its posterior is used.
        mode = fit_member(request, task, trained=trained)[0] if isinstance(trained, GivenNet) else trained.mode
        with single_thread(trained.is_small):
            request = request.with_overdispersion(best_overdispersion(mode.fit, mode.hyper, rows))
        trained = trained if isinstance(trained, GivenNet) else _trained(request, task)
    learns = noise_model is None
    member, trained = fit_member(request, task, noise_model=noise_model, learns_noise=learns, trained=trained)
    return request, member, trained.warm_start()


def _trained(request: FitRequest, task: Task) -> MapResult | GivenNet:
    with task.subtask("training", STAGES) as stages:
        return cached_training(train, request, stages)


def _left_out(
    request: FitRequest, fit: LaplaceFit, input_dtype: torch.dtype, needed_by: str = "leave-one-out"
) -> LeftOut:
    """Stored rows for leave-one-out; an error names ``needed_by``, the option or method that needs them."""
    check_left_out(needed_by, request.parameters)
    return left_out_of(request.kept, input_dtype, request.seeds[2], fit, request.resolved, needed_by, in_order=True)


def fit_member(
    request: FitRequest,
    task: Task,
    *,
    noise_model: Noise = None,
    learns_noise: bool = True,
    trained: MapResult | GivenNet | None = None,
    scores: HeldOutScores | None = None,
) -> tuple[Member, MapResult | GivenNet]:
    """Train a net and approximate its posterior; return the member and the training result.

    Some noise models need a second training run. ``task`` gets at most ``STAGES`` subtasks, or twice as many if the
    noise may vary. ``noise_model`` is that of an earlier fit. ``trained`` replaces the first training run. ``scores``
    are held-out scores of the first member.
    """
    data = request.data
    trained = _trained(request, task) if trained is None else trained
    request = request.without_held_out(trained)
    with task.subtask("posterior", 1) as stage, single_thread(trained.is_small):
        options = request.options_for_rows()
        if isinstance(trained, GivenNet):
            fit, origin = approximate_once(trained, data, options, request.parameters, request.seeds[2])
        else:
            fit, origin = approximate(trained, data, options, built_in=request.parameters["net"] is None)
            origin = origin if scores is None else replace(origin, scores=scores)
            if has_copy(request, options) and not task.clock.is_over():
                origin = with_copy(request, trained, fit, origin, options, stage)
        left_out = partial(_left_out, request, fit, trained.input_dtype)
        hyper = choose(fit, origin, options, fixed_dispersion(options, data.scale), left_out)
        stage.score = origin.held_out_score(fit, hyper, data.scale)
        if learns_noise and noise_model is None:
            # Copies of a row are left out together: a weight of k equals k copies.
            merged = None if request.kept is None else data
            of_noise = request if isinstance(trained, GivenNet) else replace(request, kept=merged)
            left_out = partial(_left_out, of_noise, fit, trained.input_dtype)
            noise_model = fitted_noise(of_noise, fit, hyper, options, left_out)
            if noise_model is not None and noise_model.is_trained_under and task.clock.is_over():
                noise_model = None  # no time is left for training under this model
    if noise_model is not None and noise_model.is_trained_under and data.noise is None:
        again = request.under_noise(noise_model.ratios_of)
        kept = replace(trained, key="") if isinstance(trained, GivenNet) else None  # a user's net keeps its weights
        again = again if kept is not None else replace(again, warm_start=trained.warm_start())
        return fit_member(again, task, noise_model=noise_model, learns_noise=False, trained=kept, scores=scores)
    with single_thread(trained.is_small):
        return member_of(request, trained, fit, hyper, origin, noise_model), trained
