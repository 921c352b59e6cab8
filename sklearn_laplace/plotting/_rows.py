"""What displays ask of estimators and arrays: which kind of model it is, its predictive, one output of several."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_array, check_is_fitted

from .._unwrap import final_step, predictive
from ..distributions.mixtures import CountMixture
from ..distributions.poisson_log_normal import PoissonLogNormal


def numbers(name: str, values: Any, n_rows: int | None = None) -> np.ndarray:
    """Finite numbers with at least one row, float64.

    Raises
    ------
    ValueError
        For no rows, NaN, and another number of rows than expected.

    Examples
    --------
    >>> numbers("mean", [1.0, 2.0], 3)
    Traceback (most recent call last):
        ...
    ValueError: mean has 2 rows; expected 3, one for each target.
    """
    found: np.ndarray = check_array(values, ensure_2d=False, allow_nd=True, dtype=np.float64, input_name=name)
    if n_rows is not None and len(found) != n_rows:
        raise ValueError(f"{name} has {len(found)} rows; expected {n_rows}, one for each target.")
    return found


def regression(display: str, estimator: Any, X: Any) -> Any:
    """The predictive distribution of a regressor, whatever wraps it.

    Raises
    ------
    TypeError
        For a classifier, and for a model without a predictive distribution.
    """
    step, rows = final_step(estimator, X)
    check_is_fitted(step)
    if is_classifier(step):
        raise TypeError(
            f"{display} draws distributions of numeric targets; found the classifier {type(step).__name__}. For "
            "classes use ReliabilityDisplay, EntropyDisplay or UncertaintyDisplay."
        )
    return predictive(step, rows)


def classification(display: str, estimator: Any, X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Class probabilities (n, K) and labels (K,) of a classifier, whatever wraps it.

    Raises
    ------
    TypeError
        For a regressor.
    """
    step, rows = final_step(estimator, X)
    check_is_fitted(step)
    if not is_classifier(step):
        raise TypeError(
            f"{display} draws class probabilities; found {type(step).__name__}. For numeric targets use "
            "CoverageDisplay, PredictionIntervalDisplay or UncertaintyDisplay."
        )
    return predictive(step, rows), step.classes_


def is_discrete(distribution: Any) -> bool:
    """Whether a predictive is one of counts."""
    return isinstance(distribution, PoissonLogNormal | CountMixture)


def targets_like(y: Any, mean: np.ndarray) -> np.ndarray:
    """Targets in the shape of their predictions.

    Raises
    ------
    ValueError
        For another number of them.

    Examples
    --------
    >>> targets_like([[1.0], [2.0]], np.zeros(2))
    array([1., 2.])
    """
    targets = numbers("y", y)
    if targets.shape[0] != mean.shape[0] or targets.size != mean.size:
        raise ValueError(f"y has shape {targets.shape}; expected {mean.shape}, one target for each prediction.")
    return targets.reshape(mean.shape)


def output_index(display: str, output: int | None, shape: tuple[int, ...]) -> int:
    """Which of the outputs of predictions of this shape is drawn.

    Raises
    ------
    ValueError
        For several outputs of which none is chosen, and for one that is not there.

    Examples
    --------
    >>> output_index("CoverageDisplay", None, (10, 3))
    Traceback (most recent call last):
        ...
    ValueError: the model has 3 outputs, and CoverageDisplay draws one of them; give output=0 to 2.
    """
    n = shape[1] if len(shape) > 1 else 1
    if output is None and n > 1:
        raise ValueError(f"the model has {n} outputs, and {display} draws one of them; give output=0 to {n - 1}.")
    if output is None:
        return 0
    if not isinstance(output, Integral) or not 0 <= output < n:
        raise ValueError(f"output={output!r} is not there; the outputs of the model are 0 to {n - 1}.")
    return int(output)


def column(values: np.ndarray, index: int) -> np.ndarray:
    """One output (n,) of values (n,) or (n, k).

    Examples
    --------
    >>> column(np.array([[1.0, 2.0], [3.0, 4.0]]), 1)
    array([2., 4.])
    """
    return values if values.ndim == 1 else values[:, index]
