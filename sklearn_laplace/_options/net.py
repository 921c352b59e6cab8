"""Check the options of the net, and resolve the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator

from .._data.table import FROM_DTYPE
from .._host.given_net import device_of
from .options import AUTO

BUILT_IN_ONLY = {"hidden_layer_sizes": AUTO, "activation": AUTO, "n_bins": AUTO, "categorical_features": FROM_DTYPE}
"""Options of the built-in net, at their defaults."""


def _device(name: object, net: Any) -> torch.device:
    """The device of this name; where it is left open that of the given net, else the CPU."""
    named = device_of(net) or "cpu" if str(name) == "auto" else str(name)
    try:
        device = torch.device(named)
    except RuntimeError as error:
        raise ValueError(f"device={name!r} is not known; expected 'auto', 'cpu' or 'cuda'.") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device={name!r} is not supported; expected 'auto', 'cpu' or 'cuda'.")
    return device


def check_device(device: torch.device) -> None:
    """Whether it is there to train on; a trained model predicts without it.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_device(torch.device("cpu"))
    """
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device='{device}' was asked for, but torch finds no CUDA device; use device='cpu'.")


def _check_net_options(parameters: Mapping[str, Any]) -> None:
    """Options that the given net cannot take are refused, not ignored."""
    net = parameters["net"]
    if net is not None:
        # Without pieces a net sees the numbers, as any does.
        ours = {name: parameters[name] for name in BUILT_IN_ONLY} | {"n_bins": parameters["n_bins"] or AUTO}
        changed = [name for name, v in ours.items() if isinstance(v, np.ndarray) or v != BUILT_IN_ONLY[name]]
        if changed:
            raise ValueError(
                f"{' and '.join(changed)} are options of the built-in net; with net= given, set them there."
            )
    if isinstance(net, FrozenEstimator):
        given = [name for name in ("max_epochs", "lr", "batch_size") if parameters[name] is not None]
        if given:
            raise ValueError(f"{' and '.join(given)} cannot be used with a frozen net, which is not trained.")
