"""How the curvature is stored, solved and sampled: the registry. One file a variant, file name = key."""

from ._base import Curvature
from .diag import Diag
from .full import Full
from .functional import Functional
from .kron import Kron

STRUCTURES: dict[str, type[Curvature]] = {"full": Full, "kron": Kron, "diag": Diag, "functional": Functional}

__all__ = ["STRUCTURES", "Diag", "Full", "Functional", "Kron"]
