"""Warnings that point to a line of the user's program, and warnings about experimental features.

The policy on what may change is on the page "API policy".
"""

import sys
import warnings

from . import ExperimentalWarning
from .searches import current_search

BETWEEN = {"sklearn_laplace", "sklearn", "joblib", "contextlib", "functools"}
"""Packages between the user's line and the warning: this one, and those that call it or wrap its functions."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Issue a warning that points to the innermost line outside :data:`BETWEEN`, unless a search suppresses it."""
    search = current_search()
    if search is not None and not search.may_warn(message, category):
        return
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


SEEN: set[str] = set()
"""Experimental features that this process has warned about."""


def experimental(feature: str) -> None:
    """Warn once per process that ``feature``, a noun phrase with an article, may change without a deprecation."""
    if feature not in SEEN:
        SEEN.add(feature)
        warn_user(
            f"{feature} is experimental: its results and its interface may change in any release. Silence this with "
            "warnings.simplefilter('ignore', sklearn_laplace.errors.ExperimentalWarning).",
            ExperimentalWarning,
        )
