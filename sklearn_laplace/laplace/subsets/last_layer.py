"""The weights of the last layer only (the neural linear model)."""

from __future__ import annotations

from torch import Tensor

from ...errors import UnsupportedCombinationError
from ..layers import Conv, Linear
from ..network.network import Network
from ..network.tracing import select
from ._base import Subset


class LastLayer(Subset):
    """The last module with parameters that the forward pass calls; it has to be linear or a convolution.

    No other layer may reach the outputs past it, as the heads of a net with several do: the outputs of those would have
    no variance. Parameters of a module around it may, such as a scale of the outputs; they stay at the mode.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    >>> LastLayer().names(trace(module, torch.zeros(1, 2)))
    ('2.weight', '2.bias')
    """

    def names(self, network: Network) -> tuple[str, ...]:
        """Names of the last layer's tensors.

        Raises
        ------
        UnsupportedCombinationError
            When the last layer with parameters is neither a ``torch.nn.Linear`` nor a ``Conv1d`` or ``Conv2d``, when it
            is called more than once, or when it shares its tensors.
        """
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
        """The network of the last layer's weights.

        Raises
        ------
        UnsupportedCombinationError
            When there is none, or another layer reaches the outputs past it.
        """
        names, last = self.names(network), network.called[-1]
        owners = {name: name.rpartition(".")[0] for name in network.passing_by(last, example[:1])}
        if beside := sorted({owner for owner in owners.values() if not f"{last}.".startswith(f"{owner}.".lstrip("."))}):
            raise UnsupportedCombinationError(
                f"subset_of_weights='last_layer' found '{last}', but the outputs also come from {beside} past it and "
                "would have the variance of a part of the net. Give a list of the tensors that are to be random, or "
                "use subset_of_weights='all'."
            )
        return select(network, names, example)
