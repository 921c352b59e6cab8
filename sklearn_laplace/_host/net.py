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
import inspect
from typing import Any

from sklearn.base import clone
from skorch import NeuralNet
from torch import nn
from torch.utils.data import DataLoader

from ..laplace.likelihoods import Bernoulli
from ..laplace.likelihoods._base import Likelihood
from .batches import SlicingIterator
from .given_net import INPUT_SIZES, OUTPUT_SIZES, _check_criterion, _name, _sizes, both_probabilities, check_module
from .loss import LateAdam, MAPLoss
from .rows import TrainingRows


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
    net = clone(source) if isinstance(source, NeuralNet) else _net_around(source, module_parameters)
    net.set_params(**chosen, **_sizes(net, rows.inputs.shape[1], n_outputs))
    if own_training:
        _check_criterion(net, likelihood)
        if isinstance(likelihood, Bernoulli) and isinstance(net.predict_nonlinearity, str):
            net.set_params(predict_nonlinearity=both_probabilities)  # it would ask the criterion, which is now ours
    own = {key: None for key in net.get_params(deep=False) if key.startswith("criterion__")}
    for key in own:  # options of the template's criterion do not fit ours
        if key in vars(net):
            object.__delattr__(net, key)
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
        for key in [k for k in vars(net) if k.startswith("iterator_train__") and k != "iterator_train__batch_size"]:
            object.__delattr__(net, key)
        net.set_params(iterator_train=SlicingIterator, iterator_train__shuffle=shuffle, iterator_train__seed=seed)
    if net.iterator_valid is DataLoader:
        net.set_params(iterator_valid=SlicingIterator)
    return net


def _net_around(source: type[nn.Module] | nn.Module, module_parameters: dict[str, Any]) -> NeuralNet:
    """A skorch net of ours around a module class, or around a copy of a module."""
    net = NeuralNet(
        source if inspect.isclass(source) else copy.deepcopy(source),
        criterion=MAPLoss,
        optimizer=LateAdam,
        train_split=None,
        callbacks="disable",
        lr=1e-2,
        batch_size=-1,
        max_epochs=0,
    )
    return net.set_params(**{f"module__{name}": value for name, value in module_parameters.items()})


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
