"""Networks as functions of a flat weight vector, and dense Jacobians."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Function = Callable[[Tensor], Tensor]


def all_names(module: nn.Module) -> tuple[str, ...]:
    """Names of all parameters, in the module's own order."""
    return tuple(name for name, _ in module.named_parameters())


def flatten(module: nn.Module, names: Sequence[str]) -> Tensor:
    """Selected parameters as one vector.

    Parameters
    ----------
    module : nn.Module
    names : sequence of str
        Parameter names, in the order of the result.

    Returns
    -------
    Tensor of shape (P,), float64, detached and owning its memory
    """
    return torch.cat([module.get_parameter(name).detach().double().flatten() for name in names])


def with_parameters(module: nn.Module, names: Sequence[str], theta: Tensor) -> nn.Module:
    """Copy of ``module`` (float64, eval mode) whose parameters ``names`` hold ``theta`` (P,)."""
    clone = _float64_copy(module)
    with torch.no_grad():
        for name, value in _unflatten(clone, names, theta).items():
            clone.get_parameter(name).copy_(value)
    return clone


def network_function(module: nn.Module, names: Sequence[str]) -> Callable[[Tensor, Tensor], Tensor]:
    """The network as a differentiable map (theta (P,), x (n, ...)) -> f (n, C)."""
    clone = _float64_copy(module)
    shapes = [clone.get_parameter(name).shape for name in names]
    places = [_places(clone, name) for name in names]

    def f(theta: Tensor, x: Tensor) -> Tensor:
        parts = theta.split([shape.numel() for shape in shapes])
        for owners, shape, part in zip(places, shapes, parts, strict=True):
            for owner, key in owners:
                owner._parameters[key] = part.view(shape)  # torch.func.functional_call is several times slower
        raw: Tensor = clone(_double(x))
        return raw.reshape(len(x), -1)

    return f


def outputs(module: nn.Module, x: Tensor) -> Tensor:
    """Network outputs (n, C) in eval mode, each row passed alone as a batch of one."""
    clone = _float64_copy(module)
    with torch.no_grad():
        return torch.cat([clone(_double(x[i : i + 1])).reshape(1, -1) for i in range(len(x))])


def jacobian(module: nn.Module, names: Sequence[str], x: Tensor) -> Tensor:
    r"""Derivative of every output in every selected parameter, :math:`J_{ncp}`.

    Parameters
    ----------
    module : nn.Module
    names : sequence of str
    x : Tensor of shape (n, ...)
        Each row is passed alone as a batch of one, in eval mode.

    Returns
    -------
    Tensor of shape (n, C, P)
    """
    f, theta = network_function(module, names), flatten(module, names)
    thetas = theta.repeat(len(x), 1).requires_grad_()  # one copy per row, so that a sum over rows keeps them apart
    with torch.enable_grad():
        f_x = torch.cat([f(thetas[i], x[i : i + 1]) for i in range(len(x))])
        return torch.stack([torch.autograd.grad(c.sum(), thetas, retain_graph=True)[0] for c in f_x.unbind(1)], 1)


def _double(x: Tensor) -> Tensor:
    """float64 for floating tensors; integer inputs (embeddings, labels) as they are."""
    return x.double() if x.is_floating_point() else x


def _vector(value: float | Tensor) -> Tensor:
    """Scalar or tensor as a float64 tensor."""
    return torch.as_tensor(value, dtype=torch.float64)


def _weights(weights: Tensor | None, n: int) -> Tensor:
    """Row weights (n,), ones when absent."""
    if weights is None:
        return torch.ones(n, dtype=torch.float64)
    if weights.shape != (n,):
        raise ValueError(f"weights have shape {tuple(weights.shape)}, expected ({n},)")
    return weights.double()


def _float64_copy(module: nn.Module) -> nn.Module:
    """Independent copy in float64 and eval mode, its own parameters constants to autodiff."""
    return copy.deepcopy(module).double().eval().requires_grad_(False)


def _places(module: nn.Module, name: str) -> list[tuple[nn.Module, str]]:
    """Modules that own a parameter, with its name in each; several where modules share it."""
    parameter = module.get_parameter(name)
    return [(owner, key) for owner in module.modules() for key, p in owner._parameters.items() if p is parameter]


def _unflatten(module: nn.Module, names: Sequence[str], theta: Tensor) -> dict[str, Tensor]:
    """Cut theta (P,) into the named parameters' shapes; differentiable."""
    parts, start = {}, 0
    for name in names:
        parameter = module.get_parameter(name)
        parts[name] = theta[start : start + parameter.numel()].reshape(parameter.shape)
        start += parameter.numel()
    if start != len(theta):
        raise ValueError(f"theta has {len(theta)} entries, {tuple(names)} hold {start}")
    return parts


def _rows_of(noise_variance: float | Tensor, n: int) -> Tensor:
    """A number or a Tensor (n or 1, C or 1) with n rows."""
    variance = _vector(noise_variance)
    return variance.expand(n, 1) if variance.ndim == 0 else variance.expand(n, -1)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
