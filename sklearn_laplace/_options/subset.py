"""Resolve ``subset_of_weights`` to the random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._validation.values import count_or_share, lookup
from ..errors import UnsupportedCombinationError
from ..laplace.curvatures._base import CurvatureRule
from ..laplace.structures import STRUCTURES
from ..laplace.structures._base import Curvature
from ..laplace.subsets import SCORES, SUBSETS, Scored, Subnetwork
from ..laplace.subsets._base import Subset


def is_plain_subset(value: object) -> bool:
    """True if a value of ``subset_of_weights`` is a rule, not a list of tensors or a dict of masks."""
    return isinstance(value, str)


def _subset(parameters: Mapping[str, Any]) -> Subset:
    """Subset from a rule, a list of tensor names or a dict of masks; tensor names are looked up in the traced net."""
    value = parameters["subset_of_weights"]
    score = lookup("score of Subnetwork", parameters["subnetwork"], SCORES)
    scored = Scored(score, count_or_share("size of Subnetwork", parameters["n_subnetwork_weights"]), seed=0)
    if isinstance(value, str):
        return _subset_of_rule(value, scored)
    if isinstance(value, Mapping) and value and all(isinstance(name, str) for name in value):
        return Subnetwork(_masks(value))
    if isinstance(value, Sequence) and value and all(isinstance(name, str) for name in value):
        return Subnetwork(dict.fromkeys(value))
    raise ValueError(
        f"subset_of_weights={value!r} has to be one of {', '.join(map(repr, SUBSETS))}, a list of names of tensors or "
        "modules, or a dict of masks of tensors."
    )


def _subset_of_rule(rule: str, scored: Scored) -> Subset:
    try:
        kind = lookup("subset_of_weights", rule, SUBSETS)
    except ValueError as error:
        raise ValueError(f"{error} Or pass a list of names of tensors or modules, or a dict of masks.") from None
    return scored if kind is Subnetwork else kind()


def _masks(masks: Mapping[str, Any]) -> dict[str, Tensor]:
    arrays = {name: np.asarray(m.cpu() if isinstance(m, Tensor) else m) for name, m in masks.items()}
    if wrong := [name for name, mask in arrays.items() if mask.dtype != bool]:
        raise ValueError(
            f"subset_of_weights has masks for {wrong} that are not boolean. Pass arrays of True and False."
        )
    return {name: torch.tensor(mask) for name, mask in arrays.items()}


def _check_subset(subset: Subset, rule: CurvatureRule, structure_name: str, structure: type[Curvature] | None) -> None:
    """Check that curvature rule and structure support the subset, which may consist of single weights."""
    if not rule.provides & subset.provides:
        raise UnsupportedCombinationError(
            "subset_of_weights selects single weights of a tensor, which this curvature does not support. Use "
            "curvature='ggn', or select whole tensors."
        )
    if structure is not None and not structure.accepts & subset.provides:
        able = sorted(name for name, other in STRUCTURES.items() if other.accepts & subset.provides)
        raise UnsupportedCombinationError(
            f"hessian_structure={structure_name!r} needs whole tensors, but subset_of_weights selects single weights. "
            f"Use hessian_structure in {able}, or select whole tensors."
        )
