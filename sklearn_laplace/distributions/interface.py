"""Interface of predictive distributions, and base class of regressors that transform such distributions."""

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np


class PredictiveDistribution(Protocol):
    """Methods of the distributions that ``predict_dist`` returns, named as in frozen ``scipy.stats`` distributions.

    Each row and each output has its own distribution. Distributions of counts also have ``pmf`` and ``logpmf``; their
    ``logpdf`` is the log probability.

    Examples
    --------
    >>> from sklearn_laplace import LaplaceRegressor
    >>> from sklearn_laplace.distributions import PredictiveDistribution
    >>> def width(distribution: PredictiveDistribution) -> float:
    ...     low, high = distribution.interval(0.9)
    ...     return float((high - low).mean())
    >>> model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, random_state=0).fit([[0.0], [1.0]], [0.0, 1.0])
    >>> 0.3 < width(model.predict_dist([[0.0]])) < 0.5
    True
    """

    def mean(self) -> np.ndarray:
        """Mean, in units of y."""

    def var(self) -> np.ndarray:
        """Variance, in squared units of y."""

    def std(self) -> np.ndarray:
        """Standard deviation, in units of y."""
        return np.sqrt(self.var())

    def logpdf(self, x: Any) -> np.ndarray:
        """Log density in nats; for counts, log probability."""

    def cdf(self, x: Any) -> np.ndarray:
        """Probability that a target is at most x."""

    def ppf(self, q: Any) -> np.ndarray:
        """Quantiles at levels q between 0 and 1."""

    def interval(self, confidence: Any) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the central interval with a given probability: the quantiles at (1 ∓ confidence)/2."""
        confidence = np.asarray(confidence, dtype=float)
        return self.ppf((1 - confidence) / 2), self.ppf((1 + confidence) / 2)

    def rvs(self, size: Any = None, random_state: Any = None) -> np.ndarray:
        """Draws of shape ``size``."""


class Distributional(ABC):
    """Regressor that transforms the predictive distribution of another regressor.

    :func:`~sklearn_laplace.predictive` returns the result of :meth:`predict_dist` unchanged.

    Examples
    --------
    >>> from sklearn_laplace.recalibration import SigmaScaling
    >>> issubclass(SigmaScaling, Distributional)
    True
    """

    @abstractmethod
    def predict_dist(self, X: Any) -> PredictiveDistribution:
        """Predictive distribution of each row, in the units of y."""
