"""Run the epochs of a skorch net with the MAP objective as loss."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from skorch import NeuralNet
from skorch.callbacks import Callback
from skorch.dataset import get_len
from torch.utils.data import DataLoader

from .._runtime.progress import Task
from .._runtime.steps import Steps
from .._warn import warn_user
from ..errors import HeldOutRowsWarning, NonFiniteError, NonFiniteLossError
from ..laplace.network.network import Network
from .batches import RowsDataset, SlicingIterator
from .loss import LateAdam
from .rows import TrainingRows


class EpochTasks(Callback):
    """Callback that reports each epoch as a subtask.

    Parameters
    ----------
    task : Task
        Task of all epochs.
    steps : Steps
        Progress of the epochs.
    """

    def __init__(self, task: Task, steps: Steps) -> None:
        self.task, self.steps = task, steps

    def on_epoch_begin(self, net: NeuralNet, **kwargs: Any) -> None:
        """Begin the subtask."""
        self.epoch = self.task.subtask("epoch").__enter__()

    def on_epoch_end(self, net: NeuralNet, **kwargs: Any) -> None:
        """End the subtask."""
        if self.steps.is_shown:
            self.steps.advance(float(np.mean(net.history[-1, "batches", :, "train_loss"])))
        self.epoch.__exit__(None, None, None)


class Watch(Callback):
    """Callback that checks the loss after each epoch and calls ``between`` every ``period`` epochs.

    Parameters
    ----------
    period : int
        Number of epochs between two calls.
    between : callable or None
        Evidence step; called with the net.
    is_over : callable
        Returns True if the training has to end.
    """

    def __init__(self, period: int, between: Callable[[NeuralNet], None] | None, is_over: Callable[[], bool]) -> None:
        self.period = period
        self.between = between
        self.is_over = is_over

    def on_batch_end(self, net: NeuralNet, **kwargs: Any) -> None:
        """Stop the training if it has to end."""
        if self.is_over():
            raise KeyboardInterrupt  # the way in which skorch callbacks stop a training

    def on_epoch_end(self, net: NeuralNet, **kwargs: Any) -> None:
        """Check the loss, and run the evidence step if it is due."""
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


def run_epochs(net: NeuralNet, rows: TrainingRows, watch: Watch) -> int:
    """Train for the net's ``max_epochs`` and return the number of epochs run.

    Parameters
    ----------
    net : NeuralNet, initialised
        Net to train, in place.
    rows : TrainingRows
        Training rows.
    watch : Watch
        Callback that checks the loss and runs evidence steps.

    Raises
    ------
    NonFiniteLossError
        If the loss becomes NaN or infinite.
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
    """True if a skorch callback raised the KeyboardInterrupt to stop the training, and not the user by Ctrl-C."""
    frames = (frame.f_code for frame, _ in traceback.walk_tb(stop.__traceback__))
    return NeuralNet.notify.__code__ in frames


def finish(net: NeuralNet, network: Network) -> NeuralNet:
    """Copy the network's weights into the net and drop the parts that only training needs."""
    net.module_.load_state_dict(network.module.state_dict())
    net.module_.eval()
    net.trim_for_prediction()
    if net.iterator_valid is SlicingIterator:  # the net's predict method then accepts arrays again
        net.iterator_valid = DataLoader
    return net


def _warn_held_out(net: NeuralNet, data: RowsDataset, y: np.ndarray) -> None:
    train, valid = net.get_split_datasets(data, y)
    if valid is not None and get_len(valid):
        warn_user(
            f"the given net holds out {len(valid)} of {len(data)} rows by its train_split, and its epochs train on the "
            f"other {len(train)}. The final Gauss–Newton steps and the curvature use all rows. Set train_split=None to "
            "train on all rows.",
            HeldOutRowsWarning,
        )
