"""Kinds of nets in a fit: nets of standardised numbers, and nets with a piecewise linear encoding (``n_bins``)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from sklearn.utils.validation import _num_samples

from .._data.summary import TableShape
from .._options.options import is_number
from .._options.subset import is_plain_subset
from .._runtime.budget import SMALL_ROWS, budget_for, exact_cost
from .._validation.values import kinds
from ..laplace.curvatures import GGN
from ..laplace.jacobian.jacobian import ParameterBlock
from ..laplace.likelihoods._base import Likelihood

AUTOMATIC = (None, 8)
"""Kinds of a default fit: numbers without encoding, and an encoding with eight pieces; see docs/decisions.md."""
MOST_STEP = 2e9
"""Maximum cost of an exact Gauss–Newton step, in multiply-adds, for nets with exact steps in a joint ensemble."""
MOST_ADDED = 9e8
"""Stricter maximum for the first kind, if there are other members; these nets then take about as long as the others."""


def exact_kinds(
    parameters: Mapping[str, Any], shape: TableShape, likelihood: Likelihood, *, added: bool
) -> tuple[int | None, ...]:
    """Values of ``n_bins`` for nets with cheap exact steps; empty if such steps are too expensive.

    ``parameters`` have the layers of a net that is trained alone. ``added`` is True if the nets are added to members
    that train together.
    """
    pieces = shape.n_rows > SMALL_ROWS and shape.has_pieces
    allowed = kinds("n_bins", parameters["n_bins"], AUTOMATIC if pieces else (None,))
    n_dual = shape.n_rows * GGN().n_columns(likelihood, shape.n_outputs)
    costs = [exact_cost(blocks_of(parameters, shape, kind), n_dual)[0] for kind in allowed]
    if added and costs[0] > MOST_ADDED:
        return ()
    return tuple(kind for kind, cost in zip(allowed, costs, strict=True) if cost <= MOST_STEP)


def kinds_of_nets(parameters: Mapping[str, Any], shape: TableShape, likelihood: Likelihood) -> tuple[int | None, ...]:
    """Numbers of pieces of the nets of a fit that trains one net after the other; None for a net without encoding.

    "auto" adds nets with pieces for more than 300 rows of numeric targets if exact steps are affordable. It adds none
    if a number of members is given, if options refer to weights of one net, or if no column has more than two values.
    """
    pays = are_left_open(parameters) and shape.n_rows > SMALL_ROWS and shape.has_pieces and likelihood.has_dispersion
    if pays:
        cost, _ = exact_cost(blocks_of(parameters, shape, AUTOMATIC[-1]), shape.n_rows * shape.n_outputs)
        pays = cost <= budget_for(shape.n_rows).exact_step
    return kinds("n_bins", parameters["n_bins"], AUTOMATIC if pays else (None,))


def most_kinds(parameters: Mapping[str, Any], X: Any) -> int:
    """Maximum number of kinds for these rows, which may not be validated yet."""
    n_rows = SMALL_ROWS + 1
    with suppress(TypeError, ValueError):  # invalid tables are refused later
        n_rows = _num_samples(X)
    pays = are_left_open(parameters) and n_rows > SMALL_ROWS
    return len(kinds("n_bins", parameters["n_bins"], AUTOMATIC if pays else (None,)))


def are_left_open(parameters: Mapping[str, Any]) -> bool:
    """True if no user-set parameter refers to one particular net."""
    if parameters["net"] is not None or is_number(parameters["n_members"]):
        return False
    named = _by_name(parameters) or not is_plain_subset(parameters["subset_of_weights"])
    return not named and np.size(parameters["prior_precision"]) == 1


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
