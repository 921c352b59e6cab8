"""Options of a structure, as objects.

``bias`` acts on the layout of the network, ``weight_sharing`` and ``rank`` on the empty structure, ``damping`` on the
posterior that predicts.
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
    """The options as objects.

    Parameters
    ----------
    separate_biases : bool
        Whether biases have blocks of their own.
    weight_sharing : WeightSharing
    rank : int
    damped : bool
        Whether prediction is by the damped posterior.

    Examples
    --------
    >>> from sklearn_laplace.laplace.structures import STRUCTURES
    >>> StructureOptions(rank=7).options_of(STRUCTURES["low_rank"])
    {'rank': 7}
    """

    separate_biases: bool = False
    weight_sharing: WeightSharing = WeightSharing.EXPAND
    rank: int = RANK
    damped: bool = False

    def options_of(self, structure: type[Curvature]) -> dict[str, Any]:
        """Return the options of ``structure.zero``, besides the blocks."""
        values = {"weight_sharing": self.weight_sharing, "rank": self.rank}
        return {name: value for name, value in values.items() if name in structure.takes}
