"""Correlations between the targets of a row, for intervals that hold jointly.

The correlation of the outputs is that of the posterior. The noise is independent in the Gaussian likelihood, since its
correlation does not affect the means. It is estimated here, from standardised residuals of the training rows.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from .._options.options import Options
from ..laplace.latent import Components, LatentGaussian
from .ensemble import Ensemble
from .member import Member

MOST_ROWS = 2_000
"""Maximum number of training rows from which the correlation of the noise is estimated, evenly spaced."""
CHUNK = 2**22
"""Maximum number of elements of the correlation matrices of a chunk of rows."""


def noise_correlation(ensemble: Ensemble, options: Options) -> Tensor:
    """Correlation of the noise between targets (C, C); the identity if the training rows are not stored."""
    kept, member = ensemble.first.kept, ensemble.first
    if kept is None:
        return torch.eye(member.fit.n_outputs, dtype=torch.float64)
    step = -(-len(kept.X) // MOST_ROWS)
    x = torch.tensor(kept.X[::step], dtype=member.input_dtype, device=member.posterior.device)
    moments = ensemble.components(x, options).moments
    targets, weights = (torch.from_numpy(part[::step].copy()).to(moments.mean) for part in (kept.targets, kept.weights))
    residuals = (targets - moments.mean) / moments.total_variance.sqrt().clamp_min(1e-150)
    products = (weights[:, None] * residuals).mT @ residuals
    sizes = products.diagonal().sqrt()
    known = (sizes[:, None] > 0) & (sizes > 0)
    correlation = torch.where(known, products / (sizes[:, None] * sizes), 0.0)
    return correlation.fill_diagonal_(1.0).cpu()


def correlations(ensemble: Ensemble, x: Tensor, options: Options, of_noise: Tensor) -> np.ndarray:
    """Correlations (n, J, C, C) between the targets of rows x (n, d) for J components; ``of_noise`` is (C, C)."""
    parts = []
    for member in ensemble.members:
        answers = member.answers(x, options, partial(_moments, member))
        components = Components.of_rows([moments for moments, _ in answers])
        noise = components.aleatoric_variance.clamp_min(0.0).sqrt().movedim(-1, 1)  # (n, J, C)
        covariance = torch.cat([part for _, part in answers])[:, None] + of_noise.to(noise) * (
            noise[..., None] * noise[..., None, :]
        )
        scale = covariance.diagonal(dim1=-2, dim2=-1).sqrt().clamp_min(1e-150)
        parts.append(covariance / (scale[..., None] * scale[..., None, :]))
    return torch.cat(parts, 1).cpu().numpy()


def _moments(member: Member, latent: LatentGaussian, x: Tensor) -> tuple[Components, Tensor]:
    """Moments of the targets, and covariance of the outputs (n, C, C)."""
    return member.targets(latent, x, None), latent.covariance


def chunk_rows(ensemble: Ensemble, n_components: int) -> int:
    return max(CHUNK // (n_components * ensemble.first.fit.n_outputs**2), 1)
