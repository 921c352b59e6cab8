"""Torch as a fit needs it, whatever mode the caller is in: gradients, ordinary tensors, a device that holds numbers.

Under ``torch.inference_mode()`` tensors are made that never take part in a gradient again. None may stay in what an
estimator keeps, so that public methods leave the mode while they work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Tensors that gradients can flow through, on the CPU unless another device is named.

    A context, and a decorator of methods.

    Examples
    --------
    >>> with torch.inference_mode(), ordinary_tensors():
    ...     weights = torch.zeros(2, requires_grad=True)
    >>> weights.sum().backward()
    >>> weights.grad
    tensor([1., 1.])
    """
    moved = torch.empty(0).device.type != "cpu"  # torch 2.4 cannot name its default device once it was set back
    with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu") if moved else nullcontext():
        yield
