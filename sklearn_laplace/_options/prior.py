"""What a user says of the prior, as objects: its mean, which weights share a precision, which structure can hold that.

It looks at values and at the registries' capabilities; names of options are looked up in ``_resolve`` and come in as
objects, names of tensors are looked up in the traced net (``laplace/prior_groups.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from .._validation.inputs import shown
from .._validation.values import positive
from ..errors import UnsupportedCombinationError
from ..laplace.jacobian.blocks import ParameterBlock
from ..laplace.prior_groups import GROUPINGS, Grouping, unit_of
from ..laplace.structures import STRUCTURES
from ..laplace.structures._base import Curvature

PRIOR_STRUCTURES = {name: grouping.unit for name, grouping in GROUPINGS.items()}
"""Each with the unit within which its precisions are equal, see ``Curvature.holds``."""


def mean_of(value: object) -> float | dict[str, Tensor]:
    """A finite number, or arrays of them by names of tensors.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> mean_of({"0.bias": [1, 2]})
    {'0.bias': tensor([1., 2.], dtype=torch.float64)}
    >>> mean_of("zero")
    Traceback (most recent call last):
        ...
    ValueError: prior='zero' has to be a finite number, or a dict of arrays of finite numbers by names of \
parameter tensors, such as a torch module's state_dict().
    """
    by_name = isinstance(value, Mapping)
    given: Mapping[str, object] = value if isinstance(value, Mapping) else {"": value}
    try:
        arrays = {str(name): np.asarray(_on_host(array), dtype=float) for name, array in given.items()}
    except (TypeError, ValueError, OverflowError):
        arrays = {"": np.asarray(math.nan)}
    valid = all(np.isfinite(array).all() for array in arrays.values())
    if not valid or isinstance(value, bool) or not (by_name or arrays[""].ndim == 0):
        raise ValueError(
            f"prior={shown(value)} has to be a finite number, or a dict of arrays of finite numbers by names of "
            "parameter tensors, such as a torch module's state_dict()."
        )
    return {name: torch.tensor(array) for name, array in arrays.items()} if by_name else float(arrays[""])


def _on_host(value: object) -> object:
    """A tensor without its graph and device, in a type that numpy has; anything else as it is."""
    return value.detach().cpu().double() if isinstance(value, Tensor) else value


def grouping_of(asked: Grouping, precision: np.ndarray | None) -> Grouping:
    """What shares a precision: all where one is given; several are one a tensor unless the option says otherwise.

    Examples
    --------
    >>> grouping_of(GROUPINGS["layer"], np.array(1.0)).each, grouping_of(GROUPINGS["scalar"], np.ones(3)).each
    ('net', 'tensor')
    """
    alone = GROUPINGS["scalar"]
    if precision is None:
        return asked
    if precision.size == 1:
        return alone
    return GROUPINGS["tensor"] if asked is alone else asked


def check_grouping(
    grouping: Grouping,
    structure_name: str,
    structure: type[Curvature] | None,
    *,
    separate_biases: bool = False,
    damped: bool = False,
) -> None:
    """A structure has to hold the pattern of the prior precisions.

    Parameters
    ----------
    grouping : Grouping
    structure_name : str
    structure : Curvature class or None
    separate_biases : bool
        Whether each tensor has a block of its own.
    damped : bool
        Whether √δ is added within the factors, which one precision a block allows.

    Raises
    ------
    UnsupportedCombinationError

    Examples
    --------
    >>> check_grouping(GROUPINGS["parameter"], "kron", STRUCTURES["kron"])
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.UnsupportedCombinationError: hessian_structure='kron' cannot hold one prior precision for \
each weight: its factors need equal ones within each column of a layer. Use prior in ['ard', 'layer', \
'scalar', 'tensor'], or hessian_structure in ['block_diagonal', 'diag', 'full', 'functional', 'low_rank', \
'low_rank_diag'].
    """
    tensors = GROUPINGS["tensor"] if separate_biases else None

    def unit(of: Grouping) -> str:
        return "layer" if of is tensors else of.unit

    holds = frozenset({"layer"}) if damped or structure is None else structure.holds
    if structure is None or unit(grouping) in holds:
        return
    able = sorted(name for name, other in STRUCTURES.items() if grouping.unit in other.holds)
    held = sorted(name for name, other in GROUPINGS.items() if unit(other) in holds)
    within = "layer" if len(holds) == 1 else "column of a layer"
    damping = "damping='ritter' with " if damped else ""
    raise UnsupportedCombinationError(
        f"{damping}hessian_structure={structure_name!r} cannot hold one prior precision for each {grouping.each}: its "
        f"factors need equal ones within each {within}. Use prior in {held}, or hessian_structure in {able}."
    )


def can_leave_out(parameters: Mapping[str, object]) -> bool:
    """Return True if leave-one-out is defined: rows without augmentation and without a previous posterior."""
    return parameters["augment"] is None and parameters["prior"] is None


def check_left_out(purpose: str, parameters: Mapping[str, object]) -> None:
    """Check that rows can be left out one at a time.

    Parameters
    ----------
    purpose : str
        What needs leave-one-out, for the message.
    parameters : mapping
        Internal options, of which ``augment`` and ``prior`` matter.

    Raises
    ------
    UnsupportedCombinationError

    Examples
    --------
    >>> check_left_out("loo_predict", {"augment": None, "prior": None})
    >>> check_left_out("loo_predict", {"augment": None, "prior": "FrozenEstimator(...)"})
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.UnsupportedCombinationError: loo_predict cannot be used with prior=FrozenEstimator(…): it \
leaves out one row at a time, and of the previous rows only a quadratic model is known. Fit all rows together.
    """
    if parameters["augment"] is not None:
        raise UnsupportedCombinationError(
            f"{purpose} cannot be used with augment: it leaves out one row at a time, and the fit sees random copies "
            "in place of the rows. Use augment=None."
        )
    if parameters["prior"] is not None:
        raise UnsupportedCombinationError(
            f"{purpose} cannot be used with prior=FrozenEstimator(…): it leaves out one row at a time, and of the "
            "previous rows only a quadratic model is known. Fit all rows together."
        )


def check_temperature(
    structure: type[Curvature], blocks: Sequence[ParameterBlock], given: float | Tensor, *, damped: bool = False
) -> None:
    """A structure has to hold the pattern of the temperatures.

    Parameters
    ----------
    structure : Curvature class
    blocks : sequence of ParameterBlock
    given : float or Tensor of shape (P,)
    damped : bool
        As for :func:`check_grouping`.

    Raises
    ------
    UnsupportedCombinationError

    Examples
    --------
    >>> block = ParameterBlock("0", 2, 2, factored=True)
    >>> check_temperature(STRUCTURES["ekfac"], [block], torch.tensor([1.0, 2.0, 1.0, 2.0]))
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.UnsupportedCombinationError: hessian_structure='ekfac' needs one temperature for all of a \
layer, and temperature gives its tensors different ones. Name layers, or use hessian_structure in ['block_diagonal', \
'diag', 'full', 'functional', 'kron', 'low_rank', 'low_rank_diag'].
    """
    holds = frozenset({"layer"}) if damped else structure.holds
    if isinstance(given, Tensor) and (unit := unit_of(blocks, given)) not in holds:
        name = next(key for key, value in STRUCTURES.items() if value is structure)
        able = sorted(key for key, other in STRUCTURES.items() if unit in other.holds)
        raise UnsupportedCombinationError(
            f"hessian_structure={name!r} needs one temperature for all of a layer, and temperature gives its tensors "
            f"different ones. Name layers, or use hessian_structure in {able}."
        )


def temperature(value: object) -> float | dict[str, float]:
    """A positive number, or one for each of some layers or tensors by name; the names are looked up in the net.

    Examples
    --------
    >>> temperature({"2.bias": 3})
    {'2.bias': 3.0}
    """
    if isinstance(value, Mapping):
        return {str(name): positive(f"temperature[{name!r}]", number) for name, number in value.items()}
    return positive("temperature", value)
