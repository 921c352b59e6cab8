"""Mixtures of several kinds of nets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .._options.options import Options
from ..laplace.fit import Hyper
from .ensemble import Ensemble
from .member import Member
from .request import FitRequest
from .weights import of_all_nets


def mixture_of_kinds(
    request: FitRequest,
    kinds: Sequence[Sequence[Member]],
    weights: np.ndarray | None = None,
    factor: float = 1.0,
) -> Ensemble:
    """Ensemble of members of several kinds, with all variances multiplied by a factor.

    ``weights`` (K,) are equal by default. For classes and counts, ``factor`` is that of a mixture of one net of each
    kind.
    """
    options = request.resolved
    if factor != 1:
        if weights is not None and not options.likelihood.has_dispersion:
            factor = of_all_nets(factor, np.split(weights, np.cumsum([len(kind) for kind in kinds[:-1]])))
        kinds = [[_multiplied(one, factor, options) for one in kind] for kind in kinds]
    members = [member for kind in kinds for member in kind]
    return Ensemble.of(members, weights, factor)


def _multiplied(member: Member, factor: float, options: Options) -> Member:
    """Multiply all variances of a member by a factor; without dispersion, only the posterior covariance."""
    scaled = member if member.fit.likelihood.has_dispersion else replace(member, covariance_factor=factor)
    return scaled.conditioned(member.fit, mixed(member.hyper, factor, options), options)


def mixed(hyper: Hyper, factor: float, options: Options) -> Hyper:
    """Multiply all variances of the hyperparameters by a factor, if held-out rows select both of them."""
    if factor == 1 or not (all(options.by_held_out) and options.likelihood.has_dispersion):
        return hyper
    return replace(hyper, prior_precision=hyper.prior_precision / factor, dispersion=hyper.dispersion * factor)
