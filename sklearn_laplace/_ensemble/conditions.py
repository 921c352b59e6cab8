"""Conditions under which a fit trains its members jointly, accepts streamed rows, or uses a GPU.

Under ``device="auto"``, a fit with built-in nets uses a GPU if one is available and the fit is large enough.
"""

from collections.abc import Mapping
from typing import Any

from .._table.rows import TableShape
from .._table.source import Group
from .._training.built_in import of_one_net
from .._training.plan import FitRequest
from .._training.recipe import LEAST_ROWS, recipes_for
from ..errors import UnsupportedCombinationError
from ..laplace.structures import Functional
from ..laplace.subsets._base import Subset
from ..laplace.torch_state import AVAILABLE
from ..options.prior import previous_of
from ..options.resolve import is_plain_subset
from ..options.resolved import Options, is_auto, is_number
from .joint_members import blocks_of

LEAST_EVENTS = 30
"""Minimum total count of each target for joint training on rows in memory. With hardly any events, the data do not
bound a rate from below."""


def trains_jointly(
    parameters: Mapping[str, Any], shape: TableShape, options: Options, *, is_streamed: bool = False
) -> bool:
    """True if members train jointly: built-in nets, enough rows, held-out selection, and no option of a single net."""
    likelihood = options.likelihood
    built_in = parameters["net"] is None and len(parameters["hidden_layer_sizes"]) > 0
    many = shape.n_rows >= LEAST_ROWS and parameters["prior"] is None
    if not (built_in and many and _selects_by_held_out(options)) or _is_of_one_net(parameters, options):
        return False
    if likelihood.has_dispersion:
        return likelihood.quadratic
    return is_streamed or likelihood.over_classes or shape.least_total >= LEAST_EVENTS


def _selects_by_held_out(options: Options) -> bool:
    """True if held-out rows select one factor of all prior precisions, and the noise level unless it is known."""
    by_prior, by_noise = options.by_held_out
    is_known = not (options.likelihood.has_dispersion and options.sigma_noise.free)
    return by_prior and (by_noise or is_known) and options.map_precision is None and options.grouping.each == "net"


def _is_of_one_net(parameters: Mapping[str, Any], options: Options) -> bool:
    """True if an option refers to the epochs or to single weights of a net, or sets the number of nets."""
    return (
        is_number(parameters["n_members"])
        or parameters["max_epochs"] is not None
        or bool(options.prior_mean)
        or not isinstance(options.temperature, float)
        or type(options.subset).chosen is not Subset.chosen
    )


def check_in_memory(request: FitRequest, options: Options, *, is_joint: bool) -> None:
    """Refuse a stream if nets are trained independently, or if the curvature stores all rows or is no sum over rows."""
    if request.stream is None:
        return
    structure = options.structure
    if structure is not None and (not structure.is_monoid or issubclass(structure, Functional)):
        reason = "stores all rows" if structure.is_monoid else "is no sum over rows"
        raise UnsupportedCombinationError(
            f"hessian_structure={request.parameters['hessian_structure']!r} {reason}, and X is a large source. "
            "Use 'kron', 'block_diagonal', 'diag' or 'full', or read the rows into memory."
        )
    if not is_joint:
        noise = " and sigma_noise 'auto' or a number" if options.likelihood.has_dispersion else ""
        raise UnsupportedCombinationError(
            f"X is a source of {request.stream.n_rows:,} rows, and these options need all rows in memory. Only the "
            "default ensemble trains while it reads: leave net, n_members, prior, prior_precision and "
            f"max_epochs at their defaults{noise}, or read the rows into memory."
        )


GPU_WORK, JOINT_WORK = 1e9, 1e8
"""Minimum product of rows and weights for which "auto" selects a GPU: for one net, and for joint training."""


def device_of_fit(parameters: Mapping[str, Any], shape: TableShape, options: Options) -> Mapping[str, Any]:
    """Return the parameters, with a GPU in place of "auto" if a fit of built-in nets is large enough.

    Ranks (processes) of a group would share a GPU, so they stay on the CPU. A previous posterior keeps its device.
    """
    if not is_auto(parameters["device"]) or parameters["net"] is not None or not AVAILABLE["cuda"]():
        return parameters
    previous = previous_of(parameters["prior"])
    if previous is not None:
        return {**parameters, "device": str(previous.fit.theta.device)}
    is_joint = trains_jointly(parameters, shape, options)
    work = shape.n_rows * _n_weights(parameters, shape, is_joint)
    pays = work >= (JOINT_WORK if is_joint else GPU_WORK) and Group.current().is_alone
    return {**parameters, "device": "cuda"} if pays else parameters


def _n_weights(parameters: Mapping[str, Any], shape: TableShape, is_joint: bool) -> int:
    """Number of weights of the largest net of a fit, with the maximum number of encoded inputs."""
    layers, n_bins = of_one_net(parameters), parameters["n_bins"]
    if is_joint:
        recipe = recipes_for(shape.n_rows, shape.levels.count(0))[-1]
        n_bins = recipe.n_bins if is_auto(n_bins) else n_bins
        if is_auto(parameters["hidden_layer_sizes"]):
            layers = {"hidden_layer_sizes": recipe.hidden_layer_sizes}
    return sum(block.size for block in blocks_of(layers, shape, None if is_auto(n_bins) else n_bins))


def leaves_layers_open(parameters: Mapping[str, Any]) -> bool:
    """True if no option sets hidden layers or bins or selects single tensors, so linear nets can be added."""
    n_bins = parameters["n_bins"]
    is_open = is_auto(parameters["hidden_layer_sizes"]) and (n_bins is None or is_auto(n_bins))
    return is_open and is_plain_subset(parameters["subset_of_weights"])
