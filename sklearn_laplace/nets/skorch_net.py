r"""Build a skorch net that trains in skorch's training loop. ``NeuralNet`` is used as it is, never subclassed.

The net is a clone of the user's skorch net, or a new one around a torch module. It gets the numbers of inputs and
outputs, and an iterator that slices rows instead of collating them. Its loss is the mean MAP objective,

.. math:: \frac{\sum_n w_n\,\mathrm{nll}_n}{\sum_n w_n}
          + \frac{\varphi}{2 N_w}\,(\theta - \mu_0)^\top \mathrm{diag}(\delta)\,(\theta - \mu_0)
          + \frac{1}{N_w}\,\big(g^\top d + \tfrac12 d^\top H d\big) ,

with the total weight :math:`N_w`, dispersion φ, prior precisions δ and prior mean :math:`\mu_0`. The estimator's
likelihood replaces the criterion of the user's net. The last term is a quadratic approximation of the loss on rows of
earlier fits. Its gradient g and curvature H are taken at the earlier weights, and d is the change from these weights.

**Standardisation.** A linear layer that has a bias and reads X, or a range of the columns of X, standardises its input.
The functions that the net can represent, the names of its parameters, and the units of gradients with respect to X stay
the same. Any other use of X, such as the indices of an embedding, gets the original values.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from skorch import NeuralNet
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from ..laplace.fit import Hyper, LaplaceFit, TrainingRows
from ..laplace.layers import StandardisedLinear
from ..laplace.likelihoods import Bernoulli
from ..laplace.likelihoods._base import Likelihood
from ..laplace.network.network import Network
from ..laplace.network.tracing import copy_of
from ..laplace.prior import Prior
from . import MLP, TableMLP
from .given_net import (
    INPUT_SIZES,
    OUTPUT_SIZES,
    _check_criterion,
    _name,
    _sizes,
    both_probabilities,
    check_iterator,
    check_module,
    check_monitors,
    names_criterion,
)
from .mlp import Standardise


def build_net(
    source: NeuralNet | type[nn.Module] | nn.Module,
    module_parameters: dict[str, Any],
    likelihood: Likelihood,
    rows: TrainingRows,
    *,
    max_epochs: int | None,
    lr: float | None,
    batch_size: int | None,
    seed: int | None,
    verbose: int,
) -> NeuralNet:
    """Skorch net configured for training, not yet initialised: a clone of the user's net, or a new one around a module.

    ``seed`` determines the order of mini-batches; with None, torch's global generator draws it, as in skorch.
    """
    flat = {"max_epochs": max_epochs, "lr": lr, "batch_size": batch_size}
    chosen = {name: value for name, value in flat.items() if value is not None}
    own_training = isinstance(source, NeuralNet)
    net = clone(source) if isinstance(source, NeuralNet) else _net_around(source, module_parameters)
    net.set_params(**chosen, **_sizes(net, rows.inputs.shape[1], rows.n_outputs))
    if own_training:
        if not names_criterion(net, (MAPLoss,)):  # the criterion of an earlier fit
            _check_criterion(net, likelihood)
        check_iterator(net)
        check_monitors(net)
        if isinstance(likelihood, Bernoulli) and isinstance(net.predict_nonlinearity, str):
            # skorch would infer it from the criterion, which is replaced.
            net.set_params(predict_nonlinearity=both_probabilities)
    for key in [k for k in vars(net) if k.startswith("criterion__")]:  # options of the user's criterion
        object.__delattr__(net, key)
    net.set_params(
        criterion=MAPLoss,
        criterion__likelihood=likelihood,
        criterion__total_weight=rows.total_weight,
        criterion__n_rows=len(rows),
        criterion__scale=2 / rows.n_outputs if own_training and likelihood.has_dispersion else 1.0,
        device=str(rows.inputs.device),
        verbose=verbose,
    )
    if net.iterator_train is DataLoader:
        given = {"shuffle": not own_training, "drop_last": False} | net.get_params_for("iterator_train")
        kept = {"shuffle": bool(given["shuffle"]), "drop_last": bool(given["drop_last"]), "seed": seed}
        for key in [k for k in vars(net) if k.startswith("iterator_train__") and k != "iterator_train__batch_size"]:
            object.__delattr__(net, key)
        net.set_params(iterator_train=SlicingIterator, **{f"iterator_train__{name}": v for name, v in kept.items()})
    if net.iterator_valid is DataLoader:
        net.set_params(iterator_valid=SlicingIterator)
    return net


def _net_around(source: type[nn.Module] | nn.Module, module_parameters: dict[str, Any]) -> NeuralNet:
    net = NeuralNet(
        source if inspect.isclass(source) else renewed(source),
        criterion=MAPLoss,
        optimizer=LateAdam,
        train_split=None,
        callbacks="disable",
        lr=1e-2,
        batch_size=-1,
        max_epochs=0,
    )
    return net.set_params(**{f"module__{name}": value for name, value in module_parameters.items()})


def initialise(net: NeuralNet, dtype: torch.dtype | None, rows: TrainingRows) -> None:
    """Initialise the net, convert it to ``dtype`` if given, and check it with a forward pass on two rows."""
    try:
        net.initialize()
    except TypeError as error:
        raise ValueError(
            f"the net's module {_name(net)} could not be built: {error}. Set missing arguments as net__module__… of a "
            f"skorch net. The number of columns is passed to an argument named one of {INPUT_SIZES}, the number of "
            f"outputs to one of {OUTPUT_SIZES}."
        ) from error
    if dtype is not None:
        net.module_.to(dtype)
    net.module_.eval()
    example = rows.inputs[:2]
    own = next((parameter.dtype for parameter in net.module_.parameters()), example.dtype)
    check_module(net.module_, example.to(own), rows)


def renewed(module: nn.Module) -> nn.Module:
    """Return a copy of the module, with new weights if all are trainable, resettable and in torch's initial ranges."""
    module = copy_of(module)
    owners = [layer for layer in module.modules() if next(layer.parameters(recurse=False), None) is not None]
    resets: list[Any] = [getattr(layer, "reset_parameters", None) for layer in owners]
    is_open = all(parameter.requires_grad for parameter in module.parameters())
    if is_open and not isinstance(module, MLP | TableMLP) and all(map(callable, resets)) and all(map(_is_new, owners)):
        for reset in resets:
            reset()
    return module


def _is_new(layer: nn.Module) -> bool:
    """False if a weight of a linear layer or a convolution is outside its initial range ±1/√fan-in."""
    if not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return True
    bound = (1 + 1e-6) / math.sqrt(max(layer.weight[0].numel(), 1))
    return all(bool((parameter.abs() <= bound).all()) for parameter in layer.parameters(recurse=False))


def first_layers(module: nn.Module, x: Tensor) -> dict[str, slice]:
    """Map the name of each linear layer that has a bias and reads X, or a range of its columns, to these columns."""
    found: dict[str, list[slice | None]] = {}
    original, handles = x.clone(), []
    for name, layer in module.named_modules():
        if type(layer) is nn.Linear and layer.bias is not None and "weight" in layer._parameters:

            def record(layer: nn.Module, inputs: tuple[Any, ...], name: str = name) -> None:
                found.setdefault(name, []).append(_columns(inputs[0], x, original) if inputs else None)

            handles.append(layer.register_forward_pre_hook(record))
    try:
        with torch.no_grad():
            module(x)
    finally:
        for handle in handles:
            handle.remove()
    return {name: calls[0] for name, calls in found.items() if len(calls) == 1 and calls[0] is not None}


def _columns(inputs: Tensor, x: Tensor, original: Tensor) -> slice | None:
    """Slice of the columns of X if a layer's input is a view of them; None otherwise."""
    start = inputs.storage_offset() - x.storage_offset()
    shares = inputs.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and inputs.stride() == x.stride()
    if not (shares and inputs.ndim == 2 == x.ndim and inputs.dtype == x.dtype and 0 <= start < x.shape[1]):
        return None
    columns = slice(start, start + inputs.shape[1])
    return columns if torch.equal(inputs, original[:, columns]) else None


def standardise_layers(
    module: nn.Module,
    layers: Mapping[str, slice],
    statistics: tuple[Sequence[float], Sequence[float]],
    known: Mapping[str, Tensor],
) -> None:
    """Make the :func:`first_layers` standardise X, in place. Tensors in ``known`` replace column ``statistics``."""
    for name, columns in layers.items():
        layer = module.get_submodule(name)
        mean, scale = (
            known[key].tolist() if (key := statistic_of(name, which)) in known else list(values[columns])
            for which, values in zip(("mean", "scale"), statistics, strict=True)
        )
        standardise = Standardise(len(mean), mean, scale).to(next(layer.parameters()))
        # The class changes in place: the layer may also be part of a list or a closure of the user's module.
        layer.__class__ = StandardisedLinear
        layer.add_module("standardise", standardise)


def statistic_of(layer: str, which: str) -> str:
    """Name of a standardised layer's statistic in the net's state dict, such as "body.0.standardise.mean"."""
    return f"{layer}.standardise.{which}".lstrip(".")


def finish(net: NeuralNet, network: Network) -> NeuralNet:
    """Return the net with the network's weights and its history, but without parts that only training needs."""
    net.module_.load_state_dict(network.module.state_dict())
    net.module_.eval()
    history = list(net.history)
    net.trim_for_prediction()
    net.history.extend(history)
    if net.iterator_valid is SlicingIterator:  # the net's predict method then accepts arrays again
        net.iterator_valid = DataLoader
    return net


class WeightedTargets(Tensor):
    """Targets of a batch, as scoring callbacks expect them. The loss uses ``observed`` and ``weights`` instead."""

    observed: Tensor  # targets combined with their known noise
    weights: Tensor  # (n,)


class SlicingIterator:
    """Iterator over mini-batches, sliced from the rows without collating; ``shuffle`` permutes the rows in each epoch.

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
    """Data set for skorch: (x, y) if all weights are 1, else (x, (y, w)). Scoring callbacks use ``X`` and ``y``."""

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
    """Adam that is set up by calling :meth:`make`: the set-up imports torch's compiler, which takes seconds."""

    def __init__(self, params: list[Any], lr: float) -> None:
        self._given = params, lr

    def make(self) -> None:
        """Set up the optimiser."""
        params, lr = self._given
        super().__init__(params, lr=lr, fused=True)


class MAPLoss(nn.Module):
    """Mean MAP objective (see the top of this file), for n rows of total weight N_w.

    The loss of a batch is divided by the mean weight N_w / n of all rows, which keeps its gradient unbiased. With a
    ``scale`` of 2 / C, a Gaussian loss equals that of ``nn.MSELoss`` for C outputs.
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
        """Set φ, within bounds, to the residual variance: twice the mean loss per output since the last call."""
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
    """Concatenate all elements into one vector, so a training step needs one operation, not one per tensor."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _as_matrix(outputs: Tensor) -> Tensor:
    return outputs[:, None] if outputs.ndim == 1 else outputs


def _one_if_equal(values: Tensor) -> Tensor:
    """Return a 0-d tensor if all ``values`` are equal, for cheaper training steps; otherwise return ``values``."""
    first = values.reshape(-1)[0]
    return first if bool((values == first).all()) else values
