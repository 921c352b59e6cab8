"""Rows of a fit under the linearised network: outputs, Jacobian, and predictive log densities of the targets."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import UnsupportedCombinationError
from ..curvatures import GGN
from ..curvatures._base import CurvatureRule
from ..fit import Hyper, Rows
from ..jacobian.jacobian import DenseFactor, FactoredJacobian
from ..latent import LatentGaussian
from ..likelihoods._base import Likelihood, without_noise
from ..links._base import Link
from ..network.network import Linearisation, Network

Density = Callable[[LatentGaussian, Tensor, float], Tensor]
"""Maps (Gaussian over the outputs, targets, dispersion) to log p(y) of each row (n,), nats."""


def gaussian_density(latent: LatentGaussian, targets: Tensor, dispersion: float) -> Tensor:
    """Log of N(y; mean, covariance + φ diag(v)) for each row (n,), nats; v holds known noise variances or ones."""
    y, noise = without_noise(targets.double(), latent.mean.shape[-1])
    squares, logdet = normal_terms(y - latent.mean, latent.covariance, dispersion * noise)
    return -0.5 * (squares + logdet + latent.mean.shape[-1] * math.log(2 * math.pi))


def normal_terms(residual: Tensor, covariance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Terms eᵀ V⁻¹ e and log |V| (…) for residuals (…, C) and V = covariance (…, C, C) + diag(noise)."""
    factor = torch.linalg.cholesky(covariance + torch.diag_embed(noise))
    white = torch.linalg.solve_triangular(factor, residual[..., None], upper=False)[..., 0]
    return white.square().sum(-1), 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def class_density(likelihood: Likelihood, link: Link) -> Density:
    """Density function for classes: the log probability, under the link, of the target's class."""

    def density(latent: LatentGaussian, targets: Tensor, dispersion: float) -> Tensor:
        probabilities = link.mean(likelihood.class_logits(latent)).gather(1, targets[:, None])[:, 0]
        return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()

    return density


HELD = 2**25
"""Maximum number of Jacobian elements kept in memory between passes, 256 MB. Larger Jacobians are recomputed."""


@dataclass(frozen=True)
class LinearRows:
    """Rows of the linearised network, in float64."""

    inputs: Tensor  # (n, …)
    outputs: Tensor  # f* at θ*, (n, C)
    jacobian: FactoredJacobian  # n rows and C columns
    targets: Tensor
    weights: Tensor  # (n,)

    def at(self, shift: Tensor | None) -> Tensor:
        """Outputs f* + J·shift, shape (n, C), for a shift (P,) of the weights."""
        return self.outputs if shift is None else self.outputs + self.jacobian.times(shift[:, None])[..., 0]

    def factor(self, rule: CurvatureRule, likelihood: Likelihood, outputs: Tensor) -> Tensor:
        """S (n, C, K), including √w, at given outputs and unit dispersion; that of ``GGN`` if the rule has no S."""
        rule = rule if "rows" in rule.provides else GGN()
        line = Linearisation(self.inputs, outputs, _as_rows, _no_hessian)
        return rule.batch(line, likelihood, self.targets, self.weights).jacobian.rows().mT


def linear_rows(network: Network, batches: Iterable[Rows]) -> Iterator[LinearRows]:
    """Yield a :class:`LinearRows` for each batch."""
    for inputs, targets, weights in batches:
        outputs, jacobian = network.jacobian(inputs)
        targets = targets.double() if targets.is_floating_point() else targets
        yield LinearRows(inputs, outputs.double(), jacobian.double(), targets, weights.double())


@dataclass(frozen=True)
class _Recomputed:
    """Rows that are computed anew in each iteration."""

    network: Network
    batches: Iterable[Rows]

    def __iter__(self) -> Iterator[LinearRows]:
        return linear_rows(self.network, self.batches)


def held_rows(network: Network, batches: Iterable[Rows]) -> Iterable[LinearRows]:
    """:func:`linear_rows` for several iterations, which compute them anew if they exceed :data:`HELD`."""
    kept, size = [], 0
    for rows in linear_rows(network, batches):
        size += len(rows.weights) * sum(block.width(rows.outputs.shape[1]) for block in network.blocks)
        if size > HELD:
            return _Recomputed(network, batches)
        kept.append(rows)
    return kept


def one_temperature(hyper: Hyper) -> float:
    """Common temperature of all weights, or UnsupportedCombinationError if there are several."""
    if isinstance(hyper.temperature, Tensor):
        raise UnsupportedCombinationError(
            "leave-one-out needs one temperature for all weights, but temperature has several values; give a number."
        )
    return hyper.temperature


def _as_rows(factor: Tensor) -> FactoredJacobian:
    """Pullback with respect to the outputs themselves: J is the identity, and SᵀJ is Sᵀ."""
    return FactoredJacobian((DenseFactor(factor.mT),))


def _no_hessian(loss: Callable[[Tensor], Tensor]) -> Tensor:
    raise NotImplementedError("the outputs of linearised rows have no Hessian; use a rule that provides rows.")
