"""Names of scorers of predictive distributions, which ``metrics`` registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Scorer = Callable[..., Any]
"""Function of (model, X, y) or (model, X, y, sample_weight) that returns a number; higher is better."""
SCORERS: dict[str, Scorer] = {}
"""Proper scores by name, oriented so that higher is better."""
REPORTED: dict[str, str] = {}
"""Names of metrics that must not be maximised, and the scorer to use instead."""
