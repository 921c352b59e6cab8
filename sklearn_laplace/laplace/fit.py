r"""The Laplace approximation of one trained network: start reading here.

:func:`fit_laplace` makes the one pass over the data: it sums the curvature H (unit dispersion, no prior), the negative
log-likelihood and its gradient at the weights θ*. Everything after is a function of that :class:`LaplaceFit` and of a
:class:`Hyper`, plain numbers that any selection may change without seeing the data again:

.. math:: P = \frac{1}{T \varphi^p} H + \mathrm{diag}(\delta), \qquad q(\theta) = N(\theta^*, P^{-1}).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import NotPositiveDefiniteError
from .curvatures._base import CurvatureRule
from .jacobian.jacobian import Batch
from .likelihoods._base import Likelihood
from .network.linearisation import Linearisation
from .network.network import Network
from .nonfinite import not_finite
from .prior import Prior
from .structures import Kron
from .structures._base import Curvature, Posterior
from .tempering import tempered

Rows = tuple[Tensor, Tensor, Tensor]
"""Inputs (n, …), targets, in the form that the likelihood takes, and weights (n,) of a batch."""


@dataclass(frozen=True)
class Hyper:
    """The hyperparameters of a Laplace approximation. Plain data.

    Parameters
    ----------
    prior_precision : Tensor of shape (G,), float64
        δ of each prior group.
    dispersion : float
        φ: the noise variance σ² in the network's target units; 1 where the likelihood has none.
    temperature : float or Tensor of shape (P,), float64
        T; the curvature is divided by it (T < 1: a cold posterior). One for each weight, equal within each input column
        of a layer: see :mod:`~sklearn_laplace.laplace.tempering`.

    Examples
    --------
    >>> import torch
    >>> Hyper(torch.tensor([1.0], dtype=torch.float64), dispersion=0.25).scale(1)
    4.0
    """

    prior_precision: Tensor
    dispersion: float = 1.0
    temperature: float | Tensor = 1.0

    @property
    def is_uniform(self) -> bool:
        """Whether one precision and one temperature are those of all weights."""
        return len(self.prior_precision) == 1 and not isinstance(self.temperature, Tensor)

    def scale(self, dispersion_power: int) -> float:
        """1 / (T φ^p), what multiplies the curvature at unit dispersion; 1 / φ^p where T is one for each weight."""
        temperature = 1.0 if isinstance(self.temperature, Tensor) else self.temperature
        return float(1.0 / (temperature * self.dispersion**dispersion_power))


@dataclass(frozen=True)
class LaplaceFit:
    """What one pass over the data leaves behind.

    Parameters
    ----------
    network : Network
        The network and its weights θ*.
    likelihood : Likelihood
    prior : Prior
        Mean of the prior and grouping of its precisions.
    curvature : Curvature
        H, at unit dispersion and without prior.
    rule : CurvatureRule
        What one row has contributed.
    nll : float
        Σ w·nll at unit dispersion and at θ, without normaliser.
    gradient : Tensor of shape (P,)
        Σ w Jᵀ r at unit dispersion and at θ.
    total_weight : float
        N_w = Σ w.
    n_outputs : int
        C.
    shift : Tensor of shape (P,), optional
        θ − θ*, where rows that came after the training have moved the mean of the linearised network (see
        :mod:`~sklearn_laplace.laplace.updates`); None where it is θ* itself.
    log_noise : float
        Σ w · ½ log v of the rows' known noise, which no hyperparameter changes.
    """

    network: Network
    likelihood: Likelihood
    prior: Prior
    curvature: Curvature
    rule: CurvatureRule
    nll: float
    gradient: Tensor
    total_weight: float
    n_outputs: int
    shift: Tensor | None = None
    log_noise: float = 0.0

    @property
    def dispersion_power(self) -> int:
        """H scales with φ^−p."""
        return self.rule.dispersion_power

    @property
    def theta(self) -> Tensor:
        """Mean of the posterior θ (P,), float64."""
        return self.network.theta if self.shift is None else self.network.theta + self.shift

    def quadratic_model(self, move: Tensor, unit: float = 1.0) -> tuple[float, Tensor]:
        """What the rows' loss and its gradient are at other weights, to second order.

        Parameters
        ----------
        move : Tensor of shape (P,)
            d, the other weights minus θ.
        unit : float
            φ^(1−p), what makes of H, as it is stored, the second derivative of the loss at unit dispersion.

        Returns
        -------
        loss : float
            Σ w·nll + gᵀd + ½ dᵀHd at unit dispersion.
        gradient : Tensor of shape (P,)
            g + H d.
        """
        bend = unit * self.curvature.times(move)
        return self.nll + float(self.gradient @ move + 0.5 * move @ bend), self.gradient + bend

    def merge(self, other: LaplaceFit) -> LaplaceFit:
        """The fit of both sets of rows, seen at the same weights and under the same prior."""
        return replace(
            self,
            curvature=self.curvature.merge(other.curvature),
            nll=self.nll + other.nll,
            gradient=self.gradient + other.gradient,
            total_weight=self.total_weight + other.total_weight,
            log_noise=self.log_noise + other.log_noise,
        )

    def posterior(self, hyper: Hyper, *, spectral: bool = True) -> Posterior:
        """The factorised posterior; the data are not revisited.

        Parameters
        ----------
        hyper : Hyper
        spectral : bool
            Whether a single prior precision may use the curvature's eigendecomposition, which is kept and serves every
            later ``hyper``. Without, one cheaper factorisation for this ``hyper`` alone.
        """
        return self._tempered(self.curvature.posterior, hyper, spectral)

    def damped_posterior(self, hyper: Hyper) -> Posterior:
        """With the damping of Ritter et al. (2018), for prediction; the evidence is that of :meth:`posterior`."""
        assert isinstance(self.curvature, Kron)
        return self._tempered(self.curvature.damped_posterior, hyper, spectral=True)

    def log_prob(self, theta: Tensor, hyper: Hyper) -> Tensor:
        r"""Log density of given weights under the approximation.

        .. math:: \log q(\theta') = \tfrac12 \log|P| - \tfrac12 d^\top P d - \tfrac P2 \log 2\pi, \qquad
            d^\top P d = s\,(S d)^\top H (S d) + d^\top \mathrm{diag}(\delta)\, d

        with d the distance from the mean of the posterior, P its precision or, in the last term, the number of weights,
        and S = T^(−½), one where T is a number (which is in s then). One posterior, for its determinant, and a product
        with H for each row; never P itself.

        Parameters
        ----------
        theta : Tensor of shape (…, P)
            Weights θ′ in the order of :attr:`theta`, such as ``fit.theta + fit.posterior(hyper).sample(…)``.
        hyper : Hyper
            As for :meth:`posterior`, of which this is the density: not of :meth:`damped_posterior`.

        Returns
        -------
        Tensor of shape (…), float64
            Nats.

        Raises
        ------
        ValueError
            When there are not P weights.
        UnsupportedCombinationError
            When the structure cannot hold this pattern of precisions.

        Examples
        --------
        >>> from sklearn_laplace.laplace.network import trace
        >>> import torch
        >>> from sklearn_laplace.laplace.curvatures import GGN
        >>> from sklearn_laplace.laplace.likelihoods import Gaussian
        >>> from sklearn_laplace.laplace.structures import Full
        >>> module, one = torch.nn.Linear(1, 1, bias=False).double(), torch.ones(1, 1).double()
        >>> network = trace(module, one)
        >>> fit = fit_laplace(network, Gaussian(), GGN(), Full, network.scalar_prior(), [(one, one, one[0])])
        >>> hyper = Hyper(torch.ones(1).double())  # P = 2
        >>> fit.log_prob(fit.theta + torch.tensor([[0.0], [1.0]]), hyper).round(decimals=4)
        tensor([-0.5724, -1.5724], dtype=torch.float64)
        >>> torch.distributions.Normal(0.0, 2**-0.5).log_prob(torch.tensor([0.0, 1.0]))
        tensor([-0.5724, -1.5724])
        """
        mean, delta = self.theta, hyper.prior_precision[self.prior.groups]
        if theta.shape[-1:] != mean.shape:
            raise ValueError(f"theta has shape {tuple(theta.shape)}; expected (…, {len(mean)}), one value a weight.")
        moves = (theta.to(mean) - mean).reshape(-1, len(mean))
        seen = moves * hyper.temperature.rsqrt() if isinstance(hyper.temperature, Tensor) else moves
        bends = [move @ self.curvature.times(move) for move in seen]
        bend = torch.stack(bends) if bends else moves.new_zeros(0)
        distance = hyper.scale(self.dispersion_power) * bend + moves.square() @ delta
        peak = self.posterior(hyper).logdet_precision() - len(mean) * math.log(2 * math.pi)
        return (0.5 * (peak - distance)).reshape(theta.shape[:-1])

    def _tempered(self, posterior: Callable[[Tensor, float], Posterior], hyper: Hyper, spectral: bool) -> Posterior:
        values, scale = hyper.prior_precision, hyper.scale(self.dispersion_power)
        if isinstance(hyper.temperature, Tensor):
            return tempered(posterior, values[self.prior.groups], scale, hyper.temperature)
        return posterior(self.prior.precision(values) if spectral else values[self.prior.groups], scale)

    def log_likelihood(self, hyper: Hyper) -> float:
        """Σ w log p(y | θ*), nats; the temperature does not enter."""
        normaliser = self.likelihood.log_normaliser(hyper.dispersion, self.n_outputs)
        return -self.nll / hyper.dispersion - self.total_weight * normaliser - self.log_noise

    def objective(self, hyper: Hyper) -> float:
        """The MAP objective Σ w nll/φ + ½ (θ − μ₀)ᵀ diag(δ) (θ − μ₀), nats, without constants."""
        quadratic = self.prior.quadratic(hyper.prior_precision, self.theta)
        return self.nll / hyper.dispersion + 0.5 * float(quadratic)

    def objective_gradient(self, hyper: Hyper) -> Tensor:
        """Gradient of :meth:`objective` in the weights, shape (P,)."""
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
    """Sum curvature, loss and gradient over the data.

    Parameters
    ----------
    network : Network
    likelihood : Likelihood
    rule : CurvatureRule
        What one row contributes.
    structure : Curvature class
        How the sum is stored.
    prior : Prior
        Only kept, not used.
    batches : iterable of (inputs, targets, weights)
        At least one row together. Sums are in float64, whatever the dtype of the rows. Structures that need a second
        pass go through them again.
    like : Curvature, optional
        One that the result is to be merged with, and whose basis and options it shares.
    gradient : Tensor of shape (P,), optional
        Σ w Jᵀ r at these weights where it is known already: it costs a backward pass of its own.
    shift : Tensor of shape (P,), optional
        θ − θ*: the sums are those of the network linearised at θ*, at θ.
    past : LaplaceFit, optional
        Of other rows, in the same structure: they enter by their quadratic model (Ritter et al. 2018b).
    **options
        What ``structure.zero`` is told beside the blocks.

    Returns
    -------
    LaplaceFit

    Raises
    ------
    NonFiniteError
        When a sum is NaN or infinite: names the layer and the rows, by another pass over them. Nothing is looked at
        before the end of the pass, so that a GPU never waits.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
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
    line, sums = partial(_line, network, shift=shift), _Sums.zeros(theta, gradient)
    try:
        for rows in batches:
            curvature = curvature.add_(sums.added(line(rows[0]), rows, likelihood, rule))
        finite = bool(torch.isfinite(sums.nll + sums.gradient.sum() + curvature.total()))
        while finite and (following := curvature.next_pass()) is not None:
            curvature = _another_pass(following, line, batches, likelihood, rule, sums.n_rows)
            finite = bool(torch.isfinite(curvature.total()))
    except NotPositiveDefiniteError:  # of a structure that factorises on the way
        finite = False
    if not finite:
        raise not_finite(network, batches, likelihood)
    totals = float(sums.nll), sums.gradient, float(sums.weight)
    fit = LaplaceFit(network, likelihood, prior, curvature, rule, *totals, sums.n_outputs, shift, float(sums.log_noise))
    if past is None:
        return fit
    past_nll, past_gradient = past.quadratic_model(theta - past.theta)
    return fit.merge(replace(past, nll=past_nll, gradient=past_gradient))


@dataclass
class _Sums:
    """Sums over the rows of a pass, float64 on the device of the network.

    Parameters
    ----------
    nll, weight, log_noise : Tensor, 0-d
    gradient : Tensor of shape (P,)
    is_known : bool
        True if the gradient was given, and is not summed.
    n_outputs, n_rows : int
    """

    nll: Tensor
    weight: Tensor
    log_noise: Tensor
    gradient: Tensor
    is_known: bool
    n_outputs: int = 0
    n_rows: int = 0

    @classmethod
    def zeros(cls, theta: Tensor, gradient: Tensor | None) -> _Sums:
        """Sums of no rows."""
        zero = torch.zeros((), dtype=torch.float64, device=theta.device)
        total = torch.zeros_like(theta) if gradient is None else gradient
        return cls(zero, zero.clone(), zero.clone(), total, gradient is not None)

    def added(self, line: Linearisation, rows: Rows, likelihood: Likelihood, rule: CurvatureRule) -> Batch | Tensor:
        """Add a batch of rows; returns what it contributes to the curvature."""
        _, targets, weights = rows
        contribution = rule.batch(line, likelihood, targets, weights)
        if not self.is_known:
            residual = likelihood.residual(line.outputs, targets) * weights[:, None]
            self.gradient += line.pullback(residual[..., None]).total()
        self.nll += (weights * likelihood.nll(line.outputs, targets)).double().sum()
        self.weight += weights.double().sum()
        self.log_noise += (weights * likelihood.log_noise(line.outputs, targets)).double().sum()
        self.n_outputs, self.n_rows = line.outputs.shape[1], self.n_rows + len(weights)
        return contribution


def _another_pass(
    curvature: Any,
    line: Callable[[Tensor], Linearisation],
    batches: Iterable[Rows],
    likelihood: Likelihood,
    rule: CurvatureRule,
    n_rows: int,
) -> Any:
    """The same rows once more, for a structure whose basis comes from the first pass."""
    again = 0
    for inputs, targets, weights in batches:
        curvature = curvature.add_(rule.batch(line(inputs), likelihood, targets, weights))
        again += len(weights)
    if again != n_rows:
        raise ValueError(
            f"{type(curvature).__name__} goes through the rows twice, and the second time there were {again} of "
            f"{n_rows}: give a list of batches, not a generator."
        )
    return curvature


def _line(network: Network, inputs: Tensor, shift: Tensor | None = None) -> Linearisation:
    line = network.linearise(inputs)
    return line if shift is None else line.moved(shift)
