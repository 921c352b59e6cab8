"""Registry of predictives: maps from a weight posterior to a distribution of outputs. The file name is the key."""

from ._base import PosteriorPredictive
from .glm import GLM
from .mc import MC

PREDICTIVES: dict[str, type[PosteriorPredictive]] = {"glm": GLM, "mc": MC}
__all__ = ["GLM", "MC", "PREDICTIVES"]
