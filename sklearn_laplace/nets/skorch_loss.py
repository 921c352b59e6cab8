"""Mini-batches by slicing tensors, and the MAP objective (``skorch_net.py``) as a loss of mini-batches."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from ..laplace.fit import Hyper, LaplaceFit, TrainingRows
from ..laplace.likelihoods._base import Likelihood
from ..laplace.network.network import Network
from ..laplace.prior import Prior


class WeightedTargets(Tensor):
    """Targets of a batch, as scoring callbacks take them, with what the loss takes instead."""

    observed: Tensor  # targets combined with their known noise
    weights: Tensor  # (n,)


class SlicingIterator:
    """Iterator over mini-batches, slices of one permuted copy of the rows per epoch, without collating.

    Without a seed, it draws from torch's global generator like ``torch.utils.data.DataLoader``.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int | None = None,
    ) -> None:
        rows, index = (dataset.dataset, dataset.indices) if isinstance(dataset, Subset) else (dataset, None)
        assert isinstance(rows, RowsDataset)
        tensors = (rows.rows.inputs, rows.rows.targets, rows.rows.observed, rows.rows.weights)
        if index is not None:
            chosen = torch.as_tensor(np.asarray(index), device=tensors[0].device)
            tensors = tuple(t[chosen] for t in tensors)  # type: ignore[assignment]
        self.tensors: tuple[Tensor, ...] = tensors
        self.is_plain = rows.unweighted and rows.rows.noise is None
        self.batch_size = max(batch_size, 1)
        n = len(tensors[0])
        self.shuffle = shuffle and (seed is None or self.batch_size < n)
        self.n_used = n - n % self.batch_size if drop_last else n
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return math.ceil(self.n_used / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        tensors = self.tensors
        generator = self.generator
        if generator is None:
            _draw()  # the base seed of a DataLoader's workers
            generator = torch.Generator().manual_seed(_draw()) if self.shuffle else None
        if self.shuffle:
            order = torch.randperm(len(tensors[0]), generator=generator)
            tensors = tuple(tensor[order.to(tensor.device)] for tensor in tensors)
        for start in range(0, self.n_used, self.batch_size):
            x, y, observed, weights = (tensor[start : start + self.batch_size] for tensor in tensors)
            if not self.is_plain:
                y = y.as_subclass(WeightedTargets)
                y.observed, y.weights = observed, weights
            yield x, y


def _draw() -> int:
    return int(torch.empty((), dtype=torch.int64).random_().item())


class RowsDataset(Dataset[Any]):
    """Data set for skorch: (x, y) if all weights are 1, else (x, (y, w)); ``X`` and ``y`` are for scoring callbacks."""

    def __init__(self, rows: TrainingRows) -> None:
        self.rows = rows
        self.unweighted = bool((rows.weights == 1).all())
        self.X, self.y = rows.inputs, rows.targets

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor]]:
        y = self.rows.observed[i]
        return self.rows.inputs[i], y if self.unweighted else (y, self.rows.weights[i])


class LateAdam(torch.optim.Adam):
    """Adam initialised before the first epoch: its import of torch's compiler takes longer than most trainings."""

    def __init__(self, params: list[Any], lr: float) -> None:
        self._given = params, lr

    def make(self) -> None:
        """Create the state of the optimiser."""
        params, lr = self._given
        super().__init__(params, lr=lr, fused=True)


class MAPLoss(nn.Module):
    """MAP objective in mean form, for n rows of total weight N_w.

    The loss of a batch is divided by the mean weight N_w / n of all rows, which keeps its gradient unbiased. A
    ``scale`` of 2 / C makes a Gaussian loss that of ``nn.MSELoss`` for C outputs.
    """

    def __init__(self, likelihood: Likelihood, total_weight: float, n_rows: int, scale: float = 1.0) -> None:
        super().__init__()
        self.likelihood = likelihood
        self.scale = scale
        self.total_weight = total_weight
        self.mean_weight = total_weight / n_rows
        self.penalised: list[Tensor] = []
        self.precision = torch.zeros(())
        self.mean: Tensor | None = None
        self.past_loss: Callable[[], Tensor] | None = None
        self.transform: Callable[[Tensor], Tensor] = _as_matrix
        self.dispersion = 1.0
        self.seen: tuple[Tensor | float, float] = (0.0, 0.0)

    def bind(
        self, network: Network, module: nn.Module, prior: Prior, hyper: Hyper, past: LaplaceFit | None = None
    ) -> None:
        """Set the parameters to penalise, the hyperparameters and, optionally, the quadratic loss of past rows."""
        delta = network.tensors(hyper.prior_precision[prior.groups])
        parameters = dict(module.named_parameters())
        self.penalised = [parameters[name] for name in delta]
        self.precision = _one_if_equal(_flat(delta.values())).to(self.penalised[0])
        means = None if prior.mean is None else network.tensors(prior.mean)
        self.mean = None if means is None else _flat(means[name] for name in delta).to(self.penalised[0])
        self.past_loss = None if past is None else functools.partial(_past_loss, past, parameters)
        self.transform = network.transform_outputs
        self.dispersion = hyper.dispersion

    def update_dispersion(self) -> None:
        """Set φ to twice the mean loss per output since the last call: the residual variance of an epoch."""
        total, count = self.seen
        if count:
            low, high = self.likelihood.dispersion_bounds
            self.dispersion = min(max(2 * float(total) / count, low), high)
        self.seen = 0.0, 0.0

    def forward(self, outputs: Tensor, targets: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Mean weighted loss of a batch; in training, plus the penalty and the loss of past rows."""
        if isinstance(targets, WeightedTargets):
            targets = targets.observed, targets.weights
        if isinstance(targets, Tensor):
            data = self.likelihood.nll(self.transform(outputs), targets).mean()
        else:
            target, weight = targets
            data = (weight * self.likelihood.nll(self.transform(outputs), target)).mean() / self.mean_weight
        if not (self.training and self.penalised):
            return self.scale * data
        if self.likelihood.has_dispersion:
            n_outputs = outputs.shape[1] if outputs.ndim > 1 else 1
            self.seen = self.seen[0] + data.detach() * len(outputs) / n_outputs, self.seen[1] + len(outputs)
        theta = _flat(self.penalised)
        move = theta if self.mean is None else theta - self.mean
        penalty = self.precision * move.dot(move) if self.precision.ndim == 0 else (self.precision * move).dot(move)
        loss = data + (0.5 * self.dispersion / self.total_weight) * penalty
        loss = loss if self.past_loss is None else loss + self.past_loss().to(loss) / self.total_weight
        return self.scale * loss


def _past_loss(past: LaplaceFit, parameters: dict[str, nn.Parameter]) -> Tensor:
    """Loss of past rows, gᵀd + ½ dᵀHd at unit dispersion, differentiable with respect to the parameters."""
    layout = past.network.layout
    theta = layout.matrices(lambda name, rows, width: parameters[name].reshape(rows, width)).double()
    move = theta - past.theta
    return past.gradient @ move + 0.5 * move @ past.curvature.times(move)


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    """Concatenate all elements into one vector, on which one operation replaces one per tensor in a training step."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _as_matrix(outputs: Tensor) -> Tensor:
    return outputs[:, None] if outputs.ndim == 1 else outputs


def _one_if_equal(values: Tensor) -> Tensor:
    """Replace equal entries by one 0-d tensor, which makes every training step cheaper."""
    first = values.reshape(-1)[0]
    return first if bool((values == first).all()) else values
