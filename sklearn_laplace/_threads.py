"""One torch thread for small problems.

Products of a few hundred rows gain nothing from a second thread, and on a busy machine lose much: every parallel
region waits for a thread that has no core (a fit of .4 s was seen to take 16). The number of threads is a property of
the process, so that concurrent users share one count and the last puts the old value back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_users = 0
_before = 0


@contextmanager
def single_thread(wanted: bool) -> Iterator[None]:
    """Run the block on one torch thread if that is wanted.

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
    global _users, _before
    if not wanted:
        yield
        return
    with _lock:
        if _users == 0:
            _before = torch.get_num_threads()
            torch.set_num_threads(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                torch.set_num_threads(_before)
