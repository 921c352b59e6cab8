"""Transformation and standardisation of targets and of their noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._validation.values import SIZES
from ..distributions.transforms import LogTransform
from .known_noise import noise_per_target

SAME_RATIO = 1e-9
"""Relative tolerance within which noise ratios count as equal."""


@dataclass(frozen=True)
class TargetScale:
    """Map from the user's targets to the network's, (g(y) − mean) / scale, and the matching map of their noise.

    "Units of y" are those of g(y). Without ``transforms``, g(y) = y.
    """

    mean: np.ndarray  # (C,), in the units of y; zeros for classes
    scale: np.ndarray  # (C,), in the units of y; ones for classes
    unit_noise: np.ndarray  # (C,), σ for which φ is 1; equal to the scale unless noise ratios are known
    noisy_rows: bool = False  # each row has a known noise variance
    transforms: tuple[LogTransform, ...] = ()  # g of each target, if any
    deviation: np.ndarray | None = None  # (C,), standard deviations of the network's targets; None if they are 1
    log_slope: float = 0.0  # weighted mean over the rows of Σ_c log g_c′(y_c)

    @property
    def log_volume(self) -> float:
        """Σ_c log scale_c − log_slope, subtracted per unit of weight from a log density in the network's units."""
        return float(np.log(self.scale).sum()) - self.log_slope

    def transformed(self, y: np.ndarray) -> np.ndarray:
        """g(y) for targets of shape (n, C)."""
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
        """Dispersion φ of a user-set σ, which is one number or one per target, shape (C,).

        Raises ``ValueError`` if the noise ratios between the targets differ from those of the curvature, or if σ is not
        between 1e-60 and 1e60 times the scale of y.
        """
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
        """Convert transformed targets (n, C) to the network's units."""
        return (y - self.mean) / self.scale

    def noise(self, variances: np.ndarray | None, n_rows: int) -> np.ndarray | None:
        """Noise variances of the rows in units of φ, shape (n, C); None if all of them equal φ."""
        if variances is None and np.array_equal(self.unit_noise, self.scale):
            return None
        ratios = np.broadcast_to((self.unit_noise / self.scale) ** 2, (n_rows, len(self.scale)))
        return ratios if variances is None else variances * ratios


def transformed(transforms: tuple[LogTransform, ...], y: np.ndarray) -> np.ndarray:
    """Logarithms of targets (n, C), if they are transformed; ``ValueError`` for a target that is not positive."""
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
