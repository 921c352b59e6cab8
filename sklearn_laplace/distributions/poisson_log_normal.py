r"""Poisson distribution with a log-normal rate, with the interface of frozen ``scipy.stats`` distributions.

.. math:: p(k) = \int \mathrm{Poisson}(k \mid e^g)\, N(g \mid m, v)\, dg

is the Poisson–log-normal mixture (Aitchison & Ho 1989). Its moments have a closed form; its probabilities do not:

- :math:`\log p(k)` uses Gauss–Hermite quadrature around the peak of the integrand (Naylor & Smith 1982). The integrand
  is log-concave in g. Its peak solves :math:`k - e^g = (g - m)/v`, and is given by Wright's ω function.
- The cumulative probability is :math:`\int P(G_{k+1} > e^g)\, N(g \mid m, v)\, dg`, where :math:`G_{k+1}` has a gamma
  distribution of shape k + 1. (A Poisson process has at most k events by time λ if event k + 1 comes after λ.) The
  integral uses the trapezoidal rule. If the normal is wide compared with :math:`\log G_{k+1}`, an Edgeworth series
  with the first three cumulants of :math:`\log G_{k+1}` is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from scipy.special import gammaincc, gammaln, logsumexp, ndtr, ndtri, polygamma, wrightomega
from sklearn.utils import check_random_state

from .interface import PredictiveDistribution

N_NODES = 64
"""Number of Gauss–Hermite nodes for a probability. Relative errors are below 1e-7 for v ≤ 2, and 1e-5 for v = 10."""
STEP, REACH = 0.125, 9.0
"""Spacing and range of the trapezoidal rule for a cumulative probability, in standard deviations of the log rate."""
WIDE = 100.0
"""Value of v (k + 1) above which the Edgeworth series replaces the trapezoidal rule.

For larger values, the integrand would drop from one to zero between two nodes.
"""
LEAST_VARIANCE = 1e-12
"""Lower bound on v."""
RESOLUTION = 1e-12
"""Relative tolerance of quantiles too large to be resolved to one count."""
LARGEST = 1e300
"""Largest quantile returned; larger ones are set to this value."""
LARGE_RATE = 1e15
"""Rate above which a Poisson draw is replaced by the rounded rate."""

hermite = cache(np.polynomial.hermite.hermgauss)
"""Nodes and weights of the Gauss–Hermite rule with the given number of nodes, cached."""


@dataclass(frozen=True)
class PoissonLogNormal(PredictiveDistribution):
    """Distribution of independent Poisson counts with log-normal rates.

    All statistics have the shape of the parameters.

    Parameters
    ----------
    log_mean, log_variance : ndarray of equal shape
        Mean m and variance v of the log rate.

    Examples
    --------
    >>> distribution = PoissonLogNormal(np.array([0.0, 2.0]), np.array([0.1, 0.5]))
    >>> distribution.mean().round(3)
    array([1.051, 9.488])
    >>> distribution.ppf(0.9)
    array([ 2., 19.])
    >>> distribution.cdf([2, 19]).round(3)
    array([0.901, 0.904])
    """

    log_mean: np.ndarray
    log_variance: np.ndarray

    @cached_property
    def _parameters(self) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = np.broadcast_arrays(*(np.asarray(v, dtype=float) for v in (self.log_mean, self.log_variance)))
        return mean, np.maximum(variance, LEAST_VARIANCE)

    def mean(self) -> np.ndarray:
        """Mean of each count, exp(m + v/2)."""
        mean, variance = self._parameters
        with np.errstate(over="ignore"):
            return np.exp(mean + 0.5 * variance)

    def var(self) -> np.ndarray:
        """Variance of each count: the variance of its rate plus the mean."""
        _, variance = self._parameters
        with np.errstate(over="ignore"):
            return self.mean() + np.expm1(variance) * self.mean() ** 2

    def logpmf(self, k: Any) -> np.ndarray:
        """Log probability of counts k, in nats; k broadcasts with the parameters.

        Non-integer k use Γ(k + 1) for k!; negative k have log probability −inf.
        """
        k, mean, variance = np.broadcast_arrays(np.asarray(k, dtype=float), *self._parameters)
        counts = np.where(k >= 0, k, 0.0)
        exponent = np.log(variance) + mean + variance * counts
        with np.errstate(divide="ignore", under="ignore"):
            peak = np.log(wrightomega(exponent)) - np.log(variance)
        peak = np.where(exponent < -30, mean + variance * counts, peak)  # ω(z) is e^z there
        width = 1 / np.sqrt(np.exp(peak) + 1 / variance)
        nodes, weights = hermite(N_NODES)
        g = peak[..., None] + np.sqrt(2) * width[..., None] * nodes
        with np.errstate(over="ignore"):
            inner = counts[..., None] * g - np.exp(g) - (g - mean[..., None]) ** 2 / (2 * variance[..., None])
        total = logsumexp(inner + nodes**2 + np.log(weights), axis=-1)
        log_probability = total + np.log(width) - gammaln(counts + 1) - 0.5 * np.log(np.pi * variance)
        return np.where(k >= 0, log_probability, -np.inf)

    logpdf = logpmf  # type: ignore[assignment]  # scipy calls its argument k

    def pmf(self, k: Any) -> np.ndarray:
        """Probability of counts k."""
        return np.exp(self.logpmf(k))

    def cdf(self, x: Any) -> np.ndarray:
        """Probability that a count is at most x, accurate to about 1e-5; x broadcasts with the parameters."""
        x, mean, variance = np.broadcast_arrays(np.asarray(x, dtype=float), *self._parameters)
        shape = np.floor(np.clip(x, 0.0, np.finfo(float).max)) + 1
        probability = np.empty(x.shape)
        wide = variance * shape > WIDE
        s = shape[wide]
        probability[wide] = edgeworth(polygamma(0, s) - mean[wide], variance[wide] + polygamma(1, s), polygamma(2, s))
        z = np.arange(-REACH, REACH + STEP / 2, STEP)
        weights = np.exp(-0.5 * z**2)
        with np.errstate(over="ignore"):
            rates = np.exp(mean[~wide][:, None] + np.sqrt(variance[~wide])[:, None] * z)
        probability[~wide] = gammaincc(shape[~wide][:, None], rates) @ (weights / weights.sum())
        return np.where(x >= 0, probability, 0.0)

    def ppf(self, q: Any) -> np.ndarray:
        """Smallest count whose cumulative probability is at least q, for q in (0, 1); q broadcasts."""
        q, mean, variance = np.broadcast_arrays(np.asarray(q, dtype=float), *self._parameters)
        flat = self._flat(mean, variance)
        level = q.ravel()
        with np.errstate(over="ignore"):
            high = np.ceil(np.exp(mean + np.sqrt(variance) * np.maximum(ndtri(q), 0))).ravel()
        low = np.full_like(high, -1.0)
        high = np.minimum(high, LARGEST)
        while (below := (flat.cdf(high) < level) & (high < LARGEST)).any():
            low, high = np.where(below, high, low), np.where(below, np.minimum(2 * high + 1, LARGEST), high)
        while ((high - low > 1) & (high - low > RESOLUTION * high)).any():
            middle = np.floor((low + high) / 2)
            reached = flat.cdf(middle) >= level
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        return high.reshape(q.shape)

    def _frailty(self, generator: Any, shape: Any) -> Any:
        """Factor with mean 1 that multiplies the rates; constant here."""
        return 1.0

    def _flat(self, mean: np.ndarray, variance: np.ndarray) -> PoissonLogNormal:
        """Distribution with the flattened parameters."""
        return PoissonLogNormal(mean.ravel(), variance.ravel())

    def rvs(self, size: Any = None, random_state: Any = None) -> np.ndarray:
        """Independent random draws, as in :meth:`NormalMixture.rvs`. ``size`` ends with the shape of the parameters."""
        mean, variance = self._parameters
        shape = mean.shape if size is None else size
        generator: Any = np.random.default_rng() if random_state is None else check_random_state(random_state)
        with np.errstate(over="ignore"):
            rates = np.exp(mean + np.sqrt(variance) * generator.normal(size=shape)) * self._frailty(generator, shape)
        return np.where(rates < LARGE_RATE, generator.poisson(np.minimum(rates, LARGE_RATE)), np.rint(rates))


def edgeworth(center: np.ndarray, variance: np.ndarray, third: np.ndarray) -> np.ndarray:
    """Probability that a variable with these first three cumulants is positive, by its Edgeworth series."""
    spread = np.sqrt(variance)
    t = np.clip(center / spread, -40.0, 40.0)  # beyond, the probability rounds to 0 or 1
    skew = -third / spread**3
    density = np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi)
    return np.clip(ndtr(t) - density * (t**2 - 1) * skew / 6, 0.0, 1.0)
