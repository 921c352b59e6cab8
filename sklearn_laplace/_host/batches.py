"""Mini-batches by slicing tensors instead of collating single rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from .rows import TrainingRows


class WeightedTargets(Tensor):
    """Targets of a batch, as scoring callbacks take them, with what the loss takes instead."""

    observed: Tensor  # targets combined with their known noise
    weights: Tensor  # (n,)


class SlicingIterator:
    """Iterator over mini-batches, each a slice of one permuted copy of the rows per epoch, without collating.

    Without a seed, order and draws from torch's global generator are those of ``torch.utils.data.DataLoader``, so that
    a net trains as by skorch alone. With a seed, its own generator draws the permutations, and a full batch is not
    permuted.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int | None = None,
    ) -> None:
        rows, index = (dataset.dataset, dataset.indices) if isinstance(dataset, Subset) else (dataset, None)
        assert isinstance(rows, RowsDataset)
        tensors = (rows.rows.inputs, rows.rows.targets, rows.rows.observed, rows.rows.weights)
        if index is not None:
            chosen = torch.as_tensor(np.asarray(index), device=tensors[0].device)
            tensors = tuple(t[chosen] for t in tensors)  # type: ignore[assignment]
        self.tensors: tuple[Tensor, ...] = tensors
        self.is_plain = rows.unweighted and rows.rows.noise is None
        self.batch_size = max(batch_size, 1)
        n = len(tensors[0])
        self.shuffle = shuffle and (seed is None or self.batch_size < n)
        self.n_used = n - n % self.batch_size if drop_last else n
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return math.ceil(self.n_used / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        tensors = self.tensors
        generator = self.generator
        if generator is None:
            _draw()  # the base seed of a DataLoader's workers
            generator = torch.Generator().manual_seed(_draw()) if self.shuffle else None
        if self.shuffle:
            order = torch.randperm(len(tensors[0]), generator=generator)
            tensors = tuple(tensor[order.to(tensor.device)] for tensor in tensors)
        for start in range(0, self.n_used, self.batch_size):
            x, y, observed, weights = (tensor[start : start + self.batch_size] for tensor in tensors)
            if not self.is_plain:
                y = y.as_subclass(WeightedTargets)
                y.observed, y.weights = observed, weights
            yield x, y


def _draw() -> int:
    """Seed from torch's global generator."""
    return int(torch.empty((), dtype=torch.int64).random_().item())


class RowsDataset(Dataset[Any]):
    """Data set for skorch: item i is (x, y) if all weights are 1, otherwise (x, (y, w)).

    ``X`` and ``y`` exist for scoring callbacks; ``y`` excludes the known noise.
    """

    def __init__(self, rows: TrainingRows) -> None:
        self.rows = rows
        self.unweighted = bool((rows.weights == 1).all())
        self.X, self.y = rows.inputs, rows.targets

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor]]:
        y = self.rows.observed[i]
        return self.rows.inputs[i], y if self.unweighted else (y, self.rows.weights[i])
