"""How the noise of a net that is trained alone varies with the inputs.

The noise is learnt from errors of held-out rows: those of cross-fitted nets or of leave-one-out. A fit with enough rows
for each effective parameter has over-fitted none of them, and its own errors serve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from .._data import PreparedData
from .._learnt_noise import learnt_noise
from .._loo import LeftOut
from .._noise_model import NoiseModel
from .._resolve import Options
from .._stages import Origin
from ..errors import MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError, UnsupportedCombinationError
from ..evidence import effective_parameters
from ..laplace import Hyper, LaplaceFit

FEW_FEATURES = 20
"""Rows per effective parameter from which on the net has over-fitted none of them."""


def fitted_noise(
    fit: LaplaceFit,
    hyper: Hyper,
    origin: Origin,
    rows: tuple[PreparedData, PreparedData | None],
    parameters: Mapping[str, Any],
    options: Options,
    left_out: Callable[..., LeftOut],
    seed: int,
) -> NoiseModel | None:
    """Learn how the noise varies; None if it does not, or if nothing shows it.

    Parameters
    ----------
    fit : LaplaceFit
    hyper : Hyper
    origin : Origin
        With the cross-fitted nets, if there are any.
    rows : PreparedData, and PreparedData or None
        Rows of the training, and the rows as they were given.
    parameters : mapping
        The estimator's.
    options : Options
        With ``varying_noise`` not False.
    left_out : callable
        (what needs the rows, in_order) → LeftOut.
    seed : int

    Raises
    ------
    UnsupportedCombinationError
        If the noise is known in ratio, or belongs to a previous posterior.
    """
    data = rows[0]
    if data.noise is not None or data.past is not None:
        if options.varying_noise:
            raise UnsupportedCombinationError(
                f"likelihood={parameters['likelihood']!r} learns the noise, and here it is known in ratio (sigma_noise "
                "for several targets) or belongs to a previous posterior. Use 'gaussian'."
            )
        return None
    failures = () if options.varying_noise else (MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError)
    with suppress(*failures):
        cold = replace(hyper, temperature=1.0)  # as all that is chosen
        return _noise_of(fit, cold, origin, rows, parameters, options, left_out, seed)
    return None


def _noise_of(
    fit: LaplaceFit,
    hyper: Hyper,
    origin: Origin,
    rows: tuple[PreparedData, PreparedData | None],
    parameters: Mapping[str, Any],
    options: Options,
    left_out: Callable[..., LeftOut],
    seed: int,
) -> NoiseModel | None:
    cross, (data, kept) = origin.cross, rows
    honest = cross is not None and bool(cross.networks)
    known = data if honest or kept is None else kept.in_order()
    if cross is not None and honest:
        held_out = cross.held_out(hyper)
    elif options.varying_noise:
        held_out = left_out("likelihood='heteroscedastic'", in_order=True).errors(fit, hyper)
    elif kept is None or parameters["net"] is not None or not len(parameters["hidden_layer_sizes"]):
        return None  # of a linear net Bayesian linear regression is expected
    elif data.total_weight < FEW_FEATURES * effective_parameters(fit, hyper):
        return None
    else:
        held_out = left_out("leave-one-out", in_order=True).expected_errors(fit, hyper)
    given = data, known, held_out, fit.theta, hyper.dispersion, options, seed
    tails = honest or bool(options.varying_noise)  # expected errors have none
    found = learnt_noise(parameters, *given, honest=honest, with_own_tails=tails)
    return None if found is None else found.model
