r"""Generalised Gauss–Newton: :math:`H = \sum_n w_n J_n^\top \Lambda_n J_n` (Schraudolph 2002; Martens 2020).

Sₙ is a square root of Λₙ, the expected Hessian of the loss with respect to the outputs. For the likelihoods of this
package, Λₙ is also the Fisher information.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..jacobian.jacobian import Batch
from ..likelihoods._base import Likelihood
from ..network.network import Linearisation
from ._base import CurvatureRule


@dataclass(frozen=True)
class GGN(CurvatureRule):
    """Generalised Gauss–Newton: Sₙ Sₙᵀ = wₙ Λₙ.

    >>> sorted(GGN.provides), GGN.dispersion_power
    (['layers', 'rows'], 1)
    """

    provides: ClassVar[frozenset[str]] = frozenset({"rows", "layers"})
    dispersion_power: ClassVar[int] = 1

    def batch(self, line: Linearisation, likelihood: Likelihood, targets: Tensor, weights: Tensor) -> Batch:
        factor = likelihood.hessian_factor(line.outputs, targets) * weights.sqrt()[:, None, None]
        return Batch(line.pullback(factor), line.outputs, weights)

    def n_columns(self, likelihood: Likelihood, n_outputs: int) -> int:
        """Number of columns of Λ^½: C, or C − 1 for the logits of C classes."""
        return int(likelihood.hessian_factor(torch.zeros(1, n_outputs, dtype=torch.float64)).shape[-1])
