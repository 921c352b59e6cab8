"""Parameter blocks: one per layer or per tensor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ParameterBlock:
    """A contiguous part of the parameter vector: a matrix of ``outputs`` rows and ``inputs`` columns.

    It is [W | b] for a factored layer, whose Jacobian is inputs and cotangents. A dense tensor is a single row.
    """

    name: str  # of the layer or tensor in the module
    outputs: int
    inputs: int
    factored: bool
    positions: int = 1  # at which a factored layer is applied in each row

    @property
    def size(self) -> int:
        """Number of parameters in the block."""
        return self.outputs * self.inputs

    def width(self, n_columns: int) -> int:
        """Elements per row of the block's part with K columns. A layer at several positions includes its dense form."""
        if not self.factored:
            return n_columns * self.size
        factors = self.positions * (self.inputs + n_columns * self.outputs)
        return factors if self.positions == 1 else factors + n_columns * self.size
