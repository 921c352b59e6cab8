"""Options of a curvature structure, as objects.

``bias`` changes the layout of the network, ``weight_sharing`` and ``rank`` the sum of the curvature, and ``damping``
the posterior used for predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..laplace.structures._base import RANK, Curvature, WeightSharing

BIASES = {"folded": False, "separate": True}
DAMPINGS = {"exact": False, "ritter": True}
SHARINGS = {sharing.value: sharing for sharing in WeightSharing}


@dataclass(frozen=True)
class StructureOptions:
    """Options of a curvature structure."""

    separate_biases: bool = False  # True if biases have separate blocks
    weight_sharing: WeightSharing = WeightSharing.EXPAND  # for layers that apply their weights at several positions
    rank: int = RANK  # number of eigenpairs of low-rank structures
    damped: bool = False  # True if predictions use the damped posterior

    def options_of(self, structure: type[Curvature]) -> dict[str, Any]:
        """Keyword arguments of ``structure.zero`` other than the blocks."""
        values = {"weight_sharing": self.weight_sharing, "rank": self.rank}
        return {name: value for name, value in values.items() if name in structure.takes}
