r"""The posteriors of a fit of many rows, whose members train together, each without a part of the rows (``train.py``).

Two members have not seen a given row. Their errors there decide everything that a member's own rows cannot tell: the
prior precision and the noise of the Laplace approximations, and how the noise varies with the inputs.

**Prior and noise.** The prior precision starts where the evidence of the first member is largest. The held-out rows
choose a common factor f of it and, for every f, the noise :math:`\varphi` (``laplace/selection/held_out.py``). Factors
whose density is within ``TOLERANCE`` nats a row of the best count as equal, and the one closest to 1 is taken.

**Calibration.** A mixture is more accurate than its members, and its errors have heavy tails. Held-out rows determine
a factor of all variances and the tails of the noise (``_approximation/calibration.py``).

**Noise that varies** is learnt twice from these errors (``_approximation/noise_model.py``): before the last cycle of
the training, which then gives precise rows more weight, and after it for the predictions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._approximation.calibration import MOST_ROWS, HeldOutDeals, HeldOutDensities, calibrated
from .._approximation.choose import SelectionState
from .._approximation.held_out import CrossFit, IntervalScores
from .._approximation.noise_model import NoiseModel, TrainedNoise, sample_of
from .._data.rows import PreparedData
from .._host.epochs import finish
from .._host.net import build_net, initialise
from .._host.rows import Sizes, TrainingRows
from .._options.options import Options
from .._runtime.progress import Clock
from .._training.folds import density_for
from .._training.plan import MapResult
from .._training.random_weights import tensors_of
from ..laplace.evidence import PRECISION_BOUNDS
from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.leave_one_out.rows import linear_rows
from ..laplace.likelihoods._base import without_noise
from ..laplace.mode.problem import Mode
from ..laplace.network.network import Network
from ..laplace.network.tracing import trace
from ..laplace.selection import HeldOutErrors, HeldOutScores, held_out_scores, maximise_evidence
from ..nets import TableMLP
from .request import FitRequest
from .train_members import Bag, fit_of, learnt_of

SCORED_ROWS = 125
"""Held-out rows of each member that choose the prior precision: it is one number."""
TOLERANCE = 0.002
"""Nats a row within which prior precisions count as equally good."""
WEAKEST = 0.3
"""Least multiple of the prior precision of largest evidence. Under a weaker prior the posterior is so wide that it
stands in for noise that varies. Then the model of that noise has nothing to explain."""
PASSES_LEFT = 2.0
"""A second pass is scored only if this many times the duration of the first one is left: the noise model takes about as
long."""
INTERVAL_ROWS = 20_000
"""Most held-out rows whose scores make intervals."""
CHUNK = 512


@dataclass(frozen=True)
class BaggedScores(HeldOutScores):
    """The log density of held-out rows along a grid, and the factor that suits the mixture.

    Parameters
    ----------
    unit, ridge, squares, constants, freedom, bounds
        See :class:`~sklearn_laplace.laplace.selection.HeldOutScores`.
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
    origin : SelectionState
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
    scored : ndarray of shape (m,), int64
        The rows with densities.
    densities : HeldOutDensities
        Of these rows, by the members that have not seen them.
    """

    members: tuple[tuple[MapResult, LaplaceFit], ...]
    hyper: Hyper
    origin: SelectionState
    noise_model: NoiseModel | None
    data: PreparedData
    held_out: np.ndarray
    n_bins: tuple[int | None, ...]
    shares: np.ndarray
    scored: np.ndarray
    densities: HeldOutDensities

    @property
    def origin_of_others(self) -> SelectionState:
        """For members after the first, which makes the intervals of all."""
        assert self.origin.cross is not None
        return replace(self.origin, cross=replace(self.origin.cross, networks=(), scores=None))


@dataclass(frozen=True)
class _Unseen:
    """The rows that each member has not seen, one member at a time: those of all are larger than the data."""

    rows: TrainingRows
    held_out: Tensor

    def __iter__(self) -> Iterator[TrainingRows]:
        return (self.rows.taken(own.nonzero()[:, 0]) for own in self.held_out)


def _fits(
    networks: Sequence[Network], bag: Bag, data: PreparedData, options: Options
) -> tuple[list[LaplaceFit], _Unseen]:
    """A pass over the rows that each member has seen, and the rows that it has not seen."""
    rows, fits = tensors_of(data, options, built_in=True), []
    for network, held_out in zip(networks, bag.held_out, strict=True):
        fits.append(fit_of(network, rows.taken((~held_out).nonzero()[:, 0]), data, options))
    return fits, _Unseen(rows, bag.held_out)


def approximate_bag(bag: Bag, request: FitRequest, clock: Clock) -> Bagged:
    """The Laplace approximations of the members, with what held-out rows choose.

    Parameters
    ----------
    bag : Bag
    request : FitRequest
    clock : Clock
        Without time for a second pass with all scores, the noise that varies gets a rough model, and the scores stay
        those of the first pass.
    """
    options, data = request.settled(), request.data
    rows = tensors_of(data, options, built_in=True)
    nets = [
        _net(arguments, state, rows, data, options, request.seeds[0])
        for arguments, state in zip(bag.arguments, bag.states, strict=True)
    ]
    first = _two_passes(bag, [trace(net.module_, rows.inputs) for net in nets], rows, request, options, clock)
    model, scores, hyper = first.model, first.scores, first.hyper
    deals, scored = _scored_deals(bag, first, rows)
    calibration = calibrated(deals, bag.shares)
    densities = HeldOutDensities(deals, calibration.spread, calibration.of_deals, hyper.dispersion)
    model = None if model is None else replace(model, spread=calibration.spread)
    scores = replace(scores, factor=calibration.factor)
    hyper = scores.chosen(hyper, free_prior=True, free_dispersion=True)
    fits = first.fits
    intervals = _for_intervals(bag, first.errors, hyper, fits[0], scores, rows.weights.double())
    names = first.networks[0].parameter_names
    origin = SelectionState(hyper, fits[0].prior.names, names, None, CrossFit(tuple(first.networks), *intervals))
    results = [
        MapResult(finish(net, network), Mode(fit, hyper, bag.n_steps), [], bag.n_steps, bag.is_small, rows.inputs.dtype)
        for net, network, fit in zip(nets, first.networks, fits, strict=True)
    ]
    n_bins = tuple(max((len(own) - 1 for own in a["input_edges"]), default=0) or None for a in bag.arguments)
    return Bagged(
        members=tuple(zip(results, fits, strict=True)),
        hyper=hyper,
        origin=origin,
        noise_model=model,
        data=first.under,
        held_out=bag.held_out.cpu().numpy(),
        n_bins=n_bins,
        shares=np.array(bag.shares),
        scored=scored.cpu().numpy(),
        densities=densities,
    )


@dataclass(frozen=True)
class _Passes:
    """Result of the passes over the rows: fits under the last noise, and what held-out rows show."""

    networks: Sequence[Network]
    fits: Sequence[LaplaceFit]
    scores: BaggedScores
    hyper: Hyper
    errors: tuple[Tensor, Tensor, Tensor]
    under: PreparedData
    trained: TrainedNoise | None
    model: NoiseModel | None


def _two_passes(
    bag: Bag,
    networks: Sequence[Network],
    rows: TrainingRows,
    request: FitRequest,
    options: Options,
    clock: Clock,
) -> _Passes:
    """A pass under the noise of the training, and one under the noise model learnt from its errors."""
    data, weights = request.data, rows.weights.double()
    under, model, trained, noise = data, None, None, bag.average_noise
    if noise is not None:
        under = data.under_noise(noise.cpu().numpy())
    begun = clock.elapsed
    fits, held_out = _fits(networks, bag, under, options)
    scores, hyper = _scored(fits, held_out, None)
    errors = _errors(bag, fits, held_out, hyper, rows)
    learns = options.varying_noise is not False and data.noise is None
    is_short = learns and clock.lacks(PASSES_LEFT * (clock.elapsed - begun))
    if learns and (noise is not None or not is_short):
        error, variance, known = (torch.tensordot(bag.deal_shares, part, 1) for part in errors)
        given = HeldOutErrors(error, variance, known, weights), hyper.dispersion, options, request.seeds[0]
        trained = learnt_of(request.parameters, data, *given, honest=True, quick=is_short)
        model = None if trained is None else trained.model
    if model is not None or noise is not None:
        under = data if model is None else data.under_noise(model.ratios(rows.inputs.to(weights)).cpu().numpy())
        fits, held_out = _fits(networks, bag, under, options)
        if model is None or not is_short:
            scores, hyper = _scored(fits, held_out, hyper)
            errors = _errors(bag, fits, held_out, hyper, rows)
    return _Passes(networks, fits, scores, hyper, errors, under, trained, model)


def _scored_deals(bag: Bag, passes: _Passes, rows: TrainingRows) -> tuple[HeldOutDeals, Tensor]:
    """Held-out errors of some rows for the calibration, and these rows."""
    (error, variance, noise), hyper, weights = passes.errors, passes.hyper, rows.weights.double()
    deals = HeldOutDeals(error, variance, hyper.dispersion * noise, None, weights, bag.deal_shares)
    if passes.trained is None:
        scored = sample_of(len(rows), MOST_ROWS).to(weights.device)
        return deals.taken(scored), scored
    known = passes.trained.some(MOST_ROWS)
    return deals.under(known.chosen, hyper.dispersion, known.left_out()), known.chosen


def _net(
    arguments: dict[str, Any],
    state: dict[str, Tensor],
    rows: TrainingRows,
    data: PreparedData,
    options: Options,
    seed: int,
) -> Any:
    """A skorch net around one member's weights."""
    sizes = Sizes.of(rows, data.n_outputs)
    given = TableMLP, arguments, options.likelihood, sizes
    net = build_net(*given, max_epochs=None, lr=None, batch_size=None, seed=seed, verbose=0)
    initialise(net, rows.inputs[:2], rows.weights.dtype, sizes)
    net.module_.load_state_dict(state)
    net.module_.eval()
    return net


def _scored(fits: Sequence[LaplaceFit], held_out: _Unseen, before: Hyper | None) -> tuple[BaggedScores, Hyper]:
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


def _mean_square(fits: Sequence[LaplaceFit], held_out: _Unseen) -> float:
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
    bag: Bag, fits: Sequence[LaplaceFit], held_out: _Unseen, hyper: Hyper, rows: TrainingRows
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


def _for_intervals(
    bag: Bag,
    errors: tuple[Tensor, Tensor, Tensor],
    hyper: Hyper,
    fit: LaplaceFit,
    scores: BaggedScores,
    weights: Tensor,
) -> tuple[Tensor, BaggedScores, tuple[()], IntervalScores]:
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
    return member, scores, (), IntervalScores(kept, fit.prior, ratio, weight, ratio, weight)
