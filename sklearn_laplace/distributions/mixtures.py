r"""Mixtures, as frozen distributions in the manner of ``scipy.stats``: of normals, and of any distributions by number.

.. math:: p(y) = \sum_j w_j\, p_j(y)

A quantile of a mixture lies between the smallest and the largest of its components' and is where the cumulated
probability reaches its level: found by Newton's method inside that bracket (normals), or by halving it (counts). The
continuous ranked probability score of a mixture of normals has a closed form (Grimit et al. 2006).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri
from sklearn.utils import check_random_state

from .poisson_log_normal import PoissonLogNormal

ITERATIONS, RESOLUTION = 200, 1e-12
"""At most so many steps to a quantile, which ends at this distance relative to its bracket."""
PAIRS = 2**21
"""Pairs of components that a score has in work at once."""


@dataclass(frozen=True)
class NormalMixture:
    """Independent targets, each a mixture of J normals.

    Parameters
    ----------
    means, stds : ndarray of shape (..., J)
    weights : ndarray of shape (J,) or (..., J)
        Not negative, of sum 1.

    Examples
    --------
    >>> two = NormalMixture(np.array([[-1.0, 1.0], [0.0, 4.0]]), np.ones((2, 2)), np.array([0.5, 0.5]))
    >>> two.mean(), two.std().round(3)
    (array([0., 2.]), array([1.414, 2.236]))
    >>> two.ppf(0.9).round(3)  # that of a normal with the same moments is 1.812 and 4.866
    array([1.849, 4.842])
    """

    means: np.ndarray
    stds: np.ndarray
    weights: np.ndarray

    @cached_property
    def _shares(self) -> np.ndarray:
        return np.broadcast_to(self.weights, self.means.shape)

    def mean(self) -> np.ndarray:
        """Σ w m."""
        found: np.ndarray = (self._shares * self.means).sum(-1)
        return found

    def var(self) -> np.ndarray:
        """Variance: Σ w s², and the variance between the means."""
        away = self.means - self.mean()[..., None]
        found: np.ndarray = (self._shares * (self.stds**2 + away**2)).sum(-1)
        return found

    def std(self) -> np.ndarray:
        """Standard deviation."""
        found: np.ndarray = np.sqrt(self.var())
        return found

    def median(self) -> np.ndarray:
        """The quantile at ½."""
        return self.ppf(0.5)

    def logpdf(self, x: Any) -> np.ndarray:
        """Log density, nats.

        Parameters
        ----------
        x : array-like that broadcasts with the targets
        """
        z = self._standardised(x)
        found: np.ndarray = logsumexp(-0.5 * z**2 - np.log(self.stds), axis=-1, b=self._shares)
        return found - 0.5 * np.log(2 * np.pi)

    def pdf(self, x: Any) -> np.ndarray:
        """Density."""
        found: np.ndarray = np.exp(self.logpdf(x))
        return found

    def cdf(self, x: Any) -> np.ndarray:
        """Probability of a target up to x."""
        found: np.ndarray = (self._shares * ndtr(self._standardised(x))).sum(-1)
        return found

    def sf(self, x: Any) -> np.ndarray:
        """Probability of a target above x."""
        found: np.ndarray = (self._shares * ndtr(-self._standardised(x))).sum(-1)
        return found

    def ppf(self, q: Any) -> np.ndarray:
        """Quantiles.

        Parameters
        ----------
        q : array-like that broadcasts with the targets
            Strictly between 0 and 1.
        """
        shape = np.broadcast_shapes(np.shape(q), self.means.shape[:-1])
        level = np.broadcast_to(np.asarray(q, dtype=float), shape).ravel()
        parts = (np.broadcast_to(part, (*shape, part.shape[-1])) for part in (self.means, self.stds, self._shares))
        means, stds, weights = (part.reshape(len(level), -1) for part in parts)
        ends = means + stds * ndtri(level)[:, None]
        low = np.where(weights > 0, ends, np.inf).min(-1)  # a component without weight is no part of it
        high = np.where(weights > 0, ends, -np.inf).max(-1)
        tolerance = RESOLUTION * (high - low + np.abs(low) + np.abs(high))
        x = 0.5 * (low + high)
        open_ = np.arange(len(x))
        for _ in range(ITERATIONS):
            some = NormalMixture(means[open_], stds[open_], weights[open_])
            x[open_], low[open_], high[open_], moved = _closer(some, level[open_], x[open_], low[open_], high[open_])
            open_ = open_[moved > tolerance[open_]]
            if not len(open_):
                break
        return x.reshape(shape)

    def interval(self, confidence: Any) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the central interval: the quantiles at (1 ∓ confidence)/2."""
        confidence = np.asarray(confidence, dtype=float)
        return self.ppf((1 - confidence) / 2), self.ppf((1 + confidence) / 2)

    def crps(self, x: Any) -> np.ndarray:
        r"""Continuous ranked probability score, in the units of the targets; lower is better.

        With :math:`A(m, s) = m(2\Phi(m/s) - 1) + 2 s\varphi(m/s)`, the mean of :math:`|N(m, s^2)|`:
        :math:`\sum_i w_i A(x - m_i, s_i) - \tfrac12 \sum_{ij} w_i w_j A(m_i - m_j, \sqrt{s_i^2 + s_j^2})`.

        Parameters
        ----------
        x : array-like that broadcasts with the targets
        """
        apart = _mean_size(np.asarray(x, dtype=float)[..., None] - self.means, self.stds)
        size = self.means.shape[-1]
        m, s, w = (part.reshape(-1, size) for part in (self.means, self.stds, self._shares))
        within = []
        for chunk in range(0, len(m), step := max(PAIRS // size**2, 1)):
            mean, std, share = (part[chunk : chunk + step] for part in (m, s, w))
            both = _mean_size(mean[:, :, None] - mean[:, None], np.hypot(std[:, :, None], std[:, None]))
            within.append(np.einsum("ni,nij,nj->n", share, both, share))
        found: np.ndarray = (self._shares * apart).sum(-1) - 0.5 * np.concatenate(within).reshape(self.means.shape[:-1])
        return found

    def rvs(self, size: Any = None, random_state: Any = None) -> np.ndarray:
        """Draws, independent of each other.

        Parameters
        ----------
        size : int or tuple of int, optional
            A shape that ends in that of the targets; theirs by default.
        random_state : int, RandomState or None
            None: fresh draws; numpy's global generator is neither read nor changed.
        """
        shape = self.means.shape[:-1] if size is None else tuple(np.atleast_1d(size))
        generator: Any = np.random.default_rng() if random_state is None else check_random_state(random_state)
        chosen = _component(self._shares, generator.uniform(size=shape))
        means, stds = (np.broadcast_to(part, (*shape, part.shape[-1])) for part in (self.means, self.stds))
        mean, std = (np.take_along_axis(part, chosen[..., None], -1)[..., 0] for part in (means, stds))
        found: np.ndarray = mean + std * generator.normal(size=shape)
        return found

    def _standardised(self, x: Any) -> np.ndarray:
        found: np.ndarray = (np.asarray(x, dtype=float)[..., None] - self.means) / self.stds
        return found


@dataclass(frozen=True)
class CountMixture:
    """A mixture of J distributions of counts, those of several nets.

    Parameters
    ----------
    components : tuple of J PoissonLogNormal
        Of one shape.
    weights : ndarray of shape (J,)
        Not negative, of sum 1.

    Examples
    --------
    >>> few_and_many = tuple(PoissonLogNormal(np.array([rate]), np.array([0.1])) for rate in (0.0, 3.0))
    >>> CountMixture(few_and_many, np.array([0.5, 0.5])).ppf(0.5)
    array([5.])
    """

    components: tuple[PoissonLogNormal, ...]
    weights: np.ndarray

    def mean(self) -> np.ndarray:
        """Σ w m."""
        return self._averaged([component.mean() for component in self.components])

    def var(self) -> np.ndarray:
        """Variance: Σ w v, and the variance between the means."""
        mean = self.mean()
        return self._averaged([component.var() + (component.mean() - mean) ** 2 for component in self.components])

    def std(self) -> np.ndarray:
        """Standard deviation."""
        found: np.ndarray = np.sqrt(self.var())
        return found

    def logpmf(self, k: Any) -> np.ndarray:
        """Log probability of counts, nats."""
        every = np.stack([component.logpmf(k) for component in self.components], -1)
        found: np.ndarray = logsumexp(every, axis=-1, b=self.weights)
        return found

    logpdf = logpmf

    def pmf(self, k: Any) -> np.ndarray:
        """Probability of counts."""
        found: np.ndarray = np.exp(self.logpmf(k))
        return found

    def cdf(self, x: Any) -> np.ndarray:
        """Probability of a count up to x."""
        return self._averaged([component.cdf(x) for component in self.components])

    def ppf(self, q: Any) -> np.ndarray:
        """Smallest count whose cumulated probability reaches q."""
        ends = [component.ppf(q) for component, w in zip(self.components, self.weights, strict=True) if w > 0]
        low, high = np.minimum.reduce(ends) - 1, np.maximum.reduce(ends)
        while ((high - low > 1) & (high - low > RESOLUTION * high)).any():
            middle = np.floor(0.5 * (low + high))
            reached = self.cdf(middle) >= q
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        found: np.ndarray = high
        return found

    def interval(self, confidence: Any) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the central interval: the quantiles at (1 ∓ confidence)/2."""
        confidence = np.asarray(confidence, dtype=float)
        return self.ppf((1 - confidence) / 2), self.ppf((1 + confidence) / 2)

    def rvs(self, size: Any = None, random_state: Any = None) -> np.ndarray:
        """Draws, independent of each other; see :meth:`NormalMixture.rvs`."""
        shape = self.components[0].mean().shape if size is None else tuple(np.atleast_1d(size))
        seed = np.random.default_rng().integers(2**31) if random_state is None else random_state
        generator = check_random_state(seed)
        draws = np.stack([component.rvs(shape, generator) for component in self.components], -1)
        chosen = _component(np.broadcast_to(self.weights, draws.shape), generator.uniform(size=shape))
        found: np.ndarray = np.take_along_axis(draws, chosen[..., None], -1)[..., 0]
        return found

    def _averaged(self, values: list[np.ndarray]) -> np.ndarray:
        found: np.ndarray = np.tensordot(self.weights, np.stack(values), 1)
        return found


def _closer(
    mixture: NormalMixture, level: np.ndarray, x: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A Newton step towards each quantile, or half of its bracket: where it ends, the bracket, how long it was."""
    # In the upper half by the tail above: neither is a difference to one.
    excess = np.where(level > 0.5, (1 - level) - mixture.sf(x), mixture.cdf(x) - level)
    low, high = np.where(excess < 0, x, low), np.where(excess < 0, high, x)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        step = x - excess / mixture.pdf(x)
    following = np.where((step > low) & (step < high), step, 0.5 * (low + high))
    return following, low, high, np.abs(following - x)


def _mean_size(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """E|N(m, s²)|."""
    z = mean / std
    found: np.ndarray = mean * (2 * ndtr(z) - 1) + 2 * std * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return found


def _component(weights: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """The component that each uniform falls on, by weights (..., J)."""
    found: np.ndarray = (uniforms[..., None] > np.cumsum(weights, -1)).sum(-1)
    return np.minimum(found, weights.shape[-1] - 1)
