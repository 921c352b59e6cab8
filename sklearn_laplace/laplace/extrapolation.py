r"""Variance added to outputs outside the range of the training rows.

Outside this range, a net's function is determined by the prior, not by the data. Random functions are therefore added
to its outputs. These functions are zero inside, so their posterior equals their prior (similar to Kristiadi, Hein &
Hennig 2021). The range of a column is extended by margins. Let :math:`e_{j\pm}` be the distance of column j's value
beyond its upper (+) or lower (−) end, in widths of the range without margins. The term for an output with scale s is

.. math:: \sum_{j, \pm} s\, w_{j\pm}\, e_{j\pm}^{3/2}, \qquad w_{j\pm} \sim N(0, 1),
          \qquad \text{with the variance } s^2 \sum_{j, \pm} e_{j\pm}^3 .
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

FARTHEST = 1e30
"""Upper limit of the distances e, which keeps variances finite."""


@dataclass(frozen=True, eq=False)
class Extrapolation:
    """Independent Gaussian random functions of rows (n, d), one per output."""

    low: Tensor  # (d,), lower end of the range; −∞ without a range
    high: Tensor  # (d,), upper end of the range
    width: Tensor  # (d,), in the units of X
    scale: Tensor  # s of each output, (C,), in the units of the output

    def excess(self, x: Tensor) -> Tensor:
        """Distances e beyond the ends of each column's range, shape (n, 2 d), float64; zero for missing values."""
        low, high, width = (part.to(x.device) for part in (self.low, self.high, self.width))
        beyond = torch.cat([(low - x.double()) / width, (x.double() - high) / width], 1)
        return torch.where(beyond > 0, beyond, 0.0).clamp_max(FARTHEST)

    def features(self, x: Tensor) -> Tensor:
        """Features (n, 2 d), whose squares sum to the variance for s = 1."""
        excess = self.excess(x)
        return excess * excess.sqrt()

    def variance(self, x: Tensor) -> Tensor:
        """Variance added to each output, shape (n, C)."""
        return self.excess(x).pow(3).sum(1, keepdim=True) * self.scale.to(x.device).square()

    def joint_covariance(self, x: Tensor) -> Tensor:
        """Joint covariance over rows and outputs, shape (n·C, n·C); row-major in (row, output)."""
        features = self.features(x)
        return torch.kron(features @ features.mT, self.scale.to(x.device).square().diag())

    def drawn(self, n_samples: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """Map from rows (n, d) to values (n, C, S) of ``n_samples`` random functions. The generator is not advanced."""
        ahead = torch.Generator().set_state(generator.get_state())
        ahead = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=ahead)))
        shape = 2 * len(self.low), len(self.scale), n_samples
        weights = torch.randn(shape, generator=ahead, dtype=torch.float64) * self.scale[:, None]

        def functions(x: Tensor) -> Tensor:
            return torch.einsum("nk,kcs->ncs", self.features(x), weights.to(x.device))

        return functions
