"""Fixed prior precision and noise level for a single row, from which neither can be estimated.

Without a prior on the noise level, the posterior predictive of one row is improper, because a net can interpolate the
row with residual zero. The prior precision is set to the natural value 1, and the noise level to the size of the
target. Known noise variances take the place of the latter.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .._data.known_noise import FEWEST_ROWS
from .._data.target_scale import TargetScale
from .._validation.values import Choice
from .options import Options


def told_by_rows(options: Options, total_weight: float, scale: TargetScale) -> Options:
    """Replace rules for prior precision and noise by values if the total weight of the rows is too small for them.

    The likelihood of ``options`` is in the units of the targets.
    """
    if total_weight >= FEWEST_ROWS or not options.likelihood.has_dispersion:
        return options
    size = (
        np.ones_like(scale.scale)
        if scale.noisy_rows
        else math.sqrt(options.likelihood.dispersion_start) * scale.unit_noise
    )
    prior, noise = (
        Choice(value, "") if chosen.free else chosen
        for chosen, value in ((options.prior_precision, np.ones(())), (options.sigma_noise, size))
    )
    return replace(options, prior_precision=prior, sigma_noise=noise, varying_noise=False)
