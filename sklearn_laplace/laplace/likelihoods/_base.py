"""Base class of likelihoods, which are independent of networks, structures and priors."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from ..latent import LatentGaussian, Predictive
from ..links._base import Link

LOGIT_OUTSIDE = 40.0
"""Standard deviation of the difference of two logits, one width of the training range (without margins) outside it."""


class Likelihood(ABC):
    """Likelihood p(y given f). At dispersion φ, −log p of a row is ``nll / φ + log_normaliser(φ) + log_noise``."""

    has_dispersion: ClassVar[bool]
    """True if φ (the noise variance) is a free hyperparameter; otherwise it is fixed at 1."""
    quadratic: ClassVar[bool] = False
    """True if ``nll`` is quadratic in the outputs, with a Hessian that does not depend on them."""
    over_classes: ClassVar[bool] = False
    """True if targets are class indices; the predictive moments are then those of the class indicators."""
    additive_noise: ClassVar[bool] = True
    """True if a numeric target is the output plus noise, so targets can be standardised."""
    least_target: ClassVar[float] = -math.inf
    """Smallest valid target."""
    is_overdispersed: ClassVar[bool] = False
    """True for counts whose overdispersion is selected during the fit. Such targets must be whole numbers."""
    takes_known_noise: ClassVar[bool] = False
    """True if targets may have shape (n, 2 C): the targets, then their noise variances v in units of φ.

    See :func:`with_noise`.
    """

    @classmethod
    def key(cls) -> str:
        """Name in the registry, equal to the file name."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    @property
    def scale_outside(self) -> float:
        """Scale s of ``extrapolation.py``; for numeric targets, in standard deviations of the targets."""
        return 1.0

    @property
    def dispersion_bounds(self) -> tuple[float, float]:
        """Search interval of φ."""
        return 1.0, 1.0

    @property
    def dispersion_start(self) -> float:
        """Initial value of a search for φ, which attributes the whole variance of the targets to noise."""
        return 1.0

    def scaled_to(self, target_variance: float, noise: tuple[float, ...] = ()) -> Likelihood:
        """Likelihood scaled to the targets' mean variance, with ``noise`` variances (C,) of new rows in units of φ."""
        return self

    def output_start(self, targets: Tensor, weights: Tensor) -> Tensor | None:
        """Initial outputs (C,) of a built-in network; None if they are zero."""
        return None

    def score_weights(self, weights: Tensor) -> Tensor:
        """Weights (n,) of held-out rows in a sum of log densities, see :meth:`scored`."""
        return weights

    def scored(self, latent: LatentGaussian, targets: Tensor, weights: Tensor) -> tuple[LatentGaussian, Tensor]:
        """Outputs and targets of held-out rows with weights (n,), in the form for which the log density is computed."""
        return latent, targets

    @abstractmethod
    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihood of each row at unit dispersion, without its normaliser, shape (n,)."""

    @abstractmethod
    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Gradient r of ``nll`` with respect to the outputs, shape (n, C)."""

    @abstractmethod
    def hessian_factor(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """S (n, C, K) with S Sᵀ = Λ, the expected Hessian of ``nll``. Of ``targets``, only the known noise is used."""

    @abstractmethod
    def sample(self, outputs: Tensor, uniforms: Tensor, targets: Tensor | None = None) -> Tensor:
        """Sampled targets with known noise, drawn with the quantile function from ``uniforms`` (n, C)."""

    def log_normaliser(self, dispersion: float, n_outputs: int) -> float:
        """Term that turns ``nll / φ`` into a negative log density, per row of weight 1; zero if ``nll`` is complete."""
        return 0.0

    def log_noise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """½ Σ log v of each row's known noise, shape (n,): the part of −log p that does not depend on φ."""
        return torch.zeros_like(outputs[:, 0])

    def noise_variance(self, dispersion: float, n_outputs: int, device: torch.device | None = None) -> Tensor:
        """Noise variances (C,) of a new row of numeric targets, equal to those of an average row, float64."""
        return torch.full((n_outputs,), dispersion, dtype=torch.float64, device=device)

    def conditional_mean(self, outputs: Tensor) -> Tensor:
        """E[y given f] of numeric targets, elementwise."""
        return outputs

    def joint_covariance(self, mean: Tensor, covariance: Tensor, dispersion: float) -> Tensor:
        """Covariance (n, n, C) of new numeric targets, given mean (n, C) and covariance (n, n, C) of the outputs."""
        noise = self.noise_variance(dispersion, mean.shape[1], mean.device).to(mean)
        return covariance + noise * torch.eye(len(mean), dtype=mean.dtype, device=mean.device)[..., None]

    def logits(self, outputs: Tensor) -> Tensor:
        """Map outputs (n, C, …) linearly to one logit per class, shape (n, K, …); the identity by default."""
        return outputs

    def class_logits(self, latent: LatentGaussian) -> LatentGaussian:
        """Gaussian over :meth:`logits`, given that over outputs."""
        samples = None if latent.samples is None else self.logits(latent.samples.movedim(0, -1)).movedim(-1, 0)
        return LatentGaussian(self.logits(latent.mean), self.logits(self.logits(latent.covariance).mT), samples)

    @abstractmethod
    def predict(self, latent: LatentGaussian, dispersion: float, link: Link | None) -> Predictive:
        """Moments of new targets under a Gaussian over outputs."""


def with_noise(targets: Tensor, noise: Tensor | None) -> Tensor:
    """Targets (n, C) and their known noise variances (n, C), concatenated as a likelihood takes them."""
    return targets if noise is None else torch.cat([targets, noise], 1)


def without_noise(targets: Tensor, n_outputs: int) -> tuple[Tensor, Tensor]:
    """Split the result of :func:`with_noise` into targets (n, C) and noise variances (n, C), ones if none is known."""
    y, noise = targets[:, :n_outputs], targets[:, n_outputs:]
    return y, noise if noise.shape[1] else torch.ones_like(y)


def class_moments(logits: LatentGaussian, link: Link | None) -> Predictive:
    """Mean p, epistemic variance Var(p) and aleatoric variance p (1 − p) − Var(p) of the class indicators."""
    if link is None:
        raise TypeError("link=None: a likelihood over classes needs a link from logits to probabilities. Pass a Link.")
    probabilities = link.mean(logits)
    total = probabilities * (1 - probabilities)
    epistemic = torch.minimum(link.variance(logits), total)
    return Predictive(probabilities, epistemic, total - epistemic)
