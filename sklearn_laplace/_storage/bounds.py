"""Bounds on a description, checked before any object is made from it.

A few kilobytes can stand for 2⁵⁰ objects if each object holds the previous one twice. Hashing, comparing or printing
such a structure would never end. So the size with all references followed is bounded by a multiple of the size in the
file. The depth is bounded since reading is recursive. No object contains itself: it refers only to earlier objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import StateError

MOST_LEVELS = 150
"""Largest depth; an ensemble of nets has about 20."""
EXPANSION = 20
"""Largest size with references followed, as a multiple of the size in the file."""
ALLOWANCE = 20_000
"""Additional entries for descriptions of any size."""
LETTERS = 64
"""A text counts as one entry, and one more for each so many letters."""
REFERENCE = "ref"
"""Kind of a node that refers to an object."""
NOT_OURS = "it was not written by sklearn_laplace."


def check_tree(objects: Sequence[Any], root: Any) -> None:
    """Raise a StateError for a description that is too deep, contains itself or stands for too many objects."""
    measured: list[tuple[int, int]] = []
    entries = 0
    for node in [*objects, root]:
        own_size, size, levels = _measure(node, measured)
        entries += own_size
        measured.append((size, levels))
        if size > EXPANSION * entries + ALLOWANCE:
            raise StateError(f"the state stands for {size:,} objects in {entries:,} entries: {NOT_OURS}")


def _measure(node: Any, measured: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """Entries of a node, the same with references followed, and its levels."""
    own_size = size = levels = 0
    stack = [(node, 1)]
    while stack:
        entry, level = stack.pop()
        own_size += 1 + len(entry) // LETTERS if isinstance(entry, str) else 1
        if isinstance(entry, list) and entry[:1] == [REFERENCE]:
            below, height = measured[checked_place(entry[1], measured)]
            size, level = size + below, level + height
        elif isinstance(entry, list):
            stack += [(child, level + 1) for child in entry]
        levels = max(levels, level)
        if levels > MOST_LEVELS:
            raise StateError(f"the state is more than {MOST_LEVELS} levels deep: {NOT_OURS}")
    return own_size, own_size + size, levels


def checked_place(place: Any, values: Sequence[Any]) -> int:
    """A place in a list; a StateError for another number, such as that of an object that follows."""
    if type(place) is not int or not 0 <= place < len(values):
        raise StateError(f"the state refers to number {place!r:.200} of {len(values)}: {NOT_OURS}")
    return place
