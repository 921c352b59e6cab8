"""Subset of the last layer's weights (the neural linear model)."""

from torch import Tensor

from ...errors import UnsupportedCombinationError
from ..layers import Conv, Linear
from ..network.network import Network
from ..network.tracing import select
from ._base import Subset


class LastLayer(Subset):
    """Weights of the last called module with parameters, which must be a linear layer or a convolution.

    No other weights may reach the outputs on a path that bypasses this module. With several heads, for example, the
    outputs of the other heads would have no variance.

    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    >>> LastLayer().names(trace(module, torch.zeros(1, 2)))
    ('2.weight', '2.bias')
    """

    def names(self, network: Network) -> tuple[str, ...]:
        known = {layer.name: layer for layer in network.layers if isinstance(layer, Linear | Conv)}
        last = network.called[-1] if network.called else "(none)"
        if last not in known:
            kind = type(network.module.get_submodule(last)).__name__ if network.called else "nothing"
            raise UnsupportedCombinationError(
                "subset_of_weights='last_layer' needs a torch.nn.Linear, Conv1d or Conv2d as the last layer with "
                "weights, called once, with tensors that nothing else uses and that are not frozen; found "
                f"'{last}' ({kind}). Use subset_of_weights='all'."
            )
        return tuple(name for name, _ in known[last].columns)

    def of(self, network: Network, example: Tensor) -> Network:
        names, last = self.names(network), network.called[-1]
        owners = {name: name.rpartition(".")[0] for name in network.passing_by(last, example[:1])}
        outside = {owner for owner in owners.values() if not f"{last}.".startswith(f"{owner}.".lstrip("."))}
        if bypassing := sorted(outside):
            raise UnsupportedCombinationError(
                f"subset_of_weights='last_layer' found '{last}' as the last layer, but {bypassing} reach the outputs "
                "without passing through it. The outputs would have the variance of only a part of the network. Give a "
                "list of the random tensors, or use subset_of_weights='all'."
            )
        return select(network, names, example)
