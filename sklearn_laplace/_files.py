"""Write a file completely or not at all.

A temporary file in the same folder is written and then renamed. The next write to the same path removes abandoned
temporary files, which killed processes leave behind. On POSIX systems, a writer locks its file, so an unlocked file
with content is abandoned. Empty files, and all files on other systems, count as abandoned after an hour.
"""

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
"""Suffix of the names of temporary files."""
LONGEST = 50
"""Maximum length in characters of the target's name within a temporary name. A file name has at most 255 bytes."""
ABANDONED = 3600.0
"""Age in seconds after which a temporary file counts as abandoned if it is empty or the system has no locks."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file completely or not at all. An existing file is replaced; after an error, it is unchanged."""
    folder = path.parent
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{path} cannot be written: the folder {folder} does not exist. Create it first, or pass another path."
        )
    path = Path(os.path.realpath(path))
    if path.is_symlink():  # its links lead in a circle; pathlib's resolve() raises only before Python 3.13
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
    """Return the prefix of the names of a path's temporary files."""
    return f".{path.name[:LONGEST]}."


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files of this path that killed processes left behind."""
    pattern = re.compile(re.escape(_start(path)) + "[0-9a-f]{16}" + re.escape(END))
    for entry in os.scandir(path.parent):
        if pattern.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            with suppress(OSError):  # owned by another user, in use, or removed in the meantime
                _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(temporary: Path) -> None:
    """Remove an unlocked temporary file. If it is empty or locks are unsupported, remove it only if it is old."""
    with temporary.open("rb") as file:
        if fcntl is None or not os.fstat(file.fileno()).st_size:  # an empty file may be new and not locked yet
            if time.time() - os.fstat(file.fileno()).st_mtime > ABANDONED:
                temporary.unlink()
            return
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.unlink()


def _lock(file: IO[bytes]) -> None:
    """Lock a file if the operating system and the file system support locks."""
    if fcntl is not None:
        with suppress(OSError):  # the file system does not support locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
