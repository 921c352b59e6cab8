"""Likelihoods p(y given f): the registry. One file a variant, file name = key."""

from ._base import Likelihood
from .bernoulli import Bernoulli
from .categorical import Categorical
from .gaussian import Gaussian
from .poisson import Poisson

LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "categorical": Categorical,
    "bernoulli": Bernoulli,
    "poisson": Poisson,
}
__all__ = ["LIKELIHOODS", "Bernoulli", "Categorical", "Gaussian", "Poisson"]
