"""Held-out rows of jointly trained ensemble members: each member holds out one fold of one repeat.

A repeat is a partition of the rows into folds. Two repeats of four folds give eight members, each trained on three
quarters of the rows.
"""

from __future__ import annotations

import numpy as np

from .._data.rows import rehashed, row_keys

N_REPEATS, N_FOLDS = 2, 4
"""Number of repeats, and of folds per repeat. The two members that hold out a row show what a mixture gains."""


def held_out_rows(inputs: np.ndarray, targets: np.ndarray, n_repeats: int = N_REPEATS) -> np.ndarray:
    """Mask (n_repeats · N_FOLDS, n) of the rows that each member holds out; targets (n,) are stratified classes.

    The fold of a row depends on its content, not on its position: equal rows are in the same fold.
    """
    keys = row_keys(inputs, targets)
    classes = targets if targets.ndim == 1 else np.zeros(len(keys), dtype=int)
    masks = []
    for _ in range(n_repeats):
        keys = rehashed(keys)
        unique, place = np.unique(keys, return_inverse=True)
        of_class = np.zeros(len(unique), dtype=int)
        of_class[place] = classes
        order = np.argsort(of_class, kind="stable")
        fold = np.empty(len(unique), dtype=int)
        fold[order] = np.arange(len(unique)) % N_FOLDS
        masks += [fold[place] == k for k in range(N_FOLDS)]
    return np.stack(masks)
