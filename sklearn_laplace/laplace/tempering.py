r"""Posterior with several temperatures, such as one per layer, which divide the curvature.

Let :math:`S = \mathrm{diag}(T)^{-1/2}`, with T equal within each input column of a layer, and s the scale of H. Then

.. math:: P = s\, S H S + \mathrm{diag}(\delta) = S\, \big(s H + \mathrm{diag}(\delta T)\big)\, S ,

so P is the structure's posterior precision under prior precisions :math:`\delta T`, multiplied by S on both sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UnsupportedCombinationError
from .jacobian.jacobian import FactoredJacobian, ParameterBlock
from .structures._base import Posterior


@dataclass(frozen=True)
class TemperedPosterior(Posterior):
    """Posterior with one temperature per weight: a wrapped posterior transformed by S."""

    inner: Posterior  # with precision ``scale · H + diag(δ T)``
    temperatures: Tensor  # T, (P,), equal within each input column of a layer

    @property
    def device(self) -> torch.device:
        return self.inner.device

    @property
    def n_parameters(self) -> int:
        return self.inner.n_parameters

    @property
    def _inverse(self) -> Tensor:
        """Diagonal of S⁻¹."""
        return self.temperatures.sqrt()

    def row_width(self, blocks: Sequence[ParameterBlock], n_outputs: int) -> int:
        return self.inner.row_width(blocks, n_outputs)

    def logdet_precision(self) -> Tensor:
        return self.inner.logdet_precision() - self.temperatures.log().sum()

    def apply_root(self, vectors: Tensor) -> Tensor:
        return self.inner.apply_root(vectors) * self._inverse

    def solve(self, vector: Tensor) -> Tensor:
        return self.inner.solve(vector * self._inverse) * self._inverse

    def covariance(self, jacobian: FactoredJacobian) -> Tensor:
        return self.inner.covariance(jacobian.scaled(self._inverse))

    def variance(self, jacobian: FactoredJacobian) -> Tensor:
        return self.inner.variance(jacobian.scaled(self._inverse))

    def left_out_covariance(self, jacobian: FactoredJacobian, factor: Tensor) -> Tensor:
        """Not supported: S scales the curvature of a row, but not its outputs."""
        raise UnsupportedCombinationError(
            "leave-one-out needs one temperature for all weights, but temperature has several values; give a number."
        )

    def cross_covariance(self, jacobian: FactoredJacobian, other: FactoredJacobian) -> Tensor:
        return self.inner.cross_covariance(jacobian.scaled(self._inverse), other.scaled(self._inverse))

    def marginal_variance(self) -> Tensor:
        return self.temperatures * self.inner.marginal_variance()

    def prior_statistics(self, groups: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        # the effects of T on δ and on the covariance cancel
        return self.inner.prior_statistics(groups, n_groups)

    def shrinkage(self, groups: Tensor, n_groups: int) -> Tensor:
        return self.inner.shrinkage(groups, n_groups)
