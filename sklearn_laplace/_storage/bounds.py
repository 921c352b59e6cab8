"""Bounds on a description, checked before any object is created from it.

A tree of a few kilobytes can stand for 2⁵⁰ objects, if each node holds the next one twice. Hashing, comparing or
printing such a structure would never end. So the size of the tree with all references followed is bounded by a multiple
of its own size. The depth is bounded because reading takes several Python frames a level. A node that contains itself
is refused, unless the cycle passes through an attribute of an object of the user's own class, such as a bound method.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import StateError

MOST_LEVELS = 150
"""Largest depth of a tree; an ensemble of nets has 15."""
EXPANSION = 20
"""Largest size with references followed, as a multiple of the tree's own; an ensemble of twelve nets has 0.8."""
ALLOWANCE = 20_000
"""Additional entries that a tree of any size may stand for."""
LETTERS = 64
"""A text counts as one entry, and one more for each so many letters."""
OBJECTS = ("module", "bare")
"""Kinds of nodes that hold attributes."""
NOT_OURS = "it was not written by sklearn_laplace."
CHILDREN = "_modules"
"""Attribute of a torch module for its submodules, through which no cycle passes."""


def check_tree(nodes: Sequence[Any], root: Any) -> None:
    """Refuse a tree that is too deep, contains itself or stands for too many objects.

    Parameters
    ----------
    nodes : list
        As a :class:`~sklearn_laplace._storage.describe.Describer` writes them.
    root : entry of the tree

    Raises
    ------
    StateError

    Examples
    --------
    >>> nodes = [["list", None, [["node", k + 1], ["node", k + 1]]] for k in range(40)]
    >>> check_tree([*nodes, ["list", None, []]], ["node", 0])
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.StateError: the state stands for 4,398,046,511,102 objects in a tree of 405 entries: it was \
not written by sklearn_laplace.
    """
    bounds = _Bounds(nodes)
    size, _ = bounds.measure(root, 0)
    own = 1 + sum(_own_size(node) for node in nodes)
    if size > EXPANSION * own + ALLOWANCE:
        raise StateError(f"the state stands for {size:,} objects in a tree of {own:,} entries: {NOT_OURS}")


class _Bounds:
    """Size and height of entries, each node measured once."""

    def __init__(self, nodes: Sequence[Any]) -> None:
        self.nodes = nodes
        self.known: dict[int, tuple[int, int]] = {}
        self.path: dict[int, int] = {}
        self.loose: list[int] = []

    def measure(self, entry: Any, depth: int) -> tuple[int, int]:
        """Objects that an entry stands for, and the levels below it."""
        if depth > MOST_LEVELS:
            raise StateError(f"the state is more than {MOST_LEVELS} levels deep: {NOT_OURS}")
        if not isinstance(entry, list):
            return _weight(entry), 0
        if entry[:1] == ["node"]:
            return self._node(entry[1], depth)
        size, height = 1, 0
        for child, is_loose in self._children(entry):
            with self._loosened(is_loose):
                found, levels = self.measure(child, depth + 1)
            size, height = size + found, max(height, levels + 1)
        return size, height

    def _node(self, place: int, depth: int) -> tuple[int, int]:
        if place in self.path:
            if not self.loose or self.loose[-1] < self.path[place]:
                raise StateError(f"the state is damaged: its node {place} contains itself.")
            return 1, 0
        if place not in self.known:
            self.path[place] = len(self.path)
            self.known[place] = self.measure(self.nodes[place], depth + 1)
            del self.path[place]
        size, height = self.known[place]
        if depth + height > MOST_LEVELS:
            raise StateError(f"the state is more than {MOST_LEVELS} levels deep: {NOT_OURS}")
        return size, height

    @contextmanager
    def _loosened(self, is_loose: bool) -> Iterator[None]:
        """Allow references back to the nodes above."""
        if not is_loose:
            yield
            return
        self.loose.append(len(self.path) - 1)
        yield
        self.loose.pop()

    def _children(self, entry: list[Any]) -> Iterator[tuple[Any, bool]]:
        """Entries below an entry, and whether they may refer back to it."""
        kind, *given = entry
        if kind in OBJECTS:
            owner, values = given
            own_class = self._is_foreign(owner)
            yield owner, False
            yield from ((value, own_class and name != CHILDREN) for name, value in values.items())
        else:
            yield from ((child, False) for child in _parts(kind, given))

    def _is_foreign(self, entry: Any) -> bool:
        """Whether an entry is a class that the reader is handed."""
        if isinstance(entry, list) and entry[:1] == ["node"]:
            entry = self.nodes[entry[1]]
        return isinstance(entry, list) and entry[:1] == ["foreign"]


def _parts(kind: Any, given: Sequence[Any]) -> Iterable[Any]:
    """Entries that are the parts of one of this kind."""
    if kind in ("tuple", "set", "slice"):
        return list(given[0])
    if kind in ("list", "objects", "skeleton"):
        return [given[0], *given[1]]
    if kind == "dict":
        return [given[0], *(part for pair in given[1] for part in pair)]
    if kind == "data":
        return [given[0], *given[1].values()]
    if kind == "partial":
        return [given[0], *given[1], *given[2].values()]
    if kind in ("parts", "method", "member", "random"):
        return list(given)
    return []  # numbers, names and arrays: nothing below


def _weight(value: Any) -> int:
    return 1 + len(value) // LETTERS if isinstance(value, str) else 1


def _own_size(entry: Any) -> int:
    """Entries of a node in its own place."""
    if isinstance(entry, dict):
        return 1 + sum(_own_size(value) for value in entry.values())
    return 1 + sum(_own_size(value) for value in entry) if isinstance(entry, list) else _weight(entry)
