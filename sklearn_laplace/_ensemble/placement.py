"""Device of a fit with built-in nets under ``device="auto"``: a GPU if there is one and the fit is large enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._data.summary import TableShape
from .._options.options import Options, is_auto
from .._options.previous import previous_of
from .._runtime.devices import AVAILABLE
from .._runtime.group import Group
from .._training.built_in import of_one_net
from .._training.recipe import recipes_for
from .._validation.values import kinds
from .conditions import is_bagged
from .encodings import AUTOMATIC, blocks_of

GPU_WORK, JOINT_WORK = 1e9, 1e8
"""Minimum products of rows and weights of a net for which "auto" takes a GPU: for one net, and for members that
train together; see docs/decisions.md."""


def placed(parameters: Mapping[str, Any], shape: TableShape, options: Options) -> Mapping[str, Any]:
    """Internal options of a fit, with a GPU in place of "auto" if it pays; otherwise the same object.

    A given net keeps its device, and a previous posterior determines that of its update. Several ranks of a process
    group would share a GPU, and stay on the CPU.
    """
    if not is_auto(parameters["device"]) or parameters["net"] is not None or not AVAILABLE["cuda"]():
        return parameters
    previous = previous_of(parameters["prior"])
    if previous is not None:
        return {**parameters, "device": str(previous.fit.theta.device)}
    is_joint = is_bagged(parameters, shape, options)
    work = shape.n_rows * _n_weights(parameters, shape, is_joint)
    pays = work >= (JOINT_WORK if is_joint else GPU_WORK) and Group.current().is_alone
    return {**parameters, "device": "cuda"} if pays else parameters


def _n_weights(parameters: Mapping[str, Any], shape: TableShape, is_joint: bool) -> int:
    """Number of weights of the largest net of a fit, with the maximum number of inputs of an encoding."""
    layers = of_one_net(parameters)
    automatic: tuple[int | None, ...] = AUTOMATIC
    if is_joint:
        recipe = recipes_for(shape.n_rows, shape.levels.count(0))[-1]
        automatic = (recipe.n_bins,)
        if is_auto(parameters["hidden_layer_sizes"]):
            layers = {"hidden_layer_sizes": recipe.hidden_layer_sizes}
    n_bins = max(count or 1 for count in kinds("n_bins", parameters["n_bins"], automatic))
    return sum(block.size for block in blocks_of(layers, shape, n_bins))
