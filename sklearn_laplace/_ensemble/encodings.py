"""Encodings of nets with exact steps: standardised numbers, or a piecewise linear encoding (``n_bins``)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping
from typing import Any

from .._data.summary import TableShape
from .._options.options import is_auto
from .._runtime.budget import SMALL_ROWS, exact_cost
from ..laplace.curvatures import GGN
from ..laplace.jacobian.jacobian import ParameterBlock
from ..laplace.likelihoods._base import Likelihood

AUTOMATIC = (None, 8)
"""Encodings of nets with exact steps for targets almost free of noise: numbers, and eight pieces."""
MOST_STEP = 2e9
"""Maximum cost of an exact Gauss–Newton step, in multiply-adds, for nets in place of a joint ensemble."""
MOST_ADDED = 9e8
"""Stricter maximum for a net beside the members of a joint ensemble; it then takes less time than they do."""


def exact_kinds(parameters: Mapping[str, Any], shape: TableShape, likelihood: Likelihood) -> tuple[int | None, ...]:
    """Values of ``n_bins`` for nets with cheap exact steps; empty if such steps are too expensive.

    ``parameters`` have the layers of a net that is trained alone.
    """
    pieces = shape.n_rows > SMALL_ROWS and shape.has_pieces
    allowed = (AUTOMATIC if pieces else (None,)) if is_auto(parameters["n_bins"]) else (parameters["n_bins"],)
    return tuple(kind for kind in allowed if _step(parameters, shape, likelihood, kind) <= MOST_STEP)


def affords_exact_net(parameters: Mapping[str, Any], shape: TableShape, likelihood: Likelihood) -> bool:
    """True if a net with exact steps costs little beside the members of a joint ensemble."""
    n_bins = None if is_auto(parameters["n_bins"]) else parameters["n_bins"]
    return likelihood.has_dispersion and _step(parameters, shape, likelihood, n_bins) <= MOST_ADDED


def _step(parameters: Mapping[str, Any], shape: TableShape, likelihood: Likelihood, n_bins: int | None) -> float:
    """Multiply-adds of an exact Gauss–Newton step."""
    n_dual = shape.n_rows * GGN().n_columns(likelihood, shape.n_outputs)
    cost, _ = exact_cost(blocks_of(parameters, shape, n_bins), n_dual)
    return cost


def _by_name(parameters: Mapping[str, Any]) -> list[str]:
    """Names of options whose keys are names of layers or tensors."""
    return [name for name in ("prior_mean", "temperature") if isinstance(parameters.get(name), Mapping)]


def check_one_kind(parameters: Mapping[str, Any], fitted: Collection[Hashable]) -> None:
    """Refuse options keyed by names of weights for several kinds of nets, since the names differ between the kinds.

    ``fitted`` has the kind of each member: its encoding and the names of its tensors.
    """
    n_kinds = len(set(fitted))
    for name in _by_name(parameters) if n_kinds > 1 else []:
        raise ValueError(
            f"{name}={parameters[name]!r} names weights of one net, but this mixture has {n_kinds} kinds of nets, "
            "whose weights have different names. Fit with n_members=1 and a single value of n_bins, or change a single "
            "one of members_."
        )


def blocks_of(parameters: Mapping[str, Any], shape: TableShape, n_bins: int | None) -> list[ParameterBlock]:
    """Weight blocks of the built-in net, with the maximum number of inputs of an encoding."""
    sizes = [*parameters["hidden_layer_sizes"], shape.n_outputs]
    first = (n_bins or 1) * shape.levels.count(0) + shape.n_added
    embeddings = [ParameterBlock("embedding", sizes[0], count + 1, factored=True) for count in shape.levels if count]
    layers = [
        ParameterBlock("layer", n_out, n_in + 1, factored=True) for n_in, n_out in itertools.pairwise([first, *sizes])
    ]
    return [*embeddings, *layers]
