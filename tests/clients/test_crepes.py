"""crepes: normalised conformal regression, with the predicted standard deviation as the difficulty of a row."""

from __future__ import annotations

import numpy as np
from quick import NEW, X, Y, client, mean_width, regressor

crepes = client("crepes")


def test_normalised_intervals_cover():
    """Coverage .9 of 142 rows within three standard errors; widths are proportional to the standard deviations."""
    model = regressor().fit(X[:200], Y[:200])
    wrapped = crepes.WrapRegressor(model)
    difficulty = client("crepes.extras").DifficultyEstimator().fit(f=model.predict_std)
    wrapped.calibrate(X[200:300], Y[200:300], de=difficulty)
    ends = wrapped.predict_int(X[NEW], confidence=0.9)
    covered = np.mean((ends[:, 0] <= Y[NEW]) & (Y[NEW] <= ends[:, 1]))
    assert 0.82 < covered < 0.98
    ratio = (ends[:, 1] - ends[:, 0]) / model.predict_std(X[NEW])
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)  # crepes adds .01 to the std
    assert mean_width(ends) < np.ptp(Y)
