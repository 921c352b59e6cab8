"""Use one torch thread for small problems, and in every forked process.

Matrix products of a few hundred rows gain nothing from a second thread, and lose much on a busy machine: every parallel
region waits for a thread without a core. In a forked process, OpenMP's worker threads do not exist, but its pool still
lists them, and the next parallel region waits forever; with one thread there is no such region. torch stores the number
of threads per calling thread; a thread started in the forked process has a new pool and inherits the number.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

if sys.platform != "win32":
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


@contextmanager
def single_thread(wanted: bool) -> Iterator[None]:
    """Run the block with one torch thread, unless ``wanted`` is False; a process forked inside keeps one thread."""
    before, process = torch.get_num_threads(), os.getpid()
    if not wanted or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        if os.getpid() == process:
            torch.set_num_threads(before)
