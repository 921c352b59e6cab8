r"""Laplace approximation of one trained network: the entry point of the engine.

:func:`fit_laplace` makes one pass over the data (two for some structures). It sums the curvature H (at unit dispersion,
without the prior), the negative log-likelihood and its gradient at the weights θ*. All other results are functions of a
:class:`LaplaceFit` and a :class:`Hyper`. Hyperparameters can therefore change without another pass:

.. math:: P = \frac{1}{T \varphi^p} H + \mathrm{diag}(\delta), \qquad q(\theta) = N(\theta^*, P^{-1}).

T is the temperature, φ the dispersion, p its power in the curvature, and δ the prior precisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..errors import NotPositiveDefiniteError
from .curvatures._base import CurvatureRule
from .likelihoods._base import Likelihood, with_noise
from .linalg import sum_of_rows
from .network.network import Linearisation, Network
from .nonfinite import not_finite
from .prior import Prior
from .structures import Kron
from .structures._base import Curvature, Posterior
from .tempering import TemperedPosterior

Rows = tuple[Tensor, Tensor, Tensor]
"""A batch of rows: inputs (n, …), targets in the form that the likelihood expects, and row weights (n,)."""


@dataclass(frozen=True)
class Hyper:
    """Hyperparameters of a Laplace approximation."""

    prior_precision: Tensor  # δ of each prior group, (G,), float64
    dispersion: float = 1.0  # φ: noise variance in the network's target units, or 1
    temperature: float | Tensor = 1.0  # T, divisor of the curvature; or (P,), equal within each input column

    @property
    def is_uniform(self) -> bool:
        """True if all weights share one prior precision and one temperature."""
        return len(self.prior_precision) == 1 and not isinstance(self.temperature, Tensor)

    def scale(self, dispersion_power: int) -> float:
        """Factor 1 / (T φ^p) of the curvature at unit dispersion, or 1 / φ^p if each weight has its own T."""
        temperature = 1.0 if isinstance(self.temperature, Tensor) else self.temperature
        return float(1.0 / (temperature * self.dispersion**dispersion_power))


@dataclass(frozen=True)
class LaplaceFit:
    """Sums over the data at unit dispersion, with the network at which they were computed."""

    network: Network  # with weights θ*
    likelihood: Likelihood
    prior: Prior  # mean, and grouping of the precisions
    curvature: Curvature  # H, without the prior
    rule: CurvatureRule  # contribution of one row to the curvature
    nll: float  # Σ w·nll at θ, without the normaliser
    gradient: Tensor  # Σ w Jᵀ r at θ, (P,)
    total_weight: float  # N_w = Σ w
    n_outputs: int  # C
    shift: Tensor | None = None  # θ − θ* (P,) after rows were added or removed; None if the mean is θ*
    log_noise: float = 0.0  # Σ w · ½ log v for the known noise variances v of the rows

    @property
    def dispersion_power(self) -> int:
        """Exponent p: the curvature H scales with φ^−p."""
        return self.rule.dispersion_power

    @property
    def theta(self) -> Tensor:
        """Posterior mean θ, shape (P,), float64."""
        return self.network.theta if self.shift is None else self.network.theta + self.shift

    def quadratic_model(self, move: Tensor, unit: float = 1.0) -> tuple[float, Tensor]:
        """Loss Σ w·nll + gᵀd + ½ u dᵀHd and its gradient g + u H d, from the quadratic model around θ.

        ``move`` is d (P,). ``unit`` is u = φ^(1−p), which turns the stored H into the second derivative of this loss.
        """
        product = unit * self.curvature.times(move)
        return self.nll + float(self.gradient @ move + 0.5 * move @ product), self.gradient + product

    def merge(self, other: LaplaceFit) -> LaplaceFit:
        """Fit to the union of both sets of rows. Both fits must have the same network weights and prior."""
        return replace(
            self,
            curvature=self.curvature.merge(other.curvature),
            nll=self.nll + other.nll,
            gradient=self.gradient + other.gradient,
            total_weight=self.total_weight + other.total_weight,
            log_noise=self.log_noise + other.log_noise,
        )

    def posterior(self, hyper: Hyper, *, spectral: bool = True) -> Posterior:
        """Posterior whose precision is factorised.

        With ``spectral`` and one prior precision for all weights, a cached eigendecomposition of H is used.
        """
        return self._tempered(self.curvature.posterior, hyper, spectral)

    def damped_posterior(self, hyper: Hyper) -> Posterior:
        """Kron posterior damped as in Ritter et al. (2018), for predictions; the evidence uses :meth:`posterior`."""
        assert isinstance(self.curvature, Kron)
        return self._tempered(self.curvature.damped_posterior, hyper, spectral=True)

    def log_prob(self, theta: Tensor, hyper: Hyper) -> Tensor:
        r"""Log density (…), float64, nats, of weights θ′ (…, P) under :meth:`posterior`, not :meth:`damped_posterior`.

        .. math:: \log q(\theta') = \tfrac12 \log|P| - \tfrac12 d^\top P d - \tfrac P2 \log 2\pi, \qquad
            d^\top P d = s\,(S d)^\top H (S d) + d^\top \mathrm{diag}(\delta)\, d

        Here d is the deviation from the posterior mean, and P the posterior precision or, in the last term, the number
        of weights. The scale s is :meth:`Hyper.scale`. S is T^(−½) for a tensor T, else 1.
        """
        mean, delta = self.theta, hyper.prior_precision[self.prior.groups]
        if theta.shape[-1:] != mean.shape:
            raise ValueError(f"theta has shape {tuple(theta.shape)}; expected (…, {len(mean)}), one value per weight.")
        moves = (theta.to(mean) - mean).reshape(-1, len(mean))
        tempered_moves = moves * hyper.temperature.rsqrt() if isinstance(hyper.temperature, Tensor) else moves
        quadratics = [move @ self.curvature.times(move) for move in tempered_moves]
        quadratic = torch.stack(quadratics) if quadratics else moves.new_zeros(0)
        distance = hyper.scale(self.dispersion_power) * quadratic + moves.square() @ delta
        peak = self.posterior(hyper).logdet_precision() - len(mean) * math.log(2 * math.pi)
        return (0.5 * (peak - distance)).reshape(theta.shape[:-1])

    def _tempered(self, posterior: Callable[[Tensor, float], Posterior], hyper: Hyper, spectral: bool) -> Posterior:
        values, scale = hyper.prior_precision, hyper.scale(self.dispersion_power)
        if isinstance(hyper.temperature, Tensor):
            tempered = posterior(values[self.prior.groups] * hyper.temperature, scale)
            return TemperedPosterior(tempered, hyper.temperature)
        return posterior(self.prior.precision(values) if spectral else values[self.prior.groups], scale)

    def log_likelihood(self, hyper: Hyper) -> float:
        """Log likelihood Σ w log p(y | θ) at the posterior mean, nats. It does not depend on T."""
        normaliser = self.likelihood.log_normaliser(hyper.dispersion, self.n_outputs)
        return -self.nll / hyper.dispersion - self.total_weight * normaliser - self.log_noise

    def objective(self, hyper: Hyper) -> float:
        """MAP objective Σ w nll/φ + ½ (θ − μ₀)ᵀ diag(δ) (θ − μ₀), nats, up to a constant."""
        quadratic = self.prior.quadratic(hyper.prior_precision, self.theta)
        return self.nll / hyper.dispersion + 0.5 * float(quadratic)

    def objective_gradient(self, hyper: Hyper) -> Tensor:
        """Gradient of :meth:`objective` with respect to the weights, shape (P,)."""
        return self.gradient / hyper.dispersion + self.prior.gradient(hyper.prior_precision, self.theta)


def fit_laplace(
    network: Network,
    likelihood: Likelihood,
    rule: CurvatureRule,
    structure: type[Curvature],
    prior: Prior,
    batches: Iterable[Rows],
    *,
    like: Curvature | None = None,
    shift: Tensor | None = None,
    gradient: Tensor | None = None,
    past: LaplaceFit | None = None,
    **options: Any,
) -> LaplaceFit:
    """Return the sums of curvature, loss and gradient over ``batches`` of (inputs, targets, weights), in float64.

    ``like``, a curvature with which the result will be merged, replaces ``structure`` and ``options``. With ``shift`` =
    θ − θ* (P,), the linearisation at θ* is evaluated at θ. ``gradient`` (P,) is Σ w Jᵀ r if known.
    The quadratic model of ``past``, a fit of earlier rows, is added to the result (Ritter et al. 2018b).

    Raises ``NonFiniteError`` if a sum is not finite, with the layer and the rows if found, and ``ValueError`` if two
    passes have different numbers of rows. Sums are checked after a pass, so a GPU need not synchronise during it.

    >>> from sklearn_laplace.laplace.network import trace
    >>> from sklearn_laplace.laplace.curvatures import GGN
    >>> from sklearn_laplace.laplace.likelihoods import Gaussian
    >>> from sklearn_laplace.laplace.structures import Full
    >>> network = trace(torch.nn.Linear(1, 1).double(), torch.zeros(1, 1).double())
    >>> x, y, w = torch.ones(2, 1).double(), torch.zeros(2, 1).double(), torch.ones(2).double()
    >>> fit = fit_laplace(network, Gaussian(), GGN(), Full, network.scalar_prior(), [(x, y, w)])
    >>> fit.curvature.matrix.tolist()
    [[2.0, 2.0], [2.0, 2.0]]
    """
    theta = network.theta
    if like is None:
        curvature: Any = structure.zero(network.blocks, theta.device, **options)
    else:
        curvature = like.emptied(network.blocks, theta.device)

    def linearise(inputs: Tensor) -> Linearisation:
        line = network.linearise(inputs)
        return line if shift is None else line.moved(shift)

    nll, total_weight, log_noise = torch.zeros(3, dtype=torch.float64, device=theta.device)
    total_gradient, n_rows, n_outputs = torch.zeros_like(theta), 0, 0
    try:
        for inputs, targets, weights in batches:
            line = linearise(inputs)
            curvature = curvature.add_(rule.batch(line, likelihood, targets, weights))
            if gradient is None:
                residual = likelihood.residual(line.outputs, targets) * weights[:, None]
                total_gradient += line.pullback(residual[..., None]).total()
            nll += sum_of_rows(weights * likelihood.nll(line.outputs, targets))
            total_weight += sum_of_rows(weights)
            log_noise += sum_of_rows(weights * likelihood.log_noise(line.outputs, targets))
            n_rows, n_outputs = n_rows + len(weights), line.outputs.shape[1]
        total_gradient = total_gradient if gradient is None else gradient
        finite = bool(torch.isfinite(nll + total_gradient.sum() + curvature.total()))
        while finite and (following := curvature.next_pass()) is not None:
            curvature = _another_pass(following, linearise, batches, likelihood, rule, n_rows)
            finite = bool(torch.isfinite(curvature.total()))
    except NotPositiveDefiniteError:  # raised by structures that factorise during the pass
        finite = False
    if not finite:
        raise not_finite(network, batches, likelihood)
    fit = LaplaceFit(
        network=network,
        likelihood=likelihood,
        prior=prior,
        curvature=curvature,
        rule=rule,
        nll=float(nll),
        gradient=total_gradient,
        total_weight=float(total_weight),
        n_outputs=n_outputs,
        shift=shift,
        log_noise=float(log_noise),
    )
    if past is None:
        return fit
    past_nll, past_gradient = past.quadratic_model(theta - past.theta)
    return fit.merge(replace(past, nll=past_nll, gradient=past_gradient))


def _another_pass(
    curvature: Any,
    linearise: Callable[[Tensor], Linearisation],
    batches: Iterable[Rows],
    likelihood: Likelihood,
    rule: CurvatureRule,
    n_rows: int,
) -> Any:
    """Curvature from another pass over the same rows, for structures whose basis depends on the first pass."""
    n_again = 0
    for inputs, targets, weights in batches:
        curvature = curvature.add_(rule.batch(linearise(inputs), likelihood, targets, weights))
        n_again += len(weights)
    if n_again != n_rows:
        raise ValueError(
            f"{type(curvature).__name__} needs two passes over the rows: the first had {n_rows} rows, the second "
            f"{n_again}. Give a list of batches, not a generator."
        )
    return curvature


CHUNK = 512
"""Default number of rows whose Jacobians are computed at a time."""


@dataclass(frozen=True)
class TrainingRows:
    """Training rows: inputs, targets, weights and known noise variances."""

    inputs: Tensor  # (n, d)
    targets: Tensor  # (n, C), standardised, or class indices (n,)
    weights: Tensor  # (n,)
    noise: Tensor | None = None  # (n, C), known noise variances, in units of φ
    n_logits: int = 0  # number of outputs if the targets are class indices, else 0

    @cached_property
    def observed(self) -> Tensor:
        """Targets combined with their known noise, in the form that the likelihood takes."""
        return with_noise(self.targets, self.noise)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def n_outputs(self) -> int:
        """Number of outputs of the net."""
        return self.n_logits or self.targets.shape[1]

    @cached_property
    def total_weight(self) -> float:
        """Sum of the weights of the rows."""
        return float(self.weights.double().sum())

    def to(self, dtype: torch.dtype) -> TrainingRows:
        """Rows in another floating-point type."""
        targets = self.targets.to(dtype) if self.targets.is_floating_point() else self.targets
        noise = None if self.noise is None else self.noise.to(dtype)
        return TrainingRows(self.inputs.to(dtype), targets, self.weights.to(dtype), noise, self.n_logits)

    def taken(self, index: Tensor) -> TrainingRows:
        """Rows at the positions in ``index``."""
        noise = None if self.noise is None else self.noise[index]
        return TrainingRows(self.inputs[index], self.targets[index], self.weights[index], noise, self.n_logits)

    def chunks(self, step: int) -> list[Rows]:
        """Batches of at most ``step`` rows."""
        spans = [slice(start, start + step) for start in range(0, len(self), step)]
        return [(self.inputs[span], self.observed[span], self.weights[span]) for span in spans]


def some_rows(n_rows: int, most: int) -> Tensor:
    """Sorted indices of a random sample of at most ``most`` rows, with a fixed seed."""
    return torch.randperm(n_rows, generator=torch.Generator().manual_seed(0))[:most].sort().values
