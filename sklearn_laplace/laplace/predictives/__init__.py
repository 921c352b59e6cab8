"""Registry of predictives, which map a posterior over weights to one over outputs. The file name is the key."""

from ._base import PosteriorPredictive
from .glm import GLM
from .mc import MC

PREDICTIVES: dict[str, type[PosteriorPredictive]] = {"glm": GLM, "mc": MC}
__all__ = ["GLM", "MC", "PREDICTIVES"]
