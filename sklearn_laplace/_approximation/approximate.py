"""Laplace approximation of a trained net: the pass over its rows that computes the curvature of the random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from joblib import effective_n_jobs

from .._data.rows import PreparedData
from .._host.rows import Sizes, TrainingRows
from .._options.options import Options
from .._runtime.memory import MemoryBudget
from .._training.folds import CHUNK, N_FOLDS
from .._training.plan import MapResult
from .._training.random_weights import grouped, posterior_layout, selected
from ..laplace.fit import LaplaceFit, fit_laplace
from ..laplace.network.network import Network
from ..laplace.structures import Full, Functional
from ..laplace.structures._base import Curvature
from ..laplace.updates import with_room_for
from .choose import SelectionState, _start, _variance
from .held_out import FoldFit, cross_fit
from .shared_pass import shared_out


def approximate(
    trained: MapResult, data: PreparedData, options: Options, *, built_in: bool
) -> tuple[LaplaceFit, SelectionState]:
    """Compute the curvature of the random weights at the weights of a trained net.

    Parameters
    ----------
    trained : MapResult
    data : PreparedData
        Rows of the fit.
    options : Options
    built_in : bool
        True for the built-in net.

    Returns
    -------
    fit : LaplaceFit
        Laplace fit of the random weights. The pass of the training is reused if it has the same curvature.
    origin : SelectionState
        Start of the selection of hyperparameters, with the held-out scores of cross-fitted nets if they fit in memory.

    Raises
    ------
    MemoryBudgetError
        If the curvature does not fit in memory.
    """
    rows = data.training_rows(options.dtype, options.device, built_in=built_in)
    mode, fit = trained.mode, trained.mode.fit
    everything = fit.network
    subset = options.subset.settled(everything, lambda: _variance(mode, rows, options))
    options = replace(options, subset=subset)
    network, structure, n_dual, n_bytes = posterior_layout(everything, rows.inputs, Sizes.of(rows), options)
    prior = grouped(network, everything.parameter_names, options)
    settings = options.structure_options.options_of(structure)
    whole = network.parameter_names == everything.parameter_names and network.blocks == everything.blocks
    same_rule = fit.rule == options.rule
    if whole and same_rule and isinstance(fit.curvature, structure) and fit.curvature.options == settings:
        fit = replace(fit, prior=prior)
    else:
        n_jobs, n_columns = 1, n_dual // len(rows)
        if structure.is_monoid and options.previous is None:
            most_jobs = effective_n_jobs(options.n_jobs)
            n_jobs = options.memory.pass_workers(structure, network, n_columns, n_bytes, most_jobs)
        chunks = rows.chunks(options.memory.share(n_jobs).pass_rows(structure, network, n_columns, n_bytes))
        model = (network, options.likelihood, options.rule, structure, prior)
        data_pass: Callable[..., LaplaceFit] = partial(fit_laplace, *model, **settings)
        if options.previous is None:
            fit = shared_out(data_pass, chunks, n_jobs, gradient=network.vector(everything.tensors(fit.gradient)))
        else:  # the training's gradient is not reused: it includes the previous rows, which fit_laplace adds as well
            fit = data_pass(chunks, past=options.previous.fit)
    # The hyperparameters are settled if the training has maximised exactly this evidence, including the weights' mode.
    by_exact_evidence = isinstance(mode.fit.curvature, Full | Functional) and trained.by_evidence
    settled = by_exact_evidence and not trained.post_hoc and options.map_precision is None
    settled = settled and whole and same_rule and structure in (Full, Functional)
    origin = SelectionState(mode.hyper, mode.fit.prior.names, trained.names, options.as_trained if settled else None)

    def refit(net: Network, kept: TrainingRows) -> LaplaceFit:
        chunks = kept.chunks(options.memory.pass_rows(structure, network, n_dual // len(rows), n_bytes))
        model = selected(net, rows.inputs, options), options.likelihood, options.rule, structure, prior
        return fit_laplace(*model, chunks, **settings)

    if not trained.folds or (N_FOLDS + 2) * n_bytes > options.memory.size:
        return fit, origin
    parts = []
    for fold in trained.folds:
        net, seen = everything.with_parameters(fold.theta), rows.taken(fold.seen(len(rows)))
        parts.append(FoldFit(net, refit(net, seen), fold.held_out, rows.taken(fold.held_out).chunks(CHUNK)))
    hyper = replace(_start(origin, fit, options), temperature=1.0)
    return fit, replace(origin, cross=cross_fit(parts, hyper))


def pass_over(
    fit: LaplaceFit, data: PreparedData, input_dtype: torch.dtype, memory: MemoryBudget, *, added: bool
) -> tuple[LaplaceFit, LaplaceFit, Curvature]:
    """Compute the curvature of rows that are to be added to a fit or removed from it.

    Parameters
    ----------
    fit : LaplaceFit
        Fit to update.
    data : PreparedData
        Rows to add or remove.
    input_dtype : torch.dtype
        Dtype of the network's inputs.
    memory : MemoryBudget
    added : bool
        If True, the rows are added, and the fit may change to a structure that has room for them.

    Returns
    -------
    fit : LaplaceFit
        The fit, in the structure of the update.
    of_rows : LaplaceFit
        Pass over the given rows alone, with the model and structure of ``fit``.
    curvature : Curvature
        Exact curvature H of the given rows.

    Raises
    ------
    MemoryBudgetError
        If the curvature of the fit and of these rows does not fit in memory.
    """
    rule, per_row = fit.rule, fit.rule.n_columns(fit.likelihood, data.n_outputs)
    n_dual = per_row * len(data.X)
    fit = with_room_for(fit, n_dual) if added else fit
    network, structure = fit.network, type(fit.curvature)
    dtype, device = next(network.module.parameters()).dtype, network.theta.device
    rows = data.tensors(input_dtype, dtype, device)
    n_dual += fit.curvature.n_dual if isinstance(fit.curvature, Functional) else per_row * round(fit.total_weight)
    n_bytes = memory.require(structure, network, n_dual, per_row, rule, **fit.curvature.options)
    chunks = rows.chunks(memory.pass_rows(structure, network, per_row, n_bytes))
    of_rows = fit_laplace(network, fit.likelihood, rule, structure, fit.prior, chunks, like=fit.curvature)
    if issubclass(structure, Full | Functional):
        return fit, of_rows, of_rows.curvature
    exact: type[Curvature] = Functional if Functional.accepts & rule.provides else Full
    return fit, of_rows, fit_laplace(network, fit.likelihood, rule, exact, fit.prior, chunks).curvature
