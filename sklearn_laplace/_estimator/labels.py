"""Validate class labels, and find all labels of a source."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils.validation import column_or_1d

from .._table.source import Block
from .._table.source_of import Sample
from .._validation.rows import check_same_kind, check_targets
from ..options.likelihood import class_weights


def labels_of(y: Any, *, warn: bool = False) -> np.ndarray:
    """Validate labels, and return them with shape (n,)."""
    if y is None:
        raise ValueError("LaplaceClassifier requires y to be passed, but the target y is None.")
    y = check_targets(y, numeric=False)
    if np.ndim(y) == 2 and np.shape(y)[1] > 1:
        raise ValueError(
            f"y should be a 1d array, got an array of shape {np.shape(y)} instead. Pass one label for each row; "
            "one-hot columns become labels by y.argmax(axis=1)."
        )
    labels: np.ndarray = column_or_1d(y, warn=warn)
    return labels


def positions(labels: np.ndarray, weights: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return positions (n,) of labels in the sorted classes, arbitrary for unknown labels of weight zero.

    >>> positions(np.array(["b", "a"]), np.ones(2), np.array(["a", "b"])).tolist()
    [1, 0]
    """
    check_same_kind(labels, classes)
    if len(unknown := np.setdiff1d(labels[weights > 0], classes)):
        raise ValueError(
            f"y holds the labels {unknown.tolist()}, which are not among the classes {classes.tolist()}. Pass all "
            "classes in the first call, also for a previous estimator: partial_fit(X, y, classes=...)."
        )
    return np.searchsorted(classes, labels).clip(max=len(classes) - 1)


def tally(block: Block) -> dict[Any, float]:
    """Return the weight sum of each label in a block; labels with a sum of zero are omitted."""
    unique, index = np.unique(labels_of(block.y), return_inverse=True)
    weights = np.ones(len(block)) if block.sample_weight is None else np.asarray(block.sample_weight, dtype=float)
    totals = np.bincount(index.ravel(), weights=weights, minlength=len(unique)).tolist()
    return {label: total for label, total in zip(unique, totals, strict=True) if total > 0}


def classes_of(sample: Sample, class_weight: Any) -> tuple[np.ndarray, dict[Any, float]]:
    """Return the sorted labels of all rows of a source, and the class weight of each label."""
    found = _array(sample.labels, is_object=labels_of(sample.rows.y).dtype.kind == "O")
    totals = np.array(list(sample.labels.values()))
    factors = class_weights(class_weight, found, np.arange(len(found)), totals)
    return np.sort(found), dict(zip(found.tolist(), factors.tolist(), strict=True))


def weighted_total(totals: Mapping[Any, float], factors: Mapping[Any, float]) -> float:
    """Return the total weight of all rows, given the weight sum and the factor of each class.

    >>> weighted_total({"a": 2.0, "b": 1.0}, {"a": 0.5, "b": 3.0})
    4.0
    """
    return sum(factors[label] * total for label, total in zip(_array(totals).tolist(), totals.values(), strict=True))


def _array(labels: Mapping[Any, float], *, is_object: bool = False) -> np.ndarray:
    return np.array(list(labels), dtype=object) if is_object else np.array(list(labels))
