"""Contract of every likelihood."""

from __future__ import annotations

import itertools

import oracles
import torch
from torch import Tensor

from sklearn_laplace.laplace.latent import LatentGaussian
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.likelihoods._base import Likelihood, with_noise
from sklearn_laplace.laplace.links import MC
from sklearn_laplace.laplace.links._base import standard_normals

from .examples import close, n_outputs_of, random_noise, random_rows
from .links import _pair, random_latent


def check_likelihood(key: str) -> None:
    """Residual, Hessian factor, normaliser and draws agree with the log density, also at large outputs."""
    likelihood = LIKELIHOODS[key]()
    for n_outputs, seed in itertools.product(sorted({n_outputs_of(key, n) for n in (2, 3, 5)}), (0, 1)):
        f = 3 * torch.randn(11, n_outputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        y = random_rows(key, 11, 2, n_outputs, seed)[1]
        assert float(y.min()) >= likelihood.least_target
        for noise in (None, random_noise(11, n_outputs, seed)) if likelihood.takes_known_noise else (None,):
            _check_derivatives(key, likelihood, f, y, noise)
            _check_differences(key, likelihood, f, with_noise(y, noise))
            if seed == 0:
                _check_draws(key, likelihood, f[:4] / 3, None if noise is None else with_noise(y, noise)[:4])
    _check_extreme_outputs(key, likelihood)
    _check_moments(key, likelihood)


def _check_derivatives(key: str, likelihood: Likelihood, f: Tensor, y: Tensor, noise: Tensor | None) -> None:
    """Residual, factor and log density against autodiff of the density, with known noise variances or without."""
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
    """Central differences of nll and residual; their relative truncation and rounding error is about 1e-9."""
    step, mean = 1e-5, oracles.expected_targets(key, f, y)
    slopes, bends = [], []
    for shift in step * torch.eye(f.shape[1], dtype=torch.float64):
        slopes.append((likelihood.nll(f + shift, y) - likelihood.nll(f - shift, y)) / (2 * step))
        bends.append((likelihood.residual(f + shift, mean) - likelihood.residual(f - shift, mean)) / (2 * step))
    S = likelihood.hessian_factor(f, y)
    close(likelihood.residual(f, y), torch.stack(slopes, 1), 1e-8, f"{key}: residual by differences")
    close(S @ S.mT, torch.stack(bends, 1), 1e-8, f"{key}: S S^T by differences")


def _check_draws(key: str, likelihood: Likelihood, f: Tensor, observed: Tensor | None) -> None:
    """Residuals at targets drawn from the model have mean zero and covariance S S^T (the Fisher information).

    Tolerance: six standard errors of 20,000 draws, estimated from the draws themselves.
    """
    generator = torch.Generator().manual_seed(12)
    factor = likelihood.hessian_factor(f, observed)
    for i, (row, S) in enumerate(zip(f, factor, strict=True)):
        uniforms = torch.rand(20_000, len(row), generator=generator, dtype=torch.float64)
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
    """Outputs of +-60 in float32: finite results, correct to single precision."""
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
        if name == "nll":  # nll leaves out the normaliser, which is constant
            expected = expected - likelihood.log_normaliser(1.0, n_outputs)
        close(ours, expected, 1e-6, f"{key}: {name} of outputs of +-60")
    drawn = likelihood.sample(f, torch.full(f.shape, 0.7, dtype=torch.float64))
    assert bool(torch.isfinite(drawn).all()) and drawn.shape == y.shape, f"{key}: draws at outputs of +-60"


def _check_moments(key: str, likelihood: Likelihood) -> None:
    """Predictive moments of a target against quadrature; variances are positive and add up to the total variance."""
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
        close(predictive.mean, expected, 5e-3, f"{key}: mean")  # sampling error of 4096 quasi-random points
        return
    variance = problem.covariance.diagonal(dim1=1, dim2=2)
    noise = 0.4 if likelihood.has_dispersion else 1.0
    centre = problem.mean if likelihood.additive_noise else problem.mean - 0.5 * variance  # see Poisson: mean e^m
    mean, epistemic, aleatoric = oracles.mixture_moments(key, centre, variance, noise)
    close(predictive.mean, mean, 1e-12, f"{key}: mean")
    close(predictive.epistemic_variance, epistemic, 1e-12, f"{key}: epistemic variance")
    close(predictive.aleatoric_variance, aleatoric, 1e-12, f"{key}: aleatoric variance")
