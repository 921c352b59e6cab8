"""Laplace approximation of a trained net, by a pass over the rows that threads share where possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from joblib import Parallel, delayed, effective_n_jobs
from torch import Tensor

from .._table.limits import MemoryBudget
from .._table.rows import PreparedData
from .._training.plan import MapResult, SelectionState, grouped, posterior_layout
from ..laplace.fit import Hyper, LaplaceFit, Rows, TrainingRows, fit_laplace
from ..laplace.network.network import Network
from ..laplace.prior import Prior
from ..laplace.structures import Full, Functional
from ..laplace.structures._base import Curvature
from ..laplace.torch_state import single_thread
from ..laplace.updates import with_room_for
from ..options.resolved import Options
from .choose import _variance


def shared_out(over: Callable[..., LaplaceFit], chunks: Sequence[Rows], n_jobs: int, *, gradient: Tensor) -> LaplaceFit:
    """Apply ``over`` to contiguous parts of the chunks, one per worker, and merge. ``gradient`` (P,) is of all rows."""
    n_jobs = min(n_jobs, len(chunks))
    if n_jobs == 1:
        return over(chunks, gradient=gradient)
    shares = [chunks[i * len(chunks) // n_jobs : (i + 1) * len(chunks) // n_jobs] for i in range(n_jobs)]
    zero = torch.zeros_like(gradient)  # the gradient over all rows is known, so the parts need none
    parts = Parallel(n_jobs=n_jobs, prefer="threads")(delayed(_alone)(over, share, gradient=zero) for share in shares)
    first, *others = parts
    for part in others:
        first = first.merge(part)
    return replace(first, gradient=gradient)


def _alone(over: Callable[..., LaplaceFit], chunks: Sequence[Rows], **known: Tensor) -> LaplaceFit:
    with single_thread(True):
        return over(chunks, **known)


def approximate(
    trained: MapResult, data: PreparedData, options: Options, *, built_in: bool
) -> tuple[LaplaceFit, SelectionState]:
    """Return the Laplace fit at the weights of a trained net, and the results needed to select hyperparameters."""
    rows = data.training_rows(options.dtype, options.device, built_in=built_in)
    mode, fit = trained.mode, trained.mode.fit
    everything = fit.network
    laid_out = PosteriorLayout.of(everything, rows, options, fit.prior, mode.hyper)
    same_sums = laid_out.is_whole and fit.rule == options.rule
    if same_sums and laid_out.holds(fit.curvature):
        fit = replace(fit, prior=laid_out.prior)
    else:
        # With a previous posterior, fit_laplace also adds the previous rows, so training's gradient is not reused.
        known = None if options.previous is not None else laid_out.network.vector(everything.tensors(fit.gradient))
        fit = laid_out.fit(rows, gradient=known)
    # The hyperparameters are settled if training has already maximised the evidence of this very posterior.
    by_exact_evidence = isinstance(mode.fit.curvature, Full | Functional) and trained.by_evidence
    settled = by_exact_evidence and options.map_precision is None
    settled = settled and same_sums and laid_out.structure in (Full, Functional)
    origin = SelectionState(
        mode.hyper, mode.fit.prior.names, everything.parameter_names, options.as_trained if settled else None
    )
    return fit, origin


@dataclass(frozen=True)
class PosteriorLayout:
    """Random weights (those with a posterior), structure and prior of Laplace fits, which :meth:`fit` computes."""

    network: Network
    structure: type[Curvature]
    prior: Prior
    n_columns: int
    n_bytes: int
    is_whole: bool
    example: Tensor
    options: Options

    @classmethod
    def of(
        cls, everything: Network, rows: TrainingRows, options: Options, prior: Prior, hyper: Hyper
    ) -> PosteriorLayout:
        """Return the layout for a net and rows. A subnetwork is selected under ``prior`` and ``hyper``."""
        subset = options.subset.chosen(everything, lambda: _variance(everything, prior, hyper, rows, options))
        options = replace(options, subset=subset)
        network, structure, n_dual, n_bytes = posterior_layout(everything, rows, options)
        prior = grouped(network, everything.parameter_names, options)
        whole = network.parameter_names == everything.parameter_names and network.blocks == everything.blocks
        return cls(network, structure, prior, n_dual // len(rows), n_bytes, whole, rows.inputs[:2], options)

    @property
    def settings(self) -> dict[str, Any]:
        return self.options.of_structure(self.structure)

    def holds(self, curvature: Curvature) -> bool:
        """True if a curvature has this structure with the same options."""
        return isinstance(curvature, self.structure) and curvature.options == self.settings

    def fit(self, rows: TrainingRows, gradient: Tensor | None = None) -> LaplaceFit:
        """Fit to rows, with several workers if their ``gradient`` (P,) is given and the structure sums over rows."""
        options, n_jobs = self.options, 1
        if gradient is not None and self.structure.is_monoid:
            most_jobs = effective_n_jobs(options.n_jobs)
            n_jobs = options.memory.pass_workers(self.structure, self.network, self.n_columns, self.n_bytes, most_jobs)
        share = options.memory.share(n_jobs).pass_rows(self.structure, self.network, self.n_columns, self.n_bytes)
        data_pass: Callable[..., LaplaceFit] = partial(
            fit_laplace, self.network, options.likelihood, options.rule, self.structure, self.prior, **self.settings
        )
        if gradient is not None:
            return shared_out(data_pass, rows.chunks(share), n_jobs, gradient=gradient)
        return data_pass(rows.chunks(share), past=None if options.previous is None else options.previous.fit)


def pass_over(
    fit: LaplaceFit, data: PreparedData, input_dtype: torch.dtype, memory: MemoryBudget, *, added: bool
) -> tuple[LaplaceFit, LaplaceFit, Curvature]:
    """Return the given fit, a Laplace fit to only the rows of an update, and the exact curvature H of these rows.

    If the rows are ``added``, the given fit may be converted to a structure that can also hold the new rows.
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
