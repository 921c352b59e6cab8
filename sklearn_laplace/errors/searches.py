"""Find the scikit-learn search that calls a fit.

The fits of a search share trained nets, and issue no warning twice except in worker processes.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Value = TypeVar("Value")
MOST_BYTES = 2**28
MOST_BYTES_OF_WORKER = 2**26
"""Maximum total bytes of the results kept by a search, and by a worker process."""
PLACES = "fit", "_fit_and_score"
"""Names of the functions of ``sklearn.model_selection`` that fit candidates."""


@dataclass
class Shared:
    """State that the fits of one search share."""

    given: set[Any] = field(default_factory=set)  # categories and messages of issued warnings
    kept: OrderedDict[str, tuple[Any, int]] = field(default_factory=OrderedDict)  # results and bytes, oldest use first
    most: int = MOST_BYTES  # total bytes, above which the least recently used results are dropped

    def result(self, key: str, compute: Callable[[], Value], size: Callable[[Value], int]) -> tuple[Value, bool]:
        """Return the result for a key, computed unless stored, and True if it was stored. ``size`` counts its bytes."""
        if key in self.kept:
            self.kept.move_to_end(key)
            return self.kept[key][0], True
        value = compute()
        self.kept[key] = value, size(value)
        while sum(n_bytes for _, n_bytes in self.kept.values()) > self.most:
            self.kept.popitem(last=False)
        return value, False


@dataclass(frozen=True)
class Search:
    """A running search, and the state that its fits share."""

    search: Any  # None in a worker process, where the search is not known
    shared: Shared
    is_candidate: bool  # False for the final fit of the best candidate

    def may_warn(self, message: str, category: type[Warning]) -> bool:
        """True in workers, for a category that is new among candidates, and for a new message in the final fit."""
        if self.search is None:
            return True
        known = self.shared.given
        is_new = category not in known if self.is_candidate else message not in known
        known.update((category, message))
        return is_new


_of_calls: WeakKeyDictionary[Any, Shared] = WeakKeyDictionary()
"""State of each call of a search's ``fit``, keyed by its ``Parallel`` object, which lives as long as the call."""
_of_worker = Shared(most=MOST_BYTES_OF_WORKER)


def current_search() -> Search | None:
    """Return the innermost search whose fit is running in this thread; None outside a search."""
    frame: FrameType | None = sys._getframe(1)
    is_candidate = False
    while frame is not None:
        name = frame.f_code.co_name
        if name in PLACES and frame.f_globals.get("__name__", "").startswith("sklearn.model_selection."):
            is_candidate |= name == "_fit_and_score"
            call = frame.f_locals.get("parallel") if name == "fit" else None
            if call is not None:
                return Search(frame.f_locals["self"], _of_calls.setdefault(call, Shared()), is_candidate)
        frame = frame.f_back
    return Search(None, _of_worker, True) if is_candidate else None
