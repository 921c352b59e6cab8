r"""Diagnosis of a finished fit: warnings if its error bars are not reliable, with advice.

The criteria use numbers that every fit has: the number of weights P, the effective parameters γ, the total row weight
N_w times the outputs C, and the log evidence with its terms,

.. math::

    \log p(D) = \underbrace{\log p(D | \theta^*)}_{\text{fit}}
        - \tfrac12 \underbrace{(\log|P| - \log|P_0|)}_{\text{volume}}
        - \tfrac12 \underbrace{(\theta^* - \mu_0)^\top P_0 (\theta^* - \mu_0)}_{\text{distance}} .

All of these are dimensionless, so no criterion depends on the scale of X, y or the weights. No further pass over the
rows is needed.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from torch import Tensor

from .._data.known_noise import FEWEST_ROWS
from .._options.options import Options
from ..errors import InterpolationWarning, PinnedWarning, WeakPriorWarning
from ..laplace.fit import Hyper, LaplaceFit
from ..laplace.structures import Full, Functional

INTERPOLATES = 0.95
"""Mean leverage γ / (N_w C) above which the residuals hardly determine the noise level."""
WORSE_THAN_BASELINE = 1.0
"""A prior is too weak if the volume term reduces the evidence to this many nats per target below the baseline."""
AT_THE_MEAN, NO_BETTER = 0.1, 0.1
"""Distance term below which the weights count as equal to the prior mean. Gain over the baseline, in nats per target,
below which a fit counts as no better."""
UNDETERMINED, FEW = 0.1, 0.01
"""Effective parameters per output, and per weight, below which the data do not determine the weights."""
ROWS = 10
"""Minimum number of rows for warnings about pinned weights and interpolation."""
EXACT = Full, Functional
"""Structures whose γ is a sum of leverages and whose volume is the posterior's. Other structures overestimate both."""


@dataclass(frozen=True)
class Vitals:
    """Quantities of a fit from which it is diagnosed.

    Parameters
    ----------
    n_weights : int
        Number P of random weights.
    n_rows : float
        Total weight N_w of the rows.
    n_different : float
        Number of rows that differ in X or y; N_w if it is not known.
    n_outputs : int
        Number C of outputs.
    n_targets : float
        Number of targets: N_w C for numbers, N_w for class labels.
    effective : float
        Effective parameters γ.
    fit : float
        log p(D | θ*), nats.
    volume, distance : float
        Terms of the evidence without the factor ½, nats.
    baseline : float or None
        Baseline: log p(D) under a constant prediction, nats. None if it is not known.
    whole : bool
        True if all weights of the net are random.
    exact : bool
        True if γ and the volume are those of the exact posterior.

    Examples
    --------
    >>> vitals = Vitals(151, 60.0, 60.0, 1, 60.0, 0.2, -80.0, 1.0, 1e-9, -80.0, whole=True, exact=True)
    >>> vitals.pinned, vitals.interpolates, vitals.weak_prior
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

    @classmethod
    def of(
        cls, fit: LaplaceFit, hyper: Hyper, effective: float, evidence: float, n_different: float | None = None
    ) -> Vitals:
        """Collect the quantities of a fit, given its γ and its log evidence in the network's units."""
        likelihood, network = fit.log_likelihood(hyper), fit.network
        distance = float(fit.prior.quadratic(hyper.prior_precision, fit.theta))
        baseline = fit.likelihood.baseline(fit.n_outputs) if fit.log_noise == 0 else None
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
        enough = self.exact and self.n_different >= ROWS
        return enough and self.effective >= INTERPOLATES * self.n_different * self.n_outputs

    @property
    def weak_prior(self) -> bool:
        """True if the net fits better than the baseline, but the volume term brings the evidence far below it.

        By the chain rule, the log evidence is the sum of the log densities of each target given the previous ones. If
        the volume term brings it below the baseline, these predictions are much wider than the spread of the targets.
        False if the data determine all weights, because the prior then has no effect.
        """
        if not self.exact or self.baseline is None or self.fit < self.baseline or self.n_weights - self.effective < 1:
            return False
        return self.fit - 0.5 * self.volume < self.baseline - WORSE_THAN_BASELINE * self.n_targets


def diagnose(
    fit: LaplaceFit,
    hyper: Hyper,
    effective: float,
    evidence: float,
    options: Options,
    held_out: tuple[bool, bool] = (False, False),
    n_different: float | None = None,
) -> None:
    """Warn if the error bars of a posterior are not reliable.

    At most one warning is issued. There is none at a temperature other than 1, which is a choice of the user.

    Parameters
    ----------
    fit : LaplaceFit
    hyper : Hyper
    effective : float
        Effective parameters γ.
    evidence : float
        Log evidence, nats, in the network's units.
    options : Options
        Options, which state whether prior precision and noise level are fixed or selected.
    held_out : tuple of bool
        For prior precision and noise level: True if held-out rows have selected the value, which excludes the problem.
    n_different : float, optional
        Number of rows that differ in X or y.

    Warns
    -----
    PinnedWarning
        If a fixed prior is so strong that the data hardly influence the posterior.
    InterpolationWarning
        If the noise level is selected from the residuals of a net that interpolates its targets, or from a single row.
    WeakPriorWarning
        If the prior is so weak that predictions are wider than the spread of the targets.
    """
    if isinstance(hyper.temperature, Tensor) or hyper.temperature != 1.0:
        return
    chosen = options.prior_precision.free
    vitals = Vitals.of(fit, hyper, effective, evidence, n_different)
    category: type[UserWarning]
    if options.sigma_noise.free and fit.likelihood.has_dispersion and fit.total_weight < FEWEST_ROWS:
        message, category = _single(fit.total_weight), InterpolationWarning
    # No warning for a constant that the evidence prefers, or for weights held at a prior mean that the user has set.
    elif not chosen and fit.prior.mean is None and (vitals.pinned or vitals.undetermined):
        message, category = _pinned(vitals), PinnedWarning
    elif options.sigma_noise.free and not held_out[1] and vitals.interpolates:
        message, category = _interpolates(vitals), InterpolationWarning
    elif not held_out[0] and vitals.weak_prior:
        message, category = _weak(vitals, chosen), WeakPriorWarning
    else:
        return
    warnings.warn(message, category, stacklevel=5)


def _pinned(vitals: Vitals) -> str:
    effect = "predictions are nearly constant" if vitals.pinned else "the error bars hardly depend on the rows"
    return (
        f"the data determine {vitals.effective:.2g} of {vitals.n_weights:,} weights, and the prior determines all "
        f"others: {effect}. Use a smaller prior_precision, or prior_precision='evidence'. If map_prior_precision is a "
        "number, change it in the same way, because the net was trained under it."
    )


def _interpolates(vitals: Vitals) -> str:
    targets = vitals.n_different * vitals.n_outputs
    return (
        f"the net has {vitals.effective:.4g} effective parameters for {targets:.4g} different targets, and nearly "
        "interpolates them. Its residuals do not determine the noise level, so sigma_noise_ and all intervals may be "
        "far too small. Give sigma_noise as a number or as 'loo', use a larger prior_precision or fewer hidden units, "
        "and check the data for duplicate rows. If the targets are free of noise, ignore this warning."
    )


def _single(total_weight: float) -> str:
    return (
        f"the total weight of the rows is {total_weight:.3g}, and a total below {FEWEST_ROWS} does not determine the "
        "noise level. Unless sample_noise_variance is given, sigma_noise_ is the size of the target (1 for a target "
        "of 0). Fit more rows, or give sigma_noise as a number."
    )


def _weak(vitals: Vitals, chosen: bool) -> str:
    assert vitals.baseline is not None
    lost = (vitals.baseline - vitals.fit + 0.5 * vitals.volume) / vitals.n_targets
    left = vitals.n_weights - vitals.effective
    advice = (
        "The net was trained under another prior: use map_prior_precision='same', or a larger number"
        if chosen
        else "Use a larger prior_precision, or prior_precision='evidence'"
    )
    return (
        f"the prior is too weak for the {left:,.0f} weights that the data do not determine: each target is {lost:.2g} "
        "nats less probable than under a constant prediction. Predictions away from the training rows are far wider "
        f"than the spread of the targets. {advice}."
    )
