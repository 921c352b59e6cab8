"""Training rows as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from ..laplace.fit import Rows
from ..laplace.likelihoods._base import with_noise


@dataclass(frozen=True)
class TrainingRows:
    """The rows to train on, as tensors on their device.

    Parameters
    ----------
    inputs : Tensor of shape (n, d)
    targets : Tensor of shape (n, C) or (n,)
        Standardised targets, or class indices.
    weights : Tensor of shape (n,)
    noise : Tensor of shape (n, C), optional
        Known noise variances, in units of φ.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    noise: Tensor | None = None

    @cached_property
    def observed(self) -> Tensor:
        """Targets with their known noise, as the likelihood takes them."""
        return with_noise(self.targets, self.noise)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def total_weight(self) -> float:
        """N_w."""
        return float(self.weights.double().sum())

    def taken(self, index: Tensor) -> TrainingRows:
        """Some of the rows, by their numbers."""
        noise = None if self.noise is None else self.noise[index]
        return TrainingRows(self.inputs[index], self.targets[index], self.weights[index], noise)

    def chunks(self, step: int) -> list[Rows]:
        """The rows in slices of ``step``."""
        spans = [slice(start, start + step) for start in range(0, len(self), step)]
        return [(self.inputs[span], self.observed[span], self.weights[span]) for span in spans]
