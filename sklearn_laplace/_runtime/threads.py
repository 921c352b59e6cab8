"""One torch thread for small problems, and in every process that was forked.

Products of a few hundred rows gain nothing from a second thread, and on a busy machine lose much: every parallel region
waits for a thread that has no core. torch keeps the number per calling thread, so that it is set and restored there.

OpenMP's worker threads do not exist in a forked process, but its pool still lists them: the next parallel region there
waits forever. One torch thread makes no parallel region. A thread that starts in the forked process has a pool of its
own, but inherits the number.
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
    """Run the block on one torch thread if that is wanted.

    A process that was forked inside the block keeps one thread.

    Parameters
    ----------
    wanted : bool

    Examples
    --------
    >>> before = torch.get_num_threads()
    >>> with single_thread(True):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """
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
