"""Base class of wrappers that predict a distribution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from .interface import PredictiveDistribution


class Distributional(ABC):
    """Regressor that transforms the predictive distribution of another regressor.

    :func:`~sklearn_laplace.predictive` returns its :meth:`predict_dist` unchanged.

    Examples
    --------
    >>> from sklearn_laplace.recalibration import SigmaScaling
    >>> issubclass(SigmaScaling, Distributional)
    True
    """

    @abstractmethod
    def predict_dist(self, X: Any) -> PredictiveDistribution:
        """Predictive distribution of each row, in the units of y."""
