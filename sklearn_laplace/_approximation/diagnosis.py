r"""What a finished fit says about itself: warnings where its error bars should not be trusted, and what to do.

Functions of numbers that every fit has: the weights P, the effective parameters γ, the rows N_w times outputs C, the
log evidence and what it is made of,

.. math::

    \log p(D) = \underbrace{\log p(D | \theta^*)}_{\text{fit}}
        - \tfrac12 \underbrace{(\log|P| - \log|P_0|)}_{\text{volume}}
        - \tfrac12 \underbrace{(\theta^* - \mu_0)^\top P_0 (\theta^* - \mu_0)}_{\text{distance}} .

None has a unit, so that no criterion depends on the scale of X, y or the weights, and no row is looked at again.
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
"""Leverage of an average row (γ / N_w C) from which the residuals say next to nothing of the noise."""
WORSE_THAN_A_GUESS = 1.0
"""Nats a target by which the volume takes the evidence below that of a constant guess: a prior that is too weak."""
AT_THE_MEAN, NO_BETTER = 0.1, 0.1
"""Distance to the prior mean at which the weights are there, and nats a target by which a guess is no worse."""
UNDETERMINED, FEW = 0.1, 0.01
"""Effective parameters, an output and a weight, below which the data say nothing of the weights."""
ROWS = 10
"""Fewer say little in any case."""
EXACT = Full, Functional
"""Structures whose γ is a sum of leverages and whose volume is that of the posterior; others count too much."""


@dataclass(frozen=True)
class Vitals:
    """The numbers that a diagnosis is made of.

    Parameters
    ----------
    n_weights : int
        P, the random ones.
    n_rows : float
        N_w.
    n_different : float
        Rows that differ in X or y, as far as that is known; N_w otherwise.
    n_outputs : int
        C.
    n_targets : float
        N_w C numbers, or N_w labels.
    effective : float
        γ.
    fit : float
        log p(D | θ*), nats.
    volume, distance : float
        The terms of the evidence, nats, before they are halved.
    guess : float or None
        log p(D) of a constant guess, nats; None where it is not known.
    whole : bool
        Whether all weights of the net are random.
    exact : bool
        Whether γ and the volume are those of the exact posterior of these weights.

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
    guess: float | None
    whole: bool
    exact: bool

    @classmethod
    def of(
        cls, fit: LaplaceFit, hyper: Hyper, effective: float, evidence: float, n_different: float | None = None
    ) -> Vitals:
        """What is known of a fit, from its γ and its log evidence in the network's units."""
        likelihood, network = fit.log_likelihood(hyper), fit.network
        distance = float(fit.prior.quadratic(hyper.prior_precision, fit.theta))
        guess = fit.likelihood.guess(fit.n_outputs) if fit.log_noise == 0 else None
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
            guess=None if guess is None else fit.total_weight * guess,
            whole=network.n_parameters == sum(shape.numel() for shape in network.layout.shapes.values()),
            exact=isinstance(fit.curvature, EXACT) and fit.dispersion_power == 1,
        )

    @property
    def pinned(self) -> bool:
        """The weights are where the prior has its mean, and no better than a guess: at most a constant is learnt."""
        if not self.whole or self.n_rows < ROWS or self.effective >= self.n_outputs:
            return False
        is_guess = self.guess is None or self.fit - self.guess < NO_BETTER * self.n_targets
        return is_guess and self.distance < AT_THE_MEAN

    @property
    def undetermined(self) -> bool:
        """The data say nothing of the weights, wherever they are."""
        return (
            self.whole
            and self.n_rows >= ROWS
            and self.effective < min(UNDETERMINED * self.n_outputs, FEW * self.n_weights)
        )

    @property
    def interpolates(self) -> bool:
        """As many parameters are fitted as there are different targets."""
        enough = self.exact and self.n_different >= ROWS
        return enough and self.effective >= INTERPOLATES * self.n_different * self.n_outputs

    @property
    def weak_prior(self) -> bool:
        """The net fits better than a guess, and its prior still makes the targets much less probable than that.

        By the chain rule the log evidence is the sum of the log densities of each target given those before it: where
        its volume term takes it below a guess, the net's predictions were far wider than the targets. Not where the
        data determine all weights, whatever the prior.
        """
        if not self.exact or self.guess is None or self.fit < self.guess or self.n_weights - self.effective < 1:
            return False
        return self.fit - 0.5 * self.volume < self.guess - WORSE_THAN_A_GUESS * self.n_targets


def diagnose(
    fit: LaplaceFit,
    hyper: Hyper,
    effective: float,
    evidence: float,
    options: Options,
    held_out: tuple[bool, bool] = (False, False),
    n_different: float | None = None,
) -> None:
    """Warn of a posterior that is no use as it stands; say nothing at temperatures, which are the user's own choice.

    Parameters
    ----------
    fit : LaplaceFit
    hyper : Hyper
    effective : float
        γ.
    evidence : float
        Nats, in the network's units.
    options : Options
        Whether prior and noise were chosen or given: what to do depends on it.
    held_out : tuple of bool
        Whether the prior has been chosen by rows that their nets had not seen, who would have noticed; and whether the
        noise has with it.
    n_different : float, optional
        Rows that differ in X or y.

    Warns
    -----
    PinnedWarning
        When a given prior leaves the data next to no say.
    InterpolationWarning
        When the noise is chosen from the residuals of a net that goes through all targets, or from a single row.
    WeakPriorWarning
        When the prior is so weak that predictions are wider than the targets' own spread.
    """
    if isinstance(hyper.temperature, Tensor) or hyper.temperature != 1.0:
        return
    chosen = options.prior_precision.free
    vitals = Vitals.of(fit, hyper, effective, evidence, n_different)
    category: type[UserWarning]
    if options.sigma_noise.free and fit.likelihood.has_dispersion and fit.total_weight < FEWEST_ROWS:
        message, category = _single(fit.total_weight), InterpolationWarning
    # A constant that the evidence prefers is an answer, and to hold weights at a mean of one's own is a wish.
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
    then = "predictions are next to constant" if vitals.pinned else "the error bars hardly depend on the rows"
    return (
        f"the data determine {vitals.effective:.2g} of {vitals.n_weights:,} weights, the prior all others: {then}. Use "
        "a smaller prior_precision, or prior_precision='evidence'; and the same for map_prior_precision, under which "
        "the net was trained, where that is a number."
    )


def _interpolates(vitals: Vitals) -> str:
    targets = vitals.n_different * vitals.n_outputs
    return (
        f"the net has {vitals.effective:.4g} effective parameters for {targets:.4g} different targets: it goes through "
        "nearly all of them, and what is left over says nothing of the noise, so that sigma_noise_ and all intervals "
        "may be far too narrow. Give sigma_noise as a number or as 'loo', a larger prior_precision or fewer hidden "
        "units, and look for rows that are copies of each other. For targets that are free of noise all is well."
    )


def _single(total_weight: float) -> str:
    return (
        f"the rows weigh {total_weight:.3g} together, and less than {FEWEST_ROWS} rows tell nothing of the noise: "
        "sigma_noise_ is the size of the target itself (1 for a target of 0) where sample_noise_variance is not given. "
        "Fit more rows, or give sigma_noise as a number."
    )


def _weak(vitals: Vitals, chosen: bool) -> str:
    assert vitals.guess is not None
    lost = (vitals.guess - vitals.fit + 0.5 * vitals.volume) / vitals.n_targets
    left = vitals.n_weights - vitals.effective
    advice = (
        "Its net was trained under another prior: use map_prior_precision='same', or a larger number"
        if chosen
        else "Use a larger prior_precision, or prior_precision='evidence'"
    )
    return (
        f"the prior leaves the {left:,.0f} weights that the data do not determine so free that the targets are "
        f"{lost:.2g} nats each less probable than under a constant guess: predictions away from the rows are far wider "
        f"than the targets' own spread. {advice}."
    )
