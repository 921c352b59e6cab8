"""Losses of a joint training: squared errors of normal noise, and negative log likelihoods of classes and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from .._runtime.progress import Steps
from ..laplace.likelihoods._base import Likelihood

NOISE_AT_START = 0.1
"""φ of the first cycle, in units of the target variance."""

FACTORS = tuple(2 ** (k / 4) for k in range(-8, 9))
"""Factors of the outputs of classes under which their loss is compared, from ¼ to 4."""
HALF_A_ROW = 0.5
"""Weight that each class has in addition to its rows, when the frequencies of the classes are estimated."""


class Loss(Protocol):
    """Loss of the outputs of K nets."""

    @property
    def first_noise(self) -> float:
        """Noise level φ of the first cycle."""

    @property
    def has_noise(self) -> bool:
        """True if φ is the error of held-out rows after each cycle; otherwise it stays 1."""

    def terms(self, outputs: Tensor, targets: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Terms (K, n, C) or (K, n, 1) of the loss, and its derivative (K, n, C) with respect to the outputs (K, n, C).

        Targets are (n, C), or (n,) for classes; factors of the terms are (K, n, 1) or (K, n, C).
        """

    def first_outputs(self, targets: Tensor, weights: Tensor, n_outputs: int) -> Tensor | None:
        """Outputs (C,) of all nets before the training; None if they are those of the given nets."""

    def errors(self, outputs: Tensor, targets: Tensor, precision: Tensor | float = 1.0) -> Tensor:
        """Errors (K, n), float64, by which trainings are compared; ``precision`` is a factor of squared errors."""

    def show(self, steps: Steps, errors: Tensor, n_outputs: int) -> None:
        """Show the mean errors (K,) of held-out rows."""


@dataclass(frozen=True)
class Squares:
    """Half the squared errors; the errors of held-out rows are the squares."""

    has_noise: ClassVar[bool] = True
    first_noise: ClassVar[float] = NOISE_AT_START

    def terms(self, outputs: Tensor, targets: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """½ factor · error², and factor · error."""
        errors = outputs - targets
        slope: Tensor = errors * factors
        return errors.mul_(slope).mul_(0.5), slope

    def first_outputs(self, targets: Tensor, weights: Tensor, n_outputs: int) -> Tensor | None:
        """None: targets are standardised."""
        return None

    def errors(self, outputs: Tensor, targets: Tensor, precision: Tensor | float = 1.0) -> Tensor:
        """Mean over the outputs of precision · squared error."""
        return ((outputs - targets.double()).square() * precision).mean(-1)

    def show(self, steps: Steps, errors: Tensor, n_outputs: int) -> None:
        steps.score(errors, n_outputs)


@dataclass(frozen=True)
class NegativeLog:
    """Negative log likelihood of classes or counts, in nats, for a likelihood without dispersion."""

    likelihood: Likelihood
    has_noise: ClassVar[bool] = False
    first_noise: ClassVar[float] = 1.0

    def terms(self, outputs: Tensor, targets: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """factor · nll of each row, and factor · residual."""
        flat, repeated = self._flat(outputs, targets)
        loss = self.likelihood.nll(flat, repeated).view(*outputs.shape[:2], 1)
        return loss * factors, self.likelihood.residual(flat, repeated).view_as(outputs) * factors

    def first_outputs(self, targets: Tensor, weights: Tensor, n_outputs: int) -> Tensor | None:
        """Logits of the class frequencies; half a row is added to each class, since a rare one may be missing."""
        if not self.likelihood.over_classes:
            return None
        logs = (targets.bincount(weights.double(), minlength=max(n_outputs, 2)) + HALF_A_ROW).log()
        return logs[1:] - logs[:1] if n_outputs == 1 else logs - logs.mean()

    def errors(self, outputs: Tensor, targets: Tensor, precision: Tensor | float = 1.0) -> Tensor:
        """Negative log likelihood of each row; the precision is 1."""
        return self.likelihood.nll(*self._flat(outputs.double(), targets)).view(outputs.shape[:2])

    @property
    def factors(self) -> tuple[float, ...]:
        """Factors of the outputs that the losses of a mixture are computed for."""
        return FACTORS if self.likelihood.over_classes else (1.0,)

    def of_mixture(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Mean loss of the mixture of nets with weights (K, n) for each row, nats, for each of ``factors``.

        Rows without a weight do not count.
        """
        scored = weights.sum(0) > 0
        outputs, targets, weights = outputs[:, scored], targets[scored], weights[:, scored].double()
        total = weights.sum(0)
        shares, of_rows = (weights / total).log(), total / total.sum()
        logs = [shares - self.errors(factor * outputs, targets) for factor in self.factors]
        return -torch.stack(logs).logsumexp(1) @ of_rows

    def show(self, steps: Steps, errors: Tensor, n_outputs: int) -> None:
        steps.score_log(-errors)

    def _flat(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of all nets as rows (K n, C), and the targets of each of these rows."""
        return outputs.flatten(0, 1), targets.repeat(len(outputs), *[1] * (targets.ndim - 1))


def loss_of(likelihood: Likelihood) -> Loss:
    return Squares() if likelihood.has_dispersion else NegativeLog(likelihood)
