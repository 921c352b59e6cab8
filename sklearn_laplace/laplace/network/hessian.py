"""Exact Hessians of a loss by differentiating its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import UnsupportedCombinationError

ASYMMETRY = 1e-3
"""Of a matrix of second derivatives, relative to its largest entry: far above rounding, far below a wrong formula."""
HESSIAN_BUDGET = 2**22
"""Elements of activations (rows × columns of the Hessian taken at once) that a second derivative makes, 32 MB."""


def _derivative_of_gradient(gradient: Tensor, theta: Tensor, step: int, name: str) -> Tensor:
    """The matrix (P, P), ``step`` rows at once where every operation of the module can, else row by row."""
    identity = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
    try:
        rows = [
            torch.autograd.grad(gradient, theta, directions, retain_graph=True, is_grads_batched=True)[0].double()
            for directions in identity.split(step)
        ]
        return torch.cat(rows)
    except RuntimeError:  # what torch.func raises for what it cannot batch
        try:
            single = [torch.autograd.grad(gradient, theta, row, retain_graph=True)[0].double() for row in identity]
        except RuntimeError as error:
            raise UnsupportedCombinationError(
                f"curvature='hessian' needs second derivatives, of which torch lacks one for {name}: {error} Use "
                "curvature='ggn'."
            ) from error
        return torch.stack(single)
