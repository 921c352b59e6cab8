"""Outputs of a network and their Jacobian at a batch of inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..jacobian.jacobian import FactoredJacobian


@dataclass(frozen=True)
class Linearisation:
    """The network at n inputs: its outputs, and their derivatives in the weights when asked.

    Parameters
    ----------
    inputs : Tensor of shape (n, …)
    outputs : Tensor of shape (n, C)
    pullback : callable
        From output factors S (n, C, K) to the :class:`FactoredJacobian` SᵀJ.
    hessian : callable
        From a scalar function of the outputs to its second derivative (P, P) in the weights, float64.
    """

    inputs: Tensor
    outputs: Tensor
    pullback: Callable[[Tensor], FactoredJacobian]
    hessian: Callable[[Callable[[Tensor], Tensor]], Tensor]

    def jacobian(self) -> FactoredJacobian:
        """The Jacobian of each output, K = C."""
        n, n_outputs = self.outputs.shape
        identity = torch.eye(n_outputs, dtype=self.outputs.dtype, device=self.outputs.device)
        return self.pullback(identity.expand(n, n_outputs, n_outputs))

    def moved(self, shift: Tensor) -> Linearisation:
        """The linearised network at θ* + shift: outputs f + J·shift, for shift of shape (P,); the same derivatives."""
        change = self.jacobian().times(shift[:, None])[..., 0]
        return replace(self, outputs=self.outputs + change.to(self.outputs.dtype))
