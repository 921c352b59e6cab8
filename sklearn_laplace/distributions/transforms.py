r"""Monotone transformations g of a target, after which the noise is closer to normal.

.. math:: g(y) = \begin{cases} g(a) + g'(a)\,(y - a) & y < a \\ \tilde g(y) & a \le y \le b \\
    g(b) + g'(b)\,(y - b) & y > b \end{cases}

:math:`\tilde g` is a logarithm or the function of Yeo & Johnson (2000), and [a, b] the range of the training targets.
Outside this range g continues as a straight line with the same slope. A prediction far from the data then grows as it
does without a transformation. Under a plain logarithm, the mean of a wide prediction would grow exponentially. The
logarithm has no lower line, so that predictions stay above zero.

References
----------
I.-K. Yeo, R. Johnson (2000), A new family of power transformations to improve normality or symmetry. Biometrika 87(4).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.optimize import minimize_scalar

POWERS, LOGARITHMS = (-2.0, 4.0), (0.0, 2.0)
"""Search interval of Yeo & Johnson's λ, and the values of λ for logarithms; 1 is the identity."""
LEAST_SLOPE = 0.1
"""Minimum slope at an end of the range, relative to the centre, for a λ beyond a logarithm.

With a slope near zero, the mean of a wide prediction would be far beyond all targets.
"""
SAME_END = 1e-9
"""Smallest distance of an end of the range from the mean that is used, in standard deviations."""
SAME_POWER = 1e-12
"""Distance of λ from 0 and from 2 within which the limit of the formula is used."""


@dataclass(frozen=True)
class TargetTransform(ABC):
    """Monotone transformation of one target, with straight lines outside the range of the training targets.

    Parameters
    ----------
    low, high : float
        Ends a and b of the range, in the units of y.
    """

    low: float
    high: float

    @classmethod
    @abstractmethod
    def fitted(cls, y: np.ndarray, weights: np.ndarray) -> Self:
        """Transformation for the targets of a training.

        Parameters
        ----------
        y : ndarray of shape (n,)
            Targets.
        weights : ndarray of shape (n,)
            Positive weights of the rows.

        Raises
        ------
        ValueError
            For targets outside the domain of the transformation.
        """

    @abstractmethod
    def _inside(self, y: np.ndarray) -> np.ndarray:
        """g̃(y) for y in [a, b]."""

    @abstractmethod
    def _inside_inverse(self, z: np.ndarray) -> np.ndarray:
        """y for z in [g(a), g(b)]."""

    @abstractmethod
    def _log_slope_inside(self, y: np.ndarray) -> np.ndarray:
        """log g̃′(y) for y in [a, b]."""

    @property
    def ends(self) -> tuple[float, float]:
        """g(a) and g(b)."""
        low, high = self._inside(np.array([self.low, self.high]))
        return float(low), float(high)

    def apply(self, y: np.ndarray) -> np.ndarray:
        """g(y)."""
        inside = np.clip(y, self.low, self.high)
        transformed: np.ndarray = self._inside(inside) + np.exp(self._log_slope_inside(inside)) * (y - inside)
        return transformed

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """The y with g(y) = z."""
        inside = np.clip(z, *self.ends)
        y = self._inside_inverse(inside)
        beyond = np.subtract(z, inside, out=np.zeros(np.shape(inside)), where=z != inside)
        original: np.ndarray = y + beyond * np.exp(-self._log_slope_inside(y))
        return original

    def log_slope(self, y: np.ndarray) -> np.ndarray:
        """log g′(y), which a log density of g(y) needs to become that of y."""
        return self._log_slope_inside(np.clip(y, self.low, self.high))


@dataclass(frozen=True)
class LogTransform(TargetTransform):
    """g(y) = log y up to the largest training target, for positive targets.

    Examples
    --------
    >>> transform = LogTransform.fitted(np.array([1.0, np.e]), np.ones(2))
    >>> transform.apply(np.array([1.0, np.e, 2 * np.e])), transform.inverse(np.array([-50.0, 2.0])).round(3)
    (array([0., 1., 2.]), array([0.   , 5.437]))
    """

    @classmethod
    def fitted(cls, y: np.ndarray, weights: np.ndarray) -> Self:
        """Transformation up to the largest target.

        Raises
        ------
        ValueError
            For a target that is not positive.
        """
        if not (y > 0).all():
            raise ValueError(
                f"y holds {y.min():g}; target_transform='log' needs targets above zero. Use "
                "target_transform='yeo-johnson', which takes all numbers, or 'auto'."
            )
        return cls(0.0, float(y.max()))

    @property
    def ends(self) -> tuple[float, float]:
        """Minus infinity and the logarithm of the largest target."""
        return -np.inf, float(np.log(self.high))

    def apply(self, y: np.ndarray) -> np.ndarray:
        """g(y); minus infinity for y ≤ 0."""
        positive = y > 0
        transformed: np.ndarray = np.where(positive, super().apply(np.where(positive, y, self.high)), -np.inf)
        return transformed

    def log_slope(self, y: np.ndarray) -> np.ndarray:
        """log g′(y); 0 for y ≤ 0, where the density is zero."""
        positive = y > 0
        slope: np.ndarray = np.where(positive, super().log_slope(np.where(positive, y, self.high)), 0.0)
        return slope

    def _inside(self, y: np.ndarray) -> np.ndarray:
        return np.log(y)

    def _inside_inverse(self, z: np.ndarray) -> np.ndarray:
        return np.exp(z)

    def _log_slope_inside(self, y: np.ndarray) -> np.ndarray:
        return -np.log(np.maximum(y, np.finfo(float).tiny))


@dataclass(frozen=True)
class YeoJohnson(TargetTransform):
    r"""Yeo & Johnson's transformation of u = (y − centre) / unit, for any targets.

    .. math:: \tilde g = \frac{(1 + u)^\lambda - 1}{\lambda} \text{ for } u \ge 0, \qquad
        \tilde g = -\frac{(1 - u)^{2 - \lambda} - 1}{2 - \lambda} \text{ for } u < 0

    with the limits log(1 + u) for λ = 0 and −log(1 − u) for λ = 2. Centre and unit are mean and standard deviation of
    the targets, and λ maximises the normal log likelihood of the transformed targets.

    Parameters
    ----------
    low, high : float
        Range of the training targets.
    centre, unit : float
        In the units of y.
    power : float
        λ.

    Examples
    --------
    >>> y = np.exp(np.random.default_rng(0).normal(size=200))
    >>> transform = YeoJohnson.fitted(y, np.ones(200))
    >>> transform.power < 1, bool(np.allclose(transform.inverse(transform.apply(y)), y))
    (True, True)
    """

    centre: float
    unit: float
    power: float

    @classmethod
    def fitted(cls, y: np.ndarray, weights: np.ndarray) -> Self:
        """Transformation under which the targets are as close to normal as possible; the identity if they are equal.

        It is not much stronger than a logarithm, see ``LEAST_SLOPE``.
        """
        low, high = float(y.min()), float(y.max())
        width = high - low
        centre = float(np.average(y, weights=weights))
        if not width > 0:
            return cls(low, high, centre, 1.0, 1.0)
        unit = width * float(np.sqrt(np.average(((y - centre) / width) ** 2, weights=weights)))

        # relative to the centre, the slope at a distance u is (1 + u)^(λ - 1) above it and (1 + u)^(1 - λ) below it
        logs = [math.log1p(max(end / unit, SAME_END)) for end in (high - centre, centre - low)]
        least = max(POWERS[0], min(LOGARITHMS[0], 1 + math.log(LEAST_SLOPE) / logs[0]))
        most = min(POWERS[1], max(LOGARITHMS[1], 1 - math.log(LEAST_SLOPE) / logs[1]))

        def loss(power: float) -> float:
            transform = cls(low, high, centre, unit, power)
            z = transform._inside(y)
            variance = np.average((z - np.average(z, weights=weights)) ** 2, weights=weights)
            slope = np.average(transform._log_slope_inside(y), weights=weights)
            return float(0.5 * np.log(variance) - slope)

        power = minimize_scalar(loss, bounds=(least, most), method="bounded", options={"xatol": 1e-4}).x
        return cls(low, high, centre, unit, float(power))

    def _inside(self, y: np.ndarray) -> np.ndarray:
        u = (y - self.centre) / self.unit
        above, below = _power(np.log1p(np.maximum(u, 0)), self.power), _power(-np.log1p(np.maximum(-u, 0)), self._lower)
        return np.where(u >= 0, above, below)

    def _inside_inverse(self, z: np.ndarray) -> np.ndarray:
        above = np.expm1(_inverse_power(np.maximum(z, 0), self.power))
        below = -np.expm1(-_inverse_power(np.minimum(z, 0), self._lower))
        original: np.ndarray = self.centre + self.unit * np.where(z >= 0, above, below)
        return original

    def _log_slope_inside(self, y: np.ndarray) -> np.ndarray:
        u = (y - self.centre) / self.unit
        slope: np.ndarray = (self.power - 1) * np.sign(u) * np.log1p(np.abs(u)) - np.log(self.unit)
        return slope

    @property
    def _lower(self) -> float:
        """Exponent of the logarithm below the centre, λ − 2, which multiplies −log(1 − u)."""
        return self.power - 2


def _power(log: np.ndarray, power: float) -> np.ndarray:
    """(e^{λ l} − 1) / λ, or l near λ = 0."""
    transformed: np.ndarray = log if abs(power) < SAME_POWER else np.expm1(power * log) / power
    return transformed


def _inverse_power(z: np.ndarray, power: float) -> np.ndarray:
    """The l with (e^{λ l} − 1) / λ = z."""
    log: np.ndarray = z if abs(power) < SAME_POWER else np.log1p(power * z) / power
    return log


TRANSFORMS: dict[str, type[TargetTransform]] = {"log": LogTransform, "yeo-johnson": YeoJohnson}
"""Transformations by name."""
