r"""Leave-one-out predictions in closed form: the predictive distribution of each row from all other rows.

The model is the network linearised at θ*, :math:`f_n(\theta) = f_n^* + J_n(\theta - \theta^*)`, at its mode under the
given hyperparameters. Let :math:`r_n` and :math:`\Lambda_n` be the gradient and the expected Hessian of row n's loss
with respect to its outputs, :math:`S_n S_n^\top = w_n \Lambda_n/\varphi` and :math:`q_n = J_n P^{-1} J_n^\top`. A
Newton step on the objective without row n gives, for any weight of this row,

.. math:: f_{-n} = f_n + q_{-n}\, w_n r_n/\varphi, \qquad
          q_{-n} = q_n + q_n S_n (I - S_n^\top q_n S_n)^{-1} S_n^\top q_n

(Cook & Weisberg 1982 for least squares; Rad & Maleki 2020 for other losses). For a Gaussian likelihood this equals a
refit of the linearised network without the row. For ``negative_binomial``, whose Hessian differs from Λ, the error is
of first order in the leverage. Otherwise it is of second order, because the curvature of the *other* rows changes.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

import torch

from ..curvatures import GGN
from ..fit import Hyper, LaplaceFit, Rows
from ..latent import LatentGaussian
from .linearised import _curvature_at, _settled
from .rows import Density, LinearRows, held_rows, one_temperature


def leave_one_out(
    fit: LaplaceFit,
    exact: LaplaceFit,
    batches: Iterable[Rows],
    hyper: Hyper,
    all_rows: Iterable[LinearRows] | None = None,
) -> LatentGaussian:
    """Mean (n, C) and covariance (n, C, C) of each row's noise-free outputs, given all other rows.

    The structure and rule of ``fit`` determine the covariance. ``exact``, a fit of the same rows with ``GGN`` and an
    exact structure, determines the mean. A row of weight zero gets the ordinary prediction. The temperature affects
    only the covariance. ``all_rows`` are the ``held_rows`` of the batches, if known.
    """
    one_temperature(hyper)
    all_rows = held_rows(fit.network, batches) if all_rows is None else all_rows
    settled = _settled(exact, all_rows, batches, hyper)
    for_mean = posterior = settled.posterior(replace(hyper, temperature=1.0))
    same = fit is exact and hyper.temperature == 1.0
    if not same:
        moved = settled if fit is exact else replace(fit, curvature=_curvature_at(fit, batches, settled.shift))
        posterior = moved.posterior(hyper)
    means, covariances = [], []
    for rows in all_rows:
        outputs = rows.at(settled.shift)
        pull = rows.weights[:, None] * fit.likelihood.residual(outputs, rows.targets) / hyper.dispersion
        factor = rows.factor(GGN(), fit.likelihood, outputs) * math.sqrt(1 / hyper.dispersion)
        covariance = for_mean.left_out_covariance(rows.jacobian, factor)
        means.append(outputs + (covariance @ pull[..., None])[..., 0])
        if not same:
            factor = rows.factor(fit.rule, fit.likelihood, outputs) * math.sqrt(hyper.scale(fit.dispersion_power))
            covariance = posterior.left_out_covariance(rows.jacobian, factor)
        covariances.append(covariance)
    return LatentGaussian(torch.cat(means), torch.cat(covariances))


def loo_log_density(
    fit: LaplaceFit,
    exact: LaplaceFit,
    batches: Iterable[Rows],
    hyper: Hyper,
    density: Density,
    all_rows: Iterable[LinearRows] | None = None,
) -> float:
    """Leave-one-out log density Σ w log p(yₙ | other rows), nats. :class:`Likelihood` defines the scored y and w."""
    latent, total, start = leave_one_out(fit, exact, batches, hyper, all_rows), 0.0, 0
    for _, targets, weights in batches:
        span = slice(start, start + len(weights))
        of_batch = LatentGaussian(latent.mean[span], latent.covariance[span])
        scored = fit.likelihood.scored(of_batch, targets, weights)
        total += float(fit.likelihood.score_weights(weights).double() @ density(*scored, hyper.dispersion))
        start = span.stop
    return total
