"""Optuna: hyperparameter search with a proper score."""

from __future__ import annotations

import numpy as np
import pytest
from quick import SEEN, X, Y, client, regressor

from sklearn_laplace.metrics import neg_nlpd

optuna = client("optuna")


@pytest.mark.usefixtures("short_training")
def test_a_search_over_the_prior_precision():
    """The best score equals that of cross-validation on the same folds."""
    from sklearn.model_selection import KFold, cross_val_score

    integration = client("optuna_integration")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {"prior_precision": optuna.distributions.FloatDistribution(1e-2, 1e2, log=True)}
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    folds = KFold(3)
    search = integration.OptunaSearchCV(
        regressor(), distributions, cv=folds, n_trials=3, scoring=neg_nlpd, study=study, random_state=0
    ).fit(X[SEEN], Y[SEEN])
    again = cross_val_score(regressor(**search.best_params_), X[SEEN], Y[SEEN], cv=folds, scoring=neg_nlpd)
    np.testing.assert_allclose(search.best_score_, again.mean(), rtol=1e-6)
    assert search.best_estimator_.predict_std(X[:5]).shape == (5,)
