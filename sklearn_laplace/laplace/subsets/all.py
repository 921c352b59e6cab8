"""Subset of all weights that require a gradient."""

from ..network.network import Network
from ._base import Subset


class All(Subset):
    """Every trained tensor is random.

    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> All().names(trace(torch.nn.Linear(2, 1), torch.zeros(1, 2)))
    ('weight', 'bias')
    """

    def names(self, network: Network) -> tuple[str, ...]:
        return network.parameter_names
