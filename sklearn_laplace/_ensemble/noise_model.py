r"""Input-dependent noise: a second net for the log noise variance, with its own Laplace approximation.

The noise of target c in row n has the variance :math:`\varphi e^{h_c(x_n)}`. If mean and noise were fitted to the same
rows, an overfitted mean would look like small noise, and small noise would increase the overfitting. Therefore h is
fitted to held-out rows. Let :math:`e_n` be the errors of nets on rows held out from them, and :math:`V_n` the variances
of their predictions without noise. Then

.. math:: -\log p(e_n \mid h) = \tfrac12 \big[\log(V_n + \varphi e^{h_n}) + e_n^2 / (V_n + \varphi e^{h_n})\big],
          \qquad \Lambda_n = \tfrac12 \Big(\frac{\varphi e^{h_n}}{V_n + \varphi e^{h_n}}\Big)^2 ,

with the Fisher information Λ. The nets are trained under a constant noise level, so :math:`V_n` is too large for rows
with small noise. :math:`V_n` often exceeds :math:`e_n^2`, and the row then carries no information about h. Therefore h
is fitted twice. The first fit has :math:`V_n = 0`, as if all errors were noise. The second fit has
:math:`V_n \min(1, e^{h_n/2})`, with the first h. Where nearby rows determine a prediction, its variance is proportional
to the noise. Where the prior does, the variance is independent of it. The factor :math:`e^{h_n/2}` is a compromise.

The prior of h has mean zero, which stands for a constant noise level, and the precision that maximises the evidence.
Varying noise is used if the user requests it, or if this evidence clearly exceeds the best log density under a constant
h. The evidence is reliable here because the targets of h are held-out errors. Jointly trained members take their last
steps under such noise, in a similar way as with known noise ratios (``laplace/likelihoods/gaussian.py``).

For a new x, h is Gaussian under the linearised net. The predictive is a mixture over h, by Gauss–Hermite quadrature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from .._table.limits import budget_for
from .._training.recipe import FEW_ROWS
from ..errors import BoundWarning
from ..errors.warn import warn_user
from ..laplace.curvatures import GGN
from ..laplace.evidence import log_evidence
from ..laplace.fit import CHUNK, Hyper, LaplaceFit, fit_laplace, some_rows
from ..laplace.latent import LatentGaussian, Predictive
from ..laplace.likelihoods._base import Likelihood
from ..laplace.links._base import Link
from ..laplace.mode.alternating import alternate
from ..laplace.mode.problem import DataLoss, Problem
from ..laplace.network.tracing import trace
from ..laplace.predictives import GLM
from ..laplace.selection import HeldOutErrors
from ..laplace.structures import Full, Functional
from ..laplace.structures._base import Posterior
from ..nets.stacked import StackedNets, is_built_in


@dataclass(frozen=True)
class Limits:
    """Limits on the training of a noise model."""

    steps: int  # Gauss–Newton steps
    cost: float  # multiply-adds of one step, which limit the number of rows


ACCURATE, QUICK = Limits(30, 1e9), Limits(20, 1e8)
"""Limits for predictions, and for row weights in training or the first of two fits. See docs/decisions.md."""
NODES = 15
"""Number of quadrature nodes over h."""
LARGEST_SPREAD = 1.5
"""Maximum standard deviation of h. With a larger one, E[e^h] is dominated by a tail that no data support."""
REACH = math.log(1e6)
"""Maximum |h|: the noise std differs from that of an average row by a factor of at most 1,000."""
DECISIVE = 5.0
"""Minimum gain in log evidence, in nats, for noise that varies: "very strong" in Kass & Raftery (1995)."""
LEAST_KEPT = 0.1
"""When a row is left out, at least this fraction of the precision of h at the row is kept."""
LEVELS = torch.linspace(-REACH, REACH, 281, dtype=torch.float64)
"""Grid of constant values of h for the baseline."""


@dataclass(frozen=True)
class NoiseModel:
    """Laplace approximation of the log noise ratio h.

    ``spread`` makes the tails of the noise heavier and leaves E[e^h] unchanged (``_ensemble/calibration.py``).
    """

    fit: LaplaceFit  # of the noise net
    hyper: Hyper
    gain: float  # log evidence minus the log density under the best constant noise, nats
    is_trained_under: bool = False  # the mean is trained under this noise, and later rows are weighted by it
    log_level: float = 0.0  # subtracted from the outputs of the net; makes φ the noise variance of an average row
    spread: float = 0.0  # additional standard deviation τ of h in predictions
    varies: ClassVar[bool] = True

    def trained_under(self, inputs: Tensor, weights: Tensor) -> NoiseModel:
        """Return the model for training: over rows (n, d) with weights (n,), its noise ratios e^h have the mean 1."""
        level = (weights @ self.ratios(inputs)).mean() / weights.sum()
        return replace(self, is_trained_under=True, log_level=self.log_level + float(level.log()))

    @cached_property
    def posterior(self) -> Posterior:
        return self.fit.posterior(self.hyper, spectral=False)

    def log_ratio(self, inputs: Tensor) -> LatentGaussian:
        """Log noise ratio h at inputs (n, d), with mean (n, C): the log variance relative to that of an average row."""
        chunks = [self._latent(x) for x in inputs.split(CHUNK)]
        mean = torch.cat([chunk.mean for chunk in chunks]) - self.log_level
        return LatentGaussian(mean, torch.cat([chunk.covariance for chunk in chunks]))

    def _latent(self, x: Tensor) -> LatentGaussian:
        """Output distribution of the noise net; Jacobians are in closed form unless rows require gradients."""
        if self._nets is None or x.requires_grad:
            return GLM().latent(self.fit.network, self.posterior, x)
        line = self._nets.linearise(x)
        return LatentGaussian(line.outputs[0].double(), self.posterior.covariance(self._nets.jacobian(line, 0)))

    @cached_property
    def _nets(self) -> StackedNets | None:
        return StackedNets.of([self.fit.network]) if is_built_in(self.fit.network) else None

    def ratios(self, inputs: Tensor) -> Tensor:
        """Noise ratios e^h at the mean of h, shape (n, C), which are used in training."""
        parts = [self.fit.network(x).double() for x in inputs.to(self.fit.theta).split(CHUNK)]
        return (torch.cat(parts) - self.log_level).clamp(-REACH, REACH).exp()

    def ratios_of(self, X: np.ndarray) -> np.ndarray:
        return self.ratios(torch.from_numpy(X).to(self.fit.theta)).cpu().numpy()

    def mean_ratio(self, inputs: Tensor) -> Tensor:
        """Expected noise ratios E[e^h], shape (n, C)."""
        weights, values = self.nodes(inputs)
        return values @ weights

    def nodes(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (J,) of the quadrature over h, and values (n, C, J) of e^h at its nodes."""
        log_ratio = self.log_ratio(inputs)
        roots, weights = normal_nodes(log_ratio.mean)
        deviation = (shrunk(log_ratio.variance) + self.spread**2).sqrt()
        values = log_ratio.mean[..., None] - self.spread**2 / 2 + deviation[..., None] * roots
        return weights, values.clamp(-REACH, REACH).exp()

    def merged_nodes(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`nodes`, with the single value E[e^h]: weights (1,) and values (n, C, 1)."""
        weights, values = self.nodes(inputs)
        return weights.new_ones(1), (values @ weights)[..., None]

    def warn_at_bounds(self, inputs: Tensor) -> None:
        """Issue ``BoundWarning`` if |h| is at its bound for some rows."""
        at_bound = self.ratios(inputs).log().abs().amax(1) > REACH - 1e-6
        if bool(at_bound.any()):
            warn_user(
                f"the noise std of {int(at_bound.sum())} rows is at its bound, a thousandth of the average or a "
                "thousand times the average. Some rows may be free of noise, such as duplicate rows or targets that "
                "follow a rule, or a target is far from all others. Check these rows, or use likelihood='gaussian' for "
                "a constant noise level.",
                BoundWarning,
            )


@dataclass(frozen=True)
class TrainedNoise:
    """A noise model and the m rows that it was trained on."""

    model: NoiseModel
    chosen: Tensor  # (m,), int64: indices among all rows
    inputs: Tensor  # (m, d)
    errors: Tensor  # (m, C), held-out
    variance: Tensor  # (m, C), of the predictions, without noise
    weights: Tensor  # (m,)
    dispersion: float  # noise level φ of errors and variances

    def some(self, most: int) -> TrainedNoise:
        """Return the model with at most ``most`` rows, sampled with a fixed seed."""
        sample = some_rows(len(self.chosen), most).to(self.chosen.device)
        of_rows = "chosen", "inputs", "errors", "variance", "weights"
        return replace(self, **{name: getattr(self, name)[sample] for name in of_rows})

    def left_out(self) -> LatentGaussian:
        """Leave-one-out predictions of h at the training rows, by one Newton step each, with independent outputs."""
        fitted = self.model.log_ratio(self.inputs)
        h, level = fitted.mean + self.model.log_level, self.model.log_level
        likelihood, targets = SquaredErrors(self.dispersion), torch.cat([self.errors.square(), self.variance], 1)
        weights = self.weights[:, None]
        pull = weights * likelihood.residual(h, targets)
        curvature = weights * likelihood.hessian_factor(h, targets).diagonal(dim1=1, dim2=2).square()
        variance = fitted.variance / (1 - fitted.variance * curvature).clamp_min(LEAST_KEPT)
        return LatentGaussian((h + variance * pull).clamp(-REACH, REACH) - level, torch.diag_embed(variance))


def normal_nodes(like: Tensor) -> tuple[Tensor, Tensor]:
    """Roots (J,) and weights (J,) of Gauss–Hermite quadrature over a standard normal variable."""
    roots, weights = _hermite_nodes(like.dtype, like.device)
    return roots, weights / weights.sum()


@cache
def _hermite_nodes(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    roots, weights = (torch.tensor(part).to(device, dtype) for part in np.polynomial.hermite_e.hermegauss(NODES))
    return roots, weights


def shrunk(log_variance: Tensor) -> Tensor:
    """Clip variances of h to at most ``LARGEST_SPREAD``²."""
    return log_variance.clamp(0.0, LARGEST_SPREAD**2)


@dataclass(frozen=True)
class SquaredErrors(Likelihood):
    """Likelihood of errors e under the log noise ratio h, at noise level φ; targets are (e², V), shape (n, 2 C)."""

    dispersion: float
    has_dispersion: ClassVar[bool] = False

    def _parts(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """e², the variance V + φ e^h, and the noise's share of that variance."""
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
        raise NotImplementedError("SquaredErrors has no samples. Sample from the likelihood of the targets.")

    def predict(self, latent: LatentGaussian, dispersion: float, link: Link | None = None) -> Predictive:
        raise NotImplementedError("SquaredErrors has no predictive. Predict with the likelihood of the targets.")


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
) -> TrainedNoise | None:
    """Fit the log noise ratio h to held-out errors of rows (n, d) with weights (n,), float64, at φ = ``dispersion``.

    ``net`` is untrained, in double precision. If there are too many rows for exact steps, a sample is drawn with
    ``seed``. If ``quick``, fewer rows and steps are used. Without ``always``, return None if the gain in evidence is
    not decisive, or if an exact step (P³ multiply-adds for P weights) exceeds the budget.
    """
    size = sum(parameter.numel() for parameter in net.parameters())
    if not always and size**3 > budget_for(len(inputs)).exact_step:
        return None
    limits = QUICK if quick else ACCURATE
    chosen = training_rows(len(inputs), size, seed, limits).to(inputs.device)
    inputs, weights, errors = inputs[chosen], weights[chosen], held_out.errors[chosen]
    is_first = bool(held_out.variance.any())
    variance = torch.zeros_like(errors)
    steps = (QUICK if is_first else limits).steps
    model = _fitted(net, inputs, weights, errors, variance, dispersion, steps=steps)
    if is_first:
        variance = held_out.variance[chosen] * model.ratios(inputs).sqrt().clamp_max(1.0)
        model = _fitted(net, inputs, weights, errors, variance, dispersion, steps=limits.steps, before=model)
    if not (always or model.gain > DECISIVE):
        return None
    return TrainedNoise(model, chosen, inputs, errors, variance, weights, dispersion)


def training_rows(n_rows: int, n_weights: int, seed: int, limits: Limits) -> Tensor:
    """Indices (m,), int64, of the rows that train h: all, or a random sample small enough for exact steps."""
    most = max(int(limits.cost / n_weights**2), FEW_ROWS)
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
    *,
    steps: int,
    before: NoiseModel | None = None,
) -> NoiseModel:
    """Fit h to errors (n, C) of predictions with the given variances (n, C); ``net`` itself is not changed."""
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
    mode = alternate(
        problem,
        problem.linearise(first),
        hyper,
        free_prior=True,
        update_dispersion=lambda fit, hyper: hyper,
        max_steps=steps,
    )
    constant = _same_everywhere(dispersion, batches[0][1], weights)
    return NoiseModel(mode.fit, mode.hyper, log_evidence(mode.fit, mode.hyper) - constant)


def _same_everywhere(dispersion: float, targets: Tensor, weights: Tensor) -> float:
    """Largest log density of the errors under constant noise levels, in nats."""
    likelihood, total = SquaredErrors(dispersion), float(weights.sum())
    levels = LEVELS.to(targets)
    nll = torch.stack([weights @ likelihood.by_output(level.expand(1, 1), targets) for level in levels])
    return -total * likelihood.log_normaliser(1.0, targets.shape[1] // 2) - float(nll.amin(0).sum())
