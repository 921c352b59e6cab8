"""Input checks shared by the displays: predictive distributions of estimators, and arrays of predictions."""

from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_array, check_is_fitted

from .._estimator.unwrap import final_step, predictive
from .._table.reading import column_names
from .._validation.arguments import count


def numbers(name: str, values: Any, n_rows: int | None = None) -> np.ndarray:
    """Return values as a finite float64 array with ``n_rows`` rows (None: at least one), or raise a ValueError."""
    array: np.ndarray = check_array(values, ensure_2d=False, allow_nd=True, dtype=np.float64, input_name=name)
    if n_rows is not None and len(array) != n_rows:
        raise ValueError(f"{name} has {len(array)} rows; expected {n_rows}, one for each target.")
    return array


def regression(display: str, estimator: Any, X: Any) -> Any:
    """Return the predictive distribution of a regressor, possibly inside wrappers, or raise a TypeError."""
    step, rows = final_step(estimator, X)
    check_is_fitted(step)
    if is_classifier(step):
        raise TypeError(
            f"{display} draws distributions of numeric targets; found the classifier {type(step).__name__}. For "
            "classes use ReliabilityDisplay, EntropyDisplay or UncertaintyDisplay."
        )
    return predictive(step, rows)


def classification(display: str, estimator: Any, X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return class probabilities (n, K) and class labels (K,) of a classifier inside wrappers, or raise a TypeError."""
    step, rows = final_step(estimator, X)
    check_is_fitted(step)
    if not is_classifier(step):
        raise TypeError(
            f"{display} draws class probabilities; found {type(step).__name__}. For numeric targets use "
            "CoverageDisplay, PredictionIntervalDisplay or UncertaintyDisplay."
        )
    return predictive(step, rows), step.classes_


def output_index(display: str, output: int | None, shape: tuple[int, ...]) -> int:
    """Return the index of the output to draw, or raise a ValueError if it does not exist or is not given."""
    n = shape[1] if len(shape) > 1 else 1
    if output is None and n > 1:
        raise ValueError(f"the model has {n} outputs and {display} draws a single output; pass output=0 to {n - 1}.")
    if output is None:
        return 0
    if not isinstance(output, Integral) or not 0 <= output < n:
        raise ValueError(f"output={output!r} does not exist; the outputs of the model are 0 to {n - 1}.")
    return int(output)


def column(values: np.ndarray, index: int) -> np.ndarray:
    """Return the values of one output, shape (n,), from an array of shape (n,) or (n, k)."""
    return values if values.ndim == 1 else values[:, index]


def target_name(y: Any, output: int) -> str:
    """Return the name of a column of y for axis labels: from a series or dataframe, or "y" for arrays.

    >>> target_name(np.zeros(3), 0), target_name(np.zeros((3, 2)), 1)
    ('y', 'y, output 1')
    """
    names = column_names(y)
    if names is not None:
        return str(names[output])
    plain = "y" if np.ndim(y) < 2 or np.shape(y)[1] == 1 else f"y, output {output}"
    name = getattr(y, "name", None)
    return plain if name in (None, "") else str(name)


def sample(n: int, most: int | None) -> np.ndarray:
    """Return the sorted indices of n rows, or of a random sample (fixed seed) if there are more than ``most``."""
    if most is None or n <= count("max_rows", most):
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, most, replace=False))
