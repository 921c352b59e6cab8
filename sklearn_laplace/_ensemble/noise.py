"""How the noise of a net that is trained alone varies with the inputs.

The noise is learnt from errors of held-out rows: those of cross-fitted nets or of leave-one-out. A net with many
rows for each effective parameter has hardly over-fitted. Then its own errors serve, averaged over the posterior.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from .._approximation.choose import SelectionState
from .._approximation.learnt_noise import learnt_noise
from .._approximation.left_out import LeftOut
from .._approximation.noise_model import NoiseModel
from .._options.options import Options
from ..errors import MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError, UnsupportedCombinationError
from ..laplace.evidence import effective_parameters
from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.selection import HeldOutErrors
from .request import FitRequest

FAILURES = MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError
"""Errors after which the noise is taken to be the same everywhere, unless a model of it was explicitly requested."""
FEW_FEATURES = 20
"""Rows per effective parameter from which the net's own errors serve."""


def fitted_noise(
    request: FitRequest,
    fit: LaplaceFit,
    hyper: Hyper,
    origin: SelectionState,
    options: Options,
    left_out: Callable[..., LeftOut],
) -> NoiseModel | None:
    """Learn how the noise varies; None if it does not, or if nothing shows it.

    Parameters
    ----------
    request : FitRequest
    fit : LaplaceFit
    hyper : Hyper
    origin : SelectionState
        With the cross-fitted nets, if there are any.
    options : Options
        Under the units of the rows; ``varying_noise`` is not False.
    left_out : callable
        What needs the rows → LeftOut.

    Raises
    ------
    UnsupportedCombinationError
        If the noise is known in ratio, or belongs to a previous posterior.
    """
    data, parameters, hyper = request.data, request.parameters, replace(hyper, temperature=1.0)
    if data.noise is not None or options.previous is not None:
        if options.varying_noise:
            raise UnsupportedCombinationError(
                f"likelihood={parameters['likelihood']!r} learns the noise, and here it is known in ratio (sigma_noise "
                "for several targets) or belongs to a previous posterior. Use 'gaussian'."
            )
        return None
    with suppress(*(() if options.varying_noise else FAILURES)):
        honest = origin.cross is not None and bool(origin.cross.networks)
        held_out = _errors(request, fit, hyper, origin, options, left_out)
        if held_out is None:
            return None
        rows = data if honest or request.kept is None else request.kept.in_order()
        given = data, rows, held_out, fit.theta, hyper.dispersion, options, request.seeds[0]
        tails = honest or bool(options.varying_noise)  # expected errors have none
        found = learnt_noise(parameters, *given, honest=honest, with_own_tails=tails)
        return None if found is None else found.model
    return None


def _errors(
    request: FitRequest,
    fit: LaplaceFit,
    hyper: Hyper,
    origin: SelectionState,
    options: Options,
    left_out: Callable[..., LeftOut],
) -> HeldOutErrors | None:
    if origin.cross is not None and origin.cross.networks:
        return origin.cross.held_out(hyper)
    if options.varying_noise:
        return left_out("likelihood='heteroscedastic'").errors(fit, hyper)
    is_deep = request.parameters["net"] is None and len(request.parameters["hidden_layer_sizes"]) > 0
    if request.kept is None or not is_deep:
        return None  # of a linear net Bayesian linear regression is expected
    if request.data.total_weight < FEW_FEATURES * effective_parameters(fit, hyper):
        return None
    return left_out().expected_errors(fit, hyper)
