"""Specification, warm start and result of the MAP stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from torch import Tensor

from .._data.rows import PreparedData
from .._options.options import Options
from .._runtime.memory import MemoryBudget
from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.likelihoods._base import Likelihood
from ..laplace.mode.problem import Mode
from ..laplace.network.network import Network
from ..laplace.previous import PreviousPosterior
from ..laplace.prior import Prior
from .checkpoint import Checkpoint
from .random_weights import for_rows
from .stream import RowStream

NOISELESS = 0.005
"""Noise variance of standardised targets below which they count as almost free of noise, without gradient training."""
BEGUN_DISPERSION = 0.5
"""Initial φ after a gradient training, in units of the held-out mean squared error."""


@dataclass(frozen=True)
class WarmStart:
    """Warm start: the end state of an earlier training on the same rows, as arrays that the cache compares by value."""

    theta: np.ndarray | None  # (P,), float64; None for a new initialisation
    prior_precision: np.ndarray  # (G,)
    dispersion: float  # φ
    by_evidence: bool = True  # the prior precisions maximise the evidence

    def of_member(self) -> WarmStart:
        """Warm start of a further member: the same hyperparameters, and its own initial weights."""
        return replace(self, theta=None)

    @property
    def hyper(self) -> Hyper:
        return Hyper(torch.from_numpy(self.prior_precision), self.dispersion)


@dataclass(frozen=True)
class Plan:
    """Specification of the MAP stage: its model, its free hyperparameters and its start."""

    likelihood: Likelihood
    prior: Callable[[Network], Prior]
    precision: Tensor | None  # 0-d or one per group; None: selected by the evidence
    dispersion: float | None  # φ; None: selected by update_dispersion
    update_dispersion: Callable[[LaplaceFit, Hyper], Hyper]
    natural_start: bool  # initial precisions are 1 (built-in net), not by fan-in
    memory: MemoryBudget
    previous: PreviousPosterior | None = None  # posterior of earlier rows
    again: Hyper | None = None  # start: hyperparameters of an earlier training on the same rows
    quick: bool = False  # the net is only scored: a few Gauss–Newton steps
    begun: float | None = None  # held-out mean squared error after a gradient training
    is_over: Callable[[], bool] = bool  # never

    @property
    def is_noisy(self) -> bool:
        """True if an earlier training has found a noise variance of ``NOISELESS`` or more."""
        noise = self.begun if self.again is None else self.again.dispersion
        return self.likelihood.has_dispersion and noise is not None and noise >= NOISELESS

    @property
    def first_dispersion(self) -> float:
        """Initial φ of a training that has neither a fixed φ nor the hyperparameters of an earlier training."""
        start = self.likelihood.dispersion_start
        return start if self.begun is None else min(start, BEGUN_DISPERSION * self.begun)

    @property
    def free_dispersion(self) -> bool:
        return self.dispersion is None and self.likelihood.has_dispersion

    def start(self, network: Network, prior: Prior) -> Hyper:
        """Initial hyperparameters: fixed ones, else of a previous posterior, else of an earlier training.

        Otherwise the prior precisions are natural ones, and φ is ``first_dispersion``.
        """
        ones = torch.ones(prior.n_groups, dtype=torch.float64, device=network.theta.device)
        values = ones if self.natural_start else network.natural_precisions(prior)
        dispersion = self.first_dispersion
        if self.again is not None:
            values, dispersion = self.again.prior_precision.to(ones), self.again.dispersion
        if self.previous is not None:
            same = self.previous.fit.prior.names == prior.names
            before, dispersion = self.previous.hyper.prior_precision, self.previous.hyper.dispersion
            values = before if same else before.log().mean().exp() * ones
        if self.precision is not None:
            values = self.precision.to(ones) * ones
        return Hyper(values, dispersion if self.dispersion is None else self.dispersion)

    def update(self, fit: LaplaceFit, hyper: Hyper) -> Hyper:
        """Update φ if it is free; the prior precisions do not change."""
        if not self.free_dispersion:
            return hyper
        return replace(hyper, dispersion=self.update_dispersion(fit, hyper).dispersion)


def other_rows(index: Tensor, n_rows: int) -> Tensor:
    kept = torch.ones(n_rows, dtype=torch.bool, device=index.device)
    kept[index] = False
    return kept.nonzero()[:, 0]


@dataclass(frozen=True)
class MapResult:
    """Result of the MAP stage: a trained net and the hyperparameters of its training."""

    net: NeuralNet  # in eval mode, trimmed for prediction
    mode: Mode  # pass over the data at θ*, hyperparameters, distance to the mode
    history: list[dict[str, object]]  # one entry per epoch of gradient training
    n_steps: int  # epochs, Gauss–Newton steps and L-BFGS steps
    is_small: bool  # too small to benefit from several threads
    input_dtype: torch.dtype
    by_evidence: bool = True  # the prior precisions maximise the evidence

    def warm_start(self) -> WarmStart:
        theta, precision = self.mode.fit.network.theta, self.mode.hyper.prior_precision
        return WarmStart(theta.cpu().numpy(), precision.cpu().numpy(), self.mode.hyper.dispersion, self.by_evidence)

    @property
    def names(self) -> tuple[str, ...]:
        return self.mode.fit.network.parameter_names


@dataclass(frozen=True)
class GivenNet:
    """A net of the user's after its own training, or a frozen one; its curvature is not known yet."""

    net: NeuralNet  # in eval mode, trimmed for prediction
    network: Network  # its trace with the trained weights
    prior: Prior  # groups the prior precisions of all weights
    hyper: Hyper  # start of the posterior's: given precisions, or of natural size
    held_out: Tensor  # (m,), int64, rows that its train_split holds out
    history: list[dict[str, object]]  # one entry per epoch
    is_small: bool
    input_dtype: torch.dtype  # of the network's inputs in the posterior
    key: str = ""  # of the training in a search; empty elsewhere

    @property
    def n_steps(self) -> int:
        """Number of epochs."""
        return len(self.history)

    def warm_start(self) -> WarmStart:
        """No weights: a further member starts anew."""
        return WarmStart(None, self.hyper.prior_precision.cpu().numpy(), self.hyper.dispersion)


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    kind: str  # "regressor" or "classifier"
    parameters: Mapping[str, Any]
    data: PreparedData  # a sample of the table if there is a stream
    seeds: list[int]  # of initial weights; of mini-batches and torch's generator for a user's module
    warm_start: WarmStart | None = None
    is_member: bool = False  # later member: prior precisions of its warm start
    stream: RowStream | None = None
    saved: Checkpoint = field(default_factory=Checkpoint)  # of a killed process

    def options(self, resolved: Options) -> Options:
        return for_rows(resolved, self.kind, self.parameters, self.data.summary())
