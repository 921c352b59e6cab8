r"""Leave-one-out: what the model would say of each row had it not seen it, in closed form.

The model is the network linearised at θ*, :math:`f_n(\theta) = f_n^* + J_n(\theta - \theta^*)`. At its mode under the
given hyperparameters, with :math:`S_n S_n^\top = w_n \Lambda_n/\varphi` the curvature of row n's loss in its outputs
and :math:`q_n = J_n P^{-1} J_n^\top`, a Newton step of the objective without row n, all its weight, ends at

.. math:: f_{-n} = f_n + q_{-n}\, w_n r_n/\varphi, \qquad
          q_{-n} = q_n + q_n S_n (I - S_n^\top q_n S_n)^{-1} S_n^\top q_n

(Cook & Weisberg 1982 for least squares; Rad & Maleki 2020 for other losses). For a Gaussian likelihood that is the
refit without the row; for others the error is of second order in the leverage. More steps in the outputs of row n alone
would not lessen it: what the step leaves out is how the curvature of the *other* rows changes.

The mean of a Laplace approximation does not depend on its structure, which shapes the covariance alone; so without row
n, the mean is the refit's, for which :math:`q_n` has to come from an exact structure (``exact``), and the covariance is
that of the fit's own structure without the row (``left_out_covariance`` in ``structures/``). A structure's own q in the
place of the exact one would make the leverages those of independent layers or weights: such residuals had correlations
of .6 to .8 with those of refits, and chose prior precisions that were off by factors of up to thousands.
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
    r"""Mean and covariance of every row's outputs as of the model without that row.

    At the linearised network's own mode under these hyperparameters. A row of weight zero has taken no part, and its
    prediction is the plain one. The temperature scales the covariance and not the mean, as in the model itself.

    Parameters
    ----------
    fit : LaplaceFit
        Its structure and rule make the covariance.
    exact : LaplaceFit
        The same rows by ``GGN`` in an exact structure, full or functional, for the mean; where that of ``fit`` is one,
        the same object. A low_rank has to have more ranks than there are effective parameters to come near.
    batches : iterable of (inputs, targets, weights)
        All rows of the fit.
    hyper : Hyper

    Returns
    -------
    LatentGaussian
        Mean (n, C) and covariance (n, C, C), float64, in the order of the rows. Observation noise is not included.

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
    >>> found = leave_one_out(fit, fit, [(x, y, w)], Hyper(torch.ones(1).double()))
    >>> [moment.flatten().round(decimals=9).tolist() for moment in (found.mean, found.variance)]
    [[3.0, 1.5], [0.5, 0.5]]
    """
    one_temperature(hyper)
    every = linear_rows(fit.network, batches)
    settled = _settled(exact, every, batches, hyper)
    for_mean = posterior = settled.posterior(replace(hyper, temperature=1.0))
    same = fit is exact and hyper.temperature == 1.0
    if not same:
        own = settled if fit is exact else replace(fit, curvature=_curvature_at(fit, batches, settled.shift))
        posterior = own.posterior(hyper)
    means, covariances = [], []
    for rows in every:
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
    """Σ w log p(yₙ given the other rows), nats.

    Parameters
    ----------
    fit, exact, batches, hyper
        As for :func:`leave_one_out`.
    density : callable
        :func:`gaussian_density`, what :func:`class_density` gives, or another.

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
    >>> found = loo_log_density(fit, fit, rows, Hyper(torch.ones(1).double()), gaussian_density)
    >>> round(found + math.log(2 * math.pi * 1.5), 9)  # left-out means 3 and 1.5, variances 0.5 and the noise
    -6.75
    """
    latent, total, start = leave_one_out(fit, exact, batches, hyper), 0.0, 0
    for _, targets, weights in batches:
        span = slice(start, start + len(weights))
        one = LatentGaussian(latent.mean[span], latent.covariance[span])
        total += float(weights.double() @ density(one, targets, hyper.dispersion))
        start = span.stop
    return total
