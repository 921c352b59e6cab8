"""Held-out scores of candidate prior precisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class PriorScores:
    """Held-out scores of k candidate prior precisions, in the order of the search; higher is better."""

    grid: np.ndarray  # (k,)
    kind: str  # value of the parameter ``prior_precision``
    mean: np.ndarray  # (k,), over the folds
    folds: np.ndarray  # (n_folds, k)

    @classmethod
    def of(cls, grid: Any, kind: str, folds: Any) -> PriorScores:
        by_fold = np.asarray(folds, dtype=np.float64)
        # Average contiguous scores of each candidate, as scikit-learn's searches do: equal sums give equal ties.
        return cls(np.asarray(grid), kind, np.average(np.ascontiguousarray(by_fold.T), axis=1), by_fold)

    @property
    def best(self) -> float:
        """Candidate with the highest mean score; the first one if there are ties."""
        return float(self.grid[self.mean.argmax()])
