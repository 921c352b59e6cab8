"""State of a joint training in a file, from which a killed fit resumes, with the same result.

The file ``<location>/sklearn_laplace/<key>.state`` is in the folder of the parameter ``memory``. The key is a hash of
parameters and rows. The file is replaced every ``EVERY`` seconds, and removed when the fit ends. It holds tensors and
plain data only, so that reading it cannot run code. In a process group, rank 0 reads and writes it.

**Atomic replacement.** The new content is written to a temporary file in the same folder, then renamed. A killed
process leaves its temporary file behind; the next write to the same path removes it. On POSIX systems a writer locks
its temporary file, so that a file without a lock is abandoned; on other systems, one that is an hour old.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import joblib
import torch
from numpy.random import RandomState
from sklearn.utils.validation import check_memory

from .._table.rows import PreparedData
from .._table.source import Group
from ..errors import UncachedWarning
from ..errors.warn import warn_user

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]
END = ".saving"
"""Suffix of the names of temporary files."""
LONGEST = 50
"""Maximum number of characters of the target in a temporary name: up to four bytes each, of 255 for a file name."""
ABANDONED = 3600.0
"""Age in seconds after which a temporary file counts as abandoned, on systems without file locks."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file completely or not at all; an existing file is replaced, and left unchanged after an error."""
    folder = path.parent
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{path} cannot be written: the folder {folder} does not exist. Create it first, or pass another path."
        )
    path = Path(os.path.realpath(path))
    if path.is_symlink():  # pathlib's resolve() raises for it before Python 3.13 only
        raise OSError(f"{path} cannot be written: its symbolic links lead in a circle. Pass another path.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; pass the path of a file.")
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is a device or a pipe; pass the path of a regular file or of a new file.")
    _remove_abandoned(path)
    temporary = path.with_name(f"{_start(path)}{secrets.token_hex(8)}{END}")
    try:
        with temporary.open("xb") as file:
            _lock(file)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if path.exists():
                temporary.chmod(path.stat().st_mode & 0o777)
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _start(path: Path) -> str:
    """Prefix of the names of temporary files of a path."""
    return f".{path.name[:LONGEST]}."


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files of this path that killed processes left behind."""
    pattern = re.compile(re.escape(_start(path)) + "[0-9a-f]{16}" + re.escape(END))
    for entry in os.scandir(path.parent):
        if pattern.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            with suppress(OSError):  # owned by another user, in use, or removed in the meantime
                _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(temporary: Path) -> None:
    """Remove a temporary file without a lock, or without locks an old one."""
    with temporary.open("rb") as file:
        if fcntl is None or not os.fstat(file.fileno()).st_size:  # an empty file may be new and not locked yet
            if time.time() - os.fstat(file.fileno()).st_mtime > ABANDONED:
                temporary.unlink()
            return
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.unlink()


def _lock(file: IO[bytes]) -> None:
    """Lock a file, if the system and the file system support it."""
    if fcntl is not None:
        with suppress(OSError):  # the file system does not support locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


EVERY = 30.0
"""Seconds between two states."""
UNRELATED = {"max_time", "verbose", "n_jobs", "memory", "memory_budget"}
"""Parameters that may differ between a fit and the one that resumes."""
FORMAT = 4
"""Version of the file's contents."""


class Checkpoint:
    """Results of the finished stages of a fit, and the state of the one in progress; without a path, no stage is kept.

    Pickles hold nothing of it, so that the key of a cached training does not depend on it.
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
        """Result of a stage (numbers, strings, tensors, lists, dicts), read from the file if it was finished before."""
        if self.path is None:
            return compute()
        if stage not in self.finished:
            value = compute()
            self.finished[stage], self.state = self.group.of_first(value), None
            if self.is_due():
                self._write()
        return self.finished[stage]

    def is_due(self) -> bool:
        """True if the last state is older than ``EVERY`` seconds."""
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
        except OSError as error:  # as joblib, which warns if it cannot keep a result
            warn_user(f"the state of the training is not kept although memory is set: {error}.", UncachedWarning)
        self._saved = time.monotonic()

    def remove(self) -> None:
        if self.path is not None and self.group.rank == 0:
            with suppress(OSError):  # absent, or in a folder that cannot be written
                self.path.unlink()


def checkpoint_of(parameters: Mapping[str, Any], data: PreparedData, group: Group) -> Checkpoint:
    """Checkpoint in the folder of ``memory``, with an earlier state; without a path if the fit cannot be resumed."""
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
    """Hash of the state of a random generator, whose ``repr`` holds its memory address."""
    state: str = joblib.hash(random.get_state())
    return state


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Finished stages and state; none if the file is absent, damaged or of another format."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles of other programs
            stored = torch.load(path, map_location="cpu", weights_only=True)
        version, finished, state = (stored[name] for name in ("format", "finished", "state"))
    except Exception:  # other files may raise anything
        return {}, None
    return (finished, state) if version == FORMAT else ({}, None)
