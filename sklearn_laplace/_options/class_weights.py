"""Resolve ``class_weight``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._validation.inputs import as_float
from .._validation.values import lookup

BALANCED = "balanced"


def class_weights(given: Any, classes: np.ndarray, index: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The factor of each class on the weights of its rows, shape (n_classes,).

    Parameters
    ----------
    given : None, "balanced" or dict
    classes : ndarray of shape (n_classes,)
    index : ndarray of shape (n,)
        Class of each row.
    weights : ndarray of shape (n,)

    Raises
    ------
    ValueError
        For another name, an unknown label in the dict, a weight that is negative or not finite.

    Examples
    --------
    >>> class_weights("balanced", np.array(["a", "b"]), np.array([0, 0, 0, 1]), np.ones(4)).round(3)
    array([0.667, 2.   ])
    """
    if given is None:
        return np.ones(len(classes))
    if isinstance(given, Mapping):
        labels = classes.tolist()
        if unknown := [label for label in given if label not in labels]:
            raise ValueError(f"class_weight names {unknown}, which are not among the classes {labels}.")
        found = np.array([as_float(given.get(label, 1.0), "class_weight") for label in labels])
        if not (np.isfinite(found).all() and (found >= 0).all()):
            raise ValueError(f"class_weight={given!r} has to hold finite numbers that are not negative.")
        return found
    lookup("class_weight", given, {BALANCED: None})
    totals = np.bincount(index, weights=weights, minlength=len(classes))
    present = totals > 0
    return np.where(present, totals.sum() / (present.sum() * np.where(present, totals, 1.0)), 1.0)


def check_streaming_weights(class_weight: Any) -> None:
    """Balanced weights need all rows at once.

    Examples
    --------
    >>> check_streaming_weights({"yes": 2.0})
    """
    if isinstance(class_weight, str):
        lookup("class_weight", class_weight, {BALANCED: None})
        raise ValueError(
            f"class_weight={class_weight!r} weighs all rows against each other and cannot be used with partial_fit and "
            "forget, which see a part of them; give the weights as a dict {label: weight}."
        )
