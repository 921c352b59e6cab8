"""The resolved options of an estimator, as objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._data.table import Categorical
from .._runtime.memory import MemoryBudget
from .._validation.values import Choice
from ..laplace.curvatures._base import CurvatureRule
from ..laplace.evidence import mackay_dispersion, residual_dispersion
from ..laplace.likelihoods._base import Likelihood
from ..laplace.links._base import Link
from ..laplace.predictives._base import PosteriorPredictive
from ..laplace.previous import PreviousPosterior
from ..laplace.prior_groups import Grouping
from ..laplace.structures._base import Curvature
from ..laplace.subsets._base import Subset
from .structure import StructureOptions

AUTO, EVIDENCE, LOO = "auto", "evidence", "loo"
BY_EVIDENCE = (AUTO, EVIDENCE)
PRIOR_RULES = (AUTO, EVIDENCE, LOO, "cv", "validation")
DISPERSION_RULES = {**dict.fromkeys((AUTO, EVIDENCE, LOO), mackay_dispersion), "residual": residual_dispersion}
"""What the training goes by; afterwards the rows that were left out have the last word."""


def is_number(value: object) -> bool:
    """Return True if an option is a number instead of a rule.

    Examples
    --------
    >>> is_number(1.0), is_number("same")
    (True, False)
    """
    return not isinstance(value, str)


def is_auto(value: Any) -> bool:
    """Whether an option is left to the data."""
    return isinstance(value, str) and value == AUTO


@dataclass(frozen=True)
class Options:
    """An estimator's options as objects.

    Parameters
    ----------
    subset : Subset
    rule : CurvatureRule
    structure : Curvature class or None
        None: chosen by :func:`~sklearn_laplace._runtime.budget.automatic_structure`.
    structure_options : StructureOptions
    likelihood : Likelihood
    predictive : PosteriorPredictive class
    n_samples : int
        Weight samples of the predictive, and draws of the link.
    link : Link class or None
    grouping : Grouping
        Which weights share a prior precision.
    prior_precision, sigma_noise : Choice
    prior_mean : float or dict of str to Tensor
        One for all weights, or those of some tensors.
    map_precision : float or None
        A fixed prior precision of the training; None: the posterior's own.
    temperature : float or dict of str to float
        One for all weights, or those of some layers or tensors.
    device : torch.device
    dtype : torch.dtype or None
        None: chosen by the number of rows.
    memory : MemoryBudget
    n_jobs : int or None
    categorical : Categorical
        Which columns are.
    varying_noise : bool or None
        Whether the noise varies with the inputs; None: where it does.
    previous : PreviousPosterior or None
        The prior of these rows, while they are fitted.
    """

    subset: Subset
    rule: CurvatureRule
    structure: type[Curvature] | None
    structure_options: StructureOptions
    likelihood: Likelihood
    predictive: type[PosteriorPredictive]
    n_samples: int
    link: type[Link] | None
    grouping: Grouping
    prior_precision: Choice
    prior_mean: float | dict[str, Tensor]
    sigma_noise: Choice
    map_precision: float | None
    temperature: float | dict[str, float]
    device: torch.device
    dtype: torch.dtype | None
    memory: MemoryBudget
    n_jobs: int | None
    categorical: Categorical
    varying_noise: bool | None = False
    previous: PreviousPosterior | None = None

    @property
    def by_evidence(self) -> tuple[bool, bool]:
        """Whether prior precision and noise are each chosen by the evidence, where nothing better is known."""
        return self.prior_precision.rule in BY_EVIDENCE, self.sigma_noise.rule in BY_EVIDENCE

    @property
    def by_held_out(self) -> tuple[bool, bool]:
        """Whether prior precision and noise are each chosen by held-out rows, where there are nets without them."""
        alone = not any(self.by_loo)
        return alone and self.prior_precision.rule == AUTO, alone and self.sigma_noise.rule == AUTO

    @property
    def leaves_noise_open(self) -> bool:
        """Whether rows that were held out choose the prior and a normal noise."""
        return all((self.cross_fits, *self.by_held_out, self.likelihood.has_dispersion, self.likelihood.quadratic))

    @property
    def cross_fits(self) -> bool:
        """Whether nets without a part of the rows each would serve."""
        return any(self.by_held_out) and self.map_precision is None

    @property
    def by_loo(self) -> tuple[bool, bool]:
        """Whether prior precision and noise are each chosen by leave-one-out."""
        return self.prior_precision.rule == LOO, self.sigma_noise.rule == LOO

    @property
    def as_trained(self) -> tuple[Choice, Choice, str]:
        """What the training makes of the choice of prior precision and noise, and of what shares a precision."""
        prior, noise = (
            Choice(None, EVIDENCE) if chosen.rule in (AUTO, LOO) else chosen
            for chosen in (self.prior_precision, self.sigma_noise)
        )
        return prior, noise, self.grouping.each

    @property
    def rechooses_noise(self) -> bool:
        """Whether the noise is chosen with the prior precision, and not beforehand."""
        return any((self.by_evidence[1], self.by_loo[1]))


def trained_as(option: str, value: object) -> object:
    """What the training makes of an option: a choice by leave-one-out comes after it, and it goes by the evidence.

    Examples
    --------
    >>> trained_as("prior_precision", "loo"), trained_as("lr", 0.1)
    ('evidence', 0.1)
    """
    chosen = option in ("prior_precision", "sigma_noise") and isinstance(value, str) and value == LOO
    return EVIDENCE if chosen else value
