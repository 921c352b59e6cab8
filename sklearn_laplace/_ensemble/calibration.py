r"""Calibration of an ensemble's variances and noise tails on held-out rows.

A repeat is a partition of the rows into folds, with one member per fold. Each row is thus held out from one member of
every repeat. The errors of one repeat show the accuracy of a single member. The errors of two repeats also show how
much averaging improves the prediction.

**Factor.** All variances of K members are multiplied by :math:`c_K`. Let :math:`c_1` and :math:`c_2` be the best
factors for a single member and for the mixture of the repeats. Averaging members with weights :math:`a_k` removes a
part of the variance between them, proportional to :math:`1 - \sum_k a_k^2`. With the weights :math:`b_d` of the
repeats,

.. math:: \log c_K = \log c_1 + \frac{1 - \sum_k a_k^2}{1 - \sum_d b_d^2} \min(\log c_2 - \log c_1, 0).

**Tails.** Let h be the log noise variance of a row relative to the noise level :math:`\varphi`. A noise model
(``noise_model.py``) predicts a Gaussian for h, with mean m and variance s². Real errors often have heavier tails.
Therefore h gets an additional standard deviation :math:`\tau`, and its mean is shifted such that :math:`E[e^h]` stays
the same. With the factor c, the density of an error e of a prediction with variance V is

.. math:: p(e) = \int N\big(e; 0, c(V + \varphi e^{m - \tau^2/2 + z\sqrt{s^2 + \tau^2}})\big) N(z; 0, 1)\, dz.

For each row, h is predicted without that row, by one Newton step. :math:`\tau` is ``USUAL_SPREAD``, unless another
value raises the held-out log density of the mixture by at least ``WORTH`` nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from ..errors import MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError
from ..laplace.fit import some_rows
from ..laplace.latent import LatentGaussian
from ..laplace.selection import HeldOutErrors
from ..options.resolved import Options
from .noise_model import TrainedNoise, noise_model, normal_nodes, shrunk

FACTORS = 0.05, 4.5
"""Minimum and maximum of the common factor of all variances."""
MOST_REACH = 2.0
"""Maximum of :math:`\\log c_K - \\log c_1` relative to :math:`\\log c_2 - \\log c_1`."""
SPREADS = (0.0, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5, 1.8, 2.1)
"""Candidate values of τ."""
USUAL_SPREAD, WORTH = 0.5, 2.0
"""Default τ, and the minimum gain in held-out log density, in nats, for selecting another value."""
MOST_ROWS = 4000
"""Maximum number of held-out rows for estimating τ and the factors."""


@dataclass(frozen=True)
class HeldOutRepeats:
    """Errors of held-out rows in D repeats, and their predicted variances."""

    errors: Tensor  # (D, n, C)
    variance: Tensor  # (D, n, C), without noise
    noise: Tensor  # (D, n, C), noise variances at the mean of h
    log_variance: Tensor | None  # (n, C), variance s² of h; None without a noise model
    weights: Tensor  # (n,), of the rows
    shares: Tensor  # (D,), of the repeats in the mixture

    def some(self, most: int) -> HeldOutRepeats:
        """Random sample of at most ``most`` rows, with a fixed seed."""
        chosen = some_rows(len(self.weights), most).to(self.weights.device)
        errors, variance, noise = (part[:, chosen] for part in (self.errors, self.variance, self.noise))
        log_variance = None if self.log_variance is None else self.log_variance[chosen]
        return HeldOutRepeats(errors, variance, noise, log_variance, self.weights[chosen], self.shares)

    def under(self, chosen: Tensor, dispersion: Tensor, log_ratio: LatentGaussian) -> HeldOutRepeats:
        """Return the m ``chosen`` rows, with noise derived from φ (D, 1, 1) and distributions (m, C) of h."""
        errors, variance = (part[:, chosen] for part in (self.errors, self.variance))
        noise = (dispersion * log_ratio.mean.exp()).expand_as(errors)
        return HeldOutRepeats(errors, variance, noise, shrunk(log_ratio.variance), self.weights[chosen], self.shares)

    def log_densities(self, factor: float, spread: float = 0.0) -> Tensor:
        """Log density (D, n, C) of errors in nats, up to a constant, for a variance factor and a spread τ."""
        if self.log_variance is None:
            return self._normal(factor, self.noise)
        roots, weights = normal_nodes(self.errors)
        deviation = (self.log_variance + spread**2).sqrt()
        log_terms = [
            weight.log() + self._normal(factor, self.noise * (root * deviation - spread**2 / 2).exp())
            for root, weight in zip(roots, weights, strict=True)
        ]
        return torch.stack(log_terms).logsumexp(0)

    def _normal(self, factor: float, noise: Tensor) -> Tensor:
        total = factor * (self.variance + noise)
        return -0.5 * (total.log() + self.errors.square() / total)

    def of_one(self, densities: Tensor) -> float:
        """Weighted mean of the repeats' log densities, summed over rows, in nats."""
        return float(self.weights @ torch.tensordot(self.shares, densities, 1).sum(1))

    def of_all(self, densities: Tensor) -> float:
        """Log density of the repeats' mixture, summed over rows, in nats."""
        return float(self.weights @ (densities + self.shares.log()[:, None, None]).logsumexp(0).sum(1))

    def best_factor(self, score: Callable[[Tensor], float], spread: float) -> tuple[float, float]:
        """Return the logarithm of the factor with the largest score, and the score."""

        def loss(log_factor: float) -> float:
            return -score(self.log_densities(math.exp(log_factor), spread))

        bounds = tuple(math.log(factor) for factor in FACTORS)
        optimum = minimize_scalar(loss, bounds=bounds, method="bounded")
        return float(optimum.x), -float(optimum.fun)


def calibrated(rows: HeldOutRepeats, shares: Sequence[float]) -> tuple[float, float]:
    """Return the factor c_K of all variances and the τ of the noise, for a mixture with ``shares`` (K,) as weights."""
    rows = rows.some(MOST_ROWS)
    spreads, usual = (SPREADS, USUAL_SPREAD) if rows.log_variance is not None else ((0.0,), 0.0)
    together = {spread: rows.best_factor(rows.of_all, spread) for spread in spreads}
    best = max(spreads, key=lambda spread: together[spread][1])
    if together[best][1] - together[usual][1] < WORTH:
        best = usual
    alone, _ = rows.best_factor(rows.of_one, best)
    if len(rows.shares) == 1:
        return math.exp(alone), best
    reach = (1 - sum(share**2 for share in shares)) / (1 - float(rows.shares.square().sum()))
    log_factor = alone + min(reach, MOST_REACH) * min(together[best][0] - alone, 0.0)
    return max(math.exp(log_factor), FACTORS[0]), best


def with_tails(trained: TrainedNoise) -> TrainedNoise:
    """Return the noise model with the spread τ estimated from its own training rows."""
    sample = trained.some(MOST_ROWS)
    log_ratio = sample.left_out()
    noise = sample.dispersion * (log_ratio.mean + sample.model.log_level).exp()
    errors, variance, noise = (part[None] for part in (sample.errors, sample.variance, noise))
    share = torch.ones_like(sample.weights[:1])
    rows = HeldOutRepeats(errors, variance, noise, shrunk(log_ratio.variance), sample.weights, share)
    return replace(trained, model=replace(trained.model, spread=calibrated(rows, (1.0,))[1]))


FAILURES = MemoryBudgetError, NonFiniteError, NotPositiveDefiniteError
"""Exceptions after which nets with exact steps are omitted, and noise is constant unless requested otherwise."""


def learnt_noise(
    net: nn.Module,
    inputs: Tensor,
    held_out: HeldOutErrors,
    dispersion: float,
    options: Options,
    seed: int,
    *,
    honest: bool,
    quick: bool = False,
    with_own_tails: bool = True,
) -> TrainedNoise | None:
    """Return the noise model trained on held-out errors of rows (n, d), with the untrained ``net``.

    Unless noise has to vary, return None if constant noise suffices or the net is too expensive. If ``honest``, the
    errors come from nets trained without these rows, and nets for the mean are also trained under this noise. If
    ``quick``, the model suits row weights, but not predictions. Else ``with_own_tails`` estimates τ from these errors.
    """
    weights, always = held_out.weights, bool(options.varying_noise)
    net, inputs = net.to(weights), inputs.to(weights)
    trained = noise_model(net, inputs, weights, held_out, dispersion, seed, always=always, quick=quick)
    if trained is None:
        return None
    if not quick:
        trained.model.warn_at_bounds(inputs)
        trained = with_tails(trained) if with_own_tails else trained
    return replace(trained, model=trained.model.trained_under(inputs, weights)) if honest else trained
