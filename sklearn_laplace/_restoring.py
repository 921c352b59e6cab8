"""Reading a described state again: what :func:`~sklearn_laplace._persistence.pack` has written.

Nothing is imported, called or opened by a name that the description holds: names are looked up among the known classes
and functions, objects are made without their ``__init__`` and given their attributes. What is not known, or not as it
should be, is refused by a :class:`StateError`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from inspect import getattr_static, isclass, isfunction
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import nn

from ._autograd import ordinary_tensors
from ._persistence import LAYERS, Skeleton, StoredTensor, present_device
from .errors import StateError

DAMAGED = "Write it again with the version of sklearn_laplace that has made it, or fit again."
PENDING = object()
"""A node that is being read."""
FLOATS = {"nan", "inf", "-inf"}
DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}


@ordinary_tensors()
def unpack(
    stored: Mapping[str, Any],
    known: Mapping[str, Any] = LAYERS,
    whole: Callable[[type, Any], Any] | None = None,
) -> Any:
    """The structure that was packed; tensors on the CPU where their device is missing.

    Parameters
    ----------
    stored : mapping
        From :func:`~sklearn_laplace._persistence.pack`.
    known : mapping of str to class or function
        What may be named.
    whole : callable, optional
        From a class and its parts to the object.

    Raises
    ------
    StateError
        For a name that is not known, or a description that is not one.

    Examples
    --------
    >>> unpack({"tree": '{"nodes": [["bare", ["known", "os.system"], {}]], "root": ["node", 0]}'})
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.StateError: the state names 'os.system', which is not among the classes that this \
version of sklearn_laplace opens. Write it again with the version of sklearn_laplace that has made it, or fit again.
    """
    with reading("the state"):
        tree = json.loads(stored["tree"])
        reader = Reader(tree["nodes"], stored.get("arrays", ()), stored.get("foreign", ()), known, whole)
        return reader(tree["root"])


@contextmanager
def reading(source: str) -> Iterator[None]:
    """What goes wrong with a description that is none is a :class:`StateError` that says where it came from."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise StateError(f"{source} is damaged: its tree is not JSON ({error}). {DAMAGED}") from error
    except StateError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, AssertionError) as error:
        raise StateError(f"{source} is damaged ({type(error).__name__}: {error}). {DAMAGED}") from error


class Reader:
    """Reads the tree that a :class:`~sklearn_laplace._persistence.Describer` has written.

    Parameters
    ----------
    nodes : list
    arrays : sequence of ndarray
    foreign : sequence
        What the numbers of foreign things stand for.
    known, whole
        As in :func:`unpack`.
    """

    def __init__(
        self,
        nodes: Sequence[Any],
        arrays: Sequence[np.ndarray],
        foreign: Sequence[Any],
        known: Mapping[str, Any],
        whole: Callable[[type, Any], Any] | None,
    ) -> None:
        self.nodes, self.arrays, self.foreign, self.known, self.whole = nodes, arrays, foreign, known, whole
        self._found: dict[int, Any] = {}
        self._place = -1

    def __call__(self, stored: Any) -> Any:
        """The value that an entry of the tree stands for."""
        if not isinstance(stored, list):
            return stored
        kind, *given = stored
        if kind not in READERS:
            raise StateError(f"the state holds something of the kind {kind!r}, which is not known here. {DAMAGED}")
        return READERS[kind](self, *given)

    def node(self, place: int) -> Any:
        """The value of a node, the same one each time."""
        if place not in self._found:
            self._found[place] = PENDING
            kind, *given = self.nodes[place]
            if kind in SHELLS:
                make, fill = SHELLS[kind]
                self._found[place], rest = make(self, *given)
                fill(self, self._found[place], rest)
            else:
                self._found[place] = self([kind, *given])
        if self._found[place] is PENDING:
            raise StateError(f"the state is damaged: its node {place} contains itself. {DAMAGED}")
        return self._found[place]

    def known_thing(self, name: str) -> Any:
        """A class or a function by its name."""
        if name not in self.known:
            raise StateError(
                f"the state names {name!r}, which is not among the classes that this version of sklearn_laplace opens. "
                f"{DAMAGED}"
            )
        return self.known[name]

    def kind(self, stored: Any, base: type = object) -> Any:
        """A class that is a subclass of another one."""
        found = self(stored)
        if not (isclass(found) and issubclass(found, base)):
            raise StateError(f"the state names {found!r} where a kind of {base.__name__} is needed. {DAMAGED}")
        return found

    def array(self, place: int, axes: list[int]) -> np.ndarray:
        """An array with its own order of axes."""
        found = self.arrays[place]
        return found.transpose(np.argsort(axes)) if axes else found

    def items(self, stored: Sequence[Any]) -> list[Any]:
        """Each of several values."""
        return [self(value) for value in stored]

    def attributes(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Values by their names."""
        return {name: self(value) for name, value in stored.items()}


def _tensor(reader: Reader, place: int, axes: list[int], dtype: str, device: str, grad: bool | None) -> Any:
    return StoredTensor(reader.array(place, axes), DTYPES[dtype], device, grad).tensor()


def _objects(reader: Reader, shape: list[int], items: list[Any]) -> Any:
    found = np.empty(len(items), dtype=object)
    for place, item in enumerate(items):
        found[place] = reader(item)
    return found.reshape(shape)


def _data(reader: Reader, kind: Any, values: dict[str, Any]) -> Any:
    found = reader.kind(kind)
    needed = {field.name for field in fields(found)} if is_dataclass(found) else set()
    if set(values) != needed or not needed <= set(values):
        raise StateError(
            f"the state holds a {found.__name__} of {sorted(values)}, and this version of sklearn_laplace needs "
            f"{sorted(needed)}. {DAMAGED}"
        )
    return found(**reader.attributes(values))


def _float(reader: Reader, text: str) -> float:
    if text not in FLOATS:
        raise StateError(f"the state holds {text!r} where nan, inf or -inf is needed. {DAMAGED}")
    return float(text)


def _random(reader: Reader, state: Any) -> np.random.RandomState:
    found = np.random.RandomState()
    found.set_state(reader(state))
    return found


def _partial(reader: Reader, func: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
    return partial(reader(func), *reader.items(args), **reader.attributes(keywords))


def _method(reader: Reader, owner: Any, name: str) -> Any:
    found = reader(owner)
    function = getattr_static(type(found), name)
    if not isfunction(function):
        raise StateError(f"the state names {name!r} as a method of {type(found).__name__}, which it is not. {DAMAGED}")
    return MethodType(function, found)


def _parts(reader: Reader, kind: Any, parts: Any) -> Any:
    assert reader.whole is not None
    return reader.whole(reader.kind(kind), reader(parts))


def _skeleton(reader: Reader, kept: Any, tensors: list[Any]) -> Any:
    found = reader(kept)
    assert isinstance(found, Skeleton)
    return found.filled(reader.items(tensors))


def _new_module(reader: Reader, kind: Any, values: Any) -> tuple[Any, Any]:
    found = object.__new__(reader.kind(kind, nn.Module))
    found.__dict__.update(vars(nn.Module()))
    return found, values


def _new_list(reader: Reader, kind: Any, items: Any) -> tuple[Any, Any]:
    return (list if kind is None else reader.kind(kind, list))(), items


def _new_dict(reader: Reader, kind: Any, pairs: Any) -> tuple[Any, Any]:
    return ({} if kind is None else reader.kind(kind, OrderedDict)()), pairs


def _new_bare(reader: Reader, kind: Any, values: Any) -> tuple[Any, Any]:
    return object.__new__(reader.kind(kind)), values


def _with_attributes(reader: Reader, found: Any, values: Any) -> None:
    found.__dict__.update(reader.attributes(values))


SHELLS: dict[str, tuple[Callable[..., tuple[Any, Any]], Callable[[Reader, Any, Any], None]]] = {
    "module": (_new_module, _with_attributes),
    "bare": (_new_bare, _with_attributes),
    "list": (_new_list, lambda reader, found, items: found.extend(reader.items(items))),
    "dict": (_new_dict, lambda reader, found, pairs: found.update({reader(k): reader(v) for k, v in pairs})),
}
"""Nodes that may contain themselves: how an empty one is made, and how it is filled."""
READERS: dict[str, Callable[..., Any]] = {
    "node": Reader.node,
    "known": Reader.known_thing,
    "foreign": lambda reader, place: reader.foreign[place],
    "tuple": lambda reader, items: tuple(reader.items(items)),
    "size": lambda reader, items: torch.Size(items),
    "set": lambda reader, items: set(reader.items(items)),
    "slice": lambda reader, items: slice(*reader.items(items)),
    "float": _float,
    "complex": lambda reader, text: complex(text),
    "dtype": lambda reader, name: DTYPES[name],
    "device": lambda reader, name: present_device(name),
    "tensor": _tensor,
    "array": Reader.array,
    "scalar": lambda reader, place, axes: reader.array(place, axes)[()],
    "objects": _objects,
    "data": _data,
    "member": lambda reader, kind, name: reader.kind(kind, Enum)[name],
    "random": _random,
    "partial": _partial,
    "method": _method,
    "parts": _parts,
    "skeleton": _skeleton,
}
