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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .curvatures import GGN
from .curvatures._base import CurvatureRule
from .errors import UnsupportedCombinationError
from .jacobian import DenseFactor, FactoredJacobian
from .laplace import Hyper, LaplaceFit, Rows, fit_laplace
from .latent import LatentGaussian
from .likelihoods._base import Likelihood, Link, without_noise
from .linalg import TOLERANCE, conjugate_gradients
from .network import Linearisation, Network
from .structures._base import Curvature

HELD = 2**25
"""Elements of Jacobians that are held from pass to pass, 256 MB; beyond, each pass makes them anew."""
MAX_STEPS, MAX_HALVINGS = 50, 25
DECREMENT = 1e-10
"""A mode is found when the Newton decrement falls below this many posterior standard deviations."""
ROUNDING = 1e-14
"""Changes of the objective below this part of it are none."""
LOOSE = 0.01
"""Tolerance of a Newton step's system far from the mode; nearer it is the decrement, for quadratic convergence."""

Density = Callable[[LatentGaussian, Tensor, float], Tensor]
"""From a Gaussian over the outputs, targets and dispersion to log p(y) of each row (n,), nats."""


@dataclass(frozen=True)
class LinearRows:
    """Rows of the linearised network, in float64.

    Parameters
    ----------
    inputs : Tensor of shape (n, …)
    outputs : Tensor of shape (n, C)
        f* at θ*.
    jacobian : FactoredJacobian with n rows and C columns
    targets : Tensor with n rows
    weights : Tensor of shape (n,)

    Examples
    --------
    >>> import torch
    >>> network = trace(torch.nn.Linear(2, 1), torch.zeros(1, 2))
    >>> (rows,) = linear_rows(network, [(torch.ones(3, 2), torch.zeros(3, 1), torch.ones(3))])
    >>> torch.allclose(rows.at(-network.theta), torch.zeros(3, 1).double(), atol=1e-6)
    True
    """

    inputs: Tensor
    outputs: Tensor
    jacobian: FactoredJacobian
    targets: Tensor
    weights: Tensor

    def at(self, shift: Tensor | None) -> Tensor:
        """Outputs f* + J·shift (n, C) for a shift (P,) of the weights."""
        return self.outputs if shift is None else self.outputs + self.jacobian.times(shift[:, None])[..., 0]

    def factor(self, rule: CurvatureRule, likelihood: Likelihood, outputs: Tensor) -> Tensor:
        """S (n, C, K) of a rule at these outputs, at unit dispersion and with √w in it.

        A rule that has no S, because it gives whole matrices, is answered for by the generalised Gauss–Newton's.
        """
        rule = rule if "rows" in rule.provides else GGN()
        line = Linearisation(self.inputs, outputs, _as_rows, _no_hessian)
        return rule.batch(line, likelihood, self.targets, self.weights).jacobian.rows().mT


@dataclass(frozen=True)
class _Pass:
    network: Network
    batches: Iterable[Rows]

    def __iter__(self) -> Iterator[LinearRows]:
        for inputs, targets, weights in self.batches:
            outputs, jacobian = self.network.jacobian(inputs)
            targets = targets.double() if targets.is_floating_point() else targets
            yield LinearRows(inputs, outputs.double(), jacobian.double(), targets, weights.double())


def linear_rows(network: Network, batches: Iterable[Rows]) -> Iterable[LinearRows]:
    """The rows of the linearised network, to be gone through any number of times; held while they are few.

    Parameters
    ----------
    network : Network
    batches : iterable of (inputs, targets, weights)

    Returns
    -------
    iterable of LinearRows, one a batch

    Examples
    --------
    >>> import torch
    >>> network = trace(torch.nn.Linear(2, 1), torch.zeros(1, 2))
    >>> batch = (torch.ones(3, 2), torch.zeros(3, 1), torch.ones(3))
    >>> [rows.outputs.shape for rows in linear_rows(network, [batch, batch])]
    [torch.Size([3, 1]), torch.Size([3, 1])]
    """
    every, held, size = _Pass(network, batches), [], 0
    for rows in every:
        size += len(rows.weights) * sum(block.width(rows.outputs.shape[1]) for block in network.blocks)
        if size > HELD:
            return every
        held.append(rows)
    return held


def linearised_mode(fit: LaplaceFit, batches: Iterable[Rows], hyper: Hyper) -> LaplaceFit:
    r"""The fit at the mode of the linearised network under other hyperparameters.

    Newton's method on :math:`\sum_n w_n\,\mathrm{nll}(f_n(\theta))/\varphi + \tfrac12(\theta - \mu_0)^\top
    \mathrm{diag}(\delta)(\theta - \mu_0)`; one step where the likelihood is Gaussian. Gradient and curvature are exact
    whatever the structure: the steps are solved by conjugate gradients, and the fit's posterior is the preconditioner
    only.

    Parameters
    ----------
    fit : LaplaceFit
        Any structure and rule; the search starts at its mean.
    batches : iterable of (inputs, targets, weights)
        All rows of the fit.
    hyper : Hyper
        The temperature does not enter.

    Returns
    -------
    LaplaceFit
        With the way from θ* as its shift, and loss, gradient and curvature as they are there (an exact Hessian stays
        that of the network at θ*).

    Examples
    --------
    >>> import torch
    >>> from sklearn_laplace.likelihoods import Gaussian
    >>> from sklearn_laplace.structures import Full
    >>> network = trace(torch.nn.Linear(1, 1, bias=False).double(), torch.ones(1, 1).double())
    >>> batches = [(torch.ones(1, 1).double(), 3 * torch.ones(1, 1).double(), torch.ones(1).double())]
    >>> fit = fit_laplace(network, Gaussian(), GGN(), Full, network.scalar_prior(), batches)
    >>> found = linearised_mode(fit, batches, Hyper(torch.ones(1).double(), dispersion=0.5))
    >>> round(float(found.theta), 9)  # the target with precision 2, the prior's 0 with precision 1
    2.0
    """
    return _settled(fit, linear_rows(fit.network, batches), batches, hyper)


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
    >>> import torch
    >>> from sklearn_laplace.likelihoods import Gaussian
    >>> from sklearn_laplace.structures import Full
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
    >>> import torch
    >>> from sklearn_laplace.likelihoods import Gaussian
    >>> from sklearn_laplace.structures import Full
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


def one_temperature(hyper: Hyper) -> float:
    """The temperature of all weights.

    Raises
    ------
    UnsupportedCombinationError
        Where layers have temperatures of their own.

    Examples
    --------
    >>> one_temperature(Hyper(torch.ones(1), temperature=2.0))
    2.0
    """
    if isinstance(hyper.temperature, Tensor):
        raise UnsupportedCombinationError(
            "leave-one-out needs one temperature for all weights, and these have several; give temperature as a number."
        )
    return hyper.temperature


def gaussian_density(latent: LatentGaussian, targets: Tensor, dispersion: float) -> Tensor:
    """log N(y; mean, covariance + φ diag(v)) of each row, nats, shape (n,); v its known noise variances, or ones.

    Examples
    --------
    >>> import torch
    >>> latent = LatentGaussian(torch.zeros(1, 1).double(), torch.ones(1, 1, 1).double())
    >>> float(gaussian_density(latent, torch.full((1, 1), 2.0), 3.0)) == -0.5 * (2.0**2 / 4 + math.log(2 * math.pi * 4))
    True
    """
    y, noise = without_noise(targets.double(), latent.mean.shape[-1])
    squares, logdet = normal_terms(y - latent.mean, latent.covariance, dispersion * noise)
    return -0.5 * (squares + logdet + latent.mean.shape[-1] * math.log(2 * math.pi))


def normal_terms(residual: Tensor, covariance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """eᵀ V⁻¹ e and log |V| for V = covariance + diag(noise), each of shape (…), from (…, C), (…, C, C) and (…, C).

    Examples
    --------
    >>> import torch
    >>> normal_terms(torch.tensor([2.0]), torch.tensor([[3.0]]), torch.tensor([1.0]))
    (tensor(1.), tensor(1.3863))
    """
    factor = torch.linalg.cholesky(covariance + torch.diag_embed(noise))
    white = torch.linalg.solve_triangular(factor, residual[..., None], upper=False)[..., 0]
    return white.square().sum(-1), 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def class_density(likelihood: Likelihood, link: Link) -> Density:
    """The log of the linked probability of the target's class.

    Examples
    --------
    >>> import torch
    >>> from sklearn_laplace.likelihoods import Categorical
    >>> from sklearn_laplace.links import Plugin
    >>> density = class_density(Categorical(), Plugin(torch.zeros(1, 2)))
    >>> density(LatentGaussian(torch.zeros(1, 2), torch.eye(2)[None]), torch.tensor([1]), 1.0)
    tensor([-0.6931])
    """

    def density(latent: LatentGaussian, targets: Tensor, dispersion: float) -> Tensor:
        probabilities = link.mean(likelihood.class_logits(latent)).gather(1, targets[:, None])[:, 0]
        return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()

    return density


def _as_rows(factor: Tensor) -> FactoredJacobian:
    """The pullback to the outputs themselves: J is the identity, and SᵀJ is Sᵀ."""
    return FactoredJacobian((DenseFactor(factor.mT),))


def _no_hessian(loss: Callable[[Tensor], Tensor]) -> Tensor:
    raise NotImplementedError("rows of outputs have no second derivative.")


def _settled(fit: LaplaceFit, rows: Iterable[LinearRows], batches: Iterable[Rows], hyper: Hyper) -> LaplaceFit:
    hyper = replace(hyper, temperature=1.0)
    seen = float(torch.stack([part.weights.sum() for part in rows]).sum())
    if not math.isclose(seen, fit.total_weight, rel_tol=1e-6):
        raise ValueError(
            f"the batches weigh {seen:g} together and the rows of the fit {fit.total_weight:g}: leave-one-out needs "
            "all rows of the fit, those of a previous posterior too."
        )
    metric = fit.posterior(hyper)
    delta = fit.prior.precision(hyper.prior_precision)
    here = _at(fit, rows, torch.zeros_like(fit.network.theta) if fit.shift is None else fit.shift)
    moved, before = False, math.inf
    for _ in range(MAX_STEPS):
        gradient = here.objective_gradient(hyper)
        decrement = math.sqrt(max(float(gradient @ metric.solve(gradient)), 0.0))
        if decrement <= DECREMENT:
            break
        tolerance = 0.0 if fit.likelihood.quadratic else min(LOOSE, decrement)
        system = _system(here, rows, hyper.dispersion, delta)
        step = -conjugate_gradients(system, gradient, metric.solve, max(tolerance, TOLERANCE))
        following = _descend(here, rows, hyper, step, float(gradient @ step))
        if following is None or (following[1] and decrement > 0.25 * before):
            break
        here, moved, before = following[0], True, decrement
    if not moved:
        return replace(here, shift=fit.shift)
    return replace(here, curvature=_curvature_at(fit, batches, here.shift))


def _at(fit: LaplaceFit, rows: Iterable[LinearRows], shift: Tensor) -> LaplaceFit:
    """Loss and gradient of the linearised network at a shift; the curvature as it was."""
    gradient, nll = torch.zeros_like(shift), torch.zeros((), dtype=torch.float64, device=shift.device)
    for part in rows:
        outputs = part.at(shift)
        pull = fit.likelihood.residual(outputs, part.targets) * part.weights[:, None]
        gradient += part.jacobian.transposed_times(pull[..., None])[:, 0]
        nll += part.weights @ fit.likelihood.nll(outputs, part.targets)
    return replace(fit, nll=float(nll), gradient=gradient, shift=shift)


def _system(
    fit: LaplaceFit, rows: Iterable[LinearRows], dispersion: float, delta: Tensor
) -> Callable[[Tensor], Tensor]:
    """H/φ + diag(δ) times a vector, with the exact H of the rows at the fit's shift."""
    factors = [part.factor(GGN(), fit.likelihood, part.at(fit.shift)) for part in rows]

    def times(vector: Tensor) -> Tensor:
        found = delta * vector
        for part, factor in zip(rows, factors, strict=True):
            bent = factor @ (factor.mT @ part.jacobian.times(vector[:, None]))
            found = found + part.jacobian.transposed_times(bent)[:, 0] / dispersion
        return found

    return times


def _descend(
    fit: LaplaceFit, rows: Iterable[LinearRows], hyper: Hyper, step: Tensor, slope: float
) -> tuple[LaplaceFit, bool] | None:
    """The first of step, step/2, … that lowers the objective, and whether by rounding alone; None when none does."""
    assert fit.shift is not None
    value = fit.objective(hyper)
    rounding = ROUNDING * (abs(value) + 1.0)
    for power in range(MAX_HALVINGS):
        size = 0.5**power
        found = _at(fit, rows, fit.shift + size * step)
        reached = found.objective(hyper)
        if math.isfinite(reached) and reached <= value + 1e-4 * size * slope + rounding:
            return found, value - reached <= rounding
    return None


def _curvature_at(fit: LaplaceFit, batches: Iterable[Rows], shift: Tensor | None) -> Curvature:
    """The fit's curvature with the linearised network at another shift (P,): one pass where that makes a difference."""
    constant = fit.likelihood.quadratic and isinstance(fit.rule, GGN)
    if constant or shift is fit.shift or "rows" not in fit.rule.provides:
        return fit.curvature
    found = fit_laplace(
        fit.network,
        fit.likelihood,
        fit.rule,
        type(fit.curvature),
        fit.prior,
        batches,
        like=fit.curvature,
        shift=shift,
    )
    return found.curvature
