"""Members that train together: when a fit has such members, and how they are trained.

Eight nets train as one or two tensor programs (``_training/batched.py``), each without a quarter of the rows
(``_training/deals.py``). The four members of the first deal suit smooth functions, those of the second functions with
much detail (``_training/recipe.py``). Each deal has the share with which the mean of both errs least on held-out rows.
A deal of almost no share, or with much larger errors, is left out. ``approximate.py`` makes the posteriors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from .._approximation.held_out import LEAST_LEVEL
from .._approximation.learnt_noise import learnt_noise
from .._approximation.noise_model import MANY_STEPS, TrainedNoise
from .._data.rows import PreparedData
from .._host.rows import TrainingRows
from .._options.options import Options, is_auto, is_number
from .._runtime.budget import SINGLE_THREAD_PASS, SMALL_ROWS
from .._runtime.progress import Clock, Task
from .._runtime.threads import single_thread
from .._training.batched import Stacked, mean_squares, seconds_of_step, train_members
from .._training.built_in import of_one_net, table_net
from .._training.deals import held_out_rows
from .._training.fit_map import ROWS_FOR_MEMBERS
from .._training.plan import NOISELESS
from .._training.random_weights import grouped, posterior_layout, tensors_of
from .._training.recipe import PILOT_STEPS, PRIORS, Recipe, recipes_for
from .._training.request import TrainingRequest
from .._training.schedule import Schedule
from ..errors import MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError
from ..laplace.fit import LaplaceFit, fit_laplace
from ..laplace.network.network import Network
from ..laplace.network.tracing import trace
from ..laplace.selection import HeldOutErrors
from ..laplace.structures import Diag, Full, Kron
from ..laplace.structures._base import Curvature
from ..laplace.subsets._base import Subset
from ..nets import TableMLP
from .encodings import exact_kinds

EM_STEPS = 100
"""Of the weights of the deals."""
LEAST_SHARE, DECISIVE = 0.1, 2.0
"""Least share of a deal that is kept, and the most that its squared errors may be, in units of the other deal's. One
noise cannot describe members of which some err much more."""
NO_ERROR = 1e-6
"""Least squared error that counts for this, in units of the mean."""
PART_OF_TIME, LEAST_PART = 0.6, 0.2
"""Of ``max_time``, the most and the least for the steps of the members. Further cycles, the noise and the posteriors
have the rest."""
PASSES, PROBED_ROWS = 2.0, 512
"""Passes over all rows that follow the training, and the rows of a pass by which their time is estimated."""
EXACT_WEIGHTS = 512
"""Random weights up to which the curvature is exact."""
PILOT_NOISELESS = 2 * NOISELESS
"""Squared error of the trial of prior precisions, in units of the variance of the targets, below which there is next to
no noise: it has fewer steps and judges one fold alone."""
FAILURES = MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError
"""With which a model of the noise that nobody has asked for is left out."""


def is_bagged(parameters: Mapping[str, Any], data: PreparedData, options: Options) -> bool:
    """Whether a fit trains members together: the built-in net, many rows, and nothing that is said of a single net.

    Parameters
    ----------
    parameters : mapping
        The estimator's.
    data : PreparedData
    options : Options
    """
    built_in = parameters["net"] is None and len(parameters["hidden_layer_sizes"]) > 0
    many = len(data.X) >= ROWS_FOR_MEMBERS and parameters["prior"] is None and not data.has_copies
    gaussian = options.likelihood.has_dispersion and options.likelihood.quadratic
    # Prior and noise are chosen by held-out rows, one factor for all weights.
    left_open = all(options.by_held_out) and options.map_precision is None and options.grouping.each == "net"
    of_one_net = (
        is_number(parameters["n_members"])
        or not (parameters["n_bins"] is None or isinstance(parameters["n_bins"], str | Integral))
        or parameters["max_epochs"] is not None
        or bool(options.prior_mean)
        or not isinstance(options.temperature, float)
        or type(options.subset).settled is not Subset.settled  # single weights
    )
    return built_in and many and gaussian and left_open and not of_one_net


@dataclass(frozen=True)
class Bag:
    """Members as they were trained.

    Parameters
    ----------
    arguments : tuple of dict
        Of each net.
    states : tuple of dict of str to Tensor
        Of each net.
    held_out : Tensor of shape (K, n), bool
        The rows that a net has not seen.
    shares : tuple of float
        Weight of each net in the mixture.
    noise : tuple of Tensor of shape (n, C)
        Noise variances v, up to a factor, of which the row weights of the last cycles are a power.
    n_steps : int
    """

    arguments: tuple[dict[str, Any], ...]
    states: tuple[dict[str, Tensor], ...]
    held_out: Tensor
    shares: tuple[float, ...]
    noise: tuple[Tensor, ...]
    n_steps: int

    @classmethod
    def of_deals(cls, deals: Sequence[Bag], shares: Sequence[float]) -> Bag:
        """The members of several deals, with the share of each deal; without those of almost no share."""
        kept = [(deal, share) for deal, share in zip(deals, shares, strict=True) if share >= LEAST_SHARE]
        total = sum(share for _, share in kept)
        return cls(
            tuple(chain.from_iterable(deal.arguments for deal, _ in kept)),
            tuple(chain.from_iterable(deal.states for deal, _ in kept)),
            torch.cat([deal.held_out for deal, _ in kept]),
            tuple(chain.from_iterable([share / total * own for own in deal.shares] for deal, share in kept)),
            tuple(chain.from_iterable(deal.noise for deal, _ in kept)),
            max(deal.n_steps for deal, _ in kept),
        )

    @property
    def is_small(self) -> bool:
        """Whether more than one thread does not pay in a pass over the rows."""
        n_weights = sum(tensor.numel() for tensor in self.states[0].values())
        return self.held_out.shape[1] * n_weights <= SINGLE_THREAD_PASS

    @property
    def n_deals(self) -> int:
        """How many members have not seen a given row."""
        return int(self.held_out[:, 0].sum())

    @property
    def deal_shares(self) -> Tensor:
        """Weight of each deal in the mixture, (D,), float64."""
        own = torch.tensor(self.shares, dtype=torch.float64, device=self.held_out.device)
        return own.view(self.n_deals, -1).sum(1)

    @property
    def average_noise(self) -> Tensor | None:
        """The geometric mean of the noise variances; None where none vary."""
        return _average(self.noise)


def _average(noise: Sequence[Tensor]) -> Tensor | None:
    """The geometric mean of variances, if there are any."""
    return torch.stack(list(noise)).log().mean(0).exp() if noise else None


def train_bag(request: TrainingRequest, memory_budget: object, task: Task) -> Bag | None:
    """Train the members: a function of its arguments, as :func:`~sklearn_laplace._training.train.train` is.

    Targets almost without noise reward exact steps. Where these are affordable there are no members: None.

    Parameters
    ----------
    request : TrainingRequest
    memory_budget : None, int or str
    task : Task
    """
    options, parameters, data, seeds = request.options(memory_budget), request.parameters, request.data, request.seeds
    rows = tensors_of(data, options, built_in=True)
    recipes = _recipes(parameters, data)
    held_out = torch.from_numpy(held_out_rows(data.X, data.targets, len(recipes))).to(rows.inputs.device)
    deals: list[tuple[Bag, Tensor]] = []
    prior, order, clock = 0.0, seeds[1] % 2**31, task.clock
    n_members = len(held_out) // len(recipes)
    with task.subtask("epochs"):
        if clock.max_time is not None:
            recipes = _in_time(recipes, rows, data, options, n_members, clock)
        for together in _programs(recipes):
            first = len(deals) * n_members
            own = held_out[first : first + len(together) * n_members]
            arguments = [_arguments(recipe, data, options) for recipe in together for _ in range(n_members)]
            modules = [TableMLP(**a, seed=seeds[0] + first + k).to(rows.weights) for k, a in enumerate(arguments)]
            schedules = [recipe.schedule for recipe in together]
            if not deals:  # what its posterior cannot hold is refused before any training
                layout_of(trace(modules[0], rows.inputs), rows, data, options)
                prior, error = _prior(arguments[0], schedules[0], rows, own[0], seeds[0], order, clock.is_over)
                of_one = of_one_net(parameters)
                if error < PILOT_NOISELESS and exact_kinds(of_one, data, options.likelihood, beside=False):
                    return None
            noise_of = partial(_noise_so_far, own, rows, parameters, data, options, seeds[0])
            train = partial(train_members, noise_of=noise_of, is_over=clock.is_over)
            deals += _trained(modules, arguments, schedules, rows, own, order, prior, train)
            if clock.is_over():
                break
    bags, outputs = zip(*deals, strict=True)
    if len(bags) == 1:
        return bags[0]
    noise = _average([own for bag in bags for own in bag.noise])
    return Bag.of_deals(bags, _shares(rows, outputs, noise))


def _programs(recipes: Sequence[Recipe]) -> list[tuple[Recipe, ...]]:
    """The recipes of the deals, those together whose members train as one program."""
    return [tuple(together) for _, together in groupby(recipes, lambda recipe: recipe.program)]


def _arguments(recipe: Recipe, data: PreparedData, options: Options) -> dict[str, Any]:
    """Of a member's net."""
    shape = {"hidden_layer_sizes": recipe.hidden_layer_sizes, "activation": recipe.activation}
    return table_net(shape, data, options.likelihood, recipe.n_bins)


def _trained(
    modules: Sequence[TableMLP],
    arguments: Sequence[dict[str, Any]],
    schedules: Sequence[Schedule],
    rows: TrainingRows,
    held_out: Tensor,
    seed: int,
    prior: float,
    train: Callable[..., tuple[Tensor, Tensor | None]],
) -> list[tuple[Bag, Tensor]]:
    """The members of each deal, and what they say of the rows that they have not seen (n, C)."""
    stacked, priors = Stacked(modules), [prior] * len(modules)
    with single_thread(stacked.is_small(schedules[0])):
        outputs, noise = train(stacked, rows, (~held_out).double(), schedules, seed, priors)
    states, found = stacked.written(), () if noise is None else (noise,)
    n, n_steps, deals = len(modules) // len(schedules), schedules[0].n_steps, []
    for first in range(0, len(modules), n):
        own = slice(first, first + n)
        given = tuple(arguments[own]), tuple(states[own]), held_out[own], (1 / n,) * n, found, n_steps
        deals.append((Bag(*given), (outputs[own] * held_out[own, :, None]).sum(0)))
    return deals


def _in_time(
    recipes: Sequence[Recipe], rows: TrainingRows, data: PreparedData, options: Options, n_members: int, clock: Clock
) -> tuple[Recipe, ...]:
    """The recipes with as many steps as there is time for, beside the passes over the rows that follow."""
    needed, passes = 0.0, 0.0
    few = rows.taken(torch.arange(min(PROBED_ROWS, len(rows)), device=rows.inputs.device))
    for place, together in enumerate(_programs(recipes)):
        schedule = together[0].schedule
        arguments = [_arguments(recipe, data, options) for recipe in together for _ in range(n_members)]
        stacked = Stacked([TableMLP(**own, seed=0).to(rows.weights) for own in arguments])
        with single_thread(stacked.is_small(schedule)):
            step = seconds_of_step(stacked, rows, schedule)
            network, begun = trace(stacked.modules[0], few.inputs), clock.elapsed
            fit_of(network, few, data, options)
        needed += step * (schedule.n_steps + (0 if place else min(schedule.n_steps, PILOT_STEPS)))
        passes += len(arguments) * (clock.elapsed - begun) * len(rows) / len(few)
    part = min(PART_OF_TIME * clock.left, max(clock.left - PASSES * passes, LEAST_PART * clock.left)) / needed
    if part >= 1:
        return tuple(recipes)
    clock.was_cut = True
    return tuple(replace(recipe, schedule=recipe.schedule.of_part(part)) for recipe in recipes)


def _prior(
    arguments: dict[str, Any],
    schedule: Schedule,
    rows: TrainingRows,
    held_out: Tensor,
    seed: int,
    order: int,
    is_over: Callable[[], bool],
) -> tuple[float, float]:
    """The prior precision under which a net errs least on rows (n,) that it has not seen, and its squared error.

    All precisions are tried side by side.

    They are tried with fewer steps than the members take. The longer a net trains, the stronger is the prior that it
    needs, so that the precision is multiplied by the ratio of the steps.
    """
    stacked = Stacked([TableMLP(**arguments, seed=seed).to(rows.weights) for _ in PRIORS])
    short = replace(schedule, n_steps=min(schedule.n_steps, PILOT_STEPS), most_further=0)
    seen = (~held_out).double().expand(len(PRIORS), -1)
    with single_thread(stacked.is_small(schedule)):
        outputs, _ = train_members(stacked, rows, seen, [short], order, PRIORS, lambda outputs: None, is_over)
    errors = mean_squares(rows, outputs, (held_out * rows.weights).expand(len(PRIORS), -1))
    prior = min(PRIORS[int(errors.argmin())] * schedule.n_steps / short.n_steps, max(PRIORS))
    return prior, float(errors.min())


def _shares(rows: TrainingRows, outputs: Sequence[Tensor], noise: Tensor | None) -> list[float]:
    """Weights of two deals: those of the mixture with the largest density of held-out rows (stacking, by EM).

    Each deal predicts normal distributions with its outputs (n, C) as means. Their variances are those of the noise
    times a common factor. A deal has weight zero if its squared errors are ``DECISIVE`` times those of the other, by
    geometric means.
    """
    variances = rows.noise if noise is None else noise
    weights, n_outputs = rows.weights.double(), outputs[0].shape[1]
    errors = torch.stack([(rows.targets.double() - own).square() for own in outputs])
    tiny = torch.finfo(torch.float64).tiny
    squares = (errors if variances is None else errors / variances.double()).clamp_min(tiny)
    # Rows without an error, whose logarithm is -inf, must not decide alone.
    sizes = (squares.clamp_min(NO_ERROR * squares.mean()).log().mean(2) @ weights / weights.sum()).exp()
    if sizes.max() > DECISIVE * sizes.min():
        return (sizes == sizes.min()).double().tolist()
    distances = squares.sum(2)
    share = torch.full_like(sizes, 0.5)
    level = float(share @ distances @ weights) / float(weights.sum() * n_outputs)
    for _ in range(EM_STEPS):
        part = (share.log()[:, None] - 0.5 * distances / level).softmax(0) * weights
        share = (part.sum(1) / weights.sum()).clamp_min(LEAST_LEVEL)
        level = float((part * distances).sum()) / float(weights.sum() * n_outputs)
    return (share / share.sum()).tolist()


def _recipes(parameters: Mapping[str, Any], data: PreparedData) -> tuple[Recipe, ...]:
    """The default for these rows, with what the user has said in its place."""
    n_numbers = data.X.shape[1] if data.table is None else len(data.table.numeric)
    said: dict[str, Any] = {}
    if not is_auto(parameters["hidden_layer_sizes"]):
        said["hidden_layer_sizes"] = tuple(parameters["hidden_layer_sizes"])
    if not is_auto(parameters["activation"]):
        said["activation"] = parameters["activation"]
    if not is_auto(parameters["n_bins"]):
        said["n_bins"] = parameters["n_bins"]
    schedule = {name: parameters[name] for name in ("lr", "batch_size") if parameters[name] is not None}
    if schedule.get("batch_size") == -1:
        schedule["batch_size"] = len(data.X)
    found = recipes_for(len(data.X), n_numbers)
    return tuple(replace(recipe, schedule=replace(recipe.schedule, **schedule), **said) for recipe in found)


def _noise_so_far(
    held_out: Tensor,
    rows: TrainingRows,
    parameters: Mapping[str, Any],
    data: PreparedData,
    options: Options,
    seed: int,
    outputs: Tensor,
) -> Tensor | None:
    """Noise variances (n, C), up to a factor, as if all errors of held-out rows were noise; None for no variation."""
    if options.varying_noise is False or data.noise is not None:
        return None
    errors = (rows.targets.double() - outputs) * held_out[..., None]
    squares = errors.square().sum(0) / held_out.sum(0)[:, None]
    weights = rows.weights.double()
    low, high = options.likelihood.dispersion_bounds
    dispersion = min(max(float(weights @ squares.mean(1) / weights.sum()), low), high)
    found = HeldOutErrors(squares.sqrt(), torch.zeros_like(squares), torch.ones_like(squares), weights)
    trained = learnt_of(parameters, data, found, dispersion, options, seed, honest=False, quick=True)
    return None if trained is None else trained.model.ratios(rows.inputs.to(weights))


def learnt_of(
    parameters: Mapping[str, Any],
    data: PreparedData,
    held_out: HeldOutErrors,
    dispersion: float,
    options: Options,
    seed: int,
    *,
    honest: bool,
    quick: bool,
) -> TrainedNoise | None:
    """How the noise varies; None where it does not, or, unless it was asked for, where that cannot be learnt."""
    given = data, data, held_out, held_out.weights, dispersion, options, seed
    steps = MANY_STEPS if len(data.X) <= SMALL_ROWS else None
    with suppress(*(() if options.varying_noise else FAILURES)):
        return learnt_noise(parameters, *given, honest=honest, quick=quick, with_own_tails=False, steps=steps)
    return None


def fit_of(network: Network, rows: TrainingRows, data: PreparedData, options: Options) -> LaplaceFit:
    """A pass over the rows that a net has seen."""
    own, structure, n_dual, taken = layout_of(network, rows, data, options)
    prior = grouped(own, network.parameter_names, options)
    chunks = rows.chunks(options.memory.pass_rows(structure, own, n_dual // len(rows), taken))
    told = options.structure_options.options_of(structure)
    return fit_laplace(own, options.likelihood, options.rule, structure, prior, chunks, **told)


def layout_of(
    network: Network, rows: TrainingRows, data: PreparedData, options: Options
) -> tuple[Network, type[Curvature], int, int]:
    """As :func:`posterior_layout`; "auto" is exact for few weights, else in Kronecker form, which costs little."""
    if options.structure is not None:
        return posterior_layout(network, rows, data, options)
    own, n_columns = options.subset.of(network, rows.inputs), options.rule.n_columns(options.likelihood, data.n_outputs)
    kinds = (Full, Kron, Diag) if own.n_parameters <= EXACT_WEIGHTS else (Kron, Diag)
    able = [kind for kind in kinds if kind.accepts & options.rule.provides & options.subset.provides]
    fits = (kind for kind in able if options.memory.fits(kind, own, n_columns * len(rows), n_columns))
    return posterior_layout(network, rows, data, replace(options, structure=next(fits, None)))
