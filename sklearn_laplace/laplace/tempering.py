r"""A temperature for each layer: the posterior of a curvature whose layers count as fewer, or more, rows than they are.

With :math:`S = \mathrm{diag}(T)^{-1/2}`, T equal within a layer or an input column of one,

.. math:: P = s\, S H S + \mathrm{diag}(\delta) = S\, \big(s H + \mathrm{diag}(\delta T)\big)\, S ,

so it is a structure's own posterior under the precisions :math:`\delta T`, seen through S. Libraries that store a
Kronecker-factored curvature call 1/T of a layer its number of rows N. It must not know which structure it wraps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UnsupportedCombinationError
from .jacobian.blocks import ParameterBlock
from .jacobian.jacobian import FactoredJacobian
from .structures._base import Posterior


@dataclass(frozen=True)
class TemperedPosterior(Posterior):
    """A posterior seen through S.

    Parameters
    ----------
    inner : Posterior
        Of ``scale · H + diag(δ T)``.
    temperatures : Tensor of shape (P,)
        T, equal within each input column of a layer.

    Examples
    --------
    >>> from sklearn_laplace.laplace.structures import Diag
    >>> curvature = Diag(torch.tensor([1.0, 3.0]).double(), (1, 1))
    >>> delta, T = torch.ones(2).double(), torch.tensor([1.0, 3.0]).double()
    >>> tempered(curvature.posterior, delta, 1.0, T).marginal_variance().tolist()
    [0.5, 0.5]
    """

    inner: Posterior
    temperatures: Tensor

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.inner.device

    @property
    def n_parameters(self) -> int:  # type: ignore[override]
        """Number P of weights."""
        return self.inner.n_parameters

    @property
    def _inverse(self) -> Tensor:
        """Diagonal of S⁻¹."""
        return self.temperatures.sqrt()

    def row_width(self, blocks: Sequence[ParameterBlock], n_outputs: int) -> int:
        """The inner posterior's."""
        return self.inner.row_width(blocks, n_outputs)

    def logdet_precision(self) -> Tensor:
        """The inner one and 2 log |S|."""
        return self.inner.logdet_precision() - self.temperatures.log().sum()

    def apply_root(self, vectors: Tensor) -> Tensor:
        """S⁻¹ R v."""
        return self.inner.apply_root(vectors) * self._inverse

    def solve(self, vector: Tensor) -> Tensor:
        """S⁻¹ P⁻¹ S⁻¹ v."""
        return self.inner.solve(vector * self._inverse) * self._inverse

    def covariance(self, jacobian: FactoredJacobian) -> Tensor:
        """The inner one, of J S⁻¹."""
        return self.inner.covariance(jacobian.scaled(self._inverse))

    def variance(self, jacobian: FactoredJacobian) -> Tensor:
        """The inner one, of J S⁻¹."""
        return self.inner.variance(jacobian.scaled(self._inverse))

    def left_out_covariance(self, jacobian: FactoredJacobian, factor: Tensor) -> Tensor:
        """Refused: what a row has added is seen through S, the outputs are not.

        Raises
        ------
        UnsupportedCombinationError
        """
        raise UnsupportedCombinationError(
            "leave-one-out needs one temperature for all weights, and these have several; give temperature as a number."
        )

    def cross_covariance(self, jacobian: FactoredJacobian, other: FactoredJacobian) -> Tensor:
        """The inner one, of J S⁻¹ and J′ S⁻¹."""
        return self.inner.cross_covariance(jacobian.scaled(self._inverse), other.scaled(self._inverse))

    def marginal_variance(self) -> Tensor:
        """T times the inner one."""
        return self.temperatures * self.inner.marginal_variance()

    def prior_statistics(self, groups: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        """The inner ones: what T does to δ and to the covariance cancels."""
        return self.inner.prior_statistics(groups, n_groups)

    def shrinkage(self, groups: Tensor, n_groups: int) -> Tensor:
        """The inner one."""
        return self.inner.shrinkage(groups, n_groups)


def tempered(
    posterior: Callable[[Tensor, float], Posterior], precision: Tensor, scale: float, temperatures: Tensor
) -> TemperedPosterior:
    """A posterior under temperatures.

    Parameters
    ----------
    posterior : callable
        From precisions (P,) and a scale to that of a curvature, such as its method of this name.
    precision : Tensor of shape (P,)
        Prior precisions δ.
    scale : float
        1 / dispersion^power.
    temperatures : Tensor of shape (P,)

    Raises
    ------
    UnsupportedCombinationError
        When the structure cannot hold the precisions δ T.

    Examples
    --------
    >>> from sklearn_laplace.laplace.structures import Diag
    >>> curvature = Diag(torch.tensor([1.0, 3.0]).double(), (2,))
    >>> found = tempered(curvature.posterior, torch.ones(2).double(), 1.0, torch.full((2,), 4.0).double())
    >>> float(found.logdet_precision().exp())
    2.1875
    """
    return TemperedPosterior(posterior(precision * temperatures, scale), temperatures)
