"""Training rows as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..laplace.fit import Rows
from ..laplace.likelihoods._base import with_noise

CHUNK = 512
"""Number of rows whose Jacobians are computed at a time."""


@dataclass(frozen=True)
class TrainingRows:
    inputs: Tensor  # (n, d)
    targets: Tensor  # (n, C), standardised, or class indices (n,)
    weights: Tensor  # (n,)
    noise: Tensor | None = None  # (n, C), known noise variances, in units of φ
    n_logits: int = 0  # outputs of the net for classes

    @cached_property
    def observed(self) -> Tensor:
        """Targets combined with their known noise, in the form that the likelihood takes."""
        return with_noise(self.targets, self.noise)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def n_outputs(self) -> int:
        return self.n_logits or self.targets.shape[1]

    @cached_property
    def total_weight(self) -> float:
        return float(self.weights.double().sum())

    def to(self, dtype: torch.dtype) -> TrainingRows:
        targets = self.targets.to(dtype) if self.targets.is_floating_point() else self.targets
        noise = None if self.noise is None else self.noise.to(dtype)
        return TrainingRows(self.inputs.to(dtype), targets, self.weights.to(dtype), noise, self.n_logits)

    def taken(self, index: Tensor) -> TrainingRows:
        noise = None if self.noise is None else self.noise[index]
        return TrainingRows(self.inputs[index], self.targets[index], self.weights[index], noise, self.n_logits)

    def chunks(self, step: int) -> list[Rows]:
        spans = [slice(start, start + step) for start in range(0, len(self), step)]
        return [(self.inputs[span], self.observed[span], self.weights[span]) for span in spans]


def some_rows(n_rows: int, most: int) -> Tensor:
    """Sorted indices of all rows, or of a random sample of at most ``most`` rows, with a fixed seed."""
    return torch.randperm(n_rows, generator=torch.Generator().manual_seed(0))[:most].sort().values
