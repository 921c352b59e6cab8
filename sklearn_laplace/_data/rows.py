"""Training data once they are validated: their scales, their order, equal rows and shares of weight, copies.

Plain arrays and functions of them; what a likelihood or a net makes of them comes later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._runtime.budget import FLOAT32_ROWS
from .augmentation import augmented_inputs
from .known_noise import FEWEST_ROWS
from .statistics import as_counts, spread
from .table import Table
from .target_scale import TargetScale


@dataclass(frozen=True)
class PreparedData:
    """Validated training data.

    Parameters
    ----------
    X : ndarray of shape (n, d), float64
    targets : ndarray of shape (n, C) or (n,)
        Standardised targets, float64, or class indices.
    weights : ndarray of shape (n,), float64
    n_outputs : int
    scale : TargetScale
    noise : ndarray of shape (n, C), optional
        Known noise variances of the targets, in units of φ.
    unmerged : PreparedData, optional
        The same rows as they were given, for leave-one-out: in their order, those of weight zero too, equal ones apart.
    has_copies : bool
        Whether several of the rows are copies of one, which ``augment`` has made.
    table : Table, optional
        What the columns of X hold, for the built-in net.
    """

    X: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    n_outputs: int
    scale: TargetScale
    noise: np.ndarray | None = None
    unmerged: PreparedData | None = None
    has_copies: bool = False
    table: Table | None = None

    @property
    def total_weight(self) -> float:
        """N_w."""
        return float(self.weights.sum())

    @property
    def average_noise(self) -> tuple[float, ...]:
        """Known noise variance of an average row, one for each target, in units of φ; empty where it is φ."""
        return () if self.noise is None else tuple(np.average(self.noise, axis=0, weights=self.weights).tolist())

    def present(self) -> PreparedData:
        """Without the rows of weight zero."""
        kept = self.weights > 0
        noise = None if self.noise is None else self.noise[kept]
        return replace(self, X=self.X[kept], targets=self.targets[kept], weights=self.weights[kept], noise=noise)

    def weight_unit(self) -> float:
        """What a weight of one counts: less than one where the mean is larger and no row has the inputs of another one.

        Equal rows have been merged. A target with noise does not repeat to the last digit, so that such rows are copies
        and not further measurements. Equal weights of all rows say as little. A noise that the data choose cannot tell
        more rows from less noise.

        Examples
        --------
        >>> scale = TargetScale(np.zeros(1), np.ones(1), np.ones(1))
        >>> X, y = np.array([[0.0], [1.0]]), np.zeros((2, 1))
        >>> [PreparedData(X, y, np.array(w), 1, scale).weight_unit() for w in ([2.0, 6.0], [0.5, 0.5])]
        [0.25, 1.0]
        >>> PreparedData(0 * X, y, np.array([2.0, 6.0]), 1, scale).weight_unit()
        1.0
        """
        total, n = self.total_weight, len(self.X)
        return 1.0 if total <= n or len(np.unique(row_keys(self.X))) < n else n / total

    def weighted(self, unit: float) -> PreparedData:
        """With all weights times a unit."""
        kept = None if self.unmerged is None else self.unmerged.weighted(unit)
        return replace(self, weights=self.weights * unit, unmerged=kept)

    def in_order(self) -> PreparedData:
        """Large data in the order of :func:`row_keys`, small ones as they are."""
        if self.total_weight <= FLOAT32_ROWS:
            return self
        parts = (self.X, self.targets, self.weights) + (() if self.noise is None else (self.noise,))
        order = row_keys(*parts).argsort(kind="stable")
        X, targets, weights, *noise = (part[order] for part in parts)
        return replace(self, X=X, targets=targets, weights=weights, noise=noise[0] if noise else None)

    def beside(self, given: PreparedData) -> PreparedData:
        """With the rows as they were given, in weights that count as those of these do; a copy of them."""
        share = self.total_weight / given.total_weight
        weights = given.weights * (1.0 if np.isclose(share, 1.0, rtol=1e-9, atol=0) else share)
        return replace(self, unmerged=replace(given, X=given.X.copy(), targets=given.spoken_for, weights=weights))

    @property
    def spoken_for(self) -> np.ndarray:
        """The targets; zero in rows of weight zero, where they say nothing and may be anything."""
        observed = (self.weights > 0).reshape(-1, *[1] * (self.targets.ndim - 1))
        return np.where(observed, self.targets, 0).astype(self.targets.dtype)

    def under_noise(self, ratios: np.ndarray) -> PreparedData:
        """These rows with noise variances (n, C), up to a factor; an average row has the noise φ."""
        average = np.average(ratios, axis=0, weights=self.weights)
        scale = replace(self.scale, unit_noise=self.scale.scale * np.sqrt(average))
        return replace(self, noise=ratios, scale=scale)

    def followed_by(self, other: PreparedData) -> PreparedData:
        """These rows, then the other's."""
        noise = None if self.noise is None or other.noise is None else np.concatenate([self.noise, other.noise])
        X, targets = np.concatenate([self.X, other.X]), np.concatenate([self.targets, other.spoken_for])
        return replace(self, X=X, targets=targets, weights=np.concatenate([self.weights, other.weights]), noise=noise)


def canonical_rows(
    X: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows in a fixed order, none of weight zero; equal ones merged while the data are small (by weight).

    So rows in any order give the same numbers to the bit, standardisation included, and so do weights and repetitions
    of small data: training amplifies rounding, and otherwise they would end in different modes. The order of large data
    is that of :func:`row_keys`.

    Parameters
    ----------
    X : ndarray of shape (n, d)
    targets : ndarray of shape (n,) or (n, C), numeric
    weights : ndarray of shape (n,)

    Examples
    --------
    >>> X, y, w = canonical_rows(np.array([[2.0], [1.0], [2.0]]), np.array([5.0, 4.0, 5.0]), np.ones(3))
    >>> sorted(zip(X[:, 0].tolist(), y.tolist(), w.tolist()))
    [(1.0, 4.0, 1.0), (2.0, 5.0, 2.0)]
    """
    present = weights > 0
    X, targets, weights = _merged(X[present], targets[present], weights[present])
    return X, targets, as_counts(weights)


def _merged(X: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if weights.sum() > FLOAT32_ROWS:
        order = row_keys(X, targets, weights).argsort(kind="stable")
        return X[order], targets[order], weights[order]
    both = np.column_stack([X, targets])
    # Rows with the same gaps are equal. X has no infinity of its own, and NaN is not even equal to itself.
    unique, inverse = np.unique(np.where(np.isnan(both), np.inf, both), axis=0, return_inverse=True)
    unique = np.where(np.isinf(unique), np.nan, unique)
    merged = np.bincount(inverse.ravel(), weights=weights, minlength=len(unique))
    columns = X.shape[1]
    # Sorted rows would make mini-batches and held-out parts of a user's net regions of the first column.
    order = np.random.default_rng(0).permutation(len(unique))
    found = unique[order, columns:].reshape(len(unique), *targets.shape[1:])
    return unique[order, :columns], found.astype(targets.dtype), merged[order]


def row_keys(*parts: np.ndarray) -> np.ndarray:
    """64-bit hashes (n,) of the rows of several arrays (n,) or (n, k), put side by side.

    Equal rows have equal keys, with −0 equal to 0 and NaN to NaN; different ones have different keys, but for one pair
    of rows in 2⁶⁴. Keys are in no order of the values. O(n k).

    Examples
    --------
    >>> first, second, other = row_keys(np.array([[0.0, np.nan], [-0.0, -np.nan], [1.0, np.nan]]))
    >>> bool(first == second), bool(first == other)
    (True, False)
    """
    keys = np.zeros(len(parts[0]), dtype=np.uint64)
    for part in parts:
        for column in part.reshape(len(part), -1).T:
            values = column.astype(np.float64) + 0.0
            keys = rehashed(keys + np.where(np.isnan(values), np.nan, values).view(np.uint64))
    return keys


def rehashed(keys: np.ndarray) -> np.ndarray:
    """Steele, Lea & Flood (2014), the finaliser of SplitMix: each bit depends on all bits."""
    keys = keys + np.uint64(0x9E3779B97F4A7C15)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: np.ndarray = keys ^ (keys >> np.uint64(31))
    return found


def augmented(data: PreparedData, augment: Any, n_draws: int, seed: int) -> PreparedData:
    """The data with random copies in place of the rows, equal ones merged; as they are without ``augment``.

    Parameters
    ----------
    data : PreparedData
    augment : callable or None
    n_draws : int
        k, copies of each row; each has a k-th of its weight.
    seed : int
    """
    if augment is None:
        return data
    observed = data.targets if data.noise is None else np.column_stack([data.targets, data.noise])
    copies = np.tile(np.arange(len(data.X)), n_draws)
    inputs = augmented_inputs(data.X, augment, n_draws, seed)
    X, observed, weights = _merged(inputs, observed[copies], data.weights[copies] / n_draws)
    targets, noise = (observed, None) if data.noise is None else np.split(observed, 2, axis=1)
    return replace(data, X=X, targets=targets, weights=weights, noise=noise, unmerged=None, has_copies=True)


def mean_variance(data: PreparedData) -> float:
    """Mean variance of the targets over the outputs, in the network's units; 1 for classes.

    A single row has no variance: the square of its target's size stands for it.

    Raises
    ------
    ValueError
        For targets that are not standardised and whose variance is no float64.
    """
    if data.targets.ndim == 1:
        return 1.0
    _, deviation, constant = spread(data.targets, data.weights)
    if data.total_weight < FEWEST_ROWS:
        deviation = np.abs(data.targets).max(axis=0)
        constant = deviation == 0
    with np.errstate(over="ignore", under="ignore"):
        variances = np.where(constant, 0.0, deviation**2)
    if not np.isfinite(variances).all() or (variances[~constant] < np.finfo(float).tiny).any():
        size = deviation.max() if np.isinf(variances).any() else deviation[~constant].min()
        raise ValueError(
            f"y has a standard deviation of {size:.1e}, whose square is out of range; it has to be between 1e-154 and "
            "1e+154 where y is not standardised. Use standardize_y=True, or another unit for y."
        )
    return float(variances.mean())
