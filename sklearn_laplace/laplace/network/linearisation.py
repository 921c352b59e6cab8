"""Outputs of a network and their Jacobian for a batch of inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..jacobian.jacobian import FactoredJacobian


@dataclass(frozen=True)
class Linearisation:
    """Outputs of a network at n inputs, and on request their derivatives with respect to the weights."""

    inputs: Tensor  # (n, …)
    outputs: Tensor  # (n, C)
    pullback: Callable[[Tensor], FactoredJacobian]  # from S (n, C, K) to SᵀJ
    hessian: Callable[[Callable[[Tensor], Tensor]], Tensor]  # from a scalar of the outputs to (P, P)

    def jacobian(self) -> FactoredJacobian:
        """Jacobian of the outputs, K = C."""
        n, n_outputs = self.outputs.shape
        identity = torch.eye(n_outputs, dtype=self.outputs.dtype, device=self.outputs.device)
        return self.pullback(identity.expand(n, n_outputs, n_outputs))

    def moved(self, shift: Tensor) -> Linearisation:
        """Linearised network at θ* + shift, shift of shape (P,): outputs f + J·shift and the same derivatives."""
        change = self.jacobian().times(shift[:, None])[..., 0]
        return replace(self, outputs=self.outputs + change.to(self.outputs.dtype))
