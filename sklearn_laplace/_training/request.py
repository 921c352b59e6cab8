"""Specification of a training, which determines its result and is the key of the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._data.rows import PreparedData
from .._options.options import Options
from .checkpoint import Checkpoint, NoCheckpoint
from .plan import WarmStart
from .random_weights import options_for
from .stream import RowStream


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """Specification of a training of the given ``kind``, "regressor" or "classifier".

    ``seeds`` are those of the initial weights and of the order of mini-batches. The second one also seeds torch's
    global generator for a user's module; its state is restored afterwards. ``warm_start`` is the end state of an
    earlier training on the same rows.

    ``is_member`` is True for a later ensemble member, which has no cross-fitted nets and keeps the prior precisions of
    its warm start. ``is_quick`` is True if the net is only scored, so that a few steps are sufficient.
    ``cross_fits_linear`` is True if a linear net has cross-fitted nets too, because held-out rows compare it with other
    nets.

    With a ``stream``, ``data`` are a sample of the table that is read while the fit runs. ``saved`` is the state of the
    same training before its process was killed.
    """

    kind: str
    parameters: Mapping[str, Any]
    data: PreparedData
    seeds: list[int]
    warm_start: WarmStart | None = None
    is_member: bool = False
    is_quick: bool = False
    cross_fits_linear: bool = False
    stream: RowStream | None = None
    saved: Checkpoint | NoCheckpoint = field(default_factory=NoCheckpoint)

    def options(self, memory_budget: object) -> Options:
        """Resolve the options in the units of these rows.

        ``memory_budget`` is separate because it is not part of the key of the cache.
        """
        return options_for(self.kind, {**self.parameters, "memory_budget": memory_budget}, self.data.summary())
