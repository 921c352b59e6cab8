r"""Selection by leave-one-out: the log density of each row under a fit without that row.

.. math:: L(\delta, \varphi) = \sum_n w_n \log p(y_n \mid D_{-n}, \delta, \varphi)

For a Gaussian likelihood, the covariance at (δ, φ) is φ times the covariance at :math:`(\rho, 1)`, with :math:`\rho =
\delta\varphi`. The residuals :math:`e_n` of the left-out means and the matrices :math:`V_n = I + q_{-n}/\varphi`
therefore depend on ρ only. The best noise variance has a closed form,

.. math:: \hat\varphi(\rho) = \frac{\sum_n w_n\, e_n^\top V_n^{-1} e_n}{C \sum_n w_n} .

With the eigenvectors V and eigenvalues l of an exact H, :math:`q_n/\varphi = (J_n V)\,\mathrm{diag}(1/(l + \rho))\,(J_n
V)^\top`. For a zero prior mean, the mode's outputs are :math:`f_n^* - J_n\theta^* + (J_n V)\,\mathrm{diag}(1/(l +
\rho))\, V^\top (H\theta^* - \nabla)`, where ∇ is the loss gradient. One pass over the rows and one matrix product serve
any number of ρ (:func:`loo_path`). Without these eigenvectors, each point needs its own mode and posterior.

Unlike the evidence, this criterion needs no correct prior, so it stays reliable if the network interpolates. With
:func:`loo_path`, the search starts with a grid over the whole range. Otherwise it climbs from the current values.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...errors import UnsupportedCombinationError
from ..curvatures import GGN
from ..evidence import PRECISION_BOUNDS
from ..fit import Hyper, LaplaceFit, Rows
from ..latent import LatentGaussian
from ..leave_one_out.left_out import leave_one_out, loo_log_density
from ..leave_one_out.rows import Density, held_rows, linear_rows, normal_terms, one_temperature
from ..likelihoods._base import without_noise
from ..linalg import downdated

WIDTH, NARROW = 16, 1
"""Numbers of points evaluated at once on each side of the best: with :func:`loo_path`, and without it."""
STRIDE, TOLERANCE = math.log(10), 0.15
"""First and last distance between the logarithms of two points; a parabola refines the last step."""
MAX_SWEEPS, GAIN = 5, 1e-3
"""Maximum number of sweeps over the coordinates, and the gain in nats below which a sweep is the last."""
_Found = tuple[float, Hyper]
"""Log density and hyperparameters of a candidate. For a candidate (ρ, 1), they are the best φ and δ = ρ/φ."""
_Score = Callable[[Sequence[Hyper]], list[_Found]]


@dataclass(frozen=True)
class LooPath:
    """Leave-one-out log densities at k points."""

    prior_precision: Tensor  # δ of each point, (k,)
    dispersion: Tensor  # φ of each point, (k,)
    log_density: Tensor  # Σ w log p(yₙ given the other rows), nats, (k,)
    mean: Tensor  # mean outputs of each row, from all other rows, (k, n, C)


def loo_path(
    fit: LaplaceFit,
    batches: Iterable[Rows],
    ridge: Tensor,
    dispersion: Tensor | None = None,
    temperature: float = 1.0,
) -> LooPath:
    """Leave-one-out log density at each ρ = δφ (k,), in one pass. Costs n C P² for J V, and n C² P per point.

    Needs a Gaussian likelihood, ``GGN``, an ``eigenbasis`` and one prior precision. ``dispersion`` (k,) is by default
    the φ that maximises the density for each ρ.
    """
    basis = fit.curvature.eigenbasis()
    if basis is None or fit.prior.n_groups > 1 or not (fit.likelihood.quadratic and isinstance(fit.rule, GGN)):
        raise UnsupportedCombinationError(
            f"a path of leave-one-out densities needs a Gaussian likelihood, the curvature GGN in an exact structure "
            f"and one prior precision. This fit has the likelihood {type(fit.likelihood).__name__}, the curvature "
            f"{type(fit.rule).__name__}, the structure {type(fit.curvature).__name__} and {fit.prior.n_groups} prior "
            "precisions. Use loo_log_density for each point."
        )
    # The mode under ρ is θ − m + (H + ρ)⁻¹ (H m − g), with g the gradient at θ and m = θ minus the prior mean.
    m = fit.objective_gradient(Hyper(torch.ones_like(ridge[:1]))) - fit.gradient
    target = basis.values * basis.vector(m) - basis.vector(fit.gradient)
    shift = -m if fit.shift is None else fit.shift - m
    shrunk, cold = (1 / (basis.values[:, None] / t + ridge) for t in (1.0, temperature))
    squares, logdets, means = torch.zeros_like(ridge), torch.zeros_like(ridge), []
    for rows in linear_rows(fit.network, batches):
        factor = rows.factor(GGN(), fit.likelihood, rows.outputs)[:, None]
        projected = basis.rows(rows.jacobian)
        prior = rows.jacobian.weighted_inner(torch.ones_like(m))[:, None] / ridge[:, None, None]
        pairs = projected[:, :, None] * projected[:, None]

        outputs = (rows.at(shift)[..., None] + projected @ (target[:, None] * shrunk)).mT
        targets = rows.targets.repeat_interleave(len(ridge), 0)
        pull = fit.likelihood.residual(outputs.flatten(0, 1), targets).view_as(outputs) * rows.weights[:, None, None]
        covariance = downdated((pairs @ shrunk).movedim(-1, 1), factor, prior)
        outputs = outputs + (covariance @ pull[..., None])[..., 0]
        means.append(outputs)
        if temperature != 1.0:
            factor = factor * temperature**-0.5
            covariance = downdated((pairs @ cold).movedim(-1, 1), factor, prior)
        y, noise = without_noise(rows.targets, fit.n_outputs)
        square, logdet = normal_terms(y[:, None] - outputs, covariance, noise[:, None].expand_as(outputs))
        squares, logdets = squares + rows.weights @ square, logdets + rows.weights @ logdet
    dispersion = _best_dispersion(fit, squares) if dispersion is None else dispersion
    density = _log_density(fit, squares, logdets, dispersion)
    return LooPath(ridge / dispersion, dispersion, density, torch.cat(means).movedim(1, 0))


def has_path(fit: LaplaceFit, exact: LaplaceFit) -> bool:
    """True if :func:`loo_path` applies to a fit whose left-out means come from ``exact``."""
    whole = fit is exact and fit.likelihood.quadratic and fit.prior.n_groups == 1 and isinstance(fit.rule, GGN)
    return whole and fit.curvature.eigenbasis() is not None


def select_loo(
    fit: LaplaceFit,
    exact: LaplaceFit,
    batches: Iterable[Rows],
    hyper: Hyper,
    density: Density,
    *,
    free_prior: bool = True,
    free_dispersion: bool = True,
) -> Hyper:
    """Return the hyperparameters that maximise the leave-one-out log density. Fixed values are kept.

    ``fit``, ``exact``, ``batches`` and ``density`` are as for ``loo_log_density``. With :func:`loo_path`, about four
    passes over the rows suffice. Otherwise each of about fifteen points takes a few passes. Several precisions are
    optimised in turn.

    >>> from sklearn_laplace.laplace.network import trace
    >>> from sklearn_laplace.laplace import fit_laplace
    >>> from sklearn_laplace.laplace.leave_one_out import gaussian_density
    >>> from sklearn_laplace.laplace.likelihoods import Gaussian
    >>> from sklearn_laplace.laplace.structures import Full
    >>> network = trace(torch.nn.Linear(1, 1, bias=False).double(), torch.ones(1, 1).double())
    >>> x = torch.linspace(-1, 1, 9).double()[:, None]
    >>> rows = [(x, x + 0.1 * (9 * x).sin(), torch.ones(9).double())]
    >>> fit = fit_laplace(network, Gaussian(), GGN(), Full, network.scalar_prior(), rows)
    >>> best = select_loo(fit, fit, rows, Hyper(torch.ones(1).double()), gaussian_density)
    >>> round(best.dispersion**0.5, 2)  # root mean square of the sine, which a linear model treats as noise
    0.07
    """
    free_dispersion = free_dispersion and fit.likelihood.has_dispersion
    profile = free_prior and free_dispersion and fit.likelihood.quadratic and fit.dispersion_power == 1
    on_path = has_path(fit, exact)
    score = _path_score(fit, batches, profile) if on_path else _point_score(fit, exact, batches, density, profile)
    width = WIDTH if on_path else NARROW
    unit, (low, high) = hyper.dispersion if profile else 1.0, PRECISION_BOUNDS
    bounds: dict[int | None, tuple[float, float]] = {}
    if free_prior:
        bounds |= dict.fromkeys(range(fit.prior.n_groups), (low * unit, high * unit))
    if free_dispersion and not profile:
        bounds[None] = fit.likelihood.dispersion_bounds
    point = replace(hyper, prior_precision=hyper.prior_precision * unit, dispersion=hyper.dispersion / unit)
    selected, reached = hyper, -math.inf
    for sweep in range(MAX_SWEEPS if len(bounds) > 1 else len(bounds)):
        before = reached
        for coordinate, ends in bounds.items():

            def along(logarithms: Sequence[float], start: Hyper = point, at: int | None = coordinate) -> list[_Found]:
                return score([_with(start, at, math.exp(value)) for value in logarithms])

            present = point.dispersion if coordinate is None else float(point.prior_precision[coordinate])
            where, (value, best) = _climb(along, math.log(present), ends, STRIDE / 2**sweep, width)
            if value > reached:
                point, selected, reached = _with(point, coordinate, math.exp(where)), best, value
        if reached - before < GAIN:
            break
    return selected


def _with(hyper: Hyper, coordinate: int | None, value: float) -> Hyper:
    """Return ``hyper`` with one prior precision changed, or the dispersion if ``coordinate`` is None."""
    if coordinate is None:
        return replace(hyper, dispersion=value)
    values = hyper.prior_precision.clone()
    values[coordinate] = value
    return replace(hyper, prior_precision=values)


def _climb(
    score: Callable[[Sequence[float]], list[_Found]],
    start: float,
    bounds: tuple[float, float],
    stride: float,
    width: int,
) -> tuple[float, _Found]:
    """Maximise a function of one logarithm. Return its maximiser, and the maximum with its hyperparameters.

    Each step evaluates ``width`` points on either side of the best one, and closer points if it remains the best. The
    last point is the vertex of a parabola.
    """
    low, high = (math.log(bound) for bound in bounds)
    known: dict[float, _Found] = {}

    def best_after(points: Iterable[float]) -> float:
        inside = (round(min(max(point, low), high), 9) for point in points)
        new = [point for point in dict.fromkeys(inside) if point not in known]
        known.update(zip(new, score(new) if new else (), strict=True))
        return max(known, key=lambda point: known[point][0] if math.isfinite(known[point][0]) else -math.inf)

    around = [*range(-width, 0), *range(1, width + 1)]
    best = best_after([start, *(start + stride * i for i in around)])
    while True:
        following = best_after(best + stride * i for i in around)
        if following != best:
            best = following
        elif stride > TOLERANCE:
            stride /= width + 1
        else:
            break
    left, right = (known[round(min(max(best + side, low), high), 9)][0] for side in (-stride, stride))
    bend = left - 2 * known[best][0] + right
    if -math.inf < bend < 0 and low < best < high:
        best = best_after([best + 0.5 * stride * (left - right) / bend])
    return best, known[best]


def _path_score(fit: LaplaceFit, batches: Iterable[Rows], profile: bool) -> _Score:
    def score(candidates: Sequence[Hyper]) -> list[_Found]:
        dispersion = fit.gradient.new_tensor([hyper.dispersion for hyper in candidates])
        ridge = torch.cat([hyper.prior_precision for hyper in candidates]) * dispersion
        temperature = one_temperature(candidates[0])
        path = loo_path(fit, batches, ridge, None if profile else dispersion, temperature)
        points = zip(path.log_density.tolist(), path.prior_precision.split(1), path.dispersion.tolist(), strict=True)
        return [(value, Hyper(delta, phi, temperature)) for value, delta, phi in points]

    return score


def _point_score(
    fit: LaplaceFit, exact: LaplaceFit, batches: Iterable[Rows], density: Density, profile: bool
) -> _Score:
    rows = held_rows(fit.network, batches)  # the same for all candidates

    def score(candidates: Sequence[Hyper]) -> list[_Found]:
        if not profile:
            return [(loo_log_density(fit, exact, batches, hyper, density, rows), hyper) for hyper in candidates]
        latents = [leave_one_out(fit, exact, batches, hyper, rows) for hyper in candidates]
        return [at_best_noise(fit, latent, batches, hyper) for latent, hyper in zip(latents, candidates, strict=True)]

    return score


def at_best_noise(
    fit: LaplaceFit, latent: LatentGaussian, batches: Iterable[Rows], hyper: Hyper
) -> tuple[float, Hyper]:
    """Maximum over φ of the log density, from left-out outputs at (ρ, 1), with the maximising φ and δ = ρ/φ."""
    targets, weights = (torch.cat(parts).double() for parts in zip(*((y, w) for _, y, w in batches), strict=True))
    y, noise = without_noise(targets, fit.n_outputs)
    squares, logdets = (weights @ part for part in normal_terms(y - latent.mean, latent.covariance, noise))
    dispersion = _best_dispersion(fit, squares)
    best = replace(hyper, prior_precision=hyper.prior_precision / dispersion, dispersion=float(dispersion))
    return float(_log_density(fit, squares, logdets, dispersion)), best


def _best_dispersion(fit: LaplaceFit, squares: Tensor) -> Tensor:
    """φ that maximises the density, from ``squares`` = Σ w eᵀ V⁻¹ e."""
    low, high = fit.likelihood.dispersion_bounds
    return (squares / (fit.total_weight * fit.n_outputs)).clamp(low, high)


def _log_density(fit: LaplaceFit, squares: Tensor, logdets: Tensor, dispersion: Tensor) -> Tensor:
    """Σ w log N(e; 0, φ V), from ``squares`` = Σ w eᵀ V⁻¹ e and ``logdets`` = Σ w log |V|."""
    freedom = fit.total_weight * fit.n_outputs
    return -0.5 * (freedom * (2 * math.pi * dispersion).log() + logdets + squares / dispersion)
