"""Devices available on this machine."""

from __future__ import annotations

import re

import torch

DEVICES = re.compile(r"(cpu|cuda|mps|xpu)(:\d{1,3})?")
"""Valid device names; the meta device, which stores no values, is excluded."""


def present_device(name: str) -> torch.device:
    """Return the device of this name; the CPU if CUDA is not available.

    Raises
    ------
    ValueError
        If the name is not a valid device name.
    """
    if not isinstance(name, str) or not DEVICES.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a device; expected 'cpu', 'cuda', 'cuda:1', 'mps' or 'xpu'.")
    device = torch.device(name)
    return device if device.type == "cpu" or torch.cuda.is_available() else torch.device("cpu")
