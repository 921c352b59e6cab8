r"""Predictive distribution of a target whose log-transformed value follows a mixture of normals.

With the transformation g of ``transforms.py``, :math:`Z = g(Y)` and :math:`Z \sim \sum_j w_j N(m_j, s_j^2)`:

.. math:: p(y) = p_Z(g(y))\, g'(y), \qquad F(y) = F_Z(g(y)), \qquad q_\tau(y) = g^{-1}(q_\tau(z))

Means and variances are integrals of :math:`g^{-1}(z)` and its square against each normal. They have a closed form where
:math:`g^{-1}` is a straight line, and use Gauss–Legendre quadrature elsewhere. The continuous ranked probability score
is the integral of :math:`(F_Z(z) - 1[z \ge g(y)])^2\, (g^{-1})'(z)`. It uses the same quadrature
in each interval between successive :data:`PIECES`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtr

from .interface import PredictiveDistribution
from .mixtures import NormalMixture
from .transforms import LogTransform

REACH = 9.0
"""Half-width of the integration range, in standard deviations of a component."""
N_NODES, N_PIECE_NODES, N_LATENT_NODES = 48, 8, 24
"""Numbers of quadrature nodes: for a moment, for each interval of a CRPS, and for the latent function."""
PIECES = np.array([-REACH, -5.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 5.0, REACH])
"""Ends of the integration intervals of a CRPS, in standard deviations around each component."""
CHUNK = 2**21
"""Maximum number of nodes evaluated at once."""


@dataclass(frozen=True)
class TransformedMixture(PredictiveDistribution):
    """Distribution of independent targets whose transformed values follow mixtures of J normals.

    Parameters
    ----------
    latent : NormalMixture
        Distribution of the transformed targets, with components of shape (n, J) or (n, k, J).
    transforms : tuple of LogTransform
        One for each of the k targets, or a single one for all.

    Examples
    --------
    >>> from sklearn_laplace.distributions.transforms import LogTransform
    >>> log = LogTransform(1e9)
    >>> latent = NormalMixture(np.array([[0.0], [2.0]]), np.ones((2, 1)), np.ones(1))
    >>> prices = TransformedMixture(latent, (log,))
    >>> prices.median().round(3), prices.mean().round(3)  # exp(m), exp(m + 1/2)
    (array([1.   , 7.389]), array([ 1.649, 12.182]))
    >>> prices.ppf(0.001).round(3)  # above zero
    array([0.045, 0.336])
    """

    latent: NormalMixture
    transforms: tuple[LogTransform, ...]

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        latent = self.latent
        means, variances = by_target(self.transforms, normal_moments, latent.means, latent.stds)
        mixture = NormalMixture(means, np.sqrt(variances), latent.weights)
        return mixture.mean(), mixture.var()

    def mean(self) -> np.ndarray:
        """Mean of each target."""
        return self._moments[0]

    def var(self) -> np.ndarray:
        """Variance of each target."""
        return self._moments[1]

    def median(self) -> np.ndarray:
        """Median of each target."""
        return self.ppf(0.5)

    def logpdf(self, x: Any) -> np.ndarray:
        """Log density at x, in nats; minus infinity at x ≤ 0."""
        x = np.asarray(x, dtype=float)
        z, slope = self._mapped("apply", x), self._mapped("log_slope", x)
        is_inside = np.isfinite(z)
        return np.where(is_inside, self.latent.logpdf(np.where(is_inside, z, 0.0)) + slope, -np.inf)

    def pdf(self, x: Any) -> np.ndarray:
        """Density at x, in inverse units of the targets."""
        return np.exp(self.logpdf(x))

    def cdf(self, x: Any) -> np.ndarray:
        """Probability that a target is at most x."""
        return self.latent.cdf(self.transformed(x))

    def sf(self, x: Any) -> np.ndarray:
        """Survival function: probability of a target above x."""
        return self.latent.sf(self.transformed(x))

    def ppf(self, q: Any) -> np.ndarray:
        """Quantiles at levels q, strictly between 0 and 1."""
        return self._mapped("inverse", self.latent.ppf(q))

    def rvs(self, size: Any = None, random_state: Any = None) -> np.ndarray:
        """Independent random draws; see :meth:`NormalMixture.rvs`."""
        return self._mapped("inverse", self.latent.rvs(size, random_state))

    def transformed(self, x: Any) -> np.ndarray:
        """g(x), the transformed value of a target x."""
        return self._mapped("apply", np.asarray(x, dtype=float))

    def crps(self, x: Any) -> np.ndarray:
        """Continuous ranked probability score at x, one value per target, in units of y; lower is better."""
        means, stds, shares = self.latent.means, self.latent.stds, np.broadcast_to(self.latent.weights, self._shape)
        y = np.broadcast_to(np.asarray(x, dtype=float), self._shape[:-1])
        size = (len(PIECES) * self._shape[-1] + 2) * N_PIECE_NODES * self._shape[-1]
        (score,) = by_target(self.transforms, _scores, means, stds, shares, y[..., None], nodes=size)
        return score[..., 0]

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.latent.means.shape

    def _mapped(self, method: str, values: np.ndarray) -> np.ndarray:
        """Apply a transformation's method to values (..., n) or (..., n, k)."""
        if len(self.transforms) == 1:
            return np.asarray(getattr(self.transforms[0], method)(values))
        values = np.broadcast_to(values, np.broadcast_shapes(values.shape, self._shape[:-1]))
        columns = [getattr(map_of, method)(values[..., k]) for k, map_of in enumerate(self.transforms)]
        return np.stack(columns, -1)


def by_target(
    transforms: tuple[LogTransform, ...],
    function: Callable[..., Any],
    *parts: np.ndarray,
    nodes: int = N_NODES,
) -> list[np.ndarray]:
    """Apply a function to ``parts`` (n, J) or (n, k, J) of each target, in chunks of rows; return its results."""
    single = len(transforms) == 1
    columns = []
    for k, transform in enumerate(transforms):
        ours = [part.reshape(len(part), -1) if single else part[:, k] for part in parts]
        step = max(CHUNK // (nodes * ours[0].shape[-1]), 1)
        chunks = [
            function(transform, *(part[start : start + step] for part in ours))
            for start in range(0, max(len(ours[0]), 1), step)
        ]
        columns.append([np.concatenate(results) for results in zip(*chunks, strict=True)])
    if not single:
        return [np.stack(results, 1) for results in zip(*columns, strict=True)]
    return [result.reshape(*parts[0].shape[:-1], result.shape[-1]) for result in columns[0]]


def variances_of_kinds(
    transforms: tuple[LogTransform, ...],
    means: np.ndarray,
    latent_stds: np.ndarray,
    noise_stds: np.ndarray,
    weights: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Mean, epistemic variance and aleatoric variance of targets, (n,) or (n, k), for latent normals plus noise.

    The latent normals have shape (n, J) or (n, k, J).

    The epistemic variance is that of :math:`E[y \mid j, f]`, over components j and latent functions f. The aleatoric
    variance is the rest of the total variance, :math:`E[\mathrm{Var}(y \mid j, f)]`.
    """
    nodes = N_NODES * N_LATENT_NODES
    _, latent = by_target(transforms, latent_moments, means, latent_stds, noise_stds, nodes=nodes)
    centres, total = by_target(transforms, normal_moments, means, np.hypot(latent_stds, noise_stds))
    mean = (weights * centres).sum(-1)
    between = (weights * (centres - mean[..., None]) ** 2).sum(-1)
    epistemic = (weights * np.minimum(latent, total)).sum(-1)
    return mean, epistemic + between, (weights * total).sum(-1) - epistemic


def normal_moments(transform: LogTransform, mean: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Mean and variance of :math:`g^{-1}(Z)` for :math:`Z \sim N(m, s^2)`, in the shape of m and s."""
    centre = transform.inverse(mean)  # moments around the centre lose no digits
    nodes, weights = np.polynomial.legendre.leggauss(N_NODES)
    start, end = (np.minimum(mean + side * REACH * std, transform.end) for side in (-1, 1))
    half = 0.5 * (end - start)
    z = (0.5 * (start + end))[..., None] + half[..., None] * nodes
    density = np.exp(-0.5 * ((z - mean[..., None]) / std[..., None]) ** 2) / (np.sqrt(2 * np.pi) * std[..., None])
    distance = transform.inverse(z) - centre[..., None]
    shares = half[..., None] * weights * density
    first, second = (shares * distance).sum(-1), (shares * distance**2).sum(-1)
    slope = transform.high  # of the line above the largest training target
    beyond = mean - transform.end  # the distance past the start of the line is N(beyond, s²), and counts if > 0
    outside, at_start = ndtr(beyond / std), transform.high - centre
    peak = std * np.exp(-0.5 * (beyond / std) ** 2) / np.sqrt(2 * np.pi)
    one, two = beyond * outside + peak, (beyond**2 + std**2) * outside + beyond * peak
    first += at_start * outside + slope * one
    second += at_start**2 * outside + 2 * at_start * slope * one + slope**2 * two
    return centre + first, np.maximum(second - first**2, 0.0)


def latent_moments(
    transform: LogTransform, mean: np.ndarray, latent_std: np.ndarray, noise_std: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    r"""Mean and (epistemic) variance of :math:`E[g^{-1}(f + \varepsilon) \mid f]` for normal f and ε."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(N_LATENT_NODES)
    f = mean[..., None] + latent_std[..., None] * nodes
    conditional = normal_moments(transform, f, np.broadcast_to(noise_std[..., None], f.shape))[0]
    shares = weights / weights.sum()
    average = (shares * conditional).sum(-1)
    variance: np.ndarray = (shares * (conditional - average[..., None]) ** 2).sum(-1)
    return average, variance


def _scores(
    transform: LogTransform, means: np.ndarray, stds: np.ndarray, shares: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray]:
    """CRPS (rows, 1) of targets y (rows, 1) under components (rows, J)."""
    z_y = transform.apply(y)
    pieces = (means[..., None] + stds[..., None] * PIECES).reshape(len(means), -1)
    first, last = pieces.min(-1, keepdims=True), pieces.max(-1, keepdims=True)
    knots = (np.clip(knot, first, last) for knot in (np.full_like(y, transform.end), z_y))
    pieces = np.sort(np.hstack([pieces, *knots]), axis=-1)
    nodes, weights = np.polynomial.legendre.leggauss(N_PIECE_NODES)
    half = 0.5 * np.diff(pieces, axis=-1)[..., None]
    z = 0.5 * (pieces[:, 1:] + pieces[:, :-1])[..., None] + half * nodes
    probability = (shares[:, None, None] * ndtr((z[..., None] - means[:, None, None]) / stds[:, None, None])).sum(-1)
    excess = probability - (z >= z_y[..., None])
    slope = np.exp(-transform.log_slope(transform.inverse(z)))
    score = (half * weights * excess**2 * slope).sum((1, 2))[:, None]
    # Beyond the reach of all components, the distance to the target counts in full.
    score += np.maximum(y - transform.inverse(last), 0) + np.maximum(transform.inverse(first) - y, 0)
    return (score,)
