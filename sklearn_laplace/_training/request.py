"""The request for a training: a function of it alone is what the cache of ``memory=`` holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._data.rows import PreparedData
from .._options.options import Options
from .plan import WarmStart
from .random_weights import options_for


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """One training.

    Parameters
    ----------
    kind : str
        "regressor" or "classifier".
    parameters : mapping
        The estimator's parameters by name.
    data : PreparedData
    seeds : sequence of int
        Seeds of the initial weights and of the order of mini-batches. The second one also seeds torch's global
        generator for a user's module; its state is restored afterwards.
    warm_start : WarmStart or None
        End state of an earlier training on the same rows.
    is_member : bool
        True for a later ensemble member: it trains without cross-fitted nets, under the precisions of its warm start.
    is_quick : bool
        True if the net is only scored, so that a few steps are enough.
    """

    kind: str
    parameters: Mapping[str, Any]
    data: PreparedData
    seeds: list[int]
    warm_start: WarmStart | None = None
    is_member: bool = False
    is_quick: bool = False

    def options(self, memory_budget: object) -> Options:
        """Resolve the options in the units of these rows.

        Parameters
        ----------
        memory_budget : None, int or str
            Passed separately, since it does not belong to the key of the cache.
        """
        return options_for(self.kind, {**self.parameters, "memory_budget": memory_budget}, self.data)
