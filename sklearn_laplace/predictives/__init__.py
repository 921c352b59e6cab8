"""From a posterior over weights to a Gaussian over outputs: the registry. One file a variant, file name = key."""

from .glm import GLM

PREDICTIVES = {"glm": GLM}

__all__ = ["GLM", "PREDICTIVES"]
