"""Ray: fits on the workers of a local cluster are identical to serial fits."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from joblib import parallel_config
from quick import X, Y, client, regressor
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV

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


@pytest.mark.filterwarnings("ignore:One or more of the test scores:UserWarning")
def test_a_search_on_the_cluster_is_the_serial_one():
    """Equal scores, and equal predictions of the best estimator. The arrays of tasks are large, hence read-only.

    The error of a worker that fits the last candidate is reported here.
    """
    grid = {"prior_precision": [0.1, 10.0, "unknown"]}
    table, target, model = np.repeat(X, 5, 0), np.repeat(Y, 5), regressor(hessian_structure="kron", max_epochs=0)
    message = r"2 fits failed with the following error:[^$]*ValueError: prior_precision"
    with pytest.warns(FitFailedWarning, match=message):
        spread = GridSearchCV(model, grid, cv=2, scoring=neg_nlpd).fit(table, target)
    with parallel_config("sequential"), pytest.warns(FitFailedWarning, match=message):
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
