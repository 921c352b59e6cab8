"""Resolve the transformation of the targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.frozen import FrozenEstimator

from .._validation.values import lookup
from ..distributions.transforms import TRANSFORMS, TargetTransform
from ..errors import UnsupportedCombinationError
from ..laplace.likelihoods._base import Likelihood
from .options import AUTO, is_auto

CANDIDATES: tuple[str | None, ...] = (None, *TRANSFORMS)
"""Values of ``target_transform`` among which "auto" chooses."""


def target_transform(value: object) -> type[TargetTransform] | None:
    """Transformation that a value of the option stands for; None for "auto" and for no transformation.

    Raises
    ------
    ValueError
        For an unknown name.

    Examples
    --------
    >>> target_transform("log").__name__, target_transform(None)
    ('LogTransform', None)
    """
    known: dict[str, type[TargetTransform] | None] = {AUTO: None, **TRANSFORMS}
    return None if value is None else lookup("target_transform", value, known)


def name_of(transforms: tuple[TargetTransform, ...]) -> str | None:
    """Value of the option for the transformations of all targets, which are of one kind.

    Examples
    --------
    >>> name_of(()) is None
    True
    """
    return next((name for name, kind in TRANSFORMS.items() if transforms and type(transforms[0]) is kind), None)


def check_target_transform(parameters: Mapping[str, Any], likelihood: Likelihood) -> None:
    """Check the name of the transformation, and that likelihood and net allow one.

    Raises
    ------
    ValueError
        For an unknown name.
    UnsupportedCombinationError
        For a likelihood without additive noise, and for "auto" with a trained net.
    """
    value = parameters["target_transform"]
    target_transform(value)
    if value is None:
        return
    if not likelihood.additive_noise:
        raise UnsupportedCombinationError(
            f"target_transform={value!r} cannot be used with likelihood={parameters['likelihood']!r}, which models "
            "counts as they are. Use target_transform=None, or likelihood='gaussian'."
        )
    if is_auto(value) and isinstance(parameters["net"], FrozenEstimator):
        raise UnsupportedCombinationError(
            f"target_transform={value!r} cannot be used with a FrozenEstimator net, because its outputs are already "
            f"those of one transformation. Give that one: None, {' or '.join(map(repr, TRANSFORMS))}."
        )
