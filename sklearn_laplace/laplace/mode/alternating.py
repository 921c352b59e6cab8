r"""Alternating optimisation of weights and hyperparameters (MacKay 1992; Immer et al. 2021).

The objective is the evidence at converged weights, :math:`E(\delta) = \max_\varphi \log p(D \mid \theta^*(\delta,
\varphi), \delta, \varphi)`. The weights first settle (converge) by damped Gauss–Newton steps, and the dispersion is
re-estimated along the way. Then moves of the prior precisions are tried. A move is kept if the evidence is higher after
the weights have settled again. The moves are MacKay's fixed point (for several groups, first without damping) and a
common factor up or down. If no move helps, the factor shrinks. The search ends at ``LAST_RATIO``.

MacKay's fixed point overshoots, because it ignores how the curvature changes with the weights. Only settled states are
compared: at other weights, the formula of the evidence does not hold, and can exceed the value at the mode.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ...errors import NonFiniteError, NotPositiveDefiniteError
from ..evidence import PRECISION_BOUNDS, mackay_fixed_point
from ..fit import Hyper, LaplaceFit
from .problem import Mode, Problem, gauss_newton_step, refine

START_DAMPING = 1.0
"""Initial damping of Gauss–Newton."""
FIRST_RATIO, LAST_RATIO = 2.0, 1.3
"""First common factor by which the prior precisions are moved, and the factor at which the search stops."""
MACKAY_DAMPING, LONGEST_MOVE = 0.7, 1.0
"""Fraction of the way to MacKay's fixed point, and the longest step of a log precision or log dispersion."""
LONGEST_OF_GROUPS, SETTLED = 4.0, 1.0
"""Two limits for several prior groups. The first is the longest log step of the additional undamped move. Above the
second, a Newton decrement, the weights settle again at the end.
"""
EVIDENCE_GAIN = 0.1
"""Minimum evidence gain, in nats, for a move to be kept."""
NEAR, NEAR_DISPERSION = 0.7, 0.02
"""L-BFGS replaces Gauss–Newton once the Newton decrement and the change of log φ are below these values."""
REST_ROUNDS, REST_STEPS = 3, 12
"""Maximum numbers of L-BFGS rounds, each followed by a dispersion update, and of steps per round."""
SHORT_ROUNDS, SHORT_STEPS, SHORT_INTERVAL = 1, 8, 2
"""The same limits for a start near a mode, and the number of Gauss–Newton steps per dispersion update."""
STEPS_FOR_ONE = 4
"""Number of L-BFGS steps that cost as much as one Gauss–Newton step."""
Update = Callable[[LaplaceFit, Hyper], Hyper]
"""Update of the dispersion: (fit, hyper) → hyper."""


def alternate(
    problem: Problem,
    fit: LaplaceFit,
    hyper: Hyper,
    *,
    free_prior: bool,
    update_dispersion: Update,
    max_steps: int,
    short: bool = False,
) -> Mode:
    """Train weights, prior precisions and dispersion jointly. Return the converged state with the best evidence.

    ``fit`` comes from a pass over the data at the initial weights. At most half of the ``max_steps`` Gauss–Newton steps
    precede the first move of a free prior, and at most a sixth follow each move. ``short``, for weights near a mode,
    reduces the numbers of L-BFGS steps and dispersion updates.
    """
    start_steps, move_steps = max(max_steps // 2, 1), max(max_steps // 6, 1)
    state = _settle(
        problem, fit, hyper, START_DAMPING, update_dispersion, start_steps if free_prior else max_steps, short
    )
    used, ratio = state.n_steps, FIRST_RATIO
    while free_prior and ratio > LAST_RATIO and used < max_steps and not problem.is_over():
        for proposal in _moves(state, ratio):
            steps = min(move_steps, max_steps - used)
            trial = None
            with suppress(NotPositiveDefiniteError, NonFiniteError):
                trial = _settle(problem, state.fit, proposal, state.damping, update_dispersion, steps, short)
            used += steps if trial is None else trial.n_steps
            if trial is None:
                continue
            if trial.evidence > state.evidence + EVIDENCE_GAIN:
                state = trial
                break
            if used >= max_steps or problem.is_over():
                break
        else:
            ratio = math.sqrt(ratio)
    if len(state.hyper.prior_precision) > 1 and state.decrement > SETTLED:
        state = _settle(problem, state.fit, state.hyper, state.damping, update_dispersion, move_steps, short)
        used += state.n_steps
    return replace(state, n_steps=used)


def _settle(
    problem: Problem,
    fit: LaplaceFit,
    hyper: Hyper,
    damping: float,
    update_dispersion: Update,
    max_steps: int,
    short: bool,
) -> Mode:
    """Converge weights and dispersion: Gauss–Newton steps far from the mode, then L-BFGS between dispersion updates."""
    rounds, rest_steps, interval = REST_ROUNDS, REST_STEPS, 1
    if short:
        rounds, rest_steps, interval = SHORT_ROUNDS, SHORT_STEPS, SHORT_INTERVAL
    steps = 0
    while steps < max_steps and not (steps and problem.is_over()):
        moved = gauss_newton_step(problem, fit, hyper, damping)
        damping = moved.damping
        if moved.fit is None:
            break
        fit, steps = moved.fit, steps + 1
        problem.advance(fit.nll / fit.total_weight)
        if steps % interval and moved.decrement >= NEAR:
            continue
        hyper, is_settled = _updated(hyper, update_dispersion(fit, hyper))
        if moved.decrement < NEAR and is_settled:
            break
    for _ in range(rounds):
        mode = refine(problem, fit, hyper, rest_steps, damping, is_far=short)
        fit, steps = mode.fit, steps + mode.n_steps // STEPS_FOR_ONE
        hyper, is_settled = _updated(hyper, update_dispersion(fit, hyper))
        if is_settled:
            break
    return Mode(fit, hyper, steps, damping)


def _moves(state: Mode, ratio: float) -> list[Hyper]:
    """Proposed prior precisions: MacKay's fixed point, then a common factor, first in MacKay's direction."""
    current = state.hyper.prior_precision
    target = mackay_fixed_point(state.fit, state.hyper).prior_precision
    move = MACKAY_DAMPING * (target / current).log()
    candidates = [current * move.clamp(-LONGEST_MOVE, LONGEST_MOVE).exp()]
    if len(current) > 1:
        far = (target / current).log().clamp(-LONGEST_OF_GROUPS, LONGEST_OF_GROUPS)
        candidates.insert(0, current * far.exp())
    factors = (ratio, 1 / ratio) if float(move.sum()) > 0 else (1 / ratio, ratio)
    candidates += [current * factor for factor in factors]
    return [replace(state.hyper, prior_precision=values.clamp(*PRECISION_BOUNDS)) for values in candidates]


def _updated(hyper: Hyper, proposal: Hyper) -> tuple[Hyper, bool]:
    """``hyper`` with dispersion moved towards a proposal by a damped, limited step, and whether the step is small."""
    move = MACKAY_DAMPING * math.log(proposal.dispersion / hyper.dispersion)
    move = min(max(move, -LONGEST_MOVE), LONGEST_MOVE)
    return replace(hyper, dispersion=hyper.dispersion * math.exp(move)), abs(move) < NEAR_DISPERSION
