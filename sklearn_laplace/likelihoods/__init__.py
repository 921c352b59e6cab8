"""Likelihoods p(y given f): the registry. One file a variant, file name = key."""

from ._base import Likelihood
from .categorical import Categorical
from .gaussian import Gaussian

LIKELIHOODS: dict[str, type[Likelihood]] = {"gaussian": Gaussian, "categorical": Categorical}

__all__ = ["LIKELIHOODS", "Categorical", "Gaussian"]
