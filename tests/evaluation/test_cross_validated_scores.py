"""Cross-validation of predictive distributions, and the names of scorers."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from joblib import parallel_config
from scipy.stats import norm
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupKFold, KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, metrics
from sklearn_laplace.metrics import cross_validate_distribution

X, Y = load_diabetes(return_X_y=True)
LINEAR = {"hidden_layer_sizes": (), "random_state": 0}


def test_each_row_of_the_table_is_a_fold():
    """The scores are those of the metrics on the same folds."""
    folds = KFold(3, shuffle=True, random_state=0)
    table = cross_validate_distribution(BayesianRidge(), X, Y, cv=folds, levels=(0.5, 0.95))
    scores = ["log_density", "crps", "interval_score", "rmse", "coverage_50", "coverage_95"]
    assert list(table) == [*scores, "fit_time", "score_time"] and table.index.name == "fold" and len(table) == 3
    for fold, (train, test) in enumerate(folds.split(X)):
        model, held_out = BayesianRidge().fit(X[train], Y[train]), (X[test], Y[test])
        expected = [
            metrics.log_density_scorer(model, *held_out),
            -metrics.neg_crps(model, *held_out),
            -metrics.neg_interval_score(model, *held_out, confidence_level=0.9),
            np.sqrt(np.mean((model.predict(X[test]) - Y[test]) ** 2)),
            metrics.coverage(model, *held_out, confidence_level=0.5),
            metrics.coverage(model, *held_out, confidence_level=0.95),
        ]
        np.testing.assert_allclose(table.loc[fold, scores].to_numpy(dtype=float), expected, rtol=1e-12)


def test_a_laplace_regressor_in_a_pipeline():
    pipe = make_pipeline(StandardScaler(), LaplaceRegressor(**LINEAR))
    table = cross_validate_distribution(pipe, X, Y, cv=2)
    assert 0.85 < table["coverage_90"].mean() < 0.95
    assert abs(table["log_density"].mean() - norm(0, table["rmse"].mean()).logpdf(table["rmse"].mean())) < 0.1


def test_several_targets_and_counts():
    several = cross_validate_distribution(LaplaceRegressor(**LINEAR), X, np.column_stack([Y, Y]), cv=2)
    single = cross_validate_distribution(LaplaceRegressor(**LINEAR), X, Y, cv=2)
    np.testing.assert_allclose(several["log_density"], 2 * single["log_density"], rtol=1e-3)
    np.testing.assert_allclose(several["crps"], single["crps"], rtol=1e-3)
    counts = np.random.default_rng(0).poisson(2.0, len(X))
    poisson = LaplaceRegressor(likelihood="poisson", prior_precision=1.0, **LINEAR)
    assert "crps" not in cross_validate_distribution(poisson, X, counts, cv=2)


def test_classes_have_scores_of_probabilities():
    x, labels = load_iris(return_X_y=True, as_frame=True)
    labels = labels.map({0: "setosa", 1: "versicolor", 2: "virginica"})
    folds = KFold(2, shuffle=True, random_state=0)
    for model in (LogisticRegression(), LaplaceClassifier(prior_precision=1.0, **LINEAR)):
        table = cross_validate_distribution(model, x, labels, cv=folds)
        assert list(table)[:4] == ["log_density", "accuracy", "brier_score", "calibration_error"]
        p = cross_val_predict(model, x, labels, cv=folds, method="predict_proba")
        assert table["log_density"].mean() == pytest.approx(-log_loss(labels, p), rel=1e-6)
        brier = ((p - (labels.to_numpy()[:, None] == np.unique(labels))) ** 2).sum(1).mean()
        assert table["brier_score"].mean() == pytest.approx(brier, rel=1e-6)


def test_groups_weights_and_workers_reach_the_folds():
    groups, weights = np.arange(len(X)) % 4, np.where(np.arange(len(X)) % 5 == 0, 50.0, 1.0)
    with parallel_config("threading"):
        table = cross_validate_distribution(BayesianRidge(), X, Y, cv=GroupKFold(4), groups=groups, n_jobs=2)
    assert len(table) == 4
    weighted = cross_validate_distribution(
        BayesianRidge(), X, Y, cv=GroupKFold(4), groups=groups, params={"sample_weight": weights}
    )
    assert (weighted["rmse"] != table["rmse"]).all()


@pytest.mark.parametrize("levels", [0.9, (0.5, 1.0), [[0.5]]])
def test_levels_that_are_none_are_refused(levels):
    with pytest.raises(ValueError, match=r"levels=.* numbers strictly between 0 and 1\."):
        cross_validate_distribution(BayesianRidge(), X, Y, levels=levels)


def test_without_pandas_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="returns a DataFrame; install pandas"):
        cross_validate_distribution(BayesianRidge(), X, Y)
