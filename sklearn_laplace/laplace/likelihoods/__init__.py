"""Registry of likelihoods p(y given f). One file per variant; the file name is the key."""

from ._base import Likelihood
from .bernoulli import Bernoulli
from .categorical import Categorical
from .gaussian import Gaussian
from .negative_binomial import NegativeBinomial
from .poisson import Poisson

LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "categorical": Categorical,
    "bernoulli": Bernoulli,
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
}
__all__ = ["LIKELIHOODS", "Bernoulli", "Categorical", "Gaussian", "NegativeBinomial", "Poisson"]
