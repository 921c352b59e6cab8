r"""Data augmentation: replace each row by k random copies, each with a k-th of its weight.

.. math:: \log p(D \mid \theta) = \sum_n \frac{w_n}{k} \sum_{j=1}^k \log p(y_n \mid f_\theta(a_{nj})), \qquad
          a_{nj} \sim \mathrm{augment}(x_n)

Training, curvature and evidence use the same copies, and N remains the number of rows. Immer et al. (2022) average over
the same orbit inside the likelihood instead. The original rows take part only if ``augment`` returns them.
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
    """``ValueError`` unless the value is None or a callable with two arguments."""
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
    """``UnsupportedCombinationError`` with ``augment``: the contribution of a row's random copies cannot be removed."""
    if augment is not None:
        raise UnsupportedCombinationError(
            "forget cannot be used with augment: the fit replaced rows by random copies, which depend on all rows of "
            "that fit and cannot be drawn again. Fit the remaining rows from scratch, or fit with augment=None."
        )


def augmented_inputs(
    X: np.ndarray, augment: Callable[[np.ndarray, np.random.RandomState], Any], n_draws: int, seed: int
) -> np.ndarray:
    """Random copies (k · n, d), float64, of rows X (n, d), from k = ``n_draws`` calls of ``augment`` in order.

    X and ``seed`` determine the generator. Raises ``ValueError`` if ``augment`` returns another shape, infinite or
    non-numeric values, or NaN for X without NaN.
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
