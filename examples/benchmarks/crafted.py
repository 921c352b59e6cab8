"""Manipulated files of ``sklearn_laplace.save`` with correct checksums.

:class:`Crafted` is the content of a file, to be changed and written again. :func:`fuzzed` changes it at random: names,
references, kinds, numbers, shapes, whole branches, ranges, labels, members.
:class:`Watch` records the actions of the interpreter meanwhile.
"""

from __future__ import annotations

import copy
import json
import math
import sys
import time
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
        """Objects of the tree; each refers to objects before it."""
        objects: list[Any] = self.tree["objects"]
        return objects

    def add(self, node: list[Any], place: int = -1, copies: int = 1) -> list[Any]:
        """Put an object before the one at a place, and return the node that refers to it, or to the first copy.

        The default is the place of the estimator. References in the new object are those of the tree before.
        """
        place = place % len(self.objects)
        node = copy.deepcopy(node)
        for holder, key in list(places([self.objects, self.tree["root"], node])):
            if key == 1 and holder[0] == "ref" and type(holder[1]) is int and holder[1] >= place:
                holder[1] += copies
        text = json.dumps(node)  # copied faster than by copy.deepcopy
        self.objects[place:place] = [json.loads(text) for _ in range(copies)]
        return ["ref", place]

    def add_array(self, values: np.ndarray, *of_tensor: Any) -> list[Any]:
        """A new array, or a tensor of a dtype, a device and a requires_grad, as the node that refers to it."""
        values = np.ascontiguousarray(values).reshape(values.shape)
        self.arrays.append(values if values.dtype.str[1:] in NATIVE else np.frombuffer(values.tobytes(), np.uint8))
        self.tree["arrays"].append([values.dtype.str, list(values.shape), 0])
        self.tree["headers"].append([list(range(values.ndim)), *of_tensor])
        return ["array", len(self.arrays) - 1]

    def set_array(self, place: int, values: np.ndarray) -> None:
        """Replace an array, and the data type of the tensor that is made of it."""
        values = np.ascontiguousarray(values).reshape(values.shape)
        native = values.dtype.str[1:] in NATIVE
        self.arrays[place] = values if native else np.frombuffer(values.tobytes(), np.uint8)
        self.tree["arrays"][place][:2] = [values.dtype.str, list(values.shape)]
        of_tensor = self.tree["headers"][place][1:]
        self.tree["headers"][place] = [
            list(range(values.ndim)),
            *([str(values.dtype)] if of_tensor else []),
            *of_tensor[1:],
        ]

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
        """Make a node the value of a parameter that takes plain data."""
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
    """Every place of a tree: its container, and its index or key there."""
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


def _out_of_range(found: Crafted, rng: np.random.Generator) -> None:
    """A scalar, or all or one of the numbers of an array, out of a range that its attribute may have."""
    holders = [node for node in found.objects if len(node) > 3]
    node = _pick(holders, rng)
    place = 3 + 2 * int(rng.integers((len(node) - 2) // 2))
    odd = _pick([-2.0, 0.0, -1e-300, 1e308, np.nan, np.inf, -np.inf, 1j], rng)
    value = node[place]
    if type(value) in (int, float) and not isinstance(odd, complex):
        node[place] = odd if np.isfinite(odd) else ["float", repr(float(odd))]
    elif isinstance(value, list) and value[:1] == ["array"]:
        old = found.arrays[value[1]]
        changed = old.astype(complex if isinstance(odd, complex) else float)
        changed[rng.random(old.shape) < _pick([0.2, 1.0], rng)] = odd
        found.set_array(value[1], changed)


def _labels(found: Crafted, rng: np.random.Generator) -> None:
    """Labels in another order, repeated, too many, of two axes, or objects."""
    values = _pick([[1, 0], [1, 1], [0, 1, 7, 9], [[0, 1]], [0.0, np.nan], ["b", "a"], [1j, 2j], [0]], rng)
    node = attribute(found.fitted(), "classes_")
    found.set_array(node[1], np.array(values))
    if rng.random() < 0.2:
        put(found.fitted(), "classes_", ["objects", ["size", 2], 0, "a"])


def _members(found: Crafted, rng: np.random.Generator) -> None:
    """Many distinct members that share all parts, or all but one."""
    add_members(found, int(_pick([2, 40, 990], rng)))


def add_members(found: Crafted, n: int) -> int:
    """Add copies of the first member, which share its parts, with equal weights; return the place of the first copy."""
    ensemble = found.first("Ensemble")
    members = attribute(ensemble, "members")
    _, first = found.add(found.objects[members[1][1]], found.objects.index(ensemble), n)
    members += [["ref", first + k] for k in range(n)]
    n_members = len(members) - 1
    for name in ("weights", "shares"):
        if attribute(ensemble, name) is not None:
            found.set_array(attribute(ensemble, name)[1], np.full(n_members, 1 / n_members))
    return int(first)


def _resized(found: Crafted, rng: np.random.Generator) -> None:
    """A size of an axis, wherever it occurs, is another one."""
    old = int(_pick([size for _, shape, _ in found.tree["arrays"] for size in shape], rng))
    size = int(_pick([old + 1, 1, 50, 2000], rng))
    for place, (dtype, shape, _) in enumerate(found.tree["arrays"]):
        if old in shape and dtype[1:] in NATIVE:
            shape[:] = [size if length == old else length for length in shape]
            if math.prod(shape) < 10**5:
                found.arrays[place] = np.resize(found.arrays[place], shape)
    for holder, place in places(found.objects):
        if type(holder[place]) is int and holder[place] == old and holder[0] not in ("ref", "array"):
            holder[place] = size


def _limits(found: Crafted, rng: np.random.Generator) -> None:
    """Parameters that bound the work of a machine."""
    name = _pick(["n_jobs", "memory_budget", "temperature", "prior_precision", "sigma_noise", "n_members"], rng)
    put(found.parameters(), name, _pick([3000, -3000, 0, "9000TB", 1, -1.0, 1e308, ["float", "nan"], None], rng))


def _unknown_key(found: Crafted, rng: np.random.Generator) -> None:
    found.tree[_pick(NAMES, rng)] = _pick([None, [1] * 1000, "7" * 10**6, found.objects], rng)


AWARE = [_out_of_range, _out_of_range, _out_of_range, _out_of_range, _labels, _members, _resized, _resized, _limits,
         _unknown_key]  # fmt: skip
"""Changes that keep the structure legal and change what it means."""
CHANGES = [*AWARE, _value, _value, _number, _number, _text, _swap, _swap, _delete, _double, _rename, _redirect,
           _redirect, _known, _gadget, _gadget, _array_header, _tensor_header, _array, _array, _top]  # fmt: skip


def nonsense(model: Any, rows: Any) -> str:
    """What is wrong with the predictions and labels of a loaded model; an empty string if nothing is."""
    labels = vars(model).get("classes_")
    if labels is not None and (np.ndim(labels) != 1 or labels.tolist() != sorted(set(labels.tolist()))):
        return "labels"
    means = model.predict(rows) if labels is None else model.predict_proba(rows)
    std = model.predict_std(rows)
    if means.dtype.kind != "f" or std.dtype.kind != "f":
        return "not real"
    if not (np.isfinite(means).all() and np.isfinite(std).all()):
        return "not finite"
    return "" if std.min() > 0 or (labels is not None and std.min() == 0) else "standard deviation"


# ---------------------------------------------------------------------- seen from outside


class Watch:
    """Record the audit events of the interpreter that reading a file does not need.

    ``result = watch(path, load)`` calls ``load(path)`` twice and returns the result of the second call. ``watch.seen``
    lists events, and ``watch.seconds`` is the processor time of the slower call. torch imports parts of itself at
    their first use, so imports and their side effects only count in the second call.
    """

    SUSPECT = (
        "os.", "subprocess.", "socket.", "pickle.", "exec", "compile", "import", "ctypes.", "marshal.", "shutil.",
        "tempfile.", "webbrowser.", "urllib.", "ftplib.", "glob.", "code.", "builtins.input", "builtins.breakpoint",
    )  # fmt: skip
    OF_IMPORTS = ("import", "compile", "exec", "marshal.loads", "os.listdir", "os.scandir")

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.seconds = 0.0
        self._path: str | None = None
        self._is_first = True
        sys.addaudithook(self._hear)

    def __call__(self, path: Any, function: Callable[[Any], Any]) -> Any:
        """Call a function of a path and record its events."""
        self.seen, self.seconds = [], 0.0
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
        self._is_first, self._path, start = is_first, str(path), time.process_time()
        try:
            yield
        finally:
            self._path, self.seconds = None, max(self.seconds, time.process_time() - start)
