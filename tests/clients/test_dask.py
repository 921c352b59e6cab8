"""dask: fits on the workers of a local cluster are identical to serial fits."""

from __future__ import annotations

import numpy as np
import pytest
from joblib import parallel_config
from quick import X, Y, client, regressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score

from sklearn_laplace.metrics import cross_validate_distribution, neg_nlpd

distributed = client("distributed")


@pytest.fixture(scope="module")
def cluster(forked_workers_of_dask):
    """Local cluster of two processes with a single thread each."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as local, distributed.Client(local):
        yield local


def test_a_search_on_the_cluster_is_the_serial_one(cluster):
    """Equal scores, and equal predictions of the best estimator."""
    grid = {"prior_precision": [0.1, 10.0]}
    serial = GridSearchCV(regressor(), grid, cv=2, scoring=neg_nlpd).fit(X[:80], Y[:80])
    with parallel_config("dask"):
        spread = GridSearchCV(regressor(), grid, cv=2, scoring=neg_nlpd).fit(X[:80], Y[:80])
    for split in (0, 1):
        scores = serial.cv_results_[f"split{split}_test_score"], spread.cv_results_[f"split{split}_test_score"]
        np.testing.assert_array_equal(*scores)
    np.testing.assert_array_equal(serial.best_estimator_.predict_std(X), spread.best_estimator_.predict_std(X))


def test_predictions_of_folds_on_the_cluster_are_the_serial_ones(cluster):
    """Fitted estimators are returned from the workers unchanged."""
    serial = cross_val_predict(regressor(), X[:80], Y[:80], cv=3)
    with parallel_config("dask"):
        spread = cross_val_predict(regressor(), X[:80], Y[:80], cv=3, n_jobs=2)
    np.testing.assert_array_equal(serial, spread)


def test_scores_of_distributions_on_the_cluster_are_the_serial_ones(cluster):
    """All scores of each fold, of an estimator that runs its own members with ``n_jobs``."""
    serial = cross_validate_distribution(regressor(n_members=2), X[:80], Y[:80], cv=2)
    with parallel_config("dask"):
        spread = cross_validate_distribution(regressor(n_members=2, n_jobs=2), X[:80], Y[:80], cv=2, n_jobs=2)
    scores = [name for name in serial if not name.endswith("_time")]
    np.testing.assert_array_equal(serial[scores], spread[scores])


def test_a_table_is_sent_to_each_worker_once(cluster):
    """joblib scatters the table: the workers hold one array of this size, whatever the number of tasks."""
    table = np.tile(X, (40, 1))
    with parallel_config("dask"):
        cross_val_score(Ridge(), table, np.tile(Y, 40), cv=6, n_jobs=2)
    (client,) = distributed.client._global_clients.values()
    arrays = [key for key, size in client.nbytes().items() if size >= table.nbytes]
    assert len(arrays) <= 1
