"""Checks of targets and sample weights.

Values are checked one by one where an error of NumPy or scikit-learn would not name the row. All other checks are left
to scikit-learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, _num_samples, check_array

from .inputs import NUMBERS, as_float, as_numbers, as_text, is_missing, readable, shown, unmasked, with_row

WEIGHTS = (1e-100, 1e15)
"""Smallest and largest allowed value of the largest weight, and upper limit of their sum.

Above 9e15, float64 can no longer count single rows.
"""
EXACT = 2**53
"""Largest integer up to which float64 represents all integers exactly."""


def check_targets(y: Any, *, numeric: bool, name: str = "y") -> Any:
    """Check that targets (n,) or (n, C) are present and of a single type; unchanged if NumPy reads them correctly.

    They are numbers if ``numeric``, else labels. Raises ``TypeError`` if y holds no rows or is sparse, and
    ``ValueError`` for missing values, labels if ``numeric``, and labels of mixed types.
    """
    y = unmasked(name, readable(y, name))
    if issparse(y):
        raise TypeError(f"Sparse data was passed for {name}, but dense data is required. Use .toarray().")
    if y is None:
        return y
    cells = _cells(y, "US" if numeric else "USf")
    if _are_bytes(cells):
        y = cells = _as_text(cells)
    if cells.ndim > 2:
        raise ValueError(f"{name} has shape {cells.shape}; expected one target, or a row of them, for each row of X.")
    _check_present(cells, name)
    if numeric:
        _check_numeric(cells, name)
    if cells.dtype.kind not in "OV":
        return y if isinstance(y, list | tuple | np.ndarray) else cells
    return _as_numbers(cells, name) if numeric else _as_labels(y, cells.astype(object, copy=False), name)


def _check_numeric(cells: np.ndarray, name: str) -> None:
    """``ValueError`` for infinite numbers and for data types of which no value is a real number."""
    kind = cells.dtype.kind
    if kind == "c":
        raise ValueError(f"Complex data not supported: {name} holds {cells.flat[0]}. Pass the parts as two targets.")
    if kind == "f" and (infinite := np.isinf(cells)).any():
        raise ValueError(
            f"Input {name} contains infinity or a value too large for dtype('float64'), the first in row "
            f"{np.argwhere(infinite)[0, 0] if cells.ndim else 0}. Drop these rows, or use a finite number."
        )
    if kind in "mM":
        raise ValueError(
            f"{name} holds times such as {cells.flat[0]}; a regressor needs numbers. Convert them, for example to "
            f"days: ({name} - {name}.min()) / numpy.timedelta64(1, 'D')."
        )
    if kind in "USV":
        _refuse_labels(cells.ravel()[:1].tolist()[0], name)


def check_weights(sample_weight: Any, X: Any) -> np.ndarray:
    """Validated sample weights (n,), float64, non-negative and not all zero, of the n rows of X; else ``ValueError``.

    Weights of at most 1e-100 times the largest are set to zero. The largest weight has to be within ``WEIGHTS``, and
    their sum below its upper limit.
    """
    numbers = as_numbers(sample_weight, "sample_weight")
    _check_each_weight(numbers, _num_samples(X))
    weights: np.ndarray = _check_sample_weight(numbers, X, dtype=np.float64, ensure_non_negative=True)
    if not (weights > 0).any():
        raise ValueError("sample_weight is zero for every row; at least one row needs a positive weight.")
    check_largest(weights, "sample_weight")
    if (total := weights.sum()) > WEIGHTS[1]:
        raise ValueError(
            f"sample_weight sums to {total:.1e}; expected at most {WEIGHTS[1]:g}, since a weight of k is equivalent to "
            "k copies of the row. Divide all weights by their mean."
        )
    counting: np.ndarray = np.where(weights > WEIGHTS[0] * weights.max(), weights, 0.0)
    return counting


def _check_each_weight(weights: Any, n_rows: int) -> None:
    """Check length and signs of a list or array of weights; all other input is left to scikit-learn's checks."""
    values = np.asarray(weights)
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        return
    if len(values) != n_rows:
        raise ValueError(f"sample_weight has {len(values)} entries for {n_rows} rows of X; pass one for each row.")
    if (wrong := ~(np.isfinite(values) & (values >= 0))).any():
        raise ValueError(
            f"sample_weight holds {values[wrong][0]} in row {wrong.argmax()}; weights have to be finite and not "
            "negative. Use 0 for rows to ignore."
        )


def check_lengths(n_rows: int, y: Any, name: str = "y") -> None:
    """``ValueError`` unless there is one target for each row."""
    if y is not None and (n_targets := _num_samples(y)) != n_rows:
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: X has {n_rows} rows and {name} has "
            f"{n_targets}. Pass one target for each row."
        )


def targets_like(y: Any, mean: np.ndarray) -> np.ndarray:
    """Targets as float64 in the shape of their predictions; ``ValueError`` if there is not one for each prediction.

    >>> targets_like([[1.0], [2.0]], np.zeros(2))
    array([1., 2.])
    """
    if y is None:
        raise ValueError(f"y is None; pass the {len(mean)} targets of the rows of X.")
    targets = check_array(check_targets(y, numeric=True), ensure_2d=False, dtype=np.float64, input_name="y")
    if targets.size != mean.size or len(targets) != len(mean):
        raise ValueError(f"y has shape {targets.shape}; expected {mean.shape}, one target for each prediction.")
    return targets.reshape(mean.shape)


def check_largest(weights: np.ndarray, name: str) -> None:
    """``ValueError`` unless the largest weight is within ``WEIGHTS``.

    >>> check_largest(np.array([0.5, 2.0]), "sample_weight")
    """
    largest = weights.max()
    if not WEIGHTS[0] <= largest <= WEIGHTS[1]:
        raise ValueError(
            f"the largest {name} is {largest:g}; expected {WEIGHTS[0]:g} to {WEIGHTS[1]:g}, or 0 for rows to "
            "ignore. A weight of k is equivalent to k copies of the row: divide all weights by their mean."
        )


def check_discrete(labels: np.ndarray) -> None:
    """``ValueError`` for numbers that are not whole, which are measurements and no classes."""
    try:
        check_classification_targets(labels)
    except ValueError as error:
        reason = str(error).partition(". ")[0]
        raise ValueError(
            f"{reason}. y holds numbers such as {shown(labels.tolist()[0])}, which are not classes. Use "
            "LaplaceRegressor for numbers, or convert them to classes."
        ) from error


def check_outputs(n_outputs: int, fitted: int) -> None:
    if n_outputs != fitted:
        raise ValueError(f"y has {n_outputs} columns; expected {fitted}, one for each fitted target.")


def check_same_kind(labels: np.ndarray, classes: np.ndarray) -> None:
    """``ValueError`` if only one of labels and classes holds strings: NumPy would compare numbers by their digits."""
    if len(labels) and _is_text(labels) != _is_text(classes):
        kind = "strings" if _is_text(classes) else "numbers"
        raise ValueError(
            f"y holds labels such as {shown(labels.flat[0].item() if labels.dtype.kind != 'O' else labels.flat[0])}, "
            f"and the classes are {kind} such as {classes.tolist()[0]!r}. Pass labels of the same type."
        )


def _is_text(labels: np.ndarray) -> bool:
    return labels.dtype.kind in "OU"


def _cells(y: Any, mixed: str) -> np.ndarray:
    """Targets as an array.

    For a list, the dtype is object if NumPy's common dtype is of a kind in ``mixed``: such an array may hold values of
    mixed types converted by NumPy.
    """
    try:
        cells = np.asarray(y)
    except ValueError:  # ragged
        cells = np.asarray(y, dtype=object)
    if isinstance(y, list | tuple) and cells.dtype.kind in mixed:
        cells = np.asarray(y, dtype=object)
    return cells


def _are_bytes(cells: np.ndarray) -> bool:
    """True for bytes or NumPy's StringDType; of objects, if those that are not missing are bytes, and there is one."""
    if cells.dtype.kind != "O":
        return cells.dtype.kind in "ST"
    kinds = {type(cell) for cell in cells.flat if not is_missing(cell)}
    return bool(kinds) and all(issubclass(kind, bytes) for kind in kinds)


def _as_text(cells: np.ndarray) -> np.ndarray:
    """Bytes and NumPy's StringDType as text, which scikit-learn can read; missing values are kept."""
    texts = [as_text(cell) for cell in cells.flat]
    kind = np.str_ if all(isinstance(text, str) for text in texts) else np.object_
    return np.array([*texts, ""], dtype=kind)[:-1].reshape(cells.shape)


def _check_present(cells: np.ndarray, name: str) -> None:
    missing = _missing(cells)
    if missing.any():
        first = tuple(place[0] for place in missing.nonzero())
        value = cells[first]
        text = "NaN" if isinstance(value, float) else shown(value)
        count = f"{missing.sum()} of {missing.size} values missing, the first in row {first[0]}"
        rows = "Drop these rows, or impute their targets" if name.startswith("y") else "Pass only the known classes"
        raise ValueError(f"Input {name} contains {text}: {count}. {rows}.")


def _missing(cells: np.ndarray) -> np.ndarray:
    """True for each missing value; a structured array has none."""
    if cells.dtype.kind == "O":
        return np.array([is_missing(cell) for cell in cells.flat]).reshape(cells.shape)
    if cells.dtype.kind in "fmM":
        return cells != cells
    return np.zeros(cells.shape, dtype=bool)


def _as_numbers(cells: np.ndarray, name: str) -> np.ndarray:
    numbers = np.empty(cells.shape)
    for place, cell in np.ndenumerate(cells):
        if not isinstance(cell, NUMBERS):
            _refuse_labels(cell, name)
        numbers[place] = as_float(cell, with_row(name, place))
    return numbers


def _refuse_labels(value: Any, name: str) -> None:
    raise ValueError(
        f"{name} holds values such as {shown(value)}; a regressor needs numbers. For labels use LaplaceClassifier."
    )


def _as_labels(y: Any, cells: np.ndarray, name: str) -> Any:
    """Labels of a single type: strings unchanged, numbers of dtype object as a numeric array."""
    examples: dict[type, Any] = {}
    for cell in cells.flat:
        examples.setdefault(type(cell), cell)
    _check_label_types(examples, name)
    _check_one_type(examples, name)
    if any(issubclass(kind, NUMBERS) for kind in examples):
        return _numeric_labels(cells, name)
    texts = {kind for kind in examples if issubclass(kind, str)}
    if not texts <= {str, np.str_}:  # NumPy converts an enum to its name, not its value
        return np.array([str.__str__(cell) for cell in cells.flat]).reshape(cells.shape)
    return y


def _check_label_types(examples: Mapping[type, Any], name: str) -> None:
    """``ValueError`` unless each type of labels, given with an example, is that of text or numbers."""
    for kind, cell in examples.items():
        if not issubclass(kind, str | bytes) and not issubclass(kind, NUMBERS):
            raise ValueError(
                f"{name} holds labels of the type {kind.__name__}, such as {shown(cell)}; expected strings, whole "
                f"numbers or booleans. Convert them, for example with .astype(str)."
            )


def _check_one_type(examples: Mapping[type, Any], name: str) -> None:
    groups = [[kind for kind in examples if issubclass(kind, base)] for base in (NUMBERS, str, bytes)]
    present = [group[0] for group in groups if group]
    if len(present) > 1:
        raise ValueError(
            f"{name} holds labels of the types {_and([kind.__name__ for kind in present])}, such as "
            f"{_and([shown(examples[kind]) for kind in present])}. Convert all of them to strings, "
            "for example with .astype(str), or all of them to numbers."
        )


def _numeric_labels(cells: np.ndarray, name: str) -> np.ndarray:
    """Numbers of dtype object as a numeric array; ``ValueError`` if float64 cannot hold a label exactly."""
    values = [as_float(cell, name) if isinstance(cell, Decimal | Fraction) else cell for cell in cells.flat]
    numbers = np.array(values)
    largest = max(values, key=abs)
    if numbers.dtype.kind not in "biu" and abs(largest) > EXACT:
        raise ValueError(
            f"{name} holds the label {shown(largest)}, which float64 cannot distinguish from neighbouring numbers. "
            "Convert the labels to strings, for example with .astype(str)."
        )
    return numbers.reshape(cells.shape)


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
