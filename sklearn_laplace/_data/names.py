"""Column names that are not strings: years, dates or tuples. scikit-learn compares only strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def keys_of(names: Sequence[Any] | None) -> tuple[str, ...]:
    """Text of each name, equal for equal numbers of any type; empty without names, and if all names are strings."""
    if names is None or all(isinstance(name, str) for name in names):
        return ()
    return tuple(repr(built_in(name)) for name in names)


def built_in(name: Any) -> Any:
    """Equal value of built-in types, also within tuples; whole numbers are integers."""
    if isinstance(name, tuple):
        return tuple(built_in(part) for part in name)
    name = name.item() if isinstance(name, np.generic) else name
    return int(name) if isinstance(name, float) and name.is_integer() else name


def check_names(estimator: Any, names: Sequence[Any] | None, *, reset: bool) -> None:
    """Keep the names of a fit in ``_column_names``; ``ValueError`` if those of a later table or their order differ."""
    given, fitted = keys_of(names), estimator._column_names
    if reset:
        if given:
            estimator._column_names = given
        elif fitted:
            del estimator._column_names
    elif len(given) == len(fitted) and given != fitted:  # scikit-learn compares the numbers of columns
        place = next(k for k, pair in enumerate(zip(given, fitted, strict=True)) if pair[0] != pair[1])
        order = "in another order" if sorted(given) == sorted(fitted) else "under other names"
        raise ValueError(
            f"X has the columns of the fit {order}: column {place} is named {given[place]}, and was {fitted[place]} in "
            "the fit. Pass the same columns in the same order: X[list(X_train.columns)]."
        )
