r"""Negative binomial distribution with a log-normal mean, with the interface of frozen ``scipy.stats`` distributions.

.. math:: p(k) = \int \mathrm{NB}(k \mid e^g, \alpha)\, N(g \mid m, v)\, dg

where NB has mean :math:`\mu = e^g` and variance :math:`\mu + \alpha\mu^2`. The methods are those of
``poisson_log_normal.py``, which defines :math:`G_{k+1}`:

- :math:`\log p(k)` uses Gauss–Hermite quadrature around the peak of the integrand, which is log-concave in g. Newton's
  method finds the peak, where :math:`k - (k + 1/\alpha)\,\sigma(g + \log\alpha) = (g - m)/v` with the logistic
  function σ.
- The trapezoidal rule integrates the cumulative probability given g, which is the regularised incomplete beta
  function :math:`I_p(1/\alpha, k + 1)` at :math:`p = 1/(1 + \alpha e^g)`. A count is Poisson with rate :math:`e^g W`,
  where W is gamma-distributed with shape 1/α and mean 1. Thus P(at most k) is the probability of :math:`g + \log W <
  \log G_{k+1}`. If the variance of g dominates, an Edgeworth series replaces the trapezoidal rule.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import betainc, expit, gammaln, logsumexp, polygamma

from ..laplace.likelihoods import NegativeBinomial
from .poisson_log_normal import N_NODES, REACH, STEP, WIDE, PoissonLogNormal, edgeworth, hermite

STEPS, PRECISION = 100, 1e-10
"""Maximum number of steps to the peak of an integrand, and the step size, in widths of the peak, at which they end."""


@dataclass(frozen=True)
class NegativeBinomialLogNormal(PoissonLogNormal):
    """Distribution of independent negative binomial counts with log-normal means.

    All statistics have the shape of the parameters.

    Parameters
    ----------
    log_mean, log_variance : ndarray of equal shape
        Mean m and variance v of the log mean.
    overdispersion : float or ndarray that broadcasts with ``log_mean``
        α > 0: counts of mean μ have variance μ + α μ².

    Examples
    --------
    >>> distribution = NegativeBinomialLogNormal(np.array([0.0, 2.0]), np.array([0.1, 0.5]), 0.5)
    >>> distribution.mean().round(3), distribution.std().round(3)
    (array([1.051, 9.488]), array([ 1.333, 11.92 ]))
    >>> distribution.ppf(0.9)
    array([ 3., 22.])
    """

    overdispersion: Any = 1.0

    @cached_property
    def _sizes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Parameters m and v, and 1/α, of equal shape."""
        mean, variance, alpha = np.broadcast_arrays(*self._parameters, np.asarray(self.overdispersion, dtype=float))
        return mean, variance, 1 / alpha

    def var(self) -> np.ndarray:
        """Variance of each count: the Poisson–log-normal variance plus α E[μ²]."""
        _, variance, size = self._sizes
        with np.errstate(over="ignore"):
            extra: np.ndarray = self.mean() ** 2 * np.exp(variance) / size
        return super().var() + extra

    def logpmf(self, k: Any) -> np.ndarray:
        """Log probability of counts k, in nats; k broadcasts with the parameters.

        For non-integer k, gamma functions replace factorials; negative k have log probability −inf.
        """
        k, mean, variance, size = np.broadcast_arrays(np.asarray(k, dtype=float), *self._sizes)
        counts, log_size = np.where(k >= 0, k, 0.0), np.log(size)
        peak = _peak(counts, mean, variance, size)
        share = expit(peak - log_size)
        width = 1 / np.sqrt((counts + size) * share * (1 - share) + 1 / variance)
        nodes, weights = hermite(N_NODES)
        g = peak[..., None] + np.sqrt(2) * width[..., None] * nodes
        t = g - log_size[..., None]
        inner = -counts[..., None] * np.logaddexp(0, -t) - size[..., None] * np.logaddexp(0, t)
        inner -= (g - mean[..., None]) ** 2 / (2 * variance[..., None])
        total = logsumexp(inner + nodes**2 + np.log(weights), axis=-1)
        constants = gammaln(counts + size) - gammaln(size) - gammaln(counts + 1)
        log_probability = total + np.log(width) + constants - 0.5 * np.log(np.pi * variance)
        return np.where(k >= 0, log_probability, -np.inf)

    logpdf = logpmf

    def cdf(self, x: Any) -> np.ndarray:
        """Probability that a count is at most x, accurate to about 1e-5; x broadcasts with the parameters."""
        x, mean, variance, size = np.broadcast_arrays(np.asarray(x, dtype=float), *self._sizes)
        shape = np.floor(np.clip(x, 0.0, np.finfo(float).max)) + 1
        probability = np.empty(x.shape)
        of_gammas = polygamma(1, shape) + polygamma(1, size)
        wide = variance > WIDE * of_gammas
        s, r, m = shape[wide], size[wide], mean[wide]
        center = polygamma(0, s) - polygamma(0, r) + np.log(r) - m
        third = polygamma(2, s) - polygamma(2, r)
        probability[wide] = edgeworth(center, variance[wide] + of_gammas[wide], third)
        z = np.arange(-REACH, REACH + STEP / 2, STEP)
        weights = np.exp(-0.5 * z**2)
        g = mean[~wide][:, None] + np.sqrt(variance[~wide])[:, None] * z
        r = size[~wide][:, None]
        probability[~wide] = betainc(r, shape[~wide][:, None], expit(np.log(r) - g)) @ (weights / weights.sum())
        return np.where(x >= 0, probability, 0.0)

    def _frailty(self, generator: Any, shape: Any) -> Any:
        """Draws of W: gamma-distributed with shape 1/α and mean 1."""
        _, _, size = self._sizes
        return generator.gamma(size, 1 / size, size=shape)

    def _flat(self, mean: np.ndarray, variance: np.ndarray) -> PoissonLogNormal:
        alpha = np.broadcast_to(self.overdispersion, mean.shape)
        return NegativeBinomialLogNormal(mean.ravel(), variance.ravel(), alpha.ravel())


def counts_of(likelihood: Any, mean: np.ndarray, variance: np.ndarray) -> PoissonLogNormal:
    """Distribution of counts with means exp(``mean``); ``variance`` is that of log rates. Both are (n, C) or (n,)."""
    mean = mean - 0.5 * variance
    if not isinstance(likelihood, NegativeBinomial):
        return PoissonLogNormal(mean, variance)
    return NegativeBinomialLogNormal(mean, variance, np.array(likelihood.overdispersion))


def _peak(counts: np.ndarray, mean: np.ndarray, variance: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Peak of the integrand in g, by Newton's method with bisection, within the bracket [m − v/α, m + v k]."""
    low, high = mean - variance * size, mean + variance * counts
    peak = np.clip(np.log(counts + 0.5), low, high)
    for _ in range(STEPS):
        share = expit(peak - np.log(size))
        slope = counts - (counts + size) * share - (peak - mean) / variance
        bend = (counts + size) * share * (1 - share) + 1 / variance
        low, high = np.where(slope > 0, peak, low), np.where(slope > 0, high, peak)
        step = peak + slope / bend
        following = np.where((step >= low) & (step <= high), step, 0.5 * (low + high))
        moved, peak = np.abs(following - peak) * np.sqrt(bend), following
        if (moved < PRECISION).all():
            break
    return peak
