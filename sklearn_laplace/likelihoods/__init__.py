"""Likelihoods p(y given f): the registry. One file a variant, file name = key."""

from .categorical import Categorical
from .gaussian import Gaussian

LIKELIHOODS = {"gaussian": Gaussian, "categorical": Categorical}

__all__ = ["LIKELIHOODS", "Categorical", "Gaussian"]
