r"""Augmentation: k random copies of each row in place of the row, each with a k-th of its weight.

.. math:: \log p(D \mid \theta) = \sum_n \frac{w_n}{k} \sum_{j=1}^k \log p(y_n \mid f_\theta(a_{nj})), \qquad
          a_{nj} \sim \mathrm{augment}(x_n)

Training, curvature and evidence see the same copies, so that the mode is the mode of what the curvature is of, and N is
the number of rows still: k copies of a row are no more data than the row (Immer et al. 2022, who average over the same
orbit inside the likelihood). The original rows are seen where ``augment`` returns them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from ..errors import UnsupportedCombinationError


def check_augment(augment: Any) -> None:
    """None, or something to call.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_augment("flip")
    Traceback (most recent call last):
        ...
    ValueError: augment='flip' has to be None or a function (X, random_state) -> new X of the same shape.
    """
    if not (augment is None or callable(augment)):
        raise ValueError(
            f"augment={augment!r} has to be None or a function (X, random_state) -> new X of the same shape."
        )


def check_forgetting(augment: Any) -> None:
    """What a row has added can be taken out again only where the copies that it was seen as are known.

    Raises
    ------
    UnsupportedCombinationError

    Examples
    --------
    >>> check_forgetting(None)
    """
    if augment is not None:
        raise UnsupportedCombinationError(
            "forget cannot be used with augment: rows were seen as random copies, which depend on the rows that they "
            "came with and cannot be drawn again. Fit the rows that are left, or fit with augment=None."
        )


def augmented_inputs(
    X: np.ndarray, augment: Callable[[np.ndarray, np.random.RandomState], Any], n_draws: int, seed: int
) -> np.ndarray:
    """All copies of the rows, draw by draw.

    Parameters
    ----------
    X : ndarray of shape (n, d), float64
    augment : callable
        Called ``n_draws`` times with a copy of X and one generator, a function of the seed and of X.
    n_draws : int
        k.
    seed : int

    Returns
    -------
    ndarray of shape (k · n, d), float64

    Raises
    ------
    ValueError
        When ``augment`` returns another shape, or values that are not finite numbers.

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
        found = np.asarray(returned, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"augment returned {type(returned).__name__}; expected an array of numbers {shape}."
        ) from error
    if found.shape != shape:
        raise ValueError(
            f"augment returned an array of shape {found.shape}; expected {shape}, one new row for each row that it was "
            "given. For several copies of a row use n_augmentations."
        )
    if np.isinf(found).any() or (np.isnan(found).any() and not gaps):
        raise ValueError(f"augment returned {np.count_nonzero(~np.isfinite(found))} values that are NaN or infinite.")
    return found
