"""Resolved options of an estimator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._table.fillings import Fillings
from .._table.limits import MemoryBudget
from .._table.table import Categorical
from .._validation.arguments import Choice
from ..laplace.curvatures._base import CurvatureRule
from ..laplace.evidence import mackay_dispersion, residual_dispersion
from ..laplace.extrapolation import Extrapolation
from ..laplace.likelihoods import NegativeBinomial
from ..laplace.likelihoods._base import Likelihood
from ..laplace.links._base import Link
from ..laplace.predictives._base import PosteriorPredictive
from ..laplace.prior_groups import Grouping
from ..laplace.structures._base import Curvature, WeightSharing
from ..laplace.subsets._base import Subset
from ..laplace.updates import PreviousPosterior

BIASES = {"folded": False, "separate": True}
DAMPINGS = {"exact": False, "ritter": True}
SHARINGS = {sharing.value: sharing for sharing in WeightSharing}


AUTO, EVIDENCE, LOO = "auto", "evidence", "loo"
BY_EVIDENCE = (AUTO, EVIDENCE)
PRIOR_RULES = (AUTO, EVIDENCE, LOO)
DISPERSION_RULES = {**dict.fromkeys((AUTO, EVIDENCE, LOO), mackay_dispersion), "residual": residual_dispersion}
"""Update of the noise level during training, for each rule; "auto" and "loo" select it again after the training."""


def is_number(value: object) -> bool:
    """True if an option is not the name of a rule."""
    return not isinstance(value, str)


def is_auto(value: Any) -> bool:
    """True if an option is "auto"."""
    return isinstance(value, str) and value == AUTO


@dataclass(frozen=True)
class Options:
    """Options of an estimator, resolved to objects."""

    subset: Subset  # weights with a posterior
    rule: CurvatureRule  # contribution of a row to the curvature
    structure: type[Curvature] | None  # storage of the curvature; None if ``limits.automatic_structure`` selects it
    separate_biases: bool  # biases have separate blocks
    weight_sharing: WeightSharing  # for layers that apply their weights at several positions
    rank: int  # number of eigenpairs of low-rank structures
    damped: bool  # predictions use the damped posterior
    likelihood: Likelihood  # distribution of the targets given the outputs
    predictive: type[PosteriorPredictive]  # maps the posterior to the distribution of the outputs
    extrapolates: bool  # the variance grows outside the range of the training rows
    n_samples: int  # weight samples of the predictive, and draws of the link
    link: type[Link] | None  # maps logits to probabilities; None for a regressor
    grouping: Grouping  # weights that share a prior precision
    prior_precision: Choice
    prior_mean: float | dict[str, Tensor]  # one value, or a dict keyed by tensor names
    sigma_noise: Choice
    map_precision: float | None  # fixed prior precision of the training; None for the posterior's
    temperature: float | dict[str, float]  # one value, or a dict keyed by layer or tensor names
    device: torch.device
    dtype: torch.dtype | None  # precision of the net; None if the number of rows selects it
    memory: MemoryBudget  # for the posterior and the rows that are processed
    n_jobs: int | None
    categorical: Categorical
    standardises: bool | None = None  # linear layers of the user's net standardise X; None if X decides
    varying_noise: bool | None = False  # the noise level varies with the inputs; None if the data decide
    previous: PreviousPosterior | None = None  # posterior that is the prior of a fit
    fillings: Fillings | None = None  # values for missing values in predictions, see ``_ensemble.gaps.Filled``
    outside: Extrapolation | None = None  # variance of predictions outside the range of the training rows

    def with_overdispersion(self, alpha: tuple[float, ...]) -> Options:
        """Options with overdispersion ``alpha`` for each output; unchanged if ``alpha`` is ()."""
        return replace(self, likelihood=NegativeBinomial(alpha)) if alpha else self

    def of_structure(self, structure: type[Curvature]) -> dict[str, Any]:
        """Return the arguments of ``structure.zero`` that are options of the structure."""
        values = {"weight_sharing": self.weight_sharing, "rank": self.rank}
        return {name: value for name, value in values.items() if name in structure.takes}

    @property
    def by_evidence(self) -> tuple[bool, bool]:
        """Flags for prior precision and noise level: True if selected by evidence ("auto": without held-out rows)."""
        return self.prior_precision.rule in BY_EVIDENCE, self.sigma_noise.rule in BY_EVIDENCE

    @property
    def by_held_out(self) -> tuple[bool, bool]:
        """Flags for prior precision and noise level: True if selected on held-out rows, if any."""
        no_loo = not any(self.by_loo)
        return no_loo and self.prior_precision.rule == AUTO, no_loo and self.sigma_noise.rule == AUTO

    @property
    def leaves_noise_open(self) -> bool:
        """True if held-out folds would select both prior precision and noise level of a Gaussian likelihood."""
        return all(
            (self.leaves_prior_open, *self.by_held_out, self.likelihood.has_dispersion, self.likelihood.quadratic)
        )

    @property
    def leaves_prior_open(self) -> bool:
        """True if held-out rows select prior precision or noise level, and the training has no fixed precision."""
        return any(self.by_held_out) and self.map_precision is None

    @property
    def by_loo(self) -> tuple[bool, bool]:
        """Flags for prior precision and noise level: True if selected by leave-one-out."""
        return self.prior_precision.rule == LOO, self.sigma_noise.rule == LOO

    @property
    def as_trained(self) -> tuple[Choice, Choice, str]:
        """Prior precision, noise level and grouping during training, where "auto" and "loo" become "evidence"."""
        prior, noise = (
            Choice(None, EVIDENCE) if chosen.rule in (AUTO, LOO) else chosen
            for chosen in (self.prior_precision, self.sigma_noise)
        )
        return prior, noise, self.grouping.each

    @property
    def rechooses_noise(self) -> bool:
        """True if the noise level is selected together with the prior precision, not beforehand."""
        return any((self.by_evidence[1], self.by_loo[1]))


def trained_as(option: str, value: object) -> object:
    """Return an option's value during training, where "loo" becomes "evidence"; "loo" applies afterwards."""
    by_loo = option in ("prior_precision", "sigma_noise") and isinstance(value, str) and value == LOO
    return EVIDENCE if by_loo else value
