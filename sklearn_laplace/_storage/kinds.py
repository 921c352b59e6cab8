"""Split an object into named values, and rebuild it from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from inspect import getattr_static, isdatadescriptor, ismethoddescriptor
from typing import Any, Protocol

import numpy as np
import torch
from skorch import NeuralNet
from skorch.dataset import ValidSplit
from skorch.history import History
from torch import Tensor, nn

from ..errors import StateError
from ..laplace.likelihoods._base import Likelihood
from .annotations import conforms
from .registry import fields_of, tags

OWN_STATE = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__deepcopy__")
"""Methods with which a class itself defines how its instances are stored."""
PLAIN = (bool, int, float, str, Tensor, nn.Module, torch.dtype, torch.device, np.generic, np.random.RandomState)
"""Types of plain values; containers of them are plain as well."""
MODULE = {
    "training": bool,
    "_parameters": dict[str, nn.Parameter | None],
    "_buffers": dict[str, Tensor | None],
    "_modules": dict[str, nn.Module | None],
    "_non_persistent_buffers_set": set[str],
    "_is_full_backward_hook": bool | None,
}
"""Annotations of torch's own attributes of a module."""
HOOKS = frozenset(vars(nn.Module())) - set(MODULE)
"""All other attributes that torch gives a module: functions that torch calls. No description contains them."""
NET = {
    "module": nn.Module | type[nn.Module],
    "device": str | None,
    "train_split": Any | type | ValidSplit,
    "module_": nn.Module,
    "criterion_": nn.Module | None,
    "criterion__likelihood": Likelihood,
    "history_": list[Any] | None,
    "initialized_": bool,
    "init_context_": str | None,
    **dict.fromkeys(("prefixes_", "cuda_dependent_attributes_", "_modules", "_criteria", "_optimizers"), list[str]),
}
"""Annotations of a skorch net's attributes; all others are parameters."""
LEFT_OUT: dict[str, Callable[[], Any]] = {
    "torch_load_kwargs": lambda: None,
    "compile": lambda: False,
    "virtual_params_": dict,
    "_params_to_validate": set,
}
"""Attributes of a skorch net that are not stored, because they could execute code, with their values after reading."""
OF_TRAINING: dict[str, Callable[[], Any]] = {
    "_trimmed_for_prediction": lambda: True,
    "optimizer_": lambda: None,
    "callbacks_": list,
}
"""Further attributes that are not stored for a fitted net: after reading, the net can predict but not train."""
OF_ITERATORS = ("batch_size", "shuffle", "seed", "drop_last")
"""Options of a net's iterators that are stored; others may start workers."""


class Reads(Protocol):
    """Protocol of ``restore.Reader``, which reads a description."""

    def is_plain(self, value: Any) -> bool:
        """True if a value is plain data."""


@dataclass(frozen=True)
class Kind:
    attributes: Callable[[Any], Mapping[str, Any]]
    make: Callable[[Reads, Any, dict[str, Any]], Any]


ESTIMATORS: dict[type, Kind] = {}
"""How estimators are stored, keyed by their base class; the decorator ``stored`` adds entries."""


def kind_of(kind: type) -> Kind | None:
    """Return the :class:`Kind` for instances of a class; None if attributes do not determine an instance."""
    is_known = kind in tags()
    for base, of_estimator in ESTIMATORS.items():
        if issubclass(kind, base):
            return of_estimator
    if issubclass(kind, nn.Module):
        return None if _has_own_state(kind, nn.Module) else Kind(_of_module, _module)
    if issubclass(kind, NeuralNet):
        return Kind(_of_net, _net)
    if is_known:
        return None if fields_of(kind) is None or issubclass(kind, Enum) else Kind(_of_data, _data)
    return Kind(vars, lambda reader, kind, values: new(kind, values)) if _is_bare(kind) else None


def _is_bare(kind: type) -> bool:
    """True if attributes alone determine an instance of a class."""
    return kind.__dictoffset__ != 0 and kind.__new__ is object.__new__ and not _has_own_state(kind, object)


def _has_own_state(kind: type, base: type) -> bool:
    """True if a class or an ancestor, except for ``base`` and torch's layers, defines how its instances are stored."""
    ancestors = [ancestor for ancestor in kind.__mro__ if ancestor not in base.__mro__]
    definers = [a for a in ancestors if set(OWN_STATE) & set(vars(a)) or vars(a).get("__slots__")]
    return any(not a.__module__.startswith("torch.nn.modules.") or issubclass(a, nn.RNNBase) for a in definers)


# ---------------------------------------------------------------------- checks


def check_types(reader: Reads, owner: type, values: Mapping[str, Any], annotation_of: Callable[[str], Any]) -> None:
    for name, value in values.items():
        annotation = annotation_of(name)
        if not conforms(value, annotation, reader.is_plain):
            wanted = "plain data" if annotation is Any else getattr(annotation, "__name__", str(annotation))
            type_name = type(value).__name__
            raise StateError(f"the state holds a {type_name} as {name!r:.200} of {owner.__name__}; {wanted} is needed.")


def shadows(kind: type, name: str) -> bool:
    """True if an attribute has an invalid name, or would replace a method or a property of its class."""
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("__"):
        return True
    held = getattr_static(kind, name, None)
    if isinstance(held, cached_property) and kind not in tags():
        return False
    return callable(held) or isdatadescriptor(held) or ismethoddescriptor(held)


def new(kind: type, values: Mapping[str, Any]) -> Any:
    instance: Any = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


# ---------------------------------------------------------------------- data


def _of_data(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in fields_of(type(value)) or ()}


def _data(reader: Reads, kind: type, values: dict[str, Any]) -> Any:
    needed = fields_of(kind) or {}
    if set(values) != set(needed):
        problem = f"the state holds a {kind.__name__} of {sorted(values)!s:.200}"
        raise StateError(f"{problem}, and this version of sklearn_laplace needs {sorted(needed)}.")
    check_types(reader, kind, values, needed.__getitem__)
    return new(kind, values)


# ---------------------------------------------------------------------- modules


def _of_module(module: nn.Module) -> dict[str, Any]:
    fresh = vars(nn.Module())
    return {name: value for name, value in vars(module).items() if name not in fresh or value != fresh[name]}


def _module(reader: Reads, kind: type, values: dict[str, Any]) -> nn.Module:
    if hooks := sorted(HOOKS & set(values)):
        raise StateError(
            f"the state gives a {kind.__name__} the hooks {hooks}; a saved model cannot contain functions."
        )
    checked = {name: value for name, value in values.items() if name in MODULE or kind in tags()}
    check_types(reader, kind, checked, lambda name: MODULE.get(name, Any))
    state = vars(nn.Module()) | values
    parts = {name for group in ("_parameters", "_buffers", "_modules") for name in state[group]}
    if replaced := sorted(parts & set(values)):
        raise StateError(f"the state gives a {kind.__name__} the attributes {replaced} twice.")
    return new(kind, state)


# ---------------------------------------------------------------------- nets


def _is_stored(name: str) -> bool:
    owner, _, option = name.partition("__")
    is_option = owner in ("callbacks", "compile") or (owner.startswith("iterator_") and option not in OF_ITERATORS)
    return name not in LEFT_OUT | OF_TRAINING and not (option and is_option)


def _of_net(net: NeuralNet) -> dict[str, Any]:
    attributes = {name: value for name, value in vars(net).items() if _is_stored(name)}
    return attributes | ({} if net.history_ is None else {"history_": list(net.history_)})


def _net(reader: Reads, kind: type, values: dict[str, Any]) -> NeuralNet:
    if kept_out := [name for name in values if not _is_stored(name)]:
        raise StateError(
            f"the state gives a {kind.__name__} the attributes {kept_out}, which a saved model cannot contain."
        )
    check_types(reader, kind, values, lambda name: NET.get(name, Any | type))
    left_out = LEFT_OUT | OF_TRAINING if values.get("initialized_") else LEFT_OUT
    state = {name: make() for name, make in left_out.items()} | values
    state["_params_to_validate"] |= {name for name in values if "__" in name}
    if state.get("history_") is not None:
        state["history_"] = History(state["history_"])
    return new(kind, state)
