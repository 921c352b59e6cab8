"""scikit-activeml: pool-based active learning with the predicted standard deviations."""

from __future__ import annotations

import numpy as np
import pytest
from quick import MOONS, SIDE, X, Y, classifier, client, regressor

client("skactiveml")
pytestmark = pytest.mark.usefixtures("short_trainings")


def test_expected_variance_reduction_queries_an_unlabelled_row():
    """The wrapper detects ``return_std`` in the signature of ``predict``."""
    pool, regressors = client("skactiveml.pool"), client("skactiveml.regressor")
    y = np.where(np.arange(40) < 12, Y[:40], np.nan)
    query = pool.ExpectedModelVarianceReduction(random_state=0)
    options = {"reg": regressors.SklearnNormalRegressor(regressor(hidden_layer_sizes=(4,))), "candidates": [12, 20, 39]}
    (chosen,) = query.query(X[:40], y, **options)
    assert chosen in (12, 20, 39)


def test_greedy_uncertainty_is_that_of_the_widest_prediction():
    """The wrapped regressor returns the standard deviation of the estimator."""
    regressors = client("skactiveml.regressor")
    y = np.where(np.arange(60) < 30, Y[:60], np.nan)
    wrapped = regressors.SklearnNormalRegressor(regressor()).fit(X[:60], y)
    _, std = wrapped.predict(X[60:80], return_std=True)
    _, ours = regressor().fit(X[:30], Y[:30]).predict(X[60:80], return_std=True)
    np.testing.assert_allclose(std, ours)


def test_uncertainty_sampling_of_classes():
    """The selected row has the lowest confidence."""
    pool, classifiers = client("skactiveml.pool"), client("skactiveml.classifier")
    y = np.where(np.arange(80) < 40, SIDE[:80], np.nan)
    wrapped = classifiers.SklearnClassifier(classifier(), classes=[0, 1])
    query = pool.UncertaintySampling(method="least_confident", random_state=0)
    (chosen,) = query.query(MOONS[:80], y, clf=wrapped)
    ours = classifier().fit(MOONS[:40], SIDE[:40]).predict_proba(MOONS[40:80])
    assert chosen == 40 + ours.max(1).argmin()
