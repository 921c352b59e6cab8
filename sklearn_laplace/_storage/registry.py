"""Classes and functions that a description may name, each by a short tag, and the attributes of these classes.

The data classes are collected recursively from the annotations of fitted attributes. An annotated class stands for all
its subclasses in this package, so a new structure or likelihood needs no entry here. A test checks the complete list.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import isabstract, isclass
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, get_args, get_origin

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from skorch.dataset import Dataset, ValidSplit
from torch import nn
from torch.utils.data import DataLoader

from .._ensemble.ensemble import Ensemble
from .._table.table import Table
from ..laplace.layers import StandardisedLinear
from ..laplace.prior_groups import ColumnsModule
from ..nets import mlp
from ..nets.given_net import both_probabilities
from ..options import variants
from .annotations import field_types

PACKAGE = __name__.partition(".")[0]
FITTED = {
    "n_features_in_": int,
    "feature_names_in_": np.ndarray,
    "classes_": np.ndarray,
    "_column_names": tuple[str, ...],
    "_ensemble": Ensemble,
    "_single_output": bool,
    "_table": Table | None,
    "_ranges": Table | None,
    "_weight_unit": float,
}
"""Annotations of a fitted estimator's attributes."""
OPTIONAL = frozenset(["feature_names_in_", "classes_", "_column_names", "_single_output", "_ranges"])
"""Fitted attributes that some fits do not set."""
PARAMETER = Any | type | BaseEstimator | Sequence[BaseEstimator]
"""Annotation of a parameter: plain data, a class, an estimator, an option object, or several nets."""
OF_OTHERS: dict[type, dict[str, Any]] = {
    FrozenEstimator: {"estimator": BaseEstimator},
    ValidSplit: {"cv": Any, "stratified": bool, "random_state": Any},
}
"""Annotations of the attributes of other packages' classes."""
TORCH = ("relu", "sigmoid", "sin", "tanh")
FUNCTIONAL = ("elu", "gelu", "leaky_relu", "mish", "relu", "silu", "softplus")
"""Functions of torch that modules may hold as attributes."""


@cache
def known() -> MappingProxyType[str, Any]:
    """Return the known classes and functions by their tags, such as "Prior" and "nn.Linear"."""
    skorch = (NeuralNet, NeuralNetRegressor, NeuralNetClassifier, NeuralNetBinaryClassifier, Dataset, ValidSplit)
    groups: dict[str, Iterable[Any]] = {
        "": (*data_classes(), *_own(mlp), ColumnsModule, StandardisedLinear),
        "options.": [kind for kind in _own(variants) if kind is not variants.Variant],
        "nn.": _layers() | {torch.nn.modules.linear.NonDynamicallyQuantizableLinear},
        "optim.": _own(torch.optim, "torch"),
        "torch.": (DataLoader,),
        "skorch.": skorch,
        "sklearn.": (FrozenEstimator,),
    }
    registered: dict[str, Any] = {"both_probabilities": both_probabilities}
    registered |= {f"torch.{name}": getattr(torch, name) for name in TORCH}
    registered |= {f"nn.functional.{name}": getattr(nn.functional, name) for name in FUNCTIONAL}
    for prefix, kinds in groups.items():
        for kind in kinds:
            if registered.setdefault(f"{prefix}{kind.__name__}", kind) is not kind:
                raise TypeError(f"two classes have the tag {prefix}{kind.__name__}.")
    return MappingProxyType(registered)


def _layers() -> set[type]:
    return {kind for kind in _own(nn, "torch") if issubclass(kind, nn.Module) and not issubclass(kind, nn.RNNBase)}


@cache
def tags() -> dict[Any, str]:
    return {thing: tag for tag, thing in known().items()}


@cache
def data_classes() -> frozenset[type]:
    classes: set[type] = set()
    ahead = [kind for annotation in FITTED.values() for kind in _classes_in(annotation)]
    while ahead:
        kind = ahead.pop()
        if kind not in classes and kind.__module__.startswith(f"{PACKAGE}."):
            classes.add(kind)
            ahead += kind.__subclasses__()
            ahead += [inner for annotation in _annotations(kind).values() for inner in _classes_in(annotation)]
    return frozenset(kind for kind in classes if not isabstract(kind))


def fields_of(kind: type) -> dict[str, Any] | None:
    """Return the annotations of a known class's attributes; None if descriptions cannot contain its instances."""
    if kind in data_classes():
        return _annotations(kind)
    if issubclass(kind, variants.Variant):
        return dict.fromkeys(kind._get_param_names(), PARAMETER)
    return OF_OTHERS.get(kind)


def _annotations(kind: type) -> dict[str, Any]:
    return {field.name: field_types(kind)[field.name] for field in fields(kind)} if is_dataclass(kind) else {}


def _classes_in(annotation: Any) -> Iterator[type]:
    if isclass(annotation) and get_origin(annotation) is None:
        yield annotation
    elif get_origin(annotation) is not ClassVar:
        for inner in get_args(annotation):
            yield from _classes_in(inner)


def _own(module: ModuleType, package: str = "") -> list[Any]:
    place = package or module.__name__
    return [kind for kind in vars(module).values() if isclass(kind) and kind.__module__.startswith(place)]
