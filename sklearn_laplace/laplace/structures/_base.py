r"""Base classes of structures: a curvature :math:`H`, and posteriors of precision :math:`s H + \mathrm{diag}(\delta)`.

A curvature has the operations zero, add and merge, in float64. It includes neither prior nor noise. A posterior has the
precision :math:`P`, which is factorised once, and a root R with :math:`R R^\top = P^{-1}`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor

from ..jacobian.jacobian import Batch, FactoredJacobian, ParameterBlock

Rotation: TypeAlias = Callable[[FactoredJacobian], Callable[[Tensor], Tensor]]
"""Maps the Jacobian of n rows to a function that maps prior precisions to covariances (n, K, K) at scale 1.

The prior precisions are 0-d or of shape (P,).
"""
RANK = 100
"""Default number of eigenpairs."""


class WeightSharing(Enum):
    """How Kronecker factors treat a layer that is applied at several positions of each row (Eschenhagen et al. 2023).

    For cotangents g, inputs a: EXPAND sums g gᵀ and averages a aᵀ over positions. REDUCE first sums g and averages a.
    """

    EXPAND = "expand"
    REDUCE = "reduce"


@dataclass(frozen=True)
class Eigenbasis:
    """H = V diag(l) Vᵀ, accessible only through products with V."""

    values: Tensor  # l, (r,); the other P − r eigenvalues are zero
    rows: Callable[[FactoredJacobian], Tensor]  # maps J to J V, (n, K, r), float64
    vector: Callable[[Tensor], Tensor]  # maps v (P,) to Vᵀ v (r,)


class Curvature(ABC):
    """Sum over rows of JᵀS SᵀJ in the form of one structure, at unit dispersion."""

    accepts: ClassVar[frozenset[str]]
    """Supported forms of a curvature rule's contribution: "rows", "layers" (factors of rows), "matrix"."""

    holds: ClassVar[frozenset[str]] = frozenset({"layer", "column", "parameter"})
    """Units that can have their own prior precision: "layer", "column" (an input column of a layer), "parameter"."""

    is_monoid: ClassVar[bool] = True
    """True if curvatures of parts of the rows, in any order, add up to the curvature of all rows."""

    forgets: ClassVar[bool] = True
    """True if rows can be subtracted."""

    takes: ClassVar[frozenset[str]] = frozenset()
    """Supported options.

    "bias" is an option of the network's layout, and "damping" is one of the posterior. "weight_sharing" and "rank" are
    options of :meth:`zero` and :meth:`memory`.
    """

    has_spectrum: ClassVar[bool] = True
    """True if the eigenvalues of H cost less than a posterior. For one prior precision, the evidence uses them."""

    @classmethod
    @abstractmethod
    def zero(cls, blocks: Sequence[ParameterBlock], device: torch.device) -> Self:
        """Zero curvature, without rows. Subclasses have keywords for options."""

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of :meth:`zero`, without blocks and device."""
        return {}

    def next_pass(self) -> Self | None:
        """Zero curvature for another pass over the same rows, or None after the last pass."""
        return None

    def emptied(self, blocks: Sequence[ParameterBlock], device: torch.device) -> Self:
        """Zero curvature, to which new rows are added before it is merged with this curvature."""
        return type(self).zero(blocks, device, **self.options)

    @staticmethod
    @abstractmethod
    def memory(blocks: Sequence[ParameterBlock], n_dual: int) -> int:
        """Bytes of curvature and posterior, for ``n_dual`` = N·K rows of SᵀJ (dual rows)."""

    @classmethod
    def row_width(cls, blocks: Sequence[ParameterBlock], n_columns: int) -> int:
        """Elements per row that :meth:`add_` creates for K columns, in addition to the row's factors."""
        return 0

    @abstractmethod
    def add_(self, batch: Batch) -> Self:
        """Add a batch and return the sum, which may use the storage of this curvature."""

    @abstractmethod
    def merge(self, other: Self) -> Self:
        """Return the curvature of both sets of rows as a new curvature."""

    @abstractmethod
    def subtract(self, other: Self) -> Self:
        """Return the curvature without the rows of ``other``, or raise an error if they cannot be subtracted."""

    @abstractmethod
    def times(self, vector: Tensor) -> Tensor:
        """H v for v of shape (P,), float64."""

    @abstractmethod
    def eigenvalues(self) -> Tensor:
        """The P eigenvalues of H, float64, non-negative."""

    def total(self) -> Tensor:
        """Sum of all stored numbers, 0-d. It is finite only if all numbers are, so one check suffices."""
        return torch.stack([tensor.double().sum() for tensor in tensors_in(self)]).sum()

    def eigenbasis(self) -> Eigenbasis | None:
        """Eigenvalues and eigenvectors of H, or None if the structure is not exact."""
        return None

    def rotation(self, groups: Tensor) -> Rotation | None:
        """Map from rows to covariances of their outputs, for prior ``groups`` (P,); None by default."""
        return None

    @abstractmethod
    def posterior(self, precision: Tensor, scale: float) -> Posterior:
        """Posterior with precision ``scale * H + diag(precision)``. A 0-d ``precision`` can cost less.

        ``scale`` is 1 / (temperature · dispersion^power), with the ``dispersion_power`` of the curvature rule.
        """


class Posterior(ABC):
    """Gaussian posterior over the weights, with a factorisation of its precision P."""

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Number of weights."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of the tensors."""

    def row_width(self, blocks: Sequence[ParameterBlock], n_outputs: int) -> int:
        """Number of elements that :meth:`covariance` creates per input row; by default the size of the factors."""
        return sum(block.width(n_outputs) for block in blocks)

    @abstractmethod
    def logdet_precision(self) -> Tensor:
        """Log determinant of the precision P, 0-d float64."""

    @abstractmethod
    def apply_root(self, vectors: Tensor) -> Tensor:
        """R v for each row of ``vectors`` (s, P), where R Rᵀ = P⁻¹, shape (s, P)."""

    @abstractmethod
    def solve(self, vector: Tensor) -> Tensor:
        """Posterior covariance times ``vector``, shape (P,)."""

    @abstractmethod
    def covariance(self, jacobian: FactoredJacobian) -> Tensor:
        """J P⁻¹ Jᵀ for each row, shape (n, K, K), float64. Observation noise is not included."""

    @abstractmethod
    def left_out_covariance(self, jacobian: FactoredJacobian, factor: Tensor) -> Tensor:
        r"""Covariance (n, C, C), float64, of each row's outputs if the row is left out, bounded by
        :math:`J\,\mathrm{diag}(\delta)^{-1} J^\top`.

        The term :math:`J_n^\top S_n S_n^\top J_n` is subtracted from the posterior precision. ``factor`` is S, shape
        (n, C, K), and includes the weight of the row and the scale.
        """

    @abstractmethod
    def cross_covariance(self, jacobian: FactoredJacobian, other: FactoredJacobian) -> Tensor:
        """J P⁻¹ J′ᵀ jointly over rows and outputs, shape (n·K, m·K), float64."""

    @abstractmethod
    def marginal_variance(self) -> Tensor:
        """Diagonal of the posterior covariance, shape (P,)."""

    @abstractmethod
    def prior_statistics(self, groups: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        r"""Statistics for the derivatives of log |P| with respect to the log prior precisions of G groups.

        ``groups`` (P,) holds the group index of each weight. With the covariance Σ, the statistics are
        :math:`\sum_{i \in g} \delta_i \Sigma_{ii}` (G,) and
        :math:`\sum_{i \in g, j \in h} \delta_i \delta_j \Sigma_{ij}^2` (G, G).
        """

    def shrinkage(self, groups: Tensor, n_groups: int) -> Tensor:
        """First result of :meth:`prior_statistics`, possibly at lower cost."""
        return self.prior_statistics(groups, n_groups)[0]

    def variance(self, jacobian: FactoredJacobian) -> Tensor:
        """Diagonal of :meth:`covariance`, shape (n, K)."""
        return self.covariance(jacobian).diagonal(dim1=-2, dim2=-1)

    def sample(self, n_samples: int, generator: torch.Generator) -> Tensor:
        """Deviations of sampled weights from the posterior mean, shape (n_samples, P), float64."""
        noise = torch.randn(n_samples, self.n_parameters, generator=generator, dtype=torch.float64)
        return self.apply_root(noise.to(self.device))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in nested dataclasses and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors_in(item)
