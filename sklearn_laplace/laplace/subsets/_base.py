"""What a subset of the weights answers. It sees the traced network, and neither data nor a posterior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from ..network.network import Network
from ..network.tracing import select


class Subset(ABC):
    """Which weights are random; the others stay at the mode."""

    @property
    def provides(self) -> frozenset[str]:
        """Forms in which a structure gets their Jacobian: "layers" only where whole matrices are random."""
        return frozenset({"rows", "layers", "matrix"})

    @abstractmethod
    def names(self, network: Network) -> tuple[str, ...]:
        """The tensors with random elements, in the network's order."""

    def of(self, network: Network, example: Tensor) -> Network:
        """The network of the random weights.

        Parameters
        ----------
        network : Network
            Of all trained weights.
        example : Tensor of shape (n, …)
            Inputs to trace.
        """
        return select(network, self.names(network), example)

    def settled(self, network: Network, variance: Callable[[], Tensor]) -> Subset:
        """The subset of a trained network; itself where the weights do not decide which of them are random.

        Parameters
        ----------
        network : Network
            Of all trained weights.
        variance : callable
            Marginal variances (P,) of a diagonal posterior over all of them, by a pass over the data.
        """
        return self
