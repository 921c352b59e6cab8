"""Manipulated files of ``sklearn_laplace.save`` with correct checksums.

:class:`Crafted` is the content of a file, which can be changed and written again. :func:`fuzzed` randomly changes
names, references, kinds, numbers, shapes and whole branches. :class:`Watch` records the actions of the interpreter
while a file is loaded.
"""

from __future__ import annotations

import copy
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

NATIVE = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}
METADATA = {"format": "sklearn_laplace", "version": "7"}


class Crafted:
    """The tree and the arrays of a file.

    Parameters
    ----------
    path : path
        Of a file that ``sklearn_laplace.save`` has written.
    """

    def __init__(self, path: Any) -> None:
        with safetensors.safe_open(path, framework="numpy") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
        self.tree: dict[str, Any] = json.loads(found.pop("tree").tobytes())
        self.arrays: list[np.ndarray] = [found[str(k)] for k in range(len(found))]

    def copy(self) -> Crafted:
        """Return a copy to change."""
        return copy.deepcopy(self)

    @property
    def objects(self) -> list[Any]:
        """Objects of the tree; each refers only to objects before it."""
        objects: list[Any] = self.tree["objects"]
        return objects

    def add(self, node: list[Any], place: int = -1) -> list[Any]:
        """Insert an object before the one at a place, and return the node that refers to it.

        The default is the place of the estimator. References in ``node`` are to places before the insertion.
        """
        place = place % len(self.objects)
        node = copy.deepcopy(node)
        for holder, key in list(places([self.objects, self.tree["root"], node])):
            if key == 1 and holder[0] == "ref" and type(holder[1]) is int and holder[1] >= place:
                holder[1] += 1
        self.objects.insert(place, node)
        return ["ref", place]

    def add_array(self, values: np.ndarray, *of_tensor: Any) -> list[Any]:
        """Add an array, or a tensor with dtype, device and requires_grad, and return the node that refers to it."""
        values = np.ascontiguousarray(values).reshape(values.shape)
        self.arrays.append(values if values.dtype.str[1:] in NATIVE else np.frombuffer(values.tobytes(), np.uint8))
        self.tree["arrays"].append([values.dtype.str, list(values.shape), 0])
        self.tree["headers"].append([list(range(values.ndim)), *of_tensor])
        return ["array", len(self.arrays) - 1]

    def first(self, name: str) -> Any:
        """The first object of a class with this tag."""
        return next(node for node in self.objects if node[:2] == ["object", name])

    def parameters(self) -> list[Any]:
        """The node of the estimator's parameters."""
        node: list[Any] = attribute(self.objects[-1], "parameters")
        return node

    def fitted(self) -> list[Any]:
        """The node of the fitted attributes."""
        node: list[Any] = attribute(self.objects[-1], "fitted")
        return node

    def carry(self, node: Any) -> None:
        """Set a parameter that takes plain data to a node."""
        put(self.parameters(), "map_prior_precision", node)

    def write(self, path: Any, **metadata: str) -> None:
        """Write a file with correct checksums."""
        Path(path).write_bytes(self.content(**metadata))

    def content(self, **metadata: str) -> bytes:
        """Bytes of a file with correct checksums."""
        headers = self.tree["arrays"] if isinstance(self.tree["arrays"], list) else []
        for entry, values in zip(headers, self.arrays, strict=False):
            if isinstance(entry, list) and len(entry) == 3:
                entry[2] = zlib.crc32(values.tobytes())
        text = np.frombuffer(json.dumps(self.tree, separators=(",", ":")).encode(), dtype=np.uint8)
        arrays = {str(place): values for place, values in enumerate(self.arrays)} | {"tree": text}
        checksum = {"checksum": str(zlib.crc32(text.tobytes()))}
        return safetensors.numpy.save(arrays, {**METADATA, **checksum, **metadata})


def attribute(node: list[Any], name: str) -> Any:
    """The value of an attribute of an object, or of a key of a dictionary."""
    return node[_place(node, name) + 1]


def put(node: list[Any], name: Any, value: Any) -> None:
    """Change or add an attribute of an object or a key of a dictionary."""
    place = _place(node, name)
    if place < len(node):
        node[place + 1] = value
    else:
        node += [name, value]


def remove(node: list[Any], name: str) -> None:
    """Remove an attribute of an object or a key of a dictionary."""
    place = _place(node, name)
    del node[place : place + 2]


def _place(node: list[Any], name: Any) -> int:
    """The index of a name; the length of the node if it is missing."""
    start = 2 if node[0] == "object" else 1
    return next((place for place in range(start, len(node), 2) if node[place] == name), len(node))


# ---------------------------------------------------------------------- at random

ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 10**30, -(10**30), 0.5, -0.0, 1e300, -1e-300, "", "x", "cuda:0",
    "meta", "__class__", "os.system", "../x", [], {}, [[]], ["float", "nan"], ["float", "inf"], ["float",
    "-inf"], ["tuple"], ["size", 2, 3], ["size", -1], ["set", "a"], ["list"], ["dict", 1],
    ["dtype", "float32"], ["dtype", "qint8"], ["device", "meta"], ["device", "cuda:7"], ["named", "torch.tanh"],
    ["named", 0], ["named", "builtins.eval"], ["named", "skorch.NeuralNet"], ["named", "nn.Identity"],
    ["tuple", 1.0, 2.0], {"a": 1}, ["ref", 0], ["ref", -1], ["array", 0], ["scalar", 0],
    ["method", ["ref", 0], "__setstate__"], ["partial", ["named", "torch.tanh"]], ["objects", ["size", 0, 10**30]],
    ["random", ["array", 0], -1, 0, 0.0], ["member", "WeightSharing", "x"], ["skeleton", ["ref", 1]],
]  # fmt: skip
"""Nodes that a place in the tree rarely has; some were of use in an attack on an older format."""
NAMES = ["forward", "__reduce__", "__setstate__", "predict", "extra_repr", "_forward_hooks", "device", "training", "_x"]
GADGETS: list[Any] = [
    ["object", "skorch.NeuralNet", "device", ["ref", 2]],
    ["object", "optim.Adam", "param_groups", ["ref", 1]],
    ["object", "nn.Identity", "extra_repr", ["ref", 1], "forward", ["ref", 1]],
    ["object", "nn.Upsample", "training", False, "scale_factor", 1e6, "mode", "nearest"],
    ["object", "nn.Identity", "_forward_pre_hooks", ["dict", 0, ["named", "torch.tanh"]]],
    ["object", "nn.Identity", "training", False, "x", ["dict", ["ref", 4], 1]],
    ["object", "Table", "columns", ["tuple", ["ref", 1], ["ref", 1]]],
    ["object", "options.Kron", "damping", ["ref", 0]],
    ["object", "sklearn.FrozenEstimator", "estimator", ["ref", 1]],
    ["method", ["ref", 0], "__setstate__"],
]  # fmt: skip
"""Objects that were of use in an attack."""


def places(entry: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a tree, as its container and its index or key in it."""
    items = enumerate(entry) if isinstance(entry, list) else entry.items() if isinstance(entry, dict) else ()
    for place, value in list(items):
        yield entry, place
        yield from places(value)


def fuzzed(original: Crafted, rng: np.random.Generator) -> Crafted:
    """Copy with one to three random changes."""
    changed = original.copy()
    for _ in range(rng.integers(1, 4)):
        change = CHANGES[rng.integers(len(CHANGES))]
        with suppress(
            LookupError, TypeError, ValueError, AttributeError, StopIteration
        ):  # no place for this change is left
            change(changed, rng)
    return changed


def _pick(values: Any, rng: np.random.Generator) -> Any:
    values = list(values)
    return values[rng.integers(len(values))]


def _value(found: Crafted, rng: np.random.Generator) -> None:
    holder, place = _pick(places(found.objects), rng)
    holder[place] = copy.deepcopy(_pick(ODD, rng))


def _number(found: Crafted, rng: np.random.Generator) -> None:
    numbers = [(h, p) for h, p in places(found.objects) if type(h[p]) in (int, float)]
    holder, place = _pick(numbers, rng)
    holder[place] = _pick([0, -1, holder[place] + 1, -holder[place], holder[place] * 1000, 2**40, 1e-9, 3.5, 1e18], rng)


def _text(found: Crafted, rng: np.random.Generator) -> None:
    texts = [(h, p) for h, p in places(found.objects) if type(h[p]) is str]
    (holder, place), (other, at) = _pick(texts, rng), _pick(texts, rng)
    holder[place] = other[at]


def _swap(found: Crafted, rng: np.random.Generator) -> None:
    places_there = list(places(found.objects))
    (holder, place), (other, at) = _pick(places_there, rng), _pick(places_there, rng)
    holder[place] = copy.deepcopy(other[at])


def _delete(found: Crafted, rng: np.random.Generator) -> None:
    holder, place = _pick(places(found.objects), rng)
    del holder[place]


def _double(found: Crafted, rng: np.random.Generator) -> None:
    holder, place = _pick([(h, p) for h, p in places(found.objects) if isinstance(h, list)], rng)
    holder.insert(place, copy.deepcopy(holder[place]))


def _rename(found: Crafted, rng: np.random.Generator) -> None:
    node = _pick([node for node in found.objects if len(node) > 3], rng)
    place = 2 + 2 * int(rng.integers((len(node) - 2) // 2))
    if rng.random() < 0.5:
        node[place] = _pick(NAMES, rng)
    else:
        node += [_pick(NAMES, rng), copy.deepcopy(node[place + 1])]


def _redirect(found: Crafted, rng: np.random.Generator) -> None:
    references = [h for h, p in places(found.objects) if p == 0 and h[0] in ("ref", "array") and len(h) == 2]
    node = _pick(references, rng)
    node[1] = int(rng.integers(len(found.objects if node[0] == "ref" else found.arrays)))


def _known(found: Crafted, rng: np.random.Generator) -> None:
    names = [h for h, p in places(found.objects) if p == 0 and h[0] in ("object", "named")]
    _pick(names, rng)[1] = _pick(names, rng)[1]


def _gadget(found: Crafted, rng: np.random.Generator) -> None:
    entry = found.add(_pick(GADGETS, rng), int(rng.integers(len(found.objects))))
    holder, place = _pick(places(found.objects[entry[1] + 1 :]), rng)
    holder[place] = entry


def _array_header(found: Crafted, rng: np.random.Generator) -> None:
    entry = _pick(found.tree["arrays"], rng)
    if rng.random() < 0.5:
        entry[0] = _pick(["|O", "<f4", "<f8", "<i8", "|u1", "<U9", "|S999999999", "<M8[us]", "f8,f8", 3, None], rng)
    else:
        entry[1] = _pick([[], [0, 10**30], [-1], [1] * 40, ["a"], None, [2**62, 2**62, 0]], rng)


def _tensor_header(found: Crafted, rng: np.random.Generator) -> None:
    header = _pick(found.tree["headers"], rng)
    header[int(rng.integers(len(header)))] = copy.deepcopy(_pick(ODD, rng))


def _array(found: Crafted, rng: np.random.Generator) -> None:
    place = int(rng.integers(len(found.arrays)))
    values, header = found.arrays[place], found.tree["arrays"][place]
    if header[0][1:] not in NATIVE:
        return
    other = _pick([values[..., :-1] if values.ndim else values, values.astype(np.float32), -values.astype(float) * 1e3,
                   np.full_like(values, 10**6 if values.dtype.kind in "if" and values.dtype.itemsize > 2 else 1),
                   np.zeros_like(values), values.ravel(), np.concatenate([values, values]) if values.ndim else values,
                   values.astype(float) * np.nan, values[None]], rng)  # fmt: skip
    found.arrays[place] = np.ascontiguousarray(other).reshape(other.shape)
    header[:2] = [other.dtype.str, list(other.shape)]
    found.tree["headers"][place][0] = list(range(other.ndim))


def _top(found: Crafted, rng: np.random.Generator) -> None:
    name = _pick(["root", "own", "arrays", "objects", "headers"], rng)
    found.tree[name] = copy.deepcopy(_pick([*ODD, found.tree[name][:-1], [*found.tree[name], ["ref", 1]]], rng))


def _unknown_key(found: Crafted, rng: np.random.Generator) -> None:
    found.tree[_pick(NAMES, rng)] = _pick([None, [1] * 1000, "7" * 10**6, found.objects], rng)


CHANGES = [_unknown_key, _value, _value, _number, _number, _text, _swap, _swap, _delete, _double, _rename, _redirect,
           _redirect, _known, _gadget, _gadget, _array_header, _tensor_header, _array, _array, _top]  # fmt: skip


# ---------------------------------------------------------------------- seen from outside


class Watch:
    """Record the audit events of the interpreter that reading a file does not need.

    ``result = watch(path, load)`` calls ``load(path)`` twice and returns the result of the second call. ``watch.seen``
    lists events. torch imports parts of itself at their first use, so imports and their side effects only count in the
    second call.
    """

    SUSPECT = (
        "os.", "subprocess.", "socket.", "pickle.", "exec", "compile", "import", "ctypes.", "marshal.", "shutil.",
        "tempfile.", "webbrowser.", "urllib.", "ftplib.", "glob.", "code.", "builtins.input", "builtins.breakpoint",
    )  # fmt: skip
    OF_IMPORTS = ("import", "compile", "exec", "marshal.loads", "os.listdir", "os.scandir")

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._path: str | None = None
        self._is_first = True
        sys.addaudithook(self._hear)

    def __call__(self, path: Any, function: Callable[[Any], Any]) -> Any:
        """Result of a function for a path; its events are recorded."""
        self.seen = []
        try:
            with self._watched(path, is_first=True):
                function(path)
        except Exception:
            pass  # the second call raises the same error
        with self._watched(path, is_first=False):
            return function(path)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._path is None:
            return
        if event == "open":
            writes = set(str(arguments[1])) & set("wax+") or (isinstance(arguments[2], int) and arguments[2] & 3)
            if writes or not (self._is_first or str(arguments[0]) == self._path):
                self.seen.append(f"open {arguments[0]!r}")
        elif event == "compile" and str(arguments[0]).startswith("b'2 * "):
            return  # joblib reads how many tasks it sends ahead
        elif event.startswith(self.SUSPECT) and not (self._is_first and event in self.OF_IMPORTS):
            self.seen.append(f"{event} {arguments!r:.100}")

    @contextmanager
    def _watched(self, path: Any, *, is_first: bool) -> Iterator[None]:
        self._is_first, self._path = is_first, str(path)
        try:
            yield
        finally:
            self._path = None
