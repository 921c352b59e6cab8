"""What an estimator's state is made of: the classes that it may name, and its way into a pickle and out of one.

The state is a description (``_storage/describe.py``) of the fitted attributes. The list of known classes is closed: the
data classes of the modules below, the built-in nets, torch's layers and optimisers, and what a trained skorch net
holds.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from inspect import isclass
from types import ModuleType
from typing import Any, ClassVar, get_origin

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from skorch.dataset import Dataset, ValidSplit
from skorch.history import History
from skorch.setter import optimizer_setter
from torch import nn
from torch.utils.data import DataLoader

from .._approximation import choose, held_out, noise_model, prior_scores, row_densities
from .._approximation.prior_scores import PriorScores
from .._data import rows, target_scale
from .._data import table as _table
from .._data.table import Table
from .._ensemble import approximate_members, ensemble
from .._ensemble import member as _member
from .._ensemble.ensemble import Ensemble
from .._ensemble.member import Member
from .._host import batches, loss, net
from .._host import rows as host_rows
from .._host.given_net import both_probabilities, modules_of, move_to_present_device
from .._runtime.progress import callbacks_of, without_callbacks
from .._validation import values
from ..errors import StateError
from ..laplace import curvatures, fit, layers, likelihoods, links, predictives, prior, selection, structures
from ..laplace.jacobian import blocks, factors, jacobian
from ..laplace.likelihoods._base import Likelihood
from ..laplace.network import layout, network
from ..laplace.prior_groups import ColumnsModule
from ..laplace.tempering import TemperedPosterior
from ..nets import TableMLP, mlp, table
from .annotations import field_types
from .describe import LAYERS, PACKAGE, Known, name_of, pack, requirements, shadows
from .restore import Reader, reading

STATE_FORMAT = 3
MOST_MEMBERS = 1000
"""Of an ensemble in a file: a loaded model checks each."""
ROUNDING = 1e-9
"""Of what is pickled; another number means another layout."""
DATA = (
    approximate_members,
    choose,
    held_out,
    prior_scores,
    row_densities,
    noise_model,
    rows,
    target_scale,
    _table,
    values,
    ensemble,
    _member,
    blocks,
    factors,
    jacobian,
    fit,
    layout,
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
OPTIONS = ("negative_slope", "alpha", "beta", "threshold", "approximate", "inplace")
"""Keywords of these functions."""
CLASS_OR_DATA = Any | type
"""Annotation of a net's parameters: plain data, or a class such as an optimiser's."""
ITERATORS = ("iterator_train", "iterator_valid")
OF_ITERATORS = ("batch_size", "shuffle", "seed", "drop_last")
"""Options of these that are restored."""
PARAMETER = CLASS_OR_DATA | NeuralNet | FrozenEstimator
"""Annotation of an estimator's parameters."""
NET = {
    "module": nn.Module | type[nn.Module],
    "device": str | None,
    "torch_load_kwargs": dict[str, bool] | None,
    "compile": bool,
    "train_split": CLASS_OR_DATA | ValidSplit,
    "module_": nn.Module,
    "criterion_": nn.Module | None,
    "criterion__likelihood": Likelihood,
    "history_": History | None,
    "initialized_": bool,
    "_params_to_validate": set[str],
    "init_context_": str | None,
    "prefixes_": list[str],
    "cuda_dependent_attributes_": list[str],
    "_modules": list[str],
    "_criteria": list[str],
    "_optimizers": list[str],
    "_trimmed_for_prediction": bool,
}
"""Annotations of a skorch net's attributes; all others are parameters."""
FITTED = {
    "n_features_in_": int,
    "feature_names_in_": np.ndarray,
    "classes_": np.ndarray,
    "_ensemble": Ensemble,
    "_is_candidate": bool,
    "_is_quick": bool,
    "_prior_scores": PriorScores | None,
    "_single_output": bool,
    "_table": Table | None,
    "_weight_unit": float,
}
"""Annotations of a fitted estimator's attributes."""


@cache
def known() -> Known:
    """Classes and functions that a state may name, and rules for the objects in it.

    Examples
    --------
    >>> found = known().things
    >>> found["sklearn_laplace.laplace.prior.Prior"].__name__, "builtins.eval" in found
    ('Prior', False)
    """
    things: set[Any] = {*LAYERS.values(), torch.nn.modules.linear.NonDynamicallyQuantizableLinear}
    things |= {kind for module in (*_variants(), *NETS) for kind in _own(module)}
    things |= {kind for module in DATA for kind in _own(module) if is_dataclass(kind)}
    things |= {TemperedPosterior, ColumnsModule, FrozenEstimator, DataLoader}
    things |= {OrderedDict}  # what modules of older torch keep their parts in
    things |= {kind for kind in vars(torch.optim).values() if isclass(kind)}
    things |= {*HOST, *_own(net), *_own(batches), *_own(loss), *_own(host_rows), both_probabilities}
    names = {name_of(thing): thing for thing in things if _is_data(thing)} | ACTIVATIONS
    partials = {function: frozenset(OPTIONS) for function in ACTIVATIONS.values()}
    partials[optimizer_setter] = frozenset(["optimizer_attr", "optimizer_name"])
    checks = {TableMLP: TableMLP.check_parts, NeuralNet: _without_risks}
    return Known(names, {NeuralNet: _of_net, FrozenEstimator: _of_frozen}, partials, checks)


def _of_net(name: str) -> Any:
    return NET.get(name, CLASS_OR_DATA)


def _of_frozen(name: str) -> Any:
    return NeuralNet | StoredEstimator | Any if name == "estimator" else Any


def _without_risks(net: NeuralNet) -> None:
    """Drop options of a net under which later calls would run what a file asks for.

    Under ``compile`` torch's compiler starts the programs that its options name, an iterator may start workers, a
    callback may be replaced, and under ``torch_load_kwargs`` the net's ``load_params`` may unpickle.
    """
    if not all((vars(net).get("torch_load_kwargs") or {}).values()):
        net.__dict__["torch_load_kwargs"] = None
    if vars(net).get("compile"):
        net.__dict__["compile"] = False
    for name in list(vars(net)):
        owner, _, option = name.partition("__")
        if option and (owner in ("callbacks", "compile") or (owner in ITERATORS and option not in OF_ITERATORS)):
            del net.__dict__[name]


def _is_data(kind: Any) -> bool:
    """False for data classes with functions in them, such as a linearisation: no fit stores one."""
    fields = field_types(kind).values() if isclass(kind) and is_dataclass(kind) else ()
    return not any(get_origin(annotation) is Callable for annotation in fields)


def _variants() -> Iterator[ModuleType]:
    for folder in AXES:
        yield from (module for module in vars(folder).values() if isinstance(module, ModuleType))


def _own(module: ModuleType) -> Iterator[type]:
    return (kind for kind in vars(module).values() if isclass(kind) and kind.__module__ == module.__name__)


class StoredEstimator:
    """An estimator whose fitted attributes are pickled as a description: see the module.

    Parameters travel as they are: what the user has given is the user's.
    """

    get_params: Callable[..., dict[str, Any]]
    _get_param_names: ClassVar[Callable[[], list[str]]]

    def _nets(self) -> Iterable[Any]:
        """What may need classes of the user's."""
        nets = [self.get_params(deep=False)["net"], *(member.net for member in self._members())]
        return [*nets, *(module for net in nets for module in modules_of(net))]

    def _members(self) -> tuple[Member, ...]:
        """All of them; none if the estimator is not fitted."""
        return vars(self)["_ensemble"].members if "_ensemble" in vars(self) else ()

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
        """Take on parameters and fitted attributes."""
        self.__dict__.update({**parameters, **fitted})
        for member in self._members():
            move_to_present_device(member.net)

    def __getstate__(self) -> dict[str, Any]:
        parameters, fitted = self._split()
        return {
            "requirements": requirements(type(self).__name__, self._nets()),
            "format": STATE_FORMAT,
            "parameters": parameters,
            "fitted": pack(fitted, known()),
            **callbacks_of(vars(self)),
        }

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict) or state.get("format") != STATE_FORMAT:
            found = state.get("format", sorted(state)) if isinstance(state, dict) else type(state).__name__
            raise ValueError(
                f"this is not the state of a {type(self).__name__} as this version of sklearn_laplace writes it: found "
                f"{found!r}, needed format {STATE_FORMAT}. Open it with the version that wrote it, or fit again."
            )
        with reading("the state"):
            reader = Reader.of(state["fitted"], known())
            fitted, parameters = reader.value(), dict(state["parameters"])
            check_fitted(reader, type(self), fitted)
            if unknown := set(parameters) - set(type(self)._get_param_names()):
                raise StateError(f"a {type(self).__name__} has no parameters {sorted(map(str, unknown))}.")
            self._settle(parameters, fitted)
        self.__dict__.update(callbacks_of(state))


def _is_ours(kind: type, name: str) -> bool:
    """Whether one of this package's classes defines a name."""
    return any(name in vars(one) for one in kind.__mro__ if one.__module__.startswith(f"{PACKAGE}."))


def check_fitted(reader: Reader, kind: type, fitted: Any) -> None:
    """Check names and types of the attributes of a fitted estimator.

    Parameters
    ----------
    reader : Reader
        From which they come.
    kind : type
        Of the estimator.
    fitted : dict

    Raises
    ------
    StateError
    """
    reader.check_type(kind.__name__, "fitted", fitted, dict[str, object])
    is_foreign = not kind.__module__.startswith(f"{PACKAGE}.")
    names = set(kind._get_param_names()) if issubclass(kind, StoredEstimator) else set()
    for name, value in fitted.items():
        stands_for_another = name not in FITTED and _is_ours(kind, name)
        is_callback = not without_callbacks({name: value})
        if shadows(kind, name, is_foreign=is_foreign) or name in names or stands_for_another or is_callback:
            raise StateError(f"the state gives a {kind.__name__} the attribute {name!r}, which no fit sets.")
        reader.check_type(kind.__name__, name, value, FITTED.get(name, Any))
    if "_ensemble" in fitted:
        _check_members(kind, fitted["_ensemble"])


def _check_members(kind: type, held: Ensemble) -> None:
    if len({id(one) for one in held.members}) < len(held.members):
        raise StateError(f"the state holds one member of a {kind.__name__} several times.")
    if not 0 < len(held.members) <= MOST_MEMBERS:
        raise StateError(f"the state of a {kind.__name__} needs 1 to {MOST_MEMBERS} members.")
    for weights in (held.weights, held.shares):
        if weights is not None and not _are_weights(weights, len(held.members)):
            raise StateError(f"the state of a {kind.__name__} needs a weight for each member, of sum one.")
    if not 0 < held.factor < math.inf:
        raise StateError(f"the state of a {kind.__name__} multiplies variances by {held.factor!r}.")


def _are_weights(values: np.ndarray, n_members: int) -> bool:
    """Whether these are finite weights of sum one, none below zero."""
    if values.shape != (n_members,) or values.dtype != np.float64:
        return False
    return bool(np.isfinite(values).all() and (values >= 0).all() and abs(values.sum() - 1) < ROUNDING)
