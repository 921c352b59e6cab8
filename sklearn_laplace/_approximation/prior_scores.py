"""Held-out scores of candidate prior precisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class PriorScores:
    """How each candidate for the prior precision did on the rows that were held out.

    Parameters
    ----------
    grid : ndarray of shape (k,)
        Candidates, in the order in which they were given.
    kind : str
        The rule, a value of ``prior_precision``.
    mean : ndarray of shape (k,)
        Mean score over the folds; higher is better.
    folds : ndarray of shape (n_folds, k)
        Score in each fold.

    Examples
    --------
    >>> PriorScores.of([0.1, 1.0, 10.0], "cv", [[1.0, 3.0, 0.0], [2.0, 2.0, 1.0]]).best
    1.0
    """

    grid: np.ndarray
    kind: str
    mean: np.ndarray
    folds: np.ndarray

    @classmethod
    def of(cls, grid: Any, kind: str, folds: Any) -> PriorScores:
        """From the scores of the folds."""
        by_fold = np.asarray(folds, dtype=np.float64)
        # Each candidate's scores side by side, as a search averages them: the same sums, so that ties are the same.
        return cls(np.asarray(grid), kind, np.average(np.ascontiguousarray(by_fold.T), axis=1), by_fold)

    @property
    def best(self) -> float:
        """The candidate with the highest mean, the first of equal ones."""
        return float(self.grid[self.mean.argmax()])
