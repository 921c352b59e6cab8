"""Shared helpers of the client tests: optional imports, data, and small estimators."""

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
"""A single small net with the prior from the evidence; these tests check the interface, not the quality."""
X, Y = load_diabetes(return_X_y=True)
SEEN, NEW = slice(0, 300), slice(300, None)
MOONS, SIDE = make_moons(200, noise=0.25, random_state=0)


def client(name: str) -> ModuleType:
    """Import a package, or skip the tests if it is missing; with ``ALL_CLIENTS`` set, a missing package is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # issued by the packages during import
        return import_module(name) if "ALL_CLIENTS" in os.environ else pytest.importorskip(name)


def regressor(**options: object) -> LaplaceRegressor:
    """Regressor with a small net and constant noise."""
    return LaplaceRegressor(**{**QUICK, "sigma_noise": "evidence", "likelihood": "gaussian", **options})


def classifier(**options: object) -> LaplaceClassifier:
    """Classifier with a small net."""
    return LaplaceClassifier(**{**QUICK, **options})


def mean_width(ends: np.ndarray) -> float:
    """Mean width of intervals (n, 2)."""
    return float((ends[:, 1] - ends[:, 0]).mean())
