"""Expectations under Gaussians by quadrature, and scores in closed form."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import scipy.integrate
import scipy.optimize
import scipy.special
import scipy.stats
import torch
from torch import Tensor

from .autodiff import OVERDISPERSION
from .functions import _vector
from .posteriors import _root


def softmax_normal_expectation(mean: Tensor, cov: Tensor, n_nodes: int = 64) -> Tensor:
    r"""E[softmax(f)], f ~ N(mean, cov), by tensor Gauss-Hermite quadrature; C at most 3.

    With :math:`cov = R R^\top` the integral is
    :math:`\pi^{-C/2}\sum_k w_k\,softmax(mean + \sqrt2 R z_k)`.

    Parameters
    ----------
    mean : Tensor of shape (C,)
    cov : Tensor of shape (C, C)
        May be rank-deficient.
    n_nodes : int
        Per dimension. The error falls with the nodes and grows with the variance: compare two
        numbers of nodes before trusting a digit.

    Returns
    -------
    Tensor of shape (C,)
    """
    C = len(mean)
    if C > 3:
        raise ValueError(f"{n_nodes}**{C} nodes; use softmax_normal_expectation_mc for C > 3")
    nodes, node_weights = np.polynomial.hermite.hermgauss(n_nodes)
    z = torch.cartesian_prod(*[torch.from_numpy(nodes)] * C).reshape(-1, C)
    w = torch.cartesian_prod(*[torch.from_numpy(node_weights)] * C).reshape(-1, C).prod(1)
    f = mean + math.sqrt(2) * z @ _root(cov).T
    return (w[:, None] * torch.softmax(f, 1)).sum(0) / math.pi ** (C / 2)


def softmax_normal_expectation_mc(mean: Tensor, cov: Tensor, n_draws: int = 2**15, seed: int = 0) -> Tensor:
    """E[softmax(f)], f ~ N(mean, cov), by quasi-random draws: scrambled Sobol points; any C.

    The error is far below the standard error of independent draws, which is at most ``0.5 / sqrt(n_draws)`` per class.

    Returns
    -------
    Tensor of shape (C,)
    """
    points = torch.quasirandom.SobolEngine(len(mean), scramble=True, seed=seed).draw(n_draws, dtype=torch.float64)
    return torch.softmax(mean + torch.special.ndtri(points) @ _root(cov).T, 1).mean(0)


def poisson_lognormal(mean: float, variance: float, k: int, exposure: float = 1.0) -> tuple[float, float]:
    """Log probability of k and probability of at most k, for a Poisson count whose log rate is N(mean, variance).

    ``exposure`` t is the time in which k events occur; the count has the mean t times the rate. Both integrals use a
    grid of a hundred thousand points: the first around the peak of the integrand, the second over twelve standard
    deviations.
    """

    def exponent(g: np.ndarray) -> np.ndarray:
        return k * (g + math.log(exposure)) - exposure * np.exp(np.minimum(g, 700.0)) - (g - mean) ** 2 / (2 * variance)

    coarse = np.linspace(mean - 40 * math.sqrt(variance) - 60, mean + 40 * math.sqrt(variance) + 60, 200_001)
    peak = coarse[exponent(coarse).argmax()]
    width = 1 / math.sqrt(exposure * math.exp(peak) + 1 / variance)
    g = np.linspace(peak - 60 * width - 40 * (variance > 5), peak + 60 * width, 100_001)
    values = exponent(g)
    integral = values.max() + np.log(scipy.integrate.trapezoid(np.exp(values - values.max()), g))
    constants = scipy.special.gammaln(k + 1) + 0.5 * math.log(2 * math.pi * variance)
    z = np.linspace(-12, 12, 100_001)
    weight = scipy.stats.norm.pdf(z)
    below = scipy.stats.poisson.cdf(k, exposure * np.exp(np.minimum(mean + math.sqrt(variance) * z, 700.0)))
    return float(integral - constants), float((below * weight).sum() / weight.sum())


def negative_binomial_lognormal(mean: float, variance: float, alpha: float, k: int) -> tuple[float, float]:
    """As `poisson_lognormal`, for a negative binomial count of variance μ + α μ² whose log mean is N(mean, variance).

    Both integrals use a grid over the log mean, with points around the peak of the first integrand.
    """
    size = 1 / alpha

    def log_mass(g: np.ndarray) -> np.ndarray:
        t = g + math.log(alpha)
        constants = scipy.special.gammaln(k + size) - scipy.special.gammaln(size) - scipy.special.gammaln(k + 1)
        return constants - k * np.logaddexp(0, -t) - size * np.logaddexp(0, t)

    def exponent(g: np.ndarray) -> np.ndarray:
        return log_mass(g) - (g - mean) ** 2 / (2 * variance)

    reach = 40 * math.sqrt(variance) + 60
    coarse = np.linspace(mean - reach, mean + reach, 200_001)
    values = exponent(coarse)
    inside = coarse[values > values.max() - 60]
    g = np.linspace(inside[0], inside[-1], 100_001)
    values = exponent(g)
    integral = values.max() + np.log(scipy.integrate.trapezoid(np.exp(values - values.max()), g))
    z = np.linspace(-12, 12, 100_001)
    weight = scipy.stats.norm.pdf(z)
    odds = np.exp(np.minimum(mean + math.sqrt(variance) * z, 700.0) + math.log(alpha))
    below = scipy.special.betainc(size, k + 1, 1 / (1 + odds))
    return float(integral - 0.5 * math.log(2 * math.pi * variance)), float((below * weight).sum() / weight.sum())


def moderation(q: float) -> float:
    r"""The constant k_q of the link "moderated" for q ≥ 2 plausible classes; q need not be an integer.

    .. math:: k_q = \frac{1}{2 e_q^2} \Big(\frac{q - 1}{q}\Big)^2, \qquad e_q = \int z\, q\, \phi(z) \Phi(z)^{q-1} dz

    where e_q is the expected maximum of q standard normals.
    """
    largest = scipy.integrate.quad(
        lambda z: z * q * math.exp((q - 1) * scipy.special.log_ndtr(z) - z**2 / 2), -12, 12, limit=400
    )[0] / math.sqrt(2 * math.pi)
    return ((q - 1) / q) ** 2 / (2 * largest**2)


def moderated_softmax(mean: Tensor, cov: Tensor) -> Tensor:
    """`pairwise_probit` with the constant `moderation(q)`, where q is the effective number of classes of its result."""
    first = pairwise_probit(mean, cov)
    return pairwise_probit(mean, cov, moderation(max(2.0, float(first.sqrt().sum()) ** 2)))


def pairwise_probit(mean: Tensor, cov: Tensor, constant: float = math.pi / 8) -> Tensor:
    r"""Probit approximation of E[softmax(f)] on pairwise differences, one row.

    .. math:: p_c \propto 1 / \sum_j \exp\left(-\frac{f_c - f_j}
              {\sqrt{1 + k Var(f_c - f_j)}}\right)

    Parameters
    ----------
    mean : Tensor of shape (C,)
    cov : Tensor of shape (C, C)
    constant : float, default=π/8
        k.

    Returns
    -------
    Tensor of shape (C,)
    """
    C = len(mean)
    unnormalised = torch.zeros(C, dtype=torch.float64)
    for c in range(C):
        total = 0.0
        for j in range(C):
            difference = float(mean[c] - mean[j])
            variance = float(cov[c, c] + cov[j, j] - 2 * cov[c, j])
            total += math.exp(-difference / math.sqrt(1 + constant * variance))
        unnormalised[c] = 1 / total
    return unnormalised / unnormalised.sum()


def mixture_moments(
    kind: str, mean: Tensor, variance: Tensor, noise_variance: float = 1.0, n_nodes: int = 100
) -> tuple[Tensor, Tensor, Tensor]:
    """Moments of a numeric target whose output is normal, by Gauss-Hermite quadrature of the law of total variance.

    Parameters
    ----------
    kind : {"gaussian", "poisson", "negative_binomial"}
    mean, variance : Tensors of one shape
        Of the output.
    noise_variance : float
        Gaussian only.

    Returns
    -------
    mean, epistemic, aleatoric : Tensors of that shape
        E[E[y|f]], Var[E[y|f]], E[Var[y|f]].
    """
    nodes, node_weights = (torch.from_numpy(v) for v in np.polynomial.hermite.hermgauss(n_nodes))
    f = mean[..., None] + (2 * variance).sqrt()[..., None] * nodes
    weight = node_weights / math.sqrt(math.pi)
    rate = f.exp()
    conditional, spread = {
        "gaussian": (f, torch.full_like(f, noise_variance)),
        "poisson": (rate, rate),
        "negative_binomial": (rate, rate + OVERDISPERSION * rate**2),
    }[kind]
    expected = (conditional * weight).sum(-1)
    return expected, ((conditional - expected[..., None]) ** 2 * weight).sum(-1), (spread * weight).sum(-1)


def gaussian_total_std(covariance: Tensor, noise_variance: float | Tensor) -> Tensor:
    """Predictive standard deviation, sqrt(epistemic variance + noise variance).

    Parameters
    ----------
    covariance : Tensor of shape (n, C, C)
        Epistemic, as from `glm_covariance`.
    noise_variance : float or Tensor of shape (C,)

    Returns
    -------
    Tensor of shape (n, C)
    """
    return torch.sqrt(torch.diagonal(covariance, dim1=1, dim2=2) + _vector(noise_variance))


def crps_gaussian(y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    r"""Continuous ranked probability score of N(mean, std^2) at y, elementwise, units of y.

    :math:`std\,[z(2\Phi(z) - 1) + 2\varphi(z) - 1/\sqrt\pi]` with z = (y - mean) / std; lower is
    better (Gneiting & Raftery 2007, eq. 21, sign changed).
    """
    z = (y - mean) / std
    density = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    two_sided = torch.erf(z / math.sqrt(2))  # 2 Phi(z) - 1
    return std * (z * two_sided + 2 * density - 1 / math.sqrt(math.pi))


def coverage(y: Tensor, lower: Tensor, upper: Tensor) -> float:
    """Fraction of all entries of y inside the closed interval [lower, upper]."""
    return float(((lower <= y) & (y <= upper)).double().mean())


def entropy_parts(means: Tensor, covariances: Tensor, weights: Tensor) -> tuple[float, float]:
    r"""Entropy of the average and average entropy of softmax(f), f a mixture of K Gaussians over C ≤ 3 logits; nats.

    By the trapezoid rule on ±9 standard deviations along the principal directions of the centred covariances.

    Parameters
    ----------
    means : Tensor of shape (K, C)
    covariances : Tensor of shape (K, C, C)
    weights : Tensor of shape (K,)
    """
    C = means.shape[1]
    z = torch.linspace(-9, 9, 721, dtype=torch.float64)
    grid = torch.cartesian_prod(*[z] * (C - 1)).reshape(-1, C - 1)
    density = (-grid.square().sum(1) / 2).softmax(0)
    centre = torch.eye(C, dtype=torch.float64) - 1 / C
    average, entropy = torch.zeros(C, dtype=torch.float64), 0.0
    for mean, covariance, weight in zip(means, covariances, weights, strict=True):
        values, vectors = torch.linalg.eigh(centre @ covariance @ centre)
        root = vectors[:, 1:] * values[1:].clamp_min(0).sqrt()
        p = (mean + grid @ root.mT).softmax(1)
        average = average + weight * (density @ p)
        entropy += float(weight * (density @ -(p * p.log()).sum(1)))
    return float(-(average * average.log()).sum()), entropy


def pieces(values: np.ndarray, edges: Sequence[float]) -> np.ndarray:
    """Piecewise-linear encoding of a column (n,) as shares of its bins (n, K), case by case.

    Gorishniy, Rubachev & Babenko (2022), eq. 1. The first and last bin extrapolate linearly.
    """
    shares = np.empty((len(values), len(edges) - 1))
    for n, x in enumerate(values):
        for k, (low, high) in enumerate(itertools.pairwise(edges)):
            share = (x - low) / (high - low)
            if x < low and k > 0:
                share = 0.0
            elif x >= high and k < len(edges) - 2:
                share = 1.0
            shares[n, k] = share
    return shares


def log_density_of_error(
    error: float, variance: float, noise: float, log_variance: float, factor: float, spread: float
) -> float:
    """Log density of an error with log-normal noise variance plus ½ log 2π, by adaptive quadrature."""
    deviation = math.sqrt(log_variance + spread**2)

    def integrand(z: float) -> float:
        total = factor * (variance + noise * math.exp(z * deviation - spread**2 / 2))
        return math.exp(-0.5 * (z**2 + error**2 / total)) / math.sqrt(2 * math.pi * total)

    value, _ = scipy.integrate.quad(integrand, -12, 12, epsabs=1e-14, epsrel=1e-12, limit=500)
    return math.log(value)


def moments_of_inverse(inverse, ends, mean: float, std: float) -> tuple[float, float]:
    r"""Mean and variance of :math:`h(Z)` for a function h and :math:`Z \sim N(m, s^2)`, by adaptive quadrature.

    Parameters
    ----------
    inverse : callable
        h, of an array.
    ends : sequence of float
        Points where h has a kink; infinite ones are ignored.
    mean, std : float
        m and s.
    """
    start, end = mean - 12 * std, mean + 12 * std
    points = [point for point in ends if start < point < end] or None

    def integral(power: int, centre: float) -> float:
        def integrand(z: float) -> float:
            return float((inverse(np.asarray(z)) - centre) ** power * scipy.stats.norm.pdf(z, mean, std))

        return scipy.integrate.quad(integrand, start, end, points=points, epsabs=0, epsrel=1e-11, limit=400)[0]

    centre = integral(1, 0.0)
    return centre, integral(2, centre)


def crps_by_integration(cdf, y: float, start: float, end: float) -> float:
    r"""CRPS :math:`\int (F(t) - 1[t \ge y])^2 dt` over [start, end], which holds y and all the mass of F."""
    below = scipy.integrate.quad(lambda t: cdf(t) ** 2, start, y, limit=400)[0]
    return below + scipy.integrate.quad(lambda t: (1 - cdf(t)) ** 2, y, end, limit=400)[0]
