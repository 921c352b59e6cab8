"""The loss of the rows as a function of the weights, for searches that look at many weights one after the other.

A linearisation answers for one network and knows each row's derivatives. Here only the sum is asked for, again and
again: one replica of the module moves through all the weights, and where the rows are one batch the gradient goes back
through the graph of the forward pass that has just been made.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..fit import LaplaceFit, Rows
from ..likelihoods._base import Likelihood
from ..network.network import Network


class DataLoss:
    """Σ w·nll of the rows at unit dispersion.

    Parameters
    ----------
    network : Network
        Whose selected weights move; all others stay.
    likelihood : Likelihood
    batches : sequence of (inputs, targets, weights)
    past : LaplaceFit or None
        Earlier rows, which enter by their quadratic model.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
    >>> network = trace(torch.nn.Linear(1, 1, bias=False), torch.ones(1, 1))
    >>> rows = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [2.0]]), torch.ones(2)
    >>> loss = DataLoss(network, LIKELIHOODS["gaussian"](), [rows])
    >>> loss(torch.zeros(1)), loss.gradient()
    (2.5, tensor([-5.], dtype=torch.float64))
    """

    def __init__(
        self, network: Network, likelihood: Likelihood, batches: Sequence[Rows], past: LaplaceFit | None = None
    ) -> None:
        self.network, self.likelihood, self.batches, self.past = network, likelihood, batches, past
        places = network.tensors(torch.arange(network.n_parameters, device=network.theta.device, dtype=torch.float64))
        random = torch.cat([mask.flatten() for mask in network.masks().values()])
        self._random = random.nonzero()[:, 0]  # of all elements of the selected tensors, one after the other
        self._place = torch.cat([place.flatten() for place in places.values()])[self._random].long()  # of each in θ
        values = network.tensors(network.theta)
        self._values = torch.cat([value.flatten() for value in values.values()]).to(_dtype(network))
        pieces = self._values.split([value.numel() for value in values.values()])
        shaped = zip(values.items(), pieces, strict=True)
        self._leaves = {name: piece.view(value.shape).requires_grad_() for (name, value), piece in shaped}
        self._module = network.replica(self._leaves)
        self._theta = network.theta
        self._graph: tuple[Tensor, Tensor] | None = None

    def held(self, theta: Tensor) -> Tensor:
        """θ (P,) as the module can hold it, float64."""
        return theta.to(self._values).double()

    def __call__(self, theta: Tensor) -> float:
        """The loss at the weights θ (P,): forward passes."""
        self._theta, self._graph = theta, None
        self._values.index_copy_(0, self._random, theta[self._place].to(self._values))
        nll = torch.zeros((), dtype=torch.float64, device=theta.device)
        for inputs, targets, weights in self.batches:
            with torch.set_grad_enabled(len(self.batches) == 1):
                outputs = self._outputs(inputs)
            seen = outputs.detach()
            nll += (weights * self.likelihood.nll(seen, targets)).double().sum()
            if len(self.batches) == 1:
                self._graph = outputs, self._cotangent(seen, targets, weights)
        return float(nll) + (0.0 if self.past is None else self._of_past()[0])

    def gradient(self) -> Tensor:
        """Its gradient (P,), float64, at the weights that were asked for last."""
        total = torch.zeros(len(self._values), dtype=torch.float64, device=self._values.device)
        if self._graph is not None:
            self._add_(total, *self._graph)
            self._graph = None
        else:
            for inputs, targets, weights in self.batches:
                outputs = self._outputs(inputs)
                self._add_(total, outputs, self._cotangent(outputs.detach(), targets, weights))
        found = torch.empty_like(self._theta, dtype=torch.float64)
        found[self._place] = total[self._random]
        return found if self.past is None else found + self._of_past()[1]

    def _outputs(self, inputs: Tensor) -> Tensor:
        return self.network.transform_outputs(self._module(inputs))

    def _cotangent(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return self.likelihood.residual(outputs, targets) * weights[:, None]

    def _add_(self, total: Tensor, outputs: Tensor, cotangent: Tensor) -> None:
        leaves = list(self._leaves.values())
        slopes = torch.autograd.grad(outputs, leaves, cotangent, materialize_grads=True)
        total += torch.cat([slope.flatten() for slope in slopes])

    def _of_past(self) -> tuple[float, Tensor]:
        assert self.past is not None
        return self.past.quadratic_model(self._theta - self.past.theta)


def _dtype(network: Network) -> torch.dtype:
    return next(network.module.parameters()).dtype
