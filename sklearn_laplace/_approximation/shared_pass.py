"""Pass over the rows of a fit, divided among threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from joblib import Parallel, delayed
from torch import Tensor

from .._runtime.torch_state import single_thread
from ..laplace.fit import LaplaceFit, Rows


def shared_out(over: Callable[..., LaplaceFit], chunks: Sequence[Rows], n_jobs: int, *, gradient: Tensor) -> LaplaceFit:
    """Divide the chunks into contiguous parts, one per worker, and add the sums in the order of the rows.

    ``over`` maps chunks of (inputs, targets, weights) to a LaplaceFit; ``gradient`` (P,) is that of all rows.
    """
    n_jobs = min(n_jobs, len(chunks))
    if n_jobs == 1:
        return over(chunks, gradient=gradient)
    shares = [chunks[i * len(chunks) // n_jobs : (i + 1) * len(chunks) // n_jobs] for i in range(n_jobs)]
    zero = torch.zeros_like(gradient)  # the parts do not compute gradients, because that of all rows is available
    parts = Parallel(n_jobs=n_jobs, prefer="threads")(delayed(_alone)(over, share, gradient=zero) for share in shares)
    first, *others = parts
    for part in others:
        first = first.merge(part)
    return replace(first, gradient=gradient)


def _alone(over: Callable[..., LaplaceFit], chunks: Sequence[Rows], **known: Tensor) -> LaplaceFit:
    with single_thread(True):
        return over(chunks, **known)
