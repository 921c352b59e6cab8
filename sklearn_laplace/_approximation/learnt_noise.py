"""A net for the noise that varies, from the parameters of an estimator and its held-out errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from .._data.rows import PreparedData
from .._options.options import Options
from .._training.built_in import built_in_net
from ..laplace.selection import HeldOutErrors
from .calibration import with_tails
from .noise_model import HIDDEN, TrainedNoise, noise_model

MOST_LEVELS = 32
"""Largest number of levels of a category that the noise net distinguishes, since an exact step costs the cube of the
number of weights. Of a larger category it has two indicators, of the first and of the second level."""
NOISE_SEED = 100
"""Added to the seed of the net of the mean, for initial weights of its own."""


def learnt_noise(
    parameters: Mapping[str, Any],
    data: PreparedData,
    rows: PreparedData,
    held_out: HeldOutErrors,
    like: torch.Tensor,
    dispersion: float,
    options: Options,
    seed: int,
    *,
    honest: bool,
    quick: bool = False,
    with_own_tails: bool = True,
    steps: int | None = None,
) -> TrainedNoise | None:
    """Train the net of the noise; None if the errors do not show that the noise varies.

    Parameters
    ----------
    parameters : mapping
        The estimator's.
    data, rows : PreparedData
        The rows of the fit, and those with held-out errors.
    held_out : HeldOutErrors
        Errors of ``rows``.
    like : Tensor
        In whose dtype and on whose device the noise is learnt.
    dispersion : float
        φ.
    options : Options
    seed : int
    honest : bool
        Whether the errors come from nets trained without these rows; the mean is then trained under the noise.
    quick : bool
        Whether a rough model is enough, for the weights of the rows in a training.
    with_own_tails : bool
        Whether these errors determine the tails of the noise.
    steps : int or None
        See :func:`~sklearn_laplace._approximation.noise_model.noise_model`.

    Warns
    -----
    BoundWarning
    """
    chosen = {**parameters, "hidden_layer_sizes": HIDDEN, "activation": "tanh", "n_bins": None}
    source, arguments = built_in_net(chosen, data, options.likelihood, seed + NOISE_SEED)
    inputs, weights = (torch.from_numpy(part).to(like) for part in (rows.X, rows.weights))
    if "levels" in arguments:
        arguments["levels"] = tuple(1 if n > MOST_LEVELS else n for n in arguments["levels"])
    given = source(**arguments).to(inputs), inputs, weights, held_out, dispersion, seed
    if (found := noise_model(*given, always=bool(options.varying_noise), quick=quick, steps=steps)) is None:
        return None
    if not quick:
        found.model.warn_at_bounds(inputs)
        found = with_tails(found) if with_own_tails else found
    return replace(found, model=found.model.trained_under(inputs, weights)) if honest else found
