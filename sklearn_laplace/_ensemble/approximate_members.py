r"""Laplace approximations of members that train together, each without a fold of the rows (``train_members.py``).

Each row is held out from one member of every repeat. The errors on held-out rows select the prior precision, the noise
level, and the model of varying noise.

**Prior and noise.** The prior precision of largest evidence of the first member is multiplied by a common factor f. The
held-out rows select f and, for every f, the noise :math:`\varphi` (``laplace/selection/held_out.py``). Factors whose
density is within ``TOLERANCE`` nats per row of the best are equivalent, and the one closest to 1 is selected.

**Calibration.** A mixture is more accurate than its members, and its errors have heavy tails. Held-out rows determine
a factor of all variances, and the tails of the noise (``_approximation/calibration.py``).

**Varying noise** is learnt from these errors (``_approximation/noise_model.py``). A first model precedes the last cycle
of each program, which then gives precise rows more weight. A last model is for predictions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._approximation.calibration import MOST_ROWS, HeldOutDensities, HeldOutRepeats, calibrated
from .._approximation.choose import SelectionState
from .._approximation.held_out import CrossFit
from .._approximation.noise_model import NoiseModel, TrainedNoise
from .._approximation.target_noise import TargetNoise
from .._data.rows import PreparedData
from .._host.epochs import finish
from .._host.net import build_net, initialise
from .._host.rows import Sizes, TrainingRows, some_rows
from .._options.options import Options
from .._runtime.progress import Clock
from .._training.plan import MapResult
from ..distributions.densities import density_for
from ..laplace.evidence import PRECISION_BOUNDS
from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.leave_one_out.rows import linear_rows
from ..laplace.likelihoods._base import without_noise
from ..laplace.mode.problem import Mode
from ..laplace.network.network import Network
from ..laplace.network.tracing import trace
from ..laplace.selection import HeldOutErrors, HeldOutScores, held_out_scores, maximise_evidence
from ..nets import TableMLP
from .joint_members import JointMembers
from .request import FitRequest
from .streamed import curvature_rows, fits_of_stream
from .train_members import fit_of, learns_noise, learnt_of

SCORED_ROWS = 125
"""Number of held-out rows of each member for selecting the prior precision, which is a single number."""
TOLERANCE = 0.002
"""Difference of log densities, in nats per row, within which prior precisions are equivalent."""
WEAKEST = 0.3
"""Minimum factor of the prior precision of largest evidence, for targets with noise. Under a weaker prior the wide
posterior would explain varying noise, and nothing would be left for the noise model."""
PASSES_LEFT = 2.0
"""Minimum remaining time for scoring a second pass, in units of the first pass. The noise model takes about as long as
a pass."""
CHUNK = 512
"""Rows whose Jacobians are computed at a time."""


@dataclass(frozen=True)
class JointScores(HeldOutScores):
    """Log densities of held-out rows on a grid of prior precisions, and the variance ``factor`` of the mixture."""

    factor: float = 1.0

    def suits(self, hyper: Hyper) -> bool:
        """True if the precisions are a common multiple of those of the training."""
        return self.is_multiple(hyper)

    def warn_at_end(self, hyper: Hyper) -> None:
        """No warning: the spread of the members may be all of the epistemic uncertainty."""

    def chosen(self, hyper: Hyper, *, free_prior: bool, free_dispersion: bool) -> Hyper:
        """Prior precision and noise of largest density; both are scaled by ``factor`` if both are free."""
        noise, density, factors = self.points(hyper, free_prior=free_prior, free_dispersion=free_dispersion)
        if free_prior and self.freedom:
            density = torch.where(factors >= WEAKEST, density, -math.inf)
        near = density >= density.max() - max(1.0, TOLERANCE * self.freedom)
        best = int(torch.where(near, factors.log().abs(), math.inf).argmin()) if free_prior else int(density.argmax())
        values = factors[best] * self.unit if free_prior else hyper.prior_precision
        dispersion = float(noise[best])
        if free_prior and free_dispersion:
            values, dispersion = values / self.factor, dispersion * self.factor
        return replace(hyper, prior_precision=values.clamp(*PRECISION_BOUNDS), dispersion=dispersion)


@dataclass(frozen=True)
class JointFits:
    """Laplace approximations of all members, with common hyperparameters."""

    members: tuple[tuple[MapResult, LaplaceFit], ...]
    hyper: Hyper
    origin: SelectionState
    noise_model: NoiseModel | TargetNoise | None  # of varying noise, or a level per target; None for a single level
    data: PreparedData  # with the noise variances of ``noise_model``
    held_out: np.ndarray  # (K, n), True for rows that were held out from a member
    n_bins: tuple[int | None, ...]  # maximum number of pieces of a column, for each member
    shares: np.ndarray  # (K,), weights of the members
    scored: np.ndarray  # (m,), int64: the rows of ``densities``
    densities: HeldOutDensities | None  # of held-out rows; None for classes and counts


@dataclass(frozen=True)
class _Unseen:
    """Held-out rows of each member; they are copied for one member at a time, since all together exceed the data."""

    rows: TrainingRows
    held_out: Tensor

    def __iter__(self) -> Iterator[TrainingRows]:
        return (self.rows.taken(mask.nonzero()[:, 0]) for mask in self.held_out)


def fits_on_rows(
    networks: Sequence[Network], joint_nets: JointMembers, data: PreparedData, options: Options, copies: float = 1.0
) -> tuple[list[LaplaceFit], _Unseen]:
    """Laplace fit of each member on its training rows, each with a number of copies, and its held-out rows."""
    rows, fits = data.training_rows(options.dtype, options.device, built_in=True), []
    for network, held_out in zip(networks, joint_nets.held_out, strict=True):
        seen = rows.taken((~held_out).nonzero()[:, 0])
        fits.append(fit_of(network, seen if copies == 1.0 else replace(seen, weights=copies * seen.weights), options))
    return fits, _Unseen(rows, joint_nets.held_out)


def approximate_jointly(joint_nets: JointMembers, request: FitRequest, clock: Clock) -> JointFits:
    """Laplace approximations of the members, with hyperparameters selected on held-out rows.

    If a second pass with all scores would exceed the time limit, varying noise gets a rough model, and the scores of
    the first pass are used.
    """
    options, data = request.options_for_rows(), request.data
    rows = data.training_rows(options.dtype, options.device, built_in=True)
    nets = initialised(joint_nets, rows, options, request.seeds[0])
    first = _two_passes(joint_nets, traced(nets, rows), rows, request, options, clock)
    model, scores, hyper = first.model, first.scores, first.hyper
    repeats, scored = _scored_repeats(joint_nets, first, rows)
    calibration = calibrated(repeats, joint_nets.shares)
    densities = HeldOutDensities(repeats, calibration.spread, calibration.of_repeats, hyper.dispersion)
    model = replace(model, spread=calibration.spread) if isinstance(model, NoiseModel) else model
    scores = replace(scores, factor=calibration.factor)
    hyper = scores.chosen(hyper, free_prior=True, free_dispersion=True)
    fits = first.fits
    no_folds = torch.zeros(0, dtype=torch.int64)
    cross = CrossFit(no_folds, scores)
    origin = SelectionState(hyper, fits[0].prior.names, first.networks[0].parameter_names, None, cross)
    return JointFits(
        members=results_of(joint_nets, nets, fits, hyper, rows),
        hyper=hyper,
        origin=origin,
        noise_model=model,
        data=first.under,
        held_out=joint_nets.held_out.cpu().numpy(),
        n_bins=pieces_of(joint_nets),
        shares=np.array(joint_nets.shares),
        scored=scored.cpu().numpy(),
        densities=densities,
    )


@dataclass(frozen=True)
class _Passes:
    """Result of the passes over the rows: fits under the last noise model, and scores and errors of held-out rows."""

    networks: Sequence[Network]
    fits: Sequence[LaplaceFit]
    scores: JointScores
    hyper: Hyper
    errors: tuple[Tensor, Tensor, Tensor]
    under: PreparedData
    trained: TrainedNoise | None
    model: NoiseModel | TargetNoise | None


def _two_passes(
    joint_nets: JointMembers,
    networks: Sequence[Network],
    rows: TrainingRows,
    request: FitRequest,
    options: Options,
    clock: Clock,
) -> _Passes:
    """Take a pass under the noise of the training, and another one under the noise model learnt from its errors."""
    data, weights = request.data, rows.weights.double()
    under, model, trained, noise = data, None, None, joint_nets.average_noise
    if noise is not None:
        under = data.under_noise(noise.cpu().numpy())
    begun, stream = clock.elapsed, request.stream
    copies = 1.0 if stream is None else stream.total_weight / rows.total_weight
    fits, held_out = fits_on_rows(networks, joint_nets, under, options, copies)
    scores, hyper = _scored(fits, held_out, None)
    errors = _errors(joint_nets, fits, held_out, hyper, rows)
    learns = learns_noise(data, options)
    is_short = learns and clock.lacks(PASSES_LEFT * (clock.elapsed - begun))
    if learns and (noise is not None or not is_short):
        error, variance, known = (torch.tensordot(joint_nets.repeat_shares, part, 1) for part in errors)
        held_out_errors = HeldOutErrors(error, variance, known, weights)
        trained, levels = learnt_of(
            request, held_out_errors, rows.inputs, hyper.dispersion, options, honest=True, quick=is_short
        )
        model = levels if trained is None else trained.model
    if model is not None or noise is not None or stream is not None:
        under = data if model is None else data.under_noise(model.ratios_of(data.X))
        if rows.n_outputs > 1:  # the noise of an average row of each target
            likelihood = options.likelihood.scaled_to(data.mean_variance, under.average_noise)
            options = replace(options, likelihood=likelihood)
        started = clock.elapsed
        fits, held_out = fits_on_rows(networks, joint_nets, under, options, copies)
        if stream is not None and not clock.lacks((clock.elapsed - started) * curvature_rows(stream) / len(rows)):
            fits = fits_of_stream(fits, joint_nets.places, stream, options, model, rows.weights)
        if model is None or not is_short:
            scores, hyper = _scored(fits, held_out, hyper)
            errors = _errors(joint_nets, fits, held_out, hyper, rows)
    return _Passes(networks, fits, scores, hyper, errors, under, trained, model)


def _scored_repeats(joint_nets: JointMembers, passes: _Passes, rows: TrainingRows) -> tuple[HeldOutRepeats, Tensor]:
    """Held-out errors of a sample of rows for the calibration, and positions of these rows."""
    (error, variance, noise), hyper, weights = passes.errors, passes.hyper, rows.weights.double()
    repeats = HeldOutRepeats(error, variance, hyper.dispersion * noise, None, weights, joint_nets.repeat_shares)
    if passes.trained is None:
        scored = some_rows(len(rows), MOST_ROWS).to(weights.device)
        return repeats.taken(scored), scored
    known = passes.trained.some(MOST_ROWS)
    return repeats.under(known.chosen, hyper.dispersion, known.left_out()), known.chosen


def initialised(joint_nets: JointMembers, rows: TrainingRows, options: Options, seed: int) -> list[Any]:
    sizes, nets = Sizes.of(rows), []
    for arguments, state in zip(joint_nets.arguments, joint_nets.states, strict=True):
        training: dict[str, Any] = {"max_epochs": None, "lr": None, "batch_size": None, "seed": seed, "verbose": 0}
        net = build_net(TableMLP, arguments, options.likelihood, sizes, **training)
        initialise(net, rows.inputs[:2], rows.weights.dtype, sizes)
        net.module_.load_state_dict(state)
        net.module_.eval()
        nets.append(net)
    return nets


def traced(nets: Sequence[Any], rows: TrainingRows) -> list[Network]:
    """Network of each net; nets with tensors of the same shapes share one trace."""
    traces: dict[tuple[torch.Size, ...], Network] = {}
    networks = []
    for net in nets:
        shapes = tuple(parameter.shape for parameter in net.module_.parameters())
        if shapes not in traces:
            traces[shapes] = trace(net.module_, rows.inputs)
        networks.append(traces[shapes].with_state_of(net.module_))
    return networks


def results_of(
    joint_nets: JointMembers, nets: Sequence[Any], fits: Sequence[LaplaceFit], hyper: Hyper, rows: TrainingRows
) -> tuple[tuple[MapResult, LaplaceFit], ...]:
    n_steps, dtype = joint_nets.n_steps, rows.inputs.dtype

    def result(net: Any, fit: LaplaceFit) -> MapResult:
        return MapResult(finish(net, fit.network), Mode(fit, hyper, n_steps), [], n_steps, joint_nets.is_small, dtype)

    return tuple((result(net, fit), fit) for net, fit in zip(nets, fits, strict=True))


def pieces_of(joint_nets: JointMembers) -> tuple[int | None, ...]:
    """Maximum number of pieces of a column, for each member."""
    return tuple(
        max((len(edges) - 1 for edges in a.get("input_edges", ())), default=0) or None for a in joint_nets.arguments
    )


def _scored(fits: Sequence[LaplaceFit], held_out: _Unseen, before: Hyper | None) -> tuple[JointScores, Hyper]:
    """Scores of prior precisions and noises on held-out rows, and the hyperparameters that they select."""
    fit = fits[0]
    start = Hyper(torch.ones_like(fit.theta[: fit.prior.n_groups])) if before is None else before
    start = replace(start, dispersion=_mean_square(fits, held_out))
    start = maximise_evidence(fit, start, free_prior=True, free_dispersion=False, warn=False)
    parts = []
    for k, (member_fit, rows) in enumerate(zip(fits, held_out, strict=True)):
        few = torch.randperm(len(rows), generator=torch.Generator().manual_seed(k))[:SCORED_ROWS].sort().values
        parts.append((member_fit, rows.taken(few.to(rows.inputs.device)).chunks(CHUNK)))
    plain = held_out_scores(parts, start, density_for(fit.likelihood))
    scores = JointScores(plain.unit, plain.ridge, plain.squares, plain.constants, plain.freedom, plain.bounds)
    return scores, scores.chosen(start, free_prior=True, free_dispersion=True)


def _mean_square(fits: Sequence[LaplaceFit], held_out: _Unseen) -> float:
    """Weighted mean of squared errors over known noise variances, on held-out rows; within the bounds of φ."""
    total = weight = torch.zeros((), dtype=torch.float64, device=fits[0].theta.device)  # read once, at the end
    for fit, rows in zip(fits, held_out, strict=True):
        for x, targets, weights in rows.chunks(8 * CHUNK):
            y, noise = without_noise(targets.double(), fit.n_outputs)
            squares = ((y - fit.network(x).double()).square() / noise).mean(1)
            total, weight = total + weights.double() @ squares, weight + weights.double().sum()
    low, high = fits[0].likelihood.dispersion_bounds
    return min(max(float(total / weight), low), high)


def _errors(
    joint_nets: JointMembers, fits: Sequence[LaplaceFit], held_out: _Unseen, hyper: Hyper, rows: TrainingRows
) -> tuple[Tensor, Tensor, Tensor]:
    """Held-out errors, variances of predictions, and noise in units of φ, for each repeat and row; (D, n, C) each."""
    per_repeat = len(fits) // joint_nets.n_repeats
    shape = (joint_nets.n_repeats, len(rows), fits[0].n_outputs)
    zeros = torch.zeros(3, *shape, dtype=torch.float64, device=rows.inputs.device)
    for k, (fit, unseen) in enumerate(zip(fits, held_out, strict=True)):
        posterior, parts = fit.posterior(hyper), []
        for part in linear_rows(fit.network, unseen.chunks(CHUNK)):
            y, noise = without_noise(part.targets.double(), fit.n_outputs)
            variance = posterior.covariance(part.jacobian).diagonal(dim1=1, dim2=2)
            parts.append((y - part.outputs, variance, noise))
        places = joint_nets.held_out[k].nonzero()[:, 0]
        for whole, values in zip(zeros, zip(*parts, strict=True), strict=True):
            whole[k // per_repeat, places] = torch.cat(values).double()
    error, variance, noise = zeros
    return error, variance, noise
