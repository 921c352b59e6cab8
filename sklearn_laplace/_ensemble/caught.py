"""Warnings of members, which are recorded while they are fitted and issued once it is known which of them count."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from ..errors import BoundWarning, ClippedWarning, JitterWarning

OF_MEMBERS = ClippedWarning, JitterWarning
"""Warnings that concern a single net."""
Caught: TypeAlias = "list[warnings.WarningMessage]"


@contextmanager
def kept_back() -> Iterator[Caught]:
    """Record all warnings, in order to issue them later."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def issue(caught: Caught, *, of_others: bool) -> None:
    """Issue recorded warnings; those of later members once per category.

    Since a training factorises hundreds of matrices, only one jitter warning is issued.
    """
    issued: set[type[Warning]] = set()
    for record in caught:
        message: Warning | str = record.message
        if issubclass(record.category, OF_MEMBERS):
            if record.category in issued and (of_others or issubclass(record.category, JitterWarning)):
                continue
            message = f"another member of the ensemble: {message}" if of_others else message
        elif of_others and issubclass(record.category, BoundWarning):
            continue
        issued.add(record.category)
        warnings.warn_explicit(message, record.category, record.filename, record.lineno)
