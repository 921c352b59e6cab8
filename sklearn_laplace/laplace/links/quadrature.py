r"""Quadrature link: the integral of the softmax on a grid. With up to five classes, other links are compared with it.

With :math:`M \Sigma M = \sum_i s_i^2 v_i v_i^\top`, M from :mod:`~sklearn_laplace.laplace.links.bridge`,

.. math:: E[\mathrm{softmax}(f)] = \int \mathrm{softmax}\Big(\mu + \sum_i s_i z_i v_i\Big) \prod_i \phi(z_i)\,dz_i

over the at most C − 1 directions with a positive variance. Each direction has a grid of equal steps h. The error of a
sum over the grid decreases like :math:`e^{-2\pi a/h}`, where :math:`a = \pi/(\sqrt2 s_i)` is the distance to the
nearest pole of the softmax (Trefethen & Weideman 2014). So h depends on :math:`s_i`.
"""

import math

import torch
from torch import Tensor

from ..latent import LatentGaussian
from ._base import Link, centred, softmax_samples

NEGLIGIBLE = 1e-5
"""Standard deviations below this value change no probability by more than 1e-11."""
MOST_DIRECTIONS, MOST_POINTS = 4, 100_000
ACCURACY = 27.0
"""−log of the target error of the grid, as long as ``MOST_POINTS`` suffices."""
LONGEST_STEP, SHORTEST_REACH = 1.2, 5.0
"""Upper bound of the step and lower bound of the grid's half-width, in standard deviations. A grid has ≥ 10 points.

With the longest step, a normal density integrates to one ± 2e-6. At the shortest reach, 6e-7 of it lies outside.
"""


class Quadrature(Link):
    """E[softmax(f)] and its variance with errors of about 1e-11, from at most 100,000 grid points per row.

    A direction is an eigenvector of the covariance of the logits. If 100,000 points do not suffice, the grid is
    coarser. A row with more than four directions (at least six classes) uses quasi-random draws, like the link "mc".

    >>> from sklearn_laplace.laplace.links._base import standard_normals
    >>> latent = LatentGaussian(torch.tensor([[4.0, 0.0]]), 50 * torch.eye(2)[None])
    >>> Quadrature(standard_normals(16, 2, seed=0)).mean(latent).round(decimals=4)
    tensor([[0.6531, 0.3469]])
    """

    def mean(self, latent: LatentGaussian) -> Tensor:
        return self._moments(latent)[0]

    def variance(self, latent: LatentGaussian) -> Tensor:
        return self._moments(latent)[1]

    def _moments(self, latent: LatentGaussian) -> tuple[Tensor, Tensor]:
        logits = centred(LatentGaussian(latent.mean.double(), latent.covariance.double()))
        values, vectors = torch.linalg.eigh(logits.covariance)
        roots = vectors * values.clamp_min(0.0).sqrt()[:, None, :]
        rows = [self._row(mean, root) for mean, root in zip(logits.mean, roots, strict=True)]
        mean, variance = (torch.stack(parts) for parts in zip(*rows, strict=True))
        return mean.to(latent.mean), variance.to(latent.mean)

    def _row(self, mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of softmax(mean + root z), each of shape (C,)."""
        spread = root.square().sum(0).sqrt()
        wide = spread > NEGLIGIBLE
        if int(wide.sum()) > MOST_DIRECTIONS:
            points = softmax_samples(LatentGaussian(mean[None], (root @ root.mT)[None]), self.draws)[:, 0]
            weights = points.new_full((len(points),), 1 / len(points))
        else:
            nodes, weights = grid(spread[wide])
            points = (mean[:, None] + root[:, wide] @ nodes.mT).softmax(0).mT  # several times faster than softmax(1)
        average = weights @ points
        average = average / average.sum()  # removes the rounding error of up to 100,000 summands
        return average, torch.minimum(weights @ (points - average).square(), average * (1 - average))


def grid(spread: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes (m, d) and weights (m,) of a standard normal integral. ``spread`` (d,) holds the s of each direction."""
    accuracy = ACCURACY
    while (counts := _counts(spread, accuracy)).prod() > MOST_POINTS:
        accuracy *= 0.9
    ends = _reach(accuracy)
    axes = [torch.linspace(-ends, ends, int(n), dtype=torch.float64, device=spread.device) for n in counts]
    nodes = spread.new_zeros(1, 0)
    for axis in axes:
        nodes = torch.cat([nodes.repeat_interleave(len(axis), 0), axis.repeat(len(nodes))[:, None]], 1)
    return nodes, (-nodes.square().sum(1) / 2).softmax(0)


def _counts(spread: Tensor, accuracy: float) -> Tensor:
    """Number of nodes in each direction for an error of about exp(−accuracy), shape (d,).

    Shifting the contour of integration by a changes −log of the error by 2πa/h − a²/2. The shift is the distance to the
    pole, or the optimal shift if that is smaller.
    """
    shift = (math.pi / (2**0.5 * spread)).clamp_max((2 * accuracy) ** 0.5)
    steps = (2 * math.pi * shift / (accuracy + shift.square() / 2)).clamp_max(LONGEST_STEP)
    return (2 * _reach(accuracy) / steps).ceil() + 1


def _reach(accuracy: float) -> float:
    """Half-width of the grid: the normal mass outside is about exp(−accuracy)."""
    return max((2 * accuracy) ** 0.5, SHORTEST_REACH)
