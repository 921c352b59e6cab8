"""The description of a fitted model: JSON text and numpy arrays, the same for pickle, skops and safetensors.

Each tensor is stored as an array, which, unlike a pickled tensor, needs no device. Shared tensors and objects stay
shared. Cached properties are omitted. Numbers, strings, None and booleans stand for themselves. Everything else is a
*node*, a list that begins with its kind:

- ``["list", …]``, ``["tuple", …]``, ``["set", …]``, ``["size", …]``: the items follow; ``["dict", …]``: keys and values
  in turn; ``["objects", shape, …]``: an array of objects;
- ``["array", i]``: an array or a tensor; ``["number", i]``: a number of numpy; ``["random", …]``: a RandomState;
- ``["named", tag]``: a known class or function, by its tag in ``_storage/registry.py``, or one of the user's by its
  number; ``["member", tag, name]``: a member of an enumeration;
- ``["ref", i]``: an entry of the list ``objects``. The entries are ``["object", tag, name, value, …]`` and refer only
  to earlier entries;
- ``["float", "nan"]``, ``["dtype", name]``, ``["device", name]``.

A value that no node can hold is refused in a file. In a pickle, it is pickled as it is; a module with such an attribute
is pickled as a whole.
"""

import importlib
import json
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from inspect import isclass, isfunction, isroutine
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import NotStorableError
from .kinds import HOOKS, kind_of, shadows
from .registry import PACKAGE, tags

ALWAYS_THERE = {PACKAGE, "torch", "skorch", "builtins", "__main__"}
"""Packages whose classes are not looked up before reading; a pickle may contain classes of ``__main__``."""
REFERENCE = "ref"
"""Kind of a node that refers to an object."""
NUMBERS = "biufcmMSU"
"""Kinds of numpy's data types whose bytes are their values."""
GENERATOR = "MT19937"
"""The only bit generator of a ``RandomState`` that can be described."""


def name_of(thing: Any) -> str:
    """Return the full name of a class or a function, such as 'torch.nn.modules.linear.Linear'."""
    return f"{thing.__module__}.{thing.__qualname__}"


def pack(value: Any) -> dict[str, Any]:
    """Describe a value by a dict: "tree" (JSON), "arrays" (a list), and "own", objects that are pickled as they are."""
    describer = Describer(takes_objects=True)
    tree = json.dumps(describer.tree(value), allow_nan=False, separators=(",", ":"))
    return {"tree": tree, "arrays": describer.arrays, "own": describer.own}


class Describer:
    """Builder of descriptions of values, as a tree and arrays.

    With ``takes_objects`` (a pickle), objects without a description are pickled as they are.
    """

    def __init__(self, known: Mapping[Any, str] | None = None, *, takes_objects: bool = False) -> None:
        self.known = tags() if known is None else known
        self.takes_objects = takes_objects
        self.arrays: list[np.ndarray] = []
        self.headers: list[list[Any]] = []
        self.objects: list[list[Any]] = []
        self.own: list[Any] = []
        self._memo: dict[int, tuple[Any, Any]] = {}
        self._checked: set[int] = set()

    def tree(self, value: Any) -> dict[str, Any]:
        root = self(value)
        return {"root": root, "objects": self.objects, "headers": self.headers}

    def __call__(self, value: Any, path: str = "") -> Any:
        """Return the node of a value; ``path`` is its attribute path, for messages."""
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind in _IN_PLACE:
            return _IN_PLACE[kind](self, value, path)
        if id(value) not in self._memo:
            self._memo[id(value)] = None, value  # with the value, whose id could otherwise be reused
            self._memo[id(value)] = self._node(value, path), value
        node, _ = self._memo[id(value)]
        return self._refused(value, f"{path}, which contains itself") if node is None else node

    def _node(self, value: Any, path: str) -> Any:
        if isclass(value) or isroutine(value):
            is_name = isclass(value) or isfunction(value) or value in self.known
            return ["named", self._reference(value, path)] if is_name else self._refused(value, path)
        for kind, node in _NODES.items():
            if isinstance(value, kind):
                return node(self, value, path) or self._refused(value, path)
        return self._object(value, path)

    def _reference(self, thing: Any, path: str) -> str | int:
        """Return the tag of a class or function, or its number among the user's own."""
        if thing in self.known:
            return self.known[thing]
        if "<" in thing.__qualname__ and not self.takes_objects:
            self._refused(thing, path)
        if not any(known_thing is thing for known_thing in self.own):
            self.own.append(thing)
        return next(place for place, known_thing in enumerate(self.own) if known_thing is thing)

    def _refused(self, value: Any, path: str) -> Any:
        """In a pickle, return a node that refers to an object by number; otherwise raise a NotStorableError."""
        if self.takes_objects:
            self.own.append(value)
            return ["named", len(self.own) - 1]
        is_name = isclass(value) or isroutine(value)
        what = name_of(value) if is_name else f"an object of the class {name_of(type(value))}"
        raise NotStorableError(
            f"{what}, found in {path}, cannot be saved: a file holds numbers, text, arrays, attributes of modules and "
            "plain objects, and names of classes and functions. Define a class or function at the top level of a "
            "module, remove the attribute, or use pickle."
        )

    def _object(self, value: Any, path: str) -> Any:
        kind = kind_of(type(value))
        values = kind.attributes(value) if kind else None
        if values is None or any(name in HOOKS or shadows(type(value), name) for name in values):
            return self._refused(value, path)
        if self.takes_objects and not self._is_data(value, path):
            return self._refused(value, path)
        node = ["object", self._reference(type(value), path)]
        for name, held in values.items():
            node += [name, self(held, f"{path}.{name}".lstrip("."))]
        self.objects.append(node)
        return [REFERENCE, len(self.objects) - 1]

    def _is_data(self, value: Any, path: str) -> bool:
        """False if ``value`` is a torch module or an object of a user's class, with a part that cannot be described."""
        is_of_user = isinstance(value, nn.Module) or type(value) not in self.known
        if is_of_user and id(value) not in self._checked:
            trial = Describer(self.known)
            try:
                trial(value, path)
            except NotStorableError:
                return False
            self._checked |= set(trial._memo)
        return True

    def items(self, values: Iterable[Any], path: str) -> list[Any]:
        return [self(value, f"{path}[{place}]") for place, value in enumerate(values)]

    def array(self, values: np.ndarray, *of_tensor: Any) -> int:
        """Store an array in C order, and its original order of axes in a header; return the number of the array."""
        if values.ndim and 0 in values.strides:
            values = values.copy()
        axes = sorted(range(values.ndim), key=lambda axis: -abs(values.strides[axis]))
        self.arrays.append(np.ascontiguousarray(values.transpose(axes)).reshape([values.shape[k] for k in axes]))
        self.headers.append([axes, *of_tensor])
        return len(self.arrays) - 1


def _dict(describer: Describer, value: dict[Any, Any], path: str) -> Any:
    nodes: list[Any] = ["dict"]
    for key, held in value.items():
        node = describer(key, path)
        if isinstance(node, list) and node[0] not in ("tuple", "number", "float"):
            return describer._refused(value if describer.takes_objects else key, f"the keys of {path}")
        nodes += [node, describer(held, f"{path}.{key}".lstrip("."))]
    return nodes


def _tensor(describer: Describer, value: Tensor, path: str) -> Any:
    """Return the node of a copy on the host, in the same order of axes, which affects rounding."""
    values = value.detach().cpu()
    if values.dtype == torch.bfloat16:  # numpy has none
        values = values.float()
    grad = value.requires_grad if isinstance(value, nn.Parameter) else None
    array = values.numpy().copy(order="K")
    return ["array", describer.array(array, str(value.dtype).partition(".")[2], str(value.device), grad)]


def _array(describer: Describer, value: np.ndarray, path: str) -> Any:
    if value.dtype == object:
        return ["objects", ["size", *value.shape], *describer.items(value.ravel(), path)]
    return ["array", describer.array(value)] if value.dtype.kind in NUMBERS else None


def _scalar(describer: Describer, value: np.generic, path: str) -> Any:
    return ["number", describer.array(np.asarray(value))] if value.dtype.kind in NUMBERS else None


def _random(describer: Describer, value: np.random.RandomState, path: str) -> Any:
    if value.get_state(legacy=False)["bit_generator"] != GENERATOR:
        return None
    _, *state = value.get_state(legacy=True)
    return ["random", *(describer(part, path) for part in state)]


_IN_PLACE: dict[type, Callable[[Describer, Any, str], Any]] = {
    float: lambda _, value, path: value if math.isfinite(value) else ["float", repr(value)],
    list: lambda describer, value, path: ["list", *describer.items(value, path)],
    tuple: lambda describer, value, path: ["tuple", *describer.items(value, path)],
    set: lambda describer, value, path: ["set", *describer.items(sorted(value, key=repr), path)],
    dict: _dict,
    OrderedDict: _dict,
    torch.Size: lambda _, value, path: ["size", *value],
    torch.dtype: lambda _, value, path: ["dtype", str(value).partition(".")[2]],
    torch.device: lambda _, value, path: ["device", str(value)],
}
_NODES: dict[type, Callable[[Describer, Any, str], Any]] = {
    Tensor: _tensor,
    np.ndarray: _array,
    np.generic: _scalar,
    np.random.RandomState: _random,
    Enum: lambda describer, value, path: ["member", describer._reference(type(value), path), value.name],
}


# ---------------------------------------------------------------------- classes that a pickle needs


@dataclass(frozen=True)
class Requirements:
    """Modules and qualified names of classes that a pickle needs, looked up before anything else is read."""

    owner: str
    classes: tuple[tuple[str, str], ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _look_up, (self.owner, self.classes)


def _look_up(owner: str, classes: Sequence[tuple[str, str]]) -> Requirements:
    for module, name in classes:
        try:
            attrgetter(name)(importlib.import_module(module))
        except (ImportError, AttributeError) as error:
            raise ImportError(
                f"this {owner} was saved with a net that needs the class {module}.{name}, which cannot be imported "
                f"here ({error}). Put the file that defines it on the path, under the same name, and open it again.",
                name=module,
            ) from error
    return Requirements(owner, tuple(classes))


def requirements(owner: str, user_objects: Iterable[Any]) -> Requirements | None:
    """Return the importable classes and functions among the user's objects of :func:`pack`; None if there are none."""
    things = [thing if isclass(thing) or isfunction(thing) else type(thing) for thing in user_objects]
    names = {(thing.__module__, thing.__qualname__) for thing in things if "<" not in thing.__qualname__}
    away = ALWAYS_THERE | _pickled_modules()
    classes = sorted(pair for pair in names if pair[0].partition(".")[0] not in away)
    return Requirements(owner, tuple(classes)) if classes else None


def _pickled_modules() -> set[str]:
    """Return the top-level modules whose code cloudpickle stores."""
    picklers = (sys.modules.get(name) for name in ("cloudpickle", "joblib.externals.cloudpickle"))
    by_value = (pickler.list_registry_pickle_by_value() for pickler in picklers if pickler)
    return {name.partition(".")[0] for names in by_value for name in names}
