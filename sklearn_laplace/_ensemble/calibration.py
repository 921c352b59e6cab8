r"""Variances and tails of a mixture, by the errors of rows that its members have not seen.

A held-out row has an error in each deal of the rows, from the member of that deal that has not seen it. One deal
shows how large the errors of one member are. Two show as well how much smaller those of a mixture are.

**The factor.** All variances of the mixture are multiplied by :math:`c_K`, the factor that suits K members. The best
factor is :math:`c_1` for one member, and :math:`c_2` for the mixture of two. What an average with weights
:math:`a_k` removes of the members' variance is proportional to :math:`1 - \sum_k a_k^2`. With weights b of the two
deals it follows that

.. math:: \log c_K = \log c_1 + \frac{1 - \sum_k a_k^2}{1 - \sum_d b_d^2} (\log c_2 - \log c_1).

**The tails.** Where a model of the noise is there (``_noise_model.py``), its log variance h at a row is Gaussian.
Errors of real tables have heavier tails than that gives. So h may vary further, with the standard deviation
:math:`\tau` and the mean of :math:`e^h` as before. A row then has the density

.. math:: p(e) = \int N\big(e; 0, c(V + \varphi e^{h - \tau^2/2 + z\sqrt{s^2 + \tau^2}})\big) N(z; 0, 1)\, dz,

s² the variance of h. :math:`\tau` has the largest density of the mixture of two, and is zero where that gains next to
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from .._noise_model import normal_nodes

FACTORS = 0.05, 4.5
"""Least and largest factor of all variances."""
MOST_REACH = 2.0
"""Most that :math:`\\log c_K - \\log c_1` is in units of :math:`\\log c_2 - \\log c_1`."""
SPREADS = (0.0, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5)
"""Values of τ that are tried."""
WORTH = 2.0
"""Nats by which heavier tails have to raise the density of the held-out rows."""
MOST_ROWS = 4000
"""Held-out rows that choose τ and the factors: they are three numbers."""
ACCURACY = 1e-3


@dataclass(frozen=True)
class HeldOutDeals:
    """Errors of held-out rows in D deals, as normal distributions of known moments.

    Parameters
    ----------
    errors : Tensor of shape (D, n, C)
    variance : Tensor of shape (D, n, C)
        Of the predictions, noise apart.
    noise : Tensor of shape (D, n, C)
        Noise variances at the mean of h.
    log_variance : Tensor of shape (n, C) or None
        s², the variances of h; None without a model of the noise.
    weights : Tensor of shape (n,)
    shares : Tensor of shape (D,)
        Weights of the deals in the mixture.
    """

    errors: Tensor
    variance: Tensor
    noise: Tensor
    log_variance: Tensor | None
    weights: Tensor
    shares: Tensor

    def some(self, most: int = MOST_ROWS) -> HeldOutDeals:
        """With as many rows at most, chosen at random by a fixed seed."""
        n = len(self.weights)
        if n <= most:
            return self
        few = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:most].sort().values
        few = few.to(self.weights.device)
        errors, variance, noise = (part[:, few] for part in (self.errors, self.variance, self.noise))
        log_variance = None if self.log_variance is None else self.log_variance[few]
        return HeldOutDeals(errors, variance, noise, log_variance, self.weights[few], self.shares)

    def log_densities(self, factor: float, spread: float = 0.0) -> Tensor:
        """Log density of each error (D, n, C), but for a constant, under variances times a factor and tails τ."""
        if self.log_variance is None:
            return self._normal(factor, self.noise)
        roots, weights = normal_nodes(self.errors)
        deviation = (self.log_variance + spread**2).sqrt()
        found = [
            weight.log() + self._normal(factor, self.noise * (root * deviation - spread**2 / 2).exp())
            for root, weight in zip(roots, weights, strict=True)
        ]
        return torch.stack(found).logsumexp(0)

    def _normal(self, factor: float, noise: Tensor) -> Tensor:
        total = factor * (self.variance + noise)
        return -0.5 * (total.log() + self.errors.square() / total)

    def of_one(self, densities: Tensor) -> float:
        """Mean of the deals' log densities, summed over rows, nats."""
        return float(self.weights @ torch.tensordot(self.shares, densities, 1).sum(1))

    def of_all(self, densities: Tensor) -> float:
        """Log density of the mixture of the deals, summed over rows, nats."""
        return float(self.weights @ (densities + self.shares.log()[:, None, None]).logsumexp(0).sum(1))

    def best_factor(self, score: Callable[[Tensor], float], spread: float) -> tuple[float, float]:
        """Logarithm of the factor with the largest score, and that score."""

        def loss(log_factor: float) -> float:
            return -score(self.log_densities(math.exp(log_factor), spread))

        bounds = tuple(math.log(factor) for factor in FACTORS)
        found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": ACCURACY})
        return float(found.x), -float(found.fun)


def calibrated(rows: HeldOutDeals, shares: Sequence[float]) -> tuple[float, float]:
    """c_K and τ of a mixture: see the module.

    Parameters
    ----------
    rows : HeldOutDeals
    shares : sequence of K floats
        Weights of the members.

    Returns
    -------
    factor, spread : float
    """
    rows = rows.some()
    spreads = SPREADS if rows.log_variance is not None else SPREADS[:1]
    together = [rows.best_factor(rows.of_all, spread) for spread in spreads]
    best = max(range(len(spreads)), key=lambda place: together[place][1])
    if together[best][1] - together[0][1] < WORTH:
        best = 0
    alone, _ = rows.best_factor(rows.of_one, spreads[best])
    if len(rows.shares) == 1:
        return math.exp(alone), spreads[best]
    reach = (1 - sum(share**2 for share in shares)) / (1 - float(rows.shares.square().sum()))
    log_factor = alone + min(reach, MOST_REACH) * min(together[best][0] - alone, 0.0)
    return max(math.exp(log_factor), FACTORS[0]), spreads[best]
