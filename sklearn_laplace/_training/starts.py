"""Initial prior precisions of a training: several starts where one could end in a poor mode."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..laplace.evidence import effective_parameters, log_evidence
from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.mode.alternating import alternate
from ..laplace.mode.problem import Mode, Problem
from ..laplace.network.network import Network
from ..laplace.prior import Prior
from ..laplace.prior_groups import ColumnsModule
from .plan import Plan

STARTS = (1.0, 0.1)
"""Starts of the prior precision, in units of the natural one. The strong start alone may end in a straight line, the
weak one alone in an over-fitted net: ``tests/laws/test_quality.py`` fails with either."""
LITTLE = 2.0
"""Effective parameters, of as many as a linear model has, up to which the strong start may have ended in a line or
less. Only then the weak one has half as many steps, and the evidence chooses: between two nets that both follow the
data it prefers the worse one as often as not, and all steps are worth more to one (yacht, boston, energy, concrete)."""
FIRST_LAYER, BEHIND = 10.0, 0.1
"""One more start where there are several: from a strong prior over the first layer, a column that is of no use never
comes in, from a weak one it seldom goes. The evidence of three random tables rose by 50 to 135 nats."""
GROUPED_STEPS = 3
"""Times the Gauss–Newton steps where several prior precisions are chosen: unused columns take several moves to go."""


def _best_start(problem: Problem, fit: LaplaceFit, hyper: Hyper, plan: Plan, max_steps: int, n_linear: int) -> Mode:
    """The alternation from one start, or the best by evidence from several; several precisions share the steps."""
    free_prior = plan.precision is None
    first = free_prior and plan.previous is None and plan.again is None
    network, prior = fit.network, fit.prior
    factors = _start_factors(network, prior) if first else [torch.ones_like(hyper.prior_precision)]
    factors = factors[:1] if plan.begun is not None else factors
    if several := free_prior and has_groups(network, prior):
        max_steps = GROUPED_STEPS * max_steps // len(factors)
    found: list[Mode] = []
    for factor in factors:
        if found and problem.is_over():
            break
        if found and not several and effective_parameters(found[0].fit, found[0].hyper) > LITTLE * n_linear:
            break
        start, update = replace(hyper, prior_precision=factor * hyper.prior_precision), plan.update
        steps = max_steps // 2 if found and not several else max_steps
        train = partial(alternate, free_prior=free_prior, update_dispersion=update, short=plan.is_noisy)
        found.append(train(problem, fit, start, max_steps=steps))
    if len(found) == 1:
        return found[0]
    best = max(found, key=lambda mode: log_evidence(mode.fit, mode.hyper))
    return replace(best, n_steps=sum(mode.n_steps for mode in found))


def has_groups(network: Network, prior: Prior) -> bool:
    """Whether several precisions were asked for, beside those that embeddings have anyway."""
    return prior.n_groups - int((_levels(network, prior) > 0).sum()) > 1


def _levels(network: Network, prior: Prior) -> Tensor:
    """How many embeddings each precision (G,) is of, float64; 0 where it is of something else."""
    module, shapes = network.module, network.layout.shapes
    apart = module.apart if isinstance(module, ColumnsModule) else ()
    found = [shapes[name][1] if name in apart else 0 for name in prior.names]
    return torch.tensor(found, dtype=torch.float64, device=network.theta.device)


def _start_factors(network: Network, prior: Prior) -> list[Tensor]:
    """What the natural precisions (G,) are multiplied by, start by start."""
    groups, ones = prior.groups, torch.ones(prior.n_groups, dtype=torch.float64, device=network.theta.device)
    # Many levels could take up each row's target at once, and nothing would be learnt of its numbers any more.
    shared_out = _levels(network, prior).clamp_min(1.0)
    factors = [factor * shared_out for factor in STARTS]
    if has_groups(network, prior):
        first = groups[: network.blocks[0].size].unique()
        factors.append((BEHIND * ones).index_fill(0, first, FIRST_LAYER))
    return factors
