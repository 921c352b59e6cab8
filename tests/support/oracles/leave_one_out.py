"""Leave-one-out predictions by refitting."""

from __future__ import annotations

import torch
from torch import Tensor

from .posteriors import linearised_map


def leave_one_out_refits(
    kind: str,
    f: Tensor,
    J: Tensor,
    y: Tensor,
    weights: Tensor,
    theta: Tensor,
    delta: float | Tensor,
    noise_variance: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Mean (n, C) and covariance (n, C, C) of each row's outputs, by n refits of the linearised net without the row."""
    means, covariances = [], []
    for n in range(len(f)):
        without = weights.clone()
        without[n] = 0.0
        t, precision = linearised_map(kind, f, J, y, without, theta, delta, noise_variance)
        means.append(f[n] + J[n] @ (t - theta))
        covariances.append(J[n] @ torch.linalg.solve(precision, J[n].T))
    return torch.stack(means), torch.stack(covariances)
