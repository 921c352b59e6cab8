r"""Laplace approximations of jointly trained members, each trained without one fold (``train_members.py``).

A repeat is a partition of the rows into folds, with one member per fold. Each row is thus held out from one member of
every repeat. Held-out rows determine the prior precision, the noise level and the model of varying noise.

**Prior and noise.** The prior precision that maximises the evidence of the first member is multiplied by a common
factor f. The held-out rows select f and, for every f, the noise level :math:`\varphi`. Nets trained by exact
Gauss–Newton steps ("exact nets") have their own precision and factor. Among factors with almost the same density, the
one closest to 1 is selected (``laplace/selection/held_out.py``).

**Calibration.** A mixture is more accurate than its members, and its errors have heavy tails. Held-out rows determine a
common factor of all variances, and the heaviness of the noise tails (``calibration.py``).

**Varying noise** is learnt from the held-out errors (``noise_model.py``). A first model is fitted before the last
learning-rate cycle of each repeat. In this cycle, rows with small noise have more weight. A second model, fitted after
the training, is used for predictions.

**Streams** are read in blocks, in one pass for all members. In each block, a Laplace fit to each member's training rows
is computed, and merged with the member's fit to the earlier blocks. The ranks (processes) then add up their sums. The
result is exact for structures that are sums over rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._table.rows import PreparedData, row_keys
from .._training.batches import FORWARD_ROWS, RowStream, held_out_by_hash
from .._training.built_in import initialised
from .._training.plan import FitRequest, MapResult, SelectionState, fixed_dispersion, tempering
from .._training.progress import Clock
from ..laplace.fit import CHUNK, Hyper, LaplaceFit, TrainingRows, fit_laplace
from ..laplace.leave_one_out.rows import gaussian_density, linear_rows
from ..laplace.likelihoods._base import without_noise
from ..laplace.mode.problem import Mode
from ..laplace.network.network import Network
from ..laplace.network.tracing import trace
from ..laplace.selection import HeldOutErrors, HeldOutScores, held_out_scores, maximise_evidence
from ..nets.skorch_net import finish
from ..options.resolved import Options
from .calibration import MOST_ROWS, HeldOutRepeats, calibrated, with_tails
from .joint_members import JointMembers
from .member import Member, member_of
from .noise_model import NoiseModel, TrainedNoise
from .target_noise import TargetNoise
from .train_members import fit_of, learns_noise, learnt_of

CURVATURE_ROWS = 2_000_000
"""Maximum number of rows, over all ranks, in the curvature pass. With more rows, a random sample is used."""
SUMS = "curvature", "nll", "gradient", "total_weight", "log_noise"
"""Fields of a Laplace fit that are sums over rows."""


def summed(fits: Sequence[LaplaceFit], stream: RowStream) -> list[LaplaceFit]:
    if stream.group.is_alone:
        return list(fits)
    parts = stream.group.gathered([{name: getattr(fit, name) for name in SUMS} for fit in fits])
    return [
        reduce(LaplaceFit.merge, [replace(fit, **of_rank[place]) for of_rank in parts])
        for place, fit in enumerate(fits)
    ]


def curvature_rows(stream: RowStream) -> int:
    """Number of rows of this rank (process) in the curvature pass."""
    return min(stream.share, CURVATURE_ROWS // stream.group.size)


def fits_of_stream(
    fits: Sequence[LaplaceFit],
    places: Sequence[int],
    stream: RowStream,
    options: Options,
    model: NoiseModel | TargetNoise | None,
    like: torch.Tensor,
) -> list[LaplaceFit]:
    """Return each member's Laplace fit to its training rows of the stream, with the structure of its fit to a sample.

    ``places`` are indices of the members' folds. ``model`` gives noise variances up to a factor; ``like`` sets dtype
    and device.
    """
    structure = type(fits[0].curvature)
    n_columns = fits[0].rule.n_columns(fits[0].likelihood, fits[0].n_outputs)
    step = options.memory.pass_rows(structure, fits[0].network, n_columns, 0)
    sums: list[LaplaceFit | None] = [None] * len(fits)
    for data in stream.some(curvature_rows(stream)):
        held_out = held_out_by_hash(data)[list(places)]
        under = data if model is None else data.under_noise(model.ratios_of(data.X))
        rows = under.tensors(torch.float64, like.dtype, like.device)
        for place, fit in enumerate(fits):
            chunks = rows.taken(torch.from_numpy(~held_out[place]).nonzero()[:, 0].to(like.device)).chunks(step)
            more = fit_laplace(fit.network, fit.likelihood, fit.rule, structure, fit.prior, chunks, like=fit.curvature)
            before = sums[place]
            sums[place] = more if before is None else before.merge(more)
    return summed([total for total in sums if total is not None], stream)


SCORED_ROWS = 125
"""Maximum number of held-out rows per member for selecting the noise level and the factor of the prior precision."""
PASSES_LEFT = 2.0
"""Minimum remaining time for an accurate noise model and a scored second pass, in durations of the first pass."""


def fits_on_rows(
    networks: Sequence[Network], joint_nets: JointMembers, data: PreparedData, options: Options, copies: float = 1.0
) -> tuple[list[LaplaceFit], TrainingRows]:
    """Return each member's Laplace fit to its training rows, and all rows as tensors; ``copies`` scales row weights."""
    rows, fits = data.training_rows(options.dtype, options.device, built_in=True), []
    for network, held_out, exact in zip(networks, joint_nets.held_out, joint_nets.are_exact, strict=True):
        seen = rows.taken((~held_out).nonzero()[:, 0])
        seen = seen if copies == 1.0 else replace(seen, weights=copies * seen.weights)
        fits.append(fit_of(network, seen, options, exact=exact))
    return fits, rows


def _held_out(rows: TrainingRows, joint_nets: JointMembers) -> Iterator[TrainingRows]:
    """Yield the held-out rows of one member at a time, since copies for all members would exceed the data in size."""
    return (rows.taken(mask.nonzero()[:, 0]) for mask in joint_nets.held_out)


def approximate_jointly(joint_nets: JointMembers, request: FitRequest, clock: Clock) -> list[Member]:
    """Return the ensemble members, with hyperparameters selected on held-out rows.

    If no time is left to score a second pass, the scores of the first are used, with a rough noise model or none.
    """
    options, data = request.options_for_rows(), request.data
    rows = data.training_rows(options.dtype, options.device, built_in=True)
    nets = nets_of(joint_nets, rows, options, request.seeds[0])
    networks = traced(nets, rows)
    first = _two_passes(joint_nets, networks, rows, request, options, clock)
    model, fits = first.model, first.fits
    factor, spread = calibrated(_scored_repeats(joint_nets, first, rows), joint_nets.shares)
    model = replace(model, spread=spread) if isinstance(model, NoiseModel) else model
    scores = [replace(of_net, factor=factor) for of_net in first.scores]
    is_free = options.sigma_noise.free
    hypers = [
        of_net.chosen(hyper, free_prior=True, free_dispersion=is_free)
        for of_net, hyper in zip(scores, first.hypers, strict=True)
    ]
    origins = [
        SelectionState(hyper, fit.prior.names, network.parameter_names, None, of_net)
        for hyper, fit, network, of_net in zip(hypers, fits, networks, scores, strict=True)
    ]
    return members_of(joint_nets, replace(request, data=first.under), nets, fits, hypers, origins, model)


def noise_of_folds(
    joint_nets: JointMembers, networks: Sequence[Network], hyper: Hyper, rows: TrainingRows, request: FitRequest
) -> NoiseModel | TargetNoise | None:
    """Learn the noise from held-out errors of exact nets under ``hyper``, as in training; None if known or constant."""
    options, data = request.options_for_rows(), request.data
    if not learns_noise(data, options):
        return None
    fits, _ = fits_on_rows(networks, joint_nets, data, options)
    hyper = replace(hyper, prior_precision=hyper.prior_precision[: fits[0].prior.n_groups])
    error, variance, known = (part[0] for part in _errors(joint_nets, fits, [hyper] * len(fits), rows))
    held_out_errors = HeldOutErrors(error, variance, known, rows.weights.double())
    trained, levels = learnt_of(
        request, held_out_errors, rows.inputs, hyper.dispersion, options, honest=True, quick=False
    )
    return levels if trained is None else with_tails(trained).model


@dataclass(frozen=True)
class _Passes:
    """Result of the passes over the rows: Laplace fits under the last noise model, and held-out scores and errors."""

    fits: Sequence[LaplaceFit]
    scores: Sequence[HeldOutScores]  # (K,), one for each net
    hypers: Sequence[Hyper]
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
    """Return the results of one pass over the rows, or of two if noise is learnt or rows are streamed."""
    data, weights = request.data, rows.weights.double()
    under, model, trained, noise = data, None, None, joint_nets.average_noise
    if noise is not None:
        under = data.under_noise(noise.cpu().numpy())
    begun, stream, known = clock.elapsed, request.stream, fixed_dispersion(options, data.scale)
    copies = 1.0 if stream is None else stream.total_weight / rows.total_weight
    fits, rows_under = fits_on_rows(networks, joint_nets, under, options, copies)
    scores, hypers = _scored(fits, rows_under, joint_nets, known, None)
    errors = _errors(joint_nets, fits, hypers, rows_under)
    learns = learns_noise(data, options)
    is_short = learns and clock.lacks(PASSES_LEFT * (clock.elapsed - begun))
    if learns and (noise is not None or not is_short):
        error, variance, of_rows = (torch.tensordot(joint_nets.repeat_shares, part, 1) for part in errors)
        held_out_errors = HeldOutErrors(error, variance, of_rows, weights)
        level = float(joint_nets.repeat_shares @ _levels(joint_nets, hypers))
        trained, levels = learnt_of(request, held_out_errors, rows.inputs, level, options, honest=True, quick=is_short)
        model = levels if trained is None else trained.model
    if model is not None or noise is not None or stream is not None:
        under = data if model is None else data.under_noise(model.ratios_of(data.X))
        if rows.n_outputs > 1:  # noise of each target in an average row
            likelihood = options.likelihood.scaled_to(data.mean_variance, under.average_noise)
            options = replace(options, likelihood=likelihood)
        started = clock.elapsed
        fits, rows_under = fits_on_rows(networks, joint_nets, under, options, copies)
        if stream is not None and not clock.lacks((clock.elapsed - started) * curvature_rows(stream) / len(rows)):
            fits = fits_of_stream(fits, joint_nets.places, stream, options, model, rows.weights)
        if model is None or not is_short:
            scores, hypers = _scored(fits, rows_under, joint_nets, known, hypers)
            errors = _errors(joint_nets, fits, hypers, rows_under)
    return _Passes(fits, scores, hypers, errors, under, trained, model)


def _levels(joint_nets: JointMembers, hypers: Sequence[Hyper]) -> Tensor:
    """Noise level φ of the nets of each repeat, shape (D,)."""
    repeat_of = joint_nets.repeat_of
    values = torch.tensor([hyper.dispersion for hyper in hypers], dtype=torch.float64, device=repeat_of.device)
    return torch.zeros_like(values[: joint_nets.n_repeats]).scatter(0, repeat_of, values)


def _scored_repeats(joint_nets: JointMembers, passes: _Passes, rows: TrainingRows) -> HeldOutRepeats:
    """Held-out errors for the calibration: of all rows, or of a sample of those that a noise model was trained on."""
    (error, variance, noise), weights = passes.errors, rows.weights.double()
    levels = _levels(joint_nets, passes.hypers)[:, None, None]
    repeats = HeldOutRepeats(error, variance, levels * noise, None, weights, joint_nets.repeat_shares)
    if passes.trained is None:
        return repeats
    known = passes.trained.some(MOST_ROWS)
    return repeats.under(known.chosen, levels, known.left_out())


def nets_of(joint_nets: JointMembers, rows: TrainingRows, options: Options, seed: int) -> list[Any]:
    """Skorch nets with the trained weights."""
    nets = []
    for arguments, state in zip(joint_nets.arguments, joint_nets.states, strict=True):
        net = initialised(arguments, options.likelihood, rows, seed)
        net.module_.load_state_dict(state)
        net.module_.eval()
        nets.append(net)
    return nets


def traced(nets: Sequence[Any], rows: TrainingRows) -> list[Network]:
    """Return the traced network of each net. Nets whose tensors have the same shapes share one trace."""
    traces: dict[tuple[torch.Size, ...], Network] = {}
    networks = []
    for net in nets:
        shapes = tuple(parameter.shape for parameter in net.module_.parameters())
        if shapes not in traces:
            traces[shapes] = trace(net.module_, rows.inputs)
        networks.append(traces[shapes].with_state_of(net.module_))
    return networks


def members_of(
    joint_nets: JointMembers,
    request: FitRequest,
    nets: Sequence[Any],
    fits: Sequence[LaplaceFit],
    hypers: Sequence[Hyper],
    origins: Sequence[SelectionState],
    noise_model: NoiseModel | TargetNoise | None,
) -> list[Member]:
    """Return the members of the ensemble. Each one stores the keys of the rows that were held out from it."""
    n_steps, is_small, data = joint_nets.n_steps, joint_nets.is_small, request.data
    temperature = tempering(fits[0].network, request.resolved.temperature)
    keys, held_out, n_bins = row_keys(data.X, data.targets), joint_nets.held_out.cpu().numpy(), pieces_of(joint_nets)
    members = []
    for k, (net, fit, hyper) in enumerate(zip(nets, fits, hypers, strict=True)):
        mode = Mode(fit, hyper, n_steps)
        trained = MapResult(finish(net, fit.network), mode, [], n_steps, is_small, input_dtype=torch.float64)
        member = member_of(request, trained, fit, replace(hyper, temperature=temperature), origins[k], noise_model)
        unseen = np.unique(keys[held_out[k]])
        kept = None if request.kept is None else request.kept.without(unseen)
        is_streamed = request.stream is not None
        members.append(replace(member, unseen=unseen, kept=kept, n_bins=n_bins[k], is_streamed=is_streamed))
    return members


def pieces_of(joint_nets: JointMembers) -> tuple[int | None, ...]:
    """Maximum number of bins of a column, for each member; None without bins."""
    return tuple(
        max((len(edges) - 1 for edges in a.get("input_edges", ())), default=0) or None for a in joint_nets.arguments
    )


def _scored(
    fits: Sequence[LaplaceFit],
    rows: TrainingRows,
    joint_nets: JointMembers,
    known: float | None,
    before: Sequence[Hyper] | None,
) -> tuple[list[HeldOutScores], list[Hyper]]:
    """Scores and hyperparameters of each net: one set for exact nets, one for the others. ``known`` is a fixed φ."""
    listed, n_exact = list(zip(fits, _held_out(rows, joint_nets), strict=True)), joint_nets.n_exact
    scores: list[HeldOutScores] = []
    hypers: list[Hyper] = []
    for first, group in ((0, listed[:n_exact]), (n_exact, listed[n_exact:])):
        if not group:
            continue
        fit = group[0][0]
        start = Hyper(torch.ones_like(fit.theta[: fit.prior.n_groups])) if before is None else before[first]
        start = replace(start, dispersion=_mean_square(group) if known is None else known)
        start = maximise_evidence(fit, start, free_prior=True, free_dispersion=False, warn=False)
        parts = []
        for k, (member_fit, unseen) in enumerate(group, first):
            few = torch.randperm(len(unseen), generator=torch.Generator().manual_seed(k))[:SCORED_ROWS].sort().values
            parts.append((member_fit, unseen.taken(few.to(unseen.inputs.device)).chunks(CHUNK)))
        of_group = held_out_scores(parts, start, gaussian_density)
        scores += [of_group] * len(group)
        hypers += [of_group.chosen(start, free_prior=True, free_dispersion=known is None)] * len(group)
    return scores, hypers


def _mean_square(parts: Sequence[tuple[LaplaceFit, TrainingRows]]) -> float:
    """Weighted mean of squared held-out errors divided by known noise variances, clipped to the bounds of φ."""
    total = weight = torch.zeros((), dtype=torch.float64, device=parts[0][0].theta.device)  # read once, at the end
    for fit, rows in parts:
        for x, targets, weights in rows.chunks(FORWARD_ROWS):
            y, noise = without_noise(targets.double(), fit.n_outputs)
            squares = ((y - fit.network(x).double()).square() / noise).mean(1)
            total, weight = total + weights.double() @ squares, weight + weights.double().sum()
    low, high = parts[0][0].likelihood.dispersion_bounds
    return min(max(float(total / weight), low), high)


def _errors(
    joint_nets: JointMembers, fits: Sequence[LaplaceFit], hypers: Sequence[Hyper], rows: TrainingRows
) -> tuple[Tensor, Tensor, Tensor]:
    """Held-out errors, posterior variances, and noise variances in units of φ, by repeat and row; (D, n, C) each."""
    repeat_of = joint_nets.repeat_of.tolist()
    shape = (joint_nets.n_repeats, len(rows), fits[0].n_outputs)
    zeros = torch.zeros(3, *shape, dtype=torch.float64, device=rows.inputs.device)
    for k, (fit, unseen) in enumerate(zip(fits, _held_out(rows, joint_nets), strict=True)):
        posterior, parts = fit.posterior(hypers[k]), []
        for part in linear_rows(fit.network, unseen.chunks(CHUNK)):
            y, noise = without_noise(part.targets.double(), fit.n_outputs)
            variance = posterior.covariance(part.jacobian).diagonal(dim1=1, dim2=2)
            parts.append((y - part.outputs, variance, noise))
        places = joint_nets.held_out[k].nonzero()[:, 0]
        for whole, values in zip(zeros, zip(*parts, strict=True), strict=True):
            whole[repeat_of[k], places] = torch.cat(values).double()
    error, variance, noise = zeros
    return error, variance, noise
