"""Which kinds of nets a fit has: those that see numbers, and those that see pieces of them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from sklearn.utils.validation import _num_samples

from .._data.rows import PreparedData
from .._options.options import is_number
from .._options.subset import is_plain_subset
from .._runtime.budget import SMALL_ROWS, budget_for, exact_cost
from .._training.folds import kron_pays
from .._validation.values import kinds
from ..laplace.curvatures import GGN
from ..laplace.jacobian.blocks import ParameterBlock
from ..laplace.likelihoods._base import Likelihood

AUTOMATIC = (None, 8)
"""Eight pieces beside the numbers: on held-out rows of eleven tables level or better everywhere."""
MOST_STEP = 2e9
"""Multiply-adds of an exact step, at most, where members that train together are the alternative."""
MOST_BESIDE = 9e8
"""The same for the first kind of nets beside such members. Then these nets take about as long as the members."""


def exact_kinds(
    parameters: Mapping[str, Any], data: PreparedData, likelihood: Likelihood, *, beside: bool
) -> tuple[int | None, ...]:
    """Kinds of nets whose exact steps cost little, of those that the user has left open.

    Parameters
    ----------
    parameters : mapping
        The estimator's, with the layers of a net that is trained alone.
    data : PreparedData
    likelihood : Likelihood
    beside : bool
        Whether they stand beside members that train together.
    """
    pieces = len(data.X) > SMALL_ROWS and _may_bend(data)
    asked = kinds("n_bins", parameters["n_bins"], AUTOMATIC if pieces else (None,))
    n_dual = len(data.X) * GGN().n_columns(likelihood, data.n_outputs)
    costs = [exact_cost(_blocks(parameters, data, kind), n_dual)[0] for kind in asked]
    if beside and costs[0] > MOST_BESIDE:
        return ()
    return tuple(kind for kind, cost in zip(asked, costs, strict=True) if cost <= MOST_STEP)


def kinds_of_nets(parameters: Mapping[str, Any], data: PreparedData, likelihood: Likelihood) -> tuple[int | None, ...]:
    """Numbers of pieces, None for the numbers themselves.

    By themselves there are pieces where a fit may take longer, beyond 300 rows, and where the steps of a net of them go
    over all rows: in one that is trained by mini-batches there would be nothing to weigh it by. There are none where
    the nets are counted or their weights called by name, nor where no column has more than two values.

    Parameters
    ----------
    parameters : mapping
        The estimator's.
    data : PreparedData
    likelihood : Likelihood
    """
    most = max(AUTOMATIC, key=lambda kind: kind or 0) or 0
    pays = _are_left_open(parameters) and len(data.X) > SMALL_ROWS and _may_bend(data)
    pays = pays and _are_affordable(_blocks(parameters, data, most), data, likelihood)
    return kinds("n_bins", parameters["n_bins"], AUTOMATIC if pays else (None,))


def most_kinds(parameters: Mapping[str, Any], X: Any) -> int:
    """As many as there can be for rows as they are given, validated or not."""
    n_rows = SMALL_ROWS + 1
    with suppress(TypeError, ValueError):  # what is no table is refused by whoever reads it
        n_rows = _num_samples(X)
    pays = _are_left_open(parameters) and n_rows > SMALL_ROWS
    return len(kinds("n_bins", parameters["n_bins"], AUTOMATIC if pays else (None,)))


def _are_left_open(parameters: Mapping[str, Any]) -> bool:
    """Whether nothing that the user has said is of a single net."""
    if parameters["net"] is not None or is_number(parameters["n_members"]):
        return False
    named = _by_name(parameters) or not is_plain_subset(parameters["subset_of_weights"])
    return not named and np.size(parameters["prior_precision"]) == 1


def _by_name(parameters: Mapping[str, Any]) -> list[str]:
    """Options that call layers and tensors by name."""
    return [name for name in ("prior_mean", "temperature") if isinstance(parameters.get(name), Mapping)]


def check_one_kind(parameters: Mapping[str, Any], fitted: Collection[int | None]) -> None:
    """Refuse names of weights for a mixture of several kinds, whose nets have other names each.

    Parameters
    ----------
    parameters : mapping
        Those that are to change.
    fitted : collection of int or None
        ``n_bins`` of the members.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_one_kind({"temperature": {"2": 0.5}}, [None, None])
    >>> check_one_kind({"temperature": {"2": 0.5}}, [None, 8])
    Traceback (most recent call last):
    ValueError: temperature={'2': 0.5} names weights of one net, and the nets of this mixture are of 2 kinds (n_bins)...
    """
    n_kinds = len(set(fitted))
    for name in _by_name(parameters) if n_kinds > 1 else []:
        raise ValueError(
            f"{name}={parameters[name]!r} names weights of one net, and the nets of this mixture are of {n_kinds} "
            "kinds (n_bins), whose weights have names of their own. Fit with n_bins=None, or change one of members_."
        )


def _may_bend(data: PreparedData) -> bool:
    """Whether a column of numbers has more than two values: of two there is one piece, which is the number."""
    numeric = range(data.X.shape[1]) if data.table is None else data.table.numeric
    columns = (data.X[:, k] for k in numeric)
    return any(bool(np.any((x > np.nanmin(x)) & (x < np.nanmax(x)))) for x in columns if not np.isnan(x).all())


def _blocks(parameters: Mapping[str, Any], data: PreparedData, n_bins: int | None) -> list[ParameterBlock]:
    """Layers of the built-in net: of pieces as many inputs as there may be."""
    levels = (0,) * data.X.shape[1] if data.table is None else data.table.levels
    flagged = 0 if data.table is None else int(np.sum(data.table.flagged))
    sizes = [*parameters["hidden_layer_sizes"], data.n_outputs]
    first = (n_bins or 1) * levels.count(0) + flagged
    embeddings = [ParameterBlock("embedding", sizes[0], count + 1, factored=True) for count in levels if count]
    layers = [
        ParameterBlock("layer", n_out, n_in + 1, factored=True) for n_in, n_out in itertools.pairwise([first, *sizes])
    ]
    return [*embeddings, *layers]


def _are_affordable(blocks: list[ParameterBlock], data: PreparedData, likelihood: Likelihood) -> bool:
    n_rows = len(data.X)
    cost, _ = exact_cost(blocks, n_rows * GGN().n_columns(likelihood, data.n_outputs))
    return cost <= budget_for(n_rows).exact_step or kron_pays(blocks, n_rows, data.n_outputs, likelihood)
