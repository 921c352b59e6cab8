"""Resolve the number of members and their weighting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sklearn.frozen import FrozenEstimator

from .._validation.values import count, lookup
from ..errors import UnsupportedCombinationError
from .options import AUTO, EVIDENCE, LOO
from .prior import check_left_out

WEIGHTINGS = {"uniform": None, LOO: True, EVIDENCE: False}
"""What the weights of a mixture's members go by: nothing, left-out rows, or the evidence."""


def _check_members(parameters: Mapping[str, Any]) -> None:
    """Several nets have to differ in something."""
    lookup("weights of Members", parameters["member_weights"], WEIGHTINGS)
    given = parameters["net"]
    if n_members(parameters["n_members"], 0) == 1:
        return
    if WEIGHTINGS[parameters["member_weights"]]:
        check_left_out(f"n_members=Members(weights={parameters['member_weights']!r})", parameters)
    if parameters["prior"] is not None or isinstance(given, FrozenEstimator | torch.nn.Module):
        raise UnsupportedCombinationError(
            f"n_members={parameters['n_members']} nets would all be the same: they start at the weights of "
            f"net={type(given).__name__}(…) or of the previous posterior. Give the module's class and no prior=, or "
            "n_members=1."
        )


def n_members(value: object, n_folds: int) -> int:
    """Of a mixture: as many as asked for, or all that a fit has, with nets of so many folds beside that of all rows.

    Examples
    --------
    >>> n_members("auto", 3), n_members(2, 3)
    (4, 2)
    """
    return lookup("n_members", value, {AUTO: 1 + n_folds}) if isinstance(value, str) else count("n_members", value)
