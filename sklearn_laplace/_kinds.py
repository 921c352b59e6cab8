"""Which kinds of nets a fit has: those that see numbers, and those that see pieces of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from ._budget import SMALL_ROWS, budget_for, exact_cost
from ._cross_fit import kron_pays
from ._data import PreparedData
from ._values import kinds
from .curvatures import GGN
from .jacobian import Block
from .likelihoods._base import Likelihood

AUTOMATIC = (None, 8)
"""Eight pieces beside the numbers: on held-out rows of eleven tables level or better everywhere."""


def kinds_of_nets(parameters: Mapping[str, Any], data: PreparedData, likelihood: Likelihood) -> tuple[int | None, ...]:
    """Numbers of pieces, None for the numbers themselves.

    By themselves there are pieces where a fit may take longer, beyond 300 rows, and where the steps of a net of them go
    over all rows: in one that is trained by mini-batches there would be nothing to weigh it by.

    Parameters
    ----------
    parameters : mapping
        The estimator's.
    data : PreparedData
    likelihood : Likelihood
    """
    most = max(AUTOMATIC, key=lambda kind: kind or 0) or 0
    affordable = len(data.X) > SMALL_ROWS and _are_affordable(_blocks(parameters, data, most), data, likelihood)
    return kinds("n_bins", parameters["n_bins"], AUTOMATIC if affordable else (None,))


def _blocks(parameters: Mapping[str, Any], data: PreparedData, n_bins: int) -> list[Block]:
    """Layers of the built-in net of pieces: as many inputs as there may be."""
    levels = (0,) * data.X.shape[1] if data.table is None else data.table.levels
    flagged = 0 if data.table is None else int(np.sum(data.table.flagged))
    sizes = [*parameters["hidden_layer_sizes"], data.n_outputs]
    first = n_bins * levels.count(0) + flagged
    embeddings = [Block("embedding", sizes[0], count + 1, factored=True) for count in levels if count]
    layers = [Block("layer", n_out, n_in + 1, factored=True) for n_in, n_out in itertools.pairwise([first, *sizes])]
    return [*embeddings, *layers]


def _are_affordable(blocks: list[Block], data: PreparedData, likelihood: Likelihood) -> bool:
    n_rows = len(data.X)
    cost, _ = exact_cost(blocks, n_rows * GGN().n_columns(likelihood, data.n_outputs))
    return cost <= budget_for(n_rows).exact_step or kron_pays(blocks, n_rows, data.n_outputs, likelihood)
