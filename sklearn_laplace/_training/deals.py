"""Held-out rows of each member of a jointly trained ensemble.

A deal is a partition of the rows into folds. Each member holds out one fold of one deal. With two deals of four folds
there are eight members. Each member is trained on three quarters of the rows, and each row is held out by two members.
"""

from __future__ import annotations

import numpy as np

from .._data.rows import rehashed, row_keys

N_DEALS, N_FOLDS = 2, 4
"""Number of deals, and of folds per deal. With two deals, each row is held out by two members, and their errors show
how much a mixture improves on a single member."""


def held_out_rows(
    inputs: np.ndarray, targets: np.ndarray, n_deals: int = N_DEALS, n_folds: int = N_FOLDS
) -> np.ndarray:
    """Mask (n_deals · n_folds, n) of the rows that each member holds out.

    The fold of a row depends on its content and not on its position, so the order of the rows does not matter. Equal
    rows are in the same fold. Targets (n,) are classes, whose folds are stratified; otherwise their shape is (n, C).

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
