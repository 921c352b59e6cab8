"""NGBoost and CatBoost: their predictive distributions are read by the metrics and by calibration reports.

tests/evaluation/test_calibration_report.py has stand-ins.
"""

from __future__ import annotations

import numpy as np
import pytest
from quick import NEW, SEEN, X, Y, client
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_laplace import predictive
from sklearn_laplace.metrics import CalibrationReport, log_density_scorer, neg_crps
from sklearn_laplace.recalibration import SigmaScaling


def catboost(**options):
    kind = client("catboost").CatBoostRegressor
    return kind(iterations=30, verbose=False, allow_writing_files=False, thread_count=1, random_seed=0, **options)


def test_ngboost_is_read():
    """The distribution is NGBoost's own, and the log density that of its ``logpdf``."""
    model = client("ngboost").NGBRegressor(n_estimators=60, verbose=False, random_state=0)
    model.fit(X[SEEN], Y[SEEN])
    own = model.pred_dist(X[NEW])
    report = CalibrationReport.from_estimator(model, X[NEW], Y[NEW])
    np.testing.assert_allclose(report.pit_values, own.cdf(Y[NEW]))
    assert log_density_scorer(model, X[NEW], Y[NEW]) == pytest.approx(own.logpdf(Y[NEW]).mean())
    assert 0.7 < report.spread.ratio < 2.0


def test_other_distributions_of_ngboost_are_read():
    """A log-normal one, and counts."""
    ngboost, distns = client("ngboost"), client("ngboost.distns")
    for kind, y in ((distns.LogNormal, Y), (distns.Poisson, np.round(Y / 30))):
        model = ngboost.NGBRegressor(Dist=kind, n_estimators=30, verbose=False, random_state=0).fit(X[SEEN], y[SEEN])
        report = CalibrationReport.from_estimator(model, X[NEW], y[NEW])
        assert report.pit_values.min() >= 0 and report.pit_values.max() <= 1
        assert report.crps.score < report.crps.uncertainty


def test_catboost_is_read():
    """Its two columns are a mean and a variance; pipelines and recalibration work too."""
    model = make_pipeline(StandardScaler(), catboost(loss_function="RMSEWithUncertainty")).fit(X[SEEN], Y[SEEN])
    mean, variance = model.predict(X[NEW]).T
    distribution = predictive(model, X[NEW])
    np.testing.assert_allclose(distribution.mean(), mean)
    np.testing.assert_allclose(distribution.std(), np.sqrt(variance))
    report = CalibrationReport.from_estimator(model, X[NEW], Y[NEW])
    assert report.spread.ratio == pytest.approx(np.mean((Y[NEW] - mean) ** 2 / variance))
    assert neg_crps(model, X[NEW], Y[NEW]) == pytest.approx(-report.crps.score, rel=5e-3)
    scaled = SigmaScaling(model).fit(X[NEW], Y[NEW])
    assert scaled.scale_**2 == pytest.approx(report.spread.ratio)


def test_catboost_with_another_loss_predicts_points():
    """Also if it predicts two columns, which are two targets."""
    with pytest.raises(TypeError, match="CatBoostRegressor has no predictive distribution"):
        predictive(catboost().fit(X[SEEN], Y[SEEN]), X[NEW])
    two = catboost(loss_function="MultiRMSE").fit(X[SEEN], np.column_stack([Y, Y])[SEEN])
    with pytest.raises(TypeError, match="CatBoostRegressor has no predictive distribution"):
        predictive(two, X[NEW])
