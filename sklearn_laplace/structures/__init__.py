"""How the curvature is stored, solved and sampled: the registry. One file a variant, file name = key."""

from ._base import Curvature
from .block import Block
from .diag import Diag
from .ekfac import EKFAC
from .full import Full
from .functional import Functional
from .inf import Inf
from .kron import Kron
from .low_rank import LowRank

STRUCTURES: dict[str, type[Curvature]] = {
    "full": Full,
    "block": Block,
    "kron": Kron,
    "ekfac": EKFAC,
    "inf": Inf,
    "diag": Diag,
    "low_rank": LowRank,
    "functional": Functional,
}

__all__ = ["EKFAC", "STRUCTURES", "Block", "Diag", "Full", "Functional", "Inf", "Kron", "LowRank"]
