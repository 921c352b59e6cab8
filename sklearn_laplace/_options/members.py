"""Number of ensemble members and the rule for their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sklearn.frozen import FrozenEstimator

from .._host.given_net import is_list
from .._validation.values import count, lookup
from ..errors import UnsupportedCombinationError
from .options import AUTO, EVIDENCE, LOO
from .prior import check_left_out

WEIGHTINGS = {"uniform": None, LOO: True, EVIDENCE: False}
"""Rules for member weights: None for equal weights, True for leave-one-out densities, False for the evidence."""


def _check_members(parameters: Mapping[str, Any]) -> None:
    """Refuse several members for nets that start from given weights and would all be equal."""
    lookup("weights of Members", parameters["member_weights"], WEIGHTINGS)
    net = parameters["net"]
    if is_list(net) and n_members(parameters["n_members"], len(net) - 1) != len(net):
        raise ValueError(
            f"n_members={parameters['n_members']} is not the number of nets in net=[…], {len(net)}. Use the default "
            "'auto'."
        )
    if n_members(parameters["n_members"], 0) == 1 and not is_list(net):
        return
    if WEIGHTINGS[parameters["member_weights"]]:
        check_left_out(f"n_members=Members(weights={parameters['member_weights']!r})", parameters)
    if is_list(net):
        return
    if parameters["prior"] is not None or isinstance(net, FrozenEstimator | torch.nn.Module):
        raise UnsupportedCombinationError(
            f"n_members={parameters['n_members']} nets would all be the same: they start from the weights of "
            f"net={type(net).__name__}(…) or of the previous posterior. Pass the module's class and no prior=, or use "
            "n_members=1."
        )


def n_members(value: object, n_folds: int) -> int:
    """Number of ensemble members: the given count; for "auto" one per fold, and one of all rows.

    ``n_folds`` is the number of folds with cross-fitted nets. Raises ``ValueError`` for any other value.
    """
    if isinstance(value, str):
        return lookup("n_members", value, {AUTO: 1 + n_folds}, "a whole number of at least 1")
    return count("n_members", value)
