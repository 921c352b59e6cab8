"""Fitted members of an ensemble, with densities of held-out rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._approximation.calibration import HeldOutDensities
from .._approximation.row_densities import Densities
from .._training.plan import WarmStart
from ..laplace.selection import HeldOutErrors
from .member import Member
from .weights import of_kinds

LEAST_SHARE = 0.1
"""Minimum weight of a kind of nets beside the first one."""
LEAST_EXACT = 0.2
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

    def weighed_with(self, exact: FittedMember, row_weights: np.ndarray) -> tuple[np.ndarray, float] | None:
        """Weights (1 + k,) of a net with exact steps and these members, and the best factor of all variances.

        None if either has no held-out rows. These rows have no information about regions without rows, where members
        with pieces are overconfident. Therefore the net gets at least ``LEAST_EXACT``.
        """
        if exact.held_out is None or self.densities is None:
            return None
        densities = self.densities.of_net(exact.held_out, exact.member.hyper.dispersion, self.rows)
        shares, factor = of_kinds([densities, self.densities], row_weights[self.rows])
        share = max(float(shares[0]), LEAST_EXACT)
        return np.concatenate([[share], (1 - share) * self.weights]), factor
