"""Links from a Gaussian over logits to class probabilities: the registry. One file a variant, file name = key."""

from ._base import Link
from .bridge import Bridge
from .bridge_norm import BridgeNorm
from .mc import MC
from .moderated import Moderated
from .plugin import Plugin
from .probit import Probit
from .quadrature import Quadrature

LINKS: dict[str, type[Link]] = {
    "moderated": Moderated,
    "probit": Probit,
    "plugin": Plugin,
    "mc": MC,
    "bridge": Bridge,
    "bridge_norm": BridgeNorm,
    "quadrature": Quadrature,
}
__all__ = ["LINKS", "MC", "Bridge", "BridgeNorm", "Moderated", "Plugin", "Probit", "Quadrature"]
