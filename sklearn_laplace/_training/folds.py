r"""Training of cross-fitted nets: a few more nets, each trained without one fold of the rows."""

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
from .._runtime.progress import Task
from .._runtime.threads import single_thread
from ..distributions.densities import density_of
from ..errors import MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError
from ..laplace.curvatures import GGN
from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.jacobian.blocks import ParameterBlock
from ..laplace.leave_one_out.densities import Density
from ..laplace.likelihoods._base import Likelihood
from ..laplace.links import Probit
from ..laplace.mode.alternating import alternate
from ..laplace.selection import held_out_scores
from ..laplace.selection.held_out import DEAR_POINTS
from ..laplace.structures import Full, Functional, Kron
from .fit_map import continued, problem_of
from .plan import NOISELESS, Fold, MapResult, Plan

N_FOLDS = 3
"""Three do as well as five on the benchmark's inner splits, at half the price."""
STEPS, NOISY_STEPS, BEGUN_STEPS = 14, 8, 3
"""Gauss–Newton steps of each net; with 8 some are not there yet (yacht). Those of nets of noisy targets, and of such
nets that gradients have trained before."""
LEAST_ROWS = 40
"""Fewer say too little of the noise."""
SOFTER, WEAKEST, DECISIVE = 0.3, 0.03, 5.0
"""Factors by which the prior of the training gets weaker, to this one at most, and the nats of held-out rows that each
of them has to be worth."""
COVARIANCE = 5
"""What a multiply-add of a row's covariance takes, of those of large products."""
CHUNK = 512
"""Held-out rows in work at once."""


def cross_fitted(trained: MapResult, rows: TrainingRows, plan: Plan, starts: Sequence[Tensor], task: Task) -> MapResult:
    """The training with the nets beside it; without any where the rows are few or their steps too dear.

    Where the nets predict the rows that they have not seen much better under a weaker prior, all are trained on under
    that one.

    Parameters
    ----------
    trained : MapResult
        On all rows.
    rows : TrainingRows
    plan : Plan
        Of the training.
    starts : sequence of Tensor of shape (P,)
        Initial weights of each net.
    task : Task
        One part of which is their training; unknown of how many nets, where a weaker prior is tried.
    """
    fit, hyper = trained.mode.fit, trained.mode.hyper
    if len(rows) < LEAST_ROWS or not _affordable(fit, len(rows)) or plan.is_over():
        return trained
    if plan.free_dispersion and plan.again is None:
        hyper = replace(hyper, dispersion=plan.first_dispersion)
    parts = zip(starts, dealt(rows, len(starts)), strict=True)
    folds, factor = tuple(Fold(start, held_out) for start, held_out in parts), 1.0
    # What their trainings have to say is of no use to anyone: not until they have seen all rows.
    beside = task.subtask("nets beside it", None if plan.softens else len(folds))
    unable = suppress(NotPositiveDefiniteError, NonFiniteError, MemoryBudgetError)
    with beside, single_thread(trained.is_small), warnings.catch_warnings(), unable:
        warnings.simplefilter("ignore")
        is_noisy = plan.many and plan.likelihood.has_dispersion and trained.mode.hyper.dispersion >= NOISELESS
        steps = BEGUN_STEPS if plan.is_noisy else NOISY_STEPS if is_noisy else STEPS
        folds, density = _under(folds, fit, rows, plan, hyper, beside, steps)
        while plan.softens and factor > WEAKEST:
            softer = replace(hyper, prior_precision=SOFTER * factor * hyper.prior_precision)
            trial, other = _under(folds, fit, rows, plan, softer, beside, STEPS // 2)
            if other < density + DECISIVE:
                break
            folds, density, factor = trial, other, SOFTER * factor
        if plan.is_over():  # they have not come far enough to say something
            return trained
        return replace(continued(trained, rows, plan, factor) if factor < 1 else trained, folds=folds)
    return trained


def _affordable(fit: LaplaceFit, n_rows: int) -> bool:
    """Whether steps over all of so many rows, with the training's curvature, and the choice by held-out rows pay.

    Exact ones always do, since there would be another curvature. Those in Kronecker form are for classes and counts:
    without a noise to take up the slack, what the evidence alone chooses is too wide by far.
    """
    if isinstance(fit.curvature, Full | Functional):
        return True
    return isinstance(fit.curvature, Kron) and kron_pays(fit.network.blocks, n_rows, fit.n_outputs, fit.likelihood)


def kron_pays(blocks: Sequence[ParameterBlock], n_rows: int, n_outputs: int, likelihood: Likelihood) -> bool:
    """Whether nets of these layers take steps over all rows in Kronecker form, and choose by them.

    Examples
    --------
    >>> from sklearn_laplace.laplace.likelihoods import Categorical, Gaussian
    >>> layers = [ParameterBlock("0", 50, 65, factored=True), ParameterBlock("1", 10, 51, factored=True)]
    >>> [kron_pays(layers, n, 10, Categorical()) for n in (1_000, 100_000)], kron_pays(layers, 1_000, 10, Gaussian())
    ([True, False], False)
    """
    if likelihood.has_dispersion or n_rows > FULL_BATCH_ROWS:
        return False
    covariances = DEAR_POINTS * n_rows * n_outputs**2 * sum(block.outputs for block in blocks)
    cost = kron_cost(blocks, n_rows, GGN().n_columns(likelihood, n_outputs))
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
    """The nets trained under these hyperparameters, and the largest density of the rows that they have not seen.

    The density is that under the best factor of the posterior's prior precision, and the best noise, of all nets. It is
    zero where no prior is chosen by it.
    """
    found, parts = [], []
    n_columns, exact = GGN().n_columns(plan.likelihood, fit.n_outputs), isinstance(fit.curvature, Full | Functional)
    for fold in folds:
        network, seen = fit.network.with_parameters(fold.theta), rows.taken(fold.seen(len(rows)))
        problem = problem_of(network, fit.prior, seen, len(seen) * n_columns, plan, exact=exact)
        start = problem.linearise(network)
        with task.subtask("net"):
            train = partial(alternate, free_prior=False, update_dispersion=plan.update, short=plan.is_noisy)
            mode = train(problem, start, hyper, max_steps=steps)
        found.append(replace(fold, theta=mode.fit.network.theta))
        parts.append((mode.fit, rows.taken(fold.held_out).chunks(CHUNK)))
    if not plan.softens:
        return tuple(found), 0.0
    scores = held_out_scores(parts, hyper, density_for(fit.likelihood))
    noise = (scores.squares / scores.freedom).clamp(*scores.bounds) if scores.freedom else torch.ones_like(scores.ridge)
    density = scores.log_density(noise) if scores.freedom else scores.constants
    return tuple(found), float(density.max())


def dealt(rows: TrainingRows, n_folds: int) -> list[Tensor]:
    """The rows of each fold, in rising order: equal ones together, those of each class dealt out by themselves."""
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


def density_for(likelihood: Likelihood) -> Density:
    """That of classes under one link, whatever the fit's is: it can be changed afterwards.

    By the probit, which is too wide itself for many classes: nets of two thirds of the rows like a wider posterior than
    a net of all does. By "moderated" the NLL of validation rows of glass is .759, by the probit .753.
    """
    return density_of(likelihood, Probit(torch.zeros(0, 0)) if likelihood.over_classes else None)
