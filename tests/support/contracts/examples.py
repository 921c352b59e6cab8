"""Example problems, and comparisons with error messages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import oracles
import torch
from torch import Tensor, nn

from sklearn_laplace.laplace import LaplaceFit, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.curvatures._base import CurvatureRule
from sklearn_laplace.laplace.jacobian import Batch, FactoredJacobian
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.likelihoods._base import Likelihood, with_noise
from sklearn_laplace.laplace.network import Network, trace
from sklearn_laplace.laplace.prior import Prior
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.structures._base import Posterior

KINDS = ("gaussian", "categorical")
"""Likelihoods for tests that depend only on the Hessian factor: full rank, and fewer columns than outputs."""


ALL_KINDS = tuple(sorted(LIKELIHOODS))


CPU = torch.device("cpu")


class Scaled(nn.Module):
    """Two linear layers and a scale between them, which is no factored layer."""

    def __init__(self, d: int, width: int, n_outputs: int, seed: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(0.5 + torch.rand(width, generator=torch.Generator().manual_seed(seed)).double())
        self.body = oracles.random_mlp((d, width, n_outputs), seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        return self.body[2](torch.tanh(self.scale * self.body[0](x)))


@dataclass(frozen=True, eq=False)
class Example:
    """A net and its rows; ``kind`` names the likelihood, as in the oracles."""

    kind: str
    module: nn.Module
    network: Network
    x: Tensor
    y: Tensor
    weights: Tensor
    noise: Tensor | None = None
    """Known noise variances (n, C)."""

    @property
    def likelihood(self) -> Likelihood:
        return LIKELIHOODS[self.kind]()

    @property
    def observed(self) -> Tensor:
        """Targets in the form that the package expects."""
        return with_noise(self.y, self.noise)

    @property
    def noise_variance(self) -> float | Tensor:
        """Noise variance in the form that the oracles expect, at unit dispersion."""
        return 1.0 if self.noise is None else self.noise

    def batch(self, rows: Any = slice(None)) -> Batch:
        line = self.network.linearise(self.x[rows])
        return GGN().batch(line, self.likelihood, self.observed[rows], self.weights[rows])

    def fit(
        self, structure: str, prior: Prior | None = None, rule: CurvatureRule | None = None, **options: Any
    ) -> LaplaceFit:
        rows = [(self.x[s], self.observed[s], self.weights[s]) for s in torch.arange(len(self.x)).split(3)]
        prior = self.network.scalar_prior() if prior is None else prior
        kind = STRUCTURES[structure]
        return fit_laplace(self.network, self.likelihood, rule or GGN(), kind, prior, rows, **options)

    def jacobian(self, x: Tensor) -> FactoredJacobian:
        return self.network.jacobian(x)[1]


def random_rows(kind: str, n: int, d: int, n_outputs: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random inputs and targets for a likelihood."""
    draw = {
        "gaussian": oracles.random_regression,
        "categorical": oracles.random_classification,
        "bernoulli": oracles.random_binary,
        "poisson": oracles.random_counts,
        "negative_binomial": oracles.random_counts,
    }[kind]
    return draw(n, d, n_outputs, seed)


def n_outputs_of(kind: str, n_outputs: int) -> int:
    """The requested number of outputs, or 1 for a likelihood that allows no other."""
    return 1 if kind == "bernoulli" else n_outputs


@cache
def example(
    kind: str, seed: int = 0, n: int = 9, sizes: tuple[int, int, int] = (2, 3, 3), noisy: bool = False
) -> Example:
    """A `Scaled` net with random parameters; some row weights are zero. ``noisy``: with known noise variances.

    Tests share it and must not change it.
    """
    sizes = (*sizes[:2], n_outputs_of(kind, sizes[2]))
    module = Scaled(*sizes, seed=seed)
    x, y = random_rows(kind, n, sizes[0], sizes[2], seed)
    noise = random_noise(n, sizes[2], seed) if noisy else None
    return Example(kind, module, trace(module, x), x, y, oracles.random_weights(n, seed), noise)


def random_noise(n: int, n_outputs: int, seed: int) -> Tensor:
    """Noise variances (n, C) between about a tenth and ten."""
    return torch.randn(n, n_outputs, generator=torch.Generator().manual_seed(70 + seed), dtype=torch.float64).exp()


def oracle_order(network: Network) -> Tensor:
    """Index map: ``v[oracle_order(network)]`` has each tensor of ``parameter_names`` flattened in turn."""
    pieces = network.tensors(torch.arange(network.n_parameters))
    return torch.cat([pieces[name].flatten() for name in network.parameter_names])


def to_oracle(network: Network, value: Tensor) -> Tensor:
    """A vector (P,) or matrix (P, P) of the package in the oracles' order."""
    order = oracle_order(network)
    return value[order] if value.ndim == 1 else value[order][:, order]


def to_package(network: Network, value: Tensor) -> Tensor:
    """A vector (P,) or matrix (P, P) of the oracles in the package's order."""
    back = oracle_order(network).argsort()
    return value[back] if value.ndim == 1 else value[back][:, back]


def covariance_of(posterior: Posterior, n_parameters: int) -> Tensor:
    """Covariance R R^T from the root R that the samples use."""
    columns = posterior.apply_root(torch.eye(n_parameters, dtype=torch.float64))
    return columns.mT @ columns


def close(actual: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """Assert that the largest error is at most ``tolerance`` times the largest expected entry (or 1e-300)."""
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    error = float((actual - expected).abs().max()) if actual.numel() else 0.0
    size = float(expected.abs().max()) if expected.numel() else 0.0
    assert error <= tolerance * max(size, 1e-300), f"{what}: off by {error:.1e} of {size:.1e}"
