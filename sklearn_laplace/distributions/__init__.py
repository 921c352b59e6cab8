"""Predictive distributions, in the manner of ``scipy.stats``."""

from .distributional import Distributional
from .mixtures import CountMixture, NormalMixture
from .poisson_log_normal import PoissonLogNormal

__all__ = ["CountMixture", "Distributional", "NormalMixture", "PoissonLogNormal"]
