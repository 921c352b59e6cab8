r"""Empirical Fisher: :math:`H = \sum_n w_n g_n g_n^\top` with :math:`g_n = J_n^\top r_n` the gradient of −log p(yₙ).

At dispersion φ the gradient is :math:`g_n/\varphi`. This curvature therefore scales with :math:`1/\varphi^2`; the other
rules scale with 1/φ. Rows that are fitted well contribute little, so the empirical Fisher does not approximate the
Hessian at a mode (Kunstner, Balles & Hennig 2019).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..jacobian.jacobian import Batch
from ..likelihoods._base import Likelihood
from ..network.network import Linearisation
from ._base import CurvatureRule


@dataclass(frozen=True)
class EmpiricalFisher(CurvatureRule):
    """Empirical Fisher: Sₙ = √wₙ rₙ, one column.

    >>> sorted(EmpiricalFisher.provides), EmpiricalFisher.dispersion_power
    (['layers', 'rows'], 2)
    """

    provides: ClassVar[frozenset[str]] = frozenset({"rows", "layers"})
    dispersion_power: ClassVar[int] = 2

    def batch(self, line: Linearisation, likelihood: Likelihood, targets: Tensor, weights: Tensor) -> Batch:
        factor = likelihood.residual(line.outputs, targets) * weights.sqrt()[:, None]
        return Batch(line.pullback(factor[..., None]), line.outputs, weights)

    def n_columns(self, likelihood: Likelihood, n_outputs: int) -> int:
        return 1
