"""Conditions for members that train together, and for rows that are read while they train."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from .._data.summary import TableShape
from .._options.options import Options, is_number
from .._training.built_in import of_one_net
from .._training.fit_map import ROWS_FOR_MEMBERS
from ..errors import UnsupportedCombinationError
from ..laplace.structures import Functional
from ..laplace.subsets._base import Subset
from .encodings import has_exact_steps
from .request import FitRequest

ROWS_OF_CLASSES, ROWS_OF_COUNTS = 5000, 1000
"""Minimum numbers of rows in memory for which members for classes and counts train together."""
LEAST_EVENTS = 30
"""Minimum sum of the counts of each target for which members train together. Rates with hardly any event have no lower
bound, and the wide posteriors of small rates lead to astronomical means. See docs/decisions.md."""


def is_bagged(parameters: Mapping[str, Any], shape: TableShape, options: Options, *, is_streamed: bool = False) -> bool:
    """True if a fit trains members together: built-in net, enough rows, and no option that needs a single net.

    Classes need rows for which exact steps are too expensive. On a stream, no other nets train.
    """
    likelihood = options.likelihood
    built_in = parameters["net"] is None and len(parameters["hidden_layer_sizes"]) > 0
    many = shape.n_rows >= ROWS_FOR_MEMBERS and parameters["prior"] is None and not shape.has_copies
    # Held-out rows select one factor of the prior precision for all weights, and the noise level.
    by_prior, by_noise = options.by_held_out
    by_held_out = by_prior and (by_noise or not likelihood.has_dispersion)
    by_held_out = by_held_out and options.map_precision is None and options.grouping.each == "net"
    of_one = (
        is_number(parameters["n_members"])
        or not (parameters["n_bins"] is None or isinstance(parameters["n_bins"], str | Integral))
        or parameters["max_epochs"] is not None
        or bool(options.prior_mean)
        or not isinstance(options.temperature, float)
        or type(options.subset).settled is not Subset.settled  # single weights
    )
    if not (built_in and many and by_held_out) or of_one:
        return False
    if likelihood.has_dispersion:
        return likelihood.quadratic
    if is_streamed:
        return True
    if not likelihood.over_classes:
        return shape.n_rows >= ROWS_OF_COUNTS and shape.least_total >= LEAST_EVENTS
    return shape.n_rows >= ROWS_OF_CLASSES and not has_exact_steps(of_one_net(parameters), shape, likelihood)


def check_in_memory(request: FitRequest, options: Options, *, is_bagged: bool) -> None:
    """Refuse a stream for nets that train one after the other, or for a curvature whose size grows with the rows."""
    if request.stream is None:
        return
    structure = options.structure
    if structure is not None and (not structure.is_monoid or issubclass(structure, Functional)):
        reason = "stores all rows" if structure.is_monoid else "is no sum over rows"
        raise UnsupportedCombinationError(
            f"hessian_structure={request.parameters['hessian_structure']!r} {reason}, and X is a large source. "
            "Use 'kron', 'block_diagonal', 'diag' or 'full', or read the rows into memory."
        )
    if not is_bagged:
        noise = "sigma_noise, " if options.likelihood.has_dispersion else ""
        raise UnsupportedCombinationError(
            f"X is a source of {request.stream.n_rows:,} rows, and these options need all rows in memory. Only the "
            "default ensemble trains while it reads: leave net, n_members, prior, prior_precision, "
            f"{noise}max_epochs and augment at their defaults, or read the rows into memory."
        )
