"""Option objects: parameter values of the estimators, with options of their own.

Examples
--------
>>> from sklearn.model_selection import GridSearchCV
>>> from sklearn_laplace import LaplaceRegressor
>>> from sklearn_laplace.options import Kron
>>> model = LaplaceRegressor(hessian_structure=Kron(), prior_precision=1.0)
>>> search = GridSearchCV(model, {"hessian_structure__damping": ["exact", "ritter"]})
"""

from .variants import (
    EKFAC,
    BlockDiagonal,
    GaussianPrior,
    Kron,
    Link,
    LowRank,
    LowRankDiag,
    MCFisher,
    Members,
    MonteCarlo,
    Subnetwork,
)

__all__ = [
    "EKFAC",
    "BlockDiagonal",
    "GaussianPrior",
    "Kron",
    "Link",
    "LowRank",
    "LowRankDiag",
    "MCFisher",
    "Members",
    "MonteCarlo",
    "Subnetwork",
]
