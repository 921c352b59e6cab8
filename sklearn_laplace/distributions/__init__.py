"""Predictive distributions with the interface of frozen ``scipy.stats`` distributions."""

from .interface import Distributional, PredictiveDistribution
from .mixtures import CountMixture, NormalMixture
from .negative_binomial_log_normal import NegativeBinomialLogNormal
from .poisson_log_normal import PoissonLogNormal
from .transformed import TransformedMixture

__all__ = [
    "CountMixture",
    "Distributional",
    "NegativeBinomialLogNormal",
    "NormalMixture",
    "PoissonLogNormal",
    "PredictiveDistribution",
    "TransformedMixture",
]
