"""Registry of structures: forms in which a curvature is stored, factorised and sampled. The file name is the key."""

from ._base import Curvature
from .block_diagonal import BlockDiagonal
from .diag import Diag
from .ekfac import EKFAC
from .full import Full
from .functional import Functional
from .kron import Kron
from .low_rank import LowRank
from .low_rank_diag import LowRankDiag

STRUCTURES: dict[str, type[Curvature]] = {
    "full": Full,
    "block_diagonal": BlockDiagonal,
    "kron": Kron,
    "ekfac": EKFAC,
    "low_rank_diag": LowRankDiag,
    "diag": Diag,
    "low_rank": LowRank,
    "functional": Functional,
}
__all__ = ["EKFAC", "STRUCTURES", "BlockDiagonal", "Diag", "Full", "Functional", "Kron", "LowRank", "LowRankDiag"]
