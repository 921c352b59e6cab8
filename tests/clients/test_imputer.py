"""scikit-learn's iterative imputer with draws from the posterior predictive."""

from __future__ import annotations

import numpy as np
from quick import X, regressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer


def test_gaps_are_filled_by_draws():
    """Draws differ between seeds, with the spread of a prediction rather than that of a mean."""
    rows, gaps = X[:150, :4].copy(), np.zeros((150, 4), dtype=bool)
    gaps[::6, 1] = True
    rows[gaps] = np.nan
    filled = [
        IterativeImputer(
            regressor(hidden_layer_sizes=(4,)),
            sample_posterior=True,
            skip_complete=True,
            max_iter=2,
            random_state=seed,
        ).fit_transform(rows)[gaps]
        for seed in range(3)
    ]
    spread = np.std(filled, axis=0).mean()
    assert 0.2 * X[:150, 1].std() < spread < 2 * X[:150, 1].std()
    np.testing.assert_array_equal(np.isfinite(filled), True)
