"""Check the transformation of the targets, and advise on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import skew

from .._data.statistics import count_hint, zeros_hint
from .._validation.values import lookup
from ..errors import UnsupportedCombinationError
from ..laplace.likelihoods._base import Likelihood
from .options import is_auto

SKEWED = 1.0
"""Skewness of positive targets from which a hint is printed."""


def print_hint(likelihood: object, transform: object, targets: np.ndarray) -> None:
    """Print advice on counts and on targets that are mostly zero, or positive and skewed, under default options."""
    if not is_auto(likelihood) or transform is not None:
        return
    hint = count_hint(targets) or zeros_hint(targets)
    if not hint and (targets > 0).all() and (skew(targets, axis=0) > SKEWED).any():
        hint = "y is positive and skewed. If intervals reach below zero, use target_transform='log'."
    if hint:
        print(hint)


def check_target_transform(parameters: Mapping[str, Any], likelihood: Likelihood) -> None:
    """Check the name of the transformation; ``UnsupportedCombinationError`` for a likelihood without additive noise."""
    value = parameters["target_transform"]
    if value is None:
        return
    also = "None; for others use scikit-learn's TransformedTargetRegressor"
    lookup("target_transform", value, {"log": True}, also)
    if not likelihood.additive_noise:
        raise UnsupportedCombinationError(
            f"target_transform={value!r} cannot be used with likelihood={parameters['likelihood']!r}, which models "
            "counts as they are. Use target_transform=None, or likelihood='gaussian'."
        )
