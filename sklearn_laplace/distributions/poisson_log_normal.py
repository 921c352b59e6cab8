r"""Counts whose log rate is normal, as a frozen distribution in the manner of ``scipy.stats``.

.. math:: p(k) = \int \mathrm{Poisson}(k \mid e^g)\, N(g \mid m, v)\, dg

is the Poisson–log-normal mixture (Aitchison & Ho 1989). It has moments in closed form and probabilities in none:

- :math:`\log p(k)` by Gauss–Hermite quadrature around the peak of the integrand (Naylor & Smith 1982), which is
  log-concave in g and has its peak where :math:`k - e^g = (g - m)/v`, in closed form by Wright's ω function;
- the cumulated probability as :math:`\int P(G_{k+1} > e^g)\, N(g \mid m, v)\, dg` with :math:`G_{k+1}` of gamma
  distribution (a Poisson process has at most k events by time λ where the (k+1)-th comes later), by the trapezoidal
  rule; and where the mixture is wide against :math:`\log G_{k+1}`, from that variable's first three cumulants instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import gammaincc, gammaln, logsumexp, ndtr, ndtri, polygamma, wrightomega
from sklearn.utils import check_random_state

N_NODES = 64
"""Gauss–Hermite nodes of a probability: relative errors below 1e-7 for v up to 2, 1e-5 for v = 10."""
STEP, REACH = 0.125, 9.0
"""Trapezoidal rule of a cumulated probability: spacing and range in standard deviations."""
WIDE = 100.0
"""Above this v (k + 1) the mixture is wide: the integrand would be a step between two nodes of the trapezoidal rule."""
LEAST_VARIANCE = 1e-12
RESOLUTION = 1e-12
"""Quantiles end at neighbouring whole numbers, or at this relative distance."""
LARGEST = 1e300
"""Quantiles beyond are given as this number."""
LARGE_RATE = 1e15
"""Above it a Poisson draw is its rate to all digits."""


@dataclass(frozen=True)
class PoissonLogNormal:
    """Independent counts with log-normal rates; arrays of one shape in, arrays of that shape out.

    Parameters
    ----------
    log_mean, log_variance : ndarray of one shape
        Mean m and variance v of the logarithm of the rate.

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
        """E[k] = exp(m + v/2)."""
        mean, variance = self._parameters
        with np.errstate(over="ignore"):
            return np.exp(mean + 0.5 * variance)

    def var(self) -> np.ndarray:
        """Variance: that of the rate plus its mean."""
        _, variance = self._parameters
        with np.errstate(over="ignore"):
            return self.mean() + np.expm1(variance) * self.mean() ** 2

    def std(self) -> np.ndarray:
        """Standard deviation."""
        return np.sqrt(self.var())

    def logpmf(self, k: Any) -> np.ndarray:
        """Log probability of counts, nats; of numbers between counts the continuation by Γ, of negative ones −inf.

        Parameters
        ----------
        k : array-like that broadcasts with the parameters
        """
        k, mean, variance = np.broadcast_arrays(np.asarray(k, dtype=float), *self._parameters)
        counts = np.where(k >= 0, k, 0.0)
        exponent = np.log(variance) + mean + variance * counts
        with np.errstate(divide="ignore", under="ignore"):
            peak = np.log(wrightomega(exponent)) - np.log(variance)
        peak = np.where(exponent < -30, mean + variance * counts, peak)  # ω(z) is e^z there
        width = 1 / np.sqrt(np.exp(peak) + 1 / variance)
        nodes, weights = np.polynomial.hermite.hermgauss(N_NODES)
        g = peak[..., None] + np.sqrt(2) * width[..., None] * nodes
        with np.errstate(over="ignore"):
            inner = counts[..., None] * g - np.exp(g) - (g - mean[..., None]) ** 2 / (2 * variance[..., None])
        total = logsumexp(inner + nodes**2 + np.log(weights), axis=-1)
        found = total + np.log(width) - gammaln(counts + 1) - 0.5 * np.log(np.pi * variance)
        return np.where(k >= 0, found, -np.inf)

    logpdf = logpmf

    def pmf(self, k: Any) -> np.ndarray:
        """Probability of counts."""
        return np.exp(self.logpmf(k))

    def cdf(self, x: Any) -> np.ndarray:
        """Probability of a count up to x, to about 1e-5.

        Parameters
        ----------
        x : array-like that broadcasts with the parameters
        """
        x, mean, variance = np.broadcast_arrays(np.asarray(x, dtype=float), *self._parameters)
        shape = np.floor(np.clip(x, 0.0, np.finfo(float).max)) + 1
        found = np.empty(x.shape)
        wide = variance * shape > WIDE
        found[wide] = _wide_cdf(shape[wide], mean[wide], variance[wide])
        z = np.arange(-REACH, REACH + STEP / 2, STEP)
        weights = np.exp(-0.5 * z**2)
        with np.errstate(over="ignore"):
            rates = np.exp(mean[~wide][:, None] + np.sqrt(variance[~wide])[:, None] * z)
        found[~wide] = gammaincc(shape[~wide][:, None], rates) @ (weights / weights.sum())
        return np.where(x >= 0, found, 0.0)

    def ppf(self, q: Any) -> np.ndarray:
        """Smallest count whose cumulated probability reaches q.

        Parameters
        ----------
        q : array-like that broadcasts with the parameters
            Strictly between 0 and 1.
        """
        q, mean, variance = np.broadcast_arrays(np.asarray(q, dtype=float), *self._parameters)
        flat = PoissonLogNormal(mean.ravel(), variance.ravel())
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

    def interval(self, confidence: Any) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the central interval: the quantiles at (1 ∓ confidence)/2."""
        confidence = np.asarray(confidence, dtype=float)
        return self.ppf((1 - confidence) / 2), self.ppf((1 + confidence) / 2)

    def rvs(self, size: Any = None, random_state: Any = None) -> np.ndarray:
        """Draws, independent of each other.

        Parameters
        ----------
        size : int or tuple of int, optional
            A shape that ends in that of the parameters; theirs by default.
        random_state : int, RandomState or None
            None: fresh draws; numpy's global generator is neither read nor changed.
        """
        mean, variance = self._parameters
        shape = mean.shape if size is None else size
        generator: Any = np.random.default_rng() if random_state is None else check_random_state(random_state)
        with np.errstate(over="ignore"):
            rates = np.exp(mean + np.sqrt(variance) * generator.normal(size=shape))
        return np.where(rates < LARGE_RATE, generator.poisson(np.minimum(rates, LARGE_RATE)), np.rint(rates))


def _wide_cdf(shape: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """P(g < log G), G of gamma distribution, by the Edgeworth series of the difference up to the third cumulant."""
    spread = np.sqrt(variance + polygamma(1, shape))
    t = np.clip((polygamma(0, shape) - mean) / spread, -40.0, 40.0)  # 0 and 1 to all digits
    skew = -polygamma(2, shape) / spread**3
    density = np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi)
    return np.clip(ndtr(t) - density * (t**2 - 1) * skew / 6, 0.0, 1.0)
