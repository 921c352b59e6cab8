"""A fitted estimator's state as text and numpy arrays: one description for pickle, skops and safetensors alike.

Why not tensors: they pickle as bytes that remember their device, so that a model of a GPU does not open without one,
and that joblib can neither compress nor map into memory. Here every tensor becomes an array, and everything around it a
tree of names and numbers, in JSON: which class, which attributes, which array. What is shared stays shared, what can be
computed again (cached properties) stays behind. Arrays that come back memory-mapped are used where they are, without a
copy; all others answer to the bit. The tree is described in :class:`Describer`, and read again by
``_storage/restore.py``.

A class or a function is written by its name where it is among the known ones (``_storage/stored.py``). All others are
foreign: in a pickle they travel as they are, in a file without pickle they are names, for which the reader is handed
objects.

A pickled state begins with the names of the foreign classes. They are looked up before anything else is opened, so that
a model that is opened where its net's class is not known says which class that is.
"""

from __future__ import annotations

import copy
import importlib
import json
import math
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cached_property, partial
from inspect import getattr_static, isclass, isdatadescriptor, isfunction, ismethoddescriptor
from operator import attrgetter
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._runtime.devices import present_device

PACKAGE = __name__.partition(".")[0]
ALWAYS_THERE = {PACKAGE, "torch", "skorch", "builtins", "__main__"}
"""Packages whose classes are not looked up: a class of ``__main__`` may travel with the pickle."""
OWN_STATE = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__deepcopy__")
"""What a class defines that says itself how its instances are stored: they are more than their attributes."""
LIBRARIES = {PACKAGE, "torch", "skorch", "sklearn", "numpy", "scipy", "builtins"}
"""Packages whose methods a description never binds."""
NUMBERS = "biufcmMSU"
"""Kinds of numpy's data types whose bytes are their values."""
GENERATOR = "MT19937"
"""Generator of numpy's ``RandomState`` whose state is described; others are foreign."""
LAYERS = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in vars(nn).values() if isclass(kind)}
"""torch's own layers by name."""


@dataclass(frozen=True)
class Known:
    """Classes and functions that a description may name, and rules for the objects in it.

    Parameters
    ----------
    things : mapping of str to class or function
        Keyed by full name, see :func:`name_of`.
    attributes : mapping of type to callable
        Classes whose instances are stored by their attributes, even if they define their own pickling. The callable
        maps the name of an attribute to its annotation.
    partials : mapping of function to frozenset of str
        Functions that a ``functools.partial`` may call, with the keywords that it may give them.
    checks : mapping of type to callable
        Called with each restored object of this type; raises a ValueError if its parts do not fit together.
    """

    things: Mapping[str, Any]
    attributes: Mapping[type, Callable[[str], Any]] = field(default_factory=dict)
    partials: Mapping[Any, frozenset[str]] = field(default_factory=dict)
    checks: Mapping[type, Callable[[Any], None]] = field(default_factory=dict)

    def allows(self, call: partial[Any]) -> bool:
        """Whether a partial calls one of the functions for that, with plain keywords alone."""
        words = call.keywords.values()
        return (
            call.func in self.partials
            and not call.args
            and set(call.keywords) <= self.partials[call.func]
            and all(
                isinstance(one, bool | int | float) or (isinstance(one, str) and one.isidentifier()) for one in words
            )
        )

    def attributes_of(self, kind: type) -> Callable[[str], Any] | None:
        """Annotations for instances of a class or of a base class of it; None for all other classes."""
        return next((self.attributes[base] for base in kind.__mro__ if base in self.attributes), None)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as an array, with what an array does not say.

    Parameters
    ----------
    array : ndarray
    dtype : torch.dtype
    device : str
    requires_grad : bool or None
        None for a tensor that is not a module's parameter.
    """

    array: np.ndarray
    dtype: torch.dtype
    device: str
    requires_grad: bool | None

    @classmethod
    def of(cls, tensor: Tensor) -> StoredTensor:
        """A copy in the memory of the host, in the same order of axes: another order rounds in another way."""
        values = tensor.detach().cpu()
        if values.dtype == torch.bfloat16:  # numpy has none
            values = values.float()
        grad = tensor.requires_grad if isinstance(tensor, nn.Parameter) else None
        return cls(values.numpy().copy(order="K"), tensor.dtype, str(tensor.device), grad)

    def tensor(self) -> Tensor:
        """On its own device where there is one, else on the CPU.

        In torch's own memory, whose alignment decides how sums round; memory-mapped arrays are used where they are.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            found = torch.from_numpy(self.array)
        if not isinstance(self.array, np.memmap):
            found = found.clone()
        found = found.to(present_device(self.device), self.dtype)
        return found if self.requires_grad is None else nn.Parameter(found, requires_grad=self.requires_grad)


class Gap:
    """What stands for a tensor in a :class:`Skeleton`."""


@dataclass(frozen=True)
class Skeleton:
    """A module that says itself how it is copied, without its tensors; only a pickle can hold one.

    Parameters
    ----------
    module : nn.Module
        With a gap wherever it held a parameter or a buffer.
    gaps : tuple of Gap
        The same objects once more, so that they can be found.
    """

    module: nn.Module
    gaps: tuple[Gap, ...]

    def filled(self, tensors: Iterable[Any]) -> nn.Module:
        """The module with these tensors."""
        return copy.deepcopy(self.module, {id(gap): value for gap, value in zip(self.gaps, tensors, strict=True)})


@dataclass(frozen=True)
class Requirements:
    """Classes that have to be importable where the state is opened; looked up while it is opened.

    Parameters
    ----------
    owner : str
        Whose state it is, for the message.
    classes : tuple of (str, str)
        Module and qualified name of each.
    """

    owner: str
    classes: tuple[tuple[str, str], ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _look_up, (self.owner, self.classes)


def _look_up(owner: str, classes: Sequence[tuple[str, str]]) -> Requirements:
    """The requirements, if they are met.

    Raises
    ------
    ImportError
    """
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


def requirements(owner: str, nets: Iterable[Any]) -> Requirements | None:
    """The classes behind nets that are not the package's own, torch's or skorch's; None where there are none.

    Parameters
    ----------
    owner : str
    nets : iterable of modules, module classes or anything else
    """
    found = set()
    for net in nets:
        modules = net.modules() if isinstance(net, nn.Module) else [net] if isclass(net) else [type(net)]
        found |= {module if isclass(module) else type(module) for module in modules}
    away = ALWAYS_THERE | _travelling()
    names = {(kind.__module__, kind.__qualname__) for kind in found if kind.__module__.partition(".")[0] not in away}
    classes = tuple(sorted(pair for pair in names if "<locals>" not in pair[1]))
    return Requirements(owner, classes) if classes else None


def _travelling() -> set[str]:
    """Packages that cloudpickle was told to send along."""
    picklers = (sys.modules.get(name) for name in ("cloudpickle", "joblib.externals.cloudpickle"))
    return {name.partition(".")[0] for p in picklers if p for name in p.list_registry_pickle_by_value()}


def shadows(kind: type, name: str, *, is_foreign: bool) -> bool:
    """Return True if an instance attribute would replace a method or a property of its class.

    Parameters
    ----------
    kind : type
    name : str
    is_foreign : bool
        Whether the class is the user's own: the stored value of a cached property is no replacement there.

    Examples
    --------
    >>> shadows(nn.Linear, "forward", is_foreign=False), shadows(nn.Linear, "in_features", is_foreign=False)
    (True, False)
    """
    if not name.isidentifier() or name.startswith("__"):
        return True
    held = getattr_static(kind, name, None)
    if isinstance(held, cached_property) and is_foreign:
        return False
    return callable(held) or isdatadescriptor(held) or ismethoddescriptor(held)


def name_of(thing: Any) -> str:
    """The full name of a class or a function.

    Examples
    --------
    >>> name_of(nn.Linear)
    'torch.nn.modules.linear.Linear'
    """
    return f"{thing.__module__}.{thing.__qualname__}"


ONLY_LAYERS = Known(LAYERS)
"""Tensors, plain data and modules made of torch's own layers."""


def pack(
    value: Any,
    known: Known = ONLY_LAYERS,
    parts: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """The description of a structure of tensors.

    Parameters
    ----------
    value : anything
    known : Known
        What is written by its name.
    parts : callable, optional
        From an object to what is described in its place, or None for an object that is described as it is.

    Returns
    -------
    dict
        "tree", a str (JSON); "arrays", a list of arrays; "foreign", a list of objects that are kept as they are.

    Examples
    --------
    >>> import torch
    >>> from sklearn_laplace._storage.restore import unpack
    >>> stored = pack({"a": (torch.ones(2), "b")})
    >>> stored["arrays"], stored["foreign"]
    ([array([1., 1.], dtype=float32)], [])
    >>> unpack(stored)
    {'a': (tensor([1., 1.]), 'b')}
    """
    describer = Describer(known, parts)
    root = describer(value, "")
    tree = json.dumps({"nodes": describer.nodes, "root": root}, allow_nan=False, separators=(",", ":"))
    return {"tree": tree, "arrays": describer.arrays, "foreign": [thing for thing, _ in describer.foreign]}


class Describer:
    """Writes the tree: values in place, objects that may be shared as nodes that are referred to by number.

    None, booleans, integers, strings and finite floats are themselves; everything else is a list that begins with its
    kind. "float", "complex", "tuple", "size", "set", "dtype", "device", "slice", "known" (a name) and "foreign" (a
    number) stand in place, ["node", i] refers to ``nodes[i]``: a "list", "dict", "tensor", "array", "objects" (an array
    of them), "scalar", "data" (a data class, by its fields), "bare" (by its attributes), "module" (by those that a new
    module has not), "member" (of an
    enumeration), "partial", "method", "parts" or "skeleton".

    Parameters
    ----------
    known, parts
        As in :func:`pack`.
    """

    def __init__(self, known: Known, parts: Callable[[Any], Any] | None = None) -> None:
        self.known, self.parts = known, parts
        self.names = {id(thing): name for name, thing in known.things.items()}
        self.nodes: list[Any] = []
        self.arrays: list[np.ndarray] = []
        self.foreign: list[tuple[Any, str]] = []
        self._memo: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any, path: str = "") -> Any:
        """What stands for a value in the tree; the path is where it was found."""
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind in _IN_PLACE:
            return _IN_PLACE[kind](self, value, path)
        if self._knows(value):
            return ["known", self.names[id(value)]]
        if id(value) not in self._memo:
            place = len(self.nodes)
            self._memo[id(value)] = place, value  # the value too, or its identity could be given away
            self.nodes.append(None)
            self.nodes[place] = self._node(value, path) or self._kept(value, path)
        return ["node", self._memo[id(value)][0]]

    def _node(self, value: Any, path: str) -> Any:
        """A node of the tree, or None for what cannot be described."""
        if isclass(value):
            return None
        if (given := self.parts(value) if self.parts else None) is not None:
            return ["parts", self(type(value), path), self(given, path)]
        for kind, node in _NODES.items():
            if isinstance(value, kind):
                return node(self, value, path)
        if is_dataclass(value) and self._knows(type(value)):
            values = {field.name: getattr(value, field.name) for field in fields(value)}
            return ["data", self(type(value), path), self.attributes(values, path)]
        if (self.known.attributes_of(type(value)) or is_bare(type(value))) and not self.replaces_methods(value):
            return ["bare", self(type(value), path), self.attributes(vars(value), path)]
        return None

    def replaces_methods(self, value: Any) -> bool:
        """Whether an object has attributes that replace methods of its class, which a description must not hold."""
        kind = type(value)
        return any(shadows(kind, name, is_foreign=not self._knows(kind)) for name in vars(value))

    def _knows(self, thing: Any) -> bool:
        return id(thing) in self.names

    def _kept(self, thing: Any, path: str) -> Any:
        self.foreign.append((thing, path))
        return ["foreign", len(self.foreign) - 1]

    def array(self, values: np.ndarray) -> list[Any]:
        """The number of an array that is stored in C order, and its axes in that order."""
        if values.ndim and 0 in values.strides:
            values = values.copy()
        axes = sorted(range(values.ndim), key=lambda axis: -abs(values.strides[axis]))
        self.arrays.append(np.ascontiguousarray(values.transpose(axes)).reshape([values.shape[k] for k in axes]))
        return [len(self.arrays) - 1, axes]

    def items(self, values: Iterable[Any], path: str) -> list[Any]:
        """Each of several values."""
        return [self(value, f"{path}[{place}]") for place, value in enumerate(values)]

    def attributes(self, values: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Values by their names."""
        return {name: self(value, f"{path}.{name}".lstrip(".")) for name, value in values.items()}

    def pairs(self, values: Mapping[Any, Any], path: str) -> list[Any]:
        """Keys and values."""
        return [[self(key, path), self(value, f"{path}.{key}".lstrip("."))] for key, value in values.items()]


def has_own_state(kind: type, base: type) -> bool:
    """Whether a class says itself how its instances are stored, rather than its base or one of torch's layers."""
    said = [one for one in kind.__mro__ if one not in base.__mro__ and set(OWN_STATE) & set(vars(one))]
    definers = said + [one for one in kind.__mro__ if vars(one).get("__slots__")]
    return any(not _of_layers(one) or issubclass(one, nn.RNNBase) for one in definers)


def _of_layers(kind: type) -> bool:
    return issubclass(kind, nn.Module) and kind.__module__.startswith("torch.nn.modules.")


def is_bare(kind: type) -> bool:
    """Whether an object of this class is its attributes and nothing else."""
    return kind.__dictoffset__ != 0 and kind.__new__ is object.__new__ and not has_own_state(kind, object)


def _float(describer: Describer, value: float, path: str) -> Any:
    return value if math.isfinite(value) else ["float", repr(value)]


def _tensor(describer: Describer, value: Tensor, path: str) -> Any:
    stored = StoredTensor.of(value)
    dtype = str(stored.dtype).partition(".")[2]
    return ["tensor", *describer.array(stored.array), dtype, stored.device, stored.requires_grad]


def _array(describer: Describer, value: np.ndarray, path: str) -> Any:
    if value.dtype == object:
        return ["objects", list(value.shape), describer.items(value.ravel(), path)]
    return ["array", *describer.array(value)] if value.dtype.kind in NUMBERS else None


def _scalar(describer: Describer, value: np.generic, path: str) -> Any:
    return ["scalar", *describer.array(np.asarray(value))] if value.dtype.kind in NUMBERS else None


def _random(describer: Describer, value: np.random.RandomState, path: str) -> Any:
    state: Any = value.get_state(legacy=False)
    return ["random", describer(state, path)] if state["bit_generator"] == GENERATOR else None


def _list(describer: Describer, value: list[Any], path: str) -> Any:
    if type(value) is not list and not describer._knows(type(value)):
        return None
    return ["list", *_name_of_subclass(describer, value, list, path), describer.items(value, path)]


def _dict(describer: Describer, value: dict[Any, Any], path: str) -> Any:
    if type(value) not in (dict, OrderedDict):
        return None
    return ["dict", *_name_of_subclass(describer, value, dict, path), describer.pairs(value, path)]


def _name_of_subclass(describer: Describer, value: Any, kind: type, path: str) -> list[Any]:
    return [None if type(value) is kind else describer(type(value), path)]


def _module(describer: Describer, value: nn.Module, path: str) -> Any:
    if has_own_state(type(value), nn.Module) or describer.replaces_methods(value):
        own = [*value.parameters(), *value.buffers()]
        gaps = tuple(Gap() for _ in own)
        module = copy.deepcopy(value, {id(tensor): gap for tensor, gap in zip(own, gaps, strict=True)})
        return ["skeleton", describer._kept(Skeleton(module, gaps), path), describer.items(own, path)]
    fresh = vars(nn.Module())
    values = {name: held for name, held in vars(value).items() if name not in fresh or not _same(held, fresh[name])}
    return ["module", describer(type(value), path), describer.attributes(values, path)]


def _same(held: Any, fresh: Any) -> bool:
    plain = isinstance(fresh, bool | dict | set | None)
    return plain and type(held) is type(fresh) and (held == fresh if isinstance(fresh, bool) else not held)


def _partial(describer: Describer, value: partial[Any], path: str) -> Any:
    func = value.func
    if type(value) is not partial or (describer._knows(func) and not describer.known.allows(value)):
        return None
    args = describer.items(value.args, path)
    return ["partial", describer(func, path), args, describer.attributes(value.keywords, path)]


def own_method(kind: type, name: str, is_known: Callable[[Any], bool]) -> Any:
    """The function that a user's class, or a base class of the user's, defines under a name; None if there is none."""
    if name.startswith("__"):
        return None
    definer = next((one for one in kind.__mro__ if name in vars(one)), object)
    found = vars(definer).get(name)
    of_users = definer.__module__.partition(".")[0] not in LIBRARIES and not is_known(definer)
    return found if of_users and isfunction(found) else None


def _method(describer: Describer, value: MethodType, path: str) -> Any:
    name, kind = value.__func__.__name__, type(value.__self__)
    if own_method(kind, name, describer._knows) is not value.__func__:
        return None
    return ["method", describer(value.__self__, path), name]


_IN_PLACE: dict[type, Callable[[Describer, Any, str], Any]] = {
    float: _float,
    complex: lambda _, value, path: ["complex", repr(value)],
    tuple: lambda describer, value, path: ["tuple", describer.items(value, path)],
    torch.Size: lambda describer, value, path: ["size", list(value)],
    set: lambda describer, value, path: ["set", describer.items(sorted(value, key=repr), path)],
    slice: lambda describer, value, path: ["slice", describer.items((value.start, value.stop, value.step), path)],
    torch.dtype: lambda _, value, path: ["dtype", str(value).partition(".")[2]],
    torch.device: lambda _, value, path: ["device", str(value)],
}
_NODES: dict[type, Callable[[Describer, Any, str], Any]] = {
    Tensor: _tensor,
    np.ndarray: _array,
    np.generic: _scalar,
    np.random.RandomState: _random,
    list: _list,
    dict: _dict,
    nn.Module: _module,
    Enum: lambda describer, value, path: ["member", describer(type(value), path), value.name],
    partial: _partial,
    MethodType: _method,
}
