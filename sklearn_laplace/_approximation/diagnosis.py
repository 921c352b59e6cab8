r"""Diagnosis of a finished fit: warnings if its intervals are wrong on rows that it does not know, with advice.

A fit whose prior precision and noise level were selected on held-out rows is calibrated. For other fits, held-out or
left-out rows show the coverage and the width of the intervals (:class:`Fresh`). Leave-one-out is computed only if the
numbers that every fit has give reason to. These are the number of weights P, the effective parameters γ, the total row
weight N_w times the outputs C, and the log evidence with its terms,

.. math::

    \log p(D) = \underbrace{\log p(D | \theta^*)}_{\text{fit}}
        - \tfrac12 \underbrace{(\log|P| - \log|P_0|)}_{\text{volume}}
        - \tfrac12 \underbrace{(\theta^* - \mu_0)^\top P_0 (\theta^* - \mu_0)}_{\text{distance}} .

All of these are dimensionless, so no criterion depends on the scale of X, y or the weights. Closed-form leave-one-out
does not account for features that were learnt from all rows: it measures the width well, and the coverage of a net
with a weak prior too large. Such a net is recognised by its evidence. ``examples/benchmarks/true_warnings.py`` measures
precision and recall.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .._data.known_noise import FEWEST_ROWS
from ..errors import InterpolationWarning, ModeWarning, PinnedWarning, WeakPriorWarning
from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.likelihoods import Gaussian
from ..laplace.structures import Full, Functional

MANY, INTERPOLATES = 0.5, 0.95
"""Mean leverage γ / (N_w C) above which leave-one-out is computed, and above which a net interpolates the targets."""
SUSPICIOUS = 0.2
"""Nats per target by which the volume term brings the evidence below the baseline, for the same."""
WORSE_THAN_BASELINE, OVERFITS, DETERMINED = 1.0, 0.4, 0.95
"""A prior is too weak if the volume term reduces the evidence to this many nats per target below the baseline. Second:
the same if the data determine nearly all weights. Third: the share of the weights above which they do."""
WIDE = 2.0
"""Width of the intervals, relative to those of the baseline, above which they are too wide."""
LEVEL, NARROW, DEVIATIONS = 0.9, 0.8, 1.0
"""Level of the intervals; coverage below which they are too narrow, by this many standard errors."""
FAR_FROM_MODE = 1.0
"""Distance to the mode above which a fit is diagnosed, in posterior standard deviations per effective parameter."""
HALF = 0.5
"""Share of what a linear model explains, below which a net has learnt too little."""
EXPLAINED = {True: 0.5, False: 0.3}
"""Share of the variance that a linear model explains, above which a constant net is reported: for a prior precision
that a rule has selected, and for a given one."""
AT_THE_MEAN, NO_BETTER = 0.1, 0.1
"""Distance term below which the weights count as equal to the prior mean. Gain over the baseline, in nats per target or
as a share of the variance, below which a fit counts as no better."""
UNDETERMINED, FEW = 0.1, 0.01
"""Effective parameters per output, and per weight, below which the data do not determine the weights."""
SETTLED = 1e-2
"""Number of weights that the data do not determine, below which the prior has no effect."""
ROWS = 10
"""Minimum number of rows for warnings about pinned weights and intervals."""
FREEDOM = 5
"""Minimum number of rows beyond that of columns for a linear model."""
LARGE_TARGETS = 10.0
"""Standard deviation of targets above which a warning of pinned weights advises to standardise them."""
RANK = 1e-10
"""Singular values below this, relative to the largest one, count as zero."""
EXACT = Full, Functional
"""Structures whose γ is a sum of leverages and whose volume is the posterior's. Other structures overestimate both."""


@dataclass(frozen=True)
class Fresh:
    """Central 90 % intervals of rows that are unknown to the model.

    ``coverage`` is the share of the targets in their intervals, ``width`` the median width relative to that of the
    baseline; 0 if it is not known.

    Examples
    --------
    >>> Fresh(0.5, 0.2, 100.0).is_narrow, Fresh(0.78, 0.2, 100.0).is_narrow, Fresh(1.0, 9.0, 100.0).is_wide
    (True, False, True)
    """

    coverage: float
    width: float
    n_rows: float

    @property
    def is_narrow(self) -> bool:
        """True if the coverage is too small, by more than chance."""
        error = math.sqrt(self.coverage * (1 - self.coverage) / self.n_rows)
        return self.n_rows >= ROWS and self.coverage + DEVIATIONS * error < NARROW

    @property
    def is_wide(self) -> bool:
        """True if the intervals are much wider than those of the baseline."""
        return self.n_rows >= ROWS and self.width > WIDE


@dataclass(frozen=True)
class Vitals:
    """Quantities of a fit from which it is diagnosed; ``fit``, ``volume``, ``distance`` and ``baseline`` are in nats.

    The fit has P = ``n_weights`` random weights, a total row weight N_w = ``n_rows``, C outputs, and N_w C targets, or
    N_w class labels. ``n_different`` rows differ in X or y; N_w if that is not known. ``effective`` is γ, the number of
    effective parameters.

    ``fit`` is log p(D | θ*); ``volume`` and ``distance`` are terms of the evidence without the factor ½. ``baseline``
    is log p(D) under a constant prediction; None if it is not known. ``learnt`` is the share of the variance of the
    training targets that the net explains; None if the noise is not normal.

    ``size`` is the standard deviation of the training targets in the units of the net, about 1 if standardised.
    ``whole`` is True if all weights of the net are random, ``exact`` if γ and the volume are those of the exact
    posterior, and ``of_numbers`` is False for classes.

    Examples
    --------
    >>> vitals = Vitals(151, 60.0, 60.0, 1, 60.0, 0.2, -80.0, 1.0, 1e-9, -80.0, whole=True, exact=True)
    >>> vitals.pinned, vitals.is_suspicious, vitals.weak_prior
    (True, False, False)
    """

    n_weights: int
    n_rows: float
    n_different: float
    n_outputs: int
    n_targets: float
    effective: float
    fit: float
    volume: float
    distance: float
    baseline: float | None
    whole: bool
    exact: bool
    of_numbers: bool = True
    learnt: float | None = None
    size: float = 1.0

    @classmethod
    def of(
        cls, fit: LaplaceFit, hyper: Hyper, effective: float, evidence: float, n_different: float | None = None
    ) -> Vitals:
        """Collect the quantities of a fit, given its γ and its log evidence in the network's units."""
        likelihood, network = fit.log_likelihood(hyper), fit.network
        distance = float(fit.prior.quadratic(hyper.prior_precision, fit.theta))
        baseline = fit.likelihood.baseline(fit.n_outputs) if fit.log_noise == 0 else None
        learnt, size = None, 1.0
        if isinstance(fit.likelihood, Gaussian):
            size = math.sqrt(fit.likelihood.target_variance)
        if baseline is not None and isinstance(fit.likelihood, Gaussian):
            learnt = 1 - 2 * fit.nll / (fit.total_weight * fit.n_outputs * fit.likelihood.target_variance)
        return cls(
            n_weights=network.n_parameters,
            n_rows=fit.total_weight,
            n_different=min(fit.total_weight, fit.total_weight if n_different is None else n_different),
            n_outputs=fit.n_outputs,
            n_targets=fit.total_weight * (1 if fit.likelihood.over_classes else fit.n_outputs),
            effective=effective,
            fit=likelihood,
            volume=2 * (likelihood - evidence) - distance,
            distance=distance,
            baseline=None if baseline is None else fit.total_weight * baseline,
            whole=network.n_parameters == sum(shape.numel() for shape in network.layout.shapes.values()),
            exact=isinstance(fit.curvature, EXACT) and fit.dispersion_power == 1,
            of_numbers=not fit.likelihood.over_classes,
            learnt=learnt,
            size=size,
        )

    @property
    def pinned(self) -> bool:
        """True if the weights are at the prior mean and the fit is no better than the baseline.

        Such a net has learnt a constant at most.
        """
        if not self.whole or self.n_rows < ROWS or self.effective >= self.n_outputs:
            return False
        is_baseline = self.baseline is None or self.fit - self.baseline < NO_BETTER * self.n_targets
        return is_baseline and self.distance < AT_THE_MEAN

    @property
    def undetermined(self) -> bool:
        """True if the data do not determine the weights."""
        return (
            self.whole
            and self.n_rows >= ROWS
            and self.effective < min(UNDETERMINED * self.n_outputs, FEW * self.n_weights)
        )

    @property
    def interpolates(self) -> bool:
        """True if there are nearly as many effective parameters as different targets."""
        return self.exact and self.effective >= INTERPOLATES * self.n_different * self.n_outputs

    @property
    def is_constant(self) -> bool:
        """True if the fit is no better than the baseline; without one, if it has hardly any effective parameters."""
        if not self.whole or self.n_rows < ROWS:
            return False
        if self.learnt is not None:
            return self.learnt < NO_BETTER
        if self.baseline is None:
            return self.effective < self.n_outputs
        return self.fit - self.baseline < NO_BETTER * self.n_targets

    @property
    def lost(self) -> float:
        """Nats per target by which the volume term brings the evidence below the baseline; −∞ if not known."""
        if not self.exact or self.baseline is None:
            return -math.inf
        return (self.baseline - self.fit + 0.5 * self.volume) / self.n_targets

    @property
    def is_suspicious(self) -> bool:
        """True if there are many effective parameters, or if the evidence is below the baseline."""
        return self.exact and (self.effective >= MANY * self.n_different * self.n_outputs or self.lost > SUSPICIOUS)

    @property
    def weak_prior(self) -> bool:
        """True if the net fits better than the baseline, but the volume term brings the evidence far below it.

        By the chain rule, the log evidence is the sum of the log densities of each target given the previous ones. If
        the volume term brings it below the baseline, these predictions are much wider than the spread of the targets.
        False if the data determine all weights, because the prior then has no effect.
        """
        if self.is_constant or self.n_weights - self.effective < SETTLED:
            return False
        overfits = self.of_numbers and self.effective > DETERMINED * self.n_weights
        return self.lost > (OVERFITS if overfits else WORSE_THAN_BASELINE)


@dataclass(frozen=True)
class Findings:
    """What a fit is diagnosed from: the vitals of the first member, and how its hyperparameters were selected.

    A rule selects the prior precision if ``chosen``, and the noise level if ``free_noise``. ``has_mean`` is True for a
    user-set prior mean, ``calibrated`` if held-out rows have selected prior precision and noise level.
    ``weak_training`` is True if the net was trained under the prior of the posterior, and held-out rows have not
    selected it.

    ``distance`` is the largest distance of a member to its mode, in posterior standard deviations per effective
    parameter. ``fresh`` returns a Fresh, or None without held-out and left-out rows. ``explained`` returns the share of
    the variance of left-out rows that a linear model explains; None if it is not known.
    """

    vitals: Vitals
    chosen: bool
    free_noise: bool
    has_mean: bool
    calibrated: bool
    weak_training: bool
    distance: float
    fresh: Callable[[], Fresh | None]
    explained: Callable[[], float | None]

    def warning(self) -> tuple[str, type[UserWarning]] | None:
        """Message and category of the warning, or None."""
        return self._of_constant() or self._of_intervals()

    def _of_constant(self) -> tuple[str, type[UserWarning]] | None:
        """Nets that have learnt a constant, or less than half of what a linear model explains."""
        vitals = self.vitals
        if self.has_mean:  # weights held at a mean that the user has set
            return None
        is_constant, learnt = vitals.is_constant or vitals.pinned, 1.0 if vitals.learnt is None else vitals.learnt
        if is_constant or (vitals.whole and learnt < HALF and not self.calibrated):
            share = self.explained()
            least = EXPLAINED[self.chosen or not is_constant]
            if share is None:
                is_worse = vitals.pinned and not self.chosen
            else:
                is_worse = share > least and (is_constant or learnt < HALF * share)
            if is_worse:
                return _constant(vitals, share, self.chosen), PinnedWarning
        if not (self.chosen or is_constant) and vitals.undetermined:
            return _determined(vitals, "the error bars hardly depend on the rows"), PinnedWarning
        return None

    def _of_intervals(self) -> tuple[str, type[UserWarning]] | None:
        """Intervals that are too narrow or too wide."""
        vitals, is_far = self.vitals, self.distance > FAR_FROM_MODE
        if self.calibrated:
            return None
        fresh = self.fresh()
        if fresh is not None and fresh.is_narrow and is_far:
            return _far(self.distance, fresh, self.free_noise), ModeWarning
        if fresh is not None and self.free_noise and (fresh.is_narrow or (fresh.is_wide and vitals.interpolates)):
            return _interpolates(vitals, fresh, self.chosen), InterpolationWarning
        finding = ""
        if fresh is not None and fresh.is_wide:
            finding = f"intervals are {fresh.width:.2g} times as wide as under a constant prediction"
        elif fresh is not None and fresh.is_narrow:
            finding = f"the net overfits, and the 90 % intervals contain {fresh.coverage:.0%} of left-out targets"
        elif self.weak_training and vitals.weak_prior:
            finding = f"each target is {vitals.lost:.2g} nats less probable than under a constant prediction"
        if finding:
            is_narrow = fresh is not None and fresh.is_narrow and not fresh.is_wide
            return _weak(finding, vitals, self.chosen, is_narrow), WeakPriorWarning
        if is_far and fresh is None:
            return _far(self.distance, None, self.free_noise), ModeWarning
        return None


def explained_by_a_line(X: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> float | None:
    """Share of the variance of left-out targets that a linear model explains (R², in closed form). Costs O(n d²).

    Missing values of X (n, d) are replaced by the mean of their column. Targets are numbers (n, C) or class indices
    (n,). Returns None if there are fewer than ``FREEDOM`` rows more than columns.

    Examples
    --------
    >>> X = np.arange(10.0)[:, None]
    >>> explained_by_a_line(X, 3 * X + 1, np.ones(10))
    1.0
    """
    n, d = X.shape
    if n < d + FREEDOM:
        return None
    y = np.eye(int(targets.max()) + 1)[targets] if targets.ndim == 1 else targets
    missing = np.isnan(X)
    means = np.where(missing, 0.0, X).sum(0) / np.maximum((~missing).sum(0), 1)
    X = np.where(missing, means, X) - means
    root = np.sqrt(weights)[:, None]
    X = root * np.column_stack([np.ones(n), X / np.maximum(np.abs(X).max(0), np.finfo(float).tiny)])
    basis, values, _ = np.linalg.svd(X, full_matrices=False)
    basis = basis[:, values > RANK * values[0]]
    leverage = np.minimum((basis**2).sum(1), 1 - RANK)[:, None]
    errors = (root * y - basis @ (basis.T @ (root * y))) / (1 - leverage)
    spread = root * (y - np.average(y, axis=0, weights=weights))
    return 1 - float((errors**2).sum() / max((spread**2).sum(), np.finfo(float).tiny))


def _constant(vitals: Vitals, share: float | None, chosen: bool) -> str:
    effect = "predictions are nearly constant"
    if vitals.learnt is not None and not (vitals.is_constant or vitals.pinned):
        effect = f"predictions explain {vitals.learnt:.0%} of the variance of the targets"
    if share is not None:
        effect = f"{effect}, and a linear model explains {share:.0%} of the variance in left-out rows"
    if vitals.pinned and not chosen:
        return _determined(vitals, effect)
    if vitals.size > LARGE_TARGETS:
        return f"{effect}. {_standardise(vitals)}"
    cause = ", and the selected prior precision fits such a net" if chosen else ""
    smaller = "" if chosen else " If the prior is too strong, use a smaller prior_precision, or 'evidence'."
    return (
        f"{effect}. The net has learnt too little{cause}. Scale the columns of X (standardize_X=True does so in linear "
        f"layers of a given net), or train further (max_epochs).{smaller}"
    )


def _determined(vitals: Vitals, effect: str) -> str:
    finding = (
        f"the data determine {vitals.effective:.2g} of {vitals.n_weights:,} weights, and the prior determines all "
        f"others: {effect}."
    )
    if vitals.size > LARGE_TARGETS:
        return f"{finding} {_standardise(vitals)}"
    return (
        f"{finding} Use a smaller prior_precision, or prior_precision='evidence'. If map_prior_precision is a "
        "number, change it in the same way, because the net was trained under it."
    )


def _standardise(vitals: Vitals) -> str:
    return (
        f"The targets have a standard deviation of {vitals.size:.2g}, and a net has outputs of about 1. Use "
        "standardize_y=True."
    )


def _interpolates(vitals: Vitals, fresh: Fresh, chosen: bool) -> str:
    targets = vitals.n_different * vitals.n_outputs
    wide = f", and are {fresh.width:.2g} times as wide as under a constant prediction" if fresh.is_wide else ""
    advice = "Use prior_precision='auto' with sigma_noise='auto'"
    if chosen:
        advice = "Use sigma_noise='auto' with map_prior_precision='same' or a larger number"
    elif vitals.effective >= MANY * targets:
        advice = f"{advice}, a larger prior_precision"
    copies = ", and check the data for duplicate rows" if vitals.n_different < vitals.n_rows else ""
    return (
        f"the net has {vitals.effective:.4g} effective parameters for {targets:.4g} different targets, and its "
        f"residuals do not determine the noise level. The 90 % intervals contain {fresh.coverage:.0%} of the targets "
        f"of left-out rows{wide}. {advice}, or fewer hidden units{copies}."
    )


def _far(distance: float, fresh: Fresh | None, free_noise: bool) -> str:
    covered = "" if fresh is None else f", and the 90 % intervals contain {fresh.coverage:.0%} of left-out targets"
    advice = "sigma_noise='auto' or a larger one"
    if free_noise:
        advice = "more epochs (max_epochs) or a larger prior_precision"
    return (
        f"the weights are {distance:.2g} posterior standard deviations per effective parameter away from a mode"
        f"{covered}. At this distance a Laplace approximation may be inaccurate. Use {advice}."
    )


def single_row(total_weight: float) -> str:
    return (
        f"the total weight of the rows is {total_weight:.3g}, and a total below {FEWEST_ROWS} does not determine the "
        "noise level. Unless sample_noise_variance is given, sigma_noise_ is the size of the target (1 for a target "
        "of 0). Fit more rows, or give sigma_noise as a number."
    )


def _weak(finding: str, vitals: Vitals, chosen: bool, is_narrow: bool) -> str:
    left = vitals.n_weights - vitals.effective
    cause = "sigma_noise is too small, or the prior" if is_narrow else "the prior is"
    advice = "Use a larger prior_precision, or prior_precision='evidence'"
    if is_narrow:  # under a selected noise level, this is an interpolation
        advice = "Use sigma_noise='auto' or a larger one"
    elif chosen:
        advice = "The net was trained under another prior: use map_prior_precision='same', or a larger number"
    return f"{cause} too weak for the {left:,.0f} weights that the data do not determine: {finding}. {advice}."
