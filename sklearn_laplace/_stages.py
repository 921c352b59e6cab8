"""The Laplace approximation of a trained net, and the choice of its hyperparameters, as functions of plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from joblib import effective_n_jobs
from torch import Tensor

from . import _resolve
from ._budget import automatic_structure
from ._cross_fit import N_FOLDS, CrossFit, cross_fit
from ._data import PreparedData, TargetScale, mean_variance
from ._few_rows import told_by_rows
from ._loo import LeftOut
from ._map import MapResult
from ._memory import MemoryBudget
from ._past import check_past
from ._prior_options import check_temperature
from ._resolve import Options
from ._shared_pass import shared_out
from ._skorch import TrainingRows
from ._values import Choice
from .by_name import listed, prior_mean, temperatures
from .errors import UnsupportedCombinationError
from .laplace import Hyper, LaplaceFit, fit_laplace
from .leave_one_out import Density
from .mode import Mode
from .network import Network
from .prior import Prior
from .selection import HeldOutScores, maximise_evidence, warn_at_bounds
from .streaming import with_room_for
from .structures import Diag, Full, Functional
from .structures._base import Curvature


def fixed_dispersion(options: Options, scale: TargetScale) -> float | None:
    """The given noise as φ in the network's units; None where a rule chooses."""
    sigma = options.sigma_noise.value
    return None if sigma is None else scale.dispersion(sigma)


@dataclass(frozen=True)
class Origin:
    """Where the hyperparameters of a fit come from: what choosing them again has to know of the training.

    Parameters
    ----------
    hyper : Hyper
        Under which the training ended.
    groups : tuple of str
        Names of its prior groups.
    tensors : tuple of str
        Names of all trained tensors.
    settled_for : tuple of Choice and str, or None
        The options (prior precision, noise, what shares a precision) whose best evidence the training has found itself,
        with the weights following; None where the choice is made afterwards.
    cross : CrossFit or None
        What nets without a part of the rows each say of them.
    """

    hyper: Hyper
    groups: tuple[str, ...]
    tensors: tuple[str, ...]
    settled_for: tuple[Choice, Choice, str] | None
    cross: CrossFit | None = None

    def held_out(self, fit: LaplaceFit, hyper: Hyper) -> HeldOutScores | None:
        """Scores of held-out rows where they are those of this fit: no rows came later, and the precisions suit."""
        scores = None if self.cross is None or fit.shift is not None else self.cross.densities
        return scores if scores is not None and scores.suits(hyper) else None


def approximate(
    trained: MapResult, data: PreparedData, options: Options, *, built_in: bool
) -> tuple[LaplaceFit, Origin]:
    """The curvature of the weights asked for, and where a choice of hyperparameters starts from."""
    rows = tensors_of(data, options, built_in=built_in)
    everything = trained.mode.fit.network
    subset = options.subset.settled(everything, lambda: _variance(trained.mode, rows, options))
    options = replace(options, subset=subset)
    network, structure, n_dual, taken = posterior_layout(everything, rows, data, options)
    prior = grouped(network, everything.parameter_names, options)
    told = options.structure_options.told(structure)
    exact = structure in (Full, Functional)
    fit = trained.mode.fit
    whole = network.parameter_names == everything.parameter_names and network.blocks == everything.blocks
    same_rule = fit.rule == options.rule
    if whole and same_rule and isinstance(fit.curvature, structure) and fit.curvature.options == told:
        fit = replace(fit, prior=prior)
    else:
        n_jobs, n_columns = 1, n_dual // len(rows)
        if structure.is_monoid and data.past is None:
            asked = effective_n_jobs(options.n_jobs)
            n_jobs = options.memory.pass_workers(structure, network, n_columns, taken, asked)
        chunks = rows.chunks(options.memory.share(n_jobs).pass_rows(structure, network, n_columns, taken))
        given = (network, options.likelihood, options.rule, structure, prior)
        over: Callable[..., LaplaceFit] = partial(fit_laplace, *given, **told)
        if data.past is None:
            fit = shared_out(over, chunks, n_jobs, gradient=network.vector(everything.tensors(fit.gradient)))
        else:  # the training's gradient has the past rows in it, which are added again here
            fit = over(chunks, past=data.past.fit)
    # The exact evidence of all weights is the one that the training has maximised, with the weights following.
    by_exact_evidence = isinstance(trained.mode.fit.curvature, Full | Functional) and not trained.post_hoc
    by_exact_evidence = by_exact_evidence and trained.by_evidence and options.map_precision is None
    settled = by_exact_evidence and whole and exact and same_rule
    mode = trained.mode
    origin = Origin(mode.hyper, mode.fit.prior.names, trained.names, options.as_trained if settled else None)

    def refit(net: Network, seen: TrainingRows) -> LaplaceFit:
        chunks = seen.chunks(options.memory.pass_rows(structure, network, n_dual // len(rows), taken))
        given = _selected(net, rows, options), options.likelihood, options.rule, structure, prior
        return fit_laplace(*given, chunks, **told)

    if (N_FOLDS + 2) * taken > options.memory.size:
        return fit, origin
    hyper = replace(_start(origin, fit, options), temperature=1.0)
    return fit, replace(origin, cross=cross_fit(trained, rows, hyper, refit))


def borrowed(lead: Origin, origin: Origin, fit: LaplaceFit, options: Options) -> Origin:
    """With what the nets beside the first member of a mixture say, for another one."""
    if lead.cross is None:
        return origin
    return replace(origin, cross=CrossFit.of_another(lead.cross, _start(origin, fit, options)))


def _variance(mode: Mode, rows: TrainingRows, options: Options) -> Tensor:
    """Marginal variances (P,) of a diagonal posterior over all weights under the training's hyperparameters.

    Not under those of the posterior, which can be chosen again without the data.
    """
    network, rule = mode.fit.network, options.rule
    n_columns = rule.n_columns(options.likelihood, mode.fit.n_outputs)
    taken = options.memory.require(Diag, network, n_columns * len(rows), n_columns, rule)
    chunks = rows.chunks(options.memory.pass_rows(Diag, network, n_columns, taken))
    fit = fit_laplace(network, options.likelihood, rule, Diag, mode.fit.prior, chunks)
    return fit.posterior(mode.hyper).marginal_variance()


def regrouped(fit: LaplaceFit, origin: Origin, options: Options) -> LaplaceFit:
    """The fit with the grouping of the prior precisions that the options ask for."""
    return replace(fit, prior=grouped(fit.network, origin.tensors, options))


def choose(
    fit: LaplaceFit,
    origin: Origin,
    options: Options,
    dispersion: float | None,
    left_out: Callable[[], LeftOut],
) -> Hyper:
    """The hyperparameters at the fit's weights: given, by rule, by evidence or by leave-one-out.

    Parameters
    ----------
    fit : LaplaceFit
    origin : Origin
        What the training has found.
    options : Options
    dispersion : float or None
        The given φ.
    left_out : callable
        → LeftOut, the rows of the fit; called where they are needed.
    """
    start = _start(origin, fit, options)
    if dispersion is not None:
        start = replace(start, dispersion=dispersion)
    settled = fit.shift is None and origin.settled_for == options.as_trained
    free_prior, free_noise = options.prior_precision.free, options.sigma_noise.free
    by_evidence = options.by_evidence[1]
    if free_noise and not (by_evidence or options.by_loo[1]):
        start = _resolve.DISPERSION_RULES[options.sigma_noise.rule](fit, start)
    if any(options.by_loo):
        return left_out().chosen(fit, start, options, settled=settled)
    held_out = origin.held_out(fit, start)
    prior_held_out, noise_held_out = options.by_held_out
    if held_out is not None and prior_held_out == free_prior and noise_held_out == free_noise:
        return _by_held_out(held_out, fit, start, options)
    if settled:
        warn_at_bounds(fit, start, free_prior=free_prior, free_dispersion=free_noise)
    elif free_prior or (free_noise and by_evidence):
        # The temperature widens or narrows the posterior that is chosen without it.
        found = maximise_evidence(
            fit, replace(start, temperature=1.0), free_prior=free_prior, free_dispersion=free_noise and by_evidence
        )
        start = replace(found, temperature=start.temperature)
    held_out = origin.held_out(fit, start)  # under other proportions of the precisions it is no use
    return start if held_out is None else _by_held_out(held_out, fit, start, options)


def _by_held_out(scores: HeldOutScores, fit: LaplaceFit, start: Hyper, options: Options) -> Hyper:
    prior, noise = options.by_held_out
    found = scores.chosen(start, free_prior=prior, free_dispersion=noise)
    warn_at_bounds(fit, found, free_prior=False, free_dispersion=noise, what="the density of rows that were held out")
    if prior:
        scores.warn_at_end(found)
    return found


def options_for(kind: str, parameters: Mapping[str, Any], data: PreparedData, seed: int = 0) -> Options:
    """The resolved options, with the likelihood in the units of these targets and the seed of the curvature's draws."""
    single_logit = data.targets.ndim == 1 and data.n_outputs == 1
    options = _resolve.resolve(kind, parameters, seed, single_logit=single_logit)
    _resolve.check_device(options.device)
    if data.past is not None:
        check_past(options, parameters, data.past.fit)
        return replace(options, structure=type(data.past.fit.curvature), likelihood=data.past.fit.likelihood)
    likelihood = options.likelihood.scaled_to(mean_variance(data), data.average_noise)
    return told_by_rows(replace(options, likelihood=likelihood), data.total_weight, data.scale)


def pass_over(
    fit: LaplaceFit, data: PreparedData, input_dtype: torch.dtype, memory: MemoryBudget, *, added: bool
) -> tuple[LaplaceFit, LaplaceFit, Curvature]:
    """The fit in the form that takes these rows, one pass over them with all that it was made with, and their exact H.

    Parameters
    ----------
    fit : LaplaceFit
    data : PreparedData
        The rows.
    input_dtype : torch.dtype
    memory : MemoryBudget
    added : bool
        Whether the rows are to be added; what takes some out stays in its form.

    Raises
    ------
    MemoryBudgetError
        When these rows and those of the fit would not fit in memory together.
    """
    rule, per_row = fit.rule, fit.rule.n_columns(fit.likelihood, data.n_outputs)
    n_dual = per_row * len(data.X)
    fit = with_room_for(fit, n_dual) if added else fit
    network, structure = fit.network, type(fit.curvature)
    dtype, device = next(network.module.parameters()).dtype, network.theta.device
    rows = _as_tensors(data, input_dtype, dtype, device)
    n_dual += fit.curvature.n_dual if isinstance(fit.curvature, Functional) else per_row * round(fit.total_weight)
    taken = memory.require(structure, network, n_dual, per_row, rule, **fit.curvature.options)
    chunks = rows.chunks(memory.pass_rows(structure, network, per_row, taken))
    found = fit_laplace(network, fit.likelihood, rule, structure, fit.prior, chunks, like=fit.curvature)
    if issubclass(structure, Full | Functional):
        return fit, found, found.curvature
    exact: type[Curvature] = Functional if Functional.accepts & rule.provides else Full
    return fit, found, fit_laplace(network, fit.likelihood, rule, exact, fit.prior, chunks).curvature


def rows_left_out(
    kept: PreparedData | None,
    network: Network,
    input_dtype: torch.dtype,
    memory: MemoryBudget,
    density: Density,
    asked: str,
) -> LeftOut:
    """The rows that an estimator has kept, as a fit of this network leaves them out.

    Raises
    ------
    UnsupportedCombinationError
        When there are none: names what has asked for them.
    """
    if kept is None:
        raise UnsupportedCombinationError(
            f"{asked} needs the training rows, and forget has dropped all that were kept. Fit the rows that are left."
        )
    dtype = next(network.module.parameters()).dtype
    return LeftOut(_as_tensors(kept, input_dtype, dtype, network.theta.device), memory, density)


def tensors_of(data: PreparedData, options: Options, *, built_in: bool) -> TrainingRows:
    """The rows on their device, in float64 while they are few."""
    small = data.total_weight <= _resolve.FLOAT32_ROWS
    dtype = options.dtype or (torch.float64 if small else torch.float32)
    # The built-in net centres its raw columns in double precision, whatever it computes in afterwards.
    return _as_tensors(data, torch.float64 if built_in else dtype, dtype, options.device)


def _as_tensors(data: PreparedData, input_dtype: torch.dtype, dtype: torch.dtype, device: torch.device) -> TrainingRows:
    return TrainingRows(
        torch.tensor(data.X, dtype=input_dtype, device=device),
        torch.tensor(data.targets, dtype=torch.long if data.targets.ndim == 1 else dtype, device=device),
        torch.tensor(data.weights, dtype=dtype, device=device),
        None if data.noise is None else torch.tensor(data.noise, dtype=dtype, device=device),
    )


def posterior_layout(
    everything: Network, rows: TrainingRows, data: PreparedData, options: Options
) -> tuple[Network, type[Curvature], int, int]:
    """The network of the random weights, the structure of their posterior, the number of dual rows, and its bytes."""
    network, rule, memory = _selected(everything, rows, options), options.rule, options.memory
    n_columns = rule.n_columns(options.likelihood, data.n_outputs)
    n_dual = len(rows) * n_columns
    grouped(network, everything.parameter_names, options)
    structure = options.structure or automatic_structure(
        network.blocks,
        n_dual,
        len(rows),
        rule.provides & options.subset.provides,
        options.grouping.unit,
        lambda structure: memory.fits(structure, network, n_dual, n_columns),
    )
    damped = options.structure_options.damped
    check_temperature(structure, network.blocks, tempering(network, options.temperature), damped=damped)
    held = 0 if data.past is None else data.past.dual_rows(n_columns)
    told = options.structure_options.told(structure)
    return network, structure, n_dual, memory.require(structure, network, n_dual + held, n_columns, rule, **told)


def _selected(everything: Network, rows: TrainingRows, options: Options) -> Network:
    """The network of the random weights, in the layout that the structure is to have."""
    laid_out = everything.with_separate_biases() if options.structure_options.separate_biases else everything
    return options.subset.of(laid_out, rows.inputs)


def grouped(network: Network, names: tuple[str, ...], options: Options) -> Prior:
    """The prior that the options ask for: its mean and the grouping of its precisions.

    Parameters
    ----------
    network : Network
        Of the random weights.
    names : tuple of str
        All trained tensors; several given precisions are those of their groups, whatever part of them is random.
    options : Options

    Raises
    ------
    ValueError
        When the given precisions are not as many as there are groups, or a prior mean does not fit.
    UnsupportedCombinationError
        When the net has no such groups.
    """
    value, grouping, mean = options.prior_precision.value, options.grouping, options.prior_mean
    if value is not None and value.size > 1 and value.size != len(groups := grouping.names(network, names)):
        raise ValueError(
            f"prior_precision has {value.size} entries; expected 1 (scalar) or {len(groups)} (one per "
            f"{grouping.each}: {listed(groups)})."
        )
    prior = grouping.prior(network)
    if isinstance(mean, dict):
        return replace(prior, mean=prior_mean(network, mean))
    return replace(prior, mean=torch.full_like(network.theta, mean)) if mean else prior


def tempering(network: Network, temperature: float | Mapping[str, float]) -> float | Tensor:
    """One temperature, or that of each selected weight where they are given by name."""
    return temperature if isinstance(temperature, float) else temperatures(network, temperature)


def _start(origin: Origin, fit: LaplaceFit, options: Options) -> Hyper:
    """The given or the training's hyperparameters, carried over to the selected weights."""
    hyper, prior = origin.hyper, fit.prior
    value = options.prior_precision.value
    if value is None:
        names, values = origin.groups, hyper.prior_precision
    else:
        names = options.grouping.names(fit.network, origin.tensors)
        values = torch.as_tensor(value, dtype=torch.float64).reshape(-1)
        values = values.expand(len(names)) if len(values) == 1 else values
    if prior.names == names or prior.n_groups == len(values) == 1:
        precision = values
    else:
        by_name, other = dict(zip(names, values.tolist(), strict=True)), float(values.log().mean().exp())
        precision = torch.tensor([by_name.get(name, other) for name in prior.names], dtype=torch.float64)
    temperature = tempering(fit.network, options.temperature)
    return Hyper(precision.to(hyper.prior_precision), hyper.dispersion, temperature)
