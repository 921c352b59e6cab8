"""A file is refused in little time and memory."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from sklearn_laplace import load
from sklearn_laplace.errors import StateError


def refused_quickly(content, path, match, seconds=2.0, megabytes=64):
    """Processor time, independent of other processes; memory in a second run, because tracing is slow."""
    if content is not None:  # else the file is there
        path.write_bytes(content)
    start = time.process_time()
    with pytest.raises(StateError, match=match):
        load(path)
    elapsed = time.process_time() - start
    tracemalloc.start()
    try:
        with pytest.raises(StateError, match=match):
            load(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert elapsed < seconds and peak < megabytes * 2**20, (elapsed, peak)
