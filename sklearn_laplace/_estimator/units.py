"""Predictions of a fitted regressor in the units of its targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from .._data.target_scale import TargetScale
from .._ensemble.ensemble import Ensemble
from .._options.resolve import variance_of_kind
from ..distributions.transformed import variances_of_kinds
from ..laplace.latent import Components, Predictive


class InUnits:
    """Part of a regressor that converts outputs of its nets to the units of y."""

    _asked: Callable[..., Any]
    _components: Callable[..., Components]
    _ensemble: Ensemble
    _scale: TargetScale
    _single_output: bool

    def _means(self, X: Any) -> torch.Tensor:
        with self._asked(X) as (x, options):
            return self._ensemble.means(x, options)

    def _moments(self, X: Any) -> Components:
        """Mixture with the moments of the targets; transformed targets need all of its components."""
        return self._components(X, merged=not self._scale.transforms)

    def _in_units(self, outputs: torch.Tensor, *, shift: bool = True) -> np.ndarray:
        """Convert outputs (n, C) or (n, C, …) to units of y; without the shift, differences of outputs."""
        shape = -1, *[1] * (outputs.ndim - 2)
        values = outputs.cpu().numpy() * self._scale.scale.reshape(shape)
        values = values + self._scale.mean.reshape(shape) if shift else values
        return values[:, 0] if self._single_output else values

    def _std(self, moments: Predictive, kind: str) -> np.ndarray:
        variance = variance_of_kind(moments, kind)
        std = np.sqrt(variance.clamp_min(0.0).cpu().numpy()) * self._scale.scale
        return std[:, 0] if self._single_output else std

    def _mean_and_stds(self, parts: Components, kinds: Sequence[str]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Mean of the targets and their standard deviations of some kinds, in units of y."""
        if not self._scale.transforms:
            moments = parts.moments
            return self._in_units(moments.mean), [self._std(moments, kind) for kind in kinds]
        latent, noise = (
            self._in_units(variance.clamp_min(0.0).sqrt(), shift=False)
            for variance in (parts.epistemic_variance, parts.aleatoric_variance)
        )
        arrays = self._in_units(parts.mean), latent, noise
        moments = Predictive(
            *map(torch.from_numpy, variances_of_kinds(self._scale.transforms, *arrays, parts.weights.cpu().numpy()))
        )
        return moments.mean.numpy(), [variance_of_kind(moments, kind).clamp_min(0.0).sqrt().numpy() for kind in kinds]

    def _original(self, values: np.ndarray) -> np.ndarray:
        """Transformed targets (n, …) or (n, C, …) in units of y."""
        transforms = self._scale.transforms
        if self._single_output and transforms:
            return transforms[0].inverse(values)
        columns = [transform.inverse(values[:, k]) for k, transform in enumerate(transforms)]
        return np.stack(columns, 1) if transforms else values

    def _covariance(self, X: Any) -> np.ndarray:
        """Joint covariance over the rows, one matrix per output."""
        with self._asked(X) as (x, options):
            covariance = self._ensemble.covariance(x, options).cpu().numpy() * self._scale.squared()
        return covariance[..., 0] if self._single_output else covariance
