r"""A fit of many rows: members that are trained together, each without a part of the rows.

Eight nets train as one tensor program (``_training/batched.py``), each without a quarter of the rows
(``_training/folds.py``). So two members have not seen a given row. Their errors there decide everything that a member's
own rows cannot tell: the prior precision and the noise of the Laplace approximations, and how the noise varies with the
inputs. The four members of the first deal suit smooth functions, those of the second functions with much detail
(``_training/recipe.py``). Each deal has the share with which the mean of both errs least on held-out rows; a deal of
almost no share is left out.

**Prior and noise.** The prior precision starts where the evidence of the first member is largest. The held-out rows
choose a common factor f of it and, for every f, the noise :math:`\varphi` (``selection/held_out.py``). Factors whose
density is within ``TOLERANCE`` nats a row of the best count as equal, and the one closest to 1 is taken.

**The mixture errs less than a member.** A held-out row shows the errors of two members. All variances are multiplied
by :math:`c_K`, the factor that suits the mixture of all. The best factor is :math:`c_1` for one member, and
:math:`c_2` for the mixture of two. What an average with weights :math:`a_k` removes of the members' variance is
proportional to :math:`1 - \sum_k a_k^2`. With weights b of the two deals it follows that

.. math:: \log c_K = \log c_1 + \frac{1 - \sum_k a_k^2}{1 - \sum_d b_d^2} (\log c_2 - \log c_1).

**Noise that varies** is learnt twice from these errors (``_noise_model.py``): before the last cycle of the training,
which then gives precise rows more weight, and after it for the predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from numbers import Integral
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from . import _resolve, _skorch
from ._budget import SINGLE_THREAD_FLOPS
from ._built_in import table_net
from ._cross_fit import LEAST_LEVEL, CrossFit, Scores, density_for
from ._data import PreparedData
from ._learnt_noise import learnt_noise
from ._map import MapResult
from ._noise_model import NoiseModel
from ._progress import Task
from ._resolve import Options
from ._skorch import TrainingRows
from ._stages import Origin, grouped, options_for, posterior_layout, tensors_of
from ._threads import single_thread
from ._training._schedule import Schedule
from ._training.batched import Stacked, mean_squares, train_members
from ._training.folds import held_out_rows
from ._training.recipe import PILOT_STEPS, PRIORS, Recipe, recipes_for
from .errors import MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError
from .evidence import PRECISION_BOUNDS
from .laplace import Hyper, LaplaceFit, fit_laplace
from .leave_one_out import linear_rows
from .likelihoods._base import without_noise
from .mode import Mode
from .nets import TableMLP
from .network import Network
from .selection import HeldOut, HeldOutScores, held_out_scores, maximise_evidence
from .structures import Diag, Full, Kron
from .structures._base import Curvature
from .subsets._base import Subset

LEAST_ROWS = 950
"""Rows from which a default fit is bagged. For fewer, Gauss–Newton steps over all rows are more accurate
(``docs/decisions.md``)."""
SCORED_ROWS = 125
"""Held-out rows of each member that choose the prior precision: it is one number."""
TOLERANCE = 0.002
"""Nats a row within which prior precisions count as equally good."""
WEAKEST = 0.3
"""Least multiple of the prior precision of largest evidence. Under a weaker prior the posterior is so wide that it
stands in for noise that varies. Then the model of that noise has nothing to explain."""
LEAST_FACTOR = 0.05
"""Of all variances of the mixture."""
INTERVAL_ROWS = 20_000
"""Most held-out rows whose scores make intervals."""
EXACT_WEIGHTS = 512
"""Random weights up to which the curvature is exact."""
LEAST_SHARE = 0.1
"""Of a deal whose members are kept."""
MOST_REACH = 2.0
"""Most that :math:`\\log c_K - \\log c_1` is in units of :math:`\\log c_2 - \\log c_1`."""
CHUNK = 512
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
    many = len(data.X) >= LEAST_ROWS and data.past is None and not data.has_copies
    gaussian = options.likelihood.has_dispersion and options.likelihood.quadratic
    # Prior and noise are chosen by held-out rows, one factor for all weights.
    left_open = all(options.by_held_out) and options.map_precision is None and options.grouping.each == "net"
    of_one_net = (
        not isinstance(parameters["n_members"], str)
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
        Noise variances, up to a factor, under which the last cycles have trained that saw them vary.
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
        return torch.stack(self.noise).log().mean(0).exp() if self.noise else None


def train_bag(
    kind: str,
    parameters: Mapping[str, Any],
    data: PreparedData,
    seeds: Sequence[int],
    memory_budget: object,
    task: Task,
) -> Bag:
    """Train the members: a function of its arguments, as :func:`~sklearn_laplace._stages.train` is.

    Parameters
    ----------
    kind : str
    parameters : mapping
    data : PreparedData
    seeds : sequence of int
        Of the initial weights and of the order of the rows.
    memory_budget : None, int or str
    task : Task
    """
    options = options_for(kind, {**parameters, "memory_budget": memory_budget}, data)
    rows = tensors_of(data, options, built_in=True)
    recipes = _recipes(parameters, data)
    held_out = torch.from_numpy(held_out_rows(data.X, data.targets, len(recipes))).to(rows.inputs.device)
    deals, prior, order = [], 0.0, seeds[1] % 2**31
    with task.subtask("epochs"):
        for place, (recipe, own) in enumerate(zip(recipes, held_out.chunk(len(recipes)), strict=True)):
            shape = {"hidden_layer_sizes": recipe.hidden_layer_sizes, "activation": recipe.activation}
            arguments = table_net(shape, data, options.likelihood, recipe.n_bins)
            first = seeds[0] + place * len(own)
            modules = [TableMLP(**arguments, seed=first + k).to(rows.weights) for k in range(len(own))]
            if place == 0:  # what its posterior cannot hold is refused before any training
                _layout(Network.trace(modules[0], rows.inputs), rows, data, options)
                prior = _prior(arguments, recipe.schedule, rows, own[0], seeds[0], order)
            noise_of = partial(_noise_so_far, own, rows, parameters, data, options, seeds[0])
            deals.append(_trained(modules, arguments, recipe.schedule, rows, own, order, prior, noise_of))
    bags, outputs = zip(*deals, strict=True)
    return Bag.of_deals(bags, _shares(rows, outputs, Bag.of_deals(bags, [1.0] * len(bags)).average_noise))


def _trained(
    modules: Sequence[TableMLP],
    arguments: dict[str, Any],
    schedule: Schedule,
    rows: TrainingRows,
    held_out: Tensor,
    seed: int,
    prior: float,
    noise_of: Callable[[Tensor], Tensor | None],
) -> tuple[Bag, Tensor]:
    """The members of one deal, and what they say of the rows that they have not seen (n, C)."""
    stacked, priors = Stacked(modules), [prior] * len(modules)
    with single_thread(_is_small(stacked, schedule)):
        outputs, noise = train_members(stacked, rows, (~held_out).double(), schedule, seed, priors, noise_of)
    n, found = len(modules), () if noise is None else (noise,)
    bag = Bag((arguments,) * n, tuple(stacked.written()), held_out, (1 / n,) * n, found, schedule.n_steps)
    return bag, (outputs * held_out[..., None]).sum(0)


def _is_small(stacked: Stacked, schedule: Schedule) -> bool:
    """Whether more than one thread does not pay."""
    return schedule.batch_size * sum(weight.numel() for weight in stacked.weights) <= SINGLE_THREAD_FLOPS


def _prior(
    arguments: dict[str, Any], schedule: Schedule, rows: TrainingRows, held_out: Tensor, seed: int, order: int
) -> float:
    """The prior precision under which a net errs least on rows (n,) that it has not seen, all tried side by side.

    They are tried with fewer steps than the members take. The longer a net trains, the stronger is the prior that it
    needs, so that the precision is multiplied by the ratio of the steps.
    """
    stacked = Stacked([TableMLP(**arguments, seed=seed).to(rows.weights) for _ in PRIORS])
    short = replace(schedule, n_steps=min(schedule.n_steps, PILOT_STEPS), most_further=0)
    seen = (~held_out).double().expand(len(PRIORS), -1)
    with single_thread(_is_small(stacked, schedule)):
        outputs, _ = train_members(stacked, rows, seen, short, order, PRIORS, lambda outputs: None)
    errors = mean_squares(rows, outputs, (held_out * rows.weights).expand(len(PRIORS), -1))
    return min(PRIORS[int(errors.argmin())] * schedule.n_steps / short.n_steps, max(PRIORS))


def _shares(rows: TrainingRows, outputs: Sequence[Tensor], noise: Tensor | None) -> list[float]:
    """Weights of one or two deals whose mean errs least on held-out rows, with outputs (n, C) of each deal."""
    if len(outputs) == 1:
        return [1.0]
    first, second = outputs
    known = torch.ones_like(first) if rows.noise is None else rows.noise.double()
    precision = rows.weights.double()[:, None] / (known if noise is None else known * noise)
    apart, error = second - first, rows.targets.double() - first
    share = float((precision * apart * error).sum() / (precision * apart.square()).sum().clamp_min(LEAST_LEVEL))
    share = min(max(share, 0.0), 1.0)
    return [1 - share, share]


def _recipes(parameters: Mapping[str, Any], data: PreparedData) -> tuple[Recipe, ...]:
    """The default for these rows, with what the user has said in its place."""
    n_numbers = data.X.shape[1] if data.table is None else len(data.table.numeric)
    said: dict[str, Any] = {}
    if not _resolve.is_auto(parameters["hidden_layer_sizes"]):
        said["hidden_layer_sizes"] = tuple(parameters["hidden_layer_sizes"])
    if not _resolve.is_auto(parameters["activation"]):
        said["activation"] = parameters["activation"]
    if not _resolve.is_auto(parameters["n_bins"]):
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
    found = HeldOut(squares.sqrt(), torch.zeros_like(squares), torch.ones_like(squares), weights)
    model = _learnt(parameters, data, found, dispersion, options, seed, quick=True)
    return None if model is None else model.ratios(rows.inputs.to(weights))


def _learnt(
    parameters: Mapping[str, Any],
    data: PreparedData,
    held_out: HeldOut,
    dispersion: float,
    options: Options,
    seed: int,
    *,
    quick: bool = False,
) -> NoiseModel | None:
    """How the noise varies; None where it does not, or, unless it was asked for, where that cannot be learnt."""
    given = data, data, held_out, held_out.weights, dispersion, options, seed
    with suppress(*(() if options.varying_noise else FAILURES)):
        return learnt_noise(parameters, *given, honest=not quick, quick=quick)
    return None


@dataclass(frozen=True)
class BaggedScores(HeldOutScores):
    """The log density of held-out rows along a grid, and the factor that suits the mixture.

    Parameters
    ----------
    unit, ridge, squares, constants, freedom, bounds
        See :class:`~sklearn_laplace.selection.HeldOutScores`.
    factor : float
        c_K, by which all variances are multiplied.
    """

    factor: float = 1.0

    def suits(self, hyper: Hyper) -> bool:
        """Whether the precisions are a multiple of those of the training."""
        return self.is_multiple(hyper)

    def is_capped(self, dispersion: float) -> bool:
        """Never: the noise is the one of held-out rows."""
        return False

    def warn_at_end(self, hyper: Hyper) -> None:
        """Nothing: a posterior that adds nothing to the spread of the members is no fault."""

    def chosen(self, hyper: Hyper, *, free_prior: bool, free_dispersion: bool) -> Hyper:
        """The prior precision and noise of largest density, each if it is free, with the variances of the mixture.

        Parameters
        ----------
        hyper : Hyper
            What is not free keeps its value.
        free_prior, free_dispersion : bool
        """
        noise, density, factors = self.points(hyper, free_prior=free_prior, free_dispersion=free_dispersion)
        density = torch.where(factors >= WEAKEST, density, -math.inf) if free_prior else density
        near = density >= density.max() - max(1.0, TOLERANCE * self.freedom)
        best = int(torch.where(near, factors.log().abs(), math.inf).argmin()) if free_prior else int(density.argmax())
        values = factors[best] * self.unit if free_prior else hyper.prior_precision
        dispersion = float(noise[best])
        if free_prior and free_dispersion:
            values, dispersion = values / self.factor, dispersion * self.factor
        return replace(hyper, prior_precision=values.clamp(*PRECISION_BOUNDS), dispersion=dispersion)


@dataclass(frozen=True)
class Bagged:
    """The Laplace approximations of all members.

    Parameters
    ----------
    members : tuple of (MapResult, LaplaceFit)
    hyper : Hyper
        Of all members.
    origin : Origin
        With the scores of held-out rows.
    noise_model : NoiseModel or None
    data : PreparedData
        The rows, under the noise that was found.
    held_out : ndarray of shape (K, n), bool
        The rows that a member has not seen.
    n_bins : tuple of int or None
        Most pieces of a column, of each member.
    shares : ndarray of shape (K,)
        Weight of each member.
    """

    members: tuple[tuple[MapResult, LaplaceFit], ...]
    hyper: Hyper
    origin: Origin
    noise_model: NoiseModel | None
    data: PreparedData
    held_out: np.ndarray
    n_bins: tuple[int | None, ...]
    shares: np.ndarray

    @property
    def origin_of_others(self) -> Origin:
        """For members after the first, which makes the intervals of all."""
        assert self.origin.cross is not None
        return replace(self.origin, cross=replace(self.origin.cross, networks=(), scores=None))


def _layout(
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


def _fits(
    networks: Sequence[Network], bag: Bag, data: PreparedData, options: Options
) -> tuple[list[LaplaceFit], list[TrainingRows]]:
    """A pass over the rows that each member has seen, and the rows that it has not seen."""
    rows = tensors_of(data, options, built_in=True)
    fits, others = [], []
    for network, held_out in zip(networks, bag.held_out, strict=True):
        seen = rows.taken((~held_out).nonzero()[:, 0])
        own, structure, n_dual, taken = _layout(network, seen, data, options)
        prior = grouped(own, network.parameter_names, options)
        chunks = seen.chunks(options.memory.pass_rows(structure, own, n_dual // len(seen), taken))
        told = options.structure_options.told(structure)
        fits.append(fit_laplace(own, options.likelihood, options.rule, structure, prior, chunks, **told))
        others.append(rows.taken(held_out.nonzero()[:, 0]))
    return fits, others


def approximate_bag(
    bag: Bag, kind: str, parameters: Mapping[str, Any], data: PreparedData, seeds: Sequence[int]
) -> Bagged:
    """The Laplace approximations of the members, with what held-out rows choose.

    Parameters
    ----------
    bag : Bag
    kind : str
    parameters : mapping
    data : PreparedData
    seeds : sequence of int
    """
    options = options_for(kind, parameters, data, seeds[2])
    rows = tensors_of(data, options, built_in=True)
    weights = rows.weights.double()
    nets = [
        _net(arguments, state, rows, data, options, seeds[0])
        for arguments, state in zip(bag.arguments, bag.states, strict=True)
    ]
    networks = [Network.trace(net.module_, rows.inputs) for net in nets]
    under, model = data, None
    if (noise := bag.average_noise) is not None:
        under = data.under_noise(noise.cpu().numpy())
    fits, held_out = _fits(networks, bag, under, options)
    scores, hyper = _scored(fits, held_out, None)
    errors = _errors(bag, fits, held_out, hyper, rows)
    if options.varying_noise is not False and data.noise is None:
        error, variance, known = (torch.tensordot(bag.deal_shares, part, 1) for part in errors)
        both = HeldOut(error, variance, known, weights)
        model = _learnt(parameters, data, both, hyper.dispersion, options, seeds[0])
    if model is not None or noise is not None:
        under = data if model is None else data.under_noise(model.ratios(rows.inputs.to(weights)).cpu().numpy())
        fits, held_out = _fits(networks, bag, under, options)
        scores, hyper = _scored(fits, held_out, hyper)
        errors = _errors(bag, fits, held_out, hyper, rows)
    scores = replace(scores, factor=_factor(errors, hyper.dispersion, weights, bag))
    hyper = scores.chosen(hyper, free_prior=True, free_dispersion=True)
    cross = CrossFit(tuple(networks), *_for_intervals(bag, errors, hyper, fits[0], scores, weights))
    origin = Origin(hyper, fits[0].prior.names, networks[0].parameter_names, None, cross)
    results = [
        MapResult(
            _skorch.finish(net, network), Mode(fit, hyper, bag.n_steps), [], bag.n_steps, False, rows.inputs.dtype
        )
        for net, network, fit in zip(nets, networks, fits, strict=True)
    ]
    n_bins = tuple(max((len(own) - 1 for own in a["input_edges"]), default=0) or None for a in bag.arguments)
    held = bag.held_out.cpu().numpy()
    return Bagged(
        tuple(zip(results, fits, strict=True)), hyper, origin, model, under, held, n_bins, np.array(bag.shares)
    )


def _net(
    arguments: dict[str, Any],
    state: dict[str, Tensor],
    rows: TrainingRows,
    data: PreparedData,
    options: Options,
    seed: int,
) -> Any:
    """A skorch net around one member's weights."""
    given = TableMLP, arguments, options.likelihood, rows, data.n_outputs
    net = _skorch.build_net(*given, max_epochs=None, lr=None, batch_size=None, seed=seed, verbose=0)
    _skorch.initialise(net, rows, data.n_outputs)
    net.module_.load_state_dict(state)
    net.module_.eval()
    return net


def _scored(
    fits: Sequence[LaplaceFit], held_out: Sequence[TrainingRows], before: Hyper | None
) -> tuple[BaggedScores, Hyper]:
    """What held-out rows say of prior precisions and noises, and the choice of one member."""
    fit = fits[0]
    start = Hyper(torch.ones_like(fit.theta[: fit.prior.n_groups])) if before is None else before
    start = replace(start, dispersion=_mean_square(fits, held_out))
    start = maximise_evidence(fit, start, free_prior=True, free_dispersion=False, warn=False)
    parts = []
    for k, (own, rows) in enumerate(zip(fits, held_out, strict=True)):
        few = torch.randperm(len(rows), generator=torch.Generator().manual_seed(k))[:SCORED_ROWS].sort().values
        parts.append((own, rows.taken(few.to(rows.inputs.device)).chunks(CHUNK)))
    found = held_out_scores(parts, start, density_for(fit.likelihood))
    scores = BaggedScores(found.unit, found.ridge, found.squares, found.constants, found.freedom, found.bounds)
    return scores, scores.chosen(start, free_prior=True, free_dispersion=True)


def _mean_square(fits: Sequence[LaplaceFit], held_out: Sequence[TrainingRows]) -> float:
    """Mean squared error of held-out rows over their known noise."""
    total, weight = 0.0, 0.0
    for fit, rows in zip(fits, held_out, strict=True):
        for x, targets, weights in rows.chunks(8 * CHUNK):
            y, noise = without_noise(targets.double(), fit.n_outputs)
            squares = ((y - fit.network(x).double()).square() / noise).mean(1)
            total, weight = total + float(weights.double() @ squares), weight + float(weights.double().sum())
    low, high = fits[0].likelihood.dispersion_bounds
    return min(max(total / weight, low), high)


def _errors(
    bag: Bag, fits: Sequence[LaplaceFit], held_out: Sequence[TrainingRows], hyper: Hyper, rows: TrainingRows
) -> tuple[Tensor, Tensor, Tensor]:
    """Errors, variances of the predictions and noise in units of φ of each row in each deal, (2, n, C) each."""
    per_deal = len(fits) // bag.n_deals
    shape = (bag.n_deals, len(rows), fits[0].n_outputs)
    zeros = torch.zeros(3, *shape, dtype=torch.float64, device=rows.inputs.device)
    for k, (fit, own) in enumerate(zip(fits, held_out, strict=True)):
        posterior, parts = fit.posterior(hyper), []
        for part in linear_rows(fit.network, own.chunks(CHUNK)):
            y, noise = without_noise(part.targets.double(), fit.n_outputs)
            variance = posterior.covariance(part.jacobian).diagonal(dim1=1, dim2=2)
            parts.append((y - part.outputs, variance, noise))
        for whole, values in zip(zeros, zip(*parts, strict=True), strict=True):
            whole[k // per_deal, bag.held_out[k]] = torch.cat(values).double()
    error, variance, noise = zeros
    return error, variance, noise


def _factor(errors: tuple[Tensor, Tensor, Tensor], dispersion: float, weights: Tensor, bag: Bag) -> float:
    """c_K: see the module."""
    error, variance, noise = errors
    total, shares = variance + dispersion * noise, bag.deal_shares

    def best(of_rows: Callable[[Tensor], Tensor]) -> float:
        def loss(log_factor: float) -> float:
            scaled = math.exp(log_factor) * total
            return -float(weights @ of_rows(-0.5 * (scaled.log() + error.square() / scaled)).sum(1))

        return float(minimize_scalar(loss, bounds=(math.log(LEAST_FACTOR), 1.5), method="bounded").x)

    alone = best(lambda logs: torch.tensordot(shares, logs, 1))
    if len(shares) == 1:
        return max(math.exp(alone), LEAST_FACTOR)
    together = best(lambda logs: (logs + shares.log()[:, None, None]).logsumexp(0))
    reach = (1 - sum(share**2 for share in bag.shares)) / (1 - float(shares.square().sum()))
    return max(math.exp(alone + min(reach, MOST_REACH) * min(together - alone, 0.0)), LEAST_FACTOR)


def _for_intervals(
    bag: Bag,
    errors: tuple[Tensor, Tensor, Tensor],
    hyper: Hyper,
    fit: LaplaceFit,
    scores: BaggedScores,
    weights: Tensor,
) -> tuple[Tensor, BaggedScores, tuple[()], Scores]:
    """What intervals need of each held-out row: its member, and its error over its standard deviation."""
    error, variance, noise = errors
    n_deals, n = error.shape[:2]
    per_deal, device = len(bag.held_out) // n_deals, error.device
    first = per_deal * torch.arange(n_deals, device=device)[:, None]
    by_deal = first + bag.held_out.view(n_deals, per_deal, n).double().argmax(1)
    scaled = error.abs() / (variance + hyper.dispersion * noise).sqrt()
    few = torch.randperm(n, generator=torch.Generator().manual_seed(0))[: INTERVAL_ROWS // n_deals].sort().values
    few = few.to(device)
    weight = (bag.deal_shares[:, None] * weights[few]).flatten()
    member, ratio = by_deal[:, few].reshape(-1), scaled[:, few].flatten(0, 1)
    kept = replace(hyper, temperature=1.0)
    return member, scores, (), Scores(kept, fit.prior, ratio, weight, ratio, weight)
