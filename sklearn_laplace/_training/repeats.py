"""Held-out rows of jointly trained ensemble members: each member holds out one fold of one repeat.

A repeat is a partition of the rows into four folds, so each member is trained on three quarters of the rows. For few
rows and normal noise there are eight folds, and members are trained on seven eighths of the rows.
"""

from __future__ import annotations

import numpy as np

from .._data.rows import rehashed, row_keys

N_REPEATS, FOLDS_OF_MANY, FOLDS_OF_FEW = 2, 4, 8
"""Number of repeats, which show what a mixture gains; of folds per repeat; and of those for few rows with normal noise.
"""
LEAST_ROWS, LEAST_OF_OTHERS, FEW_ROWS = 40, 100, 1000
"""Minimum number of rows for folds, because the errors of fewer rows do not determine the noise level. Minimum for
classes and counts that train together: with fewer, members are confident far from the rows. Maximum number
of few rows, for which all repeats have the same number of steps. Few rows with normal noise have ``FOLDS_OF_FEW``
folds and linear members."""


def held_out_rows(inputs: np.ndarray, targets: np.ndarray, n_repeats: int, n_folds: int) -> np.ndarray:
    """Mask (n_repeats · n_folds, n) of the rows that each member holds out; targets (n,) are stratified classes.

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
        fold[order] = np.arange(len(unique)) % n_folds
        masks += [fold[place] == k for k in range(n_folds)]
    return np.stack(masks)
