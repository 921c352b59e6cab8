"""Neural nets on tables with error bars that can be trusted: the Laplace approximation the scikit-learn way."""

from .classifier import LaplaceClassifier
from .regressor import LaplaceRegressor

__version__ = "0.1.0"
__all__ = ["LaplaceClassifier", "LaplaceRegressor", "__version__"]
