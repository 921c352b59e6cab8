"""The Laplace approximation of a trained net, and the choice of its hyperparameters, as functions of plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from joblib import effective_n_jobs

from .._data.rows import PreparedData
from .._host.rows import TrainingRows
from .._options.options import Options
from .._runtime.memory import MemoryBudget
from .._training.folds import N_FOLDS
from .._training.plan import MapResult
from .._training.random_weights import _as_tensors, _selected, grouped, posterior_layout, tensors_of
from ..laplace.fit import LaplaceFit, fit_laplace
from ..laplace.network.network import Network
from ..laplace.structures import Full, Functional
from ..laplace.structures._base import Curvature
from ..laplace.updates import with_room_for
from .choose import SelectionState, _start, _variance
from .held_out import cross_fit
from .shared_pass import shared_out


def approximate(
    trained: MapResult, data: PreparedData, options: Options, *, built_in: bool
) -> tuple[LaplaceFit, SelectionState]:
    """The curvature of the weights asked for, and where a choice of hyperparameters starts from."""
    rows = tensors_of(data, options, built_in=built_in)
    everything = trained.mode.fit.network
    subset = options.subset.settled(everything, lambda: _variance(trained.mode, rows, options))
    options = replace(options, subset=subset)
    network, structure, n_dual, taken = posterior_layout(everything, rows, data, options)
    prior = grouped(network, everything.parameter_names, options)
    told = options.structure_options.options_of(structure)
    exact = structure in (Full, Functional)
    fit = trained.mode.fit
    whole = network.parameter_names == everything.parameter_names and network.blocks == everything.blocks
    same_rule = fit.rule == options.rule
    if whole and same_rule and isinstance(fit.curvature, structure) and fit.curvature.options == told:
        fit = replace(fit, prior=prior)
    else:
        n_jobs, n_columns = 1, n_dual // len(rows)
        if structure.is_monoid and options.previous is None:
            asked = effective_n_jobs(options.n_jobs)
            n_jobs = options.memory.pass_workers(structure, network, n_columns, taken, asked)
        chunks = rows.chunks(options.memory.share(n_jobs).pass_rows(structure, network, n_columns, taken))
        given = (network, options.likelihood, options.rule, structure, prior)
        over: Callable[..., LaplaceFit] = partial(fit_laplace, *given, **told)
        if options.previous is None:
            fit = shared_out(over, chunks, n_jobs, gradient=network.vector(everything.tensors(fit.gradient)))
        else:  # the training's gradient has the past rows in it, which are added again here
            fit = over(chunks, past=options.previous.fit)
    # The exact evidence of all weights is the one that the training has maximised, with the weights following.
    by_exact_evidence = isinstance(trained.mode.fit.curvature, Full | Functional) and not trained.post_hoc
    by_exact_evidence = by_exact_evidence and trained.by_evidence and options.map_precision is None
    settled = by_exact_evidence and whole and exact and same_rule
    mode = trained.mode
    origin = SelectionState(mode.hyper, mode.fit.prior.names, trained.names, options.as_trained if settled else None)

    def refit(net: Network, seen: TrainingRows) -> LaplaceFit:
        chunks = seen.chunks(options.memory.pass_rows(structure, network, n_dual // len(rows), taken))
        given = _selected(net, rows, options), options.likelihood, options.rule, structure, prior
        return fit_laplace(*given, chunks, **told)

    if (N_FOLDS + 2) * taken > options.memory.size:
        return fit, origin
    hyper = replace(_start(origin, fit, options), temperature=1.0)
    return fit, replace(origin, cross=cross_fit(trained, rows, hyper, refit))


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
