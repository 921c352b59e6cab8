r"""The rows of a fit, linearised: outputs, Jacobian products, residuals."""

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
from ..network.linearisation import Linearisation
from ..network.network import Network

HELD = 2**25
"""Elements of Jacobians that are held from pass to pass, 256 MB; beyond, each pass makes them anew."""


@dataclass(frozen=True)
class LinearRows:
    """Rows of the linearised network, in float64.

    Parameters
    ----------
    inputs : Tensor of shape (n, …)
    outputs : Tensor of shape (n, C)
        f* at θ*.
    jacobian : FactoredJacobian with n rows and C columns
    targets : Tensor with n rows
    weights : Tensor of shape (n,)

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> network = trace(torch.nn.Linear(2, 1), torch.zeros(1, 2))
    >>> (rows,) = linear_rows(network, [(torch.ones(3, 2), torch.zeros(3, 1), torch.ones(3))])
    >>> torch.allclose(rows.at(-network.theta), torch.zeros(3, 1).double(), atol=1e-6)
    True
    """

    inputs: Tensor
    outputs: Tensor
    jacobian: FactoredJacobian
    targets: Tensor
    weights: Tensor

    def at(self, shift: Tensor | None) -> Tensor:
        """Outputs f* + J·shift (n, C) for a shift (P,) of the weights."""
        return self.outputs if shift is None else self.outputs + self.jacobian.times(shift[:, None])[..., 0]

    def factor(self, rule: CurvatureRule, likelihood: Likelihood, outputs: Tensor) -> Tensor:
        """S (n, C, K) of a rule at these outputs, at unit dispersion and with √w in it.

        A rule that has no S, because it gives whole matrices, is answered for by the generalised Gauss–Newton's.
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
    """The rows of the linearised network, to be gone through any number of times; held while they are few.

    Parameters
    ----------
    network : Network
    batches : iterable of (inputs, targets, weights)

    Returns
    -------
    iterable of LinearRows, one a batch

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> network = trace(torch.nn.Linear(2, 1), torch.zeros(1, 2))
    >>> batch = (torch.ones(3, 2), torch.zeros(3, 1), torch.ones(3))
    >>> [rows.outputs.shape for rows in linear_rows(network, [batch, batch])]
    [torch.Size([3, 1]), torch.Size([3, 1])]
    """
    every, held, size = _Pass(network, batches), [], 0
    for rows in every:
        size += len(rows.weights) * sum(block.width(rows.outputs.shape[1]) for block in network.blocks)
        if size > HELD:
            return every
        held.append(rows)
    return held


def one_temperature(hyper: Hyper) -> float:
    """The temperature of all weights.

    Raises
    ------
    UnsupportedCombinationError
        Where layers have temperatures of their own.

    Examples
    --------
    >>> import torch
    >>> one_temperature(Hyper(torch.ones(1), temperature=2.0))
    2.0
    """
    if isinstance(hyper.temperature, Tensor):
        raise UnsupportedCombinationError(
            "leave-one-out needs one temperature for all weights, and these have several; give temperature as a number."
        )
    return hyper.temperature


def _as_rows(factor: Tensor) -> FactoredJacobian:
    """The pullback to the outputs themselves: J is the identity, and SᵀJ is Sᵀ."""
    return FactoredJacobian((DenseFactor(factor.mT),))


def _no_hessian(loss: Callable[[Tensor], Tensor]) -> Tensor:
    raise NotImplementedError("rows of outputs have no second derivative.")
