r"""Mixtures of normals and of count distributions, with the interface of frozen ``scipy.stats`` distributions.

.. math:: p(y) = \sum_j w_j\, p_j(y)

A quantile of a mixture lies between the smallest and the largest quantile of its components. Inside this bracket it is
the point where the cumulative probability reaches the level. Newton's method finds it for normals, and bisection for
counts. The continuous ranked probability score of a normal mixture has a closed form (Grimit et al. 2006).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri
from sklearn.utils import check_random_state

from .interface import PredictiveDistribution
from .poisson_log_normal import PoissonLogNormal

ITERATIONS, RESOLUTION = 200, 1e-12
"""Maximum number of steps to a quantile, and tolerance at which they stop, relative to the bracket's ends."""
PAIRS = 2**21
"""Maximum number of component pairs that :meth:`NormalMixture.crps` evaluates at once."""


@dataclass(frozen=True)
class NormalMixture(PredictiveDistribution):
    """Distribution of independent targets, each following a mixture of J normals.

    Parameters
    ----------
    means, stds : ndarray of shape (..., J)
        Mean and standard deviation of each component, in the units of the targets.
    weights : ndarray of shape (J,) or (..., J)
        Non-negative mixture weights that sum to 1.

    Examples
    --------
    >>> two = NormalMixture(np.array([[-1.0, 1.0], [0.0, 4.0]]), np.ones((2, 2)), np.array([0.5, 0.5]))
    >>> two.mean(), two.std().round(3)
    (array([0., 2.]), array([1.414, 2.236]))
    >>> two.ppf(0.9).round(3)  # normals with the same moments have 1.812 and 4.866
    array([1.849, 4.842])
    """

    means: np.ndarray
    stds: np.ndarray
    weights: np.ndarray

    @cached_property
    def _shares(self) -> np.ndarray:
        return np.broadcast_to(self.weights, self.means.shape)

    def mean(self) -> np.ndarray:
        """Mean of each target, Σ w m."""
        return (self._shares * self.means).sum(-1)

    def var(self) -> np.ndarray:
        """Variance of each target: Σ w s² plus the variance between the component means."""
        deviations = self.means - self.mean()[..., None]
        return (self._shares * (self.stds**2 + deviations**2)).sum(-1)

    def median(self) -> np.ndarray:
        """Median of each target."""
        return self.ppf(0.5)

    def logpdf(self, x: Any) -> np.ndarray:
        """Log density at x, in nats; x broadcasts with the targets."""
        z = self._standardised(x)
        log_sum: np.ndarray = logsumexp(-0.5 * z**2 - np.log(self.stds), axis=-1, b=self._shares)
        return log_sum - 0.5 * np.log(2 * np.pi)

    def pdf(self, x: Any) -> np.ndarray:
        """Density at x, in inverse units of the targets."""
        return np.exp(self.logpdf(x))

    def cdf(self, x: Any) -> np.ndarray:
        """Probability that a target is at most x."""
        return (self._shares * ndtr(self._standardised(x))).sum(-1)

    def sf(self, x: Any) -> np.ndarray:
        """Survival function: probability of a target above x."""
        return (self._shares * ndtr(-self._standardised(x))).sum(-1)

    def ppf(self, q: Any) -> np.ndarray:
        """Quantiles at levels q in (0, 1); q broadcasts with the targets."""
        shape = np.broadcast_shapes(np.shape(q), self.means.shape[:-1])
        level = np.broadcast_to(np.asarray(q, dtype=float), shape).ravel()
        parts = (np.broadcast_to(part, (*shape, part.shape[-1])) for part in (self.means, self.stds, self._shares))
        means, stds, weights = (part.reshape(len(level), -1) for part in parts)
        ends = means + stds * ndtri(level)[:, None]
        low = np.where(weights > 0, ends, np.inf).min(-1)  # components of weight zero do not widen the bracket
        high = np.where(weights > 0, ends, -np.inf).max(-1)
        tolerance = RESOLUTION * (high - low + np.abs(low) + np.abs(high))
        x = 0.5 * (low + high)
        active = np.arange(len(x))
        for _ in range(ITERATIONS):
            mixture = NormalMixture(means[active], stds[active], weights[active])
            x[active], low[active], high[active], moved = _closer(
                mixture, level[active], x[active], low[active], high[active]
            )
            active = active[moved > tolerance[active]]
            if not len(active):
                break
        return x.reshape(shape)

    def crps(self, x: Any) -> np.ndarray:
        r"""Continuous ranked probability score, in the units of the targets; lower is better.

        Evaluation costs O(J²) per target. With :math:`A(m, s) = m(2\Phi(m/s) - 1) + 2 s\varphi(m/s)`, the mean of
        :math:`|N(m, s^2)|`, the score is
        :math:`\sum_i w_i A(x - m_i, s_i) - \tfrac12 \sum_{ij} w_i w_j A(m_i - m_j, \sqrt{s_i^2 + s_j^2})`.
        """
        distance = _mean_size(np.asarray(x, dtype=float)[..., None] - self.means, self.stds)
        size = self.means.shape[-1]
        m, s, w = (part.reshape(-1, size) for part in (self.means, self.stds, self._shares))
        spread = []
        for chunk in range(0, len(m), step := max(PAIRS // size**2, 1)):
            mean, std, share = (part[chunk : chunk + step] for part in (m, s, w))
            pairs = _mean_size(mean[:, :, None] - mean[:, None], np.hypot(std[:, :, None], std[:, None]))
            spread.append(np.einsum("ni,nij,nj->n", share, pairs, share))
        half_spread = 0.5 * np.concatenate(spread).reshape(self.means.shape[:-1])
        return (self._shares * distance).sum(-1) - half_spread

    def rvs(self, size: Any = None, random_state: Any = None) -> np.ndarray:
        """Independent random draws of shape ``size``.

        ``size`` must end with the shape of the targets, which is its default.
        ``random_state`` is an int, a RandomState or None. With None, draws differ between calls; numpy's global
        generator is neither read nor changed.
        """
        shape = self.means.shape[:-1] if size is None else tuple(np.atleast_1d(size))
        generator: Any = np.random.default_rng() if random_state is None else check_random_state(random_state)
        chosen = _component(self._shares, generator.uniform(size=shape))
        means, stds = (np.broadcast_to(part, (*shape, part.shape[-1])) for part in (self.means, self.stds))
        mean, std = (np.take_along_axis(part, chosen[..., None], -1)[..., 0] for part in (means, stds))
        return mean + std * generator.normal(size=shape)

    def _standardised(self, x: Any) -> np.ndarray:
        return (np.asarray(x, dtype=float)[..., None] - self.means) / self.stds


@dataclass(frozen=True)
class CountMixture(PredictiveDistribution):
    """Mixture of J count distributions, one per ensemble member.

    Parameters
    ----------
    components : tuple of J PoissonLogNormal
        Components of equal shape.
    weights : ndarray of shape (J,)
        Non-negative mixture weights that sum to 1.

    Examples
    --------
    >>> few_and_many = tuple(PoissonLogNormal(np.array([rate]), np.array([0.1])) for rate in (0.0, 3.0))
    >>> CountMixture(few_and_many, np.array([0.5, 0.5])).ppf(0.5)
    array([5.])
    """

    components: tuple[PoissonLogNormal, ...]
    weights: np.ndarray

    def mean(self) -> np.ndarray:
        """Mean of each count, Σ w m."""
        return self._averaged([component.mean() for component in self.components])

    def var(self) -> np.ndarray:
        """Variance of each count: Σ w v plus the variance between the component means."""
        mean = self.mean()
        return self._averaged([component.var() + (component.mean() - mean) ** 2 for component in self.components])

    def logpmf(self, k: Any) -> np.ndarray:
        """Log probability of counts k, in nats."""
        components = np.stack([component.logpmf(k) for component in self.components], -1)
        return logsumexp(components, axis=-1, b=self.weights)

    logpdf = logpmf  # type: ignore[assignment]  # scipy calls its argument k

    def pmf(self, k: Any) -> np.ndarray:
        """Probability of counts k."""
        return np.exp(self.logpmf(k))

    def cdf(self, x: Any) -> np.ndarray:
        """Probability that a count is at most x."""
        return self._averaged([component.cdf(x) for component in self.components])

    def ppf(self, q: Any) -> np.ndarray:
        """Smallest count whose cumulative probability is at least q."""
        ends = [component.ppf(q) for component, w in zip(self.components, self.weights, strict=True) if w > 0]
        low, high = np.minimum.reduce(ends) - 1, np.maximum.reduce(ends)
        while ((high - low > 1) & (high - low > RESOLUTION * high)).any():
            middle = np.floor(0.5 * (low + high))
            reached = self.cdf(middle) >= q
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        return high

    def rvs(self, size: Any = None, random_state: Any = None) -> np.ndarray:
        """Independent random draws; see :meth:`NormalMixture.rvs`."""
        shape = self.components[0].mean().shape if size is None else tuple(np.atleast_1d(size))
        seed = np.random.default_rng().integers(2**31) if random_state is None else random_state
        generator = check_random_state(seed)
        candidates = np.stack([component.rvs(shape, generator) for component in self.components], -1)
        chosen = _component(np.broadcast_to(self.weights, candidates.shape), generator.uniform(size=shape))
        return np.take_along_axis(candidates, chosen[..., None], -1)[..., 0]

    def _averaged(self, values: list[np.ndarray]) -> np.ndarray:
        return np.tensordot(self.weights, np.stack(values), 1)


def _closer(
    mixture: NormalMixture, level: np.ndarray, x: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Next point, bracket and step size, by Newton's method or, if it leaves the bracket, by bisection."""
    # Above the median, compare upper tails, because probabilities near 1 lose digits in a difference.
    excess = np.where(level > 0.5, (1 - level) - mixture.sf(x), mixture.cdf(x) - level)
    low, high = np.where(excess < 0, x, low), np.where(excess < 0, high, x)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        step = x - excess / mixture.pdf(x)
    following = np.where((step > low) & (step < high), step, 0.5 * (low + high))
    return following, low, high, np.abs(following - x)


def _mean_size(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Mean absolute value of a normal, E|N(m, s²)|."""
    z = mean / std
    return mean * (2 * ndtr(z) - 1) + 2 * std * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)


def _component(weights: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Component index of each uniform draw, for weights of shape (..., J)."""
    index: np.ndarray = (uniforms[..., None] > np.cumsum(weights, -1)).sum(-1)
    return np.minimum(index, weights.shape[-1] - 1)
