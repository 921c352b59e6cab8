"""Fitted members of an ensemble, with densities of held-out rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._approximation.calibration import HeldOutDensities
from .._approximation.row_densities import Densities
from .._training.plan import WarmStart
from ..laplace.selection import HeldOutErrors
from .member import Member

LEAST_SHARE = 0.1
"""Minimum weight of a kind of nets beside the first one."""
LEAST_BESIDE = 0.2
"""Minimum weight of a net with exact steps in a joint ensemble."""


@dataclass(frozen=True)
class FittedMember:
    """Member that was trained alone, and data for later members; its held-out rows are those of cross-fitted nets."""

    member: Member
    start: WarmStart  # end state of its training and of the cross-fitted nets
    densities: Densities | None  # of held-out rows, if requested
    held_out: HeldOutErrors | None  # errors of held-out rows, for normal noise


@dataclass(frozen=True)
class JointPart:
    """Members that were trained together, and densities of held-out rows under their mixture."""

    members: tuple[Member, ...]
    weights: np.ndarray  # (k,), with sum 1
    densities: HeldOutDensities | None  # None for classes and counts
    rows: np.ndarray  # int64, positions of the held-out rows

    def densities_of(self, lead: FittedMember) -> HeldOutDensities | None:
        """Densities of the same rows under another net; None if either has no held-out rows."""
        if lead.held_out is None or self.densities is None:
            return None
        return self.densities.of_net(lead.held_out, lead.member.hyper.dispersion, self.rows)
