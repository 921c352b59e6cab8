"""Sources of rows: tables in parts, which one or several processes read in any order, block by block.

A block has at most ``BLOCK_ROWS`` rows, so the memory in use does not depend on the number of rows.

**Several processes** (``torch.distributed``). Every rank (process) calls the same method with its own rows. All ranks
make the same decisions: sums are all-reduced, and choices that depend on time are those of rank 0.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from sklearn.utils import _safe_indexing
from torch import Tensor

Value = TypeVar("Value")


@dataclass(frozen=True)
class Group:
    """Processes that fit one model: the number of this process (its rank, from 0), and their number."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> Self:
        """Default process group of torch; without one, a group of this process only."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_alone(self) -> bool:
        return self.size == 1

    @torch.no_grad()
    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one dtype and device by their sums over all ranks, in one message."""
        if self.is_alone or not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def agrees(self, flag: bool) -> bool:
        if self.is_alone:
            return flag
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        decision = torch.tensor([float(flag)], device=device)
        dist.broadcast(decision, src=0)
        return bool(decision[0] > 0)

    def gathered(self, value: Value) -> list[Value]:
        """Values of all ranks, in the order of the ranks. The values are pickled."""
        if self.is_alone:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def of_first(self, value: Value) -> Value:
        if self.is_alone:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def raise_together(self, error: BaseException | None) -> None:
        """Raise an error on all ranks if one rank has failed, so none waits for another."""
        messages = self.gathered(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        failed = [(rank, message) for rank, message in enumerate(messages) if message is not None]
        if failed:
            raise RuntimeError(f"rank {failed[0][0]} of {self.size} has failed: {failed[0][1]}")


BLOCK_ROWS = 2**14
"""Maximum number of rows of a block."""


@dataclass(frozen=True)
class Block:
    """Some rows of a source, as the user passed them: X (n, d), y (n,), (n, C) or None, and weights (n,) or None."""

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
    def identity(self) -> object:
        """Plain value that is equal for sources of the same rows; None if the rows belong only to this process."""
        return None

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
        return range(self.first, len(self.whole.lengths), self.step)

    @property
    def lengths(self) -> Sequence[int]:
        return [self.whole.lengths[part] for part in self.chosen]

    def blocks(self, part: int) -> Iterator[Block]:
        return self.whole.blocks(self.chosen[part])


def joined(blocks: Sequence[Block]) -> Block:
    first = blocks[0]
    y, weights = (
        None if getattr(first, name) is None else np.concatenate([np.asarray(getattr(block, name)) for block in blocks])
        for name in ("y", "sample_weight")
    )
    return Block(stacked([block.X for block in blocks]), y, weights)


def stacked(tables: Sequence[Any]) -> Any:
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


PART_ROWS = 8 * BLOCK_ROWS
"""Number of rows per part of an array."""


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


def _rows(values: Any, span: slice) -> Any:
    if isinstance(values, np.ndarray):
        return np.array(values[span])  # also copies memory-mapped arrays
    return _safe_indexing(values, np.arange(span.start, span.stop))
