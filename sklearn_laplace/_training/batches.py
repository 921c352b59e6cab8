"""Encoded rows and mini-batches of joint training, in memory or read from a stream while the fit runs.

A stream provides shuffled mini-batches for training, and blocks for sums over all rows. The fold of a row follows from
its hash, which needs no memory and is the same in every process. To shuffle, the parts of the source are taken in
random order, ``OPEN_PARTS`` at a time. Random blocks of these parts fill a buffer, whose rows are then permuted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, chain, islice

import numpy as np
import torch
from torch import Tensor

from .._table.rows import PreparedData, rehashed, row_keys
from .._table.source import Block, Group, RowSource
from .._table.table import Table
from ..laplace.fit import TrainingRows
from ..nets import MLP, TableMLP
from .recipe import FOLDS_OF_MANY, REPEATS

BUFFER_ROWS = 2**16
"""Number of rows of a stream in a buffer, and of row indices (512 kB) that a GPU gets at once while the host waits."""
OPEN_PARTS = 8
"""Number of parts of a source whose rows are mixed in a buffer."""


@dataclass(frozen=True)
class RowStream:
    """Rows of this rank (process), and the number and total weight of all ranks' prepared rows."""

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
        """Yield all rows of this rank, or a random sample of ``most`` rows, weighted to represent all rows."""
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
        of_parts, of_rows = (np.random.default_rng([seed, self.group.rank, k]) for k in range(2))  # used in two threads
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
        """Yield prepared rows in buffers of at least ``BUFFER_ROWS``."""
        collected: list[PreparedData] = []
        for block in blocks:
            collected.append(self.read(block))
            if sum(len(rows.X) for rows in collected) >= BUFFER_ROWS:
                yield PreparedData.together(collected)
                collected = []
        if collected:
            yield PreparedData.together(collected)


def _ahead(buffers: Iterator[PreparedData]) -> Iterator[PreparedData]:
    """Yield the same buffers. A thread prepares the next buffer while the caller works on the current one."""
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, buffers, None)
        while (rows := following.result()) is not None:
            following = thread.submit(next, buffers, None)
            yield rows


def folds_of(data: PreparedData, n_repeats: int = len(REPEATS)) -> np.ndarray:
    """Fold of each row in each repeat, shape (n_repeats, n), from its hash: the same in any block and on any rank."""
    keys, folds = row_keys(data.X, data.targets), []
    for _ in range(n_repeats):
        keys = rehashed(keys)
        folds.append((keys % np.uint64(FOLDS_OF_MANY)).astype(np.int64))
    return np.stack(folds)


def held_out_by_hash(data: PreparedData, n_repeats: int = len(REPEATS)) -> np.ndarray:
    """Mask of the rows that each member holds out, shape (n_repeats · FOLDS_OF_MANY, n); see :func:`folds_of`."""
    return (folds_of(data, n_repeats)[:, None] == np.arange(FOLDS_OF_MANY)[:, None]).reshape(
        n_repeats * FOLDS_OF_MANY, -1
    )


@dataclass(frozen=True)
class StreamedBatches:
    """Mini-batches of a stream for some members."""

    stream: RowStream
    members: range  # positions among the members of all repeats
    batch_size: int  # rows of all ranks together
    seed: int

    def buffers(self) -> Iterator[tuple[PreparedData, np.ndarray]]:
        """Yield rows in random order, without end, and a mask (K, n) of the members that are trained on each row."""
        for rows in self.stream.shuffled(self.seed):
            yield rows, ~held_out_by_hash(rows)[self.members.start : self.members.stop]

    def average_(self, gradients: Sequence[Tensor]) -> None:
        """Replace gradients by their averages over all ranks."""
        group = self.stream.group
        if not group.is_alone:
            group.sum_(gradients)
            for gradient in gradients:
                gradient /= group.size


ENCODED_BYTES = 2**28
"""Maximum size of encoded rows that are kept in memory. Larger data are encoded batch by batch."""
FORWARD_ROWS = 4096
"""Number of rows per chunk in encoding and in forward passes without a gradient."""


@dataclass(frozen=True)
class Encoded:
    """Inputs (n, d), float64, of numbers and category codes, encoded for the first layer."""

    module: MLP | TableMLP
    inputs: Tensor
    dtype: torch.dtype
    numbers: Tensor | None  # (n, D); None if too large to keep
    codes: Tensor  # (n, q), int64, places of the levels in the stacked embeddings of all categories

    @classmethod
    @torch.no_grad()
    def of(cls, module: MLP | TableMLP, inputs: Tensor, dtype: torch.dtype) -> Encoded:
        """Encode the rows, unless the result would be larger than ``ENCODED_BYTES``."""
        width = 0 if module.first is None else module.first.weight.shape[1]
        first_levels = [0, *accumulate(layer.in_features for layer in module.embeddings)][: len(module.categorical)]
        codes = inputs[:, module.categorical].long() + torch.tensor(first_levels, device=inputs.device).long()
        if 4 * len(inputs) * width > ENCODED_BYTES:
            return cls(module, inputs, dtype, None, codes)
        parts = [module.numbers(chunk).to(dtype) for chunk in inputs.split(FORWARD_ROWS)]
        return cls(module, inputs, dtype, torch.cat(parts), codes)

    @torch.no_grad()
    def taken(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        codes = self.codes.index_select(0, chosen)
        if self.numbers is not None:
            return self.numbers.index_select(0, chosen), codes
        return self.module.numbers(self.inputs[chosen]).to(self.dtype), codes


@dataclass(frozen=True)
class RowNoise:
    """Noise variances (n, C) of the training rows, up to a factor; ``of`` maps inputs (m, d) to variances (m, C)."""

    values: Tensor
    of: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Batch:
    """Mini-batch: encoded numbers and codes of n rows, targets, and factors of the loss, (K, n, 1) or (K, n, C)."""

    numbers: Tensor
    codes: Tensor
    targets: Tensor
    factors: Tensor


class StreamedRows:
    """Mini-batches of a stream with dtypes and device of ``rows``; ``unit`` (K, 1) is a factor of the row weights."""

    def __init__(self, module: MLP | TableMLP, batches: StreamedBatches, unit: Tensor, rows: TrainingRows) -> None:
        self.module, self.batches, self.unit, self.like = module, batches, unit, rows
        self.precision_of: Callable[[Tensor], Tensor] = lambda inputs: torch.ones(1, 1)
        self.n_read, self._skipped = 0, 0
        self._all = self._yielded()

    def skip(self, n_batches: int) -> None:
        self.n_read = self._skipped = n_batches

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = next(self._all)
        self.n_read += 1
        return batch

    def _yielded(self) -> Iterator[Batch]:
        dtype, size = self.unit.dtype, max(self.batches.batch_size // self.batches.stream.group.size, 1)  # of a rank
        for data, seen in self.batches.buffers():
            n_whole = max(len(data.X) // size, 1)
            if self._skipped >= n_whole:
                self._skipped -= n_whole
                continue
            rows = data.tensors(self.like.inputs.dtype, dtype, self.like.inputs.device)
            shares = torch.from_numpy(seen).to(self.unit) * rows.weights * self.unit
            encoded = Encoded.of(self.module, rows.inputs, dtype)
            whole = torch.arange(len(rows), device=rows.inputs.device).split(size)
            for chosen in islice(whole, self._skipped, n_whole):
                numbers, codes = encoded.taken(chosen)
                precision = self.precision_of(rows.inputs[chosen]).to(shares)
                factors = shares[:, chosen, None] / len(chosen) * precision
                yield Batch(numbers, codes, rows.targets[chosen], factors)
            self._skipped = 0
