"""A previous posterior as the prior of new rows: its curvature is added to theirs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from .fit import Hyper, LaplaceFit
from .structures import Full, Functional
from .structures._base import Curvature


@dataclass(frozen=True)
class PreviousPosterior:
    """A previous posterior as the prior of new rows.

    Parameters
    ----------
    fit : LaplaceFit
        Of the rows seen so far, whose curvature adds up over rows.
    hyper : Hyper
        Under which they were fitted.
    module : nn.Module
        The trained net's.
    """

    fit: LaplaceFit
    hyper: Hyper
    module: nn.Module

    def dual_rows(self, n_columns: int) -> int:
        """Rows × columns that a dual form holds of the past; nothing in any other structure."""
        return round(self.fit.total_weight) * n_columns if isinstance(self.fit.curvature, Functional) else 0

    def within(self, structure: type[Curvature]) -> LaplaceFit:
        """The fit with its curvature in this structure: its own, or ``Full``, P products with it."""
        if isinstance(self.fit.curvature, structure):
            return self.fit
        blocks, theta = self.fit.network.blocks, self.fit.theta
        identity = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
        matrix = torch.stack([self.fit.curvature.times(row) for row in identity])
        return replace(self.fit, curvature=Full(matrix, tuple(block.size for block in blocks)))
