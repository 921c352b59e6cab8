"""Container of a saved model, in the format of safetensors: a header that lists arrays, and their bytes.

Sizes are compared with the size of the file before anything is allocated. A header therefore cannot request more memory
than the file has bytes.
"""

import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..errors import StateError

AGAIN = "Write it again with sklearn_laplace.save, or fit again."
DTYPES = {
    **{"BOOL": "?", "F16": "<f2", "F32": "<f4", "F64": "<f8"},
    **{f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)},
}
"""NumPy's data types by their names in the header."""
PICKLED = b"\x80", b"PK", b"\x78", b"\x1f\x8b"
"""First bytes of a pickle, of a zip archive (torch, skops), and of compressed pickles (joblib)."""


class Entry(NamedTuple):
    """Data type and shape of an array, and the place of its bytes after the header."""

    begin: int
    end: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def read_container(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and metadata of a file, or raise ``StateError`` if it is malformed."""
    with path.open("rb") as opened:
        first, n_bytes = opened.read(8), os.fstat(opened.fileno()).st_size - 8
        try:
            return _content(opened, int.from_bytes(first, "little"), n_bytes)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            advice = "it has another format or was cut off. Copy it again."
            if first.startswith(PICKLED):
                advice = "it looks like a pickle or a file of joblib, torch or skops, which their own functions read."
            problem = f"{path} cannot be read as a file of safetensors ({error!s:.200})"
            raise StateError(f"{problem}: {advice} {AGAIN}") from error


def _content(opened: BinaryIO, n_header: int, n_bytes: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and metadata of an open file, with ``n_bytes`` bytes after the first eight."""
    if n_header > n_bytes:
        raise ValueError(f"it has no header; {n_bytes + 8:,} bytes")
    header = json.loads(opened.read(n_header))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise ValueError("its metadata have no names")
    entries = {name: _entry(**values) for name, values in header.items()}
    ordered = sorted(entries, key=lambda name: entries[name][:2])
    reached = 0
    for name in ordered:
        if entries[name].begin != reached:
            raise ValueError("the places of its arrays do not fit together")
        reached = entries[name].end
    if reached != n_bytes - n_header:
        raise ValueError(f"its arrays have {reached:,} bytes, and {n_bytes - n_header:,} follow")
    return {name: _array(opened, entries[name]) for name in ordered}, metadata


def bytes_of(values: np.ndarray) -> bytes | memoryview:
    """The bytes of an array in C order, without a copy if it is contiguous."""
    return np.ascontiguousarray(values).view(np.uint8).data if values.size else b""


def are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(size) is int and size >= 0 for size in values)


def _entry(dtype: str, shape: list[int], data_offsets: list[int]) -> Entry:
    kind, (begin, end) = np.dtype(DTYPES[dtype]), data_offsets
    if not are_sizes([*shape, begin, end]) or end - begin != math.prod(shape) * kind.itemsize:
        raise ValueError(f"an array has the shape {shape!s:.80} at {data_offsets!s:.80}")
    return Entry(begin, end, kind, tuple(shape))


def _array(opened: BinaryIO, entry: Entry) -> np.ndarray:
    content = np.empty(entry.end - entry.begin, dtype=np.uint8)
    if opened.readinto(content.data) < len(content):  # type: ignore[attr-defined]
        raise ValueError("it became shorter while it was read")
    return content.view(entry.dtype).reshape(entry.shape)
