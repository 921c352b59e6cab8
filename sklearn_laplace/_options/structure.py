"""Options of which a structure says itself whether it takes them: their defaults, their values, who takes what.

A bias acts in the network's layout, weight sharing and rank in the structure's zero, damping in the posterior that
predicts. Their names are looked up in :mod:`~sklearn_laplace._options.resolve`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedCombinationError
from ..laplace.structures import STRUCTURES
from ..laplace.structures._base import RANK, Curvature, WeightSharing

DEFAULTS: dict[str, Any] = {"bias": "folded", "weight_sharing": "expand", "rank": RANK, "damping": "exact"}
"""Every structure's own."""
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
    >>> StructureOptions(rank=7).told(STRUCTURES["low_rank"])
    {'rank': 7}
    """

    separate_biases: bool = False
    weight_sharing: WeightSharing = WeightSharing.EXPAND
    rank: int = RANK
    damped: bool = False

    def told(self, structure: type[Curvature]) -> dict[str, Any]:
        """What the zero of this structure is told beside the blocks."""
        values = {"weight_sharing": self.weight_sharing, "rank": self.rank}
        return {name: value for name, value in values.items() if name in structure.takes}


def check_taken(parameters: Mapping[str, Any], structure: type[Curvature] | None) -> None:
    """An option that the structure does not take is refused, not ignored; None, chosen by size, takes none.

    Raises
    ------
    UnsupportedCombinationError

    Examples
    --------
    >>> check_taken({**DEFAULTS, "hessian_structure": "kron", "damping": "ritter"}, STRUCTURES["kron"])
    >>> check_taken({**DEFAULTS, "hessian_structure": "auto", "rank": 3}, None)
    Traceback (most recent call last):
        ...
    sklearn_laplace.errors.UnsupportedCombinationError: rank=3 has no meaning for hessian_structure='auto'. Name a \
structure that takes it, of ['low_rank', 'low_rank_diag'], or leave rank=100.
    """
    taken = frozenset() if structure is None else structure.takes
    for option, default in DEFAULTS.items():
        if parameters[option] != default and option not in taken:
            able = sorted(name for name, other in STRUCTURES.items() if option in other.takes)
            raise UnsupportedCombinationError(
                f"{option}={parameters[option]!r} has no meaning for hessian_structure="
                f"{parameters['hessian_structure']!r}. Name a structure that takes it, of {able}, or leave "
                f"{option}={default!r}."
            )
