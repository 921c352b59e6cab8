"""MAPIE: conformal intervals and sets, scaled by the predicted standard deviations."""

from __future__ import annotations

import numpy as np
from quick import MOONS, NEW, SEEN, SIDE, X, Y, classifier, client, regressor

client("mapie")


def test_intervals_scaled_by_our_std_cover():
    """Coverage .9 of 142 rows within three standard errors; the widths vary between rows."""
    regression = client("mapie.regression")
    options = {"conformity_score": "std_normalized", "confidence_level": 0.9, "cv": 3, "random_state": 0}
    model = regression.CrossConformalRegressor(regressor(), **options)
    _, ends = model.fit_conformalize(X[SEEN], Y[SEEN]).predict_interval(X[NEW])
    covered = np.mean((ends[:, 0, 0] <= Y[NEW]) & (Y[NEW] <= ends[:, 1, 0]))
    assert 0.82 < covered < 0.98
    assert np.ptp(ends[:, 1, 0] - ends[:, 0, 0]) > 1.0, "units of y: the std is not the same for all rows"


def test_a_prefitted_regressor_is_conformalised():
    """Fitted on 200 rows, conformalised on 100; the standard deviations are those of the fitted model."""
    regression = client("mapie.regression")
    model = regressor().fit(X[:200], Y[:200])
    split = regression.SplitConformalRegressor(model, conformity_score="std_normalized", prefit=True)
    mean, ends = split.conformalize(X[200:300], Y[200:300]).predict_interval(X[NEW])
    ours, std = model.predict(X[NEW], return_std=True)
    np.testing.assert_allclose(mean, ours)
    widths = ends[:, 1, 0] - ends[:, 0, 0]
    np.testing.assert_allclose(widths / std, (widths / std)[0], rtol=1e-9)


def test_sets_of_classes_cover():
    """Prediction sets on the two moons."""
    classification = client("mapie.classification")
    split = classification.SplitConformalClassifier(classifier(), confidence_level=0.9, prefit=False)
    _, sets = split.fit(MOONS[:100], SIDE[:100]).conformalize(MOONS[100:150], SIDE[100:150]).predict_set(MOONS[150:])
    covered = sets[np.arange(50), SIDE[150:], 0].mean()
    assert 0.75 < covered <= 1.0
    assert sets.shape == (50, 2, 1)
