"""Blocks of parameters: one layer, or one tensor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ParameterBlock:
    """One stretch of the parameter vector: a matrix of ``outputs`` rows and ``inputs`` columns.

    Parameters
    ----------
    name : str
        The layer's or the tensor's name in the module.
    outputs, inputs : int
        Shape of [W | b] for a factored layer; (1, number of elements) for a dense tensor.
    factored : bool
        Whether the block's Jacobian comes as inputs and cotangents.
    positions : int
        L, at how many positions of each row a factored layer is applied.

    Examples
    --------
    >>> ParameterBlock("0", outputs=3, inputs=5, factored=True).size
    15
    """

    name: str
    outputs: int
    inputs: int
    factored: bool
    positions: int = 1

    @property
    def size(self) -> int:
        """Number of parameters in the block."""
        return self.outputs * self.inputs

    def width(self, n_columns: int) -> int:
        """Elements that one row's part makes, K columns: a shared layer is multiplied out for its sum."""
        if not self.factored:
            return n_columns * self.size
        factors = self.positions * (self.inputs + n_columns * self.outputs)
        return factors if self.positions == 1 else factors + n_columns * self.size
