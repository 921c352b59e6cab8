r"""Leave-one-out predictions in closed form: the predictive distribution of each row without that row.

The model is the network linearised at θ*, :math:`f_n(\theta) = f_n^* + J_n(\theta - \theta^*)`, at its mode under the
given hyperparameters. Let :math:`S_n S_n^\top = w_n \Lambda_n/\varphi` be the curvature of row n's loss with respect to
its outputs, and :math:`q_n = J_n P^{-1} J_n^\top`. A Newton step of the objective without row n (its whole weight)
gives

.. math:: f_{-n} = f_n + q_{-n}\, w_n r_n/\varphi, \qquad
          q_{-n} = q_n + q_n S_n (I - S_n^\top q_n S_n)^{-1} S_n^\top q_n

(Cook & Weisberg 1982 for least squares; Rad & Maleki 2020 for other losses). For a Gaussian likelihood this equals the
refit without the row; for others the error is of second order in the leverage. More steps in the outputs of row n alone
would not reduce it, since the error comes from the changed curvature of the *other* rows.

The structure of a Laplace approximation affects the covariance, but not the mean. The left-out mean is therefore that
of the refit, with :math:`q_n` from an exact structure (``exact``). The left-out covariance is that of the fit's own
structure without the row (``left_out_covariance`` in ``structures/``). The structure's own q would give the leverages
of independent layers or weights, and wrong means; see docs/decisions.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch

from ..curvatures import GGN
from ..fit import Hyper, LaplaceFit, Rows
from ..latent import LatentGaussian
from .densities import Density
from .linearised import _curvature_at, _settled
from .rows import linear_rows, one_temperature


def leave_one_out(fit: LaplaceFit, exact: LaplaceFit, batches: Iterable[Rows], hyper: Hyper) -> LatentGaussian:
    r"""Mean and covariance of each row's outputs under the model without that row.

    Evaluated at the mode of the linearised network under these hyperparameters. A row of weight zero has the ordinary
    prediction. The temperature scales the covariance but not the mean, as in the model itself.

    Parameters
    ----------
    fit : LaplaceFit
        Fit whose structure and rule determine the covariance.
    exact : LaplaceFit
        Fit of the same rows with ``GGN`` and an exact structure (full or functional), which determines the mean. Pass
        ``fit`` itself if it qualifies. With low_rank, the rank should exceed the effective number of parameters.
    batches : iterable of (inputs, targets, weights)
        All rows of the fit.
    hyper : Hyper

    Returns
    -------
    LatentGaussian
        Mean (n, C) and covariance (n, C, C), float64, in the order of the rows, without observation noise.

    Raises
    ------
    UnsupportedCombinationError
        If there are several temperatures.
    ValueError
        If the total weight of ``batches`` differs from that of the fit.

    Examples
    --------
    >>> from sklearn_laplace.laplace import fit_laplace
    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> from sklearn_laplace.laplace.likelihoods import Gaussian
    >>> from sklearn_laplace.laplace.structures import Full
    >>> network = trace(torch.nn.Linear(1, 1, bias=False).double(), torch.ones(1, 1).double())
    >>> x, y, w = torch.ones(2, 1).double(), torch.tensor([[3.0], [6.0]]).double(), torch.ones(2).double()
    >>> fit = fit_laplace(network, Gaussian(), GGN(), Full, network.scalar_prior(), [(x, y, w)])
    >>> latent = leave_one_out(fit, fit, [(x, y, w)], Hyper(torch.ones(1).double()))
    >>> [moment.flatten().round(decimals=9).tolist() for moment in (latent.mean, latent.variance)]
    [[3.0, 1.5], [0.5, 0.5]]
    """
    one_temperature(hyper)
    all_rows = linear_rows(fit.network, batches)
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
    fit: LaplaceFit, exact: LaplaceFit, batches: Iterable[Rows], hyper: Hyper, density: Density
) -> float:
    """Leave-one-out log density Σ w log p(yₙ | other rows), nats.

    Parameters
    ----------
    fit, exact, batches, hyper
        As for :func:`leave_one_out`.
    density : callable
        :func:`gaussian_density`, a result of :func:`class_density`, or another function of this type.

    Examples
    --------
    >>> from sklearn_laplace.laplace import fit_laplace
    >>> from sklearn_laplace.laplace.leave_one_out import gaussian_density
    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> from sklearn_laplace.laplace.likelihoods import Gaussian
    >>> from sklearn_laplace.laplace.structures import Full
    >>> network = trace(torch.nn.Linear(1, 1, bias=False).double(), torch.ones(1, 1).double())
    >>> rows = [(torch.ones(2, 1).double(), torch.tensor([[3.0], [6.0]]).double(), torch.ones(2).double())]
    >>> fit = fit_laplace(network, Gaussian(), GGN(), Full, network.scalar_prior(), rows)
    >>> score = loo_log_density(fit, fit, rows, Hyper(torch.ones(1).double()), gaussian_density)
    >>> round(score + math.log(2 * math.pi * 1.5), 9)  # left-out means 3 and 1.5, variances 0.5 and the noise
    -6.75
    """
    latent, total, start = leave_one_out(fit, exact, batches, hyper), 0.0, 0
    for _, targets, weights in batches:
        span = slice(start, start + len(weights))
        of_batch = LatentGaussian(latent.mean[span], latent.covariance[span])
        total += float(weights.double() @ density(of_batch, targets, hyper.dispersion))
        start = span.stop
    return total
