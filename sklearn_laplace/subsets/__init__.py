"""Which weights are random: the registry. One file a variant, file name = key."""

from .all import All
from .last_layer import LastLayer

SUBSETS: dict[str, type[All] | type[LastLayer]] = {"all": All, "last_layer": LastLayer}

__all__ = ["SUBSETS", "All", "LastLayer"]
