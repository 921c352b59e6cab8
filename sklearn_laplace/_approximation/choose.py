"""Selection of prior precision and noise level of a posterior: by evidence, leave-one-out, or held-out folds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .._data.target_scale import TargetScale
from .._host.rows import TrainingRows
from .._options.options import DISPERSION_RULES, Options
from .._training.random_weights import tempering
from .._validation.values import Choice
from ..laplace.fit import Hyper, LaplaceFit, fit_laplace
from ..laplace.network.network import Network
from ..laplace.prior import Prior
from ..laplace.selection import HeldOutScores, maximise_evidence, warn_at_bounds
from ..laplace.structures import Diag
from .left_out import LeftOut


@dataclass(frozen=True)
class SelectionState:
    """State of the training from which the hyperparameters of a posterior can be selected, repeatedly.

    ``settled_for`` are the options (prior precision, noise level, prior structure) for which the training has already
    maximised the evidence, at the corresponding modes. It is None if the selection follows the training.
    """

    hyper: Hyper  # at the end of the training
    groups: tuple[str, ...]  # names of the prior groups at that time
    tensors: tuple[str, ...]  # names of all trained parameters
    settled_for: tuple[Choice, Choice, str] | None
    scores: HeldOutScores | None = None  # of rows that nets have not been trained on

    def held_out(self, fit: LaplaceFit, hyper: Hyper) -> HeldOutScores | None:
        """Held-out scores; None if rows were added or removed, or if the precisions do not suit the scores."""
        scores = None if fit.shift is not None else self.scores
        return scores if scores is not None and scores.suits(hyper) else None

    def held_out_score(self, fit: LaplaceFit, hyper: Hyper, scale: TargetScale) -> float | None:
        """Mean log density of held-out rows, in nats per row and in units of y; None without their scores."""
        if (scores := self.held_out(fit, hyper)) is None:
            return None
        n_rows = scores.freedom / fit.n_outputs if scores.freedom else fit.total_weight
        return scores.density_of(hyper) / n_rows - scale.log_volume


def _variance(network: Network, prior: Prior, hyper: Hyper, rows: TrainingRows, options: Options) -> Tensor:
    """Marginal variances (P,) of a diagonal posterior over all weights under the training's hyperparameters.

    The posterior's own hyperparameters are not used, because they can be selected again later without the data.
    """
    rule, memory = options.rule, options.memory
    n_columns = rule.n_columns(options.likelihood, rows.n_outputs)
    n_bytes = memory.require(Diag, network, n_columns * len(rows), n_columns, rule)
    chunks = rows.chunks(memory.pass_rows(Diag, network, n_columns, n_bytes))
    fit = fit_laplace(network, options.likelihood, rule, Diag, prior, chunks)
    return fit.posterior(hyper).marginal_variance()


def choose(
    fit: LaplaceFit,
    origin: SelectionState,
    options: Options,
    dispersion: float | None,
    left_out: Callable[[], LeftOut],
) -> Hyper:
    """Select the hyperparameters of a posterior at fixed weights, by the rules that the options specify.

    ``dispersion`` is a fixed φ, or None if it is free. ``left_out`` returns the rows of the fit, and is called only for
    leave-one-out. Issues ``BoundWarning`` if a selected value is at a bound of its search.
    """
    start = _start(origin, fit, options)
    if dispersion is not None:
        start = replace(start, dispersion=dispersion)
    settled = fit.shift is None and origin.settled_for == options.as_trained
    free_prior, free_noise = options.prior_precision.free, options.sigma_noise.free
    by_evidence = options.by_evidence[1]
    if free_noise and not (by_evidence or options.by_loo[1]):
        start = DISPERSION_RULES[options.sigma_noise.rule](fit, start)
    if any(options.by_loo):
        return left_out().chosen(fit, start, options, settled=settled)
    held_out = origin.held_out(fit, start)
    prior_held_out, noise_held_out = options.by_held_out
    if held_out is not None and prior_held_out == free_prior and noise_held_out == free_noise:
        return _by_held_out(held_out, fit, start, options)
    if settled:
        warn_at_bounds(fit, start, free_prior=free_prior, free_dispersion=free_noise)
    elif free_prior or (free_noise and by_evidence):
        # The evidence is maximised at temperature 1; the temperature applies to the selected posterior.
        optimum = maximise_evidence(
            fit, replace(start, temperature=1.0), free_prior=free_prior, free_dispersion=free_noise and by_evidence
        )
        start = replace(optimum, temperature=start.temperature)
    held_out = origin.held_out(fit, start)  # None if the proportions of the precisions have changed
    return start if held_out is None else _by_held_out(held_out, fit, start, options)


def _by_held_out(scores: HeldOutScores, fit: LaplaceFit, start: Hyper, options: Options) -> Hyper:
    prior, noise = options.by_held_out
    hyper = scores.chosen(start, free_prior=prior, free_dispersion=noise)
    warn_at_bounds(fit, hyper, free_prior=False, free_dispersion=noise, what="the density of held-out rows")
    return hyper


def _start(origin: SelectionState, fit: LaplaceFit, options: Options) -> Hyper:
    """Initial hyperparameters of the random weights: fixed prior precisions if given, else those of the training."""
    hyper, prior = origin.hyper, fit.prior
    value = options.prior_precision.value
    if value is None:
        names, values = origin.groups, hyper.prior_precision
    else:
        names = options.grouping.names(fit.network, origin.tensors)
        values = torch.as_tensor(value, dtype=torch.float64).reshape(-1)
        values = values.expand(len(names)) if len(values) == 1 else values
    if prior.names == names or prior.n_groups == len(values) == 1:
        precision = values
    else:
        by_name, default = dict(zip(names, values.tolist(), strict=True)), float(values.log().mean().exp())
        precision = torch.tensor([by_name.get(name, default) for name in prior.names], dtype=torch.float64)
    temperature = tempering(fit.network, options.temperature)
    return Hyper(precision.to(hyper.prior_precision), hyper.dispersion, temperature)
