r"""Rows with gaps: predictions averaged over training values of the column.

A gap is an unknown category, or a missing number in a column without missing numbers in training. Training categories
replace an unknown one, in proportion to their frequencies. A row x with gaps becomes K copies, filled with different
training values. The outputs of x have the moments of a mixture over the copies. If the copies have means :math:`\mu_k`
and covariances :math:`\Sigma_k`, these moments are

.. math:: \mu = \frac1K \sum_k \mu_k, \qquad
          \Sigma = \frac1K \sum_k \big(\Sigma_k + (\mu_k - \mu)(\mu_k - \mu)^\top\big) .

The columns are treated as independent of each other.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from .._table.fillings import Fillings
from ..laplace.latent import LatentGaussian


@dataclass(frozen=True, eq=False)
class Filled:
    """Copies of rows with filled gaps."""

    rows: Tensor  # (m, d)
    centre: Tensor  # (n, d), with column means for missing numbers
    counts: Tensor | None = None  # (n,), copies of each row; None if no row has a gap

    @classmethod
    def of(cls, x: Tensor, fillings: Fillings | None) -> Self:
        """Copies of rows (n, d), with missing values and unknown categories filled from the training data."""
        if fillings is None:
            return cls(x, x)
        gaps, values = fillings.gaps(x), fillings.values.to(x)
        counts = torch.where(gaps.any(1), len(fillings), 1)
        place = torch.arange(int(counts.sum()), device=x.device)
        owner = torch.repeat_interleave(counts)
        place = place - (counts.cumsum(0) - counts)[owner]
        return cls(torch.where(gaps[owner], values[place], x[owner]), fillings.centre(x), counts)

    def mean(self, values: Tensor) -> Tensor:
        """Mean (n, …) of values (m, …) over the copies of each row."""
        if self.counts is None:
            return values
        sums = values.new_zeros(len(self.centre), *values.shape[1:])
        sums.index_add_(0, torch.repeat_interleave(self.counts), values)
        return sums / self.counts.view(-1, *[1] * (values.ndim - 1))

    def latent(self, copies: LatentGaussian) -> LatentGaussian:
        """Moments of the rows' outputs, from those of the copies."""
        if self.counts is None:
            return copies
        mean, samples = self.mean(copies.mean), copies.samples
        away = copies.mean - mean[torch.repeat_interleave(self.counts)]
        covariance = self.mean(copies.covariance + away[:, :, None] * away[:, None])
        if samples is not None:
            samples = self.chosen(samples.movedim(0, -1), 0).movedim(-1, 0)
        return LatentGaussian(mean, covariance, samples)

    def chosen(self, values: Tensor, seed: int) -> Tensor:
        """Draws (n, C, s) of the rows, each from a random copy of the row. ``values`` (m, C, s) are draws of copies."""
        if self.counts is None:
            return values
        generator = torch.Generator().manual_seed(seed)
        uniform = torch.rand(len(self.counts), values.shape[-1], generator=generator).to(self.counts.device)
        first = self.counts.cumsum(0) - self.counts
        place = first[:, None] + (uniform * self.counts[:, None]).long()
        return values.gather(0, place[:, None].expand(-1, values.shape[1], -1))

    def joint(self, covariance: Tensor, means: Tensor) -> Tensor:
        """Joint covariance (n·C, n·C) of the rows, from that of the copies (m·C, m·C) and their means (m, C)."""
        m, n_outputs = means.shape
        blocks = covariance.view(m, n_outputs, m, n_outputs)
        own = self.latent(LatentGaussian(means, blocks.diagonal(dim1=0, dim2=2).movedim(-1, 0))).covariance
        averaged = self.mean(self.mean(blocks).transpose(0, 2)).transpose(0, 2).clone()
        index = torch.arange(len(own), device=own.device)
        averaged[index, :, index] = own
        return averaged.reshape(len(own) * n_outputs, -1)
