r"""Jackknife+ intervals (Barber et al. 2021) without refits, from the predictions of each leave-one-out model.

With the linearised network at its mode, a Newton step without row n (its whole weight) gives the predictions

.. math:: \mu_{-n}(x) = f(x) + J_x P^{-1} J_n^\top\, w_n r_n(f_{-n})/\varphi ,

with r the gradient of row n's loss at its own left-out outputs :math:`f_{-n}` (``laplace/leave_one_out/left_out.py``).
By :math:`(I - S S^\top q)^{-1} = I + S S^\top q_{-n}`, this is the step of Cook & Weisberg (1982) and Tailor et al.
(2025), without cancellation. For a Gaussian likelihood it equals the refit. With the residuals
:math:`R_n = |y_n - \mu_{-n}(x_n)|`, the interval of level :math:`1 - \alpha` at x is

.. math:: \big[\; \lfloor \alpha (N_w + 1) \rfloor\text{-th smallest } \mu_{-n}(x) - R_n, \quad
          \lceil (1 - \alpha)(N_w + 1) \rceil\text{-th smallest } \mu_{-n}(x) + R_n \;\big]

where each row counts with its weight and the new row with weight 1 (:math:`N_w = \sum w`). An end is infinite if there
are too few rows for it. The interval does not require a correct noise variance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..fit import Hyper, LaplaceFit, Rows
from ..likelihoods._base import without_noise
from ..structures._base import Posterior
from .left_out import leave_one_out
from .linearised import linearised_mode
from .rows import LinearRows, linear_rows

ROUNDING = 1e-9
"""Relative tolerance for rounding errors in cumulative weights."""


@dataclass(frozen=True)
class LeftOutModels:
    """Leave-one-out models, represented by their outputs."""

    fit: LaplaceFit  # at the mode of the linearised network
    posterior: Posterior  # exact, at temperature 1
    rows: Iterable[LinearRows]  # to leave out, N in total
    pulls: Tensor  # w r/φ at the left-out outputs, (N, C), float64
    scores: Tensor  # absolute left-out residuals R, (N, C), float64
    weights: Tensor  # of the rows, (N,), float64

    def predictions(self, x: Tensor) -> Tensor:
        """Outputs (m, C, N) of all models at new inputs (m, …), float64. Costs m N C² products with the root."""
        outputs, jacobian = self.fit.network.jacobian(x)
        jacobian, parts, start = jacobian.double(), [], 0
        mean = outputs.double()
        if self.fit.shift is not None:
            mean = mean + jacobian.times(self.fit.shift[:, None])[..., 0]
        for row in self.rows:
            n = len(row.weights)
            cross = self.posterior.cross_covariance(jacobian, row.jacobian).view(*mean.shape, n, -1)
            parts.append((cross * self.pulls[start : start + n]).sum(-1))
            start += n
        return mean[..., None] + torch.cat(parts, -1)

    def interval(self, x: Tensor, levels: Tensor) -> Tensor:
        """Lower and upper ends of the intervals at new inputs (m, …), for levels (L,): shape (m, 2, L, C)."""
        means, scores = self.predictions(x), self.scores.mT
        ends = [-reached(scores - means, self.weights, levels), reached(means + scores, self.weights, levels)]
        return torch.stack(ends, 1).mT


def left_out_models(exact: LaplaceFit, batches: Iterable[Rows], hyper: Hyper) -> LeftOutModels:
    """Leave-one-out models of all rows of a fit with a Gaussian likelihood, ``GGN`` and an exact structure.

    The temperature is ignored, since the mean does not depend on it.
    """
    hyper = replace(hyper, temperature=1.0)
    settled = linearised_mode(exact, batches, hyper)
    mean = leave_one_out(settled, settled, batches, hyper).mean
    targets, weights = (torch.cat(parts) for parts in zip(*((y, w) for _, y, w in batches), strict=True))
    targets, weights = targets.double(), weights.double()
    pulls = weights[:, None] * exact.likelihood.residual(mean, targets) / hyper.dispersion
    scores = (without_noise(targets, exact.n_outputs)[0] - mean).abs()
    rows = linear_rows(exact.network, batches)
    return LeftOutModels(settled, settled.posterior(hyper), rows, pulls, scores, weights)


def largest(scores: Tensor, weights: Tensor) -> Tensor:
    """Largest of each row's scores (N, C), in units of each output's root mean square, for intervals that hold jointly.

    The result (N, C) is again in the units of each output.
    """
    scale = (weights @ scores.square() / weights.sum()).sqrt()
    units = torch.where(scale > 0, scale, 1.0)
    return scale * (scores / units).amax(1, keepdim=True)


def reached(values: Tensor, weights: Tensor, levels: Tensor) -> Tensor:
    """Conformal quantiles: smallest value whose cumulative weight is at least level · (Σ w + 1), or infinity.

    From values (…, N), weights (N,) and levels (L,), shape (…, L).
    """
    ordered, order = values.sort(-1)
    passed = weights[order].cumsum(-1)
    wanted = levels * (weights.sum() + 1) * (1 - ROUNDING)
    place = torch.searchsorted(passed, wanted.expand(*passed.shape[:-1], -1).contiguous())
    endless = torch.cat([ordered, torch.full_like(ordered[..., :1], torch.inf)], -1)
    return endless.gather(-1, place)
