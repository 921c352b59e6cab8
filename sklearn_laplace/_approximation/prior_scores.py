"""Held-out scores of candidate prior precisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class PriorScores:
    """Held-out scores of k candidate prior precisions, ``grid`` (k,), in the order of the search.

    ``kind`` is a value of the parameter ``prior_precision``. ``mean`` (k,) is the mean of the scores ``folds``
    (n_folds, k); higher is better.

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
        """Create an object from the scores of the folds."""
        by_fold = np.asarray(folds, dtype=np.float64)
        # Average contiguous scores of each candidate, as scikit-learn's searches do: equal sums give equal ties.
        return cls(np.asarray(grid), kind, np.average(np.ascontiguousarray(by_fold.T), axis=1), by_fold)

    @property
    def best(self) -> float:
        """Candidate with the highest mean score; the first one if there are ties."""
        return float(self.grid[self.mean.argmax()])
