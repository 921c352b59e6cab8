"""scoringrules as a reference for the metrics."""

from __future__ import annotations

import numpy as np
from quick import NEW, SEEN, X, Y, client, regressor

from sklearn_laplace import metrics

rules = client("scoringrules")


def test_scores_of_a_normal_predictive():
    """CRPS, logarithmic score and interval score, averaged over rows."""
    model = regressor().fit(X[SEEN], Y[SEEN])
    mean, std = model.predict(X[NEW], return_std=True)
    arguments = model, X[NEW], Y[NEW]
    np.testing.assert_allclose(-metrics.neg_crps(*arguments), rules.crps_normal(Y[NEW], mean, std).mean(), rtol=1e-9)
    np.testing.assert_allclose(-metrics.neg_nlpd(*arguments), rules.logs_normal(Y[NEW], mean, std).mean(), rtol=1e-9)
    low, high = model.predict_quantiles(X[NEW], (0.05, 0.95)).T
    theirs = rules.interval_score(Y[NEW], low, high, 0.1).mean()
    np.testing.assert_allclose(-metrics.neg_interval_score(*arguments), theirs, rtol=1e-9)


def test_crps_of_a_mixture():
    """CRPS of a weighted mixture of the members' normal distributions."""
    model = regressor(n_members=3).fit(X[SEEN], Y[SEEN])
    parts = [member.predict(X[NEW], return_std=True) for member in model.members_]
    mean, std = (np.stack(part, -1) for part in zip(*parts, strict=True))
    weights = np.broadcast_to(model.member_weights_, mean.shape)
    theirs = rules.crps_mixnorm(Y[NEW], mean, std, weights).mean()
    np.testing.assert_allclose(-metrics.neg_crps(model, X[NEW], Y[NEW]), theirs, rtol=1e-6)
