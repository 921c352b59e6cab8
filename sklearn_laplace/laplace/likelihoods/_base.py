"""What a likelihood answers. Nothing here knows a network, a structure or a prior."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ..latent import LatentGaussian, Predictive


class Link(Protocol):
    """What a likelihood over classes needs to know of a link (see ``links/``)."""

    def mean(self, latent: LatentGaussian) -> Tensor:
        """Class probabilities (n, C)."""

    def variance(self, latent: LatentGaussian) -> Tensor:
        """Variance (n, C) of the class probabilities under the Gaussian over the logits."""


class Likelihood(ABC):
    r"""p(y given f) at unit dispersion; the dispersion φ itself is a hyperparameter.

    The effective negative log-likelihood is ``nll / φ + log_normaliser(φ)``.
    """

    has_dispersion: ClassVar[bool]
    """Whether φ (the noise variance) is free; otherwise it is 1."""
    quadratic: ClassVar[bool] = False
    """Whether ``nll`` is quadratic in the outputs, with one Hessian for all of them."""
    over_classes: ClassVar[bool] = False
    """Whether targets are class indices and moments those of class indicators."""
    additive_noise: ClassVar[bool] = True
    """Whether a numeric target is the output plus noise, so that targets can be standardised."""
    least_target: ClassVar[float] = -math.inf
    """The smallest target that the likelihood can have made."""
    takes_known_noise: ClassVar[bool] = False
    """Whether targets may come as (n, 2 C), with noise variances v in units of φ behind them (:func:`with_noise`)."""

    @property
    def dispersion_bounds(self) -> tuple[float, float]:
        """Search interval of φ."""
        return 1.0, 1.0

    @property
    def dispersion_start(self) -> float:
        """Where a search for φ starts: all variation of the targets is noise."""
        return 1.0

    def scaled_to(self, target_variance: float, noise: tuple[float, ...] = ()) -> Likelihood:
        """The same likelihood for targets of this mean variance, and of this known noise in an average row.

        Only the search for φ and the noise of new rows depend on it.
        """
        return self

    def output_start(self, targets: Tensor, weights: Tensor) -> Tensor | None:
        """Outputs (C,) around which those of a net of ours vary; None where it is zero."""
        return None

    def guess(self, n_outputs: int) -> float | None:
        """Mean log density of a target row under the best guess without inputs, nats; None where it is not known."""
        return None

    @abstractmethod
    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihood of each row at unit dispersion, without its normaliser, shape (n,)."""

    @abstractmethod
    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Gradient r of ``nll`` in the outputs, shape (n, C)."""

    @abstractmethod
    def hessian_factor(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """S (n, C, K) with S Sᵀ = Λ, the expected Hessian of ``nll`` in the outputs; of ``targets`` the noise alone."""

    @abstractmethod
    def sample(self, outputs: Tensor, uniforms: Tensor, targets: Tensor | None = None) -> Tensor:
        """Targets drawn from p(y given f) at unit dispersion: its quantile function.

        Parameters
        ----------
        outputs : Tensor of shape (n, C)
        uniforms : Tensor of shape (n, C), float64
            Strictly between 0 and 1; what is drawn is a function of them.
        targets : Tensor, optional
            Whose known noise, if any, the draws have.

        Returns
        -------
        Tensor, one target a row, in the form that ``nll`` takes
        """

    @abstractmethod
    def log_normaliser(self, dispersion: float, n_outputs: int) -> float:
        """What one row of weight 1 adds to ``nll / φ`` to make it a negative log density."""

    def log_noise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """½ Σ log v of each row's known noise (n,): what it adds to the negative log density, whatever φ is."""
        return torch.zeros_like(outputs[:, 0])

    def noise_variance(self, dispersion: float, n_outputs: int) -> Tensor:
        """Variance (C,), float64, of the noise that a new row of numeric targets has, that of an average row."""
        return torch.full((n_outputs,), dispersion, dtype=torch.float64)

    def conditional_mean(self, outputs: Tensor) -> Tensor:
        """E[y given f] of numeric targets, element by element."""
        return outputs

    def joint_covariance(self, mean: Tensor, covariance: Tensor, dispersion: float) -> Tensor:
        """Covariance of new numeric targets over the rows.

        Parameters
        ----------
        mean : Tensor of shape (n, C)
            Of the outputs.
        covariance : Tensor of shape (n, n, C)
            Of each output over the rows.
        dispersion : float

        Returns
        -------
        Tensor of shape (n, n, C)
        """
        noise = self.noise_variance(dispersion, mean.shape[1]).to(mean)
        return covariance + noise * torch.eye(len(mean), dtype=mean.dtype, device=mean.device)[..., None]

    def logits(self, outputs: Tensor) -> Tensor:
        """Outputs (n, C, …) as one logit a class, (n, K, …): a linear map, the identity where they are that."""
        return outputs

    def class_logits(self, latent: LatentGaussian) -> LatentGaussian:
        """The Gaussian over :meth:`logits`."""
        samples = None if latent.samples is None else self.logits(latent.samples.movedim(0, -1)).movedim(-1, 0)
        return LatentGaussian(self.logits(latent.mean), self.logits(self.logits(latent.covariance).mT), samples)

    @abstractmethod
    def predict(self, latent: LatentGaussian, dispersion: float, link: Link | None) -> Predictive:
        """Moments of new targets under a Gaussian over the outputs."""


def with_noise(targets: Tensor, noise: Tensor | None) -> Tensor:
    """Targets (n, C) and the known variances of their noise (n, C), side by side: the form that a likelihood takes.

    Examples
    --------
    >>> with_noise(torch.tensor([[5.0], [6.0]]), torch.tensor([[0.5], [0.25]])).tolist()
    [[5.0, 0.5], [6.0, 0.25]]
    """
    return targets if noise is None else torch.cat([targets, noise], 1)


def without_noise(targets: Tensor, n_outputs: int) -> tuple[Tensor, Tensor]:
    """The reverse of :func:`with_noise`: targets (n, C) and their known variances (n, C), ones where none are known.

    Examples
    --------
    >>> without_noise(torch.tensor([[5.0, 0.5]]), 1), without_noise(torch.tensor([[5.0]]), 1)
    ((tensor([[5.]]), tensor([[0.5000]])), (tensor([[5.]]), tensor([[1.]])))
    """
    y, noise = targets[:, :n_outputs], targets[:, n_outputs:]
    return y, noise if noise.shape[1] else torch.ones_like(y)


def class_moments(logits: LatentGaussian, link: Link | None) -> Predictive:
    """Moments of the class indicators: p, Var(p) epistemic, and the rest of p (1 − p) aleatoric.

    Parameters
    ----------
    logits : LatentGaussian over one logit a class
    link : Link

    Raises
    ------
    TypeError
        Without a link.
    """
    if link is None:
        raise TypeError("a likelihood over classes needs a link from logits to probabilities.")
    probabilities = link.mean(logits)
    total = probabilities * (1 - probabilities)
    epistemic = torch.minimum(link.variance(logits), total)
    return Predictive(probabilities, epistemic, total - epistemic)
