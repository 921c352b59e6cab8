"""skpro: its adapter of regressors with ``return_std``, and its own checks of that adapter with ours inside."""

from __future__ import annotations

import numpy as np
import pandas as pd
from quick import NEW, SEEN, X, Y, client, regressor

client("skpro")
NAMES = [f"x{k}" for k in range(X.shape[1])]


def test_the_adapter_passes_its_checks():
    """All but the adapter's own docstring check, which the package skips itself."""
    adapter = client("skpro.regression.adapters.sklearn").SklearnProbaReg(regressor(hidden_layer_sizes=(4,)))
    results = client("skpro.utils").check_estimator(adapter, raise_exceptions=False)
    failed = {name: str(found) for name, found in results.items() if str(found) != "PASSED"}
    assert {name for name in failed if "doctest" not in name} == set(), failed
    assert len(results) > 20


def test_the_distribution_has_our_moments():
    """A normal one, of our mean and standard deviation."""
    model = regressor().fit(pd.DataFrame(X[SEEN], columns=NAMES), Y[SEEN])
    adapter = client("skpro.regression.adapters.sklearn").SklearnProbaReg(regressor())
    adapter.fit(pd.DataFrame(X[SEEN], columns=NAMES), pd.DataFrame({"y": Y[SEEN]}))
    found = adapter.predict_proba(new := pd.DataFrame(X[NEW], columns=NAMES))
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(found.mean().to_numpy()[:, 0], mean)
    np.testing.assert_allclose(found.var().to_numpy()[:, 0], std**2)
