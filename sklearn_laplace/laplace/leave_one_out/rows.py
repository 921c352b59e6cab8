r"""Rows of a fit under the linearised network: outputs and Jacobian."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from ...errors import UnsupportedCombinationError
from ..curvatures import GGN
from ..curvatures._base import CurvatureRule
from ..fit import Hyper, Rows
from ..jacobian.factors import DenseFactor
from ..jacobian.jacobian import FactoredJacobian
from ..likelihoods._base import Likelihood
from ..network.network import Linearisation, Network

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
        """Output factor S (n, C, K) of a rule at these outputs, at unit dispersion, with √w included.

        A rule without an output factor is replaced by the generalised Gauss–Newton.
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
    """Rows of the linearised network, one per batch, as a reusable iterable; kept in memory up to :data:`HELD`."""
    recomputed, kept, size = _Pass(network, batches), [], 0
    for rows in recomputed:
        size += len(rows.weights) * sum(block.width(rows.outputs.shape[1]) for block in network.blocks)
        if size > HELD:
            return recomputed
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
