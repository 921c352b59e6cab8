"""Count the values that the host reads. Each read would stall a GPU."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal.default")
"""Operations whose result the host needs."""


class Reads(TorchDispatchMode):
    """Mode that counts these operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += any(name in str(func) for name in READS)
        return func(*args, **(kwargs or {}))
