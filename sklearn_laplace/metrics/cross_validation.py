"""Cross-validation of predictive distributions: all scores per fold in one table."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.metrics import accuracy_score
from sklearn.model_selection import cross_validate

from .._estimator.unwrap import final_step
from .._validation.arguments import explained
from ..distributions.evaluation import central_interval, crps_of, is_discrete
from ..distributions.other_models import log_density
from .calibration import expected_calibration_error
from .scores import _interval_score, _judged, _levels, _log_probability

if TYPE_CHECKING:
    from pandas import DataFrame


@explained
def cross_validate_distribution(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    cv: Any = None,
    groups: Any = None,
    levels: Any = (0.5, 0.8, 0.9, 0.95),
    n_jobs: int | None = None,
    params: dict[str, Any] | None = None,
) -> DataFrame:
    """Cross-validate an estimator with a predictive distribution.

    Parameters
    ----------
    estimator : estimator
        A Laplace estimator, a regressor with ``predict(X, return_std=True)``, or a classifier with ``predict_proba``;
        possibly inside ``Pipeline`` or a search.
    X : array-like of shape (n_samples, n_features)
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
    cv : int, splitter or iterable, default=None
        As in :func:`sklearn.model_selection.cross_validate`.
    groups : array-like of shape (n_samples,), optional
        Groups for the splitter.
    levels : sequence of float
        Levels of the intervals, strictly between 0 and 1.
    n_jobs : int, optional
        Number of folds fitted in parallel.
    params : dict, optional
        Arguments of ``fit``, such as ``sample_weight``.

    Returns
    -------
    pandas.DataFrame of shape (n_folds, n_scores)
        Regression: "log_density" in nats per row (higher is better), and coverage per level, such as "coverage_50".
        "crps" (not for counts), "interval_score" of the 90 % intervals and "rmse" are in units of y (smaller is
        better). Classification: "log_density", "accuracy", "brier_score" (sum over classes, 0 to 2) and
        "calibration_error". "fit_time" and "score_time" are in seconds.

    Raises
    ------
    ImportError
        If pandas is not installed.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> X, y = load_diabetes(return_X_y=True)
    >>> table = cross_validate_distribution(BayesianRidge(), X, y, cv=3)
    >>> table[["log_density", "crps", "coverage_90"]].mean().round(2).tolist()
    [-5.43, 31.26, 0.89]
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("cross_validate_distribution returns a DataFrame; install pandas.") from error
    scores = partial(_scores, levels=_levels(levels))
    options: dict[str, Any] = {"cv": cv, "groups": groups, "n_jobs": n_jobs, "params": params}
    result = cross_validate(estimator, X, y, scoring=scores, error_score="raise", **options)
    table = pandas.DataFrame(result).rename(columns=lambda name: name.removeprefix("test_")).rename_axis("fold")
    times = ["fit_time", "score_time"]
    return table[[*(name for name in table if name not in times), *times]]


def _scores(estimator: Any, X: Any, y: Any, *, levels: tuple[float, ...]) -> dict[str, float]:
    step, rows = final_step(estimator, X)
    if is_classifier(step):
        p, classes = step.predict_proba(rows), step.classes_
        true = np.asarray(y)[:, None] == classes
        return {
            "log_density": float(np.mean(_log_probability(p, classes, y))),
            "accuracy": float(accuracy_score(y, classes[p.argmax(1)])),
            "brier_score": float(np.mean(((p - true) ** 2).sum(1))),
            "calibration_error": expected_calibration_error(y, p, labels=classes),
        }
    distribution, targets = _judged("cross_validate_distribution", estimator, X, y)
    density = log_density(distribution, targets)
    scores = {"log_density": float(density.reshape(len(density), -1).sum(1).mean())}
    if not is_discrete(distribution):
        scores["crps"] = float(np.mean(crps_of(distribution, targets)))
    scores["interval_score"] = float(np.mean(_interval_score(distribution, targets, 0.9)))
    scores["rmse"] = float(np.sqrt(np.mean((targets - distribution.mean()) ** 2)))
    for level in levels:
        lower, upper = central_interval(distribution, level)
        scores[f"coverage_{100 * level:g}"] = float(np.mean((lower <= targets) & (targets <= upper)))
    return scores
