"""Model of noise that varies with the inputs or between targets, for a net that is trained on all rows.

The model is learnt from leave-one-out errors if the curvature is exact or the user requests varying noise. Otherwise,
training errors averaged over the posterior are used, if there are so many rows per effective parameter that the net has
hardly overfitted.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch

from .._training.built_in import noise_net
from .._training.plan import FitRequest
from ..errors import UnsupportedCombinationError
from ..laplace.evidence import effective_parameters
from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.selection import HeldOutErrors
from ..laplace.structures import Full, Functional
from ..options.resolved import Options
from .calibration import FAILURES, learnt_noise
from .choose import LeftOut
from .noise_model import NoiseModel
from .target_noise import TargetNoise, target_noise

FEW_FEATURES = 20
"""Minimum number of rows per effective parameter for using training errors."""


def fitted_noise(
    request: FitRequest,
    fit: LaplaceFit,
    hyper: Hyper,
    options: Options,
    left_out: Callable[..., LeftOut],
) -> NoiseModel | TargetNoise | None:
    """Return a model of varying noise, or else the noise levels of several targets; None if neither applies.

    ``options`` are in the units of the rows. ``left_out`` takes the name of the option that needs the rows.
    """
    data, parameters, hyper = request.data, request.parameters, replace(hyper, temperature=1.0)
    if data.noise is not None or options.previous is not None:
        if options.varying_noise:
            raise UnsupportedCombinationError(
                f"likelihood={parameters['likelihood']!r} learns the noise, but its ratios are given (sigma_noise for "
                "several targets) or it belongs to a previous posterior. Use likelihood='gaussian'."
            )
        return None
    has_levels = fit.n_outputs > 1 and fit.likelihood.has_dispersion and options.sigma_noise.free
    varies = options.varying_noise is not False
    if not (has_levels or varies):
        return None
    with suppress(*(() if options.varying_noise else FAILURES)):
        found = _errors(request, fit, hyper, options, left_out)
        if found is None:
            return None
        held_out, tails = found
        levels = target_noise(held_out, hyper.dispersion) if has_levels else None
        if not varies:
            return levels
        rows = data if request.kept is None else request.kept.in_order()
        of_each = () if levels is None else levels.levels
        net = noise_net(parameters, data, options.likelihood, request.seeds[0], of_each)
        inputs, level, seed = torch.from_numpy(rows.X), hyper.dispersion, request.seeds[0]
        trained = learnt_noise(net, inputs, held_out, level, options, seed, honest=False, with_own_tails=tails)
        return levels if trained is None else trained.model
    return None


def _errors(
    request: FitRequest,
    fit: LaplaceFit,
    hyper: Hyper,
    options: Options,
    left_out: Callable[..., LeftOut],
) -> tuple[HeldOutErrors, bool] | None:
    """Errors, and True if they have the tails of the noise, which posterior averages lack; None without errors."""
    if options.varying_noise:
        return left_out("likelihood='heteroscedastic'").errors(fit, hyper), True
    is_deep = request.parameters["net"] is None and len(request.parameters["hidden_layer_sizes"]) > 0
    if request.kept is None or not is_deep:
        return None  # linear nets have constant noise, as in Bayesian linear regression
    if isinstance(fit.curvature, Full | Functional):
        return left_out().errors(fit, hyper), True
    if request.data.total_weight < FEW_FEATURES * effective_parameters(fit, hyper):
        return None
    return left_out().expected_errors(fit, hyper), False
