"""Loss of the rows as a function of the weights, for searches that evaluate many weights.

Only the sum over rows and its gradient are computed, on a single replica of the module. If the rows form one batch, the
gradient reuses the graph of the preceding forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..fit import LaplaceFit, Rows
from ..likelihoods._base import Likelihood
from ..linalg import pulled_back, sum_of_rows
from ..network.network import Network


class DataLoss:
    """Loss Σ w·nll of the rows at unit dispersion, as a function of the selected weights of a network.

    Earlier rows are added through the quadratic model of their fit ``past``.
    """

    def __init__(
        self, network: Network, likelihood: Likelihood, batches: Sequence[Rows], past: LaplaceFit | None = None
    ) -> None:
        self.network, self.likelihood, self.batches, self.past = network, likelihood, batches, past
        places = network.tensors(torch.arange(network.n_parameters, device=network.theta.device, dtype=torch.float64))
        random = torch.cat([mask.flatten() for mask in network.masks().values()])
        # Positions of the random elements among all elements of the selected tensors, concatenated.
        self._random = random.nonzero()[:, 0]
        # Index in θ of each random element.
        self._place = torch.cat([place.flatten() for place in places.values()])[self._random].long()
        values = network.tensors(network.theta)
        self._values = torch.cat([value.flatten() for value in values.values()]).to(_dtype(network))
        pieces = self._values.split([value.numel() for value in values.values()])
        shaped = zip(values.items(), pieces, strict=True)
        self._leaves = {name: piece.view(value.shape).requires_grad_() for (name, value), piece in shaped}
        self._module = network.replica(self._leaves)
        self._theta = network.theta
        self._graph: tuple[Tensor, Tensor] | None = None

    def held(self, theta: Tensor) -> Tensor:
        """θ (P,) rounded to the dtype of the module, as float64."""
        return theta.to(self._values).double()

    def __call__(self, theta: Tensor) -> float:
        """Loss at the weights θ (P,). Costs one forward pass per batch."""
        self._theta, self._graph = theta, None
        self._values.index_copy_(0, self._random, theta[self._place].to(self._values))
        nll = torch.zeros((), dtype=torch.float64, device=theta.device)
        for inputs, targets, weights in self.batches:
            with torch.set_grad_enabled(len(self.batches) == 1):
                outputs = self._outputs(inputs)
            values = outputs.detach()
            nll += sum_of_rows(weights * self.likelihood.nll(values, targets))
            if len(self.batches) == 1:
                self._graph = outputs, self._cotangent(values, targets, weights)
        return float(nll) + (0.0 if self.past is None else self._of_past()[0])

    def gradient(self) -> Tensor:
        """Gradient (P,), float64, at the weights of the last call."""
        total = torch.zeros(len(self._values), dtype=torch.float64, device=self._values.device)
        if self._graph is not None:
            self._add_(total, *self._graph)
            self._graph = None
        else:
            for inputs, targets, weights in self.batches:
                outputs = self._outputs(inputs)
                self._add_(total, outputs, self._cotangent(outputs.detach(), targets, weights))
        gradient = torch.empty_like(self._theta, dtype=torch.float64)
        gradient[self._place] = total[self._random]
        return gradient if self.past is None else gradient + self._of_past()[1]

    def _outputs(self, inputs: Tensor) -> Tensor:
        return self.network.transform_outputs(self._module(inputs))

    def _cotangent(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return self.likelihood.residual(outputs, targets) * weights[:, None]

    def _add_(self, total: Tensor, outputs: Tensor, cotangent: Tensor) -> None:
        leaves = list(self._leaves.values())
        slopes = pulled_back(outputs, leaves, cotangent)
        total += torch.cat([slope.flatten() for slope in slopes])

    def _of_past(self) -> tuple[float, Tensor]:
        assert self.past is not None
        return self.past.quadratic_model(self._theta - self.past.theta)


def _dtype(network: Network) -> torch.dtype:
    return next(network.module.parameters()).dtype
