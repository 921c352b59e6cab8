r"""Derivatives of row-wise functions with respect to the inputs, by autograd.

If each value :math:`v_c(x_n)` depends on row n only, the gradient of :math:`\sum_n v_c(x_n)` contains every
:math:`\partial v_c(x_n) / \partial x_n`. This takes one backward pass per column c. The gradient of a variance
:math:`J \Sigma J^\top` needs second derivatives of the network. :meth:`Network.linearise` keeps the graph for them if
the inputs require a gradient. This module is independent of the network.
"""

from __future__ import annotations

import torch
from torch import Tensor


def row_gradients(values: Tensor, x: Tensor) -> Tensor:
    """Derivative of each row's values with respect to that row. Costs C backward passes.

    Parameters
    ----------
    values : Tensor of shape (n, C)
        Row-wise functions of x; they may be constant.
    x : Tensor of shape (n, d)
        Leaf tensor that requires a gradient.

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
    """Derivative of √values with respect to each row, as :func:`row_gradients`. Set to zero where a value is zero.

    Examples
    --------
    >>> x = torch.tensor([[3.0], [0.0]], requires_grad=True)
    >>> root_gradients(x.square(), x).flatten().tolist()
    [1.0, 0.0]
    """
    root = values.detach().double().clamp_min(0.0).sqrt()[:, None]
    return torch.where(root > 0, row_gradients(values, x) / (2 * root), 0.0)
