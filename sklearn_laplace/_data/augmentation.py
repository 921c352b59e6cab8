r"""Data augmentation: replace each row by k random copies, each with a k-th of its weight.

.. math:: \log p(D \mid \theta) = \sum_n \frac{w_n}{k} \sum_{j=1}^k \log p(y_n \mid f_\theta(a_{nj})), \qquad
          a_{nj} \sim \mathrm{augment}(x_n)

Training, curvature and evidence use the same copies, so that the curvature belongs to the objective that was minimised.
N remains the number of rows: k copies of a row are no more data than the row. Immer et al. (2022) average over the same
orbit inside the likelihood instead. The original rows take part only if ``augment`` returns them.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from ..errors import UnsupportedCombinationError


def check_augment(augment: Any) -> None:
    """Check for None or a callable with two arguments.

    Raises
    ------
    ValueError
        For any other value.

    Examples
    --------
    >>> check_augment("flip")
    Traceback (most recent call last):
        ...
    ValueError: augment='flip' has to be None or a function (X, random_state) -> new X of the same shape.
    """
    if augment is None:
        return
    takes_two = callable(augment)
    with suppress(ValueError):  # a built-in function without a signature
        try:
            inspect.signature(augment).bind(None, None)
        except TypeError:
            takes_two = False
    if not takes_two:
        raise ValueError(
            f"augment={augment!r} has to be None or a function (X, random_state) -> new X of the same shape."
        )


def check_forgetting(augment: Any) -> None:
    """Check that rows can be forgotten: their contribution cannot be removed if random copies replaced them.

    Raises
    ------
    UnsupportedCombinationError
        If ``augment`` is not None.

    Examples
    --------
    >>> check_forgetting(None)
    """
    if augment is not None:
        raise UnsupportedCombinationError(
            "forget cannot be used with augment: the fit replaced rows by random copies, which depend on all rows of "
            "that fit and cannot be drawn again. Fit the remaining rows from scratch, or fit with augment=None."
        )


def augmented_inputs(
    X: np.ndarray, augment: Callable[[np.ndarray, np.random.RandomState], Any], n_draws: int, seed: int
) -> np.ndarray:
    """Random copies of all rows.

    Parameters
    ----------
    X : ndarray of shape (n, d), float64
        Rows to copy.
    augment : callable
        Called ``n_draws`` times with a copy of X and the same generator.
    n_draws : int
        Number k of copies of each row.
    seed : int
        Determines the generator together with X.

    Returns
    -------
    ndarray of shape (k · n, d), float64
        The copies of the first call, then those of the second, and so on.

    Raises
    ------
    ValueError
        If ``augment`` returns another shape, infinite values, non-numeric values, or NaN for X without NaN.

    Examples
    --------
    >>> def jitter(X, random_state):
    ...     return X + random_state.normal(scale=0.1, size=X.shape)
    >>> augmented_inputs(np.zeros((3, 2)), jitter, 5, seed=0).shape
    (15, 2)
    """
    random_state = check_random_state(seed ^ zlib.crc32(X.tobytes()))
    gaps = bool(np.isnan(X).any())
    return np.concatenate([_checked(augment(X.copy(), random_state), X.shape, gaps) for _ in range(n_draws)])


def _checked(returned: Any, shape: tuple[int, ...], gaps: bool) -> np.ndarray:
    try:
        copies = np.asarray(returned, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"augment returned {type(returned).__name__}; expected an array of numbers of shape {shape}."
        ) from error
    if copies.shape != shape:
        raise ValueError(
            f"augment returned an array of shape {copies.shape}; expected {shape}, one new row for each row of X. For "
            "several copies of a row use options.Augmentation(function, n_copies)."
        )
    if np.isinf(copies).any() or (np.isnan(copies).any() and not gaps):
        raise ValueError(
            f"augment returned {np.count_nonzero(~np.isfinite(copies))} values that are NaN or infinite; expected "
            "finite numbers."
        )
    return copies
