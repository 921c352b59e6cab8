"""Registry of links from logits to class probabilities. One file per variant; the file name is the key."""

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
