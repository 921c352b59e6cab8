"""Predictive distributions of regressors from other packages, computed by the method that each regressor provides."""

import inspect
from typing import Any

import numpy as np
from scipy.stats import norm

NEEDED = "mean", "std", "cdf", "ppf"
"""Methods that a predictive distribution needs."""
MEAN_AND_VARIANCE = "RMSEWithUncertainty"
"""Loss of CatBoost for which ``predict`` returns a mean and a variance per row."""
METHODS = (
    "a regressor whose predict takes return_std, has pred_dist (NGBoost) or predict_dist, or is a CatBoostRegressor "
    f"with loss_function='{MEAN_AND_VARIANCE}'"
)
"""Description of accepted models, for messages."""


def distribution_of(model: Any, X: Any) -> Any | None:
    """Predictive distribution of a fitted regressor; None if it predicts points only.

    The first available method is used: ``pred_dist(X)`` (NGBoost), ``predict(X)`` of CatBoost with the loss
    ``"RMSEWithUncertainty"`` (a mean and a variance), ``predict(X, return_std=True)``, or ``predict_dist(X)``.
    """
    if callable(getattr(model, "pred_dist", None)):
        found = model.pred_dist(X)
        return checked(getattr(found, "dist", found), f"{type(model).__name__}.pred_dist(X)")
    if _has_mean_and_variance(model):
        mean, variance = np.asarray(model.predict(X)).T
        return _normal(mean, np.sqrt(variance), f"{type(model).__name__}.predict(X)")
    if "return_std" in _parameters(getattr(model, "predict", None)):
        mean, std = model.predict(X, return_std=True)
        return _normal(mean, std, f"{type(model).__name__}.predict(X, return_std=True)")
    if callable(getattr(model, "predict_dist", None)):
        return checked(model.predict_dist(X), f"{type(model).__name__}.predict_dist(X)")
    return None


def checked(distribution: Any, source: str) -> Any:
    """Return ``distribution`` if it has the methods of a frozen distribution; otherwise raise a ``TypeError``."""
    missing = [name for name in NEEDED if not callable(getattr(distribution, name, None))]
    if missing:
        raise TypeError(
            f"{source} is of type {type(distribution).__name__}, which has no {' and no '.join(missing)}; expected a "
            "frozen distribution with the methods mean, std, cdf and ppf, such as scipy.stats.norm(mean, std)."
        )
    return distribution


def is_normal(distribution: Any) -> bool:
    """True for SciPy's frozen normal distribution."""
    return isinstance(getattr(distribution, "dist", None), type(norm))


def log_density(distribution: Any, targets: np.ndarray) -> np.ndarray:
    """Log density of each target, or log probability of counts. Raises a ``TypeError`` if neither is defined."""
    method = getattr(distribution, "logpdf", None) or getattr(distribution, "logpmf", None)
    if method is None:
        raise TypeError(
            f"the predictive distribution of type {type(distribution).__name__} has no logpdf; the log density needs "
            "it. Use the CRPS or the interval score."
        )
    return np.asarray(method(targets))


def _has_mean_and_variance(model: Any) -> bool:
    settings = getattr(model, "get_all_params", None)
    return callable(settings) and settings().get("loss_function") == MEAN_AND_VARIANCE


def _parameters(method: Any) -> Any:
    return inspect.signature(method).parameters if callable(method) else {}


def _normal(mean: Any, std: Any, source: str) -> Any:
    if not (np.isfinite(std).all() and (std > 0).all()):
        raise ValueError(
            f"{source} returned a standard deviation of {np.min(std)}; a density needs finite, positive standard "
            "deviations. Use a model that includes the observation noise."
        )
    return norm(mean, std)
