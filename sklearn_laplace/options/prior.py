"""Resolve the prior: its mean, the grouping of its precisions, and the structures that support them.

A previous posterior (``prior=FrozenEstimator(…)``) is the prior for new rows. It consists of the gradient and curvature
of the old rows' loss, and the weights at which these were computed; the rows are not stored. Net, subset, likelihood,
curvature and structure must stay the same. Prior precision, noise level, temperature and predictive may change.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from torch import Tensor

from .._validation.arguments import positive
from .._validation.rows import shown
from ..errors import UnsupportedCombinationError
from ..laplace.curvatures import CURVATURES
from ..laplace.fit import LaplaceFit
from ..laplace.jacobian.jacobian import ParameterBlock
from ..laplace.prior_groups import GROUPINGS, Grouping, unit_of
from ..laplace.structures import STRUCTURES
from ..laplace.structures._base import Curvature
from ..laplace.subsets import All
from ..laplace.updates import PreviousPosterior
from ..nets.given_net import is_frozen
from .resolved import Options


def mean_of(value: object) -> float | dict[str, Tensor]:
    """Return the prior mean: a finite number, or a dict of tensors keyed by names. Raises ``ValueError`` otherwise.

    >>> mean_of({"0.bias": [1, 2]})
    {'0.bias': tensor([1., 2.], dtype=torch.float64)}
    >>> mean_of("zero")
    Traceback (most recent call last):
        ...
    ValueError: prior='zero' has to be a finite number, or a dict of arrays of finite numbers, keyed by the names of \
parameter tensors, such as a torch module's state_dict().
    """
    by_name = isinstance(value, Mapping)
    values: Mapping[str, object] = value if isinstance(value, Mapping) else {"": value}
    arrays = _float_arrays(values)
    valid = all(np.isfinite(array).all() for array in arrays.values())
    if not valid or isinstance(value, bool) or not (by_name or arrays[""].ndim == 0):
        raise ValueError(
            f"prior={shown(value)} has to be a finite number, or a dict of arrays of finite numbers, keyed by the "
            "names of parameter tensors, such as a torch module's state_dict()."
        )
    return {name: torch.tensor(array) for name, array in arrays.items()} if by_name else float(arrays[""])


def _float_arrays(values: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Convert values to float arrays; a single NaN if one is not numeric."""
    try:
        return {str(name): np.asarray(_on_host(array), dtype=float) for name, array in values.items()}
    except (TypeError, ValueError, OverflowError):
        return {"": np.asarray(math.nan)}


def _on_host(value: object) -> object:
    """Convert a tensor to detached float64 on the CPU; return anything else unchanged."""
    return value.detach().cpu().double() if isinstance(value, Tensor) else value


def grouping_of(grouping: Grouping, precision: np.ndarray | None) -> Grouping:
    """Return the grouping of the prior precisions, given the option and user-set precisions.

    A single given precision applies to all weights. Several, with the default ``grouping``, apply to one tensor each.

    >>> grouping_of(GROUPINGS["layer"], np.array(1.0)).each, grouping_of(GROUPINGS["scalar"], np.ones(3)).each
    ('net', 'tensor')
    """
    scalar = GROUPINGS["scalar"]
    if precision is None:
        return grouping
    if precision.size == 1:
        return scalar
    return GROUPINGS["tensor"] if grouping is scalar else grouping


def check_grouping(
    grouping: Grouping,
    structure_name: str,
    structure: type[Curvature] | None,
    *,
    separate_biases: bool = False,
    damped: bool = False,
) -> None:
    """Check that a structure supports a grouping of the prior precisions; the structure "auto" (None) supports any.

    With ``separate_biases``, each tensor has a separate block. If ``damped``, √δ is added to the Kronecker factors,
    which needs one precision δ per block.
    """
    if structure is None:
        return
    tensors = GROUPINGS["tensor"] if separate_biases else None

    def unit(of: Grouping) -> str:
        return "layer" if of is tensors else of.unit

    holds = _units(structure, damped)
    if unit(grouping) in holds:
        return
    able = sorted(name for name, other in STRUCTURES.items() if grouping.unit in other.holds)
    supported = sorted(name for name, other in GROUPINGS.items() if unit(other) in holds)
    within = "layer" if len(holds) == 1 else "column of a layer"
    damping = "damping='ritter' with " if damped else ""
    raise UnsupportedCombinationError(
        f"{damping}hessian_structure={structure_name!r} does not support one prior precision for each "
        f"{grouping.each}: its factors need equal precisions within each {within}. Use prior in {supported}, or "
        f"hessian_structure in {able}."
    )


def _units(structure: type[Curvature], damped: bool) -> frozenset[str]:
    """Return the units that can have their own prior precision (``Curvature.holds``); if ``damped``, only layers."""
    return frozenset({"layer"}) if damped else structure.holds


def can_leave_out(parameters: Mapping[str, object]) -> bool:
    """True if leave-one-out is defined, that is, without a previous posterior."""
    return parameters["prior"] is None


def check_left_out(purpose: str, parameters: Mapping[str, object]) -> None:
    """Check that rows can be left out one at a time, as the option or method ``purpose`` requires.

    >>> check_left_out("loo_predict", {"prior": None})
    >>> check_left_out("loo_predict", {"prior": "FrozenEstimator(...)"})
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.UnsupportedCombinationError: loo_predict cannot be used with prior=FrozenEstimator(…): it \
leaves out one row at a time, and the previous rows are not stored. Fit all rows together.
    """
    if not can_leave_out(parameters):
        raise UnsupportedCombinationError(
            f"{purpose} cannot be used with prior=FrozenEstimator(…): it leaves out one row at a time, and the "
            "previous rows are not stored. Fit all rows together."
        )


def check_temperature(
    structure: type[Curvature], blocks: Sequence[ParameterBlock], temperatures: float | Tensor, *, damped: bool = False
) -> None:
    """Check that a structure supports one temperature, or one per weight (P,); see :func:`check_grouping`."""
    holds = _units(structure, damped)
    if isinstance(temperatures, Tensor) and (unit := unit_of(blocks, temperatures)) not in holds:
        name = next(key for key, value in STRUCTURES.items() if value is structure)
        able = sorted(key for key, other in STRUCTURES.items() if unit in other.holds)
        raise UnsupportedCombinationError(
            f"hessian_structure={name!r} needs the same temperature for all tensors of a layer, but temperature gives "
            f"them different values. Use layers as keys, or hessian_structure in {able}."
        )


def temperature(value: object) -> float | dict[str, float]:
    """Check and return the temperature: a positive number, or several keyed by names of layers or tensors."""
    if isinstance(value, Mapping):
        return {str(name): positive(f"temperature[{name!r}]", number) for name, number in value.items()}
    return positive("temperature", value)


def previous_of(prior: object) -> PreviousPosterior | None:
    """Return the posterior of a frozen estimator, whose type was checked before; None for any other prior."""
    if not isinstance(prior, FrozenEstimator):
        return None
    fitted = prior.estimator
    return PreviousPosterior(fitted.laplace_, fitted.hyper_, fitted.net_.module_)


def check_previous(options: Options, parameters: Mapping[str, Any], past: LaplaceFit) -> None:
    """Check that the options are compatible with the previous posterior of the fit ``past``."""
    _check_structure(options, parameters, past)
    _check_model(options, parameters, past)


def _check_structure(options: Options, parameters: Mapping[str, Any], past: LaplaceFit) -> None:
    """Check that structure and structure options are those of the previous fit, since the curvatures are added."""
    kind = type(past.curvature)
    name = next(key for key, structure in STRUCTURES.items() if structure is kind)
    if not kind.is_monoid:
        able = sorted(key for key, structure in STRUCTURES.items() if structure.is_monoid)
        raise UnsupportedCombinationError(
            f"prior=FrozenEstimator(…) holds a posterior with hessian_structure={name!r}, whose curvature cannot be "
            f"added to that of other rows. Fit the previous estimator with hessian_structure in {able}."
        )
    if options.structure not in (None, kind):
        raise UnsupportedCombinationError(
            f"hessian_structure={parameters['hessian_structure']!r} cannot be combined with a previous posterior of "
            f"hessian_structure={name!r}. Use {name!r} or 'auto'."
        )
    structure_options = options.of_structure(kind)
    if structure_options != past.curvature.options:
        raise UnsupportedCombinationError(
            f"the previous posterior has the structure options {past.curvature.options}, and this fit has "
            f"{structure_options}: the two curvatures cannot be added. Use the same options in both fits."
        )
    if options.separate_biases or not past.network.folds_biases:
        raise UnsupportedCombinationError(
            "bias='separate' cannot be used with prior=FrozenEstimator(…): the training treats a bias as a column of "
            "its layer's weight. Use bias='folded' in both fits."
        )
    check_grouping(options.grouping, name, kind)


def _check_model(options: Options, parameters: Mapping[str, Any], past: LaplaceFit) -> None:
    """Check that curvature rule and likelihood are those of the previous fit; refuse weight subsets and frozen nets."""
    if type(options.rule) is not type(past.rule):
        rule = next(key for key, value in CURVATURES.items() if value is type(past.rule))
        raise UnsupportedCombinationError(
            f"curvature={parameters['curvature']!r} cannot be added to that of the previous posterior. Use "
            f"curvature={rule!r}."
        )
    if past.dispersion_power != 1 and past.likelihood.has_dispersion:
        raise UnsupportedCombinationError(
            f"curvature={parameters['curvature']!r} cannot be used with prior=FrozenEstimator(…) and a noise level, on "
            "which the curvature of the previous rows depends. Use curvature='ggn' in both fits."
        )
    if type(options.likelihood) is not type(past.likelihood):
        raise UnsupportedCombinationError(
            f"likelihood={parameters['likelihood']!r} is not that of the previous posterior. Use "
            f"likelihood={past.likelihood.key()!r}."
        )
    if not isinstance(options.subset, All):
        raise UnsupportedCombinationError(
            f"subset_of_weights={parameters['subset_of_weights']!r} cannot be used with prior=FrozenEstimator(…): the "
            "training changes all weights and needs a previous posterior over all of them. Use 'all' in both fits."
        )
    if is_frozen(parameters["net"]):
        raise UnsupportedCombinationError(
            "net=FrozenEstimator(…) is not trained, but prior=FrozenEstimator(…) is the starting point of a training. "
            "Pass only one of them."
        )
