"""Checks shared by tables, targets and weights: can the object be read as rows, and what does a cell hold.

Columns are the matter of ``_data/table.py``, labels that of ``targets.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set, Sized
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from scipy.sparse import issparse
from torch import Tensor

NUMBERS = (Real, np.bool_, Decimal)
"""Types of numeric cells."""
MISSING = {"NAType", "NaTType"}
"""Type names of pandas' missing values; pandas itself is not imported."""
UNDECODED = "backslashreplace"
"""How bytes that are not UTF-8 become text; different bytes stay different."""
UNFINISHED = ("GroupBy", "Resampler", "Rolling", "Expanding", "Window", "Styler")
"""Endings of the names of pandas and polars types that derive from a table and hold no rows."""
LONGEST = 200
"""Maximum number of characters of a value in a message."""


def readable(value: Any, name: str) -> Any:
    """Return the input, or a tensor as an array; ``TypeError`` if it holds no rows."""
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
    """Array of a tensor or a type of another package; ``TypeError`` if there are no rows."""
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
    """Error message if the shape or type of X rules out a table; None otherwise."""
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
    """Error message with the first row that is not as long as row 0."""
    lengths = [len(row) if isinstance(row, Sized) else 1 for row in X]
    first = next((k for k, length in enumerate(lengths) if length != lengths[0]), None)
    if first is None:
        return None
    return f"row {first} of X has {lengths[first]} values, and row 0 has {lengths[0]}. Make all rows equally long."


def _one_axis(X: Any, cells: np.ndarray) -> str:
    """Error message for one-dimensional input."""
    if len(cells) and isinstance(cells[0], Mapping):
        return "Expected 2D array, got 1D array instead: X is a list of dicts. Pass pandas.DataFrame(X)."
    is_series = type(X).__module__.startswith("pandas")
    row, column = ("X.to_frame().T", "X.to_frame()") if is_series else ("[list(X)]", "[[value] for value in X]")
    return (
        f"Expected 2D array, got 1D array instead: X has the shape {cells.shape}. Reshape your data: pass {row} "
        f"for one row, {column} for one column."
    )


def _array_of(tensor: Tensor) -> np.ndarray:
    """Tensor as an array; half precision becomes float32, since NumPy has no bfloat16."""
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
    """Bytes as text, as ARFF files hold it; any other value unchanged."""
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
    """Convert numbers of any type to float64; leave all other input to scikit-learn's checks.

    Raises ``ValueError`` with the row of a number that exceeds the range of float64.
    """
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
    """Name of an input with the row of a cell, for a message."""
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
