r"""Logarithm of a positive target, under which skewed noise is closer to normal.

.. math:: g(y) = \begin{cases} \log y & 0 < y \le b \\ \log b + (y - b) / b & y > b \end{cases}

b is the largest training target. Above b, g continues as a straight line with the same slope. Below the smallest
target, g stays logarithmic, so predictions stay above zero.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True)
class LogTransform:
    """Transformation g(y) of one positive target; ``high`` is b, in the units of y.

    Examples
    --------
    >>> transform = LogTransform.fitted(np.array([1.0, np.e]))
    >>> transform.apply(np.array([1.0, np.e, 2 * np.e])), transform.inverse(np.array([-50.0, 2.0])).round(3)
    (array([0., 1., 2.]), array([0.   , 5.437]))
    """

    high: float

    @classmethod
    def fitted(cls, y: np.ndarray) -> Self:
        """Transformation for training targets (n,). Raises a ``ValueError`` if a target is not positive."""
        if not (y > 0).all():
            raise ValueError(
                f"y holds {y.min():g}; target_transform='log' needs targets above zero. Use target_transform=None, or "
                "a PowerTransformer in scikit-learn's TransformedTargetRegressor, which takes all numbers."
            )
        return cls(float(y.max()))

    @property
    def end(self) -> float:
        """g(b)."""
        return float(np.log(self.high))

    def apply(self, y: np.ndarray) -> np.ndarray:
        """g(y); minus infinity for y ≤ 0."""
        positive = y > 0
        y = np.where(positive, y, self.high)
        z = np.log(np.minimum(y, self.high)) + np.maximum(y - self.high, 0.0) / self.high
        return np.where(positive, z, -np.inf)

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """The y with g(y) = z."""
        return np.exp(np.minimum(z, self.end)) + self.high * np.maximum(z - self.end, 0.0)

    def log_slope(self, y: np.ndarray) -> np.ndarray:
        """log g′(y), the term that turns the log density of g(y) into that of y; 0 for y ≤ 0, outside the domain."""
        return -np.log(np.where(y > 0, np.clip(y, np.finfo(float).tiny, self.high), 1.0))
