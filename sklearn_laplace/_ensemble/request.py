"""Request for the fit of an ensemble or of a member: rows, options and seeds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from .._approximation.left_out import LeftOut, left_out_of
from .._approximation.noise_model import NoiseModel
from .._approximation.target_noise import TargetNoise
from .._data.rows import PreparedData
from .._options.options import Options
from .._options.prior import check_left_out
from .._training.plan import GivenNet, MapResult, TrainingRequest
from .._training.random_weights import for_rows
from ..laplace.fit import LaplaceFit


@dataclass(frozen=True, kw_only=True)
class FitRequest(TrainingRequest):
    """Training request with three seeds, and with the options and rows of the posterior."""

    resolved: Options  # in the units of y
    kept: PreparedData | None  # unmerged rows in the user's order, for leave-one-out

    @property
    def training(self) -> TrainingRequest:
        """Request for the training alone, which is the key of the cache."""
        shared = {field.name: getattr(self, field.name) for field in fields(TrainingRequest)}
        return TrainingRequest(**{**shared, "seeds": list(self.seeds[:2])})

    def options_for_rows(self) -> Options:
        """Resolved options in the units of these rows."""
        return for_rows(self.resolved, self.kind, self.parameters, self.data.summary(), self.seeds[2])

    def under_noise(self, noise_model: NoiseModel | TargetNoise) -> FitRequest:
        kept = None if self.kept is None else self.kept.under_noise(noise_model.ratios_of(self.kept.X))
        return replace(self, data=self.data.under_noise(noise_model.ratios_of(self.data.X)), kept=kept)

    def with_overdispersion(self, alpha: tuple[float, ...]) -> FitRequest:
        return replace(self, parameters={**self.parameters, "overdispersion": alpha})

    def without_held_out(self, trained: MapResult | GivenNet) -> FitRequest:
        """Set the weights of the stored rows to zero that a given net has held out from its training."""
        if not isinstance(trained, GivenNet) or not len(trained.held_out) or self.kept is None:
            return self
        weights = self.kept.weights.copy()
        present = np.flatnonzero(weights > 0)
        if len(present) != len(self.data.X):  # already done
            return self
        weights[present[trained.held_out.cpu().numpy()]] = 0.0
        return replace(self, kept=replace(self.kept, weights=weights))

    def left_out(
        self, fit: LaplaceFit, input_dtype: torch.dtype, needed_by: str = "leave-one-out", *, in_order: bool = True
    ) -> LeftOut:
        """Stored rows for leave-one-out; ``needed_by`` names the option or method that needs them in an error."""
        check_left_out(needed_by, self.parameters)
        return left_out_of(self.kept, input_dtype, self.seeds[2], fit, self.resolved, needed_by, in_order=in_order)
