"""uncertainty-toolbox as a reference for the metrics."""

from __future__ import annotations

import numpy as np
import pytest
from quick import NEW, SEEN, X, Y, client, regressor

from sklearn_laplace import metrics

client("uncertainty_toolbox")


def test_scores_agree():
    """Negative log-likelihood, CRPS and sharpness of a normal predictive; its calibration error is small."""
    model = regressor().fit(X[SEEN], Y[SEEN])
    mean, std = model.predict(X[NEW], return_std=True)
    toolbox = client("uncertainty_toolbox.metrics")
    ours = -metrics.neg_nlpd(model, X[NEW], Y[NEW]), -metrics.neg_crps(model, X[NEW], Y[NEW])
    theirs = toolbox.nll_gaussian(mean, std, Y[NEW]), toolbox.crps_gaussian(mean, std, Y[NEW])
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    assert toolbox.mean_absolute_calibration_error(mean, std, Y[NEW]) < 0.1
    assert toolbox.sharpness(std) == pytest.approx(np.sqrt(np.mean(std**2)))
