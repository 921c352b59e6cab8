"""Torch settings during a call (threads, gradients, inference mode), and the devices of this machine.

Small problems use one thread. Matrix products of a few hundred rows gain nothing from a second thread, and lose time
on a busy machine. Forked processes use one thread as well. In such a process, OpenMP's pool still lists worker threads
that do not exist, and a parallel region would wait for them forever. Public methods of an estimator exit
``torch.inference_mode()``, whose tensors autograd can never record.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Context manager or decorator: new tensors support gradients, and are on the CPU unless a device is given."""
    moved = torch.empty(0).device.type != "cpu"  # torch 2.4 cannot report its default device after a reset
    with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu") if moved else nullcontext():
        yield


if sys.platform != "win32":
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


@contextmanager
def single_thread(wanted: bool) -> Iterator[None]:
    """Run the block with one torch thread if ``wanted``. A process forked within the block keeps one thread."""
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


DEVICES = re.compile(r"(cpu|cuda|mps|xpu)(:\d{1,3})?")
"""Pattern of valid device names, without the meta device, which stores no values."""
AVAILABLE: dict[str, Callable[[], bool]] = {
    "cpu": lambda: True,
    "cuda": lambda: torch.cuda.is_available(),
    "mps": lambda: torch.backends.mps.is_available(),
    "xpu": lambda: torch.xpu.is_available(),
}
"""Functions that return True if a device of their type is available."""


def present_device(name: str) -> torch.device:
    """Device of this name, or the CPU if this machine lacks its type. Raises ``ValueError`` if the name is invalid."""
    if not isinstance(name, str) or not DEVICES.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a device; expected 'cpu', 'cuda', 'cuda:1', 'mps' or 'xpu'.")
    device = torch.device(name)
    return device if AVAILABLE[device.type]() else torch.device("cpu")


FAST_FLOAT64 = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""Compute capabilities of the GPUs whose float64 rate is about half of their float32 rate."""


def is_slow_at_float64(device: torch.device) -> bool:
    """True for a GPU that computes float64 at a small fraction of its float32 rate."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) not in FAST_FLOAT64
