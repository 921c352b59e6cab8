"""Resolve ``class_weight`` to a factor for each class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._validation.inputs import as_float
from .._validation.values import lookup

BALANCED = "balanced"


def class_weights(class_weight: Any, classes: np.ndarray, index: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Factor (n_classes,) of each class on the weights (n,) of its rows, for a value of ``class_weight``.

    ``index`` (n,) is the position of each row's label in the sorted ``classes`` (n_classes,). Raises ``ValueError`` for
    another name, an unknown label in the dict, or a factor that is negative or not finite.
    """
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, Mapping):
        return _given_factors(class_weight, classes)
    lookup("class_weight", class_weight, {BALANCED: None}, "a dict {label: weight}, or None")
    totals = np.bincount(index, weights=weights, minlength=len(classes))
    present = totals > 0
    return np.where(present, totals.sum() / (present.sum() * np.where(present, totals, 1.0)), 1.0)


def _given_factors(class_weight: Mapping[Any, Any], classes: np.ndarray) -> np.ndarray:
    labels = classes.tolist()
    # tolist() converts dates to other types, and a dict may have either
    place_of = {label: place for names in (labels, classes) for place, label in enumerate(names)}
    if unknown := [label for label in class_weight if label not in place_of]:
        raise ValueError(f"class_weight names {unknown}, which are not among the classes {labels}. Remove them.")
    factors = np.ones(len(classes))
    for label, factor in class_weight.items():
        factors[place_of[label]] = as_float(factor, "class_weight")
    if not (np.isfinite(factors).all() and (factors >= 0).all()):
        raise ValueError(f"class_weight={class_weight!r} has to hold finite numbers that are not negative.")
    return factors


def check_streaming_weights(class_weight: Any) -> None:
    """Refuse ``class_weight="balanced"`` in ``partial_fit`` and ``forget``, since it needs all rows at once."""
    if isinstance(class_weight, str):
        lookup("class_weight", class_weight, {BALANCED: None})
        raise ValueError(
            f"class_weight={class_weight!r} depends on all rows and cannot be used with partial_fit and forget, which "
            "receive a part of them. Pass the weights as a dict {label: weight}."
        )
