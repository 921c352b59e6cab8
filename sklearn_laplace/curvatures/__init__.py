"""What one row contributes to the curvature: the registry. One file a variant, file name = key."""

from ._base import CurvatureRule
from .ggn import GGN

CURVATURES: dict[str, type[CurvatureRule]] = {"ggn": GGN}

__all__ = ["CURVATURES", "GGN"]
