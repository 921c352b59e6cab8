r"""The skorch host: the only import of skorch. A net is composed, never subclassed.

Clones the user's template (or builds one around the built-in MLP), gives it our loss, an iterator that slices instead
of collating, the sizes of the data and seeds of its own, and runs its own training loop. The loss is the MAP objective
in mean form,

.. math:: \frac{\sum_n w_n\,\mathrm{nll}_n}{\sum_n w_n}
          + \frac{\varphi}{2 N_w}\,(\theta - \mu_0)^\top \mathrm{diag}(\delta)\,(\theta - \mu_0)
          + \frac{1}{N_w}\,\big(g^\top d + \tfrac12 d^\top H d\big) ,

always with our likelihood, whatever criterion the template names. The last term stands for rows that were fitted
before: d is the way from the weights at which their loss has the gradient g and the curvature H.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNet
from skorch.callbacks import Callback
from skorch.dataset import get_len
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from ._persistence import present_device
from .errors import HeldOutRowsWarning, NonFiniteError, NonFiniteLossError
from .laplace import Hyper, LaplaceFit, Rows
from .likelihoods import Bernoulli, Categorical, Gaussian, Poisson
from .likelihoods._base import Likelihood, with_noise
from .network import Network
from .prior import Prior

_global_generator = threading.RLock()
INPUT_SIZES = ("in_features", "input_dim", "n_features_in", "n_in")
CRITERIA: dict[type[Likelihood], tuple[type[nn.Module], ...]] = {
    Gaussian: (nn.MSELoss,),
    Categorical: (nn.NLLLoss, nn.CrossEntropyLoss),
    Bernoulli: (nn.BCEWithLogitsLoss, nn.NLLLoss, nn.CrossEntropyLoss),
    Poisson: (nn.PoissonNLLLoss, nn.MSELoss),
}
"""Criteria that mean a likelihood, or mean nothing: those that skorch's classes have by default stand for no choice."""
OUTPUT_SIZES = ("out_features", "output_dim", "n_outputs", "n_out")
"""Names under which a module may take the sizes of the data."""


@dataclass(frozen=True)
class TrainingRows:
    """The rows to train on, as tensors on their device.

    Parameters
    ----------
    inputs : Tensor of shape (n, d)
    targets : Tensor of shape (n, C) or (n,)
        Standardised targets, or class indices.
    weights : Tensor of shape (n,)
    noise : Tensor of shape (n, C), optional
        Known noise variances, in units of φ.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    noise: Tensor | None = None

    @cached_property
    def observed(self) -> Tensor:
        """Targets with their known noise, as the likelihood takes them."""
        return with_noise(self.targets, self.noise)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def total_weight(self) -> float:
        """N_w."""
        return float(self.weights.double().sum())

    def taken(self, index: Tensor) -> TrainingRows:
        """Some of the rows, by their numbers."""
        noise = None if self.noise is None else self.noise[index]
        return TrainingRows(self.inputs[index], self.targets[index], self.weights[index], noise)

    def chunks(self, step: int) -> list[Rows]:
        """The rows in slices of ``step``."""
        spans = [slice(start, start + step) for start in range(0, len(self), step)]
        return [(self.inputs[span], self.observed[span], self.weights[span]) for span in spans]


class SlicingIterator:
    """Batches of a :class:`TrainingRows` data set by slicing one permuted copy an epoch; no collation, no global seed.

    Parameters
    ----------
    dataset : RowsDataset or Subset of one
    batch_size : int
    shuffle : bool
        A new permutation each epoch. The full batch is never permuted.
    seed : int
    """

    def __init__(self, dataset: Dataset[Any], batch_size: int, shuffle: bool = False, seed: int = 0) -> None:
        rows, index = (dataset.dataset, dataset.indices) if isinstance(dataset, Subset) else (dataset, None)
        assert isinstance(rows, RowsDataset)
        tensors = (rows.rows.inputs, rows.rows.observed, rows.rows.weights)
        if index is not None:
            chosen = torch.as_tensor(np.asarray(index), device=tensors[0].device)
            tensors = tuple(t[chosen] for t in tensors)  # type: ignore[assignment]
        self.tensors = tensors
        self.unweighted = rows.unweighted
        self.batch_size = max(batch_size, 1)
        self.shuffle = shuffle and self.batch_size < len(tensors[0])
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return math.ceil(len(self.tensors[0]) / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | tuple[Tensor, Tensor]]]:
        x, y, w = self.tensors
        if self.shuffle:
            order = torch.randperm(len(x), generator=self.generator).to(x.device)
            x, y, w = x[order], y[order], w[order]
        for start in range(0, len(x), self.batch_size):
            span = slice(start, start + self.batch_size)
            yield x[span], y[span] if self.unweighted else (y[span], w[span])


class RowsDataset(Dataset[Any]):
    """What skorch sees of the rows: item i is (x, y), or (x, (y, w)) where the weights differ.

    ``X`` and ``y`` are there for callbacks that score, y without its known noise.

    Parameters
    ----------
    rows : TrainingRows
    """

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


class Watch(Callback):
    """Checks the loss of every epoch and calls ``between`` every ``period`` epochs.

    Parameters
    ----------
    period : int
    between : callable or None
        Called with the net: an evidence step.
    is_over : callable
        → bool, whether the training has to end.
    """

    def __init__(self, period: int, between: Callable[[NeuralNet], None] | None, is_over: Callable[[], bool]) -> None:
        self.period = period
        self.between = between
        self.is_over = is_over

    def on_batch_end(self, net: NeuralNet, **kwargs: Any) -> None:
        """See the class."""
        if self.is_over():
            raise KeyboardInterrupt  # which is how skorch's callbacks end a training

    def on_epoch_end(self, net: NeuralNet, **kwargs: Any) -> None:
        """See the class."""
        losses = net.history[-1, "batches", :, "train_loss"]
        epoch = len(net.history)
        if not np.isfinite(losses).all():
            raise _diverged(next(v for v in losses if not np.isfinite(v)), net)
        if self.between is not None and epoch % self.period == 0:
            try:
                self.between(net)
            except NonFiniteError as error:
                raise _diverged(math.nan, net) from error


def _diverged(loss: float, net: NeuralNet) -> NonFiniteLossError:
    return NonFiniteLossError(
        f"the training loss became {loss} in epoch {len(net.history)} with lr={net.lr:g}. Use a smaller lr, scale the "
        "inputs, or look for extreme values in X and y."
    )


def build_net(
    source: NeuralNet | type[nn.Module] | nn.Module,
    module_parameters: dict[str, Any],
    likelihood: Likelihood,
    rows: TrainingRows,
    n_outputs: int,
    *,
    max_epochs: int | None,
    lr: float | None,
    batch_size: int | None,
    seed: int,
    verbose: int,
) -> NeuralNet:
    """A net that is ready to train: a clone of the template, or one of ours around a module.

    Parameters
    ----------
    source : skorch net, module class or module instance
        A net is cloned, an instance copied; both stay untouched.
    module_parameters : dict
        Arguments of a module class.
    likelihood : Likelihood
    rows : TrainingRows
    n_outputs : int
    max_epochs, lr, batch_size : optional
        Replace the net's own where they are not None.
    seed : int
        Of the order of mini-batches.
    verbose : int
    """
    flat = {"max_epochs": max_epochs, "lr": lr, "batch_size": batch_size}
    chosen = {name: value for name, value in flat.items() if value is not None}
    own_training = isinstance(source, NeuralNet)
    if isinstance(source, NeuralNet):
        net = clone(source)
    else:
        module = source if inspect.isclass(source) else copy.deepcopy(source)
        net = NeuralNet(
            module,
            criterion=MAPLoss,
            optimizer=LateAdam,
            train_split=None,
            callbacks="disable",
            lr=1e-2,
            batch_size=-1,
            max_epochs=0,
        )
        net.set_params(**{f"module__{name}": value for name, value in module_parameters.items()})
    net.set_params(**chosen, **_sizes(net, rows.inputs.shape[1], n_outputs))
    if own_training:
        _check_criterion(net, likelihood)
        if isinstance(likelihood, Bernoulli) and isinstance(net.predict_nonlinearity, str):
            net.set_params(predict_nonlinearity=both_probabilities)  # it would ask the criterion, which is now ours
    own = {key: None for key in net.get_params(deep=False) if key.startswith("criterion__")}
    for key in own:  # options of the template's criterion do not fit ours
        net.__dict__.pop(key, None)
    net.set_params(
        criterion=MAPLoss,
        criterion__likelihood=likelihood,
        criterion__total_weight=rows.total_weight,
        criterion__n_rows=len(rows),
        device=str(rows.inputs.device),
        verbose=verbose,
    )
    if net.iterator_train is DataLoader:
        shuffle = bool(net.get_params_for("iterator_train").get("shuffle", not own_training))
        for key in [k for k in net.__dict__ if k.startswith("iterator_train__") and k != "iterator_train__batch_size"]:
            net.__dict__.pop(key)
        net.set_params(iterator_train=SlicingIterator, iterator_train__shuffle=shuffle, iterator_train__seed=seed)
    if net.iterator_valid is DataLoader:
        net.set_params(iterator_valid=SlicingIterator)
    return net


def _check_criterion(net: NeuralNet, likelihood: Likelihood) -> None:
    """A template's criterion is replaced by our likelihood; one that means another likelihood is an error.

    Raises
    ------
    ValueError
    """
    known = CRITERIA[type(likelihood)]
    criterion = net.criterion
    if not (names_criterion(net, known) or names_criterion(net, (MAPLoss,))):
        name = criterion.__name__ if inspect.isclass(criterion) else type(criterion).__name__
        raise ValueError(
            f"the net's criterion {name} belongs to another likelihood than ours "
            f"({type(likelihood).__name__.lower()}), and a Laplace approximation needs the loss to be that of "
            f"its likelihood. Use {' or '.join(c.__name__ for c in known)}, or leave the criterion out."
        )
    if names_criterion(net, (nn.PoissonNLLLoss,)):
        options = net.get_params_for("criterion") if inspect.isclass(criterion) else vars(criterion)
        if not options.get("log_input", True):
            raise ValueError(
                "the net's criterion takes rates (log_input=False); ours takes their logarithms, which may have either "
                "sign. Let the net return log rates, and leave log_input out."
            )


def names_criterion(net: Any, known: tuple[type[nn.Module], ...]) -> bool:
    """Whether the criterion of a skorch net is one of these, as class or instance; no other net has one."""
    if not isinstance(net, NeuralNet):
        return False
    criterion = net.criterion
    return issubclass(criterion, known) if inspect.isclass(criterion) else isinstance(criterion, known)


def both_probabilities(logit: Tensor) -> Tensor:
    """(1 − p, p) from a logit of shape (n,) or (n, 1)."""
    p = logit.reshape(-1).sigmoid()
    return torch.stack([1 - p, p], 1)


def has_one_output(net: Any, inputs: np.ndarray, n_classes: int) -> bool:
    """Whether a given net has one output, which two classes can share; what cannot be built is found out elsewhere.

    Parameters
    ----------
    net : skorch net, module class or instance, or a frozen fitted net
    inputs : ndarray of shape (n, d)
        Rows to try, in a forward pass on the CPU.
    n_classes : int
        What it is told where it takes the number of outputs.
    """
    if isinstance(net, FrozenEstimator):
        module = copy.deepcopy(net.estimator.module_)
    else:
        trial = clone(net) if isinstance(net, NeuralNet) else NeuralNet(copy.deepcopy(net), nn.MSELoss)
        try:
            with isolated_seed(0, torch.device("cpu")):
                trial.set_params(device="cpu", **_sizes(trial, inputs.shape[1], n_classes))
                module = trial.initialize().module_
        except Exception:  # whatever the user's module raises is raised again where it is built for training
            return False
    module = module.cpu().eval()
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    try:
        with torch.no_grad():
            outputs = module(torch.tensor(inputs[:2], dtype=dtype))
    except Exception:
        return False
    return isinstance(outputs, Tensor) and outputs.ndim <= 2 and outputs.numel() == len(inputs[:2])


def _sizes(net: NeuralNet, n_features: int, n_outputs: int) -> dict[str, int]:
    """Sizes of the data under the names that the template's module takes and its user left open."""
    if not inspect.isclass(net.module):
        return {}
    taken = inspect.signature(net.module).parameters
    given = net.get_params_for("module")
    found = {}
    for names, size in ((INPUT_SIZES, n_features), (OUTPUT_SIZES, n_outputs)):
        found.update({f"module__{name}": size for name in names if name in taken and name not in given})
    return found


@contextmanager
def isolated_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generator inside the block, and put it back afterwards; one thread at a time."""
    with _global_generator, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def initialise(net: NeuralNet, rows: TrainingRows, n_outputs: int) -> None:
    """Initialise the net in the rows' dtype and check, by one forward pass, that it fits the data.

    Raises
    ------
    ValueError
        When the module does not accept the inputs or has another number of outputs.
    """
    try:
        net.initialize()
    except TypeError as error:
        raise ValueError(
            f"the net's module {_name(net)} could not be built: {error}. Give what is missing as net__module__… of a "
            f"skorch net; the number of columns is filled in under the names {INPUT_SIZES}, that of outputs under "
            f"{OUTPUT_SIZES}."
        ) from error
    net.module_.to(rows.weights.dtype)
    net.module_.eval()
    check_module(net.module_, rows, n_outputs)


def check_net(net: Any) -> None:
    """A net that can be trained, or a frozen one that is."""
    if isinstance(net, FrozenEstimator):
        if not isinstance(net.estimator, NeuralNet):
            raise TypeError(
                f"net=FrozenEstimator({type(net.estimator).__name__}(…)) is not supported; freeze a fitted skorch net."
            )
        if not net.estimator.initialized_ or not isinstance(getattr(net.estimator, "module_", None), nn.Module):
            raise NotFittedError(
                "the net inside FrozenEstimator has not been fitted; fit it first, or give it without FrozenEstimator "
                "to have it trained."
            )
    elif not (
        net is None or isinstance(net, NeuralNet | nn.Module) or (inspect.isclass(net) and issubclass(net, nn.Module))
    ):
        raise TypeError(
            f"net={net!r} is not supported; give None for the built-in net, a torch module (class or instance), a "
            "skorch net such as NeuralNetRegressor(module), or FrozenEstimator(fitted skorch net)."
        )


def check_module(module: nn.Module, rows: TrainingRows, n_outputs: int) -> None:
    """One forward pass: does the module accept the inputs, and has it one output a class or target?

    Raises
    ------
    ValueError
    """
    name = type(module).__name__
    with torch.no_grad():
        try:
            outputs = module(rows.inputs[:2])
        except (RuntimeError, IndexError) as error:
            raise ValueError(
                f"the net's module {name} does not accept inputs of shape (n, {rows.inputs.shape[1]}) and dtype "
                f"{rows.inputs.dtype}: {error}. Its number of inputs has to equal the number of columns of X."
            ) from error
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    width = 1 if isinstance(outputs, Tensor) and outputs.ndim == 1 else None
    width = outputs.shape[1] if isinstance(outputs, Tensor) and outputs.ndim == 2 else width
    if width != n_outputs:
        classes = rows.targets.ndim == 1
        one = "one logit for two classes" if classes else "one column for each target"
        wanted = "one column for each class" if classes and n_outputs > 1 else one
        other = ", or use likelihood='bernoulli'" if classes and (width, n_outputs) == (1, 2) else ""
        raise ValueError(
            f"the net's module {name} returned {shape} for {len(rows.inputs[:2])} rows; expected "
            f"{(len(rows.inputs[:2]), n_outputs)}: {wanted}. Set its number of outputs to {n_outputs}{other}."
        )


def returns_probabilities(module: nn.Module, inputs: Tensor) -> bool:
    """Whether the module's outputs are class probabilities: not negative, and one in sum."""
    with torch.no_grad():
        outputs = module(inputs)
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        return False
    close = (outputs.sum(1) - 1).abs().max() < 1e-4
    return bool(close) and bool((outputs >= 0).all())


def run_epochs(net: NeuralNet, rows: TrainingRows, watch: Watch) -> int:
    """Train for the net's own number of epochs and return how many ran.

    Parameters
    ----------
    net : NeuralNet, initialised
    rows : TrainingRows
    watch : Watch
    """
    if net.max_epochs <= 0:
        return 0
    if isinstance(net.optimizer_, LateAdam):
        net.optimizer_.make()
    net.callbacks_ = [*net.callbacks_, ("laplace_watch", watch)]
    data = RowsDataset(rows)
    y = rows.targets.cpu().numpy()
    if net.train_split:
        _warn_held_out(net, data, y)
    net.notify("on_train_begin", X=data, y=y)
    try:
        net.fit_loop(data, y)
    except KeyboardInterrupt as stop:
        if not _raised_by_callback(stop):
            raise
    net.notify("on_train_end", X=data, y=y)
    return len(net.history)


def _raised_by_callback(stop: KeyboardInterrupt) -> bool:
    """skorch's callbacks end the training by the exception that Ctrl-C raises; the latter is the user's."""
    frames = (frame.f_code for frame, _ in traceback.walk_tb(stop.__traceback__))
    return NeuralNet.notify.__code__ in frames


def finish(net: NeuralNet, network: Network) -> NeuralNet:
    """Put the network's weights into the net and drop what only training needs."""
    net.module_.load_state_dict(network.module.state_dict())
    net.module_.eval()
    net.trim_for_prediction()
    if net.iterator_valid is SlicingIterator:  # so that the net's own predict takes arrays again
        net.iterator_valid = DataLoader
    return net


def modules_of(net: Any) -> list[Any]:
    """The module of a skorch net, template or trained, also of a frozen one; nothing for anything else."""
    net = net.estimator if isinstance(net, FrozenEstimator) else net
    if not isinstance(net, NeuralNet):
        return []
    return [net.module, net.module_] if net.initialized_ else [net.module]


def device_of(net: Any) -> str | None:
    """The device that a skorch net asks for, also a frozen one; None for anything else."""
    net = net.estimator if isinstance(net, FrozenEstimator) else net
    return str(net.device) if isinstance(net, NeuralNet) and net.device is not None else None


def copied(net: NeuralNet) -> NeuralNet:
    """A deep copy that does not pass through skorch's own pickling, which some versions of torch refuse."""
    kind: Any = type(net)
    found: NeuralNet = kind.__new__(kind)
    found.__dict__.update(copy.deepcopy(dict(net.__dict__)))
    return move_to_present_device(found)


def move_to_present_device(net: NeuralNet) -> NeuralNet:
    """Make a net without its device one of the CPU; its tensors are there already."""
    if net.device is not None:
        net.__dict__["device"] = str(present_device(str(net.device)))
    return net


def _warn_held_out(net: NeuralNet, data: RowsDataset, y: np.ndarray) -> None:
    train, valid = net.get_split_datasets(data, y)
    if valid is not None and get_len(valid):
        warnings.warn(
            f"the given net holds out {len(valid)} of {len(data)} rows by its own train_split; its epochs train on "
            f"{len(train)} rows (the final Gauss–Newton steps and the curvature use all). Set train_split=None to "
            "train on all rows.",
            HeldOutRowsWarning,
            stacklevel=2,
        )


def _name(net: NeuralNet) -> str:
    return net.module.__name__ if inspect.isclass(net.module) else type(net.module).__name__
