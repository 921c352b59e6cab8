"""Enable gradients, ordinary tensors and the CPU as default device, whatever torch mode the caller uses.

Tensors of ``torch.inference_mode()`` can never take part in a gradient, so public methods of an estimator leave it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Create tensors that support gradients, on the CPU unless a device is given; a context manager and a decorator."""
    moved = torch.empty(0).device.type != "cpu"  # torch 2.4 cannot report its default device after a reset
    with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu") if moved else nullcontext():
        yield
