"""Read a description written by :func:`~sklearn_laplace._storage.describe.pack`.

A description can come from anyone, so these rules hold:

- Nothing is imported. Names are looked up among the known classes and functions.
- No code of a class runs: objects are created without ``__init__`` and given attributes. A data class of this package
  is the exception; its generated ``__init__`` only stores the fields.
- An attribute never replaces a method or a property of its class, and has no name with two leading underscores.
- Fields of data classes and attributes of nets are checked against their annotations before an object is made. All
  other attributes hold plain data, tensors and modules, see :meth:`Reader.is_plain`.
- A ``functools.partial`` calls a function from a closed list or one of the user's own. A bound method is one that the
  user's own class defines.
- The tree is bounded before it is read (``_storage/bounds.py``), and each array is used once.

Anything else raises a :class:`StateError`. In a pickle or a skops file, objects outside the description are created by
pickle or skops, under their own rules.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from inspect import isbuiltin, isclass, isfunction
from types import MethodType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from .._runtime.autograd import ordinary_tensors
from .._runtime.devices import present_device
from ..errors import StateError
from .annotations import conforms, field_types
from .bounds import check_tree
from .describe import GENERATOR, ONLY_LAYERS, Known, Skeleton, StoredTensor, has_own_state, is_bare, own_method, shadows

DAMAGED = "Write it again with the version of sklearn_laplace that has made it, or fit again."
PENDING = object()
"""A node that is being read."""
FLOATS = {"nan", "inf", "-inf"}
DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
SCALARS = (bool, int, float, str)
PLAIN = (*SCALARS, complex, slice, Tensor, nn.Module, torch.dtype, torch.device, np.generic, np.random.RandomState)
"""Types of plain values; containers of them are plain as well."""
KEYS = (*SCALARS, torch.dtype, torch.device, type(None))
"""Types of dictionary keys and set members, cheap to hash; tuples of them are allowed as well."""
LARGEST_KEY = 2**63
"""Whole numbers from here on are no keys: thousands of them may have the same hash."""
MOST_KEYS = 5000
"""Keys of a dictionary that are no text."""
MODULE = {
    "training": bool,
    "_parameters": dict[str, nn.Parameter | None],
    "_buffers": dict[str, Tensor | None],
    "_modules": dict[str, nn.Module | None],
    "_non_persistent_buffers_set": set[str],
    "_is_full_backward_hook": bool | None,
}
"""Annotations of torch's own attributes of a module; its other attributes are hooks."""
HOOKS = frozenset(vars(nn.Module())) - set(MODULE)
Whole = Callable[["Reader", type, Any], Any]
"""From a class and its parts to the object; the reader checks the types of the parts."""
N_WORDS = 624
"""Of the state of a Mersenne twister."""
SIZES = -16, 2**24
"""Range of whole numbers in torch's layers and the built-in nets: axes may count from the end."""
POSITIVE = ("num_heads", "groups", "num_groups")
"""Sizes that torch divides by."""
MOST_EMPTY = 2**20
"""Largest product of the other sizes of an array without elements: it takes no bytes, and stands for any width."""
LONGEST = 200
"""Letters of a value in a message."""


def unpack(
    stored: Mapping[str, Any],
    known: Known = ONLY_LAYERS,
) -> Any:
    """The structure that was packed; tensors on the CPU where their device is missing.

    Parameters
    ----------
    stored : mapping
        From :func:`~sklearn_laplace._storage.describe.pack`.
    known : Known
        What may be named.

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
        return Reader.of(stored, known).value()


def parsed(text: str | bytes) -> dict[str, Any]:
    """Parse the tree; the constants NaN and Infinity are refused."""

    def refuse(name: str) -> NoReturn:
        raise StateError(f"the tree holds the constant {name}, which is not JSON. {DAMAGED}")

    tree = json.loads(text, parse_constant=refuse)
    if not isinstance(tree, dict):
        raise StateError(f"the tree is a {type(tree).__name__}, and an object is needed. {DAMAGED}")
    return tree


@contextmanager
def reading(source: str) -> Iterator[None]:
    """Turn errors raised by a malformed description into a :class:`StateError` that names the source."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise StateError(f"{source} is damaged: its tree is not JSON ({error}). {DAMAGED}") from error
    except StateError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, AssertionError) as error:
        raise StateError(f"{source} is damaged ({type(error).__name__}: {str(error)[:LONGEST]}). {DAMAGED}") from error


class Reader:
    """Reads the tree that a :class:`~sklearn_laplace._storage.describe.Describer` has written.

    Parameters
    ----------
    tree : mapping
        "nodes", a list, and "root", an entry.
    arrays : sequence of ndarray
    foreign : sequence
        What the numbers of foreign things stand for.
    known : Known
    whole : callable, optional
        From the reader, a class and its parts to the object.
    runs_foreign : bool
        Whether code of the user's classes may run, as in a pickle: that of containers and of hashes of keys.
    """

    def __init__(
        self,
        tree: Mapping[str, Any],
        arrays: Sequence[np.ndarray],
        foreign: Sequence[Any],
        known: Known,
        whole: Whole | None = None,
        *,
        runs_foreign: bool = True,
    ) -> None:
        self.tree, self.nodes, self.arrays, self.foreign = tree, tree["nodes"], arrays, foreign
        self.known, self.whole, self.runs_foreign = known, whole, runs_foreign
        self._known_things = {id(thing) for thing in known.things.values()}
        self._given = {id(thing) for thing in foreign}
        self._found: dict[int, Any] = {}
        self._used: set[int] = set()

    @classmethod
    def of(cls, stored: Mapping[str, Any], known: Known, whole: Whole | None = None) -> Reader:
        """A reader of what :func:`~sklearn_laplace._storage.describe.pack` has returned."""
        return cls(parsed(stored["tree"]), stored.get("arrays", ()), stored.get("foreign", ()), known, whole)

    @ordinary_tensors()
    def value(self) -> Any:
        """What the tree stands for."""
        check_tree(self.nodes, self.tree["root"])
        return self(self.tree["root"])

    def check_complete(self) -> None:
        """Refuse a tree with nodes or arrays that nothing refers to: part of it was removed."""
        unused = len(self.nodes) - len(self._found), len(self.arrays) - len(self._used)
        if any(unused):
            raise StateError(
                f"the state has {unused[0]} nodes and {unused[1]} arrays that nothing refers to. {DAMAGED}"
            )

    def __call__(self, stored: Any) -> Any:
        """The value that an entry of the tree stands for."""
        if stored is None or type(stored) in SCALARS:
            return stored
        if not isinstance(stored, list) or not stored or stored[0] not in READERS:
            kind = stored[0] if isinstance(stored, list) and stored else stored
            raise StateError(
                f"the state holds something of the kind {_short(kind)}, which is not known here. {DAMAGED}"
            )
        kind, *given = stored
        return READERS[kind](self, *given)

    def node(self, place: int) -> Any:
        """The value of a node, the same one each time."""
        if _index(place, self.nodes) not in self._found:
            kind, *given = self.nodes[place]
            if kind == "method":
                self(given[0])  # the owner may hold it, and make it before it is made here
                if place in self._found:
                    return self._found[place]
            self._found[place] = PENDING
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
        if name not in self.known.things:
            raise StateError(
                f"the state names {_short(name)}, which is not among the classes that this version of sklearn_laplace "
                f"opens. {DAMAGED}"
            )
        return self.known.things[name]

    def kind(self, stored: Any, base: type = object) -> Any:
        """A class that is a subclass of another one."""
        found = self(stored)
        if not (isclass(found) and issubclass(found, base)):
            raise StateError(f"the state names {_short(found)} where a kind of {base.__name__} is needed. {DAMAGED}")
        return found

    def is_known(self, thing: Any) -> bool:
        """Whether a class or a function is among the known ones."""
        return id(thing) in self._known_things

    def is_foreign(self, value: Any) -> bool:
        """Whether a value or its class was handed in by the user."""
        return id(value) in self._given or id(type(value)) in self._given

    def is_plain(self, value: Any) -> bool:
        """Whether a value is plain: numbers, text, tensors, modules, containers of these, or an object of the user's.

        Functions, classes of modules, bound methods and partials are plain as well: all of them are restricted where
        they are read.
        """
        if isinstance(value, tuple | list | set):
            return all(map(self.is_plain, value))
        if isinstance(value, dict):
            return all(map(self.is_plain, value.values()))
        if isinstance(value, np.ndarray):
            return value.dtype != object or all(map(self.is_plain, value.flat))
        if isclass(value):
            return issubclass(value, nn.Module) or self.is_foreign(value)
        is_setter = isfunction(value) and self.is_known(value) and value.__module__.startswith("skorch")
        callable_data = isinstance(value, partial | MethodType) or isbuiltin(value)
        callable_data = callable_data or (isfunction(value) and not is_setter)
        return value is None or callable_data or isinstance(value, PLAIN) or self.is_foreign(value)

    def check_type(self, owner: str, name: str, value: Any, annotation: Any) -> None:
        """Raise a StateError if a value does not have the annotated type."""
        if not conforms(value, annotation, self.is_plain):
            wanted = "plain data" if annotation is Any else getattr(annotation, "__name__", str(annotation))
            raise StateError(
                f"the state holds a {type(value).__name__} as {_short(name)} of {owner}; {wanted} is needed. {DAMAGED}"
            )

    def check(self, value: Any) -> None:
        """Run the checks of a restored object."""
        for kind, check in self.known.checks.items():
            if isinstance(value, kind):
                check(value)

    def array(self, place: int, axes: list[int]) -> np.ndarray:
        """An array with its own order of axes."""
        found = self.arrays[_index(place, self.arrays)]
        if place in self._used or not isinstance(found, np.ndarray) or found.dtype.hasobject:
            raise StateError(f"the state uses array {place} twice, or it is no array of numbers. {DAMAGED}")
        self._used.add(place)
        if sorted(axes) != list(range(found.ndim)):
            raise StateError(f"the state gives array {place}, of {found.ndim} axes, the axes {_short(axes)}. {DAMAGED}")
        if not found.size and math.prod(size for size in found.shape if size) > MOST_EMPTY:
            raise StateError(f"the state holds an empty array of shape {_short(found.shape)}. {DAMAGED}")
        return found.transpose(np.argsort(axes)) if axes else found

    def items(self, stored: Sequence[Any]) -> list[Any]:
        """Each of several values."""
        return [self(value) for value in stored]

    def attributes(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Values by their names."""
        return {name: self(value) for name, value in stored.items()}

    def key(self, stored: Any) -> Any:
        """A key of a dict or a member of a set."""
        found = self(stored)
        is_own = self.is_foreign(found) if self.runs_foreign else id(found) in self._given
        if not (_is_key(found) or is_own):
            raise StateError(f"the state holds a {type(found).__name__} as a key. {DAMAGED}")
        return found


def _short(value: object) -> str:
    """The value as text for an error message, shortened."""
    is_data = value is None or isclass(value) or type(value) in (*SCALARS, list, tuple, dict, torch.Size)
    text = repr(value) if is_data else f"a {type(value).__name__}"  # no code of the user's classes runs
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _index(place: Any, values: Sequence[Any]) -> int:
    if type(place) is not int or not 0 <= place < len(values):
        raise StateError(f"the state refers to number {_short(place)} of {len(values)}. {DAMAGED}")
    return place


def _is_key(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_key, value))
    return isinstance(value, KEYS) and not (isinstance(value, int) and abs(value) >= LARGEST_KEY)


def _tensor(reader: Reader, place: int, axes: list[int], dtype: str, device: str, grad: bool | None) -> Any:
    if not isinstance(grad, bool | None):
        raise StateError(f"the state holds {_short(grad)} where True, False or null is needed. {DAMAGED}")
    return StoredTensor(reader.array(place, axes), DTYPES[dtype], device, grad).tensor()


def _objects(reader: Reader, shape: list[int], items: list[Any]) -> Any:
    if math.prod(shape) != len(items) or min(shape, default=0) < 0:
        raise StateError(f"the state holds {len(items)} objects in an array of shape {_short(shape)}. {DAMAGED}")
    found = np.empty(len(items), dtype=object)
    for place, item in enumerate(items):
        found[place] = reader(item)
    return found.reshape(shape)


def _scalar(reader: Reader, place: int, axes: list[int]) -> Any:
    found = reader.array(place, axes)
    if found.ndim:
        raise StateError(f"the state holds an array of shape {found.shape} where one number is needed. {DAMAGED}")
    return found[()]


def _data(reader: Reader, kind: Any, values: dict[str, Any]) -> Any:
    found = reader.kind(kind)
    is_data = is_dataclass(found) and reader.is_known(found)
    needed = {field.name for field in fields(found)} if is_data else set()
    if not is_data or set(values) != needed:
        raise StateError(
            f"the state holds a {found.__name__} of {_short(sorted(values))}, and this version of sklearn_laplace "
            f"needs {sorted(needed)}. {DAMAGED}"
        )
    held, types = reader.attributes(values), field_types(found)
    for name, value in held.items():
        reader.check_type(found.__name__, name, value, types[name])
    return found(**held)


def _float(reader: Reader, text: str) -> float:
    if text not in FLOATS:
        raise StateError(f"the state holds {_short(text)} where nan, inf or -inf is needed. {DAMAGED}")
    return float(text)


def _complex(reader: Reader, text: Any) -> complex:
    if not isinstance(text, str):
        raise StateError(f"the state holds {_short(text)} where the text of a complex number is needed. {DAMAGED}")
    return complex(text)


def _size(reader: Reader, items: list[int]) -> torch.Size:
    if not all(type(item) is int and item >= 0 for item in items):
        raise StateError(f"the state holds {_short(items)} where a shape is needed. {DAMAGED}")
    return torch.Size(items)


def _random(reader: Reader, state: Any) -> np.random.RandomState:
    """The generator of a state; numpy itself does not check the position, and reads out of bounds."""
    given = reader(state)
    reader.check_type("RandomState", "state", given, dict[str, object])
    reader.check_type("RandomState", "state", given["state"], dict[str, int | np.ndarray])
    key, place = given["state"]["key"], given["state"]["pos"]
    if given["bit_generator"] != GENERATOR or np.shape(key) != (N_WORDS,) or not 0 <= place <= N_WORDS:
        raise StateError(
            f"the state holds a random generator at position {_short(place)}, which it cannot have. {DAMAGED}"
        )
    found = np.random.RandomState()
    found.set_state(given)
    return found


def _partial(reader: Reader, func: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
    called, given, named = reader(func), reader.items(args), reader.attributes(keywords)
    plain = callable(called) and reader.is_plain(given) and reader.is_plain(named)
    found = partial(called, *given, **named) if plain else None
    if found is None or not (reader.known.allows(found) if reader.is_known(called) else reader.is_foreign(called)):
        raise StateError(f"the state holds a partial of {_short(called)}, which no description holds. {DAMAGED}")
    return found


def _method(reader: Reader, owner: Any, name: Any) -> Any:
    found = reader(owner)
    kind = type(found)
    function = own_method(kind, name, reader.is_known) if isinstance(name, str) and not reader.is_known(kind) else None
    if function is None:
        raise StateError(f"the state names {_short(name)} as a method of {kind.__name__}, which it is not. {DAMAGED}")
    return MethodType(function, found)


def _parts(reader: Reader, kind: Any, parts: Any) -> Any:
    if reader.whole is None:
        raise StateError(f"the state holds an estimator where none is expected. {DAMAGED}")
    return reader.whole(reader, reader.kind(kind), reader(parts))


def _skeleton(reader: Reader, kept: Any, tensors: list[Any]) -> Any:
    found = reader(kept)
    if not isinstance(found, Skeleton):
        raise StateError(f"the state holds a {type(found).__name__} where a module is needed. {DAMAGED}")
    return found.filled(reader.items(tensors))


def _new_module(reader: Reader, kind: Any, values: Any) -> tuple[Any, Any]:
    wanted = reader.kind(kind, nn.Module)
    if has_own_state(wanted, nn.Module):
        raise StateError(f"the state holds the attributes of a {wanted.__name__}, which is more than these. {DAMAGED}")
    found = object.__new__(wanted)
    found.__dict__.update(vars(nn.Module()))
    return found, values


def _new_list(reader: Reader, kind: Any, items: Any) -> tuple[Any, Any]:
    return _container(reader, kind, list)(), items


def _new_dict(reader: Reader, kind: Any, pairs: Any) -> tuple[Any, Any]:
    return ({} if kind is None else _container(reader, kind, OrderedDict)()), pairs


def _container(reader: Reader, kind: Any, base: type) -> Any:
    """A class of lists or dictionaries; one of the user's only where its code may run."""
    found = base if kind is None else reader.kind(kind, base)
    if found is not base and not (reader.is_known(found) or reader.runs_foreign):
        raise StateError(f"the state holds a {found.__name__}, whose code would run. {DAMAGED}")
    return found


def _new_bare(reader: Reader, kind: Any, values: Any) -> tuple[Any, Any]:
    found = reader.kind(kind)
    is_more = issubclass(found, nn.Module) or (is_dataclass(found) and reader.is_known(found))
    if is_more or not (reader.known.attributes_of(found) or is_bare(found)):
        raise StateError(f"the state holds the attributes of a {found.__name__}, which is more than these. {DAMAGED}")
    return object.__new__(found), values


def _named(reader: Reader, found: Any, values: Mapping[str, Any]) -> None:
    """Refuse attribute names that belong to methods or properties of the class."""
    kind = type(found)
    for name in values:
        if shadows(kind, name, is_foreign=not reader.is_known(kind)):
            raise StateError(
                f"the state gives a {kind.__name__} the attribute {_short(name)}, which no instance has. {DAMAGED}"
            )


def _with_attributes(reader: Reader, found: Any, values: Any) -> None:
    _named(reader, found, values)
    kind = type(found)
    annotation_of = reader.known.attributes_of(kind) or (lambda name: Any)
    for name, value in reader.attributes(values).items():
        if reader.is_known(kind) or reader.known.attributes_of(kind):
            reader.check_type(kind.__name__, name, value, annotation_of(name))
        found.__dict__[name] = value
    reader.check(found)


def _check_sizes(kind: type, name: str, value: Any) -> None:
    """Refuse whole numbers that are no sizes: torch does not check all of them before it allocates or indexes."""
    if isinstance(value, tuple | list):
        for one in value:
            _check_sizes(kind, name, one)
    least = 1 if name in POSITIVE else SIZES[0]
    if type(value) is int and not least <= value <= SIZES[1]:
        raise StateError(f"the state gives a {kind.__name__} the {_short(name)} {_short(value)}. {DAMAGED}")


def _as_module(reader: Reader, found: Any, values: Any) -> None:
    _named(reader, found, values)
    kind, held = type(found), reader.attributes(values)
    for name, value in held.items():
        if name in HOOKS:
            hooks = value.values() if isinstance(value, dict) else [value]
            if not all(isinstance(one, bool | None | MethodType | partial) or reader.is_foreign(one) for one in hooks):
                raise StateError(f"the state gives a {kind.__name__} hooks that are not the user's own. {DAMAGED}")
        elif name in MODULE or reader.is_known(kind):
            reader.check_type(kind.__name__, name, value, MODULE.get(name, Any))
            _check_sizes(kind, name, value)
        found.__dict__[name] = value
    parts = {name for group in ("_parameters", "_buffers", "_modules") for name in found.__dict__[group]}
    if replaced := parts & set(held):
        raise StateError(
            f"the state gives a {kind.__name__} the attributes {_short(sorted(replaced))} twice. {DAMAGED}"
        )
    reader.check(found)


def _keys(reader: Reader, stored: Sequence[Any]) -> list[Any]:
    """Keys of a dictionary or members of a set; other keys than text may all have the same hash."""
    found = [reader.key(one) for one in stored]
    if sum(type(key) is not str for key in found) > MOST_KEYS:
        raise StateError(f"the state holds more than {MOST_KEYS} keys that are no text. {DAMAGED}")
    return found


def _with_pairs(reader: Reader, found: Any, pairs: Any) -> None:
    found.update(zip(_keys(reader, [key for key, _ in pairs]), [reader(value) for _, value in pairs], strict=True))


SHELLS: dict[str, tuple[Callable[..., tuple[Any, Any]], Callable[[Reader, Any, Any], None]]] = {
    "module": (_new_module, _as_module),
    "bare": (_new_bare, _with_attributes),
    "list": (_new_list, lambda reader, found, items: found.extend(reader.items(items))),
    "dict": (_new_dict, _with_pairs),
}
"""Nodes that may contain themselves: how an empty one is made, and how it is filled."""
READERS: dict[str, Callable[..., Any]] = {
    "node": Reader.node,
    "known": Reader.known_thing,
    "foreign": lambda reader, place: reader.foreign[_index(place, reader.foreign)],
    "tuple": lambda reader, items: tuple(reader.items(items)),
    "size": _size,
    "set": lambda reader, items: set(_keys(reader, items)),
    "slice": lambda reader, items: slice(*reader.items(items)),
    "float": _float,
    "complex": _complex,
    "dtype": lambda reader, name: DTYPES[name],
    "device": lambda reader, name: present_device(name),
    "tensor": _tensor,
    "array": Reader.array,
    "scalar": _scalar,
    "objects": _objects,
    "data": _data,
    "member": lambda reader, kind, name: reader.kind(kind, Enum)[name],
    "random": _random,
    "partial": _partial,
    "method": _method,
    "parts": _parts,
    "skeleton": _skeleton,
}
