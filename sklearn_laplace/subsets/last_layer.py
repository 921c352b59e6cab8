"""The weights of the last layer only (the neural linear model)."""

from __future__ import annotations

from ..errors import UnsupportedCombinationError
from ..network import Network
from ._base import Subset


class LastLayer(Subset):
    """The last module with parameters that the forward pass calls; it has to be linear.

    Examples
    --------
    >>> import torch
    >>> module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    >>> LastLayer().names(Network.trace(module, torch.zeros(1, 2)))
    ('2.weight', '2.bias')
    """

    def names(self, network: Network) -> tuple[str, ...]:
        """Names of the last layer's tensors.

        Raises
        ------
        UnsupportedCombinationError
            When the last layer with parameters is not a ``torch.nn.Linear`` called once on one vector a row.
        """
        factored = {layer.name: layer for layer in network.layers}
        last = network.called[-1] if network.called else "(none)"
        if last not in factored:
            kind = type(network.module.get_submodule(last)).__name__ if network.called else "nothing"
            raise UnsupportedCombinationError(
                f"subset_of_weights='last_layer' needs a torch.nn.Linear as the last layer with weights, called once "
                f"on an input of shape (n, features); found '{last}' ({kind}). Use subset_of_weights='all'."
            )
        return tuple(name for name, _ in factored[last].columns)
