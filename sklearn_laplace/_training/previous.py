"""Initialise a net with the weights of a previous posterior, and check that it is the same net."""

from __future__ import annotations

from torch import Tensor, nn

from ..laplace.network.network import Network

SAME_OUTPUTS = 1e-3
"""Maximum difference of the outputs of two equal nets, maybe of different precision, relative to 1 plus the largest
one."""


def load(module: nn.Module, past: nn.Module) -> None:
    """Load weights and buffers of the previous net ``past`` in place; ``ValueError`` if the nets have other ones."""
    try:
        module.load_state_dict(past.state_dict())
    except RuntimeError as error:
        raise _other(module) from error


def check_same_net(network: Network, past: Network, inputs: Tensor) -> None:
    """Check that a new net with the previous weights computes the same function of ``inputs`` (n, …).

    Raises ``ValueError`` if the nets have different parameters or outputs, or are on different devices.
    """
    if network.theta.device != past.theta.device:
        raise ValueError(
            f"the previous posterior is on device {past.theta.device}, and this fit is on {network.theta.device}. Use "
            "the same device for both."
        )
    same = network.parameter_names == past.parameter_names and network.blocks == past.blocks
    if same:
        new = network(inputs).double()
        old = past(inputs.to(next(past.module.parameters()).dtype)).double()
        same = bool((new - old).abs().max() <= SAME_OUTPUTS * (1 + old.abs().max()))
    if not same:
        raise _other(network.module)


def _other(module: nn.Module) -> ValueError:
    return ValueError(
        f"the net {type(module).__name__} is not that of the previous posterior, whose weights or architecture differ. "
        "Use the same net, or the same hidden_layer_sizes and activation, for both."
    )
