"""Noise model of an estimator: a built-in net, trained on the estimator's held-out errors."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from .._options.options import Options
from ..errors import MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError
from ..laplace.selection import HeldOutErrors
from .calibration import with_tails
from .noise_model import TrainedNoise, noise_model

FAILURES = MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError
"""Errors after which constant noise is used, unless varying noise was explicitly requested."""


def learnt_noise(
    net: nn.Module,
    inputs: Tensor,
    held_out: HeldOutErrors,
    dispersion: float,
    options: Options,
    seed: int,
    *,
    honest: bool,
    quick: bool = False,
    with_own_tails: bool = True,
) -> TrainedNoise | None:
    """Train the noise net on held-out errors of rows (n, d), as :func:`.noise_model.noise_model`.

    Returns None if the errors do not show that the noise varies, or if the noise net is too expensive. If ``honest``,
    the errors come from nets trained without these rows, and the mean is trained under the noise later. ``quick``
    suffices for row weights in a training; ``with_own_tails`` estimates the tails from these errors. Issues
    ``BoundWarning`` if the noise of some rows is at its bound.
    """
    weights, always = held_out.weights, bool(options.varying_noise)
    net, inputs = net.to(weights), inputs.to(weights)
    trained = noise_model(net, inputs, weights, held_out, dispersion, seed, always=always, quick=quick)
    if trained is None:
        return None
    if not quick:
        trained.model.warn_at_bounds(inputs)
        trained = with_tails(trained) if with_own_tails else trained
    return replace(trained, model=trained.model.trained_under(inputs, weights)) if honest else trained
