"""The noise variance as the mean squared residual of the training rows; too small where the net over-fits."""

from __future__ import annotations

from dataclasses import replace

from ..laplace import Hyper, LaplaceFit


def residual_dispersion(fit: LaplaceFit, hyper: Hyper) -> Hyper:
    """φ = Σ w‖y − f‖² / (N_w C), the maximum-likelihood value at the fit's weights."""
    if not fit.likelihood.has_dispersion:
        return hyper
    value = 2 * fit.nll / (fit.total_weight * fit.n_outputs)
    low, high = fit.likelihood.dispersion_bounds
    return replace(hyper, dispersion=min(max(value, low), high))
