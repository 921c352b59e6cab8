"""Standardisation of targets and of their noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._validation.values import SIZES
from .known_noise import noise_per_target

SAME_RATIO = 1e-9
"""Relative tolerance within which noise ratios count as equal."""


@dataclass(frozen=True)
class TargetScale:
    """Affine map from the user's targets to the network's, (y − mean) / scale, and the matching map of their noise.

    Parameters
    ----------
    mean, scale : ndarray of shape (C,)
        In the units of y; zeros and ones for classes.
    unit_noise : ndarray of shape (C,)
        Noise level σ of each target for which φ is 1, in the units of y. Equal to the scale unless noise ratios are
        known.
    noisy_rows : bool
        If True, each row has a known noise variance.
    """

    mean: np.ndarray
    scale: np.ndarray
    unit_noise: np.ndarray
    noisy_rows: bool = False

    @property
    def log_volume(self) -> float:
        """Σ_c log scale_c, to subtract from a log density in the network's units for each row of weight 1."""
        return float(np.log(self.scale).sum())

    def power(self, exponent: int) -> np.ndarray:
        """Power of the scale, shape (C,); exponent 2 gives the unit of variances.

        Raises
        ------
        ValueError
            If the power overflows or underflows in float64.
        """
        with np.errstate(over="ignore", under="ignore"):
            power: np.ndarray = self.scale**exponent
        if not (np.isfinite(power) & (power > 0)).all():
            raise ValueError(
                f"y has the scale {self.scale.tolist()}, whose power {exponent} is out of range; variances need a "
                "scale between 1e-162 and 1e+154. Request standard deviations, or fit with another unit for y."
            )
        return power

    def dispersion(self, sigma_noise: np.ndarray) -> float:
        """Dispersion φ of a user-set σ, which is one number or one per target, shape (C,).

        Raises
        ------
        ValueError
            If the noise ratios between the targets differ from those of the curvature. Also if σ is not between 1e-60
            and 1e60 times the scale of y.
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
        """Convert targets (n, C) to the network's units."""
        return (y - self.mean) / self.scale

    def noise(self, variances: np.ndarray | None, n_rows: int) -> np.ndarray | None:
        """Noise variances of the rows in units of φ, shape (n, C); None if all of them equal φ."""
        if variances is None and np.array_equal(self.unit_noise, self.scale):
            return None
        ratios = np.broadcast_to((self.unit_noise / self.scale) ** 2, (n_rows, len(self.scale)))
        return ratios if variances is None else variances * ratios
