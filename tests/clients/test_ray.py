"""Ray: fits on the workers of a local cluster are identical to serial fits."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from joblib import parallel_config
from quick import X, Y, client, regressor
from sklearn.model_selection import GridSearchCV, cross_val_score

from sklearn_laplace.metrics import cross_validate_distribution, neg_nlpd

client("ray")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray")


@pytest.fixture(scope="module", autouse=True)
def workers(ray_cluster):
    """Two workers of the cluster take the jobs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.util.joblib import register_ray

        register_ray()
    with parallel_config("ray", n_jobs=2):
        yield


def test_a_search_on_the_cluster_is_the_serial_one():
    """Equal scores, and equal predictions of the best estimator. The arrays of tasks are large, hence read-only."""
    grid = {"prior_precision": [0.1, 10.0]}
    table, target, model = np.repeat(X, 5, 0), np.repeat(Y, 5), regressor(hessian_structure="kron", max_epochs=0)
    spread = GridSearchCV(model, grid, cv=2, scoring=neg_nlpd).fit(table, target)
    with parallel_config("sequential"):
        serial = GridSearchCV(model, grid, cv=2, scoring=neg_nlpd).fit(table, target)
    for split in (0, 1):
        scores = serial.cv_results_[f"split{split}_test_score"], spread.cv_results_[f"split{split}_test_score"]
        np.testing.assert_array_equal(*scores)
    np.testing.assert_array_equal(serial.best_estimator_.predict_std(X), spread.best_estimator_.predict_std(X))


def test_scores_of_distributions_on_the_cluster_are_the_serial_ones():
    """All scores of each fold, of an estimator that runs its own members with ``n_jobs``."""
    model = regressor(n_members=2, n_jobs=2, max_epochs=0)
    spread = cross_validate_distribution(model, X, Y, cv=2)
    with parallel_config("sequential"):
        serial = cross_validate_distribution(model, X, Y, cv=2)
    scores = [name for name in serial if not name.endswith("_time")]
    np.testing.assert_array_equal(serial[scores], spread[scores])


def test_an_error_of_a_worker_is_raised_here():
    """The message of the estimator reaches the caller."""
    with pytest.raises(ValueError, match="prior_precision"):
        cross_val_score(regressor(prior_precision="unknown"), X[:80], Y[:80], cv=2, error_score="raise")
