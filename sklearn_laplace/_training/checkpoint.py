"""State of a joint training run in a file, from which a killed fit resumes with the same result.

The file ``<location>/sklearn_laplace/<key>.state`` is in the folder that the parameter ``memory`` names. The key is a
hash of parameters and rows. The file is replaced at most every ``EVERY`` seconds, and removed when the fit ends. It
holds only tensors and plain data, so reading it cannot run code. In a process group, rank 0 reads and writes it.
"""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import joblib
import torch
from numpy.random import RandomState
from sklearn.utils.validation import check_memory

from .._files import write_whole
from .._table.rows import PreparedData
from .._table.source import Group
from ..errors import UncachedWarning
from ..errors.warn import warn_user

EVERY = 30.0
"""Minimum number of seconds between two saved states."""
UNRELATED = {"max_time", "verbose", "n_jobs", "memory", "memory_budget"}
"""Parameters that may differ between an interrupted fit and the fit that resumes it."""
FORMAT = 7
"""Version of the file's contents."""


class Checkpoint:
    """Results of the finished stages of a fit, and state of the stage in progress. Nothing is stored without a path.

    A pickled checkpoint is empty, so the key of a cached training result does not depend on it.
    """

    def __init__(
        self,
        path: Path | None = None,
        group: Group | None = None,
        finished: dict[str, Any] | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        self.path, self.group, self.state = path, group or Group(), state
        self.finished = {} if finished is None else finished
        self._saved = time.monotonic()

    def __reduce__(self) -> tuple[type[Checkpoint], tuple[()]]:
        return Checkpoint, ()

    def result(self, stage: str, compute: Callable[[], Any]) -> Any:
        """Stored result of a stage, or else that of ``compute()``: numbers, strings, tensors, lists, dicts."""
        if self.path is None:
            return compute()
        if stage not in self.finished:
            value = compute()
            self.finished[stage], self.state = self.group.of_first(value), None
            if self.is_due():
                self._write()
        return self.finished[stage]

    def is_due(self) -> bool:
        """True on rank 0, ``EVERY`` seconds after the last save."""
        return self.path is not None and self.group.rank == 0 and time.monotonic() - self._saved > EVERY

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the state of the stage in progress."""
        self.state = dict(state)
        self._write()

    def _write(self) -> None:
        assert self.path is not None
        content = io.BytesIO()
        torch.save({"format": FORMAT, "finished": self.finished, "state": self.state}, content)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, content.getvalue())
        except OSError as error:  # like joblib, which warns if it cannot keep a result
            warn_user(f"the state of the training is not kept although memory is set: {error}.", UncachedWarning)
        self._saved = time.monotonic()

    def remove(self) -> None:
        if self.path is not None and self.group.rank == 0:
            with suppress(OSError):  # absent, or in a folder that cannot be written
                self.path.unlink()


def checkpoint_of(parameters: Mapping[str, Any], data: PreparedData, group: Group) -> Checkpoint:
    """Checkpoint in the folder of ``memory``, with an earlier run's state; no path if the fit cannot be resumed."""
    location = check_memory(parameters["memory"]).location
    if location is None or parameters["random_state"] is None:
        return Checkpoint()
    given = {name: value for name, value in parameters.items() if name not in UNRELATED}
    texts = {name: _state(value) if isinstance(value, RandomState) else repr(value) for name, value in given.items()}
    key = joblib.hash((texts, data.X, data.targets, data.weights))
    path = Path(location) / "sklearn_laplace" / f"{key}.state"
    finished, state = group.of_first(_read(path) if group.rank == 0 else ({}, None))
    return Checkpoint(path, group, finished, state)


def _state(random: RandomState) -> str:
    """Hash of the state of a random generator, because its ``repr`` contains a memory address."""
    state: str = joblib.hash(random.get_state())
    return state


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Finished stages and state; empty if the file is absent, damaged or of another format."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles of other programs
            stored = torch.load(path, map_location="cpu", weights_only=True)
        version, finished, state = (stored[name] for name in ("format", "finished", "state"))
    except Exception:  # other files may raise anything
        return {}, None
    return (finished, state) if version == FORMAT else ({}, None)
