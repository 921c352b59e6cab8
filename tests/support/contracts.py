"""What every variant of an axis must answer, whatever it is: one check per registry, run over all its keys.

The truth is dense: a posterior's covariance is rebuilt from its own root (R R^T, the law its samples follow), and every
other answer must agree with that matrix. That the matrix itself is right is the matter of test_structures.py.
"""

import copy
import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import oracles
import pytest
import torch
from torch import Tensor, nn

from sklearn_laplace.errors import NotPositiveDefiniteError, UnsupportedCombinationError
from sklearn_laplace.laplace import Hyper, LaplaceFit, fit_laplace
from sklearn_laplace.laplace.curvatures import CURVATURES, GGN
from sklearn_laplace.laplace.curvatures._base import CurvatureRule
from sklearn_laplace.laplace.curvatures.mc_fisher import row_uniforms
from sklearn_laplace.laplace.jacobian import Batch, FactoredJacobian
from sklearn_laplace.laplace.latent import LatentGaussian
from sklearn_laplace.laplace.layers import LAYERS, Generic
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.likelihoods._base import Likelihood, with_noise
from sklearn_laplace.laplace.links import LINKS, MC
from sklearn_laplace.laplace.links._base import standard_normals
from sklearn_laplace.laplace.network import Network, trace
from sklearn_laplace.laplace.predictives import PREDICTIVES
from sklearn_laplace.laplace.prior import Prior
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.structures._base import Posterior

KINDS = ("gaussian", "categorical")
"""Likelihoods for what sees only their output factor: one of full rank and one with fewer columns than outputs."""
ALL_KINDS = tuple(sorted(LIKELIHOODS))
CPU = torch.device("cpu")

# --------------------------------------------------------------------------------------------------
# Small problems
# --------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """Two linear layers with a tensor of its own between them, which no factored layer covers."""

    def __init__(self, d: int, width: int, n_outputs: int, seed: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(0.5 + torch.rand(width, generator=torch.Generator().manual_seed(seed)).double())
        self.body = oracles.random_mlp((d, width, n_outputs), seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        return self.body[2](torch.tanh(self.scale * self.body[0](x)))


@dataclass(frozen=True)
class Example:
    """A net and its rows; the likelihood's name is the oracles' ``kind``."""

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
        """Targets as the package takes them."""
        return with_noise(self.y, self.noise)

    @property
    def noise_variance(self) -> float | Tensor:
        """As the oracles take it, at unit dispersion."""
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
    """Inputs and targets of a likelihood."""
    draw = {
        "gaussian": oracles.random_regression,
        "categorical": oracles.random_classification,
        "bernoulli": oracles.random_binary,
        "poisson": oracles.random_counts,
    }[kind]
    return draw(n, d, n_outputs, seed)


def n_outputs_of(kind: str, n_outputs: int) -> int:
    """The number asked for, or the only one that the likelihood takes."""
    return 1 if kind == "bernoulli" else n_outputs


def example(
    kind: str, seed: int = 0, n: int = 9, sizes: tuple[int, int, int] = (2, 3, 3), noisy: bool = False
) -> Example:
    """A `Scaled` net at random weights, rows with weights of which some are zero; noisy: with known noise."""
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


def dense_curvature(structure: str, problem: Example, *, reduce: bool = False, rank: int | None = None) -> Tensor:
    """The H that a structure stores, from the oracles alone, in the package's order.

    ``reduce``: the weight sharing of Kronecker factors; ``rank``: of inf, that of the layer where it is None.
    """
    network, rows = problem.network, (problem.x, problem.y, problem.weights)
    names = network.parameter_names
    exact = oracles.ggn(problem.kind, problem.module, names, *rows, problem.noise_variance)
    if structure == "diag":
        exact = oracles.diagonal(exact)
    if structure == "block_diagonal":
        exact = _layerwise(problem, exact, lambda A, B, block: block, reduce)
    if structure == "kron":
        exact = _layerwise(problem, exact, lambda A, B, block: torch.kron(B, A), reduce)
    if structure == "ekfac":
        exact = _layerwise(problem, exact, _in_kronecker_basis, reduce)
    if structure == "low_rank_diag":
        exact = _layerwise(
            problem, exact, lambda A, B, block: leading_and_diagonal(A, B, block, rank or len(block)), reduce
        )
    return to_package(network, exact)


def _in_kronecker_basis(A: Tensor, B: Tensor, block: Tensor) -> Tensor:
    """The block with everything cut off that is not diagonal in the eigenvectors of B ⊗ A."""
    basis = torch.kron(torch.linalg.eigh(B)[1], torch.linalg.eigh(A)[1])
    return basis @ oracles.diagonal(basis.mT @ block @ basis) @ basis.mT


def leading_and_diagonal(A: Tensor, B: Tensor, block: Tensor, rank: int) -> Tensor:
    """V diag(l) Vᵀ of the largest l = vᵀ block v over the eigenvectors v of B ⊗ A, and what its diagonal lacks."""
    basis = torch.kron(torch.linalg.eigh(B)[1], torch.linalg.eigh(A)[1])
    moments = (basis.mT @ block @ basis).diagonal()
    top = moments.argsort(descending=True)[:rank]
    leading = basis[:, top] @ torch.diag(moments[top]) @ basis[:, top].mT
    return leading + torch.diag((block - leading).diagonal().clamp(min=0))


def _layerwise(
    problem: Example, exact: Tensor, form: Callable[[Tensor, Tensor, Tensor], Tensor], reduce: bool
) -> Tensor:
    """Every linear layer's block in the given form of (A, B, exact block); another tensor's A is its exact block.

    In the oracles' order; the form sees the layer's matrix [W | b] row by row, or W where biases are separate.
    """
    folds = problem.network.folds_biases
    tensors = [(name, problem.module.get_parameter(name).numel()) for name in problem.network.parameter_names]
    dense = torch.zeros_like(exact)
    start = 0
    while tensors:
        name, size = tensors.pop(0)
        layer, _, tensor = name.rpartition(".")
        if tensor == "weight":
            if folds and tensors and tensors[0][0] == f"{layer}.bias":
                size += tensors.pop(0)[1]
            rows = problem.x, problem.y, problem.weights
            told = {"fold_bias": folds, "reduce": reduce, "noise_variance": problem.noise_variance}
            A, B = oracles.kron_factors(problem.kind, layer, problem.module, *rows, **told)
            order = oracles.layer_matrix_permutation(problem.module, layer) if folds else torch.arange(size)
            back = order.argsort()
            span = slice(start, start + size)
            block = form(A, B, exact[span, span][back][:, back])[order][:, order]
        else:
            whole = exact[start : start + size, start : start + size]
            block = form(whole, torch.ones(1, 1, dtype=torch.float64), whole)
        dense[start : start + size, start : start + size] = block
        start += size
    return dense


def covariance_of(posterior: Posterior, n_parameters: int) -> Tensor:
    """R R^T from the root that samples go through."""
    columns = posterior.apply_root(torch.eye(n_parameters, dtype=torch.float64))
    return columns.mT @ columns


def close(actual: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """Largest error below ``tolerance`` times the largest entry expected (or 1e-300)."""
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    error = float((actual - expected).abs().max()) if actual.numel() else 0.0
    size = float(expected.abs().max()) if expected.numel() else 0.0
    assert error <= tolerance * max(size, 1e-300), f"{what}: off by {error:.1e} of {size:.1e}"


# --------------------------------------------------------------------------------------------------
# Structures
# --------------------------------------------------------------------------------------------------


def check_structure(key: str) -> None:
    """Every answer of a structure agrees with the one dense matrix behind it, and its sums are a monoid."""
    for kind, seed in itertools.product(KINDS, (0, 1)):
        problem = example(kind, seed)
        _check_posteriors(key, problem)
        _check_monoid(key, problem, seed)
    _check_fewer_rows_than_weights(key)


def _hypers(network: Network) -> dict[str, tuple[Prior, Hyper]]:
    """Scalar and tensor-wise precisions; dispersion and temperature away from one."""
    tensors = network.tensor_prior()
    values = torch.logspace(-1, 1.2, tensors.n_groups, dtype=torch.float64)
    one = torch.tensor([0.7], dtype=torch.float64)
    return {
        "scalar": (network.scalar_prior(), Hyper(one, dispersion=0.3, temperature=0.8)),
        "unit scale": (network.scalar_prior(), Hyper(10 * one)),
        "tensor": (tensors, Hyper(values, dispersion=2.5, temperature=1.7)),
    }


def _check_posteriors(key: str, problem: Example) -> None:
    network, p = problem.network, problem.network.n_parameters
    seen = []
    for (name, (prior, hyper)), spectral in itertools.product(_hypers(network).items(), (True, False)):
        fit = problem.fit(key, prior)
        scale = hyper.scale(fit.dispersion_power)
        assert math.isclose(scale, 1 / (hyper.temperature * hyper.dispersion), rel_tol=1e-15)
        if name == "tensor" and key == "ekfac":
            with pytest.raises(UnsupportedCombinationError, match="'ekfac' needs one prior precision for all"):
                fit.posterior(hyper, spectral=spectral)
            continue
        posterior = fit.posterior(hyper, spectral=spectral)
        delta = hyper.prior_precision[prior.groups]
        covariance = covariance_of(posterior, p)
        _check_posterior(posterior, covariance, delta, prior, problem, f"{key}, {problem.kind}, {name}, {spectral}")
        H = (torch.linalg.inv(covariance) - torch.diag(delta)) / scale
        eigenvalues = fit.curvature.eigenvalues()
        close(eigenvalues.sort().values, torch.linalg.eigvalsh(H), 1e-10, f"{key}: eigenvalues of H")
        assert bool((eigenvalues >= 0).all()), f"{key}: H is positive semi-definite"
        vector = torch.randn(p, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
        close(fit.curvature.times(vector), H @ vector, 1e-9, f"{key}: times")
        _check_density(fit, hyper, oracles.posterior_precision(dense_curvature(key, problem), delta, scale), key)
        seen.append(H)
    for H in seen[1:]:
        close(H, seen[0], 1e-9, f"{key}: the curvature does not depend on prior, noise or temperature")
    _check_per_parameter(key, problem, seen[0])


def _check_density(fit: LaplaceFit, hyper: Hyper, P: Tensor, what: str) -> None:
    """torch's normal density of the dense precision: of draws, of the mean, of far weights; of one or of any number."""
    draws = fit.theta + fit.posterior(hyper).sample(3, torch.Generator().manual_seed(4))
    theta = torch.cat([draws, fit.theta[None], torch.zeros_like(draws[:1]), 10 * draws[:1]])
    expected = torch.distributions.MultivariateNormal(fit.theta, precision_matrix=P).log_prob(theta)
    close(fit.log_prob(theta, hyper), expected, 1e-9, f"{what}: log density")
    close(fit.log_prob(theta[0], hyper), expected[0], 1e-9, f"{what}: log density of one")
    assert fit.log_prob(theta.view(2, 3, -1), hyper).shape == (2, 3) and fit.log_prob(theta[:0], hyper).shape == (0,)


def _check_posterior(
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
    """J P^-1 J^T of each row, its diagonal, and between rows, with the Jacobian of the oracles."""
    new = random_rows(problem.kind, 4, problem.x.shape[1], n_outputs_of(problem.kind, 3), seed=77)[0]
    back = oracle_order(problem.network).argsort()
    J, K = (oracles.jacobian(problem.module, problem.network.parameter_names, x)[..., back] for x in (new, problem.x))
    ours, other = problem.jacobian(new), problem.jacobian(problem.x)
    expected = J @ covariance @ J.mT
    close(posterior.covariance(ours), expected, 1e-9, f"{what}: covariance")
    close(posterior.variance(ours), expected.diagonal(dim1=1, dim2=2), 1e-9, f"{what}: variance")
    crossed = J.flatten(0, 1) @ covariance @ K.flatten(0, 1).mT
    close(posterior.cross_covariance(ours, other), crossed, 1e-9, f"{what}: cross covariance")


def _check_samples(posterior: Posterior, covariance: Tensor, what: str) -> None:
    """Moments within six standard errors; the same generator gives the same draws."""
    n = 4000
    draws = posterior.sample(n, torch.Generator().manual_seed(3))
    assert torch.equal(draws, posterior.sample(n, torch.Generator().manual_seed(3))), f"{what}: seeded draws"
    std = covariance.diagonal().sqrt()
    assert bool((draws.mean(0).abs() <= 6 * std / n**0.5).all()), f"{what}: mean of the draws"
    error = (std.outer(std).square() + covariance.square()).sqrt() / n**0.5
    assert bool(((draws.mT @ draws / n - covariance).abs() <= 6 * error).all()), f"{what}: covariance of the draws"


def _check_per_parameter(key: str, problem: Example, H: Tensor) -> None:
    """A precision for each parameter is either exact or refused by name."""
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
    """Any partition of the rows, in any order, by add or by merge: the same posterior; no operand changes."""
    structure, blocks = STRUCTURES[key], problem.network.blocks
    p, n = problem.network.n_parameters, len(problem.x)
    delta = torch.tensor(0.9, dtype=torch.float64)

    def covariance(curvature: Any) -> Tensor:
        return covariance_of(curvature.posterior(delta, 1.1), p)

    whole = covariance(structure.zero(blocks, CPU).add(problem.batch()))
    generator = torch.Generator().manual_seed(seed)
    for n_parts in (2, 4):
        parts = torch.randperm(n, generator=generator).tensor_split(n_parts)
        added = merged = structure.zero(blocks, CPU).add(problem.batch(parts[0]))
        for part in parts[1:]:
            batch = problem.batch(part)
            before, before_eigenvalues = covariance(added), added.eigenvalues().clone()
            following = added.add(batch)
            assert torch.equal(covariance(added), before), f"{key}: add changes its operand"
            assert torch.equal(added.eigenvalues(), before_eigenvalues), f"{key}: add changes its operand"
            single = structure.zero(blocks, CPU).add(batch)
            before = covariance(single)
            together = single.merge(merged)
            assert torch.equal(covariance(single), before), f"{key}: merge changes its operand"
            added, merged = following, together
        close(covariance(added), whole, 1e-9, f"{key}: adding in another order")
        close(covariance(merged), whole, 1e-9, f"{key}: merging in another order")
    _check_subtraction(key, problem, added, covariance)
    in_place = structure.zero(blocks, CPU)
    for part in torch.arange(n).split(2):
        in_place = in_place.add_(problem.batch(part))
    close(covariance(in_place), whole, 1e-9, f"{key}: adding in place")
    copied = in_place.copy()
    in_place.add_(problem.batch())
    close(covariance(copied), whole, 1e-9, f"{key}: a copy shares no storage")


def _check_subtraction(key: str, problem: Example, whole: Any, covariance: Callable[[Any], Tensor]) -> None:
    """What merge adds, subtract takes out; what is not in it is refused. A dual form refuses altogether."""
    zero = STRUCTURES[key].zero(problem.network.blocks, CPU)
    part, rest = zero.add(problem.batch(slice(0, 4))), zero.add(problem.batch(slice(4, None)))
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
    """Without rows the posterior is the prior, and the curvature neutral."""
    problem = example("categorical")
    prior, hyper = _hypers(problem.network)["tensor"]
    delta = prior.precision(hyper.prior_precision)
    curvature = STRUCTURES[key].zero(problem.network.blocks, CPU)
    assert float(curvature.eigenvalues().abs().max()) == 0 and len(curvature.eigenvalues()) == len(delta)
    one = STRUCTURES[key].zero(problem.network.blocks, CPU).add(problem.batch())
    for same in (one.merge(curvature), curvature.merge(one)):
        close(same.eigenvalues(), one.eigenvalues(), 1e-15, f"{key}: zero is neutral")
    posterior = curvature.posterior(delta, 0.4)
    _check_posterior(posterior, torch.diag(1 / delta), delta, prior, problem, f"{key} of no rows")
    close(covariance_of(posterior, len(delta)), torch.diag(1 / delta), 1e-12, f"{key} of no rows: covariance")


def _check_fewer_rows_than_weights(key: str) -> None:
    """One row, of a curvature without full rank, under a prior of another size."""
    problem = example("categorical", seed=4)
    curvature = STRUCTURES[key].zero(problem.network.blocks, CPU).add(problem.batch(slice(0, 1)))
    p, prior = problem.network.n_parameters, problem.network.scalar_prior()
    delta = torch.tensor(1e-3, dtype=torch.float64)
    posterior = curvature.posterior(delta, 5.0)
    _check_posterior(posterior, covariance_of(posterior, p), delta.expand(p), prior, problem, f"{key} of one row")


# --------------------------------------------------------------------------------------------------
# Likelihoods
# --------------------------------------------------------------------------------------------------


def check_likelihood(key: str) -> None:
    """Residual, Hessian factor, normaliser and draws are those of the log density, also where outputs are large."""
    likelihood = LIKELIHOODS[key]()
    for n_outputs, seed in itertools.product(sorted({n_outputs_of(key, n) for n in (2, 3, 5)}), (0, 1)):
        f = 3 * torch.randn(11, n_outputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        y = random_rows(key, 11, 2, n_outputs, seed)[1]
        assert float(y.min()) >= likelihood.least_target
        for noise in (None, random_noise(11, n_outputs, seed)) if likelihood.takes_known_noise else (None,):
            _check_derivatives(key, likelihood, f, y, noise)
            _check_differences(key, likelihood, f, with_noise(y, noise))
            _check_draws(key, likelihood, f[:4] / 3, None if noise is None else with_noise(y, noise)[:4])
    _check_extreme_outputs(key, likelihood)
    _check_moments(key, likelihood)


def _check_derivatives(key: str, likelihood: Likelihood, f: Tensor, y: Tensor, noise: Tensor | None) -> None:
    """Residual, factor and log density against autodiff of the density, with the noise that is known."""
    observed, variance = with_noise(y, noise), 1.0 if noise is None else noise
    expected = oracles.output_gradient(key, f, y, variance)
    close(likelihood.residual(f, observed), expected, 1e-12, f"{key}: residual")
    S = likelihood.hessian_factor(f, observed)
    assert S.shape[:2] == f.shape
    close(S @ S.mT, oracles.output_hessian(key, f, y, variance), 1e-12, f"{key}: S S^T")
    dispersion = 0.37 if likelihood.has_dispersion else 1.0
    normaliser = likelihood.log_normaliser(dispersion, f.shape[1]) + likelihood.log_noise(f, observed)
    density = -likelihood.nll(f, observed) / dispersion - normaliser
    expected = oracles.log_likelihood(key, f, y, dispersion * variance)
    close(density, expected, 1e-12, f"{key}: log density")


def _check_differences(key: str, likelihood: Likelihood, f: Tensor, y: Tensor) -> None:
    """Central differences of nll and of the residual: 1e-9 of truncation and rounding relative to the largest."""
    step = 1e-5
    slopes, bends = [], []
    for shift in step * torch.eye(f.shape[1], dtype=torch.float64):
        slopes.append((likelihood.nll(f + shift, y) - likelihood.nll(f - shift, y)) / (2 * step))
        bends.append((likelihood.residual(f + shift, y) - likelihood.residual(f - shift, y)) / (2 * step))
    S = likelihood.hessian_factor(f, y)
    close(likelihood.residual(f, y), torch.stack(slopes, 1), 1e-8, f"{key}: residual by differences")
    close(S @ S.mT, torch.stack(bends, 1), 1e-8, f"{key}: S S^T by differences")


def _check_draws(key: str, likelihood: Likelihood, f: Tensor, observed: Tensor | None) -> None:
    """Targets drawn from the model: residuals of mean zero and covariance S S^T (the Fisher information).

    Six standard errors of 40,000 draws; the residuals' products have a standard error of their own.
    """
    generator = torch.Generator().manual_seed(12)
    factor = likelihood.hessian_factor(f, observed)
    for i, (row, S) in enumerate(zip(f, factor, strict=True)):
        uniforms = torch.rand(40_000, len(row), generator=generator, dtype=torch.float64)
        outputs = row.expand(len(uniforms), -1)
        known = None if observed is None else observed[i].expand(len(uniforms), -1)
        targets = likelihood.sample(outputs, uniforms, known)
        assert float(targets.min()) >= likelihood.least_target
        r = likelihood.residual(outputs, targets)
        products = torch.einsum("nc,nd->ncd", r, r)
        for values, expected in ((r, torch.zeros_like(row)), (products, S @ S.mT)):
            error = 6 * values.std(0) / len(values) ** 0.5
            assert bool(((values.mean(0) - expected).abs() <= error).all()), f"{key}: residuals of draws"


def _check_extreme_outputs(key: str, likelihood: Likelihood) -> None:
    """Outputs of +-60 in float32: finite, and right to single precision."""
    n_outputs = n_outputs_of(key, 3)
    f = torch.tensor(list(itertools.product((-60.0, 0.0, 60.0), repeat=n_outputs)))
    y = random_rows(key, len(f), 2, n_outputs, seed=3)[1]
    y = y.float() if y.is_floating_point() else y
    answers = {
        "nll": (likelihood.nll(f, y), -oracles.log_likelihood(key, f, y)),
        "residual": (likelihood.residual(f, y), oracles.output_gradient(key, f, y)),
        "S S^T": (likelihood.hessian_factor(f).double(), oracles.output_hessian(key, f, y)),
    }
    for name, (ours, expected) in answers.items():
        assert bool(torch.isfinite(ours).all()), f"{key}: {name} of outputs of +-60 is not finite"
        ours = ours @ ours.mT if name == "S S^T" else ours.double()
        if name == "nll":  # ours lacks the normaliser, a constant of the row
            expected = expected - likelihood.log_normaliser(1.0, n_outputs)
        close(ours, expected, 1e-6, f"{key}: {name} of outputs of +-60")
    drawn = likelihood.sample(f, torch.full(f.shape, 0.7, dtype=torch.float64))
    assert bool(torch.isfinite(drawn).all()) and drawn.shape == y.shape, f"{key}: draws at outputs of +-60"


def _check_moments(key: str, likelihood: Likelihood) -> None:
    """Moments of a target: the mean a mean, the variances positive, together the law of total variance."""
    problem = random_latent(n_outputs_of(key, 3), seed=2)
    problem = LatentGaussian(problem.mean, problem.covariance / 10)
    predictive = likelihood.predict(problem, 0.4, MC(standard_normals(4096, 2 if key == "bernoulli" else 3, seed=0)))
    assert bool((predictive.epistemic_variance >= 0).all()) and bool((predictive.aleatoric_variance >= 0).all())
    if likelihood.over_classes:
        total = predictive.mean * (1 - predictive.mean)
        close(predictive.mean.sum(1), torch.ones(len(problem.mean)).double(), 1e-12, f"{key}: probabilities")
        close(predictive.total_variance, total, 1e-12, f"{key}: total variance")
        logits = likelihood.class_logits(problem)
        expected = torch.stack([oracles.softmax_normal_expectation(m, c) for m, c in zip(*_pair(logits), strict=True)])
        close(predictive.mean, expected, 5e-3, f"{key}: mean")  # of 4096 quasi-random points
        return
    variance = problem.covariance.diagonal(dim1=1, dim2=2)
    noise = 0.4 if likelihood.has_dispersion else 1.0
    mean, epistemic, aleatoric = oracles.mixture_moments(key, problem.mean, variance, noise)
    close(predictive.mean, mean, 1e-12, f"{key}: mean")
    close(predictive.epistemic_variance, epistemic, 1e-12, f"{key}: epistemic variance")
    close(predictive.aleatoric_variance, aleatoric, 1e-12, f"{key}: aleatoric variance")


# --------------------------------------------------------------------------------------------------
# Curvature rules and layers
# --------------------------------------------------------------------------------------------------

N_DRAWS, FISHER_SEED = 3, 7
"""Of the sampled Fisher."""


def sampled_fisher(
    kind: str,
    module: nn.Module,
    names: tuple[str, ...],
    x: Tensor,
    y: Tensor,
    weights: Tensor,
    noise_variance: float | Tensor = 1.0,
) -> Tensor:
    """The mean of the empirical Fishers of the targets that the rule draws; y itself plays no part."""
    f = oracles.outputs(module, x)
    uniforms = row_uniforms(x, N_DRAWS * f.shape[1], FISHER_SEED).view(len(x), N_DRAWS, -1)
    drawn = [LIKELIHOODS[kind]().sample(f, uniforms[:, s]) for s in range(N_DRAWS)]
    if isinstance(noise_variance, Tensor):
        drawn = [f + noise_variance.sqrt() * (y - f) for y in drawn]
    parts = [oracles.empirical_fisher(kind, module, names, x, y, weights, noise_variance) for y in drawn]
    return torch.stack(parts).mean(0)


def dense_contribution(batch: Batch) -> tuple[Tensor, Tensor]:
    """What a batch adds to the curvature (P, P), and its rows (n, K, P)."""
    rows = batch.jacobian.rows()
    ours = torch.einsum("nkp,nkq->pq", rows, rows)
    return ours if batch.matrix is None else ours + batch.matrix, rows


DENSE_RULES: dict[str, Callable[..., Tensor]] = {
    "ggn": oracles.ggn,
    "empirical_fisher": oracles.empirical_fisher,
    "mc_fisher": sampled_fisher,
    "hessian": oracles.hessian,
}
"""The dense truth of each rule."""


def check_curvature(key: str) -> None:
    """A rule's contribution, rows' outer products or a matrix, is the rule's dense matrix; weights enter once."""
    rule = CURVATURES[key]().sampling(N_DRAWS, FISHER_SEED)
    assert rule == CURVATURES[key]().sampling(N_DRAWS, FISHER_SEED), f"{key}: two equal rules"
    assert rule.provides <= {"rows", "layers", "matrix"} and rule.dispersion_power in (1, 2)
    for kind, seed, noisy in itertools.product(ALL_KINDS, (0, 1), (False, True)):
        if noisy and not LIKELIHOODS[kind].takes_known_noise:
            continue
        problem = example(kind, seed, noisy=noisy)
        line, observed = problem.network.linearise(problem.x), problem.observed
        batch = rule.batch(line, problem.likelihood, observed, problem.weights)
        ours, rows = dense_contribution(batch)
        n_columns = rule.n_columns(problem.likelihood, batch.outputs.shape[1])
        assert rows.shape[1] == (n_columns if batch.matrix is None else 0)
        names = problem.network.parameter_names
        data = problem.x, problem.y, problem.weights, problem.noise_variance
        dense = DENSE_RULES[key](kind, problem.module, names, *data)
        close(to_oracle(problem.network, ours), dense, 1e-10, f"{key}, {kind}: the batch's contribution")
        halves = (slice(None, 4), slice(4, None))
        parts = [
            rule.batch(problem.network.linearise(problem.x[s]), problem.likelihood, observed[s], problem.weights[s])
            for s in reversed(halves)
        ]
        close(sum(dense_contribution(part)[0] for part in parts), ours, 1e-12, f"{key}, {kind}: in two batches")
        assert float(rows[problem.weights == 0].abs().sum()) == 0, f"{key}, {kind}: a row of weight zero"
        assert math.isclose(batch.total_weight, float(problem.weights.sum()), rel_tol=1e-14)
        close(batch.outputs, oracles.outputs(problem.module, problem.x), 1e-12, f"{key}, {kind}: outputs")


@dataclass(frozen=True)
class LayerCase:
    """A net whose only parameters are of one kind of layer, the ones selected (None: all), and its rows."""

    what: str
    module: nn.Module
    x: Tensor
    names: tuple[str, ...] | None = None


class Around(nn.Module):
    """Layers on rows of any shape, a nonlinearity after each, and a readout into two outputs that has no parameters."""

    def __init__(self, shape: tuple[int, ...], *layers: nn.Module, indices: bool = False) -> None:
        super().__init__()
        self.shape, self.layers, self.indices = shape, nn.ModuleList(layers), indices
        generator = torch.Generator().manual_seed(3)
        self.double().eval()
        for tensor in itertools.chain(self.parameters(), self.buffers()):
            if tensor.is_floating_point():  # away from ones and zeros, variances positive, one gain exactly zero
                drawn = 0.6 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                tensor.data.copy_(drawn if tensor.requires_grad else 0.3 + drawn.abs())
        self.layers[0].weight.data.view(-1)[0] = 0.0
        with torch.no_grad():
            width = self.hidden(torch.zeros(1, math.prod(shape), dtype=torch.float64)).shape[1]
        self.register_buffer("readout", torch.randn(width, 2, generator=generator, dtype=torch.float64))

    def hidden(self, x: Tensor) -> Tensor:
        x = x.unflatten(1, self.shape)
        x = x.long() if self.indices else x
        for layer in self.layers:
            x = torch.sin(layer(x) + 0.5)
        return x.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(x) @ self.readout


def _rows_of(shape: tuple[int, ...], n: int = 5) -> Tensor:
    return torch.randn(n, math.prod(shape), generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _selections(module: nn.Module, index: int) -> tuple[str, ...] | None:
    """All parameters, or the weights, or what is not a weight, in turn."""
    names = [name for name, _ in module.named_parameters()]
    kinds = [names, [n for n in names if n.endswith("weight")], [n for n in names if not n.endswith("weight")]]
    return tuple(kinds[index % 3] or names) if index % 4 else None


def _linear_cases() -> list[LayerCase]:
    bare = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Softplus(), nn.Linear(4, 2)).double()
    x = _rows_of((3,))
    cases = [
        LayerCase("plain", oracles.random_mlp((3, 4, 2)), x),
        LayerCase("half of it", oracles.random_mlp((3, 4, 2)), x, ("0.bias", "2.weight")),
        LayerCase("no bias", bare, x),
        LayerCase("one layer", oracles.random_mlp((3, 1)), x),
    ]
    for index, shape in enumerate([(4, 2), (2, 3, 2), (1, 2), (1, 1, 2), (4, 1), (3, 2)]):
        module = Around(shape, nn.Linear(shape[-1], 3, bias=index != 1), nn.Linear(3, 2))
        cases.append(LayerCase(f"sequence {shape}", module, _rows_of(shape), _selections(module, index)))
    return cases


CONVOLUTIONS: dict[int, list[dict[str, Any]]] = {
    1: [
        {"kernel_size": 3},
        {"kernel_size": 1},
        {"kernel_size": 7},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 2, "stride": 3, "padding": 2, "dilation": 2},
        {"kernel_size": 4, "padding": "same"},
        {"kernel_size": 2, "padding": "same", "dilation": 3, "padding_mode": "circular"},
        {"kernel_size": 3, "padding": "valid", "dilation": 2},
        {"kernel_size": 3, "stride": 2, "padding": 2, "padding_mode": "reflect"},
        {"kernel_size": 3, "padding": 1, "padding_mode": "replicate"},
    ],
    2: [
        {"kernel_size": 3},
        {"kernel_size": 1, "stride": 2},
        {"kernel_size": (5, 4)},
        {"kernel_size": (2, 3), "stride": (2, 1), "padding": (0, 2)},
        {"kernel_size": 2, "padding": 1, "dilation": (3, 2)},
        {"kernel_size": (3, 2), "padding": "same"},
        {"kernel_size": 2, "padding": "same", "dilation": (2, 3), "padding_mode": "reflect"},
        {"kernel_size": 2, "padding": "valid", "stride": 2},
        {"kernel_size": 3, "padding": (2, 1), "stride": (1, 2), "padding_mode": "circular"},
        {"kernel_size": (3, 2), "padding": (1, 1), "padding_mode": "replicate"},
    ],
}
"""Kernels that reach over the whole input, even and uneven ones, in every mode of padding."""


def convolution(dimensions: int, *sizes: int, **options: Any) -> nn.Module:
    """A convolution of one or two dimensions."""
    return {1: nn.Conv1d, 2: nn.Conv2d}[dimensions](*sizes, **options)


def _conv_cases() -> list[LayerCase]:
    cases = []
    choices = [(d, options, g) for d, every in CONVOLUTIONS.items() for options in every for g in (1, 2, 4)]
    for index, (dimensions, options, groups) in enumerate(choices):
        shape = (4, 7) if dimensions == 1 else (4, 5, 4)
        bias = index % 5 != 2
        layers = [convolution(dimensions, 4, (4, 8)[index % 2], groups=groups, bias=bias, **options)]
        if index % 3 == 0:  # behind it a layer of another kernel, so that cotangents differ between positions
            layers.append(convolution(dimensions, (4, 8)[index % 2], 3, kernel_size=1))
        module = Around(shape, *layers)
        what = f"{dimensions}d, groups={groups}, bias={bias}, {options}"
        cases.append(LayerCase(what, module, _rows_of(shape), _selections(module, index)))
    return cases


def _embedding_cases() -> list[LayerCase]:
    cases = []
    shapes = [(1,), (4,), (2, 3), (3,)]
    for shape, padding in itertools.product(shapes, (None, 0, -1)):
        module = Around(shape, nn.Embedding(5, 3, padding_idx=padding), indices=True)
        x = _rows_of(shape).abs().mul(3).clamp(max=4).floor()  # indices that occur twice in a row, and never
        cases.append(LayerCase(f"{shape}, padding_idx={padding}", module, x))
    return cases


def _affine_cases() -> list[LayerCase]:
    layers: list[tuple[tuple[int, ...], Callable[[], nn.Module]]] = [
        ((4,), lambda: nn.BatchNorm1d(4)),
        ((4, 3), lambda: nn.BatchNorm1d(4, eps=0.1)),
        ((2, 3, 2), lambda: nn.BatchNorm2d(2)),
        ((2, 1, 3, 2), lambda: nn.BatchNorm3d(2)),
        ((5,), lambda: nn.LayerNorm(5)),
        ((3, 5), lambda: nn.LayerNorm(5, eps=0.1)),
        ((3, 5), lambda: nn.LayerNorm((3, 5))),
        ((2, 2, 3, 2), lambda: nn.LayerNorm((3, 2))),
        ((2, 5), lambda: nn.LayerNorm(5, bias=False)),
        ((2, 5), lambda: nn.RMSNorm(5)),
        ((3, 5), lambda: nn.RMSNorm((3, 5), eps=0.1)),
        ((6,), lambda: nn.GroupNorm(2, 6)),
        ((4, 3), lambda: nn.GroupNorm(2, 4)),
        ((4, 2, 3), lambda: nn.GroupNorm(1, 4, eps=0.1)),
        ((2, 5), lambda: nn.InstanceNorm1d(2, affine=True)),
        ((2, 3, 2), lambda: nn.InstanceNorm2d(2, affine=True, track_running_stats=True)),
        ((2, 2, 3, 2), lambda: nn.InstanceNorm3d(2, affine=True)),
    ]
    cases = []
    for (shape, build), index in itertools.product(layers, (0, 1, 2)):
        module = Around(shape, build(), build())
        cases.append(LayerCase(f"{module.layers[0]} on {shape}", module, _rows_of(shape), _selections(module, index)))
    return cases


LAYER_CASES: dict[str, Callable[[], list[LayerCase]]] = {
    "linear": _linear_cases,
    "conv": _conv_cases,
    "embedding": _embedding_cases,
    "affine": _affine_cases,
}
"""Nets of each kind of layer; those of all kinds are generic's."""


def check_layer(key: str) -> None:
    """A layer's Jacobian is the one of torch.func, and of plain autodiff row by row, in either precision."""
    kinds = list(LAYER_CASES) if key == "generic" else [key]
    with warnings.catch_warnings():  # torch's own word on an even kernel's uneven padding: slower, not wrong
        warnings.filterwarnings("ignore", message="Using padding='same' with even kernel lengths")
        for case in itertools.chain.from_iterable(LAYER_CASES[kind]() for kind in kinds):
            _check_layer_case(key, case)


def _check_layer_case(key: str, case: LayerCase) -> None:
    module, x, what = case.module, case.x, f"{key}, {case.what}"
    network = trace(module, x, case.names)
    selected = network.parameter_names
    sizes = tuple(module.get_parameter(name).numel() for name in selected)
    generator = torch.Generator().manual_seed(2)
    factor = torch.randn(*network(x).shape, 2, generator=generator, dtype=torch.float64)
    truth = (factor.mT @ oracles.jacobian(module, selected, x)).split(sizes, -1)
    candidates = []
    for batched in (True, False) if key == "generic" else (True,):
        parts = Generic(selected, sizes, batched).factors(network.module, x, factor)
        candidates.append({name: part.rows() for name, part in zip(selected, parts, strict=True)})
    if key != "generic":
        assert {type(layer) for layer in network.layers} == {LAYERS[key]}, f"{what}: no layer is of this kind"
        assert network.generic is None
        candidates.append(_parts(network, x, factor))
        single = trace(copy.deepcopy(module).float(), x.float(), case.names)
        assert single.layers == network.layers, f"{what}: other layers in single precision"
        for name, expected in zip(selected, truth, strict=True):
            close(_parts(single, x.float(), factor.float())[name].double(), expected, 1e-4, f"{what}: {name}, single")
    for parts in candidates:
        for name, expected in zip(selected, truth, strict=True):
            close(parts[name], expected, 1e-10, f"{what}: Jacobian in {name}")


def _parts(network: Network, x: Tensor, factor: Tensor) -> dict[str, Tensor]:
    """The network's own SᵀJ, (n, K, elements) for each tensor."""
    rows = network.linearise(x).pullback(factor).rows()
    return {name: part.flatten(2) for name, part in network.tensors(rows).items()}


# --------------------------------------------------------------------------------------------------
# Predictives
# --------------------------------------------------------------------------------------------------

N_SAMPLES = 4000


def check_predictive(key: str) -> None:
    """One law behind all answers, row by row; for a network that is linear in its weights it is J P^-1 J^T."""
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
    """Moments, mean and joint covariance agree; a row's answer depends neither on its neighbours nor on the call."""
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


# --------------------------------------------------------------------------------------------------
# Links
# --------------------------------------------------------------------------------------------------

SAMPLING_ERROR = {"mc": 2e-3, "quadrature": 1e-10}
"""What choosing other points changes: 8192 quasi-random ones are below independent ones. Other links have none."""
QUADRATURE_ERROR = {"mc": 2e-3, "moderated": 0.11, "probit": 0.11, "quadrature": 2e-4}
"""Largest distance of a probability to its integral where logits have variances up to 10: .10 for probit here, two
classes .01. Oracle's own error: 1e-4; with three times its nodes the quadrature link is checked to 1e-8 elsewhere."""
DIRICHLET = {"bridge", "bridge_norm"}
"""Links whose variance is that of a Dirichlet; the law that it keeps has a test of its own."""
EXTREMES = (0.0, 1e-300, 1e-12, 1.0, 1e4, 1e8, 1e30)
"""Sizes of covariances."""


def random_latent(n_classes: int, seed: int, n: int = 6, rank: int | None = None) -> LatentGaussian:
    """Gaussians over logits; ``rank`` limits that of the covariances."""
    generator = torch.Generator().manual_seed(seed)
    mean = 1.5 * torch.randn(n, n_classes, generator=generator, dtype=torch.float64)
    root = torch.randn(n, n_classes, rank or n_classes, generator=generator, dtype=torch.float64)
    return LatentGaussian(mean, root @ root.mT)


def check_link(key: str) -> None:
    """Probabilities that a shift common to all logits does not change, near the integral they stand for."""
    exact = SAMPLING_ERROR.get(key, 1e-12)
    for n_classes, seed in itertools.product((2, 3), (0, 1)):
        link = LINKS[key](standard_normals(8192, n_classes, seed=seed))
        latent = random_latent(n_classes, seed)
        p, variance = link.mean(latent), link.variance(latent)
        _check_probabilities(link, latent, f"{key}, {n_classes} classes")
        shifted = LatentGaussian(latent.mean + 7.5, latent.covariance)
        close(link.mean(shifted), p, 1e-12, f"{key}: the same constant added to all logits")
        wobbly = LatentGaussian(latent.mean, latent.covariance + 0.8)
        close(link.mean(wobbly), p, exact, f"{key}: a constant with variance of its own added to all logits")
        order = torch.randperm(n_classes, generator=torch.Generator().manual_seed(seed + 1)).flip(0)
        permuted = LatentGaussian(latent.mean[:, order], latent.covariance[:, order][:, :, order])
        close(link.mean(permuted), p[:, order], exact, f"{key}: classes in another order")
        certain = LatentGaussian(latent.mean, torch.zeros_like(latent.covariance))
        close(link.mean(certain), latent.mean.softmax(1), 1e-12, f"{key}: no covariance")
        assert float(link.variance(certain).abs().max()) < 1e-25, f"{key}: variance without covariance"
        close(link.mean(_rows(latent, [3, 1])), p[[3, 1]], 1e-12, f"{key}: rows in another order")
        if key not in DIRICHLET:
            close(variance, _simulated_variance(latent), 0.03, f"{key}: variance")
        if key in QUADRATURE_ERROR:
            integrals = [oracles.softmax_normal_expectation(m, c) for m, c in zip(*_pair(latent), strict=True)]
            assert float((p - torch.stack(integrals)).abs().max()) <= QUADRATURE_ERROR[key], f"{key}: quadrature"
        for rank in (1, n_classes - 1):
            _check_probabilities(link, random_latent(n_classes, seed, rank=rank), f"{key}, rank {rank}")
        single = LatentGaussian(latent.mean.float(), random_latent(n_classes, seed, rank=1).covariance.float())
        _check_probabilities(link, single, f"{key}, rank 1 in float32")
        _check_symmetry(link, n_classes, key)
        _check_extremes(link, n_classes, key)
    _check_mixture(LINKS[key](standard_normals(64, 7, seed=0)), key)


def _check_symmetry(link: Any, n_classes: int, key: str) -> None:
    """Classes that nothing tells apart are equally probable, however wide the logits and whatever they share."""
    for size, common in itertools.product((1e-3, 1.0, 1e2), (0.0, 1.0, 1e3)):
        covariance = size * torch.eye(n_classes).double() + common
        p = link.mean(LatentGaussian(torch.full((2, n_classes), 3.0).double(), covariance.expand(2, -1, -1)))
        close(p, torch.full_like(p, 1 / n_classes), SAMPLING_ERROR.get(key, 1e-10), f"{key}: symmetric classes")
    certain = LatentGaussian(random_latent(n_classes, 0).mean, torch.full((6, n_classes, n_classes), 50.0).double())
    close(link.mean(certain), certain.mean.softmax(1), 1e-10, f"{key}: no variance but a common one")


def _check_extremes(link: Any, n_classes: int, key: str) -> None:
    """Logits of +-60 and covariances of any size and rank, in both precisions: probabilities all the same."""
    mean = torch.tensor([[60.0, -60.0, 0.0], [0.0, 60.0, 60.0], [-60.0, -60.0, 60.0]]).double()[:, :n_classes]
    for size, rank in itertools.product(EXTREMES, (1, n_classes)):
        covariance = size * random_latent(n_classes, 3, n=len(mean), rank=rank).covariance
        for dtype in (torch.float32, torch.float64):
            extreme = LatentGaussian(mean.to(dtype), covariance.to(dtype))
            _check_probabilities(link, extreme, f"{key}, logits of 60, covariance of {size:g}, rank {rank}, {dtype}")


def _check_mixture(link: Any, key: str) -> None:
    """Seven classes: rows of any rank and size beside each other, indefinite by rounding, answer as they do alone."""
    latents = [random_latent(7, seed=rank, n=len(EXTREMES), rank=rank) for rank in (1, 2, 6, 7)]
    sizes = torch.tensor(EXTREMES, dtype=torch.float64)[:, None, None]
    mean = torch.cat([latent.mean for latent in latents])
    covariance = torch.cat([sizes * latent.covariance for latent in latents])
    covariance = covariance - 1e-16 * covariance.diagonal(dim1=1, dim2=2).amax(1)[:, None, None] * torch.eye(7)
    mixed = LatentGaussian(mean, covariance)
    _check_probabilities(link, mixed, f"{key}, covariances of any rank and size")
    for i in range(0, len(mean), 3):
        close(link.mean(_rows(mixed, [i])), link.mean(mixed)[[i]], 1e-12, f"{key}: row {i} alone")


def _pair(latent: LatentGaussian) -> tuple[Tensor, Tensor]:
    return latent.mean, latent.covariance


def _rows(latent: LatentGaussian, rows: list[int]) -> LatentGaussian:
    return LatentGaussian(latent.mean[rows], latent.covariance[rows])


def _check_probabilities(link: Any, latent: LatentGaussian, what: str) -> None:
    p, variance = link.mean(latent), link.variance(latent)
    rounding = 100 * torch.finfo(p.dtype).eps
    assert p.shape == latent.mean.shape and bool((p >= 0).all()) and bool(torch.isfinite(p).all()), what
    assert float((p.sum(1) - 1).abs().max()) <= rounding, f"{what}: rows sum to one"
    assert variance.shape == p.shape and bool((variance >= 0).all()) and bool((variance <= 0.25).all()), what


def _simulated_variance(latent: LatentGaussian) -> Tensor:
    """Variance of softmax(f)_c by 200,000 independent draws: relative standard error below one per cent."""
    generator = torch.Generator().manual_seed(11)
    factor = torch.linalg.cholesky(latent.covariance)
    rows = []
    for mean, root in zip(latent.mean, factor, strict=True):
        z = torch.randn(200_000, len(mean), generator=generator, dtype=torch.float64)
        rows.append((mean + z @ root.mT).softmax(1).var(0))
    return torch.stack(rows)
