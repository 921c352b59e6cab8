"""Which rows each member of a bagged fit does not see.

The rows are dealt into folds several times; a member leaves out one fold of one deal. With two deals of four folds
there are eight members, each sees three quarters of the rows, and each row has two members that have not seen it.
"""

from __future__ import annotations

import numpy as np

from .._data.rows import rehashed, row_keys

N_DEALS, N_FOLDS = 2, 4
"""Two deals, so that two members have not seen a row: their errors show what a mixture of members gains."""


def held_out_rows(
    inputs: np.ndarray, targets: np.ndarray, n_deals: int = N_DEALS, n_folds: int = N_FOLDS
) -> np.ndarray:
    """The rows that each member does not see, a mask (deals · folds, n).

    A fold depends on what a row holds and not on its place: the same rows in another order are dealt the same way, and
    equal rows stay together. Rows of each class are dealt out by themselves.

    Parameters
    ----------
    inputs : ndarray of shape (n, d)
    targets : ndarray of shape (n,) for classes, or (n, C)
    n_deals, n_folds : int

    Examples
    --------
    >>> masks = held_out_rows(np.arange(8.0)[:, None], np.zeros((8, 1)))
    >>> masks.shape, masks.sum(0).tolist(), masks.sum(1).tolist()
    ((8, 8), [2, 2, 2, 2, 2, 2, 2, 2], [2, 2, 2, 2, 2, 2, 2, 2])
    """
    keys = row_keys(inputs, targets)
    classes = targets if targets.ndim == 1 else np.zeros(len(keys), dtype=int)
    masks = []
    for _ in range(n_deals):
        keys = rehashed(keys)
        unique, place = np.unique(keys, return_inverse=True)
        of_class = np.zeros(len(unique), dtype=int)
        of_class[place] = classes
        order = np.argsort(of_class, kind="stable")
        fold = np.empty(len(unique), dtype=int)
        fold[order] = np.arange(len(unique)) % n_folds
        masks += [fold[place] == k for k in range(n_folds)]
    return np.stack(masks)
