"""Read a description written by :mod:`sklearn_laplace._storage.describe`.

A description can come from anyone, so these rules hold:

- Nothing is imported. Tags are looked up in the closed list of ``_storage/registry.py``, names of the user's classes
  among those that the user hands in.
- Nothing is called: no node stands for a call, and objects are made without code of their class
  (``_storage/kinds.py``).
- Attributes are checked against their annotations before an object is made. All others hold plain data, tensors,
  modules and functions, see :meth:`Reader.is_plain`.
- The tree is bounded before it is read (``_storage/bounds.py``).

Anything else raises a :class:`StateError`. In a pickle or a skops file, the user's own objects are made by pickle or
skops, under their rules.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from inspect import isclass, isroutine
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from .._runtime.autograd import ordinary_tensors
from .._runtime.devices import present_device
from ..errors import StateError
from .bounds import REFERENCE, check_tree, checked_place
from .describe import GENERATOR
from .kinds import PLAIN, kind_of, shadows
from .registry import known as known_things

AGAIN = "Write it again with the version of sklearn_laplace that has made it, or fit again."
FLOATS = ("nan", "inf", "-inf")
DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
SCALARS = (bool, int, float, str)
KEYS = (*SCALARS, np.generic, type(None))
"""Types of dictionary keys and set members, cheap to hash; tuples of them are allowed as well."""
LARGEST_KEY = 2**63
"""Whole numbers from here on are no keys: thousands of them may have the same hash."""
MOST_KEYS = 5000
"""Keys of a dictionary that are no text."""
N_WORDS = 624
"""Length of the state of a Mersenne twister."""
MOST_EMPTY = 2**20
"""Largest product of the other sizes of an array without elements: it takes no bytes, and stands for any width."""
LONGEST = 200
"""Letters of a value in a message."""


def unpack(stored: Mapping[str, Any]) -> Any:
    """The value that was packed; tensors are on the CPU if their device is missing.

    Parameters
    ----------
    stored : mapping
        From :func:`~sklearn_laplace._storage.describe.pack`.

    Raises
    ------
    StateError
        For an unknown tag, or anything that is not a description.

    Examples
    --------
    >>> unpack({"tree": '{"objects": [["object", "os.system"]], "root": ["ref", 0], "headers": []}'})
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.StateError: the state names 'os.system', which is not among the classes that this \
version of sklearn_laplace opens. Write it again with the version of sklearn_laplace that has made it, or fit again.
    """
    with reading("the state"):
        return Reader.of(stored).value()


def parsed(text: str | bytes) -> dict[str, Any]:
    """Parse the tree; the constants NaN and Infinity are refused."""

    def refuse(name: str) -> NoReturn:
        raise StateError(f"the tree holds the constant {name}, which is not JSON. {AGAIN}")

    tree = json.loads(text, parse_constant=refuse)
    if not isinstance(tree, dict):
        raise StateError(f"the tree is a {type(tree).__name__}, and an object is needed. {AGAIN}")
    return tree


@contextmanager
def reading(source: str) -> Iterator[None]:
    """Turn errors raised by a malformed description into a :class:`StateError` that names the source."""
    try:
        yield
    except StateError:
        raise
    except json.JSONDecodeError as error:
        raise StateError(f"{source} is damaged: its tree is not JSON ({error}). {AGAIN}") from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, AssertionError) as error:
        raise StateError(f"{source} is damaged ({type(error).__name__}: {str(error)[:LONGEST]}). {AGAIN}") from error


class Reader:
    """Reads the tree that a :class:`~sklearn_laplace._storage.describe.Describer` has written.

    Parameters
    ----------
    tree : mapping
        "root", a node; "objects" and "headers", lists.
    arrays : sequence of ndarray
    own : sequence
        Classes and functions of the user; in a pickle, also other objects.
    known : mapping of str to class or function
    """

    def __init__(
        self,
        tree: Mapping[str, Any],
        arrays: Sequence[np.ndarray],
        own: Sequence[Any],
        known: Mapping[str, Any] | None = None,
    ) -> None:
        self.tree, self.arrays, self.own = tree, arrays, own
        self.known = known_things() if known is None else known
        self._own_things = {id(thing) for thing in own}
        self._values: list[Any] = []
        self._objects: list[Any] = []
        self._unused: set[tuple[str, int]] = set()

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Reader:
        """A reader of what :func:`~sklearn_laplace._storage.describe.pack` has returned."""
        return cls(parsed(stored["tree"]), stored.get("arrays", ()), stored.get("own", ()))

    @ordinary_tensors()
    def value(self) -> Any:
        """The value of the tree.

        Raises
        ------
        StateError
            Also for objects or arrays that no node refers to: part of the tree was removed.
        """
        root, objects, headers = (self.tree[name] for name in ("root", "objects", "headers"))
        check_tree(objects, root)
        self._values = [_array(*pair) for pair in zip(self.arrays, headers, strict=True)]
        self._unused = {("array", place) for place in range(len(headers))}
        self._unused |= {(REFERENCE, place) for place in range(len(objects))}
        for node in objects:
            self._objects.append(self._object(*node))
        found = self(root)
        if self._unused:
            counts = [sum(kind == one for one, _ in self._unused) for kind in (REFERENCE, "array")]
            raise StateError(f"the state has {counts[0]} objects and {counts[1]} arrays that nothing refers to. {AGAIN}")
        return found

    def __call__(self, node: Any) -> Any:
        """The value of a node."""
        if node is None or type(node) in SCALARS:
            return node
        kind, *given = node if isinstance(node, list) and node else [node]
        if not isinstance(kind, str) or kind not in _READERS:
            raise StateError(f"the state holds something of the kind {_short(kind)}, which is not known here. {AGAIN}")
        return _READERS[kind](self, *given)

    def items(self, nodes: Sequence[Any]) -> list[Any]:
        """The values of several nodes."""
        return [self(node) for node in nodes]

    def array(self, place: Any) -> Any:
        """An array or a tensor, the same one each time."""
        self._unused.discard(("array", checked_place(place, self._values)))
        return self._values[place]

    def shared(self, place: Any) -> Any:
        """An object, the same one each time."""
        self._unused.discard((REFERENCE, checked_place(place, self._objects)))
        return self._objects[place]

    def named(self, reference: Any) -> Any:
        """A known class or function by its tag, or one of the user's by its number."""
        if type(reference) is int:
            return self.own[checked_place(reference, self.own)]
        if reference not in self.known:
            raise StateError(
                f"the state names {_short(reference)}, which is not among the classes that this version of "
                f"sklearn_laplace opens. {AGAIN}"
            )
        return self.known[reference]

    def _object(self, kind: Any, reference: Any, *given: Any) -> Any:
        found = self.named(reference)
        made = kind_of(found) if kind == "object" and isclass(found) else None
        if made is None:
            raise StateError(f"the state holds an object of {_short(found)}, which no description holds. {AGAIN}")
        names = given[::2]
        for name in names:
            if shadows(found, name):
                raise StateError(
                    f"the state gives a {found.__name__} the attribute {_short(name)}, which no instance has. {AGAIN}"
                )
        values = dict(zip(names, self.items(given[1::2]), strict=True))
        if len(values) < len(names):
            raise StateError(f"the state gives a {found.__name__} an attribute twice. {AGAIN}")
        return made.make(self, found, values)

    def is_own(self, thing: Any) -> bool:
        """True for what the user handed in, and for instances of such classes."""
        return id(thing) in self._own_things or id(type(thing)) in self._own_things

    def is_plain(self, value: Any) -> bool:
        """True for numbers, text, tensors, modules, functions, containers of these, and objects of the user's."""
        if isinstance(value, tuple | list | set):
            return all(map(self.is_plain, value))
        if isinstance(value, dict):
            return all(map(self.is_plain, value.values()))
        if isinstance(value, np.ndarray):
            return value.dtype != object or all(map(self.is_plain, value.flat))
        if isclass(value):
            return issubclass(value, nn.Module) or self.is_own(value)
        return value is None or isroutine(value) or isinstance(value, PLAIN) or self.is_own(value)

    def keys(self, nodes: Sequence[Any]) -> list[Any]:
        """Keys of a dictionary or members of a set; other keys than text may all have the same hash."""
        found = self.items(nodes)
        for key in found:
            if not _is_key(key):
                raise StateError(f"the state holds a {type(key).__name__} as a key. {AGAIN}")
        if sum(type(key) is not str for key in found) > MOST_KEYS:
            raise StateError(f"the state holds more than {MOST_KEYS} keys that are no text. {AGAIN}")
        return found


def _short(value: object) -> str:
    """The value as text for an error message, shortened; no code of the user's classes runs."""
    is_data = value is None or isclass(value) or type(value) in (*SCALARS, list, tuple, dict)
    text = repr(value) if is_data else f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _is_key(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_key, value))
    number = value.item() if isinstance(value, np.generic) else value
    return isinstance(number, KEYS) and not (isinstance(number, int) and abs(number) >= LARGEST_KEY)


def _array(found: np.ndarray, header: list[Any]) -> Any:
    """An array in its own order of axes, or the tensor of it."""
    axes, *of_tensor = header
    if not isinstance(found, np.ndarray) or found.dtype.hasobject or sorted(axes) != list(range(found.ndim)):
        raise StateError(f"the state holds an array of other axes than {_short(axes)}, or of objects. {AGAIN}")
    if not found.size and math.prod(size for size in found.shape if size) > MOST_EMPTY:
        raise StateError(f"the state holds an empty array of shape {_short(found.shape)}. {AGAIN}")
    found = found.transpose(np.argsort(axes)) if axes else found
    return _tensor(found, *of_tensor) if of_tensor else found


def _tensor(array: np.ndarray, dtype: str, device: str, grad: bool | None) -> Tensor:
    """A tensor on its own device if it is present, else on the CPU.

    It is in torch's own memory, whose alignment decides how sums round. Memory-mapped arrays are used where they are.
    """
    if not isinstance(grad, bool | None):
        raise StateError(f"the state holds {_short(grad)} where True, False or null is needed. {AGAIN}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        found = torch.from_numpy(array)
    wanted = DTYPES[dtype]
    if wanted != found.dtype and (wanted, found.dtype) != (torch.bfloat16, torch.float32):
        raise StateError(f"the state holds an array of the data type {array.dtype} as a tensor of {dtype}. {AGAIN}")
    if not isinstance(array, np.memmap):
        found = found.clone()
    found = found.to(present_device(device), wanted)
    return found if grad is None else nn.Parameter(found, requires_grad=grad)


def _objects(reader: Reader, shape: Any, *items: Any) -> np.ndarray:
    found = np.empty(len(items), dtype=object)
    for place, item in enumerate(items):
        found[place] = reader(item)
    return found.reshape(reader(shape))


def _scalar(reader: Reader, place: Any) -> Any:
    found = reader.array(place)
    if not isinstance(found, np.ndarray) or found.ndim:
        raise StateError(f"the state holds {_short(found)} where one number is needed. {AGAIN}")
    return found[()]


def _float(reader: Reader, text: Any) -> float:
    if text not in FLOATS:
        raise StateError(f"the state holds {_short(text)} where nan, inf or -inf is needed. {AGAIN}")
    return float(text)


def _size(reader: Reader, *items: Any) -> torch.Size:
    if not all(type(item) is int and item >= 0 for item in items):
        raise StateError(f"the state holds {_short(items)} where a shape is needed. {AGAIN}")
    return torch.Size(items)


def _member(reader: Reader, reference: Any, name: Any) -> Any:
    kind = reader.named(reference)
    if not (isclass(kind) and issubclass(kind, Enum)):
        raise StateError(f"the state names {_short(kind)} where an enumeration is needed. {AGAIN}")
    return kind[name]


def _random(reader: Reader, *given: Any) -> np.random.RandomState:
    """The generator of a state; numpy itself does not check the position, and reads out of bounds."""
    words, place, has_gauss, gauss = reader.items(given)
    numbers = type(place) is int and type(has_gauss) is int and type(gauss) is float
    if not numbers or np.shape(words) != (N_WORDS,) or not 0 <= place <= N_WORDS:
        raise StateError(f"the state holds a random generator at position {_short(place)}, which none has. {AGAIN}")
    found = np.random.RandomState()
    found.set_state((GENERATOR, words, place, has_gauss, gauss))
    return found


def _dict(reader: Reader, *given: Any) -> dict[Any, Any]:
    return dict(zip(reader.keys(given[::2]), reader.items(given[1::2]), strict=True))


_READERS: dict[str, Callable[..., Any]] = {
    REFERENCE: Reader.shared,
    "named": Reader.named,
    "list": lambda reader, *nodes: reader.items(nodes),
    "tuple": lambda reader, *nodes: tuple(reader.items(nodes)),
    "set": lambda reader, *nodes: set(reader.keys(nodes)),
    "size": _size,
    "dict": _dict,
    "float": _float,
    "dtype": lambda reader, name: DTYPES[name],
    "device": lambda reader, name: present_device(name),
    "array": Reader.array,
    "scalar": _scalar,
    "objects": _objects,
    "member": _member,
    "random": _random,
}
