"""Rows that are read while a fit runs: shuffled mini-batches for the training, and blocks for sums over all rows.

A fold is a set of hashes of rows, which needs no memory and is the same in every process. The parts of the source are
taken in random order, ``OPEN_PARTS`` at a time; random blocks of these fill a buffer, whose rows are permuted. A thread
fills the next buffer in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import numpy as np
from torch import Tensor

from .._data.rows import PreparedData, rehashed, row_keys
from .._data.table import Table
from .._runtime.group import Group
from .._sources.source import Block, RowSource
from .repeats import FOLDS_OF_MANY, N_REPEATS

BUFFER_ROWS = 2**16
"""Number of rows of a buffer."""
OPEN_PARTS = 8
"""Number of parts of a source whose rows are mixed."""


@dataclass(frozen=True)
class RowStream:
    """Rows of this rank, and the number and total weight (of prepared rows) of the rows of all ranks."""

    shard: RowSource
    read: Callable[[Block], PreparedData]  # prepared rows, in the units of the network
    n_rows: int
    total_weight: float
    group: Group
    table: Callable[[], Table | None]  # encoding whose ranges include the rows that were read

    @property
    def share(self) -> int:
        return self.shard.n_rows

    def blocks(self) -> Iterator[PreparedData]:
        """Yield the rows of this rank in order, about ``BUFFER_ROWS`` at a time."""
        yield from _ahead(self._buffers(self.shard.all_blocks()))

    def some(self, most: int) -> Iterator[PreparedData]:
        """Yield all rows of this rank, or a random choice of at most this number, weighted like all of them."""
        if self.share <= most:
            yield from self.blocks()
            return
        left = most
        for rows in self.shuffled(0):
            yield rows.taken(np.arange(min(left, len(rows.X)))).weighted(self.share / most)
            left -= len(rows.X)
            if left <= 0:
                return

    def shuffled(self, seed: int) -> Iterator[PreparedData]:
        """Yield buffers of rows in random order, without end."""
        of_parts, of_rows = (np.random.default_rng([seed, self.group.rank, k]) for k in range(2))  # of two threads
        endless = chain.from_iterable(self._mixed(of_parts) for _ in iter(int, 1))
        for rows in _ahead(self._buffers(endless)):
            yield rows.taken(of_rows.permutation(len(rows.X)))

    def _mixed(self, rng: np.random.Generator) -> Iterator[Block]:
        """Yield all blocks of this rank once, from several parts in turn."""
        waiting = iter(rng.permutation(len(self.shard.lengths)).tolist())
        parts: list[Iterator[Block]] = []
        while True:
            while len(parts) < OPEN_PARTS and (part := next(waiting, None)) is not None:
                parts.append(self.shard.blocks(part))
            if not parts:
                return
            place = int(rng.integers(len(parts)))
            block = next(parts[place], None)
            if block is None:
                del parts[place]
            else:
                yield block

    def _buffers(self, blocks: Iterator[Block]) -> Iterator[PreparedData]:
        """Collect prepared rows up to the size of a buffer."""
        collected: list[PreparedData] = []
        for block in blocks:
            collected.append(self.read(block))
            if sum(len(rows.X) for rows in collected) >= BUFFER_ROWS:
                yield PreparedData.together(collected)
                collected = []
        if collected:
            yield PreparedData.together(collected)


def _ahead(buffers: Iterator[PreparedData]) -> Iterator[PreparedData]:
    """Yield the same buffers; a thread prepares the next one while the caller works on the last one."""
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, buffers, None)
        while (rows := following.result()) is not None:
            following = thread.submit(next, buffers, None)
            yield rows


def folds_of(data: PreparedData, n_repeats: int = N_REPEATS) -> np.ndarray:
    """Fold of each row in each repeat, shape (n_repeats, n), by its hash: the same in any block and on any rank."""
    keys, folds = row_keys(data.X, data.targets), []
    for _ in range(n_repeats):
        keys = rehashed(keys)
        folds.append((keys % np.uint64(FOLDS_OF_MANY)).astype(np.int64))
    return np.stack(folds)


def held_out_by_hash(data: PreparedData, n_repeats: int = N_REPEATS) -> np.ndarray:
    """Mask of the rows that each member holds out, shape (n_repeats · FOLDS_OF_MANY, n); see :func:`folds_of`."""
    return (folds_of(data, n_repeats)[:, None] == np.arange(FOLDS_OF_MANY)[:, None]).reshape(
        n_repeats * FOLDS_OF_MANY, -1
    )


@dataclass(frozen=True)
class StreamedBatches:
    """Mini-batches of a stream for some members."""

    stream: RowStream
    members: range  # positions among the members of all repeats
    batch_size: int  # rows of all ranks
    seed: int

    def buffers(self) -> Iterator[tuple[PreparedData, np.ndarray]]:
        """Yield rows in random order, without end, and the members that are trained on each of them, (K, n)."""
        for rows in self.stream.shuffled(self.seed):
            yield rows, ~held_out_by_hash(rows)[self.members.start : self.members.stop]

    def average_(self, gradients: Sequence[Tensor]) -> None:
        """Replace gradients by their averages over all ranks."""
        group = self.stream.group
        if not group.is_alone:
            group.sum_(gradients)
            for gradient in gradients:
                gradient /= group.size
