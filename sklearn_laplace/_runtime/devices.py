"""Devices that are present on this machine."""

from __future__ import annotations

import re

import torch

DEVICES = re.compile(r"(cpu|cuda|mps|xpu)(:\d{1,3})?")
"""Names of devices that hold values."""


def present_device(name: str) -> torch.device:
    """Return the device of this name, or the CPU if it is not present here.

    Raises
    ------
    ValueError
        If the name is not that of a device that holds values.
    """
    if not isinstance(name, str) or not DEVICES.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a device; expected 'cpu', 'cuda', 'cuda:1', 'mps' or 'xpu'.")
    device = torch.device(name)
    return device if device.type == "cpu" or torch.cuda.is_available() else torch.device("cpu")
