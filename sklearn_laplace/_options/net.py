"""Check the options of the net, and resolve the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .._data.table import FROM_DTYPE
from .._host.given_net import device_of, has_own_iterator, is_frozen
from .._runtime.devices import AVAILABLE
from .._validation.inputs import shown
from .options import AUTO, is_auto

BUILT_IN_ONLY = {"hidden_layer_sizes": AUTO, "activation": AUTO, "n_bins": AUTO, "categorical_features": FROM_DTYPE}
"""Options that only the built-in net has, with their default values."""


def _device(name: object, net: Any) -> torch.device:
    """Device from its name; for "auto" that of a given skorch net, else the CPU (but see ``_ensemble.placement``)."""
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
    """Whether linear layers of a given net standardise X: True, False, or None for those that the net suggests.

    "auto" is False for a frozen net, and for one with an iterator of its own, which may transform X.
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
            "standardize_X=False can only be used with a net of yours: the built-in net standardises X. Use the "
            "default 'auto', or give net=."
        )
    return bool(value)


def _check_net_options(parameters: Mapping[str, Any]) -> None:
    """Refuse options that have no effect on the given net."""
    net = parameters["net"]
    if net is not None:
        # n_bins=None is allowed: a given net takes the numbers themselves.
        ours = {name: parameters[name] for name in BUILT_IN_ONLY} | {"n_bins": parameters["n_bins"] or AUTO}
        changed = [name for name, v in ours.items() if isinstance(v, np.ndarray) or v != BUILT_IN_ONLY[name]]
        if changed:
            given = " and ".join(f"{name}={shown(parameters[name])}" for name in changed)
            raise ValueError(
                f"{' and '.join(changed)} can only be used with the built-in net; {given} was given. Set these options "
                "in net= instead."
            )
    if is_frozen(net):
        unused = [name for name in ("max_epochs", "lr", "batch_size") if parameters[name] is not None]
        if unused:
            raise ValueError(
                f"{' and '.join(unused)} cannot be used with a frozen net, which is not trained. Use the default None."
            )
