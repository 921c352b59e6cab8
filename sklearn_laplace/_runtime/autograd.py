"""Enable gradients, ordinary tensors and the CPU as default device, whatever torch mode the caller uses.

Tensors created under ``torch.inference_mode()`` can never take part in a gradient. An estimator must not keep any of
them, so that its public methods leave the mode while they run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Create tensors that support gradients, on the CPU unless a device is given.

    Works as a context manager and as a decorator of methods.

    Examples
    --------
    >>> with torch.inference_mode(), ordinary_tensors():
    ...     weights = torch.zeros(2, requires_grad=True)
    >>> weights.sum().backward()
    >>> weights.grad
    tensor([1., 1.])
    """
    moved = torch.empty(0).device.type != "cpu"  # torch 2.4 cannot report its default device after a reset
    with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu") if moved else nullcontext():
        yield
