"""Neural networks with error bars for tabular data: scikit-learn estimators that use the Laplace approximation."""

from . import metrics, plotting, recalibration
from ._estimator.classifier import LaplaceClassifier
from ._estimator.regressor import LaplaceRegressor
from ._estimator.unwrap import predict_interval, predict_std, predictive
from ._export.botorch import to_botorch
from ._export.files import load, save
from ._export.onnx import to_onnx

__version__ = "0.1.0"
__all__ = [
    "LaplaceClassifier",
    "LaplaceRegressor",
    "__version__",
    "load",
    "metrics",
    "plotting",
    "predict_interval",
    "predict_std",
    "predictive",
    "recalibration",
    "save",
    "to_botorch",
    "to_onnx",
]
