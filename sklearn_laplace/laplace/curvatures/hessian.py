r"""Exact Hessian: :math:`H = \nabla_\theta^2 \sum_n w_n \mathrm{nll}_n`, at unit dispersion.

The generalised Gauss–Newton matrix plus the curvature of the network itself,
:math:`\sum_n w_n \sum_c r_{nc} \nabla_\theta^2 f_c(x_n)`. It has no output factor, so it comes as a matrix, at one
backward pass through the gradient for each weight; and it may have negative eigenvalues, which the structures clip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..jacobian.jacobian import Batch
from ..likelihoods._base import Likelihood
from ..network.linearisation import Linearisation
from ._base import CurvatureRule


@dataclass(frozen=True)
class Hessian(CurvatureRule):
    """The batch's P × P matrix by autodiff, O(n P²) time and P² memory.

    Examples
    --------
    >>> sorted(Hessian.provides), Hessian.dispersion_power
    (['matrix'], 1)
    """

    provides: ClassVar[frozenset[str]] = frozenset({"matrix"})
    dispersion_power: ClassVar[int] = 1

    def batch(self, line: Linearisation, likelihood: Likelihood, targets: Tensor, weights: Tensor) -> Batch:
        """The matrix of the batch's weighted loss; no rows."""
        matrix = line.hessian(lambda outputs: (weights * likelihood.nll(outputs, targets)).sum())
        nothing = line.outputs.new_zeros(*line.outputs.shape, 0)
        return Batch(line.pullback(nothing), line.outputs, weights, matrix)

    def n_columns(self, likelihood: Likelihood, n_outputs: int) -> int:
        """Four, in effect: a backward pass through the gradient costs about 4 P multiply-adds for each weight."""
        return 4

    def memory(self, n_parameters: int) -> int:
        """The matrix and its transpose, 2 · 8 · P² bytes."""
        return 2 * 8 * n_parameters**2
