"""Devices available on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

DEVICES = re.compile(r"(cpu|cuda|mps|xpu)(:\d{1,3})?")
"""Valid device names; the meta device, which stores no values, is excluded."""
AVAILABLE: dict[str, Callable[[], bool]] = {
    "cpu": lambda: True,
    "cuda": lambda: torch.cuda.is_available(),
    "mps": lambda: torch.backends.mps.is_available(),
    "xpu": lambda: torch.xpu.is_available(),
}
"""Whether a device of each kind is available."""


def present_device(name: str) -> torch.device:
    """Device of this name, or the CPU if this machine lacks its kind; ``ValueError`` if the name is not a valid one."""
    if not isinstance(name, str) or not DEVICES.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a device; expected 'cpu', 'cuda', 'cuda:1', 'mps' or 'xpu'.")
    device = torch.device(name)
    return device if AVAILABLE[device.type]() else torch.device("cpu")
