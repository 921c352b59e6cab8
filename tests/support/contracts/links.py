"""Contract of every link."""

from __future__ import annotations

import itertools
from typing import Any

import oracles
import torch
from torch import Tensor

from sklearn_laplace.laplace.latent import LatentGaussian
from sklearn_laplace.laplace.links import LINKS
from sklearn_laplace.laplace.links._base import standard_normals

from .examples import close
from .predictives import SAMPLING_ERROR

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
