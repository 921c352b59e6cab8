"""Initial prior precisions of a training, with several starts because a single one may lead to a poor mode."""

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
"""Initial prior precisions, in natural units. A strong prior alone may lead to a linear fit, a weak one to an overfit.
"""
LITTLE = 2.0
"""Maximum number of effective parameters after the strong start, relative to a linear model's, for a weak start as
well."""
FIRST_LAYER, BEHIND = 10.0, 0.1
"""Factors of an additional start with several prior precisions: of the first layer and of the later ones. A strong
prior over the first layer keeps irrelevant columns out."""
GROUPED_STEPS = 3
"""Factor of the number of Gauss–Newton steps if several prior precisions are selected, shared among the starts."""


def _best_start(problem: Problem, fit: LaplaceFit, hyper: Hyper, plan: Plan, max_steps: int, n_linear: int) -> Mode:
    """Alternate steps of weights and hyperparameters from one or several starts; return the mode of largest evidence.

    ``fit`` is the pass over the data at the initial weights, ``max_steps`` applies to each start, and ``n_linear`` is
    the number of parameters of a linear model.
    """
    free_prior = plan.precision is None
    first = free_prior and plan.previous is None and plan.again is None
    network, prior = fit.network, fit.prior
    factors = _start_factors(network, prior) if first else [torch.ones_like(hyper.prior_precision)]
    factors = factors[:1] if plan.begun is not None else factors
    if several := free_prior and has_groups(network, prior):
        max_steps = GROUPED_STEPS * max_steps // len(factors)
    modes: list[Mode] = []
    for factor in factors:
        if modes and problem.is_over():
            break
        if modes and not several and effective_parameters(modes[0].fit, modes[0].hyper) > LITTLE * n_linear:
            break
        start, update = replace(hyper, prior_precision=factor * hyper.prior_precision), plan.update
        steps = max_steps // 2 if modes and not several else max_steps
        train = partial(alternate, free_prior=free_prior, update_dispersion=update, short=plan.is_noisy)
        modes.append(train(problem, fit, start, max_steps=steps))
    if len(modes) == 1:
        return modes[0]
    best = max(modes, key=lambda mode: log_evidence(mode.fit, mode.hyper))
    return replace(best, n_steps=sum(mode.n_steps for mode in modes))


def has_groups(network: Network, prior: Prior) -> bool:
    """Return True if the prior has several precisions, not counting those of embeddings."""
    return prior.n_groups - int((_levels(network, prior) > 0).sum()) > 1


def _levels(network: Network, prior: Prior) -> Tensor:
    """Number of levels of the embedding of each prior group (G,), float64; 0 for groups of other weights."""
    module, shapes = network.module, network.layout.shapes
    embeddings = module.apart if isinstance(module, ColumnsModule) else ()
    levels = [shapes[name][1] if name in embeddings else 0 for name in prior.names]
    return torch.tensor(levels, dtype=torch.float64, device=network.theta.device)


def _start_factors(network: Network, prior: Prior) -> list[Tensor]:
    """Factors (G,) of the natural precisions for each start."""
    groups, ones = prior.groups, torch.ones(prior.n_groups, dtype=torch.float64, device=network.theta.device)
    # Otherwise an embedding of many levels could fit each row's target at once, so that the numbers are not used.
    by_levels = _levels(network, prior).clamp_min(1.0)
    factors = [factor * by_levels for factor in STARTS]
    if has_groups(network, prior):
        first = groups[: network.blocks[0].size].unique()
        factors.append((BEHIND * ones).index_fill(0, first, FIRST_LAYER))
    return factors
