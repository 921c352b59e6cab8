r"""Derivatives of row-wise functions with respect to the inputs, by autograd.

If each value :math:`v_c(x_n)` depends on row n only, the gradient of :math:`\sum_n v_c(x_n)` contains every
:math:`\partial v_c(x_n) / \partial x_n`, in one backward pass per column c.
"""

import torch
from torch import Tensor


def row_gradients(values: Tensor, x: Tensor) -> Tensor:
    """Derivative (n, d, C), float64, of values (n, C) with respect to the leaf x (n, d), by C backward passes."""
    if not values.requires_grad:
        return torch.zeros(*x.shape, values.shape[1], dtype=torch.float64, device=x.device)
    sums = values.sum(0).unbind()
    parts = [torch.autograd.grad(total, x, retain_graph=True, materialize_grads=True)[0] for total in sums]
    return torch.stack(parts, -1).double()


def root_gradients(values: Tensor, x: Tensor) -> Tensor:
    """Derivative of √values with respect to each row, like :func:`row_gradients`; zero where a value is zero."""
    root = values.detach().double().clamp_min(0.0).sqrt()[:, None]
    return torch.where(root > 0, row_gradients(values, x) / (2 * root), 0.0)
