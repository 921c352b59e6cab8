"""Check the options of the training: the net, its device, the targets and the number of members."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.stats import skew
from sklearn.frozen import FrozenEstimator

from .._table.statistics import count_hint, zeros_hint
from .._table.table import FROM_DTYPE
from .._validation.arguments import count, lookup
from .._validation.rows import shown
from ..errors import UnsupportedCombinationError
from ..laplace.likelihoods._base import Likelihood
from ..laplace.torch_state import AVAILABLE
from ..nets.given_net import device_of, has_own_iterator, is_frozen, is_list
from .prior import check_left_out
from .resolved import AUTO, EVIDENCE, LOO, is_auto, is_number

BUILT_IN_ONLY = {"hidden_layer_sizes": AUTO, "activation": AUTO, "n_bins": AUTO, "categorical_features": FROM_DTYPE}
"""Options that only the built-in net has, with their default values."""


def _device(name: object, net: Any) -> torch.device:
    """Return the device; "auto" is that of the user's net, else the CPU (or a GPU, see ``_ensemble/conditions.py``)."""
    named = device_of(net) or "cpu" if str(name) == "auto" else str(name)
    try:
        device = torch.device(named)
    except RuntimeError as error:
        raise ValueError(f"device={name!r} is not known; expected 'auto', 'cpu' or 'cuda'.") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device={name!r} is not supported; expected 'auto', 'cpu' or 'cuda'.")
    return device


def check_device(device: torch.device) -> None:
    """Check that the device for the training is available; a fitted model predicts without it."""
    if device.type == "cuda" and not AVAILABLE["cuda"]():
        raise ValueError(f"device='{device}' is not available: torch finds no CUDA device. Use device='cpu'.")


def _standardises(parameters: Mapping[str, Any]) -> bool | None:
    """True if the user's linear layers standardise X; None if only those with unstandardised inputs do.

    "auto" becomes None, but False for a frozen net and for a net whose own iterator may transform X.
    """
    net, value = parameters["net"], parameters["standardize_X"]
    if not isinstance(value, bool | np.bool_):
        if not is_auto(value):
            raise ValueError(f"standardize_X={shown(value)} has to be 'auto', True or False.")
        return False if is_frozen(net) or has_own_iterator(net) else None
    if value and is_frozen(net):
        raise ValueError(
            "standardize_X=True cannot be used with a frozen net, which was trained on the columns as they are. Use "
            "the default 'auto', or standardise in a pipeline before both trainings."
        )
    if not value and net is None:
        raise ValueError(
            "standardize_X=False can only be used with a given net: the built-in net standardises X. Use the "
            "default 'auto', or give net=."
        )
    return bool(value)


def _check_net_options(parameters: Mapping[str, Any]) -> None:
    """Refuse options that have no effect on the given net."""
    if parameters["net"] is not None:
        _check_built_in_options(parameters)
    if is_frozen(parameters["net"]):
        unused = [name for name in ("max_epochs", "lr", "batch_size") if parameters[name] is not None]
        if unused:
            raise ValueError(
                f"{' and '.join(unused)} cannot be used with a frozen net, which is not trained. Use the default None."
            )


def _check_built_in_options(parameters: Mapping[str, Any]) -> None:
    """For a user's net, check that options of the built-in net have their default values."""
    # n_bins=None is allowed: a given net takes the numbers themselves.
    ours = {name: parameters[name] for name in BUILT_IN_ONLY} | {"n_bins": parameters["n_bins"] or AUTO}
    changed = [name for name, v in ours.items() if isinstance(v, np.ndarray) or v != BUILT_IN_ONLY[name]]
    if changed:
        given = " and ".join(f"{name}={shown(parameters[name])}" for name in changed)
        raise ValueError(
            f"{' and '.join(changed)} can only be used with the built-in net; {given} was given. Set these options in "
            "net= instead."
        )


SKEWED = 1.0
"""Skewness of positive targets above which a hint is printed."""


def print_hint(likelihood: object, transform: object, targets: np.ndarray) -> None:
    """Under default options, print advice for counts, targets that are mostly zero, and positive skewed targets."""
    if not is_auto(likelihood) or transform is not None:
        return
    hint = count_hint(targets) or zeros_hint(targets)
    if not hint and (targets > 0).all() and (skew(targets, axis=0) > SKEWED).any():
        hint = "y is positive and skewed. If intervals reach below zero, use target_transform='log'."
    if hint:
        print(hint)


def check_target_transform(parameters: Mapping[str, Any], likelihood: Likelihood) -> None:
    """Check the transformation's name; raise an ``UnsupportedCombinationError`` if the noise is not additive."""
    value = parameters["target_transform"]
    if value is None:
        return
    also = "None; for others use scikit-learn's TransformedTargetRegressor"
    lookup("target_transform", value, {"log": True}, also)
    if not likelihood.additive_noise:
        raise UnsupportedCombinationError(
            f"target_transform={value!r} cannot be used with likelihood={parameters['likelihood']!r}, which models "
            "counts as they are. Use target_transform=None, or likelihood='gaussian'."
        )


WEIGHTINGS = {"uniform": None, LOO: True, EVIDENCE: False}
"""Rules for member weights: None for equal weights, True for leave-one-out densities, False for the evidence."""


def _check_members(parameters: Mapping[str, Any]) -> None:
    """Check number and weighting of the members; nets that would all start from the same weights are refused."""
    lookup("weights of Members", parameters["member_weights"], WEIGHTINGS)
    net = parameters["net"]
    if is_list(net) and is_number(parameters["n_members"]) and parameters["n_members"] != len(net):
        raise ValueError(
            f"n_members={parameters['n_members']} is not the number of nets in net=[…], {len(net)}. Use the default "
            "'auto'."
        )
    if number_of_members(parameters["n_members"]) == 1 and not is_list(net):
        return
    if WEIGHTINGS[parameters["member_weights"]]:
        check_left_out(f"n_members=Members(weights={parameters['member_weights']!r})", parameters)
    if is_list(net):
        return
    if parameters["prior"] is not None or isinstance(net, FrozenEstimator | torch.nn.Module):
        raise UnsupportedCombinationError(
            f"n_members={parameters['n_members']} nets would all be the same: they start from the weights of "
            f"net={type(net).__name__}(…) or of the previous posterior. Pass the module's class and no prior=, or use "
            "n_members=1."
        )


def number_of_members(value: object) -> int:
    """Return the number of nets trained separately, 1 for "auto". Raise ``ValueError`` for invalid values."""
    if isinstance(value, str):
        return lookup("n_members", value, {AUTO: 1}, "a whole number of at least 1")
    return count("n_members", value)
