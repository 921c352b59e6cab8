"""A source of rows: a table in parts that are read block by block, in any order of the parts.

A block has at most ``BLOCK_ROWS`` rows, so that the memory does not depend on the number of rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BLOCK_ROWS = 2**14
"""Maximum number of rows of a block."""


@dataclass(frozen=True)
class Block:
    """Some rows of a source, as the user passed them: X (n, d), y (n,) or (n, C) or None, and row weights (n,)."""

    X: Any
    y: Any = None
    sample_weight: Any = None

    def __len__(self) -> int:
        return len(self.X)


class RowSource(ABC):
    """A table in parts, such as the row groups of Parquet files."""

    @property
    @abstractmethod
    def lengths(self) -> Sequence[int]:
        """Number of rows of each part."""

    @abstractmethod
    def blocks(self, part: int) -> Iterator[Block]:
        """Yield the rows of a part in order, at most ``BLOCK_ROWS`` at a time."""

    @property
    @abstractmethod
    def identity(self) -> object:
        """Plain value that is equal for sources of the same rows, or None if the rows belong to this process alone."""

    @property
    def n_rows(self) -> int:
        return sum(self.lengths)

    def all_blocks(self) -> Iterator[Block]:
        for part in range(len(self.lengths)):
            yield from self.blocks(part)


@dataclass(frozen=True)
class SomeParts(RowSource):
    """Every ``step``-th part of another source, from position ``first``: the shard of one rank."""

    whole: RowSource
    first: int
    step: int

    @property
    def chosen(self) -> range:
        """Positions of the parts in the other source."""
        return range(self.first, len(self.whole.lengths), self.step)

    @property
    def lengths(self) -> Sequence[int]:
        return [self.whole.lengths[part] for part in self.chosen]

    def blocks(self, part: int) -> Iterator[Block]:
        return self.whole.blocks(self.chosen[part])

    @property
    def identity(self) -> object:
        """None: these rows belong to one rank."""
        return None


def joined(blocks: Sequence[Block]) -> Block:
    first = blocks[0]
    y, weights = (
        None if getattr(first, name) is None else np.concatenate([np.asarray(getattr(block, name)) for block in blocks])
        for name in ("y", "sample_weight")
    )
    return Block(stacked([block.X for block in blocks]), y, weights)


def stacked(tables: Sequence[Any]) -> Any:
    """Rows of several arrays or dataframes as one table."""
    if isinstance(tables[0], np.ndarray):
        return np.concatenate(tables)
    import pandas as pd

    return pd.concat(tables, ignore_index=True)


def is_dataset(X: Any) -> bool:
    """True for a dataset of pyarrow; pyarrow itself is not imported."""
    return any(kind.__module__.startswith("pyarrow") and kind.__name__ == "Dataset" for kind in type(X).__mro__)


def is_collection(value: Any) -> bool:
    """True for a dask dataframe, series or array; dask itself is not imported."""
    return (
        type(value).__module__.split(".")[0] in ("dask", "dask_expr") and getattr(value, "to_delayed", None) is not None
    )
