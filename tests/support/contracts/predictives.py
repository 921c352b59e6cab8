"""Contract of every predictive."""

from __future__ import annotations

import itertools
from typing import Any

import oracles
import torch
from torch import Tensor

from sklearn_laplace.laplace import Hyper
from sklearn_laplace.laplace.latent import LatentGaussian
from sklearn_laplace.laplace.network import Network, trace
from sklearn_laplace.laplace.predictives import PREDICTIVES
from sklearn_laplace.laplace.structures._base import Posterior

from .examples import KINDS, Example, close, example, random_rows

N_SAMPLES = 4000


def check_predictive(key: str) -> None:
    """All results describe a single distribution; for a net that is linear in its parameters it is J P^-1 J^T."""
    variant = PREDICTIVES[key]
    for kind, linear in itertools.product(KINDS, (True, False)):
        problem = _linear_example(kind) if linear else example(kind)
        network, p = problem.network, problem.network.n_parameters
        posterior = problem.fit("full").posterior(Hyper(torch.tensor([2.0]).double()))
        shift = 0.3 * torch.randn(p, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        for moved in (None, shift):
            what = f"{key}, {kind}, {'linear' if linear else 'nonlinear'} net, shift {moved is not None}"
            predictive = variant.prepared(posterior, N_SAMPLES, seed=4)
            latent = _check_answers(predictive, network, posterior, problem.x, moved, what)
            assert bool((latent.covariance.diagonal(dim1=1, dim2=2) > 0).all()), what
            if linear:
                _check_linear_law(predictive, latent, posterior, problem, moved, what)


def _linear_example(kind: str) -> Example:
    module = oracles.random_mlp((2, 3), seed=1)
    x, y = random_rows(kind, 9, 2, 3, 1)
    return Example(kind, module, trace(module, x), x, y, torch.ones(9).double())


def _check_answers(
    predictive: Any, network: Network, posterior: Posterior, x: Tensor, shift: Tensor | None, what: str
) -> LatentGaussian:
    """Moments, mean and joint covariance agree; results do not depend on the other rows or on the call."""
    latent = predictive.latent(network, posterior, x, shift)
    close(predictive.mean(network, x, shift), latent.mean, 1e-12, f"{what}: mean")
    joint = predictive.joint_covariance(network, posterior, x, shift)
    n, c = latent.mean.shape
    assert torch.equal(joint, joint.mT), f"{what}: symmetric"
    blocks = joint.view(n, c, n, c)[torch.arange(n), :, torch.arange(n)]
    close(blocks, latent.covariance, 1e-10, f"{what}: joint covariance of a row with itself")
    some = predictive.latent(network, posterior, x[[5, 2]], shift)
    close(some.mean, latent.mean[[5, 2]], 1e-10, f"{what}: rows in another order")
    close(some.covariance, latent.covariance[[5, 2]], 1e-10, f"{what}: rows in another order")
    again = type(predictive).prepared(posterior, N_SAMPLES, seed=4).latent(network, posterior, x, shift)
    assert torch.equal(again.mean, latent.mean) and torch.equal(again.covariance, latent.covariance), what
    return latent


def _check_linear_law(
    predictive: Any, latent: LatentGaussian, posterior: Posterior, problem: Example, shift: Tensor | None, what: str
) -> None:
    network = problem.network
    J = problem.jacobian(problem.x).rows()
    mean = network(problem.x) if shift is None else network(problem.x) + J @ shift
    covariance = posterior.covariance(problem.jacobian(problem.x))
    std = covariance.diagonal(dim1=1, dim2=2).sqrt()
    error = 6 / N_SAMPLES**0.5
    assert bool(((latent.mean - mean).abs() <= error * std).all()), f"{what}: mean of a linear net"
    size = (std[:, :, None] * std[:, None]).square() + covariance.square()
    off = (latent.covariance - covariance).abs()
    assert bool((off <= error * size.sqrt()).all()), f"{what}: covariance of a linear net"
    deviations = posterior.sample(5, torch.Generator().manual_seed(2))
    functions = predictive.functions(network, deviations, problem.x, shift)
    close(functions, mean[..., None] + J @ deviations.mT, 1e-10, f"{what}: functions of a linear net")


SAMPLING_ERROR = {"mc": 2e-3, "quadrature": 1e-10}
"""Effect of other evaluation points: 8192 quasi-random draws have less error than independent ones."""
