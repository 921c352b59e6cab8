r"""The MAP objective as a loss of mini-batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.likelihoods._base import Likelihood
from ..laplace.network.network import Network
from ..laplace.prior import Prior


class LateAdam(torch.optim.Adam):
    """torch's Adam, to be made before the first epoch and not with the net.

    Its making imports torch's compiler, which takes longer than most trainings by Gauss–Newton steps alone.

    Parameters
    ----------
    params : list
        Tensors or groups of them.
    lr : float
    """

    def __init__(self, params: list[Any], lr: float) -> None:
        self._given = params, lr

    def make(self) -> None:
        params, lr = self._given
        super().__init__(params, lr=lr, fused=True)


class MAPLoss(nn.Module):
    """The MAP objective in mean form; see the module's docstring.

    Parameters
    ----------
    likelihood : Likelihood
    total_weight : float
        N_w.
    n_rows : int
        n, so that the mean weight is N_w / n: a batch is divided by what its rows weigh on average, which keeps its
        gradient unbiased.
    """

    def __init__(self, likelihood: Likelihood, total_weight: float, n_rows: int) -> None:
        super().__init__()
        self.likelihood = likelihood
        self.total_weight = total_weight
        self.mean_weight = total_weight / n_rows
        self.penalised: list[Tensor] = []
        self.precision = torch.zeros(())
        self.mean: Tensor | None = None
        self.past_loss: Callable[[], Tensor] | None = None
        self.transform: Callable[[Tensor], Tensor] = _as_matrix
        self.dispersion = 1.0

    def bind(
        self, network: Network, module: nn.Module, prior: Prior, hyper: Hyper, past: LaplaceFit | None = None
    ) -> None:
        """Penalise the live module's parameters under these hyperparameters, and by the loss of past rows."""
        delta = network.tensors(hyper.prior_precision[prior.groups])
        parameters = dict(module.named_parameters())
        self.penalised = [parameters[name] for name in delta]
        self.precision = _one_if_equal(_flat(delta.values())).to(self.penalised[0])
        means = None if prior.mean is None else network.tensors(prior.mean)
        self.mean = None if means is None else _flat(means[name] for name in delta).to(self.penalised[0])
        self.past_loss = None if past is None else functools.partial(_past_loss, past, parameters)
        self.transform = network.transform_outputs
        self.dispersion = hyper.dispersion

    def forward(self, outputs: Tensor, targets: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Mean weighted loss of a batch plus the prior's share."""
        if isinstance(targets, Tensor):
            data = self.likelihood.nll(self.transform(outputs), targets).mean()
        else:
            target, weight = targets
            data = (weight * self.likelihood.nll(self.transform(outputs), target)).mean() / self.mean_weight
        theta = _flat(self.penalised)
        move = theta if self.mean is None else theta - self.mean
        penalty = self.precision * move.dot(move) if self.precision.ndim == 0 else (self.precision * move).dot(move)
        loss = data + (0.5 * self.dispersion / self.total_weight) * penalty
        return loss if self.past_loss is None else loss + self.past_loss().to(loss) / self.total_weight


def _past_loss(past: LaplaceFit, parameters: dict[str, nn.Parameter]) -> Tensor:
    """gᵀd + ½ dᵀHd at unit dispersion, with a graph to the parameters."""
    layout = past.network.layout
    theta = layout.matrices(lambda name, rows, width: parameters[name].reshape(rows, width)).double()
    move = theta - past.theta
    return past.gradient @ move + 0.5 * move @ past.curvature.times(move)


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    """All elements in one vector: one operation on it costs a training step less than one on each tensor."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _as_matrix(outputs: Tensor) -> Tensor:
    return outputs[:, None] if outputs.ndim == 1 else outputs


def _one_if_equal(values: Tensor) -> Tensor:
    """A 0-d tensor where all entries are the same: cheaper in every training step."""
    first = values.reshape(-1)[0]
    return first if bool((values == first).all()) else values
