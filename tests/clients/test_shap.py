"""SHAP: attribution of the standard deviation of a prediction to columns."""

from __future__ import annotations

import numpy as np
from quick import SEEN, X, Y, client, regressor

shap = client("shap")


def test_explanations_of_the_std_add_up():
    """Shapley values add up to the std of the prediction minus the mean std of the background."""
    model = regressor().fit(X[SEEN], Y[SEEN])
    background = X[:20]
    explainer = shap.KernelExplainer(model.predict_std, background)
    values = explainer.shap_values(X[300:302], nsamples=200, silent=True)
    assert values.shape == (2, X.shape[1])
    expected = model.predict_std(X[300:302]) - model.predict_std(background).mean()
    np.testing.assert_allclose(values.sum(1), expected, atol=1e-6 * float(np.std(Y)))
