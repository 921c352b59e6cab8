"""A previous posterior as the prior for new rows. Its curvature is added to theirs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from .fit import Hyper, LaplaceFit
from .structures import Full, Functional
from .structures._base import Curvature


@dataclass(frozen=True)
class PreviousPosterior:
    """A previous posterior as the prior for new rows."""

    fit: LaplaceFit  # of the earlier rows; its curvature is additive over rows
    hyper: Hyper
    module: nn.Module  # the trained net

    def dual_rows(self, n_columns: int) -> int:
        """Dual rows (rows × output-factor columns) of the earlier fit in a dual form; 0 for any other structure."""
        return round(self.fit.total_weight) * n_columns if isinstance(self.fit.curvature, Functional) else 0

    def within(self, structure: type[Curvature]) -> LaplaceFit:
        """The fit, with its curvature converted to ``Full`` unless it has this structure already. Costs P products."""
        if isinstance(self.fit.curvature, structure):
            return self.fit
        blocks, theta = self.fit.network.blocks, self.fit.theta
        identity = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
        matrix = torch.stack([self.fit.curvature.times(row) for row in identity])
        return replace(self.fit, curvature=Full(matrix, tuple(block.size for block in blocks)))
