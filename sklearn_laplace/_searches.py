"""The scikit-learn search that calls a fit, and what its fits share: trainings, and warnings that are given once."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Value = TypeVar("Value")
MOST_BYTES = 2**28
"""Size of the results that a search keeps; beyond it, the oldest ones are dropped."""


@dataclass
class Shared:
    """State that the fits of a search share.

    Parameters
    ----------
    call : int
        Identity of the call of the search's ``fit``.
    categories : set
        Categories of the warnings that have been given.
    kept : OrderedDict
        Results by their keys, the latest last, each with its size in bytes.
    """

    call: int = 0
    categories: set[type[Warning]] = field(default_factory=set)
    kept: OrderedDict[str, tuple[Any, int]] = field(default_factory=OrderedDict)

    def result(self, key: str, compute: Callable[[], Value], size: Callable[[Value], int]) -> tuple[Value, bool]:
        """Result for a key, computed if it is not kept; and True if it was. ``size`` returns its bytes."""
        if key in self.kept:
            self.kept.move_to_end(key)
            return self.kept[key][0], True
        value = compute()
        self.kept[key] = value, size(value)
        while sum(n_bytes for _, n_bytes in self.kept.values()) > MOST_BYTES:
            self.kept.popitem(last=False)
        return value, False


_of_searches: WeakKeyDictionary[Any, Shared] = WeakKeyDictionary()
_of_worker = Shared()


def current_search() -> tuple[Any, Shared] | None:
    """The innermost search whose fit is running in this thread, and what its fits share; None outside of a search.

    In a worker process of a search, the search itself is not known, and None in its place.
    """
    frame: FrameType | None = sys._getframe(1)
    is_worker = False
    while frame is not None:
        name, owner = frame.f_code.co_name, frame.f_locals.get("self")
        if name == "fit" and _is_search(owner):
            shared = _of_searches.get(owner)
            if shared is None or shared.call != id(frame):
                shared = _of_searches[owner] = Shared(id(frame))
            return owner, shared
        is_worker |= name == "_fit_and_score" and frame.f_globals.get("__name__", "").startswith("sklearn.")
        frame = frame.f_back
    return (None, _of_worker) if is_worker else None


def _is_search(owner: object) -> bool:
    """True for ``GridSearchCV`` and its like; the classes are named, since the engine does without scikit-learn."""
    return any(kind.__name__ == "BaseSearchCV" for kind in type(owner).__mro__)
