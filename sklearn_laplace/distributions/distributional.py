"""The protocol of estimators that predict a distribution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Distributional(ABC):
    """A regressor that makes a predictive distribution of another's, which :func:`predictive` takes as it is.

    Examples
    --------
    >>> from sklearn_laplace.recalibration import SigmaScaling
    >>> issubclass(SigmaScaling, Distributional)
    True
    """

    @abstractmethod
    def predict_dist(self, X: Any) -> Any:
        """Predictive distribution of each row, in the units of y."""
