"""skpro: its adapter for regressors with ``return_std``, and its estimator checks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from quick import NEW, SEEN, X, Y, client, regressor

client("skpro")
NAMES = [f"x{k}" for k in range(X.shape[1])]


@pytest.mark.usefixtures("short_training")
def test_the_adapter_passes_its_checks():
    """All checks except that of the adapter's docstring, which skpro skips."""
    adapter = client("skpro.regression.adapters.sklearn").SklearnProbaReg(regressor(hidden_layer_sizes=(4,)))
    results = client("skpro.utils").check_estimator(adapter, raise_exceptions=False)
    failed = {name: str(result) for name, result in results.items() if str(result) != "PASSED"}
    assert {name for name in failed if "doctest" not in name} == set(), failed
    assert len(results) > 20


def test_the_distribution_has_our_moments():
    """The normal distribution has mean and standard deviation of the estimator."""
    model = regressor().fit(pd.DataFrame(X[SEEN], columns=NAMES), Y[SEEN])
    adapter = client("skpro.regression.adapters.sklearn").SklearnProbaReg(regressor())
    adapter.fit(pd.DataFrame(X[SEEN], columns=NAMES), pd.DataFrame({"y": Y[SEEN]}))
    distribution = adapter.predict_proba(new := pd.DataFrame(X[NEW], columns=NAMES))
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(distribution.mean().to_numpy()[:, 0], mean)
    np.testing.assert_allclose(distribution.var().to_numpy()[:, 0], std**2)
