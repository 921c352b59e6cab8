"""Wrapper for ScoringBench, with the methods ``fit``, ``predict`` and ``predict_distribution``.

The board (github.com/jonaslandsgesell/ScoringBench) scores probabilities of bins. Each row has its own bins, whose
edges are quantiles of the predictive distribution at ``LEVELS``. The probability of a bin is the difference of the
cumulative probabilities at its edges. These probabilities are normalised, because the two tails outside have a total
probability of 2e-6. The mean is that of the distribution, not of the bins.

The board is not on the package index. To run it, clone its repository, put this file into
``scoringbench/univariate/wrappers/``, and add ``"laplace_0_1": LaplaceWrapper`` to the models in
``scoringbench/univariate/models.py``. Then run ``python run_bench_regression.py``. Without the board,
``LaplaceWrapper().fit(X, y).bins(X_new)`` returns the edges and the probabilities.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    from scoringbench.univariate.wrappers.base import DistributionPrediction, ProbabilisticWrapper
except ImportError:  # the wrapper works without the board, except for predict_distribution
    DistributionPrediction, ProbabilisticWrapper = None, object

LEVELS = np.concatenate(
    [[1e-6, 1e-5, 1e-4, 1e-3], np.linspace(0.005, 0.995, 199), 1 - np.array([1e-3, 1e-4, 1e-5, 1e-6])]
)
"""Cumulative probabilities of the edges."""


class LaplaceWrapper(ProbabilisticWrapper):
    """LaplaceRegressor for ScoringBench.

    Parameters
    ----------
    random_state : int
    **options : parameters of LaplaceRegressor
    """

    def __init__(self, random_state: int = 0, **options: Any) -> None:
        self.random_state, self.options = random_state, options

    def fit(self, X: Any, y: Any) -> LaplaceWrapper:
        """Fit the rows with a finite target, and return the wrapper."""
        from sklearn_laplace import LaplaceRegressor

        y = np.asarray(y, dtype=float).ravel()
        known = np.isfinite(y)
        X = X[known] if hasattr(X, "iloc") else np.asarray(X)[known]
        self._y_train_range = float(y[known].min()), float(y[known].max())
        self.model_ = LaplaceRegressor(random_state=self.random_state, **self.options).fit(X, y[known])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the mean of each row, shape (n,)."""
        return self.model_.predict(X)

    def bins(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return edges (n, bins + 1) in units of y, and probabilities (n, bins) that sum to 1."""
        edges = self.model_.predict_quantiles(X, LEVELS)
        distribution = self.model_.predict_dist(X)
        below = np.stack([distribution.cdf(edge) for edge in edges.T], axis=1)
        inside = np.diff(below, axis=1)
        return edges, inside / inside.sum(1, keepdims=True)

    def predict_distribution(self, X: Any) -> Any:
        """Return the board's predictive distribution, from the bins and the mean."""
        if DistributionPrediction is None:
            raise ImportError(
                "predict_distribution needs ScoringBench: clone it and put it on the path, or use bins(X)."
            )
        edges, probabilities = self.bins(X)
        return DistributionPrediction.from_histogram(
            edges, probabilities, mean=self.predict(X), train_range=self._y_train_range
        )
