"""Encoded rows and mini-batches of a joint training, in memory or read from a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from .._host.rows import TrainingRows
from ..nets import MLP, TableMLP
from .stream import StreamedBatches

ENCODED_BYTES = 2**28
"""Maximum size of encoded rows that are kept in memory. Larger data are encoded batch by batch."""
CHUNK = 4096
"""Number of rows per chunk in encoding and in forward passes without a gradient."""


@dataclass(frozen=True)
class Encoded:
    """Inputs (n, d), float64, of numbers and category codes, encoded for the first layer."""

    module: MLP | TableMLP
    inputs: Tensor
    dtype: torch.dtype
    numbers: Tensor | None  # (n, D); None if too large to keep
    codes: Tensor  # (n, q), int64

    @classmethod
    @torch.no_grad()
    def of(cls, module: MLP | TableMLP, inputs: Tensor, dtype: torch.dtype) -> Encoded:
        """Encode the rows, unless the result would be larger than ``ENCODED_BYTES``."""
        width = 0 if module.first is None else module.first.weight.shape[1]
        codes = inputs[:, module.categorical].long()
        if 4 * len(inputs) * width > ENCODED_BYTES:
            return cls(module, inputs, dtype, None, codes)
        parts = [module.numbers(chunk).to(dtype) for chunk in inputs.split(CHUNK)]
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
    """Mini-batch: encoded numbers and codes of n rows, and their targets, shares (n, K) and precisions."""

    numbers: Tensor
    codes: Tensor
    targets: Tensor
    shares: Tensor
    precision: Tensor


class StreamedRows:
    """Iterator over the mini-batches of a table that is larger than memory, with dtypes and device of the sample
    ``rows``.

    ``unit`` (K, 1) is the factor of the row weights of each net.
    """

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
            shares = (torch.from_numpy(seen).to(self.unit) * rows.weights * self.unit).mT.contiguous()
            encoded = Encoded.of(self.module, rows.inputs, dtype)
            whole = torch.arange(len(rows), device=rows.inputs.device).split(size)
            for chosen in islice(whole, self._skipped, n_whole):
                numbers, codes = encoded.taken(chosen)
                precision = self.precision_of(rows.inputs[chosen]).to(shares)
                yield Batch(numbers, codes, rows.targets[chosen], shares[chosen], precision)
            self._skipped = 0
