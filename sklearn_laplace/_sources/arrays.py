"""Rows in arrays or dataframes, which may be memory-mapped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from .source import BLOCK_ROWS, Block, RowSource

PART_ROWS = 8 * BLOCK_ROWS
"""Number of rows of a part of an array."""


@dataclass(frozen=True)
class ArraySource(RowSource):
    """Arrays or dataframes of n rows: X (n, d), y (n,) or (n, C) or None, and row weights (n,) or None."""

    X: Any
    y: Any = None
    sample_weight: Any = None

    @property
    def lengths(self) -> Sequence[int]:
        n = len(self.X)
        return [min(PART_ROWS, n - start) for start in range(0, n, PART_ROWS)]

    def blocks(self, part: int) -> Iterator[Block]:
        """Yield copies of the rows of a part in order."""
        begin = part * PART_ROWS
        for start in range(begin, min(begin + PART_ROWS, len(self.X)), BLOCK_ROWS):
            span = slice(start, min(start + BLOCK_ROWS, begin + PART_ROWS, len(self.X)))
            yield Block(*(None if part is None else _rows(part, span) for part in (self.X, self.y, self.sample_weight)))

    @property
    def identity(self) -> object:
        """None: every process has its own arrays."""
        return None


def _rows(values: Any, span: slice) -> Any:
    if isinstance(values, np.ndarray):
        return np.array(values[span])  # of a memory-mapped array too
    return _safe_indexing(values, np.arange(span.start, span.stop))
