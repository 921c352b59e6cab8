"""Standardisation of targets, and of their noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._validation.values import SIZES
from .known_noise import noise_per_target

SAME_RATIO = 1e-9
"""Relative difference of noise ratios that is rounding."""


@dataclass(frozen=True)
class TargetScale:
    """The affine map from the user's targets to the network's, (y − mean) / scale, and that of their noise.

    Parameters
    ----------
    mean, scale : ndarray of shape (C,)
        Zeros and ones for classes.
    unit_noise : ndarray of shape (C,)
        σ of each target, in the units of y, for which φ is 1; the scale itself unless noise ratios are known.
    noisy_rows : bool
        Whether the rows come with noise variances of their own.
    """

    mean: np.ndarray
    scale: np.ndarray
    unit_noise: np.ndarray
    noisy_rows: bool = False

    @property
    def log_volume(self) -> float:
        """Σ_c log scale_c: what one row of weight 1 subtracts from a log density in the network's units."""
        return float(np.log(self.scale).sum())

    def power(self, exponent: int) -> np.ndarray:
        """The scale to a power, shape (C,): the unit of variances for 2.

        Raises
        ------
        ValueError
            When it is no float64.
        """
        with np.errstate(over="ignore", under="ignore"):
            found: np.ndarray = self.scale**exponent
        if not (np.isfinite(found) & (found > 0)).all():
            raise ValueError(
                f"y has the scale {self.scale.tolist()}, whose power {exponent} is out of range; variances need a "
                "scale between 1e-162 and 1e+154. Ask for standard deviations, or fit with another unit for y."
            )
        return found

    def dispersion(self, sigma_noise: np.ndarray) -> float:
        """A given σ, one number or one for each target (C,), as φ.

        Raises
        ------
        ValueError
            For other noise ratios between the targets than those that the curvature was made with, and for a noise
            that has nothing to do with the size of the targets.
        """
        root = noise_per_target(sigma_noise, len(self.scale)) / self.unit_noise
        if not np.allclose(root, root[0], rtol=SAME_RATIO, atol=0):
            raise ValueError(
                f"sigma_noise={sigma_noise.tolist()} means other noise ratios between the {len(self.scale)} targets "
                f"than the curvature holds; here it can be a multiple of {self.unit_noise.tolist()}. Fit with this "
                "sigma_noise."
            )
        if not SIZES[0] <= root[0] <= SIZES[1]:
            raise ValueError(
                f"sigma_noise={sigma_noise.tolist()} is {root[0]:.1g} times the scale of y; expected {SIZES[0]:g} to "
                f"{SIZES[1]:g} times. Give sigma_noise in the units of y."
            )
        return float(root[0]) ** 2

    def apply(self, y: np.ndarray) -> np.ndarray:
        """Targets (n, C) in the network's units."""
        return (y - self.mean) / self.scale

    def noise(self, variances: np.ndarray | None, n_rows: int) -> np.ndarray | None:
        """The noise variances of rows in units of φ, shape (n, C); None where they are φ throughout."""
        if variances is None and np.array_equal(self.unit_noise, self.scale):
            return None
        ratios = np.broadcast_to((self.unit_noise / self.scale) ** 2, (n_rows, len(self.scale)))
        return ratios if variances is None else variances * ratios
