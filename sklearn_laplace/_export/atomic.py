"""Replace a file atomically: the old file stays until the new one is complete.

The new content goes into a temporary file in the same folder, which is then renamed. A killed process leaves its
temporary file behind; the next write to the same path removes it. On POSIX systems a writer locks its temporary file:
a file without a lock has no writer. Elsewhere a temporary file counts as abandoned after an hour.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]
END = ".saving"
"""How the names of temporary files end."""
LONGEST = 50
"""Letters of the path's own name in them: a letter takes up to four bytes, and a name has at most 255."""
ABANDONED = 3600.0
"""Age in seconds of an abandoned temporary file, where there are no locks."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a temporary file and rename it to the path.

    Parameters
    ----------
    path : Path
        In a folder that exists.
    content : bytes

    Raises
    ------
    FileNotFoundError
        If the folder does not exist.
    IsADirectoryError
        If the path is that of a folder.
    OSError
        If the disk is full, or the folder cannot be written to. A file that was there stays as it was.
    """
    folder = path.parent
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{path} cannot be written: there is no folder {folder}. Create it first, or give another path."
        )
    try:
        path = path.resolve()
    except RuntimeError as error:
        raise OSError(f"{path} cannot be written: {error}. Give another path.") from error
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the name of a file.")
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is a device or a pipe; give the path of a regular file, or one that does not exist.")
    _remove_abandoned(path)
    beside = path.with_name(f"{_start(path)}{secrets.token_hex(8)}{END}")
    try:
        with beside.open("xb") as file:
            _lock(file)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if path.exists():
                beside.chmod(path.stat().st_mode & 0o777)
            os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _start(path: Path) -> str:
    """How the names of a path's temporary files begin, short enough for a file system."""
    return f".{path.name[:LONGEST]}."


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files of earlier writers of this path that were killed."""
    pattern = re.compile(re.escape(_start(path)) + "[0-9a-f]{16}" + re.escape(END))
    for entry in os.scandir(path.parent):
        if pattern.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            with suppress(OSError):  # of another user, in use, or gone by now
                _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(beside: Path) -> None:
    with beside.open("rb") as file:
        if fcntl is None or not os.fstat(file.fileno()).st_size:  # a moment after it was made it has no lock yet
            if time.time() - os.fstat(file.fileno()).st_mtime > ABANDONED:
                beside.unlink()
            return
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        beside.unlink()


def _lock(file: IO[bytes]) -> None:
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
