"""What an estimator's state is made of: the classes that it may name, and its way into a pickle and out of one.

The state is a description (``_persistence.py``) of the fitted attributes. The list of known classes is closed: the data
classes of the modules below, the built-in nets, torch's layers and optimisers, and what a trained skorch net holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from inspect import isclass
from types import ModuleType
from typing import Any

import torch
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from skorch.dataset import Dataset, ValidSplit
from skorch.history import History
from skorch.setter import optimizer_setter
from torch import nn
from torch.utils.data import DataLoader

from . import (
    _cross_fit,
    _cross_validation,
    _data,
    _noise_model,
    _persistence,
    _restoring,
    _skorch,
    _stages,
    _tables,
    _values,
    by_name,
    curvatures,
    jacobian,
    laplace,
    layers,
    likelihoods,
    links,
    network,
    predictives,
    prior,
    selection,
    structures,
    tempering,
)
from ._persistence import LAYERS, name_of
from ._progress import callbacks_of, without_callbacks
from .nets import mlp, table

STATE_FORMAT = 2
"""Of what is pickled; another number means another layout."""
DATA = (
    _cross_fit,
    _cross_validation,
    _data,
    _noise_model,
    _stages,
    _tables,
    _values,
    jacobian,
    laplace,
    network,
    prior,
)
"""Modules whose data classes a fit may hold."""
AXES = (curvatures, layers, likelihoods, links, predictives, selection, structures)
"""Folders of whose variants it may hold every class."""
NETS = (mlp, table)
"""Modules of which it may hold every class."""
HOST = (
    *(NeuralNet, NeuralNetRegressor, NeuralNetClassifier, NeuralNetBinaryClassifier),
    *(Dataset, ValidSplit, History, optimizer_setter),
)
"""What a trained net that is trimmed for prediction holds of skorch: its own class and what it names."""
ACTIVATIONS = {f"torch.{name}": getattr(torch, name) for name in ("relu", "sigmoid", "sin", "tanh")} | {
    f"torch.nn.functional.{name}": getattr(nn.functional, name)
    for name in ("elu", "gelu", "leaky_relu", "mish", "relu", "silu", "softplus")
}
"""Functions that modules hold as attributes."""
BARE = (NeuralNet, FrozenEstimator)
"""Classes whose instances are their attributes, whatever they say of their pickling."""


@cache
def known() -> Mapping[str, Any]:
    """The classes and functions that a state may name, by their full names.

    Examples
    --------
    >>> found = known()
    >>> found["sklearn_laplace.prior.Prior"].__name__, "builtins.eval" in found
    ('Prior', False)
    """
    things: set[Any] = {*LAYERS.values(), torch.nn.modules.linear.NonDynamicallyQuantizableLinear}
    things |= {kind for module in (*_variants(), *NETS) for kind in _own(module)}
    things |= {kind for module in DATA for kind in _own(module) if is_dataclass(kind)}
    things |= {tempering.TemperedPosterior, by_name.ColumnsModule, by_name.Grouping, FrozenEstimator, DataLoader}
    things |= {OrderedDict}  # what modules of older torch keep their parts in
    things |= {kind for kind in vars(torch.optim).values() if isclass(kind)}
    things |= {*HOST, *_own(_skorch)}
    return {name_of(thing): thing for thing in things} | ACTIVATIONS


def _variants() -> Iterator[ModuleType]:
    for folder in AXES:
        yield from (module for module in vars(folder).values() if isinstance(module, ModuleType))


def _own(module: ModuleType) -> Iterator[type]:
    return (kind for kind in vars(module).values() if isclass(kind) and kind.__module__ == module.__name__)


class StoredEstimator(BaseEstimator):
    """An estimator whose fitted attributes are pickled as a description: see the module.

    Parameters travel as they are: what the user has given is the user's.
    """

    _others: tuple[Any, ...] = ()

    def _nets(self) -> Iterable[Any]:
        """What may need classes of the user's."""
        held = vars(self)
        nets = [held[name] for name in ("net", "net_") if name in held]
        return [*nets, *(module for net in nets for module in _skorch.modules_of(net))]

    def _split(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parameters and fitted attributes."""
        names, state = self.get_params(deep=False), without_callbacks(BaseEstimator.__getstate__(self))
        return {name: state.pop(name) for name in list(state) if name in names}, state

    @classmethod
    def _joined(cls, parameters: Mapping[str, Any], fitted: dict[str, Any]) -> Any:
        """A new estimator of parameters and fitted attributes."""
        found = object.__new__(cls)
        found._settle(parameters, fitted)
        return found

    def _settle(self, parameters: Mapping[str, Any], fitted: dict[str, Any]) -> None:
        """Take on parameters and fitted attributes, also for the other members of a mixture."""
        if "net_" in fitted:
            _skorch.move_to_present_device(fitted["net_"])
        self.__dict__.update({**parameters, **fitted})
        for other in self._others:
            if "net_" in vars(other):
                _skorch.move_to_present_device(other.net_)
            other.__dict__.update(parameters)

    def _member_parts(self, value: Any) -> Any:
        """The fitted attributes of another member; its parameters are this one's."""
        return {"member": value._split()[1]} if any(value is other for other in self._others) else None

    def _known(self) -> Mapping[str, Any]:
        return {**known(), name_of(type(self)): type(self)}

    def __getstate__(self) -> dict[str, Any]:
        parameters, fitted = self._split()
        return {
            "requirements": _persistence.requirements(type(self).__name__, self._nets()),
            "format": STATE_FORMAT,
            "parameters": parameters,
            "fitted": _persistence.pack(fitted, self._known(), BARE, self._member_parts),
            **callbacks_of(vars(self)),
        }

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict) or state.get("format") != STATE_FORMAT:
            found = state.get("format", sorted(state)) if isinstance(state, dict) else type(state).__name__
            raise ValueError(
                f"this is not the state of a {type(self).__name__} as this version of sklearn_laplace writes it: found "
                f"{found!r}, needed format {STATE_FORMAT}. Open it with the version that wrote it, or fit again."
            )
        fitted = _restoring.unpack(state["fitted"], self._known(), _member)
        self._settle(state["parameters"], fitted)
        self.__dict__.update(callbacks_of(state))


def _member(kind: type, parts: Any) -> Any:
    """Another member of a mixture, still without its parameters."""
    assert issubclass(kind, StoredEstimator)
    return kind._joined({}, parts["member"])
