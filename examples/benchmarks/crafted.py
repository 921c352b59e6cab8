"""Manipulated files of ``sklearn_laplace.save`` with correct checksums.

:class:`Crafted` is the content of a file, to be changed and written again. :func:`fuzzed` changes it at random: names,
references, kinds, numbers, shapes, whole branches. :class:`Watch` records the actions of the interpreter meanwhile.
"""

from __future__ import annotations

import copy
import json
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
METADATA = {"format": "sklearn_laplace", "version": "2"}


class Crafted:
    """Tree and arrays of a file.

    Parameters
    ----------
    path : path
        File written by ``sklearn_laplace.save``.
    """

    def __init__(self, path: Any) -> None:
        with safetensors.safe_open(path, framework="numpy") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
        self.tree: dict[str, Any] = json.loads(found.pop("tree").tobytes())
        self.arrays: list[np.ndarray] = [found[str(k)] for k in range(len(found))]

    def copy(self) -> Crafted:
        """Copy to change."""
        return copy.deepcopy(self)

    @property
    def nodes(self) -> list[Any]:
        """Nodes of the tree."""
        nodes: list[Any] = self.tree["nodes"]
        return nodes

    def add(self, node: list[Any]) -> list[Any]:
        """Add a node; return an entry that refers to it."""
        self.nodes.append(node)
        return ["node", len(self.nodes) - 1]

    def add_array(self, values: np.ndarray) -> int:
        """Add an array; return its number."""
        values = np.ascontiguousarray(values).reshape(values.shape)
        self.arrays.append(values if values.dtype.str[1:] in NATIVE else np.frombuffer(values.tobytes(), np.uint8))
        self.tree["arrays"].append([values.dtype.str, list(values.shape), 0])
        return len(self.arrays) - 1

    def text_of_bytes(self, content: bytes) -> list[Any]:
        """Entry that is read as the given bytes."""
        return self.add(["scalar", self.add_array(np.array(content)), []])

    def first(self, kind: str, name: str = "") -> Any:
        """First node of a kind whose class name has the given ending."""
        return next(node for node in self.nodes if node[0] == kind and (not name or str(node[1][-1]).endswith(name)))

    def entry(self, node: Any) -> list[Any]:
        """Entry that refers to a node."""
        return ["node", next(place for place, one in enumerate(self.nodes) if one is node)]

    def fitted(self) -> list[Any]:
        """Names and values of the fitted attributes."""
        pairs: list[Any] = next(node[2] for node in self.nodes if node[0] == "dict" and _has(node[2], "_ensemble"))
        return pairs

    def parameters(self) -> list[Any]:
        """Names and values of the parameters."""
        pairs: list[Any] = next(node[2] for node in self.nodes if node[0] == "dict" and _has(node[2], "temperature"))
        return pairs

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


def _has(pairs: Any, name: str) -> bool:
    return isinstance(pairs, list) and any(isinstance(pair, list) and pair[:1] == [name] for pair in pairs)


# ---------------------------------------------------------------------- at random

ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 10**30, -(10**30), 0.5, -0.0, 1e300, -1e-300, "", "x", "cuda:0",
    "meta", "__class__", "os.system", "../x", [], {}, [[]], ["float", "nan"], ["float", "inf"], ["float",
    "-inf"], ["tuple", []], ["size", [2, 3]], ["size", [-1]], ["set", ["a"]], ["slice", [0, 1, 2]], ["complex", "1j"],
    ["dtype", "float32"], ["dtype", "qint8"], ["device", "meta"], ["device", "cuda:7"], ["known", "torch.tanh"],
    ["foreign", 0], ["known", "builtins.eval"], ["known", "skorch.net.NeuralNet"], ["known",
    "torch.nn.modules.linear.Identity"], ["tuple", [1.0, 2.0]], {"a": 1}, ["node", 0], ["node", -1],
]  # fmt: skip
"""Unusual entries for a place in the tree."""
NAMES = ["forward", "__reduce__", "__setstate__", "predict", "extra_repr", "_forward_hooks", "device", "training", "_x"]
GADGETS: list[Any] = [
    ["method", ["node", 0], "__setstate__"], ["method", ["node", 3], "to_file"], ["method", ["node", 5], "forward"],
    ["partial", ["known", "skorch.setter.optimizer_setter"], [["node", 1]], {}],
    ["partial", ["known", "skorch.net.NeuralNet"], [], {}], ["partial", ["known", "torch.tanh"], [], {"a": 1}],
    ["bare", ["known", "skorch.net.NeuralNet"], {"device": ["node", 2]}],
    ["bare", ["known", "torch.optim.adam.Adam"], {"param_groups": ["node", 1]}],
    ["module", ["known", "torch.nn.modules.linear.Identity"], {"extra_repr": ["node", 1], "forward": ["node", 1]}],
    ["module", ["known", "torch.nn.modules.upsampling.Upsample"], {"scale_factor": 1e6, "mode": "nearest"}],
    ["list", ["known", "skorch.history.History"], [["node", 1]]], ["objects", [0, 10**30], []],
    ["dict", None, [[["node", 4], 1]]], ["tensor", 0, [0], "float64", "cpu", None], ["array", 1, []],
    ["random", {"a": 1}], ["skeleton", ["node", 1], []], ["parts", ["node", 0], ["node", 1]],
]  # fmt: skip
"""Nodes that an attack could use."""


def places(entry: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a tree: its container, and its index or key there."""
    items = enumerate(entry) if isinstance(entry, list) else entry.items() if isinstance(entry, dict) else ()
    for place, value in list(items):
        yield entry, place
        yield from places(value)


def fuzzed(original: Crafted, rng: np.random.Generator) -> Crafted:
    """Copy with one to three random changes."""
    found = original.copy()
    for _ in range(rng.integers(1, 4)):
        change = CHANGES[rng.integers(len(CHANGES))]
        with suppress(LookupError, TypeError, ValueError, AttributeError):  # no place for this change is left
            change(found, rng)
    return found


def _pick(values: Any, rng: np.random.Generator) -> Any:
    values = list(values)
    return values[rng.integers(len(values))]


def _value(found: Crafted, rng: np.random.Generator) -> None:
    holder, place = _pick(places(found.nodes), rng)
    holder[place] = copy.deepcopy(_pick(ODD, rng))


def _number(found: Crafted, rng: np.random.Generator) -> None:
    numbers = [(h, p) for h, p in places(found.nodes) if type(h[p]) in (int, float)]
    holder, place = _pick(numbers, rng)
    holder[place] = _pick([0, -1, holder[place] + 1, -holder[place], holder[place] * 1000, 2**40, 1e-9, 3.5, 1e18], rng)


def _text(found: Crafted, rng: np.random.Generator) -> None:
    texts = [(h, p) for h, p in places(found.nodes) if type(h[p]) is str]
    (holder, place), (other, at) = _pick(texts, rng), _pick(texts, rng)
    holder[place] = other[at]


def _swap(found: Crafted, rng: np.random.Generator) -> None:
    every = list(places(found.nodes))
    (holder, place), (other, at) = _pick(every, rng), _pick(every, rng)
    holder[place] = copy.deepcopy(other[at])


def _delete(found: Crafted, rng: np.random.Generator) -> None:
    holder, place = _pick(places(found.nodes), rng)
    del holder[place]


def _double(found: Crafted, rng: np.random.Generator) -> None:
    holder, place = _pick([(h, p) for h, p in places(found.nodes) if isinstance(h, list)], rng)
    holder.insert(place, copy.deepcopy(holder[place]))


def _rename(found: Crafted, rng: np.random.Generator) -> None:
    holder, place = _pick([(h, p) for h, p in places(found.nodes) if isinstance(h, dict)], rng)
    holder[_pick(NAMES, rng)] = holder.pop(place) if rng.random() < 0.5 else copy.deepcopy(holder[place])


def _redirect(found: Crafted, rng: np.random.Generator) -> None:
    references = [h for h, p in places(found.nodes) if p == 0 and h[0] == "node" and len(h) == 2]
    _pick(references, rng)[1] = int(rng.integers(len(found.nodes)))


def _known(found: Crafted, rng: np.random.Generator) -> None:
    names = [h for h, p in places(found.nodes) if p == 0 and h[0] == "known" and len(h) == 2]
    _pick(names, rng)[1] = _pick(names, rng)[1]


def _gadget(found: Crafted, rng: np.random.Generator) -> None:
    entry = found.add(copy.deepcopy(_pick(GADGETS, rng)))
    holder, place = _pick(places(found.nodes[:-1]), rng)
    holder[place] = entry


def _array_header(found: Crafted, rng: np.random.Generator) -> None:
    entry = _pick(found.tree["arrays"], rng)
    if rng.random() < 0.5:
        entry[0] = _pick(["|O", "<f4", "<f8", "<i8", "|u1", "<U9", "|S999999999", "<M8[us]", "f8,f8", 3, None], rng)
    else:
        entry[1] = _pick([[], [0, 10**30], [-1], [1] * 40, ["a"], None, [2**62, 2**62, 0]], rng)


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


def _top(found: Crafted, rng: np.random.Generator) -> None:
    name = _pick(["root", "foreign", "arrays", "nodes"], rng)
    found.tree[name] = copy.deepcopy(_pick([*ODD, found.tree[name][:-1], [*found.tree[name], ["node", 1]]], rng))


CHANGES = [_value, _value, _number, _number, _text, _swap, _swap, _delete, _double, _rename, _redirect, _redirect,
           _known, _gadget, _gadget, _array_header, _array, _array, _top]  # fmt: skip


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
