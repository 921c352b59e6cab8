"""What the fit of an ensemble, or of one of its members, is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from .._data import PreparedData
from .._loo import LeftOut
from .._noise_model import NoiseModel
from .._prior_options import check_left_out
from .._resolve import Options
from .._stages import options_for
from ..laplace import LaplaceFit
from .member import left_out_of, with_noise


@dataclass(frozen=True)
class FitRequest:
    """What the fit of an ensemble or of a member is given.

    Parameters
    ----------
    kind : str
        "regressor" or "classifier".
    parameters : mapping
        The estimator's parameters by name.
    options : Options
        Resolved from them.
    data : PreparedData
    kept : PreparedData or None
        The rows as they were given, for leave-one-out.
    seeds : list of three int
    is_candidate : bool
        Whether the fit is only scored, and does not diagnose itself.
    """

    kind: str
    parameters: Mapping[str, Any]
    options: Options
    data: PreparedData
    kept: PreparedData | None
    seeds: list[int]
    is_candidate: bool = False

    def settled(self) -> Options:
        """The options under the units of these rows."""
        return options_for(self.kind, self.parameters, self.data, self.seeds[2])

    def under_noise(self, noise_model: NoiseModel) -> FitRequest:
        """The request with the noise variances of a model for each row."""
        kept = None if self.kept is None else with_noise(self.kept, noise_model)
        return replace(self, data=with_noise(self.data, noise_model), kept=kept)

    def left_out(
        self, fit: LaplaceFit, input_dtype: torch.dtype, asked: str = "leave-one-out", *, in_order: bool = True
    ) -> LeftOut:
        """The rows of the fit, to be left out one at a time; an error names what needs them."""
        check_left_out(asked, self.parameters["augment"], self.parameters["prior"])
        return left_out_of(self.kept, input_dtype, self.seeds[2], fit, self.options, asked, in_order=in_order)
