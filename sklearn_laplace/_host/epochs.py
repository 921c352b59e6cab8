"""Run the epochs of a skorch net under our loss."""

from __future__ import annotations

import math
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from skorch import NeuralNet
from skorch.callbacks import Callback
from skorch.dataset import get_len
from torch.utils.data import DataLoader

from .._runtime.progress import Task
from ..errors import HeldOutRowsWarning, NonFiniteError, NonFiniteLossError
from ..laplace.network.network import Network
from .batches import RowsDataset, SlicingIterator
from .loss import LateAdam
from .rows import TrainingRows


class EpochTasks(Callback):
    """Each epoch of a net as a part of a task.

    Parameters
    ----------
    task : Task
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    def on_epoch_begin(self, net: NeuralNet, **kwargs: Any) -> None:
        """See the class."""
        self.epoch = self.task.subtask("epoch").__enter__()

    def on_epoch_end(self, net: NeuralNet, **kwargs: Any) -> None:
        """See the class."""
        self.epoch.__exit__(None, None, None)


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
