"""Log-likelihoods and, by autodiff, their derivatives with respect to the outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .functions import Function, _double, _rows_of, _vector, flatten, network_function

OVERDISPERSION = 0.5
"""α of the kind "negative_binomial"."""


def log_likelihood(kind: str, f: Tensor, y: Tensor, noise_variance: float | Tensor = 1.0) -> Tensor:
    r"""Log density, log p(y_n | f_n) in nats, with every constant, unweighted.

    gaussian: :math:`-\tfrac12\sum_c[(y_c-f_c)^2/\sigma^2 + \log 2\pi\sigma^2]`;
    categorical: :math:`f_y - \log\sum_c e^{f_c}`; bernoulli: :math:`y f - \log(1 + e^f)`; poisson:
    :math:`\sum_c[y_c f_c - e^{f_c} - \log y_c!]`; negative_binomial: variance :math:`\mu + \alpha\mu^2` with mean
    :math:`\mu = e^f` and :math:`\alpha` = ``OVERDISPERSION``.

    Parameters
    ----------
    kind : {"gaussian", "categorical", "bernoulli", "poisson", "negative_binomial"}
    f : Tensor of shape (n, C)
    y : Tensor of shape (n, C), or (n,) of integers
    noise_variance : float or Tensor broadcasting to (n, C)
        Gaussian only, in squared units of y.

    Returns
    -------
    Tensor of shape (n,), float64
    """
    f = f.double()
    if kind == "gaussian":
        if y.shape != f.shape:  # broadcasting (n,) against (n, 1) would silently give (n, n)
            raise ValueError(f"y has shape {tuple(y.shape)}, f has {tuple(f.shape)}")
        variance = _vector(noise_variance)
        terms = (_double(y) - f) ** 2 / variance + torch.log(2 * math.pi * variance)
        return -0.5 * terms.sum(-1)
    if kind == "categorical":
        if y.shape != f.shape[:1]:
            raise ValueError(f"y has shape {tuple(y.shape)}, expected {tuple(f.shape[:1])}")
        return f.gather(1, y.long()[:, None])[:, 0] - torch.logsumexp(f, 1)
    if kind == "bernoulli":
        if y.shape != f.shape[:1] or f.shape[1] != 1:
            raise ValueError(f"y has shape {tuple(y.shape)}, f has {tuple(f.shape)}; expected (n,) and (n, 1)")
        return y * f[:, 0] - torch.logaddexp(torch.zeros_like(f[:, 0]), f[:, 0])
    if kind == "poisson":
        if y.shape != f.shape:
            raise ValueError(f"y has shape {tuple(y.shape)}, f has {tuple(f.shape)}")
        return (_double(y) * f - torch.exp(f) - torch.lgamma(_double(y) + 1)).sum(-1)
    if kind == "negative_binomial":
        if y.shape != f.shape:
            raise ValueError(f"y has shape {tuple(y.shape)}, f has {tuple(f.shape)}")
        size = torch.tensor(1 / OVERDISPERSION, dtype=torch.float64)
        logits = f + math.log(OVERDISPERSION)  # of the probability μ / (μ + 1/α) of one more count
        return (
            torch.distributions.NegativeBinomial(size, logits=logits, validate_args=False).log_prob(_double(y)).sum(-1)
        )
    raise ValueError(f"unknown kind {kind!r}")


def output_gradient(kind: str, f: Tensor, y: Tensor, noise_variance: float | Tensor = 1.0) -> Tensor:
    """Gradient of -log p(y | f) in f, by autodiff, at this noise variance (gaussian; broadcasts to (n, C)); (n, C)."""
    f = f.detach().double().requires_grad_()
    return _gradient_in_outputs(kind, f, y, noise_variance).detach()


def expected_targets(kind: str, f: Tensor, y: Tensor) -> Tensor:
    """Targets at which the Hessian of -log p(y | f) in f equals its expectation under p(y | f).

    The Hessian of "negative_binomial" is linear in y, so that they are the mean; no other kind's depends on y.
    """
    return f.detach().double().exp() if kind == "negative_binomial" else y


def output_hessian(kind: str, f: Tensor, y: Tensor | None = None, noise_variance: float | Tensor = 1.0) -> Tensor:
    """Expected Hessian of -log p(y | f) in f, by double autodiff.

    Parameters
    ----------
    kind : str
    f : Tensor of shape (n, C)
    y : Tensor, optional
        The expected Hessian does not depend on y; an arbitrary one is used when absent.
    noise_variance : float or Tensor broadcasting to (n, C)
        Gaussian only.

    Returns
    -------
    Tensor of shape (n, C, C)
    """
    if y is None:
        y = torch.zeros_like(f) if kind in ("gaussian", "poisson") else torch.zeros(len(f), dtype=torch.long)
    if kind == "negative_binomial":
        return _fisher_information(f)
    f = f.detach().double().requires_grad_()
    gradient = _gradient_in_outputs(kind, f, y, noise_variance)
    # A row's gradient depends on the outputs of this row alone, so that sums over rows have the same derivatives.
    columns = [torch.autograd.grad(part.sum(), f, retain_graph=True)[0] for part in gradient.unbind(1)]
    return torch.stack(columns, 1)


def _gradient_in_outputs(kind: str, f: Tensor, y: Tensor, noise_variance: float | Tensor) -> Tensor:
    """Differentiable gradient of -log p(y | f) in f (n, C)."""
    with torch.enable_grad():
        total = -log_likelihood(kind, f, y, _rows_of(noise_variance, len(f))).sum()
        (gradient,) = torch.autograd.grad(total, f, create_graph=True)
    return gradient


def _fisher_information(f: Tensor) -> Tensor:
    """Variance of the gradient of -log p(y | f) for a negative binomial; linear in y, with a slope by autodiff."""
    f = f.detach().double().requires_grad_()
    mean = f.detach().exp()
    y = mean.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(-log_likelihood("negative_binomial", f, y).sum(), f, create_graph=True)
    (slope,) = torch.autograd.grad(gradient.sum(), y)
    return torch.diag_embed(slope**2 * (mean + OVERDISPERSION * mean**2))


def _row_losses(
    kind: str, module: nn.Module, names: Sequence[str], x: Tensor, y: Tensor, noise_variance: float | Tensor
) -> tuple[list[Function], Tensor]:
    """-log p(y_n | f_theta(x_n)) of each row alone as a function of theta, and the module's own theta."""
    f = network_function(module, names)
    variance = _rows_of(noise_variance, len(x))

    def loss(n: int) -> Function:
        row = slice(n, n + 1)
        return lambda theta: -log_likelihood(kind, f(theta, x[row]), y[row], variance[row])[0]

    return [loss(n) for n in range(len(x))], flatten(module, names)
