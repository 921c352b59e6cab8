"""What the tests of the clients share: the package or a skip, rows, and estimators of few weights."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, make_moons

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

QUICK = {"hidden_layer_sizes": (8,), "n_members": 1, "prior_precision": "evidence", "random_state": 0}
"""One net, chosen by the evidence: what is asked here is whether a client can use it."""
X, Y = load_diabetes(return_X_y=True)
SEEN, NEW = slice(0, 300), slice(300, None)
MOONS, SIDE = make_moons(200, noise=0.25, random_state=0)


def client(name: str) -> ModuleType:
    """The package, or a skip of the file; with ``ALL_CLIENTS`` set, as ``.ci/clients`` does, it has to be there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # their own, while they are imported
        return import_module(name) if "ALL_CLIENTS" in os.environ else pytest.importorskip(name)


def regressor(**options: object) -> LaplaceRegressor:
    """A small net whose noise does not vary."""
    return LaplaceRegressor(**{**QUICK, "sigma_noise": "evidence", "likelihood": "gaussian", **options})


def classifier(**options: object) -> LaplaceClassifier:
    """A small net."""
    return LaplaceClassifier(**{**QUICK, **options})


def mean_width(ends: np.ndarray) -> float:
    """Of intervals (n, 2)."""
    return float((ends[:, 1] - ends[:, 0]).mean())
