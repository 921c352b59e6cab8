"""Warnings that point to the line of the user's program that called the package."""

from __future__ import annotations

import sys
import warnings

from ._searches import current_search

BETWEEN = {"sklearn_laplace", "sklearn", "joblib", "contextlib", "functools"}
"""Packages between the user's line and the warning: this one, and those that call it or wrap its functions."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Issue a warning for the innermost line outside this package and outside of scikit-learn and joblib.

    Without such a line, in a thread or process of joblib, it is the outermost one. The candidates of a scikit-learn
    search give each category once. A message tells what was given, what follows from it, and what to do.
    """
    search = current_search()
    if search is not None and not search.may_warn(message, category):
        return
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
