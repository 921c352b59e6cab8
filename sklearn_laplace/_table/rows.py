r"""Validated training data as arrays: rows in canonical order, merged if equal, with standardised targets.

**Known noise.** The noise variance of target c of row n is :math:`\sigma_c^2 v_{nc}`. Here σ is one number, one
number per target, or selected by the fit, and v is ``sample_noise_variance`` or 1. The network's targets are divided by
s. Its dispersion φ is the noise variance of an average row in these units. Ratios v′ to this row are known beforehand:

.. math:: \sigma_c^2 v_{nc} / s_c^2 = \varphi\, v'_{nc}, \qquad v'_{nc} = v_{nc}\, (u_c / s_c)^2,

where :math:`u_c` is the σ of target c for which φ is 1. All :math:`u_c` are scaled such that v′ is 1 on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_array

from .._validation.arguments import SIZES
from .._validation.rows import as_numbers
from ..distributions.transforms import LogTransform
from ..errors import UnsupportedCombinationError
from ..laplace.fit import TrainingRows
from ..laplace.likelihoods._base import Likelihood
from ..laplace.torch_state import is_slow_at_float64
from .limits import FLOAT32_ROWS
from .statistics import spread
from .table import Table

LEAST, LARGEST = 1e-60, 1e60
"""Valid range of a noise variance, in squared units of y."""
FEWEST_ROWS = 2
"""Minimum total weight of rows that determine the noise level."""


def noise_variances(value: Any, likelihood: Likelihood, shape: tuple[int, int]) -> np.ndarray | None:
    """Return validated noise variances (n, C), in squared units of y. Those of shape (n,) apply to all targets."""
    if value is None:
        return None
    if not likelihood.takes_known_noise:
        raise UnsupportedCombinationError(
            f"sample_noise_variance cannot be used with likelihood={likelihood.key()!r}, whose "
            "variance follows from its mean. For less reliable rows use a smaller sample_weight."
        )
    variances = check_array(
        as_numbers(value, "sample_noise_variance"),
        ensure_2d=False,
        dtype=np.float64,
        ensure_all_finite=False,
        input_name="sample_noise_variance",
    )
    if variances.shape not in {shape, shape[:1]}:
        raise ValueError(
            f"sample_noise_variance has shape {variances.shape}; expected {shape[:1]}, one variance for each row, or "
            f"{shape}, one for each target of each row."
        )
    if (wrong := ~((variances >= LEAST) & (variances <= LARGEST))).any():
        raise ValueError(
            f"sample_noise_variance holds {variances[wrong][0]:g} in row {np.argwhere(wrong)[0, 0]}; expected "
            f"variances above zero, from {LEAST:g} to {LARGEST:g}, in squared units of y."
        )
    return np.broadcast_to(variances.reshape(len(variances), -1), shape).copy()


def check_noisy_rows(noisy_rows: bool, known: bool) -> None:
    """Raise ``ValueError`` if only the new or only the fitted rows have noise variances, since the units differ."""
    if noisy_rows != known:
        raise ValueError(
            f"sample_noise_variance was {'given' if known else 'not given'} in fit; "
            f"{'pass it for these rows, too' if known else 'omit it, or fit all rows with it'}."
        )


def noise_per_target(sigma: np.ndarray, n_outputs: int) -> np.ndarray:
    """User-set σ as an array (C,); ``ValueError`` if the number of entries is neither 1 nor C."""
    if sigma.size not in (1, n_outputs):
        raise ValueError(
            f"sigma_noise has {sigma.size} entries; expected 1 or {n_outputs}, one for each target, in units of y."
        )
    return np.broadcast_to(sigma.reshape(-1), (n_outputs,))


def unit_noise(
    sigma: np.ndarray | None, variances: np.ndarray | None, scale: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Noise level u (C,) of each target for which the network's φ is 1, in the units of y; see the module's docstring.

    A common factor of ``sigma`` (C,) does not change u. Without σ, the noise variances are, up to a factor,
    ``variances`` v (n, C) or else the squared ``scale`` s (C,).
    """
    ratios = np.ones_like(scale) if sigma is None else sigma / sigma[0]
    if variances is None and (sigma is None or (ratios / scale == ratios[0] / scale[0]).all()):
        return scale
    relative = (ratios / scale) ** 2
    mean = np.mean(relative if variances is None else np.average(variances, axis=0, weights=weights) * relative)
    return ratios / np.sqrt(mean)


def row_reliability(weights: np.ndarray, variances: np.ndarray | None) -> np.ndarray:
    """Row weights for mean and scale of the targets: w / (1 + v / median of v), (n, C), or w (n,) without v.

    A few very noisy or nearly exact rows then do not determine the scale.

    >>> row_reliability(np.ones(3), np.array([[1e-9], [1.0], [99.0]])).ravel().round(3)
    array([1.  , 0.5 , 0.01])
    """
    if variances is None:
        return weights
    order = variances.argsort(axis=0)
    passed = weights[order].cumsum(axis=0)
    middle = (passed < passed[-1] / 2).sum(axis=0)
    median = np.take_along_axis(np.take_along_axis(variances, order, 0), middle[None], 0)
    return weights[:, None] / (1 + variances / median)


SAME_RATIO = 1e-9
"""Relative tolerance within which noise ratios count as equal."""


@dataclass(frozen=True)
class TargetScale:
    """Map from the user's targets to the network's, (g(y) − mean) / scale, and the matching map of their noise."""

    mean: np.ndarray  # (C,), in the units of y; zeros for classes
    scale: np.ndarray  # (C,), in the units of y; ones for classes
    unit_noise: np.ndarray  # (C,), σ for which φ is 1; equal to the scale unless noise ratios are known
    noisy_rows: bool = False  # each row has a known noise variance
    transforms: tuple[LogTransform, ...] = ()  # g of each target, if any
    deviation: np.ndarray | None = None  # (C,), standard deviations of the network's targets; None if they are 1
    log_slope: float = 0.0  # weighted mean over the rows of Σ_c log g_c′(y_c)

    @property
    def log_volume(self) -> float:
        """Σ_c log scale_c − log_slope: mean log density of a row in the network's units, minus that in units of y."""
        return float(np.log(self.scale).sum()) - self.log_slope

    def transformed(self, y: np.ndarray) -> np.ndarray:
        return transformed(self.transforms, y)

    def squared(self) -> np.ndarray:
        """Square of the scale, shape (C,): the unit of variances; ``ValueError`` if it overflows or underflows."""
        with np.errstate(over="ignore", under="ignore"):
            square: np.ndarray = self.scale**2
        if not (np.isfinite(square) & (square > 0)).all():
            raise ValueError(
                f"y has the scale {self.scale.tolist()}, whose square is out of range; variances need a scale between "
                "1e-162 and 1e+154. Request standard deviations, or fit with another unit for y."
            )
        return square

    def dispersion(self, sigma_noise: np.ndarray) -> float:
        """Dispersion φ of a user-set σ, which is one number or one per target, shape (C,)."""
        root = noise_per_target(sigma_noise, len(self.scale)) / self.unit_noise
        if not np.allclose(root, root[0], rtol=SAME_RATIO, atol=0):
            raise ValueError(
                f"sigma_noise={sigma_noise.tolist()} has other noise ratios between the {len(self.scale)} targets "
                f"than the fitted curvature. Pass a multiple of {self.unit_noise.tolist()}, or fit with this "
                "sigma_noise."
            )
        if not SIZES[0] <= root[0] <= SIZES[1]:
            raise ValueError(
                f"sigma_noise={sigma_noise.tolist()} is {root[0]:.1g} times the scale of y; expected {SIZES[0]:g} to "
                f"{SIZES[1]:g} times. Give sigma_noise in the units of y."
            )
        return float(root[0]) ** 2

    def apply(self, y: np.ndarray) -> np.ndarray:
        return (y - self.mean) / self.scale

    def noise(self, variances: np.ndarray | None, n_rows: int) -> np.ndarray | None:
        """Noise variances of the rows in units of φ, shape (n, C); None if all of them are 1."""
        if variances is None and np.array_equal(self.unit_noise, self.scale):
            return None
        ratios = np.broadcast_to((self.unit_noise / self.scale) ** 2, (n_rows, len(self.scale)))
        return ratios if variances is None else variances * ratios


def transformed(transforms: tuple[LogTransform, ...], y: np.ndarray) -> np.ndarray:
    """g(y) of targets (n, C), or y itself without transforms; ``ValueError`` for a target that is not positive."""
    if not transforms:
        return y
    values = np.column_stack([transform.apply(column) for transform, column in zip(transforms, y.T, strict=True)])
    if not np.isfinite(values).all():
        raise ValueError(
            f"y holds {y[~np.isfinite(values)].min():g}; target_transform='log' needs targets above zero. Omit "
            "such rows, or fit with target_transform=None."
        )
    return values


def log_slope(transforms: tuple[LogTransform, ...], y: np.ndarray, weights: np.ndarray) -> float:
    """Weighted mean over the rows of Σ_c log g_c′(y_c), for targets y of shape (n, C)."""
    slopes = (
        (transform.log_slope(column) for transform, column in zip(transforms, y.T, strict=True)) if transforms else ()
    )
    return float(sum(np.average(slope, weights=weights) for slope in slopes))


@dataclass(frozen=True)
class TableShape:
    """Numbers of rows, columns and outputs, which determine the architecture of the nets."""

    n_rows: int  # distinct rows
    n_outputs: int
    levels: tuple[int, ...]  # number of levels of each column; 0 for numbers
    n_added: int  # missing-value indicators, and waves of the cycles of dates
    has_pieces: bool  # a numeric column has more than two values; with two, its only bin equals the number
    least_total: float = math.inf  # smallest weighted sum of a target; for counts, number of events


@dataclass(frozen=True)
class PreparedData:
    X: np.ndarray  # (n, d), float64
    targets: np.ndarray  # (n, C), standardised, float64, or class indices (n,)
    weights: np.ndarray  # (n,), float64
    n_outputs: int
    scale: TargetScale  # from the units of y to those of the net
    noise: np.ndarray | None = None  # (n, C), known noise variances, in units of φ
    unmerged: PreparedData | None = None  # all rows in the user's order, for leave-one-out
    table: Table | None = None  # encoding of X, for the built-in net

    @property
    def total_weight(self) -> float:
        return float(self.weights.sum())

    @property
    def average_noise(self) -> tuple[float, ...]:
        """Average known noise variance of each target, in units of φ; empty without known noise."""
        return () if self.noise is None else tuple(np.average(self.noise, axis=0, weights=self.weights).tolist())

    @property
    def mean_variance(self) -> float:
        """Mean variance of the network's targets; 1 for classes.

        Below a total weight of 2, the largest square of each target replaces its variance.
        """
        if self.targets.ndim == 1:
            return 1.0
        _, deviation, constant = spread(self.targets, self.weights)
        if self.total_weight < FEWEST_ROWS:
            deviation = np.abs(self.targets).max(axis=0)
            constant = deviation == 0
        with np.errstate(over="ignore", under="ignore"):
            variances = np.where(constant, 0.0, deviation**2)
        if not np.isfinite(variances).all() or (variances[~constant] < np.finfo(float).tiny).any():
            size = deviation.max() if np.isinf(variances).any() else deviation[~constant].min()
            raise ValueError(
                f"y has a standard deviation of {size:.1e}, whose square is out of range; without standardisation it "
                "has to be between 1e-154 and 1e+154. Use standardize_y=True, or another unit for y."
            )
        return float(variances.mean())

    def tensors(self, input_dtype: torch.dtype, dtype: torch.dtype, device: torch.device) -> TrainingRows:
        of_classes = self.targets.ndim == 1
        return TrainingRows(
            torch.tensor(self.X, dtype=input_dtype, device=device),
            torch.tensor(self.targets, dtype=torch.long if of_classes else dtype, device=device),
            torch.tensor(self.weights, dtype=dtype, device=device),
            None if self.noise is None else torch.tensor(self.noise, dtype=dtype, device=device),
            self.n_outputs if of_classes else 0,
        )

    def training_rows(self, dtype: torch.dtype | None, device: torch.device, *, built_in: bool) -> TrainingRows:
        """Rows for training; by default in float64 for a total weight of up to 10,000, unless that is slow."""
        is_double = self.total_weight <= FLOAT32_ROWS and not is_slow_at_float64(device)
        dtype = dtype or (torch.float64 if is_double else torch.float32)
        # The built-in net standardises its columns in float64; its layers may compute in float32.
        return self.tensors(torch.float64 if built_in else dtype, dtype, device)

    def shape(self) -> TableShape:
        d = self.X.shape[1]
        levels, n_added = ((0,) * d, 0) if self.table is None else (self.table.levels, self.table.n_added)
        numbers = (self.X[:, k] for k in range(d) if not levels[k])
        present = (x[~np.isnan(x)] for x in numbers)
        has_pieces = any(bool(np.any((x > x.min()) & (x < x.max()))) for x in present if len(x))
        least_total = float(np.min(self.weights @ self.targets))
        return TableShape(len(self.X), self.n_outputs, levels, n_added, has_pieces, least_total)

    def present(self) -> PreparedData:
        return self.taken(self.weights > 0)

    def taken(self, index: np.ndarray) -> PreparedData:
        noise = None if self.noise is None else self.noise[index]
        return replace(self, X=self.X[index], targets=self.targets[index], weights=self.weights[index], noise=noise)

    def weight_unit(self) -> float:
        """Factor that rescales weights to a mean of 1 if they only count copies of rows; otherwise 1.

        Weights count copies if their mean exceeds 1 and all inputs differ.

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
        unmerged = None if self.unmerged is None else self.unmerged.weighted(unit)
        return replace(self, weights=self.weights * unit, unmerged=unmerged)

    def in_order(self) -> PreparedData:
        """Sort data of a total weight above 10,000 by :func:`row_keys`; return smaller data unchanged."""
        if self.total_weight <= FLOAT32_ROWS:
            return self
        parts = (self.X, self.targets, self.weights) + (() if self.noise is None else (self.noise,))
        order = row_keys(*parts).argsort(kind="stable")
        X, targets, weights, *noise = (part[order] for part in parts)
        return replace(self, X=X, targets=targets, weights=weights, noise=noise[0] if noise else None)

    def with_unmerged_rows(self, unmerged: PreparedData) -> PreparedData:
        """Attach a copy of the unmerged rows, with weights rescaled to the same total."""
        factor = self.total_weight / unmerged.total_weight
        weights = unmerged.weights * (1.0 if np.isclose(factor, 1.0, rtol=1e-9, atol=0) else factor)
        copied = replace(unmerged, X=unmerged.X.copy(), targets=unmerged.observed_targets, weights=weights)
        return replace(self, unmerged=copied)

    @property
    def observed_targets(self) -> np.ndarray:
        """Targets, with zeros in rows of weight zero, where the given targets may be arbitrary."""
        observed = (self.weights > 0).reshape(-1, *[1] * (self.targets.ndim - 1))
        return np.where(observed, self.targets, 0).astype(self.targets.dtype)

    def under_noise(self, ratios: np.ndarray) -> PreparedData:
        """Return the data with noise variances ``ratios`` (n, C) in units of φ, and the unit noise that they imply."""
        average = np.average(ratios, axis=0, weights=self.weights)
        scale = replace(self.scale, unit_noise=self.scale.scale * np.sqrt(average))
        return replace(self, noise=ratios, scale=scale)

    def without(self, keys: np.ndarray | None) -> PreparedData:
        """Return the data, with weight zero for rows whose keys (hashes of inputs and targets) are in ``keys``."""
        if keys is None:
            return self
        weights, present = self.weights.copy(), np.flatnonzero(self.weights > 0)
        weights[present[np.isin(row_keys(self.X[present], self.targets[present]), keys)]] = 0.0
        return replace(self, weights=weights)

    def unshared_keys(self, index: np.ndarray) -> np.ndarray:
        """Keys (hashes of inputs and targets) of the rows at an index, except keys that other rows share."""
        keys = row_keys(self.X, self.targets)
        return np.setdiff1d(keys[index], np.delete(keys, index))

    def followed_by(self, other: PreparedData) -> PreparedData:
        noise = None if self.noise is None or other.noise is None else np.concatenate([self.noise, other.noise])
        X, targets = np.concatenate([self.X, other.X]), np.concatenate([self.targets, other.observed_targets])
        return replace(self, X=X, targets=targets, weights=np.concatenate([self.weights, other.weights]), noise=noise)

    @classmethod
    def together(cls, parts: Sequence[PreparedData]) -> PreparedData:
        """Concatenate data sets that have the same target scale and no known noise."""
        X, targets, weights = zip(*((part.X, part.targets, part.weights) for part in parts), strict=True)
        return replace(parts[0], X=np.concatenate(X), targets=np.concatenate(targets), weights=np.concatenate(weights))


def canonical_rows(
    X: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows of positive weight in a canonical order, which does not depend on the given order.

    Equal rows are merged if the weights sum to at most 10,000.
    """
    X, targets, weights = present_rows(X, targets, weights)
    if weights.sum() > FLOAT32_ROWS:
        order = row_keys(X, targets, weights).argsort(kind="stable")
        return X[order], targets[order], weights[order]
    rows = np.column_stack([X, targets])
    # Missing values count as equal, but NaN differs from itself. Infinity replaces NaN, since X has no infinite values.
    unique, inverse = np.unique(np.where(np.isnan(rows), np.inf, rows), axis=0, return_inverse=True)
    unique = np.where(np.isinf(unique), np.nan, unique)
    merged = np.bincount(inverse.ravel(), weights=weights, minlength=len(unique))
    columns = X.shape[1]
    # In sorted order, each mini-batch and validation split of a user's net would cover one region of the first column.
    order = np.random.default_rng(0).permutation(len(unique))
    unique_targets = unique[order, columns:].reshape(len(unique), *targets.shape[1:])
    return unique[order, :columns], unique_targets.astype(targets.dtype), merged[order]


def present_rows(X: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of positive weight in the user's order, for a skorch net; see :func:`canonical_rows` for other nets."""
    present = weights > 0
    return X[present], targets[present], weights[present]


def row_keys(*parts: np.ndarray) -> np.ndarray:
    """64-bit hashes, shape (n,), of rows concatenated from arrays of shape (n,) or (n, k). Cost O(n k).

    Equal rows have equal keys; −0 equals 0, and NaN equals NaN.

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
    """Hash the keys with the finaliser of SplitMix (Steele, Lea & Flood 2014): each bit depends on all input bits."""
    keys = keys + np.uint64(0x9E3779B97F4A7C15)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))
