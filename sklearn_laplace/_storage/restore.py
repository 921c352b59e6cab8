"""Read a description written by :mod:`sklearn_laplace._storage.describe`.

A description can come from an untrusted source, so these rules hold:

- Nothing is imported. Tags are looked up in the closed list of ``_storage/registry.py``, and names of the user's
  classes among the classes that the user passes.
- Nothing is called: no node stands for a call, and objects are made without executing code of their classes
  (``_storage/kinds.py``).
- Annotated attributes are checked before an object is made. All other attributes may only hold plain data, tensors,
  modules and functions (:meth:`Reader.is_plain`).
- An object refers only to objects that precede it.

Anything else raises a :class:`StateError`. Numbers, shapes and the cost of reading are not checked.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from enum import EnumType
from inspect import isclass, isroutine
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import StateError
from ..laplace.torch_state import ordinary_tensors, present_device
from .describe import GENERATOR, REFERENCE
from .kinds import PLAIN, kind_of, shadows
from .registry import known as known_things

AGAIN = "Save it again with the version of sklearn_laplace that made it, or fit again."
OF_TREE = frozenset({"root", "objects", "headers"})
"""Keys of a tree; the tree of a file has two more keys."""
FLOATS = {text: float(text) for text in ("nan", "inf", "-inf")}
DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
SCALARS = (bool, int, float, str)
KEYS = (*SCALARS, np.generic, type(None))
"""Types of dictionary keys and set members; tuples of them are allowed as well. Others may define their own hash."""
N_WORDS = 624
"""Length of the state of a Mersenne twister."""


def parsed(text: str | bytes, keys: Set[str]) -> dict[str, Any]:
    """Return a tree parsed from JSON; ``StateError`` unless it has exactly ``keys``, without NaN and Infinity."""

    def refuse(name: str) -> NoReturn:
        raise StateError(f"the tree holds the constant {name}, which is not JSON.")

    tree = json.loads(text, parse_constant=refuse)
    if not isinstance(tree, dict):
        raise StateError(f"the tree is a {type(tree).__name__}, and an object is needed.")
    if missing := keys - set(tree):
        raise StateError(f"its tree lacks {sorted(missing)}.")
    if unknown := set(tree) - keys:
        raise StateError(f"its tree has {sorted(unknown)!s:.200}, which is unknown.")
    return tree


@contextmanager
def reading(source: str) -> Iterator[None]:
    """Turn errors raised by a malformed description into a :class:`StateError` with advice."""
    try:
        yield
    except StateError as error:
        raise StateError(f"{error} {AGAIN}") from error.__cause__
    except json.JSONDecodeError as error:
        raise StateError(f"{source} is damaged: its tree is not JSON ({error}). {AGAIN}") from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, AssertionError) as error:
        raise StateError(f"{source} is damaged ({type(error).__name__}: {error!s:.200}). {AGAIN}") from error


class Reader:
    """Reader of a tree from a :class:`Describer`.

    ``user_objects`` are classes and functions of the user; in a pickle, they also include other objects.
    """

    def __init__(
        self,
        tree: Mapping[str, Any],
        arrays: Sequence[np.ndarray],
        user_objects: Sequence[Any],
        known: Mapping[str, Any] | None = None,
    ) -> None:
        self.tree, self.arrays = tree, arrays
        self.known = known_things() if known is None else known
        self._parts: dict[str, list[Any]] = {"array": [], REFERENCE: [], "own": list(user_objects)}
        self._own_things = {id(thing) for thing in user_objects}

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        return cls(parsed(stored["tree"], OF_TREE), stored.get("arrays", ()), stored.get("own", ()))

    @ordinary_tensors()
    def value(self) -> Any:
        self._parts["array"] = [_array(*pair) for pair in zip(self.arrays, self.tree["headers"], strict=True)]
        for node in self.tree["objects"]:
            self._parts[REFERENCE].append(self._object(*node))
        return self(self.tree["root"])

    def __call__(self, node: Any) -> Any:
        if node is None or type(node) in SCALARS:
            return node
        kind, *arguments = node if isinstance(node, list) and node else [node]
        if not isinstance(kind, str) or kind not in _READERS:
            raise StateError(f"the state holds something of the kind {kind!r:.200}, which is not known here.")
        return _READERS[kind](self, *arguments)

    def items(self, nodes: Sequence[Any]) -> list[Any]:
        return [self(node) for node in nodes]

    def part(self, kind: str, place: Any) -> Any:
        """Return an array, an earlier object or a user's class by its number; the same number gives the same object."""
        parts = self._parts[kind]
        if type(place) is not int or not 0 <= place < len(parts):
            problem = f"the state refers to number {place!r:.200} of {len(parts)}"
            raise StateError(f"{problem}: it was not written by sklearn_laplace.")
        return parts[place]

    def named(self, reference: Any) -> Any:
        """Return a known class or function by its tag, or one of the user's by its number."""
        if type(reference) is int:
            return self.part("own", reference)
        if not isinstance(reference, str) or reference not in self.known:
            raise StateError(f"the state names {reference!r:.200}, which is not among the classes of this version.")
        return self.known[reference]

    def _object(self, kind: Any, reference: Any, *arguments: Any) -> Any:
        owner = self.named(reference)
        made = kind_of(owner) if kind == "object" and isclass(owner) else None
        if made is None:
            raise StateError(f"the state holds an object of {owner!r:.200}, which a saved model cannot contain.")
        names = arguments[::2]
        for name in names:
            if shadows(owner, name):
                raise StateError(
                    f"the state gives a {owner.__name__} the attribute {name!r:.200}, which it cannot have."
                )
        values = dict(zip(names, self.items(arguments[1::2]), strict=True))
        if len(values) < len(names):
            raise StateError(f"the state gives a {owner.__name__} an attribute twice.")
        return made.make(self, owner, values)

    def is_own(self, thing: Any) -> bool:
        """True for a class or function of the user, and for an instance of such a class."""
        return id(thing) in self._own_things or id(type(thing)) in self._own_things

    def is_plain(self, value: Any) -> bool:
        """True for numbers, text, tensors, modules, functions, containers of these, and the user's objects."""
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
        """Return the keys of a dictionary or members of a set."""
        keys = self.items(nodes)
        for key in keys:
            if not _is_key(key):
                raise StateError(f"the state holds a {type(key).__name__} as a key.")
        return keys


def _is_key(value: Any) -> bool:
    return all(map(_is_key, value)) if type(value) is tuple else isinstance(value, KEYS)


def _array(array: np.ndarray, header: list[Any]) -> Any:
    """Return an array in its original order of axes, or as a tensor."""
    axes, *of_tensor = header
    if not isinstance(array, np.ndarray) or array.dtype.hasobject or sorted(axes) != list(range(array.ndim)):
        raise StateError(f"the state holds an array of other axes than {axes!r:.200}, or of objects.")
    array = array.transpose(np.argsort(axes)) if axes else array
    return _tensor(array, *of_tensor) if of_tensor else array


def _tensor(array: np.ndarray, dtype: str, device: str, grad: bool | None) -> Tensor:
    """Return a tensor on its original device if this device is present, else on the CPU.

    Unless memory-mapped, the array is copied to torch's own memory, whose alignment determines how sums are rounded.
    """
    if not isinstance(grad, bool | None):
        raise StateError(f"the state holds {grad!r:.200} where True, False or null is needed.")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(array)
    wanted = DTYPES[dtype]
    if wanted != tensor.dtype and (wanted, tensor.dtype) != (torch.bfloat16, torch.float32):
        raise StateError(f"the state holds an array of the data type {array.dtype} as a tensor of {dtype}.")
    if not isinstance(array, np.memmap):
        tensor = tensor.clone()
    tensor = tensor.to(present_device(device), wanted)
    return tensor if grad is None else nn.Parameter(tensor, requires_grad=grad)


def _objects(reader: Reader, shape: Any, *items: Any) -> np.ndarray:
    array = np.empty(len(items), dtype=object)
    for place, item in enumerate(items):
        array[place] = reader(item)
    return array.reshape(reader(shape))


def _random(reader: Reader, *arguments: Any) -> np.random.RandomState:
    """Return a random generator in a given state. A wrong position is refused: numpy would read out of bounds."""
    words, place, has_gauss, gauss = reader.items(arguments)
    numbers = type(place) is int and type(has_gauss) is int and type(gauss) is float
    if not numbers or np.shape(words) != (N_WORDS,) or not 0 <= place <= N_WORDS:
        raise StateError(f"the state holds a random generator at position {place!r:.200}, which does not exist.")
    state = np.random.RandomState()
    state.set_state((GENERATOR, words, place, has_gauss, gauss))
    return state


def _dict(reader: Reader, *arguments: Any) -> dict[Any, Any]:
    return dict(zip(reader.keys(arguments[::2]), reader.items(arguments[1::2]), strict=True))


_READERS: dict[str, Callable[..., Any]] = {
    REFERENCE: lambda reader, place: reader.part(REFERENCE, place),
    "named": Reader.named,
    "list": lambda reader, *nodes: reader.items(nodes),
    "tuple": lambda reader, *nodes: tuple(reader.items(nodes)),
    "set": lambda reader, *nodes: set(reader.keys(nodes)),
    "size": lambda reader, *sizes: torch.Size(sizes),
    "dict": _dict,
    "float": lambda reader, text: FLOATS[text],
    "dtype": lambda reader, name: DTYPES[name],
    "device": lambda reader, name: present_device(name),
    "array": lambda reader, place: reader.part("array", place),
    "number": lambda reader, place: reader.part("array", place)[()],
    "objects": _objects,
    "member": lambda reader, tag, name: EnumType.__getitem__(reader.named(tag), name),
    "random": _random,
}
