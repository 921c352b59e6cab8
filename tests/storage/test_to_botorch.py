"""Export to BoTorch: what is refused. The model itself is tested in ``tests/clients/test_botorch.py``."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, to_botorch
from sklearn_laplace.errors import UnsupportedCombinationError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 2))
Y = np.exp(X[:, 0])
QUICK = {"hidden_layer_sizes": (3,), "n_members": 1, "prior_precision": 1.0, "random_state": 0}


@pytest.fixture(scope="module")
def model():
    return LaplaceRegressor(sigma_noise=0.1, **QUICK).fit(X, Y)


def test_a_missing_package_is_named(model, monkeypatch):
    """The package botorch is optional; the error names it."""
    for name in ("botorch", "botorch.models", "botorch.models.model"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"needs the package botorch, .*pip install botorch"):
        to_botorch(model)


@pytest.mark.parametrize(
    "estimator", [LaplaceClassifier(), make_pipeline(StandardScaler(), LaplaceRegressor())], ids=["classes", "pipeline"]
)
def test_other_estimators_are_refused(estimator):
    """A class label is no objective, and a pipeline has no gradients."""
    with pytest.raises(TypeError, match=rf"to_botorch was given a {type(estimator).__name__}; expected a fitted Lap"):
        to_botorch(estimator)


def test_fits_without_a_normal_posterior_or_gradients_are_refused():
    """Counts, transformed targets, categories, and no fit at all."""
    with pytest.raises(NotFittedError):
        to_botorch(LaplaceRegressor())
    counts = LaplaceRegressor(likelihood="poisson", **QUICK).fit(X, np.floor(Y))
    with pytest.raises(UnsupportedCombinationError, match="likelihood='poisson': a normal posterior does not fit"):
        to_botorch(counts)
    logarithms = LaplaceRegressor(target_transform="log", sigma_noise=0.1, **QUICK).fit(X, Y)
    with pytest.raises(UnsupportedCombinationError, match="to_botorch is not available with target_transform='log'"):
        to_botorch(logarithms)
    table = pd.DataFrame({"a": X[:, 0], "b": np.where(X[:, 1] > 0, "up", "down")})
    with pytest.raises(ValueError, match="need numeric columns, but column 'b' of X holds categories"):
        to_botorch(LaplaceRegressor(sigma_noise=0.1, **QUICK).fit(table, Y))
