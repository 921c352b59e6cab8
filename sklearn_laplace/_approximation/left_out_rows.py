"""The rows of a fit as leave-one-out needs them."""

from __future__ import annotations

import torch

from .._data.rows import PreparedData
from .._runtime.memory import MemoryBudget
from .._training.random_weights import _as_tensors
from ..errors import UnsupportedCombinationError
from ..laplace.leave_one_out.densities import Density
from ..laplace.network.network import Network
from .left_out import LeftOut


def rows_left_out(
    kept: PreparedData | None,
    network: Network,
    input_dtype: torch.dtype,
    memory: MemoryBudget,
    density: Density,
    asked: str,
) -> LeftOut:
    """The rows that an estimator has kept, as a fit of this network leaves them out.

    Raises
    ------
    UnsupportedCombinationError
        When there are none: names what has asked for them.
    """
    if kept is None:
        raise UnsupportedCombinationError(
            f"{asked} needs the training rows, and forget has dropped all that were kept. Fit the rows that are left."
        )
    dtype = next(network.module.parameters()).dtype
    return LeftOut(_as_tensors(kept, input_dtype, dtype, network.theta.device), memory, density)
