"""Registry of curvature rules, which define a row's contribution to the curvature. The file name is the key."""

from ._base import CurvatureRule
from .empirical_fisher import EmpiricalFisher
from .ggn import GGN
from .hessian import Hessian
from .mc_fisher import MCFisher

CURVATURES: dict[str, type[CurvatureRule]] = {
    "ggn": GGN,
    "empirical_fisher": EmpiricalFisher,
    "mc_fisher": MCFisher,
    "hessian": Hessian,
}
__all__ = ["CURVATURES", "GGN", "EmpiricalFisher", "Hessian", "MCFisher"]
