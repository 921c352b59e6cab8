"""Request of a fit, and specification, warm start and results of the MAP stage (training to the mode).

A single row determines neither prior precision nor noise level. A net can interpolate the row, so the posterior
predictive is improper without a prior on the noise level. Therefore, for a single row, the prior precision is 1. The
noise level is the size of the target, or follows from known noise variances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from torch import Tensor

from .._table.limits import automatic_structure
from .._table.rows import FEWEST_ROWS, PreparedData, TargetScale
from .._validation.arguments import Choice
from ..laplace.fit import Hyper, LaplaceFit, TrainingRows
from ..laplace.likelihoods._base import Likelihood
from ..laplace.mode.problem import Mode
from ..laplace.network.network import Network
from ..laplace.prior import Prior
from ..laplace.prior_groups import listed, prior_mean, temperatures
from ..laplace.selection import HeldOutScores
from ..laplace.structures._base import Curvature
from ..laplace.subsets import Scored
from ..laplace.updates import PreviousPosterior
from ..options.prior import check_previous, check_temperature, previous_of
from ..options.resolve import likelihood_of, resolve
from ..options.resolved import DISPERSION_RULES, Options
from ..options.training import check_device
from .batches import RowStream
from .checkpoint import Checkpoint
from .progress import Task


def fixed_dispersion(options: Options, scale: TargetScale) -> float | None:
    """Fixed ``sigma_noise`` as φ in the network's units; None if a rule selects it."""
    sigma = options.sigma_noise.value
    return None if sigma is None else scale.dispersion(sigma)


def posterior_layout(
    everything: Network, rows: TrainingRows, options: Options
) -> tuple[Network, type[Curvature], int, int]:
    """Network restricted to the weights with a posterior, its structure, dual dimension M, and bytes of the structure.

    M is the number of rows times the number of columns of the output factor S (``laplace/jacobian/jacobian.py``). The
    bytes include those of a previous posterior. Biases have separate blocks in the network if the options request it.
    """
    laid_out = everything.with_separate_biases() if options.separate_biases else everything
    network, rule, memory = options.subset.of(laid_out, rows.inputs), options.rule, options.memory
    n_columns = rule.n_columns(options.likelihood, rows.n_outputs)
    n_dual = len(rows) * n_columns
    grouped(network, everything.parameter_names, options)
    structure = options.structure or automatic_structure(
        network.blocks,
        n_dual,
        len(rows),
        rule.provides & options.subset.provides,
        options.grouping.unit,
        lambda structure: memory.fits(structure, network, n_dual, n_columns),
    )
    check_temperature(structure, network.blocks, tempering(network, options.temperature), damped=options.damped)
    n_previous = 0 if options.previous is None else options.previous.dual_rows(n_columns)
    settings = options.of_structure(structure)
    n_bytes = memory.require(structure, network, n_dual + n_previous, n_columns, rule, **settings)
    return network, structure, n_dual, n_bytes


def grouped(network: Network, names: tuple[str, ...], options: Options) -> Prior:
    """Prior of weights with a posterior. Given precisions are checked against the groups of tensors in ``names``."""
    value, grouping, mean = options.prior_precision.value, options.grouping, options.prior_mean
    if value is not None and value.size > 1 and value.size != len(groups := grouping.names(network, names)):
        raise ValueError(
            f"prior_precision has {value.size} entries; expected 1 (scalar) or {len(groups)} (one per "
            f"{grouping.each}: {listed(groups)})."
        )
    prior = grouping.prior(network)
    if isinstance(mean, dict):
        return replace(prior, mean=prior_mean(network, mean))
    return replace(prior, mean=torch.full_like(network.theta, mean)) if mean else prior


def tempering(network: Network, temperature: float | Mapping[str, float]) -> float | Tensor:
    """Return the common temperature, or for a mapping, a tensor with the temperature of each random weight."""
    return temperature if isinstance(temperature, float) else temperatures(network, temperature)


def fixed_for_one_row(options: Options, total_weight: float, scale: TargetScale) -> Options:
    """Replace selection rules with fixed values if the total weight of the rows is too small for a selection.

    The likelihood in ``options`` must be scaled to the targets.
    """
    if total_weight >= FEWEST_ROWS or not options.likelihood.has_dispersion:
        return options
    size = (
        np.ones_like(scale.scale)
        if scale.noisy_rows
        else math.sqrt(options.likelihood.dispersion_start) * scale.unit_noise
    )
    prior, noise = (
        Choice(value, "") if chosen.free else chosen
        for chosen, value in ((options.prior_precision, np.ones(())), (options.sigma_noise, size))
    )
    return replace(options, prior_precision=prior, sigma_noise=noise, varying_noise=False)


NOISELESS = 0.005
"""Noise variance of standardised targets below which they are almost noise-free and gradient training is discarded."""
BEGUN_DISPERSION = 0.5
"""Initial φ after gradient training, in units of the held-out mean squared error."""


@dataclass(frozen=True)
class WarmStart:
    """Warm start: the end state of an earlier training run on the same rows, as arrays that the cache can compare."""

    theta: np.ndarray | None  # (P,), float64; None for a new initialisation
    prior_precision: np.ndarray  # (G,)
    dispersion: float  # φ
    by_evidence: bool = True  # the prior precisions maximise the evidence

    @property
    def hyper(self) -> Hyper:
        return Hyper(torch.from_numpy(self.prior_precision), self.dispersion)


@dataclass(frozen=True)
class Plan:
    """Specification of the MAP stage: its model, its free hyperparameters and its start."""

    options: Options  # in the units of the rows
    precision: Tensor | None  # 0-d or one per group; None: selected by the evidence
    dispersion: float | None  # φ; None: selected by the rule of the options
    natural_start: bool  # initial precisions are 1 (built-in net), not by fan-in
    again: Hyper | None = None  # start: hyperparameters of an earlier training run on the same rows
    quick: bool = False  # the net is only scored: a few Gauss–Newton steps
    begun: float | None = None  # held-out mean squared error after gradient training
    is_over: Callable[[], bool] = bool  # by default never

    @property
    def likelihood(self) -> Likelihood:
        return self.options.likelihood

    @property
    def previous(self) -> PreviousPosterior | None:
        """Posterior of earlier rows."""
        return self.options.previous

    def prior(self, network: Network) -> Prior:
        """Prior with a single precision if ``map_prior_precision`` is fixed, else with the posterior's groups."""
        prior = grouped(network, network.parameter_names, self.options)
        return prior if self.options.map_precision is None else replace(network.scalar_prior(), mean=prior.mean)

    @property
    def is_noisy(self) -> bool:
        """True if an earlier run has found a noise variance of ``NOISELESS`` or more."""
        noise = self.begun if self.again is None else self.again.dispersion
        return self.likelihood.has_dispersion and noise is not None and noise >= NOISELESS

    @property
    def first_dispersion(self) -> float:
        """Initial φ if it is neither fixed nor among the hyperparameters of an earlier run."""
        start = self.likelihood.dispersion_start
        return start if self.begun is None else min(start, BEGUN_DISPERSION * self.begun)

    @property
    def free_dispersion(self) -> bool:
        return self.dispersion is None and self.likelihood.has_dispersion

    def start(self, network: Network, prior: Prior) -> Hyper:
        """Initial hyperparameters: fixed or natural ones, or those of a previous posterior or earlier run."""
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
        """Return ``hyper`` with φ updated if it is free."""
        rule = DISPERSION_RULES.get(self.options.sigma_noise.rule)
        if not self.free_dispersion or rule is None:
            return hyper
        return replace(hyper, dispersion=rule(fit, hyper).dispersion)


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


@dataclass(frozen=True)
class GivenNet:
    """The user's net after its own training loop, or a frozen one, without a curvature."""

    net: NeuralNet  # in eval mode, trimmed for prediction
    network: Network  # its trace with the trained weights
    prior: Prior  # groups the prior precisions of all weights
    hyper: Hyper  # initial hyperparameters of the posterior: given precisions, or of natural size
    held_out: Tensor  # (m,), int64, rows that its train_split holds out
    history: list[dict[str, object]]  # one entry per epoch
    is_small: bool
    input_dtype: torch.dtype  # of the network's inputs in the posterior
    key: str = ""  # cache key of the training in a search; otherwise empty

    @property
    def n_steps(self) -> int:
        """Number of epochs."""
        return len(self.history)

    def warm_start(self) -> WarmStart:
        """Warm start without weights: further members start from their own."""
        return WarmStart(None, self.hyper.prior_precision.cpu().numpy(), self.hyper.dispersion)


@dataclass(frozen=True)
class SelectionState:
    """Results of a training that are needed to select the hyperparameters of a posterior."""

    hyper: Hyper  # at the end of the training
    groups: tuple[str, ...]  # names of the prior groups at that time
    tensors: tuple[str, ...]  # names of all trained parameters
    settled_for: tuple[Choice, Choice, str] | None  # options whose evidence the training has maximised, if any
    scores: HeldOutScores | None = None  # of rows that nets have not been trained on

    def held_out(self, fit: LaplaceFit, hyper: Hyper) -> HeldOutScores | None:
        """Held-out scores; None if rows were added or removed, or if the scores do not apply to ``hyper``."""
        scores = None if fit.shift is not None else self.scores
        return scores if scores is not None and scores.suits(hyper) else None

    def held_out_score(self, fit: LaplaceFit, hyper: Hyper, scale: TargetScale) -> float | None:
        """Mean log density of held-out rows, in nats per row and in units of y; None without their scores."""
        if (scores := self.held_out(fit, hyper)) is None:
            return None
        return scores.density_of(hyper) / scores.total_weight - scale.log_volume


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """Rows, options and seeds of a fit, or of one of its nets."""

    kind: str  # "regressor" or "classifier"
    parameters: Mapping[str, Any]
    resolved: Options  # of the parameters, in the units of y
    data: PreparedData  # a sample of the table if there is a stream
    kept: PreparedData | None  # unmerged rows in the user's order, for leave-one-out
    seeds: list[int]  # of initial weights; of mini-batches and torch's generator (user's module); of the posterior
    warm_start: WarmStart | None = None
    is_member: bool = False  # a member after the first, with the prior precisions of its warm start
    stream: RowStream | None = None
    saved: Checkpoint = field(default_factory=Checkpoint)  # state of a killed process

    @classmethod
    def of(
        cls,
        kind: str,
        parameters: Mapping[str, Any],
        resolved: Options,
        data: PreparedData,
        seeds: list[int],
        *,
        stream: RowStream | None,
        saved: Checkpoint,
    ) -> FitRequest:
        """Request for prepared rows; ``kept`` holds a copy in which equal rows are not merged."""
        return cls(
            kind=kind,
            parameters=parameters,
            resolved=resolved,
            data=replace(data, unmerged=None),
            kept=data.unmerged,
            seeds=seeds,
            stream=stream,
            saved=saved,
        )

    def with_parameters(self, parameters: Mapping[str, Any]) -> FitRequest:
        """Request with other parameters. They are resolved unless they are the same mapping as before."""
        if parameters is self.parameters:
            return self
        return replace(self, parameters=parameters, resolved=resolve(self.kind, parameters))

    def options_for_rows(self) -> Options:
        """Options in the network's target units; for a single row, with fixed values in place of selection rules."""
        resolved, data, seed = self.resolved, self.data, self.seeds[2]
        single_logit = data.targets.ndim == 1 and data.n_outputs == 1
        options = replace(
            resolved,
            likelihood=likelihood_of(self.kind, self.parameters, single_logit=single_logit),
            rule=resolved.rule.sampling(self.parameters["n_fisher_samples"], seed),
            subset=replace(resolved.subset, seed=seed) if isinstance(resolved.subset, Scored) else resolved.subset,
        )
        check_device(options.device)
        previous = previous_of(self.parameters["prior"])
        if previous is not None:
            check_previous(options, self.parameters, previous.fit)
            fit, mean = previous.fit, previous.fit.prior.mean
            options = replace(options, previous=previous, structure=type(fit.curvature), likelihood=fit.likelihood)
            if mean is not None and options.prior_mean == 0.0:  # the prior counts once, with the previous fit's mean
                return replace(options, prior_mean=fit.network.tensors(mean))
            return options
        likelihood = options.likelihood.scaled_to(data.mean_variance, data.average_noise)
        return fixed_for_one_row(replace(options, likelihood=likelihood), data.total_weight, data.scale)

    def under_noise(self, ratios_of: Callable[[np.ndarray], np.ndarray]) -> FitRequest:
        """Request with noise variances (n, C) of the rows, up to a factor; ``ratios_of`` maps inputs (n, d) to them."""
        kept = None if self.kept is None else self.kept.under_noise(ratios_of(self.kept.X))
        return replace(self, data=self.data.under_noise(ratios_of(self.data.X)), kept=kept)

    def with_overdispersion(self, alpha: tuple[float, ...]) -> FitRequest:
        return replace(self, parameters={**self.parameters, "overdispersion": alpha})

    def without_held_out(self, trained: MapResult | GivenNet) -> FitRequest:
        """Request with weight zero for the stored rows held out from the training of a user's net."""
        if not isinstance(trained, GivenNet) or not len(trained.held_out) or self.kept is None:
            return self
        weights = self.kept.weights.copy()
        present = np.flatnonzero(weights > 0)
        if len(present) != len(self.data.X):  # already done
            return self
        weights[present[trained.held_out.cpu().numpy()]] = 0.0
        return replace(self, kept=replace(self.kept, weights=weights))


def planned(request: FitRequest, task: Task) -> tuple[TrainingRows, Plan]:
    options, data, start = request.options_for_rows(), request.data, request.warm_start
    is_ours = request.parameters["net"] is None
    rows = data.training_rows(options.dtype, options.device, built_in=is_ours)
    fixed_noise = options.map_precision is not None
    plan = Plan(
        options,
        _map_precision(options, request),
        options.likelihood.dispersion_start if fixed_noise else fixed_dispersion(options, data.scale),
        natural_start=is_ours,
        again=None if start is None else start.hyper,
        is_over=task.clock.is_over,
    )
    return rows, plan


def _map_precision(options: Options, request: FitRequest) -> Tensor | None:
    """Fixed prior precisions of the training; None if they are selected by the evidence."""
    if request.is_member and request.warm_start is not None:  # precisions of the first member
        return request.warm_start.hyper.prior_precision
    if options.map_precision is not None:
        return torch.tensor(options.map_precision, dtype=torch.float64)
    value = options.prior_precision.value
    return None if value is None else torch.as_tensor(value)
