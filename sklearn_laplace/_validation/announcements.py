"""Warnings about features that may still change. The policy is on the page "API policy"."""

from __future__ import annotations

from .._warn import warn_user
from ..errors import ExperimentalWarning

SEEN: set[str] = set()
"""Experimental features that this process has warned about."""


def experimental(feature: str) -> None:
    """Warn that a feature, a noun phrase with an article, may change without a deprecation: once in a process."""
    if feature not in SEEN:
        SEEN.add(feature)
        warn_user(
            f"{feature} is experimental: its results and its interface may change in any release. Silence this with "
            "warnings.simplefilter('ignore', sklearn_laplace.errors.ExperimentalWarning).",
            ExperimentalWarning,
        )
