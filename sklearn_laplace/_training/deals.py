"""Held-out rows of jointly trained ensemble members: each member holds out one fold of one deal.

A deal is a partition of the rows into folds. Two deals of four folds give eight members, each trained on three quarters
of the rows.
"""

from __future__ import annotations

import numpy as np

from .._data.rows import rehashed, row_keys

N_DEALS, N_FOLDS = 2, 4
"""Number of deals, and of folds per deal. The two members that hold out a row show how much a mixture improves on one.
"""


def held_out_rows(inputs: np.ndarray, targets: np.ndarray, n_deals: int = N_DEALS) -> np.ndarray:
    """Mask (n_deals · N_FOLDS, n) of the rows that each member holds out; targets (n,) are stratified classes.

    The fold of a row depends on its content, not on its position: equal rows are in the same fold.
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
        fold[order] = np.arange(len(unique)) % N_FOLDS
        masks += [fold[place] == k for k in range(N_FOLDS)]
    return np.stack(masks)
