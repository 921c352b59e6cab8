"""Start a net from the weights of a previous posterior."""

from __future__ import annotations

from torch import Tensor, nn

from ..laplace.network.network import Network

SAME_OUTPUTS = 1e-3
"""Of two nets with the same weights, relative to the largest output; they may differ in precision."""


def load(module: nn.Module, past: nn.Module) -> None:
    """Give a new net the weights and buffers of the previous one.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> load(nn.Linear(2, 1), nn.Linear(3, 1))
    Traceback (most recent call last):
        ...
    ValueError: the net Linear is not that of the previous posterior, which is over other weights. Give the same net, \
or the same hidden_layer_sizes and activation, to both.
    """
    try:
        module.load_state_dict(past.state_dict())
    except RuntimeError as error:
        raise _other(module) from error


def check_same_net(network: Network, past: Network, inputs: Tensor) -> None:
    """Whether a net with the previous one's weights is the previous one.

    Parameters
    ----------
    network, past : Network
        The new net, with the old weights, and the old one.
    inputs : Tensor of shape (n, …)
        Rows on which both are tried.

    Raises
    ------
    ValueError
    """
    if network.theta.device != past.theta.device:
        raise ValueError(
            f"the previous posterior is on {past.theta.device} and this fit on {network.theta.device}; use the same "
            "device in both."
        )
    same = network.parameter_names == past.parameter_names and network.blocks == past.blocks
    if same:
        ours = network(inputs).double()
        theirs = past(inputs.to(next(past.module.parameters()).dtype)).double()
        same = bool((ours - theirs).abs().max() <= SAME_OUTPUTS * (1 + theirs.abs().max()))
    if not same:
        raise _other(network.module)


def _other(module: nn.Module) -> ValueError:
    return ValueError(
        f"the net {type(module).__name__} is not that of the previous posterior, which is over other weights. Give the "
        "same net, or the same hidden_layer_sizes and activation, to both."
    )
