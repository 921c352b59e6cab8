"""Fitted members, and parts of an ensemble with densities of held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .._approximation.calibration import HeldOutDensities
from .._approximation.row_densities import Densities
from .._training.plan import WarmStart
from ..laplace.selection import HeldOutErrors
from .member import Member
from .weights import of_kinds

LEAST_SHARE = 0.1
"""Minimum weight of a kind of nets beside the first one."""
LEAST_EXACT = 0.15
"""Minimum total weight of nets with exact steps in a joint ensemble."""


@dataclass(frozen=True)
class FittedMember:
    """Member that was trained alone, and data for later members; its held-out rows are those of cross-fitted nets."""

    member: Member
    start: WarmStart  # end state of its training and of the cross-fitted nets
    densities: Densities | None  # of held-out rows, if requested
    held_out: HeldOutErrors | None  # errors of held-out rows, for normal noise


@dataclass(frozen=True)
class Part:
    """Members of one kind, and densities of held-out rows that determine their weight in an ensemble."""

    members: tuple[Member, ...]
    weights: np.ndarray  # (k,) within the part, with sum 1
    densities: HeldOutDensities | None  # None for classes and counts
    rows: np.ndarray  # int64, positions of the held-out rows

    def of_other_net(self, lead: FittedMember) -> Part | None:
        """Part of another net, trained alone, with densities of the rows of this part; None if either has no held-out
        rows.
        """
        if lead.held_out is None or self.densities is None:
            return None
        densities = self.densities.of_net(lead.held_out, lead.member.hyper.dispersion, self.rows)
        return Part((lead.member,), np.ones(1), densities, self.rows)

    def extended(self, later: Sequence[Member]) -> Part:
        """The part with further members; all have equal weights."""
        members = (*self.members, *later)
        return replace(self, members=members, weights=np.full(len(members), 1 / len(members)))


def weighted_parts(
    exact: Part, together: Part, linear: Part | None, row_weights: np.ndarray
) -> tuple[list[Part], np.ndarray, float]:
    """Parts of a joint ensemble, their members' weights by stacking of held-out rows, and the best factor of all
    variances.

    A linear net with a weight below ``LEAST_SHARE`` is left out. Held-out rows have no information about regions
    without rows, where members with pieces are overconfident. Therefore nets with exact steps get at least
    ``LEAST_EXACT``.
    """
    parts = [exact, together] if linear is None else [exact, together, linear]
    shares, factor = of_kinds([part.densities for part in parts if part.densities is not None], row_weights)
    if linear is not None and shares[2] < LEAST_SHARE:
        return weighted_parts(exact, together, None, row_weights)
    others = float(shares[1:].sum())
    if shares[0] < LEAST_EXACT:
        shares = np.array([LEAST_EXACT, *(shares[1:] * (1 - LEAST_EXACT) / others)])
    weights = np.concatenate([share * part.weights for share, part in zip(shares, parts, strict=True)])
    return parts, weights, factor
