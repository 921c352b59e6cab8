"""Training of cross-fitted nets: a few additional nets, each trained without one fold of the rows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from .._host.rows import TrainingRows
from .._runtime.budget import FULL_BATCH_ROWS, budget_for, kron_cost
from .._runtime.progress import Steps, Task
from .._runtime.torch_state import single_thread
from ..distributions.densities import density_for
from ..errors import MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError
from ..laplace.curvatures import GGN
from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.mode.alternating import alternate
from ..laplace.selection import held_out_scores
from ..laplace.selection.held_out import DEAR_POINTS
from ..laplace.structures import Full, Functional, Kron
from .fit_map import continued, problem_of
from .plan import NOISELESS, Fold, MapResult, Plan
from .repeats import LEAST_ROWS

N_CROSS_FITTED = 3
"""Number of cross-fitted nets and of their folds, see docs/decisions.md."""
STEPS, NOISY_STEPS, BEGUN_STEPS = 14, 8, 3
"""Maximum Gauss–Newton steps of each net: in general, for noisy targets, and for these after a training by gradients.
"""
SOFTER, WEAKEST, DECISIVE = 0.3, 0.03, 5.0
"""Factor of each trial reduction of the prior precision, and the total factor at which trials end. Last: minimum gain
of the held-out log density, in nats, for a reduction to be kept."""
COVARIANCE = 5
"""Cost of a multiply-add in the output covariance of a row, relative to one in a large matrix product."""
CHUNK = 512
"""Number of held-out rows per chunk."""


def cross_fitted(trained: MapResult, rows: TrainingRows, plan: Plan, starts: Sequence[Tensor], task: Task) -> MapResult:
    """Add cross-fitted nets from the weights ``starts``, unless rows are too few, steps too expensive, or a net fails.

    For classes and counts, weaker priors are tried. If the held-out density is much larger, all nets continue under
    one.
    """
    fit, hyper = trained.mode.fit, trained.mode.hyper
    if len(rows) < LEAST_ROWS or not _affordable(fit, len(rows)) or plan.is_over():
        return trained
    if plan.free_dispersion and plan.again is None:
        hyper = replace(hyper, dispersion=plan.first_dispersion)
    parts = zip(starts, fold_rows(rows, len(starts)), strict=True)
    folds, factor = tuple(Fold(start, held_out) for start, held_out in parts), 1.0
    cross_fitting = task.subtask("cross-fitted nets", None if plan.softens else len(folds))
    without_failures = suppress(NotPositiveDefiniteError, NonFiniteError, MemoryBudgetError)
    with cross_fitting, single_thread(trained.is_small), warnings.catch_warnings(), without_failures:
        warnings.simplefilter("ignore")  # warnings of cross-fitted nets do not concern the fit
        is_noisy = plan.many and plan.likelihood.has_dispersion and trained.mode.hyper.dispersion >= NOISELESS
        steps = BEGUN_STEPS if plan.is_noisy else NOISY_STEPS if is_noisy else STEPS
        folds, density = _under(folds, fit, rows, plan, hyper, cross_fitting, steps)
        while plan.softens and factor > WEAKEST:
            softer = replace(hyper, prior_precision=SOFTER * factor * hyper.prior_precision)
            trial, trial_density = _under(folds, fit, rows, plan, softer, cross_fitting, STEPS // 2)
            if trial_density < density + DECISIVE:
                break
            folds, density, factor = trial, trial_density, SOFTER * factor
        if plan.is_over():  # the nets are not sufficiently trained
            return trained
        return replace(continued(trained, rows, plan, factor) if factor < 1 else trained, folds=folds)
    return trained


def _affordable(fit: LaplaceFit, n_rows: int) -> bool:
    """True if full-batch steps of cross-fitted nets and the selection by held-out rows are affordable.

    Always for an exact curvature. Kronecker form serves classes and counts, whose posterior under a prior precision
    selected by the evidence alone is much too wide.
    """
    if isinstance(fit.curvature, Full | Functional):
        return True
    if not isinstance(fit.curvature, Kron) or fit.likelihood.has_dispersion or n_rows > FULL_BATCH_ROWS:
        return False
    blocks, n_outputs = fit.network.blocks, fit.n_outputs
    covariances = DEAR_POINTS * n_rows * n_outputs**2 * sum(block.outputs for block in blocks)
    cost = kron_cost(blocks, n_rows, GGN().n_columns(fit.likelihood, n_outputs))
    return max(cost, COVARIANCE * covariances) <= budget_for(n_rows).exact_step


def _under(
    folds: Sequence[Fold],
    fit: LaplaceFit,
    rows: TrainingRows,
    plan: Plan,
    hyper: Hyper,
    task: Task,
    steps: int,
) -> tuple[tuple[Fold, ...], float]:
    """Train the nets under these hyperparameters; also return the largest log density of their held-out rows.

    The maximum is over a common factor of the posterior's prior precision and a free noise level; 0 without
    ``plan.softens``.
    """
    trained, parts = [], []
    n_columns, exact = GGN().n_columns(plan.likelihood, fit.n_outputs), isinstance(fit.curvature, Full | Functional)
    for fold in folds:
        network, kept = fit.network.with_parameters(fold.theta), rows.taken(fold.seen(len(rows)))
        problem = problem_of(network, fit.prior, kept, len(kept) * n_columns, plan, exact=exact)
        start = problem.linearise(network)
        with task.subtask("net") as net, Steps(net, steps) as progress:
            problem = replace(problem, advance=progress.advance)
            train = partial(alternate, free_prior=False, update_dispersion=plan.update, short=plan.is_noisy)
            mode = train(problem, start, hyper, max_steps=steps)
        trained.append(replace(fold, theta=mode.fit.network.theta))
        parts.append((mode.fit, rows.taken(fold.held_out).chunks(CHUNK)))
    if not plan.softens:
        return tuple(trained), 0.0
    scores = held_out_scores(parts, hyper, density_for(fit.likelihood))
    noise = (scores.squares / scores.freedom).clamp(*scores.bounds) if scores.freedom else torch.ones_like(scores.ridge)
    density = scores.log_density(noise) if scores.freedom else scores.constants
    return tuple(trained), float(density.max())


def fold_rows(rows: TrainingRows, n_folds: int) -> list[Tensor]:
    """Row indices of each fold, in increasing order; equal rows share a fold, and classes are stratified."""
    n, device = len(rows), rows.inputs.device
    both = torch.cat([rows.inputs.flatten(1).double(), rows.targets.reshape(n, -1).double()], 1)
    group = both.nan_to_num(nan=torch.inf, posinf=torch.inf).unique(dim=0, return_inverse=True)[1]
    first = torch.full((int(group.max()) + 1,), n, device=device)
    first = first.scatter_reduce(0, group, torch.arange(n, device=device), "amin").sort().values
    if rows.targets.ndim == 1:
        first = first[rows.targets[first].argsort(stable=True)]
    fold = torch.empty_like(first)
    fold[group[first]] = torch.arange(len(first), device=device) % n_folds
    return [(fold[group] == k).nonzero()[:, 0] for k in range(n_folds)]
