"""Contract of every link."""

from __future__ import annotations

import functools
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
"""Largest error of a probability for logits with variances up to 10. The probit reaches .10, and .01 with two classes.

The oracle's error is 1e-4. test_links.py checks the quadrature link to 1e-8 with three times as many nodes.
"""


DIRICHLET = {"bridge", "bridge_norm"}
"""Links with the variance of a Dirichlet distribution, which test_links.py checks."""


EXTREMES = (0.0, 1e-300, 1e-12, 1.0, 1e4, 1e8, 1e30)
"""Sizes of covariances."""


def random_latent(n_classes: int, seed: int, n: int = 6, rank: int | None = None) -> LatentGaussian:
    """Random Gaussians over logits; ``rank`` limits the rank of the covariances."""
    generator = torch.Generator().manual_seed(seed)
    mean = 1.5 * torch.randn(n, n_classes, generator=generator, dtype=torch.float64)
    root = torch.randn(n, n_classes, rank or n_classes, generator=generator, dtype=torch.float64)
    return LatentGaussian(mean, root @ root.mT)


def check_link(key: str) -> None:
    """Probabilities are invariant under a common shift of all logits and close to the integral they approximate."""
    exact = SAMPLING_ERROR.get(key, 1e-12)
    for n_classes, seed in itertools.product((2, 3), (0, 1)):
        link = LINKS[key](standard_normals(8192, n_classes, seed=seed))
        latent = random_latent(n_classes, seed)
        p, variance = link.mean(latent), link.variance(latent)
        _check_probabilities(link, latent, f"{key}, {n_classes} classes")
        shifted = LatentGaussian(latent.mean + 7.5, latent.covariance)
        close(link.mean(shifted), p, 1e-12, f"{key}: the same constant added to all logits")
        wobbly = LatentGaussian(latent.mean, latent.covariance + 0.8)
        close(link.mean(wobbly), p, exact, f"{key}: a random constant added to all logits")
        order = torch.randperm(n_classes, generator=torch.Generator().manual_seed(seed + 1)).flip(0)
        permuted = LatentGaussian(latent.mean[:, order], latent.covariance[:, order][:, :, order])
        close(link.mean(permuted), p[:, order], exact, f"{key}: classes in another order")
        certain = LatentGaussian(latent.mean, torch.zeros_like(latent.covariance))
        close(link.mean(certain), latent.mean.softmax(1), 1e-12, f"{key}: no covariance")
        assert float(link.variance(certain).abs().max()) < 1e-25, f"{key}: variance without covariance"
        close(link.mean(_rows(latent, [3, 1])), p[[3, 1]], 1e-12, f"{key}: rows in another order")
        if key not in DIRICHLET:
            close(variance, _simulated_variance(n_classes, seed), 0.03, f"{key}: variance")
        if key in QUADRATURE_ERROR:
            assert float((p - _integrals(n_classes, seed)).abs().max()) <= QUADRATURE_ERROR[key], f"{key}: quadrature"
        for rank in (1, n_classes - 1):
            _check_probabilities(link, random_latent(n_classes, seed, rank=rank), f"{key}, rank {rank}")
        single = LatentGaussian(latent.mean.float(), random_latent(n_classes, seed, rank=1).covariance.float())
        _check_probabilities(link, single, f"{key}, rank 1 in float32")
        if seed == 0:  # their inputs do not depend on the seed
            _check_symmetry(link, n_classes, key)
            _check_extremes(link, n_classes, key)
    _check_mixture(LINKS[key](standard_normals(64, 7, seed=0)), key)


def _check_symmetry(link: Any, n_classes: int, key: str) -> None:
    """Exchangeable classes are equally probable for any variance and any common variance of the logits."""
    for size, common in itertools.product((1e-3, 1.0, 1e2), (0.0, 1.0, 1e3)):
        covariance = size * torch.eye(n_classes).double() + common
        p = link.mean(LatentGaussian(torch.full((2, n_classes), 3.0).double(), covariance.expand(2, -1, -1)))
        close(p, torch.full_like(p, 1 / n_classes), SAMPLING_ERROR.get(key, 1e-10), f"{key}: symmetric classes")
    certain = LatentGaussian(random_latent(n_classes, 0).mean, torch.full((6, n_classes, n_classes), 50.0).double())
    close(link.mean(certain), certain.mean.softmax(1), 1e-10, f"{key}: no variance but a common one")


def _check_extremes(link: Any, n_classes: int, key: str) -> None:
    """Logits of +-60 and covariances of any size and rank give valid probabilities in both precisions."""
    mean = torch.tensor([[60.0, -60.0, 0.0], [0.0, 60.0, 60.0], [-60.0, -60.0, 60.0]]).double()[:, :n_classes]
    for size, rank in itertools.product(EXTREMES, (1, n_classes)):
        covariance = size * random_latent(n_classes, 3, n=len(mean), rank=rank).covariance
        for dtype in (torch.float32, torch.float64):
            extreme = LatentGaussian(mean.to(dtype), covariance.to(dtype))
            _check_probabilities(link, extreme, f"{key}, logits of 60, covariance of {size:g}, rank {rank}, {dtype}")


def _check_mixture(link: Any, key: str) -> None:
    """Seven classes: the result of a row does not depend on the other rows; ranks and sizes vary.

    Rounding makes the covariances slightly indefinite.
    """
    latents = [random_latent(7, seed=rank, n=len(EXTREMES), rank=rank) for rank in (1, 2, 6, 7)]
    sizes = torch.tensor(EXTREMES, dtype=torch.float64)[:, None, None]
    mean = torch.cat([latent.mean for latent in latents])
    covariance = torch.cat([sizes * latent.covariance for latent in latents])
    covariance = covariance - 1e-16 * covariance.diagonal(dim1=1, dim2=2).amax(1)[:, None, None] * torch.eye(7)
    mixed = LatentGaussian(mean, covariance)
    _check_probabilities(link, mixed, f"{key}, covariances of any rank and size")
    together = link.mean(mixed)
    for i in range(0, len(mean), 3):
        close(link.mean(_rows(mixed, [i])), together[[i]], 1e-12, f"{key}: row {i} alone")


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


@functools.cache
def _integrals(n_classes: int, seed: int) -> Tensor:
    """E[softmax(f)] of the random latents by the oracle."""
    rows = zip(*_pair(random_latent(n_classes, seed)), strict=True)
    return torch.stack([oracles.softmax_normal_expectation(m, c) for m, c in rows])


@functools.cache
def _simulated_variance(n_classes: int, seed: int) -> Tensor:
    """Variance of softmax(f)_c by 200,000 independent draws; the relative standard error is below one per cent."""
    latent, generator = random_latent(n_classes, seed), torch.Generator().manual_seed(11)
    factor = torch.linalg.cholesky(latent.covariance)
    rows = []
    for mean, root in zip(latent.mean, factor, strict=True):
        z = torch.randn(200_000, len(mean), generator=generator, dtype=torch.float64)
        rows.append((mean + z @ root.mT).softmax(1).var(0))
    return torch.stack(rows)
