"""State of a joint training in a file, from which a killed fit resumes, with the same result.

The file is replaced atomically, every ``EVERY`` seconds and after each stage, and removed when the fit ends. It holds
tensors and plain data only, so that reading it cannot run code, and a hash of the parameters and rows. In a process
group, rank 0 reads and writes it.
"""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import joblib
import torch
from numpy.random import RandomState

from .._data.rows import PreparedData
from .._runtime.atomic import write_whole
from .._runtime.group import Group

EVERY = 30.0
"""Seconds between two states of a stage."""
UNRELATED = {"checkpoint", "max_time", "verbose", "n_jobs", "memory", "memory_budget"}
"""Parameters that may differ between a fit and the one that goes on."""
FORMAT = 2
"""Version of the file's contents."""


@dataclass
class Checkpoint:
    """Results of the finished stages of a fit, and the state of the one in progress, in the file ``path``."""

    path: Path
    key: str  # hash of the parameters and rows of the fit
    group: Group
    finished: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self._saved = time.monotonic()

    @classmethod
    def of(cls, path: Any, key: str, group: Group) -> Checkpoint:
        """Read the file if it exists; ``ValueError`` if it is no checkpoint or belongs to another fit."""
        path, stored, error = Path(path), None, None
        if group.rank == 0:
            try:
                stored = _read(path, key)
            except ValueError as failure:
                error = failure
        group.raise_together(error)
        return cls(path, key, group, *(group.of_first(stored) or ({}, None)))

    def result(self, stage: str, compute: Callable[[], Any]) -> Any:
        """Result of a stage (numbers, strings, tensors, lists, dicts), read from the file if it was finished before."""
        if stage not in self.finished:
            value = compute()
            self.finished[stage], self.state = self.group.of_first(value), None
            self._write()
        return self.finished[stage]

    def is_due(self) -> bool:
        """True if the last state is older than ``EVERY`` seconds."""
        return self.group.rank == 0 and time.monotonic() - self._saved > EVERY

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the state of the stage in progress."""
        self.state = dict(state)
        self._write()

    def _write(self) -> None:
        if self.group.rank == 0:
            content = io.BytesIO()
            stored = {"format": FORMAT, "key": self.key, "finished": self.finished, "state": self.state}
            torch.save(stored, content)
            write_whole(self.path, content.getvalue())
        self._saved = time.monotonic()

    def remove(self) -> None:
        if self.group.rank == 0:
            self.path.unlink(missing_ok=True)


def _read(path: Path, key: str) -> tuple[dict[str, Any], dict[str, Any] | None] | None:
    """Finished stages and state in a file; None without a file, and ``ValueError`` as in :meth:`Checkpoint.of`."""
    if not path.exists():
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles of other programs
            stored = torch.load(path, map_location="cpu", weights_only=True)
        version, stored_key, finished, state = (stored[name] for name in ("format", "key", "finished", "state"))
    except Exception as error:  # other files may raise anything
        raise ValueError(
            f"checkpoint={str(path)!r} is no checkpoint of this package: {error}. Pass another path."
        ) from error
    if version != FORMAT or stored_key != key:
        raise ValueError(
            f"checkpoint={str(path)!r} belongs to a fit with other parameters or rows, or to another version. Remove "
            "the file to start again, or pass another path."
        )
    return finished, state


def checkpoint_of(parameters: Mapping[str, Any], data: PreparedData, group: Group) -> Checkpoint:
    given = {name: value for name, value in parameters.items() if name not in UNRELATED}
    texts = {name: _state(value) if isinstance(value, RandomState) else repr(value) for name, value in given.items()}
    return Checkpoint.of(parameters["checkpoint"], joblib.hash((texts, data.X, data.targets, data.weights)), group)


def _state(random: RandomState) -> str:
    """Hash of the state of a random generator, whose ``repr`` holds its memory address."""
    state: str = joblib.hash(random.get_state())
    return state


class NoCheckpoint:
    """Stand-in for a fit without a checkpoint."""

    state = None

    def result(self, stage: str, compute: Callable[[], Any]) -> Any:
        return compute()

    def is_due(self) -> bool:
        return False

    def save(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    def remove(self) -> None:
        """Do nothing."""
