"""From a posterior over weights to a distribution over outputs: the registry. One file a variant, file name = key."""

from ._base import PosteriorPredictive
from .glm import GLM
from .mc import MC

PREDICTIVES: dict[str, type[PosteriorPredictive]] = {"glm": GLM, "mc": MC}
__all__ = ["GLM", "MC", "PREDICTIVES"]
