"""Diagnosis of a fitted ensemble, once for each fit: at most one warning about its intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from .._approximation.diagnosis import FAR_FROM_MODE, LEVEL, Findings, Fresh, Vitals, explained_by_a_line, single_row
from .._approximation.left_out import left_out_of
from .._approximation.validation_scores import ValidationScores
from .._data.known_noise import FEWEST_ROWS
from .._data.rows import PreparedData, canonical_rows
from .._options.few_rows import told_by_rows
from .._options.options import Options
from .._runtime.threads import single_thread
from .._warn import warn_user
from ..errors import InterpolationWarning, MemoryBudgetError, WeakPriorWarning
from ..laplace.likelihoods._base import without_noise
from .ensemble import Ensemble
from .member import Member

WIDER_THAN_ERRORS = 1.5
"""Factor of the held-out errors of a given net above which wide intervals are due to its prior."""
NARROWER_THAN_ERRORS = 0.5
"""Factor of these errors below which intervals are too narrow."""


def diagnose(ensemble: Ensemble, options: Options) -> None:
    """Warn if the intervals of an ensemble are wrong on fresh rows; at most one warning is issued.

    There is none at a temperature other than 1, which is a choice of the user, and none for members that were trained
    together, because held-out rows calibrate their mixture. ``options`` are in the units of y.

    ``PinnedWarning``: predictions are constant and a linear model explains more, or a given prior is so strong that the
    data hardly influence the posterior. ``InterpolationWarning``: the intervals are too narrow because the residuals do
    not determine the noise level, or there is a single row. ``WeakPriorWarning``: the prior is so weak that intervals
    are much wider than the spread of the targets. ``ModeWarning``: the weights are far from a mode, and the intervals
    too narrow or not known to be right.
    """
    first = ensemble.first
    is_tempered = isinstance(first.hyper.temperature, Tensor) or first.hyper.temperature != 1.0
    if is_tempered or any(member.unseen is not None and not member.is_given for member in ensemble.members):
        return
    noise_is_free = options.sigma_noise.free and first.fit.likelihood.has_dispersion
    if noise_is_free and first.fit.total_weight < FEWEST_ROWS:
        warn_user(single_row(first.fit.total_weight), InterpolationWarning)
        return
    with single_thread(first.is_small):
        found = _of_given(first) or _findings(ensemble, options).warning()
    if found is not None:
        warn_user(*found)


def _of_given(first: Member) -> tuple[str, type[UserWarning]] | None:
    """Warning of intervals of a given net that are wider than a constant prediction's, or narrower than its errors."""
    scores = first.origin.held_out(first.fit, first.hyper)
    if not isinstance(scores, ValidationScores) or not scores.freedom:
        return None
    width, error = scores.width(first.hyper), math.sqrt(scores.level / scores.spread)
    # A net whose errors are that large has wide intervals for another reason than its prior.
    if width > max(1.0, WIDER_THAN_ERRORS * error):
        return (
            f"the prior is too weak: for rows outside the training, the predictive standard deviation is {width:.2g} "
            "times that of a constant prediction. Use a prior_precision above "
            f"{first.hyper.prior_precision.max():.2g}, or prior_precision='auto'.",
            WeakPriorWarning,
        )
    if width < NARROWER_THAN_ERRORS * error:
        return (
            f"the intervals are too narrow: for rows outside the training, the predictive standard deviation is "
            f"{width / error:.2g} times the root mean squared error. Use sigma_noise='auto'.",
            InterpolationWarning,
        )
    return None


def _findings(ensemble: Ensemble, options: Options) -> Findings:
    first = ensemble.first
    evidence = first.log_evidence + first.fit.total_weight * first.scale.log_volume
    settled = told_by_rows(replace(options, likelihood=first.fit.likelihood), first.fit.total_weight, first.scale)
    scores, (prior, noise) = first.origin.held_out(first.fit, first.hyper), settled.by_held_out
    noise = noise or not first.fit.likelihood.has_dispersion
    by_held_out = prior and scores is not None
    calibrated = (by_held_out and noise) or isinstance(scores, ValidationScores)
    n_different = None if calibrated else _n_different(first)
    vitals = Vitals.of(first.fit, first.hyper, first.n_effective_parameters, evidence, n_different)
    # The weights of a given net are those of its user.
    trained = [member for member in ensemble.members if member.n_steps > 0 and not member.is_given]
    distances = [0.0, *(member.mode_distance / max(member.n_effective_parameters, 1.0) ** 0.5 for member in trained)]
    wanted = vitals.is_suspicious or (max(distances) > FAR_FROM_MODE and vitals.exact)
    return Findings(
        vitals,
        chosen=options.prior_precision.free,
        free_noise=options.sigma_noise.free,
        has_mean=first.fit.prior.mean is not None,
        calibrated=calibrated,
        weak_training=options.map_precision is None and first.n_steps > 0 and not (by_held_out or options.by_loo[0]),
        distance=max(distances),
        fresh=lambda: _fresh(ensemble, options, wanted=wanted),
        explained=lambda: _explained(first),
    )


def _n_different(member: Member) -> float | None:
    """Number of different rows; None if the rows are not stored."""
    return None if member.kept is None or member.fit.shift is not None else float(member.kept.n_different)


def _explained(member: Member) -> float | None:
    if member.kept is None:
        return None
    rows = _merged(member.kept)
    return explained_by_a_line(rows.X, rows.targets, rows.weights)


def _fresh(ensemble: Ensemble, options: Options, *, wanted: bool) -> Fresh | None:
    """Intervals of the rows of cross-fitted nets, else of left-out rows under the mixture if they are wanted."""
    first = ensemble.first
    cross, is_normal = first.origin.cross, first.fit.likelihood.has_dispersion and first.fit.likelihood.quadratic
    if not is_normal or (first.noise_model is not None and first.noise_model.varies) or first.fit.shift is not None:
        return None
    left_out = None
    if wanted and first.kept is not None:
        with suppress(MemoryBudgetError):
            left_out = _left_out(ensemble.members, ensemble.weights.tolist(), _merged(first.kept), options)
    ratios = None if cross is None else cross.ratios
    if ratios is not None and ratios.dispersion == first.hyper.dispersion:
        coverage = _share_within(ratios.values, ratios.weights)
        return Fresh(coverage, 0.0 if left_out is None else left_out.width, float(len(ratios.weights)))
    return left_out


def _left_out(members: Sequence[Member], shares: Sequence[float], rows: PreparedData, options: Options) -> Fresh:
    """Intervals of left-out rows in closed form, under the mixture of the members."""
    parts = []
    for member, share in zip(members, shares, strict=True):
        left_out = left_out_of(rows, member.input_dtype, member.seed, member.fit, options)
        latent = left_out.latent(member.fit, replace(member.hyper, temperature=1.0))
        y, noise = without_noise(left_out.rows.observed.double(), member.fit.n_outputs)
        variance = latent.variance + member.hyper.dispersion * noise
        parts.append(share * torch.stack([latent.mean, latent.mean.square() + variance]))
    mean, square = torch.stack(parts).sum(0)
    std = (square - mean.square()).sqrt()
    weights = left_out.rows.weights.double()
    spread = (weights @ (y - weights @ y / weights.sum()).square() / weights.sum()).sqrt()
    width = (std.median(0).values / spread).max()
    return Fresh(_share_within((y - mean).abs() / std, weights), float(width), float(len(rows.X)))


def _merged(rows: PreparedData) -> PreparedData:
    """The rows, with equal ones merged unless they have known noise variances: copies would leak."""
    if rows.noise is not None:
        return rows.present()
    X, targets, weights = canonical_rows(rows.X, rows.targets, rows.weights)
    return replace(rows, X=X, targets=targets, weights=weights)


def _share_within(scores: Tensor, weights: Tensor) -> float:
    """Share of standardised errors (n, C) within the interval of a normal distribution."""
    quantile = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor((1 + LEVEL) / 2))
    inside = (scores <= float(quantile)).double().mean(1)
    return float(weights @ inside / weights.sum())
