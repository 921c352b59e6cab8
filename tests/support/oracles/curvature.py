"""Dense curvature matrices, their Kronecker factors and projections."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .autodiff import _row_losses, output_hessian
from .functions import _double, _float64_copy, _vector, _weights, jacobian, outputs


def ggn(
    kind: str,
    module: nn.Module,
    names: Sequence[str],
    x: Tensor,
    y: Tensor,
    weights: Tensor | None = None,
    noise_variance: float | Tensor = 1.0,
) -> Tensor:
    r"""Generalised Gauss-Newton matrix, :math:`\sum_n w_n J_n^\top\Lambda_nJ_n`, at this noise variance (gaussian).

    Returns
    -------
    Tensor of shape (P, P)
    """
    w = _weights(weights, len(x))
    J = jacobian(module, names, x)
    Lambda = output_hessian(kind, outputs(module, x), y, noise_variance)
    return torch.einsum("ncp,ncd,ndq->pq", J, w[:, None, None] * Lambda, J)


def empirical_fisher(
    kind: str,
    module: nn.Module,
    names: Sequence[str],
    x: Tensor,
    y: Tensor,
    weights: Tensor | None = None,
    noise_variance: float | Tensor = 1.0,
) -> Tensor:
    r"""Sum of outer products of the gradients of single rows, :math:`\sum_n w_n g_ng_n^\top`, by autodiff.

    .. math:: g_n = -\nabla_\theta \log p(y_n \mid f_\theta(x_n))

    Parameters
    ----------
    noise_variance : float or Tensor broadcasting to (n, C)
        Gaussian only; g is that of the density at this variance.

    Returns
    -------
    Tensor of shape (P, P)
    """
    w, (nll, theta) = _weights(weights, len(x)), _row_losses(kind, module, names, x, y, noise_variance)
    thetas = theta.repeat(len(x), 1)  # one copy per row, so that the gradient of the sum has those of the rows
    gradients = torch.autograd.functional.jacobian(lambda t: sum(nll[n](t[n]) for n in range(len(x))), thetas)
    total = torch.zeros(len(theta), len(theta), dtype=torch.float64)
    for n, g in enumerate(gradients):
        total = total + w[n] * torch.outer(g, g)
    return total


def hessian(
    kind: str,
    module: nn.Module,
    names: Sequence[str],
    x: Tensor,
    y: Tensor,
    weights: Tensor | None = None,
    noise_variance: float | Tensor = 1.0,
) -> Tensor:
    r"""Hessian of the summed loss, :math:`-\sum_n w_n \nabla^2_\theta \log p(y_n \mid f_\theta(x_n))`; any sign.

    Returns
    -------
    Tensor of shape (P, P)
    """
    w, (nll, theta) = _weights(weights, len(x)), _row_losses(kind, module, names, x, y, noise_variance)

    def total(theta: Tensor) -> Tensor:
        return sum((w[n] * nll[n](theta) for n in range(len(x))), theta.new_zeros(()))

    return torch.autograd.functional.hessian(total, theta, vectorize=True)


def nearest_semidefinite(matrix: Tensor) -> Tensor:
    """The symmetric matrix with its negative eigenvalues at zero; (P, P)."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp(min=0.0)) @ vectors.T


def diagonal(matrix: Tensor) -> Tensor:
    """Copy of a (P, P) matrix with everything off its diagonal set to zero; still (P, P)."""
    return torch.diag(torch.diagonal(matrix))


def block_diagonal(matrix: Tensor, sizes: Sequence[int]) -> Tensor:
    """Copy of a (P, P) matrix with only its diagonal blocks of the given sizes kept; (P, P)."""
    if sum(sizes) != len(matrix):
        raise ValueError(f"sizes sum to {sum(sizes)}, the matrix has {len(matrix)} rows")
    kept = torch.zeros_like(matrix)
    start = 0
    for size in sizes:
        block = slice(start, start + size)
        kept[block, block] = matrix[block, block]
        start += size
    return kept


def kron_factors(
    kind: str,
    layer_name: str,
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    weights: Tensor | None = None,
    fold_bias: bool = True,
    noise_variance: float | Tensor = 1.0,
    reduce: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Kronecker factors of one linear layer's curvature block, :math:`H_l \approx B \otimes A`.

    .. math:: A = \tfrac1{N_w}\sum_n w_n a_n a_n^\top,\quad
              B = \sum_n w_n G_n^\top \Lambda_n G_n,\quad N_w = \sum_n w_n

    with a_n the layer's input (a 1 appended when the bias is folded) and G_n = df/dz the derivative
    of the outputs in the layer's output z, from autodiff in a perturbation added to z by a hook. At
    L positions of a row, B sums over them as well and A averages over them ("expand"), or a_n is the
    mean over them and G_n the sum ("reduce").

    Parameters
    ----------
    kind : {"gaussian", "categorical"}
    layer_name : str
        Name of an ``nn.Linear`` in ``module``, called once per forward on inputs (n, ..., in);
        ``""`` if the module is that layer.
    module : nn.Module
    x, y : Tensors with n rows
    weights : Tensor of shape (n,), optional
    fold_bias : bool
        Append a 1 to the inputs. A layer without bias is never augmented.
    noise_variance : float or Tensor broadcasting to (n, C)
        Gaussian only.
    reduce : bool
        Combine the positions before the outer products.

    Returns
    -------
    A : Tensor of shape (in + 1, in + 1), or (in, in) when nothing is folded
    B : Tensor of shape (out, out)

    Notes
    -----
    Martens & Grosse (2015); Botev et al. (2017); positions: Eschenhagen et al. (2023). Exact for a
    single row with one position.
    """
    w = _weights(weights, len(x))
    clone = _float64_copy(module)
    layer = _linear(clone, layer_name)
    f, a, G = _layer_inputs_and_output_jacobians(clone, layer, x)
    Lambda = output_hessian(kind, f, y, noise_variance)
    if reduce:
        a, G = a.mean(1, keepdim=True), G.sum(2, keepdim=True)
    if fold_bias and layer.bias is not None:
        a = torch.cat([a, a.new_ones(*a.shape[:2], 1)], 2)
    A = torch.einsum("n,nli,nlj->ij", w / (w.sum() * a.shape[1]), a, a)
    B = torch.einsum("nclo,ncd,ndlp->op", G, w[:, None, None] * Lambda, G)
    return A, B


def kron_precision(A: Tensor, B: Tensor, delta: float | Tensor, scale: float = 1.0) -> Tensor:
    r"""One layer's posterior precision, :math:`scale\,(B \otimes A) + diag(\delta)`.

    Index order: the layer's matrix [W | b] of shape (out, in + 1), row-major (without the last
    column when the bias is not folded). See `layer_matrix_permutation` for the parameter order.

    Parameters
    ----------
    A : Tensor of shape (in + 1, in + 1)
    B : Tensor of shape (out, out)
    delta : float, or Tensor of shape (out * (in + 1),) in the matrix's order
    scale : float

    Returns
    -------
    Tensor of shape (out * (in + 1), out * (in + 1))
    """
    return posterior_precision(torch.kron(B, A), delta, scale)


def layer_matrix_permutation(module: nn.Module, layer_name: str) -> Tensor:
    """Index map from the order of [W | b] row-major to that of [weight.flatten(), bias].

    ``v[permutation]`` and ``M[permutation][:, permutation]`` turn a vector or matrix in the
    matrix's order (that of `kron_precision` with a folded bias) into the parameters' order.

    Returns
    -------
    Tensor of shape (out * (in + 1),), int64; out * in entries for a layer without bias
    """
    layer = _linear(module, layer_name)
    columns = layer.in_features + (layer.bias is not None)
    weight_positions = [o * columns + i for o in range(layer.out_features) for i in range(layer.in_features)]
    bias_positions = [o * columns + layer.in_features for o in range(layer.out_features) if layer.bias is not None]
    return torch.tensor(weight_positions + bias_positions)


def posterior_precision(H: Tensor, delta: float | Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """Dense posterior precision ``scale * H + diag(delta)``, (P, P); delta scalar or (P,)."""
    return scale * H + torch.diag(_vector(delta).expand(len(H)))


def _linear(module: nn.Module, layer_name: str) -> nn.Linear:
    """The named linear layer."""
    layer = module.get_submodule(layer_name)
    if not isinstance(layer, nn.Linear):
        raise TypeError(f"{layer_name!r} is a {type(layer).__name__}, not a Linear")
    return layer


def _layer_inputs_and_output_jacobians(module: nn.Module, layer: nn.Linear, x: Tensor) -> tuple[Tensor, ...]:
    """Outputs (n, C), inputs (n, L, in) of one layer and derivative (n, C, L, out) of the outputs in its output.

    Each row is passed alone, so that the derivative of the sum over rows has that of each row.
    """
    calls: list[tuple[Tensor, Tensor]] = []

    def perturb(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        perturbation = torch.zeros_like(output, requires_grad=True)
        calls.append((args[0].detach(), perturbation))
        return output + perturbation

    handle = layer.register_forward_hook(perturb)
    try:
        with torch.enable_grad():
            f = torch.cat([module(_double(x[n : n + 1])).reshape(1, -1) for n in range(len(x))])
    finally:
        handle.remove()
    if len(calls) != len(x) or any(a.shape[0] != 1 or a.shape[-1] != layer.in_features for a, _ in calls):
        raise ValueError("the layer must be called once per forward, on inputs of shape (n, ..., in)")
    inputs = torch.stack([a.reshape(-1, layer.in_features) for a, _ in calls])
    perturbations = [perturbation for _, perturbation in calls]
    columns = [torch.autograd.grad(c.sum(), perturbations, retain_graph=True) for c in f.unbind(1)]
    G = torch.stack([torch.cat(column).reshape(len(x), -1, layer.out_features) for column in columns], 1)
    return f.detach(), inputs, G
