"""Links from a Gaussian over logits to class probabilities: the registry. One file a variant, file name = key."""

from ._base import Link
from .mc import MC
from .plugin import Plugin
from .probit import Probit

LINKS: dict[str, type[Link]] = {"probit": Probit, "plugin": Plugin, "mc": MC}

__all__ = ["LINKS", "MC", "Plugin", "Probit"]
