r"""Prior over the weights: :math:`p(\theta) = N(\mu_0, \mathrm{diag}(\delta)^{-1})`, with δ shared within groups.

:class:`Prior` holds the mean and maps G group precisions to one precision per parameter.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prior:
    """Gaussian prior with one precision per group of parameters."""

    groups: Tensor  # group of each parameter, 0 … G−1, (P,), int64
    names: tuple[str, ...]  # of the groups, for messages and users
    mean: Tensor | None = None  # μ₀, (P,), float64; None for zero

    @property
    def n_groups(self) -> int:
        """Number of groups G."""
        return len(self.names)

    @property
    def counts(self) -> Tensor:
        """Number of parameters in each group, shape (G,), float64."""
        return torch.bincount(self.groups, minlength=self.n_groups).double()

    def precision(self, values: Tensor) -> Tensor:
        """Precision δ per parameter (P,); 0-d for a single group, so cached eigendecompositions can be used."""
        return values[0] if self.n_groups == 1 else values[self.groups]

    def group_sums(self, per_parameter: Tensor) -> Tensor:
        """Sum of a (P,) tensor within each group, shape (G,), float64."""
        zeros = torch.zeros(self.n_groups, dtype=torch.float64, device=per_parameter.device)
        return zeros.index_add(0, self.groups, per_parameter.double())

    def logdet(self, values: Tensor) -> Tensor:
        """Log determinant of diag(δ), from group precisions ``values`` (G,); a 0-d tensor."""
        return self.counts.to(values.device) @ values.log()

    def deviation(self, theta: Tensor) -> Tensor:
        """Deviation from the prior mean, θ − μ₀, shape (P,)."""
        return theta if self.mean is None else theta - self.mean

    def squares(self, theta: Tensor) -> Tensor:
        """Squared norm ‖θ − μ₀‖² within each group, shape (G,), float64."""
        return self.group_sums(self.deviation(theta).square())

    def quadratic(self, values: Tensor, theta: Tensor) -> Tensor:
        """Quadratic form (θ − μ₀)ᵀ diag(δ) (θ − μ₀), a 0-d tensor."""
        return values.double() @ self.squares(theta)

    def gradient(self, values: Tensor, theta: Tensor) -> Tensor:
        """Half the gradient of :meth:`quadratic`, diag(δ) (θ − μ₀), shape (P,)."""
        return self.precision(values) * self.deviation(theta)
