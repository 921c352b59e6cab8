"""Fits of a single row: nothing can be chosen by it.

Without a prior on the scale of the noise the posterior predictive of one row is improper, and the residual of a net
that goes through the row is zero. All that is known is the size of the target: it is the noise, under the natural prior
precision of 1. Where variances are given they are the noise.
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
    """The options, with values in place of the rules that rows of so little weight cannot follow.

    Parameters
    ----------
    options : Options
        With the likelihood in the units of the rows' targets.
    total_weight : float
        N_w.
    scale : TargetScale
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
