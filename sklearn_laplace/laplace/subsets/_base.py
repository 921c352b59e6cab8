"""Base class of weight subsets. A subset depends on the traced network and possibly marginal variances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from ..network.network import Network
from ..network.tracing import select


class Subset(ABC):
    """The random weights; all others stay fixed at the mode."""

    @property
    def provides(self) -> frozenset[str]:
        """Supported forms of a curvature rule's contribution; "layers" requires tensors that are random as a whole."""
        return frozenset({"rows", "layers", "matrix"})

    @abstractmethod
    def names(self, network: Network) -> tuple[str, ...]:
        """Names of the tensors with at least one weight in the subset, in the network's order."""

    def of(self, network: Network, example: Tensor) -> Network:
        """Network restricted to the random weights. ``example`` (n, …) holds inputs for tracing."""
        return select(network, self.names(network), example)

    def chosen(self, network: Network, variance: Callable[[], Tensor]) -> Subset:
        """Subset for the trained network. ``variance`` returns marginal variances (P,) after a pass over the data."""
        return self
