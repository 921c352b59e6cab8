r"""Exact Hessian: :math:`H = \nabla_\theta^2 \sum_n w_n \mathrm{nll}_n`, at unit dispersion.

Except for ``negative_binomial``, it is the generalised Gauss–Newton matrix plus the curvature of the network,
:math:`\sum_n w_n \sum_c r_{nc} \nabla_\theta^2 f_c(x_n)`. Structures clip negative eigenvalues.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..jacobian.jacobian import Batch
from ..likelihoods._base import Likelihood
from ..network.network import Linearisation
from ._base import CurvatureRule


@dataclass(frozen=True)
class Hessian(CurvatureRule):
    """Exact Hessian of a batch as a P × P matrix, by autodiff in O(n P²) time and P² memory.

    >>> sorted(Hessian.provides), Hessian.dispersion_power
    (['matrix'], 1)
    """

    provides: ClassVar[frozenset[str]] = frozenset({"matrix"})
    dispersion_power: ClassVar[int] = 1

    def batch(self, line: Linearisation, likelihood: Likelihood, targets: Tensor, weights: Tensor) -> Batch:
        """Hessian matrix of the batch's weighted loss, without rows."""
        matrix = line.hessian(lambda outputs: (weights * likelihood.nll(outputs, targets)).sum())
        no_columns = line.outputs.new_zeros(*line.outputs.shape, 0)
        return Batch(line.pullback(no_columns), line.outputs, weights, matrix)

    def n_columns(self, likelihood: Likelihood, n_outputs: int) -> int:
        """4: P backward passes of about 4 P multiply-adds cost as much as four columns of dense rows."""
        return 4

    def memory(self, n_parameters: int) -> int:
        """Bytes of the matrix and its transpose, 2 · 8 · P²."""
        return 2 * 8 * n_parameters**2
