"""Exact Hessian of a loss, by differentiating its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import UnsupportedCombinationError

ASYMMETRY = 1e-3
"""Tolerated asymmetry of a Hessian, relative to its largest entry. Rounding errors are well below."""
HESSIAN_BUDGET = 2**22
"""Maximum number of activation elements (data rows × Hessian rows computed at once) of a second derivative, 32 MB."""


def _derivative_of_gradient(gradient: Tensor, theta: Tensor, step: int, name: str) -> Tensor:
    """Hessian (P, P), ``step`` rows at once if every operation of the module supports batching, else row by row."""
    identity = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
    try:
        rows = [
            torch.autograd.grad(gradient, theta, directions, retain_graph=True, is_grads_batched=True)[0].double()
            for directions in identity.split(step)
        ]
        return torch.cat(rows)
    except RuntimeError:  # raised by torch for operations without a batching rule
        try:
            single = [torch.autograd.grad(gradient, theta, row, retain_graph=True)[0].double() for row in identity]
        except RuntimeError as error:
            raise UnsupportedCombinationError(
                f"curvature='hessian' needs second derivatives, but torch does not implement one of an operation in "
                f"{name}: {error} Use curvature='ggn'."
            ) from error
        return torch.stack(single)
