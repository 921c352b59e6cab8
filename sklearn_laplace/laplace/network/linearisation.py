"""Outputs of a network and their Jacobian for a batch of inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..jacobian.jacobian import FactoredJacobian


@dataclass(frozen=True)
class Linearisation:
    """Outputs of a network at n inputs, and on request their derivatives with respect to the weights.

    Parameters
    ----------
    inputs : Tensor of shape (n, …)
    outputs : Tensor of shape (n, C)
    pullback : callable
        Maps output factors S (n, C, K) to the :class:`FactoredJacobian` SᵀJ.
    hessian : callable
        Maps a scalar function of the outputs to its Hessian (P, P) with respect to the weights, float64.
    """

    inputs: Tensor
    outputs: Tensor
    pullback: Callable[[Tensor], FactoredJacobian]
    hessian: Callable[[Callable[[Tensor], Tensor]], Tensor]

    def jacobian(self) -> FactoredJacobian:
        """Jacobian of the outputs, K = C."""
        n, n_outputs = self.outputs.shape
        identity = torch.eye(n_outputs, dtype=self.outputs.dtype, device=self.outputs.device)
        return self.pullback(identity.expand(n, n_outputs, n_outputs))

    def moved(self, shift: Tensor) -> Linearisation:
        """Linearised network at θ* + shift, shift of shape (P,): outputs f + J·shift and the same derivatives."""
        change = self.jacobian().times(shift[:, None])[..., 0]
        return replace(self, outputs=self.outputs + change.to(self.outputs.dtype))
