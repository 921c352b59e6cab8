"""Contracts that every registered variant must satisfy: one check per registry, run for each key.

References are dense matrices. The covariance of a posterior is rebuilt from its root (R R^T, the distribution of its
samples), and every other result has to agree with it. test_structures.py checks the matrix itself.
"""

from .curvatures import check_curvature
from .dense import (
    DENSE_RULES,
    FISHER_SEED,
    N_DRAWS,
    dense_contribution,
    dense_curvature,
    leading_and_diagonal,
    sampled_fisher,
)
from .examples import (
    ALL_KINDS,
    CPU,
    KINDS,
    Example,
    Scaled,
    close,
    covariance_of,
    example,
    n_outputs_of,
    oracle_order,
    random_noise,
    random_rows,
    to_oracle,
    to_package,
)
from .layers import CONVOLUTIONS, LAYER_CASES, Around, LayerCase, check_layer, convolution
from .likelihoods import check_likelihood
from .links import DIRICHLET, EXTREMES, QUADRATURE_ERROR, check_link, random_latent
from .predictives import N_SAMPLES, SAMPLING_ERROR, check_predictive
from .structures import check_structure, check_structure_without_rows

__all__ = [
    "ALL_KINDS",
    "CONVOLUTIONS",
    "CPU",
    "DENSE_RULES",
    "DIRICHLET",
    "EXTREMES",
    "FISHER_SEED",
    "KINDS",
    "LAYER_CASES",
    "N_DRAWS",
    "N_SAMPLES",
    "QUADRATURE_ERROR",
    "SAMPLING_ERROR",
    "Around",
    "Example",
    "LayerCase",
    "Scaled",
    "check_curvature",
    "check_layer",
    "check_likelihood",
    "check_link",
    "check_predictive",
    "check_structure",
    "check_structure_without_rows",
    "close",
    "convolution",
    "covariance_of",
    "dense_contribution",
    "dense_curvature",
    "example",
    "leading_and_diagonal",
    "n_outputs_of",
    "oracle_order",
    "random_latent",
    "random_noise",
    "random_rows",
    "sampled_fisher",
    "to_oracle",
    "to_package",
]
