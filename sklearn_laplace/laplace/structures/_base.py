r"""What every structure answers: a curvature :math:`H`, and the posterior :math:`P = s H + \mathrm{diag}(\delta)`.

A curvature is a commutative monoid (zero, add, merge) held in float64, without prior and without noise. A posterior is
factorised once and answers every question by products with its root R, where :math:`R R^\top = P^{-1}`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor

from ..jacobian.blocks import ParameterBlock
from ..jacobian.jacobian import Batch, FactoredJacobian

Rotation: TypeAlias = Callable[[FactoredJacobian], Callable[[Tensor], Tensor]]
"""Jacobian of n rows → function of the prior precisions, 0-d or (P,) → covariances (n, K, K) at unit scale."""
RANK = 100
"""Eigenpairs kept where no other number is asked for."""


class WeightSharing(Enum):
    """What Kronecker factors make of a layer at several positions of each row (Eschenhagen et al. 2023).

    EXPAND takes positions for rows: sums g gᵀ over them, averages a aᵀ. REDUCE takes them together first: the sum of g
    and the mean of a.
    """

    EXPAND = "expand"
    REDUCE = "reduce"


@dataclass(frozen=True)
class Eigenbasis:
    """H = V diag(l) Vᵀ through products with V alone.

    Parameters
    ----------
    values : Tensor of shape (r,)
        l; the other P − r eigenvalues are zero.
    rows : callable
        From a FactoredJacobian to J V, shape (n, K, r), float64.
    vector : callable
        From v (P,) to Vᵀ v (r,).

    Examples
    --------
    >>> import torch
    >>> from sklearn_laplace.laplace.structures import Full
    >>> Full(torch.diag(torch.tensor([1.0, 3.0])).double(), (2,)).eigenbasis().values.tolist()
    [1.0, 3.0]
    """

    values: Tensor
    rows: Callable[[FactoredJacobian], Tensor]
    vector: Callable[[Tensor], Tensor]


class Curvature(ABC):
    """The sum over rows of one structure's part of SᵀJ's outer product, at unit dispersion."""

    accepts: ClassVar[frozenset[str]]
    """Forms of a rule's contribution, one of which is enough: "rows", "layers" (the rows' factors) or "matrix"."""

    holds: ClassVar[frozenset[str]] = frozenset({"layer", "column", "parameter"})
    """Units within which prior precisions have to be equal: a layer, an input column of one, a single parameter."""

    is_monoid: ClassVar[bool] = True
    """Whether sums over parts of the rows, in any order, are the sum over all of them."""

    forgets: ClassVar[bool] = True
    """Whether rows can be taken out again."""

    takes: ClassVar[frozenset[str]] = frozenset()
    """Options that mean something to it: of the network's layout ("bias"), of :meth:`zero` and :meth:`memory`
    ("weight_sharing", "rank"), of the posterior ("damping")."""

    has_spectrum: ClassVar[bool] = True
    """Whether :meth:`eigenvalues` are cheaper than a posterior, so that the evidence of one precision goes by them."""

    @classmethod
    @abstractmethod
    def zero(cls, blocks: Sequence[ParameterBlock], device: torch.device) -> Self:
        """The curvature of no rows; subclasses have keywords for their options."""

    @property
    def options(self) -> dict[str, Any]:
        """What :meth:`zero` was told beside the blocks."""
        return {}

    def next_pass(self) -> Self | None:
        """The zero of another pass over the same rows, for structures that need one; None when this was the last."""
        return None

    def emptied(self, blocks: Sequence[ParameterBlock], device: torch.device) -> Self:
        """The zero to which rows are added that are to be merged with this one."""
        return type(self).zero(blocks, device, **self.options)

    @staticmethod
    @abstractmethod
    def memory(blocks: Sequence[ParameterBlock], n_dual: int) -> int:
        """Bytes that the structure and its posterior take; subclasses have keywords for their options.

        Parameters
        ----------
        blocks : sequence of ParameterBlock
        n_dual : int
            Rows times columns of the output factor; only a dual structure's size depends on it.
        """

    @classmethod
    def row_width(cls, blocks: Sequence[ParameterBlock], n_columns: int) -> int:
        """Elements that one row makes in :meth:`add_`, beside the factors that it comes as.

        Parameters
        ----------
        blocks : sequence of ParameterBlock
        n_columns : int
            Columns K of the output factor.
        """
        return 0

    @abstractmethod
    def copy(self) -> Self:
        """A curvature that shares no storage with this one."""

    @abstractmethod
    def add_(self, batch: Batch) -> Self:
        """Add a batch, reusing the storage: only for the loop that made the zero."""

    def add(self, batch: Batch) -> Self:
        """Add a batch and return the sum as a new value."""
        return self.copy().add_(batch)

    @abstractmethod
    def merge(self, other: Self) -> Self:
        """The curvature of both sets of rows, as a new value."""

    @abstractmethod
    def subtract(self, other: Self) -> Self:
        """The curvature without the other's rows, as a new value: what :meth:`merge` has added.

        Raises
        ------
        NotPositiveDefiniteError
            When the other's rows cannot have been among these: an eigenvalue would be clearly below zero.
        UnsupportedCombinationError
            When the structure cannot take rows out.
        """

    @abstractmethod
    def times(self, vector: Tensor) -> Tensor:
        """H v for v of shape (P,), float64."""

    @abstractmethod
    def eigenvalues(self) -> Tensor:
        """The P eigenvalues of H, float64, none below zero; computed once."""

    def total(self) -> Tensor:
        """Sum of all that is stored, 0-d: finite where every number is, without a look at any of them."""
        return torch.stack([tensor.double().sum() for tensor in tensors_in(self)]).sum()

    def eigenbasis(self) -> Eigenbasis | None:
        """The eigenvectors of H, where H is the whole sum and not a part or a product of its factors; else None."""
        return None

    def rotation(self, groups: Tensor) -> Rotation | None:
        """The way from rows to the covariances of their outputs, where one basis serves all precisions; else None.

        Parameters
        ----------
        groups : Tensor of shape (P,), int64
            Of the prior precisions.
        """
        return None

    @abstractmethod
    def posterior(self, precision: Tensor, scale: float) -> Posterior:
        """Factorise ``scale * H + diag(precision)``.

        Parameters
        ----------
        precision : Tensor, 0-d or of shape (P,)
            Prior precisions; a 0-d tensor stands for one shared by all and is cheaper.
        scale : float
            1 / (temperature · dispersion^power).

        Raises
        ------
        UnsupportedCombinationError
            When the structure cannot hold this pattern of precisions.
        """


class Posterior(ABC):
    """The factorised precision P of the weights around their mode."""

    n_parameters: int

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where its tensors are."""

    def row_width(self, blocks: Sequence[ParameterBlock], n_outputs: int) -> int:
        """Elements that one row of inputs makes in :meth:`covariance`; those of the factors by default."""
        return sum(block.width(n_outputs) for block in blocks)

    @abstractmethod
    def logdet_precision(self) -> Tensor:
        """log |P|, 0-d float64."""

    @abstractmethod
    def apply_root(self, vectors: Tensor) -> Tensor:
        """R v for each row of ``vectors`` (s, P), shape (s, P), where R Rᵀ = P⁻¹."""

    @abstractmethod
    def solve(self, vector: Tensor) -> Tensor:
        """P⁻¹ v, shape (P,)."""

    @abstractmethod
    def covariance(self, jacobian: FactoredJacobian) -> Tensor:
        """J P⁻¹ Jᵀ for each row, shape (n, K, K), float64. Observation noise is not included."""

    @abstractmethod
    def left_out_covariance(self, jacobian: FactoredJacobian, factor: Tensor) -> Tensor:
        r"""Covariance of each row's outputs as of the posterior without that row.

        What the row has added, :math:`J_n^\top S_n S_n^\top J_n`, is taken out as this structure has taken it in. Never
        more than the prior's covariance :math:`J\,\mathrm{diag}(\delta)^{-1} J^\top`, whatever rounding says.

        Parameters
        ----------
        jacobian : FactoredJacobian with n rows and C columns
        factor : Tensor of shape (n, C, K), float64
            S, with the row's weight and the scale of the curvature in it.

        Returns
        -------
        Tensor of shape (n, C, C), float64
        """

    @abstractmethod
    def cross_covariance(self, jacobian: FactoredJacobian, other: FactoredJacobian) -> Tensor:
        """J P⁻¹ J′ᵀ over rows and outputs jointly, shape (n·K, m·K), float64."""

    @abstractmethod
    def marginal_variance(self) -> Tensor:
        """Diagonal of P⁻¹, shape (P,)."""

    @abstractmethod
    def prior_statistics(self, groups: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        r"""What the derivatives of log |P| in log δ are made of.

        Parameters
        ----------
        groups : Tensor of shape (P,)
            Group of each parameter.
        n_groups : int
            Number of groups G.

        Returns
        -------
        first : Tensor of shape (G,)
            :math:`\sum_{i \in g} \delta_i \Sigma_{ii}`, with Σ = P⁻¹.
        second : Tensor of shape (G, G)
            :math:`\sum_{i \in g, j \in h} \delta_i \delta_j \Sigma_{ij}^2`.
        """

    def shrinkage(self, groups: Tensor, n_groups: int) -> Tensor:
        """The first of :meth:`prior_statistics` alone, where that is cheaper."""
        return self.prior_statistics(groups, n_groups)[0]

    def variance(self, jacobian: FactoredJacobian) -> Tensor:
        """Diagonal of :meth:`covariance`, shape (n, K)."""
        return self.covariance(jacobian).diagonal(dim1=-2, dim2=-1)

    def sample(self, n_samples: int, generator: torch.Generator) -> Tensor:
        """Deviations of the weights from their mode, shape (n_samples, P), float64."""
        noise = torch.randn(n_samples, self.n_parameters, generator=generator, dtype=torch.float64)
        return self.apply_root(noise.to(self.device))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a structure of data classes and tuples.

    Examples
    --------
    >>> [tensor.item() for tensor in tensors_in((torch.tensor(1), (torch.tensor(2), "three")))]
    [1, 2]
    """
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors_in(item)
