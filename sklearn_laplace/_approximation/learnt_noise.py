"""Noise model of an estimator: a built-in net, trained on the estimator's held-out errors."""

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
"""Maximum number of levels of a category that the noise net distinguishes, because an exact step costs the cube of the
number of weights. A category with more levels has two indicators, for its first and its second level."""
NOISE_SEED = 100
"""Offset of the noise net's seed from that of the mean's net, so that their initial weights differ."""


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
    """Train the noise net on held-out errors.

    Parameters
    ----------
    parameters : mapping
        Parameters of the estimator.
    data, rows : PreparedData
        Rows of the fit, and rows with held-out errors.
    held_out : HeldOutErrors
        Errors of ``rows``.
    like : Tensor
        Tensor with the dtype and device of the noise net.
    dispersion : float
        Noise level φ.
    options : Options
    seed : int
        Seed of the net of the mean.
    honest : bool
        If True, the errors come from nets trained without these rows, and the mean is trained under the noise later.
    quick : bool
        If True, train a rough model, which is sufficient for row weights in a training.
    with_own_tails : bool
        If True, estimate the tails of the noise from these errors.
    steps : int or None
        See :func:`~sklearn_laplace._approximation.noise_model.noise_model`.

    Returns
    -------
    TrainedNoise or None
        None if the errors do not show that the noise varies, or if the noise net is too expensive.

    Warns
    -----
    BoundWarning
        If the noise of some rows is at its bound.
    """
    chosen = {**parameters, "hidden_layer_sizes": HIDDEN, "activation": "tanh", "n_bins": None}
    source, arguments = built_in_net(chosen, data, options.likelihood, seed + NOISE_SEED)
    inputs, weights = (torch.from_numpy(part).to(like) for part in (rows.X, rows.weights))
    if "levels" in arguments:
        arguments["levels"] = tuple(1 if n > MOST_LEVELS else n for n in arguments["levels"])
    problem = source(**arguments).to(inputs), inputs, weights, held_out, dispersion, seed
    if (trained := noise_model(*problem, always=bool(options.varying_noise), quick=quick, steps=steps)) is None:
        return None
    if not quick:
        trained.model.warn_at_bounds(inputs)
        trained = with_tails(trained) if with_own_tails else trained
    return replace(trained, model=trained.model.trained_under(inputs, weights)) if honest else trained
