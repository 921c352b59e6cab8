"""Diagnosis of a fitted ensemble: at most one warning about its intervals.

A fit whose prior precision and noise level were both selected on held-out rows needs no check. For other fits,
closed-form leave-one-out intervals are compared with the targets. For the user's nets, the scores of rows outside the
training are used instead. Weights far from a mode can also cause a warning. All criteria for intervals are ratios, so
the scale of X or y does not matter. ``examples/benchmarks/true_warnings.py`` measures precision and recall of warnings.
"""

import math
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .._table.limits import budget_for, exact_cost
from .._table.rows import FEWEST_ROWS, PreparedData, canonical_rows
from .._training.plan import fixed_for_one_row
from ..errors import InterpolationWarning, MemoryBudgetError, ModeWarning, WeakPriorWarning
from ..errors.warn import warn_user
from ..laplace.curvatures import GGN
from ..laplace.fit import LaplaceFit
from ..laplace.likelihoods._base import without_noise
from ..laplace.structures import Full, Functional
from ..laplace.torch_state import single_thread
from ..options.resolved import Options
from .choose import left_out_of
from .ensemble import Ensemble
from .fixed_weights import ValidationScores
from .member import Member

Finding = tuple[str, type[UserWarning]]
FAR_FROM_MODE = 1.0
"""Maximum distance to the mode without a warning, in posterior standard deviations per √(effective parameters)."""
WIDER_THAN_ERRORS = 1.5
"""Maximum ratio of predictive standard deviation to RMSE at which wide intervals are attributed to large errors."""
LEVEL, NARROW = 0.9, 0.8
"""Level of the intervals, and minimum of the sum of their coverage and its standard error."""


@dataclass(frozen=True)
class LeftOutIntervals:
    """Summary of the leave-one-out intervals of the mixture of the members."""

    width: float  # median predictive standard deviation, in standard deviations of the targets
    error: float  # root mean squared error, in the same unit
    coverage: float  # share of the targets in their 90 % intervals
    n_rows: int

    @property
    def is_narrow(self) -> bool:
        """True if the coverage is below ``NARROW`` by more than its standard error."""
        return self.coverage + math.sqrt(self.coverage * max(1 - self.coverage, 0.0) / self.n_rows) < NARROW


def diagnose(ensemble: Ensemble, options: Options) -> None:
    """Warn at most once if intervals seem too narrow or too wide for new rows; ``options`` are in the units of y.

    No warning is issued at a temperature other than 1. Callers skip calibrated ensembles
    (:attr:`.Ensemble.is_calibrated`).
    """
    first = ensemble.first
    if isinstance(first.hyper.temperature, Tensor) or first.hyper.temperature != 1.0:
        return
    with single_thread(first.is_small):
        found = _single_row(first, options) or _finding(ensemble, options)
    if found is not None:
        warn_user(*found)


def _single_row(first: Member, options: Options) -> Finding | None:
    weight = first.fit.total_weight
    if weight >= FEWEST_ROWS or not (options.sigma_noise.free and first.fit.likelihood.has_dispersion):
        return None
    return (
        f"the total weight of the rows is {weight:.3g}, and a total below {FEWEST_ROWS} does not determine the noise "
        "level. Unless sample_noise_variance is given, sigma_noise_ is the size of the target (1 for a target of 0). "
        "Fit more rows, or give sigma_noise as a number.",
        InterpolationWarning,
    )


def _finding(ensemble: Ensemble, options: Options) -> Finding | None:
    first, free_noise = ensemble.first, options.sigma_noise.free
    scores = first.origin.held_out(first.fit, first.hyper)
    if isinstance(scores, ValidationScores):
        error = math.sqrt(scores.level / scores.spread) if scores.freedom else math.inf
        return _wide(scores.width(first.hyper), error, first, options)
    settled = fixed_for_one_row(replace(options, likelihood=first.fit.likelihood), first.fit.total_weight, first.scale)
    prior, noise = settled.by_held_out
    if scores is not None and prior and (noise or not first.fit.likelihood.has_dispersion):
        return None
    left_out, distance = _left_out(ensemble, options), _distance(ensemble)
    if distance > FAR_FROM_MODE and (left_out is None or left_out.is_narrow):
        return _far(distance, left_out, free_noise or not first.fit.likelihood.has_dispersion)
    if left_out is None:
        return None
    # Errors larger than those of a constant prediction indicate that the prior was weak in training.
    found = _wide(left_out.width, min(left_out.error, 1.0), first, options)
    return _narrow(left_out, options) if found is None and left_out.is_narrow else found


def _distance(ensemble: Ensemble) -> float:
    """Largest distance of a member from its mode, in posterior standard deviations per √(effective parameters)."""
    # The user's nets are skipped, because the user has chosen their weights.
    trained = [member for member in ensemble.members if member.n_steps > 0 and not member.is_given]
    distances = [member.mode_distance / max(member.n_effective_parameters, 1.0) ** 0.5 for member in trained]
    return max(distances, default=0.0)


def _left_out(ensemble: Ensemble, options: Options) -> LeftOutIntervals | None:
    """Summary of the closed-form intervals of left-out rows; None if they are unavailable or too expensive."""
    first, parts = ensemble.first, []
    varies = first.noise_model is not None and first.noise_model.varies
    if varies or first.kept is None or not first.fit.likelihood.quadratic:
        return None
    if first.fit.shift is not None or not _is_affordable(first.fit, len(first.kept.X)):
        return None
    kept = _merged(first.kept)
    for member, share in zip(ensemble.members, ensemble.weights.tolist(), strict=True):
        left_out = left_out_of(kept, member.input_dtype, member.seed, member.fit, options)
        with suppress(MemoryBudgetError, MemoryError):
            latent = left_out.latent(member.fit, replace(member.hyper, temperature=1.0))
            y, noise = without_noise(left_out.rows.observed.double(), first.fit.n_outputs)
            variance = latent.variance + member.hyper.dispersion * noise
            parts.append(share * torch.stack([latent.mean, latent.mean.square() + variance]))
    if len(parts) < len(ensemble.members):
        return None
    mean, square = torch.stack(parts).sum(0)
    std, weights = (square - mean.square()).sqrt(), left_out.rows.weights.double() / left_out.rows.total_weight
    spread = (weights @ (y - weights @ y).square()).sqrt()
    if not spread.all():  # constant targets
        return None
    inside = ((y - mean).abs() <= torch.special.ndtri(torch.tensor((1 + LEVEL) / 2)) * std).double().mean(1)
    width, error = std.median(0).values / spread, (weights @ (y - mean).square()).sqrt() / spread
    widest = int(width.argmax())
    return LeftOutIntervals(float(width[widest]), float(error[widest]), float(weights @ inside), len(inside))


def _is_affordable(fit: LaplaceFit, n_rows: int) -> bool:
    """True if the fit has an exact curvature, or if the limits of a default fit allow for one."""
    if isinstance(fit.curvature, Full | Functional) and isinstance(fit.rule, GGN):
        return True
    n_dual = n_rows * GGN().n_columns(fit.likelihood, fit.n_outputs)
    return exact_cost(fit.network.blocks, n_dual)[0] <= budget_for(n_rows).exact_posterior


def _merged(rows: PreparedData) -> PreparedData:
    """Merge equal rows unless their noise is known, because copies of a left-out row would leak its target."""
    if rows.noise is not None:
        return rows.present()
    X, targets, weights = canonical_rows(rows.X, rows.targets, rows.weights)
    return replace(rows, X=X, targets=targets, weights=weights)


def _wide(width: float, error: float, first: Member, options: Options) -> Finding | None:
    # If a net has large errors, its intervals are wide because of these errors, not because of its prior.
    if not width > max(1.0, WIDER_THAN_ERRORS * error):
        return None
    advice = f"a prior_precision above {first.hyper.prior_precision.max():.2g}, or prior_precision='auto'"
    if options.prior_precision.free:
        advice = "map_prior_precision='same' or a larger number"
    return (
        "the prior is too weak: for rows outside the training, the predictive standard deviation is "
        f"{width:.2g} times that of a constant prediction. Use {advice}.",
        WeakPriorWarning,
    )


def _narrow(left_out: LeftOutIntervals, options: Options) -> Finding:
    cause, advice = "sigma_noise is too small", "sigma_noise='auto' or a larger one"
    if options.sigma_noise.free:
        cause = "the residuals do not determine the noise level"
        advice = "prior_precision='auto' with sigma_noise='auto', or a larger prior_precision"
        if options.prior_precision.free:
            advice = "sigma_noise='auto' with map_prior_precision='same' or a larger number"
        advice += ", or check the data for duplicate rows"
    return (
        f"{cause}: the 90 % intervals contain {left_out.coverage:.0%} of left-out targets. Use {advice}.",
        InterpolationWarning,
    )


def _far(distance: float, left_out: LeftOutIntervals | None, free_noise: bool) -> Finding:
    covered = ""
    if left_out is not None:
        covered = f", and the 90 % intervals contain {left_out.coverage:.0%} of left-out targets"
    advice = "sigma_noise='auto' or a larger one"
    if free_noise:
        advice = "more epochs (max_epochs) or a larger prior_precision"
    return (
        f"the distance of the weights from a mode is {distance:.2g} posterior standard deviations (root mean square)"
        f"{covered}. At this distance a Laplace approximation may be inaccurate. Use {advice}.",
        ModeWarning,
    )
