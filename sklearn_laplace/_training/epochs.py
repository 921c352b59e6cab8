"""Run the epochs of a skorch net with the MAP objective as loss.

For nets too large for exact Gauss–Newton steps, epochs alternate with evidence steps for free hyperparameters.
"""

import math
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from skorch.callbacks import Callback
from torch import Tensor
from torch.utils.data import Subset

from .._table.limits import budget_for
from ..errors import NonFiniteError, NonFiniteLossError
from ..laplace.evidence import mackay_fixed_point
from ..laplace.fit import Hyper, TrainingRows
from ..laplace.mode.alternating import MACKAY_DAMPING
from ..laplace.mode.problem import Problem
from ..laplace.network.network import Network
from ..laplace.prior import Prior
from ..nets.skorch_net import LateAdam, RowsDataset
from .plan import Plan
from .progress import Steps, Task


class EpochTasks(Callback):
    """Callback that reports each epoch as a subtask of ``task``."""

    def __init__(self, task: Task, steps: Steps) -> None:
        self.task, self.steps = task, steps

    def on_epoch_begin(self, net: NeuralNet, **kwargs: Any) -> None:
        self.epoch = self.task.subtask("epoch").__enter__()

    def on_epoch_end(self, net: NeuralNet, **kwargs: Any) -> None:
        if self.steps.is_shown:
            self.steps.advance(float(np.mean(net.history[-1, "batches", :, "train_loss"])))
        self.epoch.__exit__(None, None, None)


class Watch(Callback):
    """Callback that checks the loss after each epoch and calls ``between(net)`` every ``period`` epochs.

    The training ends if ``is_over()`` returns True.
    """

    def __init__(
        self, is_over: Callable[[], bool], between: Callable[[NeuralNet], None] | None = None, period: int = 1
    ) -> None:
        self.is_over = is_over
        self.between = between
        self.period = period

    def on_batch_end(self, net: NeuralNet, **kwargs: Any) -> None:
        if self.is_over():
            raise KeyboardInterrupt  # the way in which skorch callbacks stop training

    def on_epoch_end(self, net: NeuralNet, **kwargs: Any) -> None:
        losses = net.history[-1, "batches", :, "train_loss"]
        epoch = len(net.history)
        if not np.isfinite(losses).all():
            raise _diverged(next(v for v in losses if not np.isfinite(v)), net)
        if self.between is not None and epoch % self.period == 0:
            try:
                self.between(net)
            except NonFiniteError as error:
                raise _diverged(math.nan, net) from error


class Annealing(Callback):
    """Callback that lowers the learning rate of a plain torch module to zero along a cosine over all batches."""

    def on_train_begin(self, net: NeuralNet, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        n_rows = len(X) if net.batch_size == -1 else net.batch_size
        self.step, self.n_steps = 0, net.max_epochs * math.ceil(len(X) / n_rows)

    def on_batch_begin(self, net: NeuralNet, training: bool = False, **kwargs: Any) -> None:
        if training:
            for group in net.optimizer_.param_groups:
                group["lr"] = net.lr * 0.5 * (1 + math.cos(math.pi * self.step / self.n_steps))
            self.step += 1


def _diverged(loss: float, net: NeuralNet) -> NonFiniteLossError:
    return NonFiniteLossError(
        f"the training loss became {loss} in epoch {len(net.history)} with lr={net.lr:g}. Use a smaller lr, scale the "
        "inputs, or look for extreme values in X and y."
    )


def run_epochs(net: NeuralNet, rows: TrainingRows, watch: Watch, task: Task) -> None:
    """Train an initialised net in place for its ``max_epochs``, as a subtask of ``task``."""
    # A skorch net of the user prints its own table of epochs.
    shown = {"unit": "epoch", "prints": net.callbacks == "disable"}
    with task.subtask("epochs", net.max_epochs) as epochs, Steps(epochs, net.max_epochs, **shown) as steps:
        if net.max_epochs <= 0:
            return
        if isinstance(net.optimizer_, LateAdam):
            net.optimizer_.make()
        ours = ("laplace_progress", EpochTasks(epochs, steps)), ("laplace_watch", watch)
        net.callbacks_ = [*net.callbacks_, *ours]
        data = RowsDataset(rows)
        y = rows.targets.cpu().numpy()
        net.notify("on_train_begin", X=data, y=y)
        try:
            net.fit_loop(data, y)
        except KeyboardInterrupt as stop:
            if not _raised_by_callback(stop):
                raise
        except ValueError as error:
            if str(error).startswith("Expected more than 1 value per channel"):
                raise ValueError(
                    f"batch norm cannot train on a batch of one row, and {len(data)} rows in batches of "
                    f"{net.batch_size} leave one. Use iterator_train__drop_last=True or another batch_size in the "
                    "skorch net."
                ) from error
            raise
        net.notify("on_train_end", X=data, y=y)


def hold_out(net: NeuralNet, rows: TrainingRows, seed: int) -> Tensor:
    """Return the rows (m,), int64, that ``train_split`` holds out; set ``train_split`` to a function of this split."""
    none = torch.zeros(0, dtype=torch.long, device=rows.inputs.device)
    if not net.train_split or net.max_epochs <= 0:
        return none
    data, state = RowsDataset(rows), np.random.get_state()  # noqa: NPY002 - which scikit-learn's splitters use
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        parts = net.get_split_datasets(data, rows.targets.cpu().numpy())
    finally:
        np.random.set_state(state)  # noqa: NPY002
    train, valid = (None if part is None else _positions(part, data) for part in parts)
    if train is None or (valid is None) != (parts[1] is None):
        raise ValueError(
            "the net's train_split has validation rows that are not among the rows of the fit, as predefined_split "
            "has. Pass these rows to fit as well, and use train_split=ValidSplit(PredefinedSplit(test_fold)) with "
            "scikit-learn's PredefinedSplit."
        )
    if valid is not None:
        _check_positions(train, valid, len(data))

    def known(dataset: RowsDataset, y: object = None, **options: object) -> tuple[Any, ...]:
        return Subset(dataset, train), None if valid is None else Subset(dataset, valid)  # type: ignore[arg-type]

    net.train_split = known
    return none if valid is None else torch.as_tensor(np.setdiff1d(np.arange(len(data)), train), device=none.device)


def _positions(part: object, data: RowsDataset) -> np.ndarray | None:
    """Positions of a (possibly nested) subset of the rows; None for a part of another data set."""
    if part is data:
        return np.arange(len(data))
    if not isinstance(part, Subset):
        return None
    outer = _positions(part.dataset, data)
    index = np.asarray(part.indices, dtype=np.int64)
    return None if outer is None else index if part.dataset is data else outer[index]


def _check_positions(train: np.ndarray, valid: np.ndarray, n_rows: int) -> None:
    """Check that training and validation rows are rows of the fit, and that they have no row in common."""
    both = np.concatenate([train, valid])
    if len(both) and both.max() >= n_rows:
        raise ValueError(
            f"the net's train_split has row {both.max()}, and the fit has {n_rows} rows of positive weight. A split by "
            "positions, as PredefinedSplit, has to be made for the rows of the fit, without those of weight zero."
        )
    if shared := len(np.intersect1d(train, valid)):
        raise ValueError(
            f"the net's train_split trains on {shared} of its {len(valid)} validation rows, whose errors are then no "
            "estimate for new rows. Use a split without rows in common, such as ValidSplit(5)."
        )


def _raised_by_callback(stop: KeyboardInterrupt) -> bool:
    """True if a skorch callback raised the KeyboardInterrupt to stop the training, rather than the user with Ctrl-C."""
    frames = (frame.f_code for frame, _ in traceback.walk_tb(stop.__traceback__))
    return NeuralNet.notify.__code__ in frames


def train_epochs(
    net: NeuralNet,
    rows: TrainingRows,
    network: Network,
    prior: Prior,
    problem: Problem,
    plan: Plan,
    *,
    hyper: Hyper,
    task: Task,
) -> Hyper:
    """Run the epochs of a net in place, with damped evidence steps in between; return the last hyperparameters.

    ``network`` is the initial trace.
    """
    past = None if plan.previous is None else plan.previous.fit
    net.criterion_.bind(network, net.module_, prior, hyper, past)
    free_prior = plan.precision is None

    def between(live: NeuralNet) -> None:
        nonlocal hyper
        fit = problem.linearise(network.with_state_of(live.module_))
        target = mackay_fixed_point(fit, hyper) if free_prior else hyper
        target = replace(target, dispersion=plan.update(fit, hyper).dispersion)
        hyper = _part_of_the_way(hyper, target)
        live.criterion_.bind(network, live.module_, prior, hyper, past)

    free = free_prior or plan.free_dispersion
    try:
        period = max(1, net.max_epochs // budget_for(len(rows)).evidence_steps)
        run_epochs(net, rows, Watch(plan.is_over, between if free else None, period), task)
    except NonFiniteLossError:
        problem.linearise(network)  # if the initial outputs are not finite, this error names the layer
        raise
    return hyper


def _part_of_the_way(hyper: Hyper, target: Hyper) -> Hyper:
    precision = hyper.prior_precision * (target.prior_precision / hyper.prior_precision) ** MACKAY_DAMPING
    dispersion = hyper.dispersion * (target.dispersion / hyper.dispersion) ** MACKAY_DAMPING
    return replace(hyper, prior_precision=precision, dispersion=dispersion)
