"""One torch thread for small problems.

Products of a few hundred rows gain nothing from a second thread, and on a busy machine lose much: every parallel region
waits for a thread that has no core. torch keeps the number per calling thread, so that it is set and put back there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
