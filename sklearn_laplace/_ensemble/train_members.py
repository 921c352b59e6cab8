"""Joint training of ensemble members.

A repeat is a random assignment of the rows to folds (``_training/recipe.py``). Each member is trained without one fold
of one repeat. Members of the first repeat suit smooth functions; those of the second suit fine detail. For few rows and
normal noise, the members of a third repeat are linear. The members of a repeat are trained in one tensor program
(``_training/batched.py``). Stacking on held-out rows selects the weight of each repeat. A repeat with a weight below a
tenth is omitted. In regression, a repeat with much larger errors than another is also omitted, unless its nets are
trained by exact Gauss–Newton steps. ``approximate_members.py`` and ``approximate_counts_and_classes.py`` compute the
posteriors.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._table.rows import PreparedData
from .._training.batched import seconds_of_step, train_stacked
from .._training.batches import RowNoise, StreamedBatches, held_out_by_hash
from .._training.built_in import noise_net, of_one_net, table_net
from .._training.plan import NOISELESS, FitRequest, grouped, posterior_layout
from .._training.progress import Clock, Steps, Task
from .._training.recipe import (
    CLASS_TRIAL,
    FEW_ROWS,
    FOLDS_OF_FEW,
    FOLDS_OF_MANY,
    MANY_ROWS,
    STRONGEST_PRIOR,
    TRIAL,
    Recipe,
    Schedule,
    for_noise,
    held_out_rows,
    linear,
    of_part,
    recipes_for,
    trial_folds,
)
from .._training.stacked import NegativeLog, Stacked, loss_of
from ..laplace.fit import CHUNK, LaplaceFit, TrainingRows, fit_laplace, some_rows
from ..laplace.likelihoods._base import Likelihood
from ..laplace.network.network import Network
from ..laplace.network.tracing import trace
from ..laplace.selection import HeldOutErrors
from ..laplace.structures import Diag, Full, Kron
from ..laplace.structures._base import Curvature
from ..laplace.torch_state import single_thread
from ..nets import TableMLP
from ..options.resolved import Options, is_auto
from .calibration import FAILURES, learnt_noise
from .conditions import LEAST_EVENTS, leaves_layers_open
from .exact_members import exact_alone, exact_repeat
from .joint_members import (
    LEAST_EXACT,
    JointMembers,
    affords_exact_net,
    average,
    exact_kinds,
    shares_of,
    sharpened,
)
from .noise_model import TrainedNoise
from .target_noise import MOST_SCORED, TargetNoise, overdispersion_of, target_noise

PART_OF_TIME, LEAST_PART = 0.6, 0.2
"""Maximum and minimum share of the remaining time for planned steps. The rest is for passes over the rows
and noise models."""
PASSES = 2.0
"""Number of passes over all rows after the training. The time of a pass is measured on one chunk of rows."""
PASSES_OF_FIT = 16.0
"""Time budgeted per row, relative to the time per row of a training step of the first repeat. Passes over all rows take
about half of it."""
EXACT_WEIGHTS = 512
"""Maximum number of random weights for an exact curvature."""
PILOT_NOISELESS = 2 * NOISELESS
"""Mean squared error in the trial of regularisations, in units of the target variance, below which targets count as
almost free of noise. It exceeds ``NOISELESS`` because the trial has fewer steps."""


def train_jointly(request: FitRequest, task: Task) -> JointMembers:
    """Train all members and return them. The function is pure, so the result can be cached.

    For targets almost free of noise, all nets take exact steps if affordable, because these are more accurate.
    """
    options, data, stream, clock = request.options_for_rows(), request.data, request.stream, task.clock
    loss = loss_of(options.likelihood)
    rows = data.training_rows(options.dtype, options.device, built_in=True)
    n_rows = len(data.X) if stream is None else stream.n_rows
    recipes = recipes_of(request.parameters, data, n_rows)
    is_few = loss.has_noise and stream is None and n_rows <= FEW_ROWS
    if is_few and leaves_layers_open(request.parameters):
        recipes += (linear(recipes[0]),)
    n_members = FOLDS_OF_FEW if is_few else FOLDS_OF_MANY  # of a repeat
    masks = (
        held_out_rows(data.X, data.targets, len(recipes), n_members)
        if stream is None
        else held_out_by_hash(data, len(recipes))  # folds of a stream are sets of hashes
    )
    held_out = torch.from_numpy(masks).to(rows.inputs.device)  # (K, n), True for rows that a member holds out
    repeats: list[tuple[JointMembers, Tensor]] = []
    with task.subtask("epochs") as epochs:
        if clock.max_time is not None:
            timed = partial(_in_time, recipes, rows, data, options, n_members, clock)
            n_repeats, part = request.saved.result("repeats and part of the steps", timed)
            recipes = of_part(recipes[:n_repeats], part)
        progress = partial(Schedule.steps, task=epochs, n_rows=len(data.X), log_volume=data.scale.log_volume)
        of_trial = held_out[: trial_folds(n_rows, n_members, _trial(options.likelihood)[2])]
        modules = modules_of(arguments_of(recipes[0], data, options), rows, request.seeds[0], len(of_trial))
        layout_of(trace(modules[0], rows.inputs), rows, options)  # refuse unsupported posteriors before training
        trial = partial(regularisation, modules, options.likelihood, rows, of_trial, recipes[0].schedule)
        (prior, dropout), error, alpha = request.saved.result(
            "trial", lambda: clock.group.of_first(trial(order_seed(request), progress))
        )
        options = options.with_overdispersion(alpha)
        if loss.has_noise:  # errors of classes and counts are in nats
            kinds = exact_kinds(of_one_net(request.parameters), data.shape(), options.likelihood)
            if error < PILOT_NOISELESS and stream is None and kinds:
                with suppress(*FAILURES), task.subtask("nets with exact steps", None) as stage:
                    return exact_alone(request, kinds, stage)
            if is_auto(request.parameters["hidden_layer_sizes"]):
                recipes = for_noise(recipes, error, n_rows)
        recipes = tuple(replace(recipe, prior=prior, dropout=dropout) for recipe in recipes)
        for first, recipe in zip(range(0, len(held_out), n_members), recipes, strict=False):
            left_out = held_out[first : first + n_members]
            with progress(recipe.schedule, label=f"{n_members} members") as steps:
                repeats.append(trained_repeat(request, options, rows, recipe, left_out, first, steps))
            if clock.is_over():
                break
    by_repeat, outputs = zip(*repeats, strict=True)
    if isinstance(loss, NegativeLog):
        return sharpened(by_repeat, torch.stack(outputs), rows, NegativeLog(options.likelihood), alpha)
    noise, least = average([variances for joint_nets in by_repeat for variances in joint_nets.noise]), 0.0
    of_one = of_one_net(request.parameters)
    if stream is None and not clock.is_over() and affords_exact_net(of_one, data.shape(), options.likelihood):
        with suppress(*FAILURES), task.subtask("nets with exact steps", None) as stage:
            more, of_more = exact_repeat(request, len(recipes) * n_members, noise, stage)
            by_repeat, outputs, least = (more, *by_repeat), (of_more, *outputs), LEAST_EXACT
    if len(by_repeat) == 1:
        return by_repeat[0]
    return JointMembers.of_repeats(by_repeat, shares_of(rows, outputs, noise, least))


def arguments_of(recipe: Recipe, data: PreparedData, options: Options) -> dict[str, Any]:
    shape = {"hidden_layer_sizes": recipe.hidden_layer_sizes, "activation": recipe.activation}
    return table_net(shape, data, options.likelihood, recipe.n_bins)


def order_seed(request: FitRequest) -> int:
    """Seed of the order of the mini-batches."""
    return request.seeds[1] % 2**31


def modules_of(arguments: dict[str, Any], rows: TrainingRows, seed: int, count: int) -> list[TableMLP]:
    """Nets with initial weights from consecutive seeds, starting at ``seed``."""
    return [TableMLP(**arguments, seed=seed + k).to(rows.weights) for k in range(count)]


def _trial(likelihood: Likelihood) -> tuple[tuple[tuple[float, float], ...], int, int]:
    return CLASS_TRIAL if likelihood.over_classes else TRIAL


def regularisation(
    modules: list[TableMLP],
    likelihood: Likelihood,
    rows: TrainingRows,
    held_out: Tensor,
    schedule: Schedule,
    seed: int,
    progress: Callable[..., Steps],
) -> tuple[tuple[float, float], float, tuple[float, ...]]:
    """Return the prior precision and dropout with the smallest held-out error, this error, and the overdispersion.

    Each of the K ``modules`` is trained without its rows of ``held_out`` (K, n) under each candidate. A net that trains
    longer needs a stronger prior, so the best precision is multiplied by the ratio of step counts, up to
    ``STRONGEST_PRIOR``. The overdispersion is (C,) or ().
    """
    loss, n_nets = loss_of(likelihood), len(modules)
    candidates, most_steps, _ = _trial(likelihood)
    priors, dropouts = np.repeat(candidates, n_nets, 0).T.tolist()
    weights, stacked = held_out * rows.weights, Stacked(modules * len(candidates))

    def errors_of(outputs: Tensor) -> list[float]:
        if isinstance(loss, NegativeLog):
            errors = [_held_out_loss(loss, rows, held_out, part) for part in outputs.split(n_nets)]
        else:
            sums = (weights * loss.errors(part, rows.targets) for part in outputs.split(n_nets))
            errors = [float(of_part.sum() / weights.sum()) for of_part in sums]
        return [error if math.isfinite(error) else math.inf for error in errors]

    short = replace(schedule, n_steps=min(schedule.n_steps, most_steps), most_further=0)
    with single_thread(stacked.is_small(schedule)), progress(short, label="trial of regularisations") as steps:
        outputs, _ = train_stacked(
            stacked,
            loss,
            rows,
            (~held_out).double().repeat(len(candidates), 1),
            short,
            seed=seed,
            prior=priors,
            dropout=dropouts,
            noise_of=lambda outputs: None,
            steps=steps,
            score=None if loss.has_noise else lambda outputs: min(errors_of(outputs)),
        )
    errors = errors_of(outputs)
    best = int(np.argmin(errors))
    prior, dropout = candidates[best]
    prior = min(prior * schedule.n_steps / short.n_steps, STRONGEST_PRIOR)
    of_best = outputs[best * n_nets : (best + 1) * n_nets]
    return (prior, dropout), errors[best], overdispersion_of(likelihood, of_best, rows, weights)


def trained_repeat(
    request: FitRequest,
    options: Options,
    rows: TrainingRows,
    recipe: Recipe,
    held_out: Tensor,
    first: int,
    steps: Steps,
) -> tuple[JointMembers, Tensor]:
    """Train the members of a repeat; return them and their outputs (n, C) for held-out rows.

    ``held_out`` (K, n) is True for rows held out from a net; ``first`` is the number of folds in earlier repeats.
    """
    n, seed = len(held_out), order_seed(request)
    arguments, places = arguments_of(recipe, request.data, options), range(first, first + n)

    def train() -> dict[str, Any]:
        """States, outputs (K, n, C) and noise variances after the training."""
        stacked = Stacked(modules_of(arguments, rows, request.seeds[0] + first, n))
        schedule, loss = recipe.schedule, loss_of(options.likelihood)
        streamed = score = None
        if request.stream is not None:
            streamed = StreamedBatches(request.stream, places, schedule.batch_size, seed + first)
        if isinstance(loss, NegativeLog):
            score = partial(_held_out_loss, loss, rows, held_out)
        with single_thread(stacked.is_small(schedule)):
            outputs, noise = train_stacked(
                stacked,
                loss,
                rows,
                (~held_out).double(),
                schedule,
                seed=seed,
                prior=[recipe.prior] * n,
                dropout=[recipe.dropout] * n,
                noise_of=partial(_noise_so_far, request, options, held_out, rows),
                steps=steps,
                streamed=streamed,
                saved=request.saved,
                score=score,
            )
        return {"states": stacked.written(), "outputs": outputs, "noise": None if noise is None else noise.values}

    trained = request.saved.result(f"members from {first}", train)
    noises = () if trained["noise"] is None else (trained["noise"],)
    states, n_steps = tuple(trained["states"]), recipe.schedule.n_steps
    members = JointMembers((arguments,) * n, states, held_out, (1 / n,) * n, noises, n_steps, tuple(places))
    return members, (trained["outputs"] * held_out[:, :, None]).sum(0)


def _held_out_loss(loss: NegativeLog, rows: TrainingRows, held_out: Tensor, outputs: Tensor) -> float:
    """Mean loss of a sample of the rows ``held_out`` (K, n), for outputs (K, n, C) scaled by their best factor."""
    few = some_rows(len(rows), MOST_SCORED).to(outputs.device)
    of_row = (outputs[:, few] * held_out[:, few, None]).sum(0)
    weights = rows.weights[few] * held_out[:, few].any(0)
    return loss.best_factor(of_row[None], rows.targets[few], weights)[1]


def _noise_so_far(
    request: FitRequest, options: Options, held_out: Tensor, rows: TrainingRows, outputs: Tensor
) -> RowNoise | None:
    """Noise variances, up to a factor, as if all held-out errors of ``outputs`` were noise; None for a single level."""
    if not learns_noise(request.data, options):
        return None
    errors = (rows.targets.double() - outputs) * held_out[..., None]
    squares = errors.square().sum(0) / held_out.sum(0)[:, None]
    weights = rows.weights.double()
    low, high = options.likelihood.dispersion_bounds
    dispersion = min(max(float(weights @ squares.mean(1) / weights.sum()), low), high)
    held_out_errors = HeldOutErrors(squares.sqrt(), torch.zeros_like(squares), torch.ones_like(squares), weights)
    trained, levels = learnt_of(request, held_out_errors, rows.inputs, dispersion, options, honest=False, quick=True)
    model = levels if trained is None else trained.model
    if model is None:
        return None
    return RowNoise(model.ratios(rows.inputs.to(weights)), lambda inputs: model.ratios(inputs.to(weights)))


def learns_noise(data: PreparedData, options: Options) -> bool:
    """True if noise is unknown, and may vary with the inputs or between targets."""
    varies = options.varying_noise is not False or data.n_outputs > 1
    return data.noise is None and options.likelihood.has_dispersion and options.sigma_noise.free and varies


def learnt_of(
    request: FitRequest,
    held_out: HeldOutErrors,
    inputs: Tensor,
    dispersion: float,
    options: Options,
    *,
    honest: bool,
    quick: bool,
) -> tuple[TrainedNoise | None, TargetNoise | None]:
    """Return a model of varying noise, and the noise level of each target or None for a common level.

    The model is None if the noise does not vary, or if the training fails and varying noise was not requested.
    """
    levels = target_noise(held_out, dispersion)
    if options.varying_noise is False:
        return None, levels
    seed, of_each = request.seeds[0], () if levels is None else levels.levels
    net = noise_net(request.parameters, request.data, options.likelihood, seed, of_each)
    with suppress(*(() if options.varying_noise else FAILURES)):
        trained = learnt_noise(
            net,
            inputs,
            held_out,
            dispersion,
            options,
            seed,
            honest=honest,
            quick=quick,
            with_own_tails=False,
        )
        return trained, levels
    return None, levels


def _in_time(
    recipes: Sequence[Recipe], rows: TrainingRows, data: PreparedData, options: Options, n_members: int, clock: Clock
) -> list[float]:
    """Number of repeats and fraction of their steps that the time limit allows in addition to passes over the rows.

    Once the steps of the first repeats exceed the time, further repeats are omitted.
    """
    needed, passes, n_repeats, loss = 0.0, 0.0, 0, loss_of(options.likelihood)
    few = rows.taken(torch.arange(min(CHUNK, len(rows)), device=rows.inputs.device))
    for recipe in recipes:
        schedule = recipe.schedule
        arguments = arguments_of(recipe, data, options)
        stacked = Stacked(modules_of(arguments, rows, 0, n_members))
        with single_thread(stacked.is_small(schedule)):
            step = seconds_of_step(stacked, loss, rows, schedule)
            network, begun = trace(stacked.modules[0], few.inputs), clock.elapsed
            fit_of(network, few, options)
        needed += step * schedule.n_steps
        if n_repeats == 0:  # the trial, with other numbers of nets and steps
            candidates, most_steps, least_rows = _trial(options.likelihood)
            ratio = len(candidates) * trial_folds(len(rows), n_members, least_rows) / n_members
            needed += step * ratio * min(schedule.n_steps, most_steps)
        passes += n_members * (clock.elapsed - begun) * len(rows) / len(few)
        n_repeats += 1
        if needed > PART_OF_TIME * clock.left:
            break
    part = min(PART_OF_TIME * clock.left, max(clock.left - PASSES * passes, LEAST_PART * clock.left)) / needed
    clock.was_cut |= part < 1
    return clock.group.of_first([n_repeats, part])


def recipes_of(parameters: Mapping[str, Any], data: PreparedData, n_rows: int) -> tuple[Recipe, ...]:
    """Default recipes for a number of rows, with the user's options in place of the defaults."""
    n_numbers = data.X.shape[1] if data.table is None else len(data.table.numeric)
    changed: dict[str, Any] = {}
    if not is_auto(parameters["hidden_layer_sizes"]):
        changed["hidden_layer_sizes"] = tuple(parameters["hidden_layer_sizes"])
    if not is_auto(parameters["activation"]):
        changed["activation"] = parameters["activation"]
    if not is_auto(parameters["n_bins"]):
        changed["n_bins"] = parameters["n_bins"]
    schedule = {name: parameters[name] for name in ("lr", "batch_size") if parameters[name] is not None}
    if schedule.get("batch_size") == -1:
        schedule["batch_size"] = len(data.X)
    recipes = recipes_for(n_rows, n_numbers)
    return tuple(replace(recipe, schedule=replace(recipe.schedule, **schedule), **changed) for recipe in recipes)


def fit_of(network: Network, rows: TrainingRows, options: Options, *, exact: bool = False) -> LaplaceFit:
    """Laplace fit of a member to rows; if ``exact``, the structure is that of a single-net fit."""
    if exact:
        selected, structure, n_dual, used = posterior_layout(network, rows, options)
    else:
        selected, structure, n_dual, used = layout_of(network, rows, options)
    prior = grouped(selected, network.parameter_names, options)
    chunks = rows.chunks(options.memory.pass_rows(structure, selected, n_dual // len(rows), used))
    structure_options = options.of_structure(structure)
    return fit_laplace(selected, options.likelihood, options.rule, structure, prior, chunks, **structure_options)


def layout_of(network: Network, rows: TrainingRows, options: Options) -> tuple[Network, type[Curvature], int, int]:
    """As :func:`posterior_layout`; "auto" is exact for few weights, else in Kronecker form, else diagonal."""
    if options.structure is not None:
        return posterior_layout(network, rows, options)
    selected = options.subset.of(network, rows.inputs)
    n_columns = options.rule.n_columns(options.likelihood, rows.n_outputs)
    kinds = (Full, Kron, Diag) if selected.n_parameters <= EXACT_WEIGHTS else (Kron, Diag)
    able = [kind for kind in kinds if kind.accepts & options.rule.provides & options.subset.provides]
    fits = (kind for kind in able if options.memory.fits(kind, selected, n_columns * len(rows), n_columns))
    return posterior_layout(network, rows, replace(options, structure=next(fits, None)))


def within_time(request: FitRequest, clock: Clock) -> FitRequest:
    """Request for a random sample of the rows, if the time limit is too short for all.

    Encoding, outputs after each cycle, curvatures and held-out errors each need a pass over all rows. Rows outside the
    sample get weight zero among the unmerged rows, so leave-one-out treats them as new rows.
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
    """Number of rows that the time allows, at least ``MANY_ROWS``, from a few timed steps of the first repeat."""
    data, n_rows = request.data, len(request.data.X)
    if clock.max_time is None or n_rows <= MANY_ROWS:
        return n_rows
    options, few = request.options_for_rows(), data.taken(some_rows(n_rows, CHUNK).numpy())
    rows = few.training_rows(options.dtype, options.device, built_in=True)
    recipe = recipes_of(request.parameters, data, n_rows)[0]
    stacked = Stacked(modules_of(arguments_of(recipe, data, options), rows, 0, FOLDS_OF_MANY))
    with single_thread(stacked.is_small(recipe.schedule)):
        step = seconds_of_step(stacked, loss_of(options.likelihood), rows, recipe.schedule)
    most = max(clock.left / (PASSES_OF_FIT * step) * min(recipe.schedule.batch_size, len(rows)), MANY_ROWS)
    if not (options.likelihood.has_dispersion or options.likelihood.over_classes):
        most = max(most, n_rows * LEAST_EVENTS / data.shape().least_total)
    return clock.group.of_first(min(int(most), n_rows))
