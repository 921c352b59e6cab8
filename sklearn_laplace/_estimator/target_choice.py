"""Choice of the transformation of the targets by their log density on held-out rows.

Each candidate is fitted in the same folds, for few rows as a single net. The log densities are those of y, so that they
are comparable. The best candidate is chosen. If the difference from the best is below its standard error,
a logarithm is preferred for positive targets, and no transformation otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import skew
from sklearn.base import clone
from sklearn.model_selection import KFold

from .._data.target_scale import log_slope, transformed
from .._options.options import is_auto
from .._options.target import CANDIDATES, print_hint, target_transform
from .._validation.values import random_numbers
from ..distributions.transforms import TRANSFORMS, LogTransform, TargetTransform
from ..errors import NonFiniteError, UnsupportedCombinationError
from .cross_validation import GivenRows, is_ruled, single_net

SKEWED = 0.5
"""Absolute skewness of the targets from which transformations are tried."""
FEW_ROWS, MOST_ROWS = 600, 1_500
"""Number of rows up to which all folds are scored, with single nets; above, one fold is scored. Maximum number of rows
used."""
N_FOLDS = 3
QUIET: dict[str, Any] = {"n_jobs": 1, "verbose": 0, "memory": None, "checkpoint": None}
"""Parameters of fits that are only scored."""
LOG = next(name for name, transform in TRANSFORMS.items() if transform is LogTransform)


def transformed_targets(
    model: Any, arguments: tuple[Any, ...], rows: tuple[Any, ...], targets: np.ndarray, weights: np.ndarray
) -> tuple[tuple[TargetTransform, ...], float, np.ndarray, np.ndarray]:
    """Targets under the transformation that an estimator requests; with ``verbose``, a hint on others is printed.

    ``arguments`` are X, y, sample_weight and sample_noise_variance as they were passed to ``fit``; ``rows`` has them as
    arrays, with targets (n, C). ``targets`` (m, C) and ``weights`` (m,) are those of the rows of positive weight.

    Returns the transformation of each target, or none; the weighted mean of their Σ log g′(y); and the transformed
    targets of the rows of positive weight, and of all rows. Raises ``UnsupportedCombinationError`` with
    ``sample_noise_variance``, and ``ValueError`` for targets outside the domain of the transformation.
    """
    name = model.target_transform
    if model.verbose and not model._is_candidate:
        print_hint(model.likelihood, name, targets)
    if name is None:
        return (), 0.0, targets, rows[1]
    if rows[3] is not None:
        raise UnsupportedCombinationError(
            f"target_transform={name!r} cannot be used with sample_noise_variance, whose variances are those of y "
            "itself. Use target_transform=None, or sample_weight."
        )
    if is_auto(name):
        name = None if is_ruled(model) else chosen_transform(model, GivenRows.of(*arguments), rows[1], rows[2])
    transform = target_transform(name)
    if transform is None:
        return (), 0.0, targets, rows[1]
    transforms = tuple(transform.fitted(column, weights) for column in targets.T)
    # A row of weight zero may have a target outside the domain.
    every = transformed(transforms, np.where(rows[2][:, None] > 0, rows[1], targets[:1]))
    return transforms, log_slope(transforms, targets, weights), transformed(transforms, targets), every


def settled_transform(model: Any, rows: GivenRows) -> Any:
    """The unfitted model, modified to have the chosen transformation in place of "auto".

    ``rows`` have validated targets.
    """
    if not is_auto(model.target_transform):
        return model
    targets = np.asarray(rows.y, dtype=np.float64).reshape(len(rows.y), -1)
    weights = np.ones(len(targets)) if rows.sample_weight is None else rows.sample_weight
    return model.set_params(target_transform=chosen_transform(model, rows, targets, weights))


def chosen_transform(model: Any, rows: GivenRows, targets: np.ndarray, weights: np.ndarray) -> str | None:
    """``target_transform`` with the best held-out log density of the targets (n, C) with weights (n,).

    None without a fit if the targets are not skewed or too few. The unfitted model is cloned. Rows of weight zero have
    no influence.
    """
    present = np.flatnonzero(weights > 0)
    targets = targets[present]
    with np.errstate(invalid="ignore"):
        skewness = np.abs(skew(targets, axis=0))
    if len(targets) < 2 * N_FOLDS or not (skewness >= SKEWED).any():
        return None
    candidates = [name for name in CANDIDATES if name != LOG or (targets > 0).all()]
    seed = random_numbers(model.random_state).randint(np.iinfo(np.int32).max)
    order = np.random.default_rng(seed).permutation(present)[:MOST_ROWS]
    folds = [(order[train], order[test]) for train, test in KFold(N_FOLDS).split(order)]
    folds = folds if len(order) <= FEW_ROWS else folds[:1]
    held_out = weights[np.concatenate([test for _, test in folds])]
    densities = {name: _held_out(model, rows, folds, name, seed) for name in candidates}
    best = max(densities, key=lambda name: np.average(densities[name], weights=held_out))
    for name in (LOG, None):
        if name in densities and _no_worse(densities[name], densities[best], held_out):
            return name
    return best


def _held_out(model: Any, rows: GivenRows, folds: list[Any], name: str | None, seed: int) -> np.ndarray:
    """Log densities of the held-out rows under a candidate; minus infinity if its fit fails."""
    densities = []
    for train, test in folds:
        held_out = rows.part(test)
        candidate = clone(model).set_params(target_transform=name, random_state=seed, **QUIET)
        candidate = single_net(candidate) if len(train) < FEW_ROWS else candidate
        candidate._is_candidate = True
        try:
            densities.append(rows.part(train).fitted(candidate).log_predictive_density(held_out.X, held_out.y))
        except NonFiniteError:
            densities.append(np.full(len(test), -np.inf))
    return np.concatenate(densities)


def _no_worse(values: np.ndarray, best: np.ndarray, weights: np.ndarray) -> bool:
    """True if the weighted mean is below that of the best by at most the standard error of the difference."""
    with np.errstate(invalid="ignore"):
        difference = best - values
        mean = np.average(difference, weights=weights)
        variance = np.average((difference - mean) ** 2, weights=weights)
        return bool(mean <= np.sqrt(variance / len(difference)))
