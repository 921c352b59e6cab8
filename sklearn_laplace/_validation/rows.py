"""Checks of rows, targets and sample weights: whether an object can be read as rows, and what its cells hold.

Columns are checked in ``_table/table.py``. Values are checked one by one where an error of NumPy or scikit-learn would
not name the row. All other checks are left to scikit-learn.
"""

from collections.abc import Iterator, Mapping, Sequence, Set, Sized
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, _num_samples, check_array
from torch import Tensor

NUMBERS = (Real, np.bool_, Decimal)
"""Types of numeric cells."""
MISSING = {"NAType", "NaTType"}
"""Type names of pandas' missing values; pandas itself is not imported."""
UNDECODED = "backslashreplace"
"""Error handler to decode bytes that are not UTF-8; different bytes become different text."""
UNFINISHED = ("GroupBy", "Resampler", "Rolling", "Expanding", "Window", "Styler")
"""Name endings of pandas and polars types that are derived from a table but hold no rows."""
LONGEST = 200
"""Maximum number of characters of a value in a message."""


def readable(value: Any, name: str) -> Any:
    """Return the input, or an array if it is a tensor; ``TypeError`` if the input holds no rows."""
    kind = type(value).__name__
    if kind == "LazyFrame":
        raise TypeError(f"{name} is a LazyFrame, a query that holds no rows. Pass {name}.collect().")
    if kind.endswith(UNFINISHED):
        raise TypeError(f"{name} is of type {kind}, which holds no rows. Pass the resulting table.")
    if value is None or isinstance(value, np.ndarray | list | tuple | Real) or issparse(value) or _is_frame(value):
        return value
    _refuse_collections(value, name)
    array = _array_from(value, name)
    return array if isinstance(value, Tensor) else value


def _refuse_collections(value: Any, name: str) -> None:
    kind = type(value).__name__
    if isinstance(value, Iterator):
        raise TypeError(f"{name} is of type {kind}, which can be read only once. Pass list({name}).")
    if isinstance(value, Mapping):
        is_row = name.startswith("X") and all(np.ndim(cell) == 0 for cell in value.values())
        frame = f"one row as pandas.DataFrame([{name}])" if is_row else f"a dataframe such as pandas.DataFrame({name})"
        raise TypeError(f"{name} is of type {kind}. Pass an array, or {frame}.")
    if isinstance(value, str | bytes | Set):
        raise TypeError(f"{name}={shown(value)} is of type {kind}. Pass a list, an array or a dataframe.")


def _array_from(value: Any, name: str) -> np.ndarray:
    """Convert a tensor or an object of another package to an array; ``TypeError`` if it has no rows."""
    kind = type(value).__name__
    try:
        array = _array_of(value) if isinstance(value, Tensor) else np.asarray(value)
    except Exception as error:  # conversions of third-party types may raise anything
        raise TypeError(f"{name} is of type {kind}, which numpy cannot read ({error}). Pass an array.") from error
    if array.ndim == 0 and array.dtype.kind == "O":
        raise TypeError(f"{name} is of type {kind}, which holds no rows. Pass a list, an array or a dataframe.")
    return array


def unmasked(name: str, values: Any) -> Any:
    """Return the values; ``ValueError`` for a masked array with masked values, which would otherwise count as valid."""
    if isinstance(values, np.ma.MaskedArray) and (mask := np.ma.getmaskarray(values)).any():
        number = int(mask.sum())
        raise ValueError(
            f"{name} is a masked array with {number} masked value{'s' * (number > 1)}, the first in row "
            f"{np.argwhere(mask)[0, 0] if mask.ndim else 0}; every row needs a value. Drop these rows, or fill in "
            "their values (numpy.ma.filled)."
        )
    return values


def _is_frame(value: Any) -> bool:
    return getattr(value, "columns", None) is not None and getattr(value, "dtypes", None) is not None


def no_table(X: Any) -> str | None:
    """Return an error message if X cannot be a table because of its shape or type; None otherwise."""
    if issparse(X):
        return None
    if _is_frame(X):
        return None if len(X.columns) else "Found array with 0 feature(s) while a minimum of 1 is required: no columns."
    try:
        cells = np.asarray(X)
    except ValueError:
        return _unequal_rows(X)
    if cells.dtype.kind == "V":
        return "X is a structured array. Pass its fields as columns, for example pandas.DataFrame(X)."
    if cells.ndim == 1:
        return _one_axis(X, cells)
    if cells.ndim not in (0, 2):
        return f"Expected 2D array, got {cells.ndim}D array instead: X has the shape {cells.shape}. Reshape your data."
    if cells.dtype.kind == "c":
        return "Complex data not supported. Pass the real and imaginary parts as separate columns of X."
    return None


def _unequal_rows(X: Any) -> str | None:
    """Return an error message with the first row that is not as long as row 0."""
    lengths = [len(row) if isinstance(row, Sized) else 1 for row in X]
    first = next((k for k, length in enumerate(lengths) if length != lengths[0]), None)
    if first is None:
        return None
    return f"row {first} of X has {lengths[first]} values, and row 0 has {lengths[0]}. Make all rows equally long."


def _one_axis(X: Any, cells: np.ndarray) -> str:
    """Return the error message for one-dimensional input."""
    if len(cells) and isinstance(cells[0], Mapping):
        return "Expected 2D array, got 1D array instead: X is a list of dicts. Pass pandas.DataFrame(X)."
    is_series = type(X).__module__.startswith("pandas")
    row, column = ("X.to_frame().T", "X.to_frame()") if is_series else ("[list(X)]", "[[value] for value in X]")
    return (
        f"Expected 2D array, got 1D array instead: X has the shape {cells.shape}. Reshape your data: pass {row} "
        f"for one row, {column} for one column."
    )


def _array_of(tensor: Tensor) -> np.ndarray:
    """Convert a tensor to an array; half precision becomes float32, since NumPy has no bfloat16."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    tensor = tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor
    array: np.ndarray = tensor.numpy()
    return array


def is_missing(value: Any) -> bool:
    """True if a cell is None, NaN, or pandas' NA or NaT.

    >>> [is_missing(value) for value in (None, float("nan"), Decimal("NaN"), 0.0, "")]
    [True, True, True, False, False]
    """
    if isinstance(value, Decimal):
        return value.is_nan()
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return value is None or type(value).__name__ in MISSING or (isinstance(value, Real) and value != value)


def as_text(value: Any) -> Any:
    """Decode bytes, in which ARFF files hold text; return any other value unchanged."""
    return value.decode(errors=UNDECODED) if isinstance(value, bytes) else value


def as_float(value: Any, where: str) -> float:
    """Convert a number to float; ``ValueError`` if it exceeds the range of float64."""
    try:
        return float(value)
    except OverflowError:
        raise ValueError(
            f"{where} holds {shown(value)}, which is too large for dtype('float64') (at most 1.8e308). Use another "
            "unit, or its logarithm."
        ) from None


def as_numbers(value: Any, name: str) -> Any:
    """Convert numbers of dtype object to float64; ``ValueError`` for too large ones. Return other input unchanged."""
    value = unmasked(name, readable(value, name))
    if value is None or issparse(value):
        return value
    try:
        cells = np.asarray(value)
    except ValueError:  # ragged
        return value
    if cells.dtype.kind != "O" or not all(is_missing(cell) or isinstance(cell, NUMBERS) for cell in cells.flat):
        return value
    numbers = np.full(cells.shape, np.nan)
    for place, cell in np.ndenumerate(cells):
        if not is_missing(cell):
            numbers[place] = as_float(cell, with_row(name, place))
    return numbers


def with_row(name: str, place: tuple[int, ...]) -> str:
    """Name of an input for a message, followed by the row of the cell at ``place`` if there is one."""
    return f"{name} in row {place[0]}" if place else name


def shown(value: Any) -> str:
    """Representation of a value for a message, shortened to ``LONGEST`` characters."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of more than 4300 digits
        return f"a {type(value).__name__} with thousands of digits"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def outlined(value: Any) -> str:
    """Short description of a value for a message: the shape of an array or a table, the name of a class."""
    if isinstance(value, type):
        return f"class {value.__name__}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"{type(value).__name__} of shape {shape}"
    text = " ".join(shown(value).split())
    if text.startswith("<"):
        return f"object of type {type(value).__name__}"
    return f"{text[:60]}…" if len(text) > 60 else text


WEIGHTS = (1e-100, 1e15)
"""Bounds of the largest weight. The upper one also bounds the sum: float64 cannot count single rows above 9e15."""
EXACT = 2**53
"""Largest integer up to which float64 represents all integers exactly."""


def check_targets(y: Any, *, numeric: bool, name: str = "y") -> Any:
    """Return targets (n,) or (n, C), checked to be complete and of one type; convert those that NumPy would misread."""
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
    """Raise a ``ValueError`` for infinite numbers, and for data types without real numbers."""
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
    """Return valid weights (n,) of the n rows of X: float64, non-negative and not all zero; else ``ValueError``.

    Weights of at most 1e-100 times the largest are set to zero.
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
    """Check length and signs of a list or array of weights; scikit-learn checks all other input."""
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


def check_lengths(n_rows: int, y: Any) -> None:
    """Raise a ``ValueError`` unless there is one target for each row."""
    if y is not None and (n_targets := _num_samples(y)) != n_rows:
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: X has {n_rows} rows and y has "
            f"{n_targets}. Pass one target for each row."
        )


def targets_like(y: Any, mean: np.ndarray) -> np.ndarray:
    """Return targets as float64 in the shape of the predictions; ``ValueError`` unless there is one per prediction.

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
    """Raise a ``ValueError`` unless the largest weight is within ``WEIGHTS``.

    >>> check_largest(np.array([0.5, 2.0]), "sample_weight")
    """
    largest = weights.max()
    if not WEIGHTS[0] <= largest <= WEIGHTS[1]:
        raise ValueError(
            f"the largest {name} is {largest:g}; expected {WEIGHTS[0]:g} to {WEIGHTS[1]:g}, or 0 for rows to "
            "ignore. A weight of k is equivalent to k copies of the row: divide all weights by their mean."
        )


def check_discrete(labels: np.ndarray) -> None:
    """Raise a ``ValueError`` for numbers that are not whole: these are measurements, not classes."""
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
    """Raise a ``ValueError`` if only labels or only classes are strings: NumPy would compare numbers as text."""
    if len(labels) and _is_text(labels) != _is_text(classes):
        kind = "strings" if _is_text(classes) else "numbers"
        raise ValueError(
            f"y holds labels such as {shown(labels.flat[0].item() if labels.dtype.kind != 'O' else labels.flat[0])}, "
            f"and the classes are {kind} such as {classes.tolist()[0]!r}. Pass labels of the same type."
        )


def _is_text(labels: np.ndarray) -> bool:
    return labels.dtype.kind in "OU"


def _cells(y: Any, mixed: str) -> np.ndarray:
    """Convert targets to an array; a list that would get a dtype kind in ``mixed`` becomes an object array."""
    try:
        cells = np.asarray(y)
    except ValueError:  # ragged
        cells = np.asarray(y, dtype=object)
    if isinstance(y, list | tuple) and cells.dtype.kind in mixed:
        cells = np.asarray(y, dtype=object)
    return cells


def _are_bytes(cells: np.ndarray) -> bool:
    """True for bytes, NumPy's StringDType, or an object array of bytes, possibly with missing values."""
    if cells.dtype.kind != "O":
        return cells.dtype.kind in "ST"
    kinds = {type(cell) for cell in cells.flat if not is_missing(cell)}
    return bool(kinds) and all(issubclass(kind, bytes) for kind in kinds)


def _as_text(cells: np.ndarray) -> np.ndarray:
    """Convert bytes and NumPy's StringDType to text, which scikit-learn can read; missing values are kept."""
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
    """Return a mask of the missing values; a structured array has none."""
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
    """Check that labels are all numbers or all text; return plain strings, and objects that are numbers as numbers."""
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
    """Raise a ``ValueError`` unless all labels are text or numbers; ``examples`` has one label of each type."""
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
    """Convert numbers of dtype object to a numeric array; ``ValueError`` if float64 cannot hold a label exactly."""
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
