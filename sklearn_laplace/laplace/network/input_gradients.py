r"""Derivatives in the inputs of what is made of rows one by one, by torch's autograd.

With values :math:`v_c(x_n)` that depend on their own row alone, the gradient of :math:`\sum_n v_c(x_n)` holds every
:math:`\partial v_c(x_n) / \partial x_n` side by side: one backward pass for each c. A variance :math:`J \Sigma J^\top`
is made of derivatives already, and needs second ones of the network; :meth:`Network.linearise` keeps the graph that
they go through where the inputs ask for a gradient. Nothing here knows a network.
"""

from __future__ import annotations

import torch
from torch import Tensor


def row_gradients(values: Tensor, x: Tensor) -> Tensor:
    """Derivative of each row's values in the row itself, C backward passes.

    Parameters
    ----------
    values : Tensor of shape (n, C)
        Functions of x, row by row; they may be constant.
    x : Tensor of shape (n, d)
        A leaf that requires a gradient.

    Returns
    -------
    Tensor of shape (n, d, C), float64

    Examples
    --------
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> row_gradients(torch.stack([x.square().sum(1), x[:, 0]], 1), x).tolist()
    [[[2.0, 1.0], [4.0, 0.0]], [[6.0, 1.0], [8.0, 0.0]]]
    """
    if not values.requires_grad:
        return torch.zeros(*x.shape, values.shape[1], dtype=torch.float64, device=x.device)
    sums = values.sum(0).unbind()
    parts = [torch.autograd.grad(total, x, retain_graph=True, materialize_grads=True)[0] for total in sums]
    return torch.stack(parts, -1).double()


def root_gradients(values: Tensor, x: Tensor) -> Tensor:
    """Derivative of √values, as :func:`row_gradients`; zero where a value is, as its one-sided slopes have no mean.

    Examples
    --------
    >>> x = torch.tensor([[3.0], [0.0]], requires_grad=True)
    >>> root_gradients(x.square(), x).flatten().tolist()
    [1.0, 0.0]
    """
    root = values.detach().double().clamp_min(0.0).sqrt()[:, None]
    return torch.where(root > 0, row_gradients(values, x) / (2 * root), 0.0)
