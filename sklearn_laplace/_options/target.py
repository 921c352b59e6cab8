"""Resolve the transformation of the targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import skew

from .._data.statistics import count_hint, zeros_hint
from .._host.given_net import is_frozen
from .._validation.values import lookup
from ..distributions.transforms import TRANSFORMS, TargetTransform
from ..errors import UnsupportedCombinationError
from ..laplace.likelihoods._base import Likelihood
from .options import AUTO, is_auto

SKEWED = 1.0
"""Skewness of positive targets from which a hint is printed."""
CANDIDATES: tuple[str | None, ...] = (None, *TRANSFORMS)
"""Values of ``target_transform`` among which "auto" chooses."""


def target_transform(value: object) -> type[TargetTransform] | None:
    """Transformation that a value of the option stands for; None for "auto" and for no transformation.

    Raises ``ValueError`` for an unknown name.

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


def print_hint(likelihood: object, transform: object, targets: np.ndarray) -> None:
    """Print advice on counts and on targets that are mostly zero, or positive and skewed, under default options.

    Examples
    --------
    >>> print_hint("gaussian", None, np.array([[0.0], [3.0]]))
    >>> print_hint("auto", None, np.array([[1.0], [1.5], [2.0], [900.0]]))
    y is positive and skewed. If intervals reach below zero, use target_transform='auto', or 'log'.
    """
    if not is_auto(likelihood) or transform is not None:
        return
    hint = count_hint(targets) or zeros_hint(targets)
    if not hint and (targets > 0).all() and (skew(targets, axis=0) > SKEWED).any():
        hint = "y is positive and skewed. If intervals reach below zero, use target_transform='auto', or 'log'."
    if hint:
        print(hint)


def check_target_transform(parameters: Mapping[str, Any], likelihood: Likelihood) -> None:
    """Check the name of the transformation, and that likelihood and net allow one.

    Raises ``UnsupportedCombinationError`` for a likelihood without additive noise, and for "auto" with a trained net.
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
    if is_auto(value) and is_frozen(parameters["net"]):
        raise UnsupportedCombinationError(
            f"target_transform={value!r} cannot be used with a FrozenEstimator net, because its outputs are already "
            f"those of one transformation. Give that one: None, {' or '.join(map(repr, TRANSFORMS))}."
        )
