"""Which options a fit supports whose rows are read from a source."""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedCombinationError

NEEDS = "Omit it, or read the rows into memory."
"""Cure in the error about an option."""


def check_options(**arguments: Any) -> None:
    """Refuse arguments of ``fit`` with one value per row that a source does not have.

    Raises
    ------
    UnsupportedCombinationError

    Examples
    --------
    >>> check_options(X_val=None)
    """
    for name, value in arguments.items():
        if value is not None:
            raise UnsupportedCombinationError(f"{name} is not supported for rows that are read from a source. {NEEDS}")


def check_streamed(rule: object) -> None:
    """Refuse a rule that selects the prior precision by fits to parts of the rows.

    Raises
    ------
    UnsupportedCombinationError
    """
    if rule is not None:
        raise UnsupportedCombinationError(
            "prior_precision='cv' and 'validation' need all rows in memory, and X is a large source. Use "
            "prior_precision='auto', which selects it on held-out rows."
        )
