"""Registry of weight subsets, which select the random weights. One file per variant; the file name is the key."""

from ._base import Subset
from .all import All
from .last_layer import LastLayer
from .subnetwork import SCORES, Scored, Subnetwork, largest

SUBSETS: dict[str, type[Subset]] = {"all": All, "last_layer": LastLayer, "subnetwork": Subnetwork}
__all__ = ["SCORES", "SUBSETS", "All", "LastLayer", "Scored", "Subnetwork", "largest"]
