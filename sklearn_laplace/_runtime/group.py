"""The process group of a fit whose rows are divided among several processes (``torch.distributed``).

Every rank calls the same method with its own rows, and takes the same decisions: sums are all-reduced, and choices that
depend on time are those of rank 0. Without a process group there is one rank, and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Value = TypeVar("Value")


@dataclass(frozen=True)
class Group:
    """Ranks that fit one model together: the number of this process, from 0, and the number of processes."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> Group:
        """The default process group of torch, or a single rank without one."""
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
        """The decision of rank 0."""
        if self.is_alone:
            return flag
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        decision = torch.tensor([float(flag)], device=device)
        dist.broadcast(decision, src=0)
        return bool(decision[0] > 0)

    def gathered(self, value: Value) -> list[Value]:
        """Values of all ranks, in the order of the ranks. They are pickled."""
        if self.is_alone:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def of_first(self, value: Value) -> Value:
        """The value of rank 0, on every rank. It is pickled."""
        if self.is_alone:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def raise_together(self, error: BaseException | None) -> None:
        """Raise an error on all ranks if one has failed, so that none waits for another.

        A rank raises its own error, or else a ``RuntimeError`` with the message of the first rank that has failed.
        """
        messages = self.gathered(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        failed = [(rank, message) for rank, message in enumerate(messages) if message is not None]
        if failed:
            raise RuntimeError(f"rank {failed[0][0]} of {self.size} has failed: {failed[0][1]}")
