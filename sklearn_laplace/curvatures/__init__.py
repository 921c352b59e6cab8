"""What one row contributes to the curvature: the registry. One file a variant, file name = key."""

from .ggn import GGN

CURVATURES = {"ggn": GGN}

__all__ = ["CURVATURES", "GGN"]
