"""Contract of every Hessian structure."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import oracles
import pytest
import torch
from torch import Tensor, nn

from sklearn_laplace.errors import NotPositiveDefiniteError, UnsupportedCombinationError
from sklearn_laplace.laplace import Hyper, LaplaceFit
from sklearn_laplace.laplace.network import Network
from sklearn_laplace.laplace.prior import Prior
from sklearn_laplace.laplace.prior_groups import GROUPINGS
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.structures._base import Posterior

from .dense import dense_curvature
from .examples import CPU, KINDS, Example, close, covariance_of, example, n_outputs_of, oracle_order, random_rows


def check_structure(key: str) -> None:
    """All results of a structure agree with its dense matrix, and its sums form a monoid."""
    for seed, kind in enumerate(KINDS):
        problem = example(kind, seed)
        _check_posteriors(key, problem)
        _check_monoid(key, problem, seed)
    _check_fewer_rows_than_weights(key)


def _hypers(network: Network) -> dict[str, tuple[Prior, Hyper]]:
    """Scalar and tensor-wise precisions; dispersion and temperature differ from 1."""
    tensors = GROUPINGS["tensor"].prior(network)
    values = torch.logspace(-1, 1.2, tensors.n_groups, dtype=torch.float64)
    one = torch.tensor([0.7], dtype=torch.float64)
    return {
        "scalar": (network.scalar_prior(), Hyper(one, dispersion=0.3, temperature=0.8)),
        "unit scale": (network.scalar_prior(), Hyper(10 * one)),
        "tensor": (tensors, Hyper(values, dispersion=2.5, temperature=1.7)),
    }


def _check_posteriors(key: str, problem: Example) -> None:
    network, p = problem.network, problem.network.n_parameters
    fits = {
        prior.n_groups: problem.fit(key, prior)
        for prior in (network.scalar_prior(), GROUPINGS["tensor"].prior(network))
    }
    dense, curvatures = dense_curvature(key, problem), []
    for (name, (prior, hyper)), spectral in itertools.product(_hypers(network).items(), (True, False)):
        fit = fits[prior.n_groups]
        scale = hyper.scale(fit.dispersion_power)
        assert math.isclose(scale, 1 / (hyper.temperature * hyper.dispersion), rel_tol=1e-15)
        if name == "tensor" and key == "ekfac":
            with pytest.raises(UnsupportedCombinationError, match="'ekfac' needs one prior precision for all"):
                fit.posterior(hyper, spectral=spectral)
            continue
        posterior = fit.posterior(hyper, spectral=spectral)
        delta = hyper.prior_precision[prior.groups]
        covariance = covariance_of(posterior, p)
        check_posterior(posterior, covariance, delta, prior, problem, f"{key}, {problem.kind}, {name}, {spectral}")
        H = (torch.linalg.inv(covariance) - torch.diag(delta)) / scale
        eigenvalues = fit.curvature.eigenvalues()
        close(eigenvalues.sort().values, torch.linalg.eigvalsh(H), 1e-10, f"{key}: eigenvalues of H")
        assert bool((eigenvalues >= 0).all()), f"{key}: H is positive semi-definite"
        vector = torch.randn(p, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
        close(fit.curvature.times(vector), H @ vector, 1e-9, f"{key}: times")
        _check_density(fit, hyper, oracles.posterior_precision(dense, delta, scale), key)
        curvatures.append(H)
    for H in curvatures[1:]:
        close(H, curvatures[0], 1e-9, f"{key}: the curvature does not depend on prior, noise or temperature")
    _check_per_parameter(key, problem, curvatures[0])


def _check_density(fit: LaplaceFit, hyper: Hyper, P: Tensor, what: str) -> None:
    """Log density against torch's with the dense precision: at draws, the mean and far points, in any batch shape."""
    draws = fit.theta + fit.posterior(hyper).sample(3, torch.Generator().manual_seed(4))
    theta = torch.cat([draws, fit.theta[None], torch.zeros_like(draws[:1]), 10 * draws[:1]])
    expected = torch.distributions.MultivariateNormal(fit.theta, precision_matrix=P).log_prob(theta)
    close(fit.log_prob(theta, hyper), expected, 1e-9, f"{what}: log density")
    close(fit.log_prob(theta[0], hyper), expected[0], 1e-9, f"{what}: log density of one")
    assert fit.log_prob(theta.view(2, 3, -1), hyper).shape == (2, 3) and fit.log_prob(theta[:0], hyper).shape == (0,)


def check_posterior(
    posterior: Posterior, covariance: Tensor, delta: Tensor, prior: Prior, problem: Example, what: str
) -> None:
    p = len(delta)
    generator = torch.Generator().manual_seed(5)
    vector = torch.randn(p, generator=generator, dtype=torch.float64)
    assert posterior.n_parameters == p
    close(posterior.logdet_precision(), -torch.linalg.slogdet(covariance).logabsdet, 1e-10, f"{what}: logdet")
    close(posterior.solve(vector), covariance @ vector, 1e-9, f"{what}: solve")
    close(posterior.marginal_variance(), covariance.diagonal(), 1e-9, f"{what}: marginal variance")
    _check_outputs(posterior, covariance, problem, what)
    weighted = delta[:, None] * covariance.square() * delta
    members = nn.functional.one_hot(prior.groups, prior.n_groups).double()
    first, second = posterior.prior_statistics(prior.groups, prior.n_groups)
    close(first, members.mT @ (delta * covariance.diagonal()), 1e-9, f"{what}: first prior statistic")
    close(second, members.mT @ weighted @ members, 1e-9, f"{what}: second prior statistic")
    close(posterior.shrinkage(prior.groups, prior.n_groups), first, 1e-9, f"{what}: shrinkage")
    _check_samples(posterior, covariance, what)


def _check_outputs(posterior: Posterior, covariance: Tensor, problem: Example, what: str) -> None:
    """J P^-1 J^T within and between rows, and its diagonal, with the Jacobian of the oracles."""
    new, J, K = _jacobians(problem)
    ours, other = problem.jacobian(new), problem.jacobian(problem.x)
    expected = J @ covariance @ J.mT
    close(posterior.covariance(ours), expected, 1e-9, f"{what}: covariance")
    close(posterior.variance(ours), expected.diagonal(dim1=1, dim2=2), 1e-9, f"{what}: variance")
    crossed = J.flatten(0, 1) @ covariance @ K.flatten(0, 1).mT
    close(posterior.cross_covariance(ours, other), crossed, 1e-9, f"{what}: cross covariance")


@functools.lru_cache(maxsize=4)
def _jacobians(problem: Example) -> tuple[Tensor, Tensor, Tensor]:
    """New rows, and the oracle's Jacobians at these and at the rows of the problem."""
    new = random_rows(problem.kind, 4, problem.x.shape[1], n_outputs_of(problem.kind, 3), seed=77)[0]
    back = oracle_order(problem.network).argsort()
    J, K = (oracles.jacobian(problem.module, problem.network.parameter_names, x)[..., back] for x in (new, problem.x))
    return new, J, K


def _check_samples(posterior: Posterior, covariance: Tensor, what: str) -> None:
    """Moments of the draws within six standard errors; equal generators give equal draws."""
    n = 4000
    draws = posterior.sample(n, torch.Generator().manual_seed(3))
    assert torch.equal(draws, posterior.sample(n, torch.Generator().manual_seed(3))), f"{what}: seeded draws"
    std = covariance.diagonal().sqrt()
    assert bool((draws.mean(0).abs() <= 6 * std / n**0.5).all()), f"{what}: mean of the draws"
    error = (std.outer(std).square() + covariance.square()).sqrt() / n**0.5
    assert bool(((draws.mT @ draws / n - covariance).abs() <= 6 * error).all()), f"{what}: covariance of the draws"


def _check_per_parameter(key: str, problem: Example, H: Tensor) -> None:
    """A separate precision per parameter is either exact or refused with the structure's name."""
    delta = 0.5 + torch.rand(len(H), generator=torch.Generator().manual_seed(9)).double()
    try:
        posterior = problem.fit(key).curvature.posterior(delta, 1.3)
    except UnsupportedCombinationError as error:
        message = str(error)
    else:
        message = None
    if message is not None:
        assert f"hessian_structure='{key}'" in message
        return
    expected = torch.linalg.inv(oracles.posterior_precision(H, delta, 1.3))
    close(covariance_of(posterior, len(H)), expected, 1e-9, f"{key}: one precision per parameter")


def _check_monoid(key: str, problem: Example, seed: int) -> None:
    """Partitions of the rows in any order, by add_ or merge, give the same posterior; merge changes no operand."""
    structure, blocks = STRUCTURES[key], problem.network.blocks
    p, n = problem.network.n_parameters, len(problem.x)
    delta = torch.tensor(0.9, dtype=torch.float64)

    def covariance(curvature: Any) -> Tensor:
        return covariance_of(curvature.posterior(delta, 1.1), p)

    whole = covariance(structure.zero(blocks, CPU).add_(problem.batch()))
    generator = torch.Generator().manual_seed(seed)
    for n_parts in (2, 4):
        parts = torch.randperm(n, generator=generator).tensor_split(n_parts)
        added, merged = (structure.zero(blocks, CPU).add_(problem.batch(parts[0])) for _ in range(2))
        for part in parts[1:]:
            batch = problem.batch(part)
            added = added.add_(batch)
            single = structure.zero(blocks, CPU).add_(batch)
            operands = single, merged
            before = [(covariance(one), one.eigenvalues().clone()) for one in operands]
            merged = single.merge(merged)
            for one, (its_covariance, its_eigenvalues) in zip(operands, before, strict=True):
                assert torch.equal(covariance(one), its_covariance), f"{key}: merge changes its operand"
                assert torch.equal(one.eigenvalues(), its_eigenvalues), f"{key}: merge changes its operand"
        close(covariance(added), whole, 1e-9, f"{key}: adding in another order")
        close(covariance(merged), whole, 1e-9, f"{key}: merging in another order")
    _check_subtraction(key, problem, merged, covariance)
    in_place = structure.zero(blocks, CPU)
    for part in torch.arange(n).split(2):
        in_place = in_place.add_(problem.batch(part))
    close(covariance(in_place), whole, 1e-9, f"{key}: adding in place")


def _check_subtraction(key: str, problem: Example, whole: Any, covariance: Callable[[Any], Tensor]) -> None:
    """subtract undoes merge and refuses rows that were not added; dual forms refuse it."""
    part, rest = (
        STRUCTURES[key].zero(problem.network.blocks, CPU).add_(problem.batch(rows))
        for rows in (slice(0, 4), slice(4, None))
    )
    if not STRUCTURES[key].forgets:
        with pytest.raises(UnsupportedCombinationError, match=r"Use hessian_structure='full'"):
            whole.subtract(part)
        return
    before = covariance(whole)
    close(covariance(whole.subtract(part)), covariance(rest), 1e-8, f"{key}: subtracting")
    assert torch.equal(covariance(whole), before), f"{key}: subtract changes its operand"
    with pytest.raises(NotPositiveDefiniteError, match="cannot remove these rows"):
        rest.subtract(whole)


def check_structure_without_rows(key: str) -> None:
    """Without rows the posterior equals the prior, and the curvature is the neutral element."""
    problem = example("categorical")
    prior, hyper = _hypers(problem.network)["tensor"]
    delta = prior.precision(hyper.prior_precision)
    curvature = STRUCTURES[key].zero(problem.network.blocks, CPU)
    assert float(curvature.eigenvalues().abs().max()) == 0 and len(curvature.eigenvalues()) == len(delta)
    one = STRUCTURES[key].zero(problem.network.blocks, CPU).add_(problem.batch())
    for same in (one.merge(curvature), curvature.merge(one)):
        close(same.eigenvalues(), one.eigenvalues(), 1e-15, f"{key}: zero is neutral")
    posterior = curvature.posterior(delta, 0.4)
    check_posterior(posterior, torch.diag(1 / delta), delta, prior, problem, f"{key} of no rows")
    close(covariance_of(posterior, len(delta)), torch.diag(1 / delta), 1e-12, f"{key} of no rows: covariance")


def _check_fewer_rows_than_weights(key: str) -> None:
    """A curvature without full rank, from a single row, with a much smaller prior precision."""
    problem = example("categorical", seed=4)
    curvature = STRUCTURES[key].zero(problem.network.blocks, CPU).add_(problem.batch(slice(0, 1)))
    p, prior = problem.network.n_parameters, problem.network.scalar_prior()
    delta = torch.tensor(1e-3, dtype=torch.float64)
    posterior = curvature.posterior(delta, 5.0)
    check_posterior(posterior, covariance_of(posterior, p), delta.expand(p), prior, problem, f"{key} of one row")
