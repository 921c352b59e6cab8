r"""Cross-fitting: a few more nets, each trained without a part of the rows, that say what the net cannot say of itself.

They train under the prior precision that the evidence has chosen for all rows, each from initial weights of its own and
for a fixed number of Gauss–Newton steps, and estimate their own noise on the way. Two things rest on them: the prior
precision and noise of the posterior (``selection/held_out.py``), and prediction intervals without any model of the
noise, the K-fold form of the jackknife+ (CV+, Barber et al. 2021): with :math:`\mu_{-k(n)}` the net that has not seen
row n and :math:`R_n = |y_n - \mu_{-k(n)}(x_n)|`, the quantiles of :math:`\mu_{-k(n)}(x) \mp R_n` over the rows.

Where the training takes Gauss–Newton steps of the built-in net the nets cost about half as much again; elsewhere there
are none. Rows are dealt out in turn, those of each class by themselves; equal rows have been merged before and stay
together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ._loo import density_of
from ._map import Fold, MapResult, Plan, problem_of
from ._memory import MemoryBudget
from ._skorch import TrainingRows
from ._threads import single_thread
from .curvatures import GGN
from .jackknife import reached
from .laplace import Hyper, LaplaceFit
from .leave_one_out import Density
from .likelihoods._base import Likelihood
from .links import Probit
from .network import Network
from .prior import Prior
from .selection import HeldOutScores, alternate, held_out_scores
from .structures import Full, Functional

N_FOLDS = 3
"""Three do as well as five on the benchmark's inner splits, at half the price."""
STEPS = 14
"""Gauss–Newton steps of each net; with 8 some are not there yet (yacht)."""
LEAST_ROWS = 40
"""Fewer say too little of the noise."""
CHUNK = 512
"""Held-out rows in work at once."""


@dataclass(frozen=True)
class CrossFit:
    """The nets of all folds and what they say of the rows that they have not seen.

    Parameters
    ----------
    networks : tuple of Network
    fold : Tensor of shape (n,), int64
        Which net has not seen a row.
    scores : Tensor of shape (n, C), float64
        R, in the network's units.
    weights : Tensor of shape (n,), float64
    densities : HeldOutScores or None
        Of the rows, under other prior precisions and noises; None where the fit's rule has none.
    """

    networks: tuple[Network, ...]
    fold: Tensor
    scores: Tensor
    weights: Tensor
    densities: HeldOutScores | None

    def intervals(self, inputs: Tensor, levels: Tensor, memory: MemoryBudget) -> Tensor:
        """Ends of the intervals at inputs (m, …), shape (m, 2, L, C), for levels (L,); m n C log n operations."""
        n_outputs = self.scores.shape[1]
        chunks = inputs.split(memory.chunk_rows(6 * n_outputs * len(self.fold), 0))
        return torch.cat([self._interval(chunk, levels) for chunk in chunks])

    def _interval(self, x: Tensor, levels: Tensor) -> Tensor:
        found = torch.stack([network(x).double() for network in self.networks], -1)[..., self.fold]
        scores, weights = self.scores.mT, self.weights
        ends = [-reached(scores - found, weights, levels), reached(found + scores, weights, levels)]
        return torch.stack(ends, 1).mT


def trained_folds(trained: MapResult, rows: TrainingRows, plan: Plan, starts: Sequence[Tensor]) -> tuple[Fold, ...]:
    """The nets, trained; none where the rows are few or the training did not take exact steps.

    Parameters
    ----------
    trained : MapResult
        On all rows.
    rows : TrainingRows
    plan : Plan
        Of the training.
    starts : sequence of Tensor of shape (P,)
        Initial weights of each net.
    """
    fit, hyper = trained.mode.fit, trained.mode.hyper
    if len(rows) < LEAST_ROWS or not isinstance(fit.curvature, Full | Functional):
        return ()
    noise = plan.likelihood.dispersion_start if plan.free_dispersion else hyper.dispersion
    hyper, folds = replace(hyper, dispersion=noise), zip(starts, _dealt(rows, len(starts)), strict=True)
    with single_thread(trained.is_small):
        return tuple(_trained(fit.network.with_parameters(s), fit.prior, rows, plan, hyper, rest) for s, rest in folds)


def _trained(network: Network, prior: Prior, rows: TrainingRows, plan: Plan, hyper: Hyper, held_out: Tensor) -> Fold:
    fold = Fold(network.theta, held_out)
    seen = rows.taken(fold.seen(len(rows)))
    n_columns = GGN().n_columns(plan.likelihood, network(rows.inputs[:1]).shape[1])
    problem = problem_of(network, prior, seen, len(seen) * n_columns, plan)
    start = problem.linearise(network)
    found = alternate(problem, start, hyper, free_prior=False, update_dispersion=plan.update, max_steps=STEPS)
    return replace(fold, theta=found.fit.network.theta)


def _dealt(rows: TrainingRows, n_folds: int) -> list[Tensor]:
    """The rows of each fold, in rising order; those of each class are dealt out by themselves."""
    places = torch.arange(len(rows), device=rows.inputs.device)
    if rows.targets.ndim == 1:
        places = rows.targets.argsort(stable=True)
    return [places[k::n_folds].sort().values for k in range(n_folds)]


def cross_fit(
    trained: MapResult, rows: TrainingRows, hyper: Hyper, refit: Callable[[Network, TrainingRows], LaplaceFit]
) -> CrossFit | None:
    """What the nets say of the rows that they have not seen; None where there are no nets.

    Parameters
    ----------
    trained : MapResult
    rows : TrainingRows
    hyper : Hyper
        The training's, of the weights that are random.
    refit : callable
        (network with all of its weights, rows) → the fit that is asked for, of these rows at these weights.
    """
    if not trained.folds:
        return None
    everything = trained.mode.fit.network
    networks = tuple(everything.with_parameters(fold.theta) for fold in trained.folds)
    parts = []
    scores = torch.zeros(len(rows), trained.mode.fit.n_outputs, dtype=torch.float64, device=rows.inputs.device)
    number = torch.zeros(len(rows), dtype=torch.long, device=rows.inputs.device)
    for k, (network, fold) in enumerate(zip(networks, trained.folds, strict=True)):
        held_out = rows.taken(fold.held_out)
        parts.append((refit(network, rows.taken(fold.seen(len(rows)))), held_out.chunks(CHUNK)))
        number[fold.held_out] = k
        if not parts[0][0].likelihood.over_classes:
            scores[fold.held_out] = (held_out.targets - network(held_out.inputs)).double().abs()
    fit = parts[0][0]
    known = not fit.likelihood.has_dispersion or (fit.likelihood.quadratic and fit.dispersion_power == 1)
    densities = held_out_scores(parts, hyper, _density(fit.likelihood)) if known else None
    return CrossFit(networks, number, scores, rows.weights.double(), densities)


def _density(likelihood: Likelihood) -> Density:
    """That of classes under the default link, whatever the fit's is: it can be changed afterwards."""
    return density_of(likelihood, Probit(torch.zeros(0, 0)) if likelihood.over_classes else None)
