"""Specification of a training, which determines its result and is the key of the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._data.rows import PreparedData
from .._options.options import Options
from .checkpoint import Checkpoint, NoCheckpoint
from .plan import WarmStart
from .random_weights import for_rows
from .stream import RowStream


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    kind: str  # "regressor" or "classifier"
    parameters: Mapping[str, Any]
    data: PreparedData  # a sample of the table if there is a stream
    seeds: list[int]  # of initial weights; of mini-batches and torch's generator for a user's module
    warm_start: WarmStart | None = None
    is_member: bool = False  # later member: no cross-fitted nets, prior precisions of its warm start
    is_quick: bool = False  # the net is only scored: a few steps
    cross_fits_linear: bool = False  # held-out rows compare a linear net with others
    stream: RowStream | None = None
    saved: Checkpoint | NoCheckpoint = field(default_factory=NoCheckpoint)  # of a killed process

    def options(self, resolved: Options) -> Options:
        return for_rows(resolved, self.kind, self.parameters, self.data.summary())
