"""The container of a saved model: a header that lists arrays, and their bytes (the format of safetensors).

Sizes are compared with those of the file before anything else is read, and arrays are read one at a time. So a file
takes only the memory of the arrays that its reader asks for. The package safetensors needs all bytes at once, or maps
the file, which ends the process if another one truncates it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import StateError

AGAIN = "Write it again with sklearn_laplace.save, or fit again."
MOST_HEADER = 2**20
"""Bytes of the header, which lists the arrays: about 14,000 of them."""
MOST_AXES = 32
DTYPES = {
    **{"BOOL": "?", "F16": "<f2", "F32": "<f4", "F64": "<f8"},
    **{f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)},
}
"""NumPy's data types by their names in the header."""
PICKLED = b"\x80", b"PK", b"\x78", b"\x1f\x8b"
"""First bytes of a pickle, of a zip archive (torch, skops), and of compressed pickles (joblib)."""


@dataclass(frozen=True)
class Entry:
    """Data type and shape of an array, and the place of its bytes behind the header."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Container:
    """An open file with a checked header; ``start`` is the place of the first byte behind it."""

    path: Path
    opened: BinaryIO
    start: int
    entries: Mapping[str, Entry]
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path, opened: BinaryIO) -> Container:
        """Read and check the header; a StateError if the entries do not cover the file exactly, each byte once."""
        n_bytes, first = os.fstat(opened.fileno()).st_size, opened.read(8)
        n_header = int.from_bytes(first, "little")
        if len(first) < 8 or n_header > n_bytes - 8:
            raise _unreadable(path, f"it has no header; {n_bytes:,} bytes", first)
        if n_header > MOST_HEADER:
            raise StateError(
                f"{path} has a header of {n_header:,} bytes, and sklearn_laplace.save writes at most {MOST_HEADER:,}. "
                f"{AGAIN}"
            )
        try:
            header = json.loads(opened.read(n_header))
            metadata = header.pop("__metadata__", {})
            entries = {name: _entry(**values) for name, values in header.items()}
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise _unreadable(path, f"its header is damaged: {error!s:.200}", first) from error
        end = 0
        for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
            if entry.begin != end or entry.end - entry.begin != math.prod(entry.shape) * entry.dtype.itemsize:
                raise _unreadable(path, "the places of its arrays do not fit together", first)
            end = entry.end
        if end != n_bytes - 8 - n_header or not isinstance(metadata, dict):
            raise _unreadable(path, f"its arrays have {end:,} bytes, and {n_bytes - 8 - n_header:,} follow", first)
        return cls(path, opened, 8 + n_header, entries, metadata)

    def read(self, name: str) -> np.ndarray:
        """An array of the file; a StateError if the file has become shorter."""
        entry = self.entries[name]
        content = np.empty(entry.end - entry.begin, dtype=np.uint8)
        self.opened.seek(self.start + entry.begin)
        if self.opened.readinto(content.data) < len(content):  # type: ignore[attr-defined]
            raise _unreadable(self.path, "it became shorter while it was read", b"")
        return content.view(entry.dtype).reshape(entry.shape)


def bytes_of(values: np.ndarray) -> bytes | memoryview:
    """The bytes of an array in C order, without a copy if it is contiguous."""
    return np.ascontiguousarray(values).view(np.uint8).data if values.size else b""


def _entry(dtype: str, shape: list[int], data_offsets: list[int]) -> Entry:
    begin, end = data_offsets
    if len(shape) > MOST_AXES or not all(type(size) is int and 0 <= size < 2**63 for size in (*shape, begin, end)):
        raise ValueError(f"an array has the shape {shape!s:.80} at {data_offsets!s:.80}")
    return Entry(np.dtype(DTYPES[dtype]), tuple(shape), begin, end)


def _unreadable(path: Path, problem: str, first: bytes) -> StateError:
    """The error for a file of another format, with what it may be and what to do."""
    advice = "it has another format or was cut off. Copy it again."
    if first.startswith(PICKLED):
        advice = "it looks like a pickle or a file of joblib, torch or skops, which their own functions read."
    return StateError(f"{path} cannot be read as a file of safetensors ({problem}): {advice} {AGAIN}")
