r"""Noise that varies with the inputs: a second net for its log variance, with a Laplace approximation of its own.

The noise of target c of row n has the variance :math:`\varphi e^{h_c(x_n)}`. A net that fits its mean and its noise to
the same rows takes what it has over-fitted for a lack of noise, and the more precise it believes a row to be, the more
it goes through it. So h is fitted to rows that the nets have not seen: with :math:`e_n` the errors of cross-fitted nets
(``_approximation/held_out.py``) and :math:`V_n` the variances of their predictions, noise apart,

.. math:: -\log p(e_n \mid h) = \tfrac12 \big[\log(V_n + \varphi e^{h_n}) + e_n^2 / (V_n + \varphi e^{h_n})\big],
          \qquad \Lambda_n = \tfrac12 \Big(\frac{\varphi e^{h_n}}{V_n + \varphi e^{h_n}}\Big)^2 ,

Λ the Fisher information. Those nets were trained under one noise for all rows, and :math:`V_n` is what they do not know
under it: where the noise is small that is too much, often more than :math:`e_n^2`, and tells nothing of h. So h is
fitted twice: first to :math:`V_n = 0`, as if all errors were noise, then to :math:`V_n \min(1, e^{h_n/2})` under the h
of the first. The variance of a function that the rows around it decide is in proportion to their noise, that of one
that the prior decides has nothing to do with it: the root is between the two, and better than either on inner splits.

The prior of h has mean zero, a noise that does not vary, and the precision of largest evidence, and that evidence
against the best density under a constant h says whether the noise varies at all; the targets are honest, and so is the
evidence. Afterwards the mean is trained on under the noise that was found, as under noise that is known in ratio
(``laplace/likelihoods/gaussian.py``).

Where x is new, h is Gaussian by the linearised net, and the noise is a mixture over it, by Gauss–Hermite quadrature.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from .._runtime.budget import budget_for
from ..errors import BoundWarning
from ..laplace.curvatures import GGN
from ..laplace.evidence import log_evidence
from ..laplace.fit import Hyper, LaplaceFit, fit_laplace
from ..laplace.latent import Components, LatentGaussian, Predictive
from ..laplace.likelihoods._base import Likelihood, Link
from ..laplace.mode.alternating import alternate
from ..laplace.mode.data_loss import DataLoss
from ..laplace.mode.problem import Problem
from ..laplace.network.tracing import trace
from ..laplace.predictives import GLM
from ..laplace.selection import HeldOutErrors
from ..laplace.structures import Full, Functional
from ..laplace.structures._base import Posterior

HIDDEN = (16,)
"""Units of the net of the log variance: on inner splits of five tables 10 and 50 did the same, and 10 in a quarter of
the time."""
STEPS, MANY_STEPS, MANY_ROWS = 60, 30, 2000
"""Gauss–Newton steps of its training, and those of a training of many rows: on inner splits of 3,000 rows 30 steps are
as good as 60 or better, with fewer rows on some tables a little worse (``docs/decisions.md``)."""
QUICK_STEPS, QUICK_STEP, LARGE_STEP = 20, 1e8, 1e9
"""Steps of a rough model, and multiply-adds of one of them, for a rough model and a good one: they limit the rows."""
NODES = 15
"""Of the quadrature over the log variance."""
LARGEST_SPREAD = 1.5
"""Standard deviation up to which the Gaussian over a log variance is believed: beyond, the mean of its exponential is
that of a tail which nothing has been seen of."""
REACH = math.log(1e6)
"""Log variances go this far from those of the average noise, to either side: a thousandfold in standard deviation."""
DECISIVE = 5.0
"""Nats of evidence that make a noise that varies worth having: "very strong" in Kass & Raftery (1995)."""
LEAST_KEPT = 0.1
"""Least part of the precision of h at a row that is taken to come from the other rows."""
LEVELS = 281
"""Constant values of h that are tried."""
LEAST_ROWS = 1000
CHUNK = 2048
"""Rows that go through the net together."""


@dataclass(frozen=True)
class NoiseModel:
    """The Laplace approximation of h, of C outputs.

    Parameters
    ----------
    fit : LaplaceFit
    hyper : Hyper
    gain : float
        Log evidence over the density under the best noise that does not vary, nats.
    is_trained_under : bool
        Whether the mean has been trained under this noise, and rows that come later count by theirs.
    log_level : float
        What h is counted from: trained under the noise, φ is the variance of an average row.
    spread : float
        τ, an additional standard deviation of h in predictions. It makes the tails of the noise heavier and leaves
        E[e^h] unchanged (``_approximation/calibration.py``).
    """

    fit: LaplaceFit
    hyper: Hyper
    gain: float
    is_trained_under: bool = False
    log_level: float = 0.0
    spread: float = 0.0

    def trained_under(self, inputs: Tensor, weights: Tensor) -> NoiseModel:
        """For a training of rows at inputs (n, d), of these weights (n,), whose ratios have the mean 1."""
        level = (weights @ self.ratios(inputs)).mean() / weights.sum()
        return replace(self, is_trained_under=True, log_level=self.log_level + float(level.log()))

    @cached_property
    def posterior(self) -> Posterior:
        """Of the weights."""
        return self.fit.posterior(self.hyper, spectral=False)

    def log_ratio(self, inputs: Tensor) -> LatentGaussian:
        """h at inputs (n, d): the log variance over that of an average noise, mean (n, C)."""
        found = [GLM().latent(self.fit.network, self.posterior, x) for x in inputs.split(CHUNK)]
        mean = torch.cat([one.mean for one in found]) - self.log_level
        return LatentGaussian(mean, torch.cat([one.covariance for one in found]))

    def ratios(self, inputs: Tensor) -> Tensor:
        """e^h at its mean, shape (n, C): what rows train under."""
        parts = [self.fit.network(x).double() for x in inputs.split(CHUNK)]
        return (torch.cat(parts) - self.log_level).clamp(-REACH, REACH).exp()

    def mean_ratio(self, inputs: Tensor) -> Tensor:
        """E[e^h], shape (n, C)."""
        weights, values = self.nodes(inputs)
        return values @ weights

    def nodes(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (J,) and values of e^h (n, C, J) of the quadrature over h."""
        log_ratio = self.log_ratio(inputs)
        roots, weights = normal_nodes(log_ratio.mean)
        deviation = (believed(log_ratio.variance) + self.spread**2).sqrt()
        values = log_ratio.mean[..., None] - self.spread**2 / 2 + deviation[..., None] * roots
        return weights, values.clamp(-REACH, REACH).exp()

    def components(self, moments: Predictive, inputs: Tensor, dispersion: float) -> Components:
        """The predictive of rows at inputs (n, d), whose outputs have these moments, under the noise φ e^h."""
        weights, values = self.nodes(inputs)
        mean, epistemic = (part[..., None].expand_as(values) for part in (moments.mean, moments.epistemic_variance))
        return Components(weights, mean, epistemic, dispersion * values)

    def warn_at_bounds(self, inputs: Tensor) -> None:
        """Report a noise that ran away.

        Warns
        -----
        BoundWarning
        """
        away = self.ratios(inputs).log().abs().amax(1) > REACH - 1e-6
        if bool(away.any()):
            warnings.warn(
                f"the noise of {int(away.sum())} rows is a thousandth of the average or a thousand times it, and was "
                "bounded there: some rows may have no noise at all, such as copies of each other or of a rule. "
                "likelihood='gaussian' gives all rows the same noise.",
                BoundWarning,
                stacklevel=2,
            )


@dataclass(frozen=True)
class TrainedNoise:
    """A noise model and what it was trained on.

    Parameters
    ----------
    model : NoiseModel
    chosen : Tensor of shape (m,), int64
        Rows of the training among all.
    inputs : Tensor of shape (m, d)
    errors, variance : Tensor of shape (m, C)
        Errors, and variances of the predictions, noise apart.
    weights : Tensor of shape (m,)
    dispersion : float
        φ.
    """

    model: NoiseModel
    chosen: Tensor
    inputs: Tensor
    errors: Tensor
    variance: Tensor
    weights: Tensor
    dispersion: float

    def some(self, most: int) -> TrainedNoise:
        """With a random sample of at most so many rows, by a fixed seed; the model stays."""
        few = sample_of(len(self.chosen), most).to(self.chosen.device)
        return replace(
            self,
            chosen=self.chosen[few],
            inputs=self.inputs[few],
            errors=self.errors[few],
            variance=self.variance[few],
            weights=self.weights[few],
        )

    def left_out(self) -> LatentGaussian:
        """h at each row of the training, predicted without that row by a Newton step.

        Outputs are independent of each other, given the weights of the net.
        """
        found = self.model.log_ratio(self.inputs)
        h, level = found.mean + self.model.log_level, self.model.log_level
        likelihood, targets = SquaredErrors(self.dispersion), torch.cat([self.errors.square(), self.variance], 1)
        weights = self.weights[:, None]
        pull = weights * likelihood.residual(h, targets)
        curvature = weights * likelihood.hessian_factor(h, targets).diagonal(dim1=1, dim2=2).square()
        without = found.variance / (1 - found.variance * curvature).clamp_min(LEAST_KEPT)
        return LatentGaussian((h + without * pull).clamp(-REACH, REACH) - level, torch.diag_embed(without))


def sample_of(n_rows: int, most: int) -> Tensor:
    """Sorted places of all rows, or of a random sample of this size with a fixed seed."""
    return torch.randperm(n_rows, generator=torch.Generator().manual_seed(0))[:most].sort().values


def normal_nodes(like: Tensor) -> tuple[Tensor, Tensor]:
    """Roots (J,) and weights (J,) of the quadrature over a standard normal variable."""
    roots, weights = (torch.from_numpy(part).to(like) for part in np.polynomial.hermite_e.hermegauss(NODES))
    return roots, weights / weights.sum()


def believed(log_variance: Tensor) -> Tensor:
    """Variances of h, at most ``LARGEST_SPREAD``²."""
    return log_variance.clamp(0.0, LARGEST_SPREAD**2)


@dataclass(frozen=True)
class SquaredErrors(Likelihood):
    """Errors of held-out rows, given the log ratio h of their noise; targets are (e², V) side by side, (n, 2 C).

    Parameters
    ----------
    dispersion : float
        φ.
    """

    dispersion: float
    has_dispersion: ClassVar[bool] = False

    def _parts(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """e², the variance V + φ e^h, and the noise's share of it."""
        squares, variances = targets.chunk(2, 1)
        noise = self.dispersion * outputs.clamp(-REACH, REACH).exp()
        return squares, variances + noise, noise / (variances + noise)

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """½ Σ [log(V + φ e^h) + e²/(V + φ e^h)], shape (n,)."""
        return self.by_output(outputs, targets).sum(-1)

    def by_output(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """½ [log(V + φ e^h) + e²/(V + φ e^h)], shape (n, C)."""
        squares, total, _ = self._parts(outputs, targets)
        return 0.5 * (total.log() + squares / total)

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """½ share (1 − e²/(V + φ e^h)), shape (n, C)."""
        squares, total, share = self._parts(outputs, targets)
        return 0.5 * share * (1 - squares / total)

    def hessian_factor(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """diag(√½ share), shape (n, C, C)."""
        assert targets is not None
        return torch.diag_embed(math.sqrt(0.5) * self._parts(outputs, targets)[2])

    def log_normaliser(self, dispersion: float, n_outputs: int) -> float:
        """½ C log 2π, nats."""
        return 0.5 * n_outputs * math.log(2 * math.pi)

    def sample(self, outputs: Tensor, uniforms: Tensor, targets: Tensor | None = None) -> Tensor:
        raise NotImplementedError("errors are given, and none are drawn.")

    def predict(self, latent: LatentGaussian, dispersion: float, link: Link | None = None) -> Predictive:
        raise NotImplementedError("predictions are those of the model that has made the errors.")


def noise_model(
    net: nn.Module,
    inputs: Tensor,
    weights: Tensor,
    held_out: HeldOutErrors,
    dispersion: float,
    seed: int = 0,
    *,
    always: bool = True,
    quick: bool = False,
    steps: int | None = None,
) -> TrainedNoise | None:
    """Train h on errors of held-out rows; None where it is not worth having, or too dear for its use.

    Parameters
    ----------
    net : torch module
        Untrained, with C outputs, in double precision.
    inputs : Tensor of shape (n, d), float64
    weights : Tensor of shape (n,), float64
    held_out : HeldOutErrors
        Errors of the rows, and variances of their predictions.
    dispersion : float
        φ.
    seed : int
        Of the choice of rows where they are too many for exact steps: as many as these can take.
    always : bool
        Whether it is asked for in any case. Otherwise its evidence has to be decisive, and its exact steps, of P³
        multiply-adds for a net that has as many outputs as there are targets, within the budget of the training's.
    quick : bool
        Whether fewer rows and steps are enough.
    steps : int or None
        Gauss–Newton steps of a good model; None for as many as the rows ask for.
    """
    size = sum(parameter.numel() for parameter in net.parameters())
    if not always and size**3 > budget_for(len(inputs)).exact_step:
        return None
    steps = QUICK_STEPS if quick else steps or (STEPS if len(inputs) < MANY_ROWS else MANY_STEPS)
    chosen = training_rows(len(inputs), size, seed, quick=quick).to(inputs.device)
    inputs, weights, errors = inputs[chosen], weights[chosen], held_out.errors[chosen]
    is_first = bool(held_out.variance.any())
    first_steps = QUICK_STEPS if is_first else steps
    variance = torch.zeros_like(errors)
    found = _fitted(net, inputs, weights, errors, variance, dispersion, first_steps)
    if is_first:
        variance = held_out.variance[chosen] * found.ratios(inputs).sqrt().clamp_max(1.0)
        found = _fitted(net, inputs, weights, errors, variance, dispersion, steps, found)
    if not (always or found.gain > DECISIVE):
        return None
    return TrainedNoise(found, chosen, inputs, errors, variance, weights, dispersion)


def training_rows(n_rows: int, n_weights: int, seed: int, *, quick: bool = False) -> Tensor:
    """Which of the rows h is trained on, (m,), int64: all, or a random sample that its exact steps can afford."""
    most = max(int((QUICK_STEP if quick else LARGE_STEP) / n_weights**2), LEAST_ROWS)
    if n_rows <= most:
        return torch.arange(n_rows)
    return torch.randperm(n_rows, generator=torch.Generator().manual_seed(seed))[:most]


def _fitted(
    net: nn.Module,
    inputs: Tensor,
    weights: Tensor,
    errors: Tensor,
    variance: Tensor,
    dispersion: float,
    steps: int,
    before: NoiseModel | None = None,
) -> NoiseModel:
    """h for errors (n, C) of predictions of these variances (n, C), from another one on; the net stays untrained."""
    likelihood = SquaredErrors(dispersion)
    batches = [(inputs, torch.cat([errors.square(), variance], 1), weights)]
    network, rule = trace(net, inputs), GGN()
    prior = network.scalar_prior()
    n_dual = len(inputs) * errors.shape[1]
    structure: type[Full] | type[Functional] = Functional if n_dual < network.n_parameters else Full
    problem = Problem(
        lambda network: fit_laplace(network, likelihood, rule, structure, prior, batches),
        lambda network: DataLoss(network, likelihood, batches),
    )
    ones = torch.ones(prior.n_groups, dtype=torch.float64, device=inputs.device)
    first, hyper = (network, Hyper(ones)) if before is None else (before.fit.network, before.hyper)
    start = problem.linearise(first), hyper
    found = alternate(problem, *start, free_prior=True, update_dispersion=lambda fit, hyper: hyper, max_steps=steps)
    everywhere = _same_everywhere(dispersion, batches[0][1], weights)
    return NoiseModel(found.fit, found.hyper, log_evidence(found.fit, found.hyper) - everywhere)


def _same_everywhere(dispersion: float, targets: Tensor, weights: Tensor) -> float:
    """Largest log density of the errors under a noise of each output that does not vary, nats."""
    likelihood, total = SquaredErrors(dispersion), float(weights.sum())
    levels = torch.linspace(-REACH, REACH, LEVELS, dtype=targets.dtype, device=targets.device)
    nll = torch.stack([weights @ likelihood.by_output(level.expand(1, 1), targets) for level in levels])
    return -total * likelihood.log_normaliser(1.0, targets.shape[1] // 2) - float(nll.amin(0).sum())
