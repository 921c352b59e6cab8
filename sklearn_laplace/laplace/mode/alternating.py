r"""Weights and hyperparameters in turn: training that knows its prior (MacKay 1992; Immer et al. 2021).

The evidence is the one of converged weights, :math:`E(\delta) = \max_\varphi \log p(D \mid \theta^*(\delta, \varphi),
\delta, \varphi)`: from a start the weights settle (damped Gauss–Newton, the dispersion re-estimated at every step),
then a move of the prior precisions is kept if the evidence, after settling again, is higher. Moves are MacKay's fixed
point, of several groups all the way, and a common factor up or down, which shrinks until no move helps.

Why not MacKay's fixed point alone: at fixed weights it ignores how the curvature changes with the weights, and drifts
past the optimum. And why only settled states count: what the formula gives for weights that still move is not an
evidence, and it favours them over the mode that they are on the way to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from torch import Tensor

from ...errors import NonFiniteError, NotPositiveDefiniteError
from ..evidence import PRECISION_BOUNDS, log_evidence, mackay_fixed_point
from ..fit import Hyper, LaplaceFit
from .gauss_newton import gauss_newton_step
from .lbfgs import refine
from .problem import Mode, Problem

START_DAMPING = 1.0
FIRST_RATIO, LAST_RATIO = 2.0, 1.3
"""Factors by which the prior precisions move together, at first and at last."""
MACKAY_DAMPING, LONGEST_MOVE = 0.7, 1.0
"""Fraction of the way to the fixed point, and the longest move of a logarithm."""
LONGEST_OF_GROUPS, SETTLED = 4.0, 1.0
"""The same where there are several groups, tried first: those that the data have no use for go far. Weights that are
left with a larger Newton decrement than the latter settle once more at the end."""
EVIDENCE_GAIN = 0.1
"""Nats that make a move worth keeping."""
NEAR, NEAR_DISPERSION = 0.7, 0.02
"""Gauss–Newton hands over when the Newton decrement and the change of log φ are below these."""
REST_ROUNDS, REST_STEPS = 3, 12
"""Rounds of L-BFGS steps and a dispersion step at the end."""
SHORT_ROUNDS, SHORT_STEPS, SHORT_INTERVAL = 1, 8, 2
"""The same from good weights, and Gauss–Newton steps from one dispersion step to the next."""
STEPS_FOR_ONE = 4
"""L-BFGS steps that cost as much as one Gauss–Newton step."""
MAX_CORRECTION = 2.0
"""The evidence of nearly settled weights is corrected by ½ decrement², for decrements up to this."""
Update = Callable[[LaplaceFit, Hyper], Hyper]


@dataclass(frozen=True)
class _State:
    fit: LaplaceFit
    hyper: Hyper
    damping: float
    evidence: float
    decrement: float
    n_steps: int


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
    """Train weights, prior precisions and dispersion together.

    Parameters
    ----------
    problem : Problem
    fit : LaplaceFit
        The pass over the data at the initial weights.
    hyper : Hyper
        Where to start: a strong prior, and a dispersion as large as the variance of the targets.
    free_prior : bool
        Whether the prior precisions move.
    update_dispersion : callable
        (fit, hyper) → hyper with the next dispersion; the identity keeps it.
    max_steps : int
        Largest number of Gauss–Newton steps: half of them at most before the first move of the prior, a sixth after
        each.
    short : bool
        Whether the weights are near enough to a mode for fewer L-BFGS and dispersion steps.

    Returns
    -------
    Mode
        The settled state of best evidence. Not converged to the last digit: see
        :func:`~sklearn_laplace.laplace.mode.refine`.

    Examples
    --------
    >>> from sklearn_laplace.laplace.network import trace
    >>> import torch
    >>> from sklearn_laplace.laplace.curvatures import GGN
    >>> from sklearn_laplace.laplace import fit_laplace
    >>> from sklearn_laplace.laplace.likelihoods import Gaussian
    >>> from sklearn_laplace.laplace.structures import Full
    >>> network = trace(torch.nn.Linear(1, 1, bias=False).double(), torch.ones(1, 1).double())
    >>> x = torch.tensor([[1.0], [2.0], [3.0]]).double()
    >>> rows = [(x, 2 * x + torch.tensor([[0.1], [0.0], [-0.1]]), torch.ones(3).double())]
    >>> from sklearn_laplace.laplace.mode import DataLoss
    >>> problem = Problem(
    ...     lambda net: fit_laplace(net, Gaussian(), GGN(), Full, network.scalar_prior(), rows),
    ...     lambda net: DataLoss(net, Gaussian(), rows),
    ... )
    >>> options = {"free_prior": True, "update_dispersion": lambda fit, hyper: hyper, "max_steps": 20}
    >>> mode = alternate(problem, problem.linearise(network), Hyper(torch.ones(1).double(), dispersion=0.01), **options)
    >>> round(mode.fit.network.theta.item(), 2)
    1.99
    """
    first, each = max(max_steps // 2, 1), max(max_steps // 6, 1)
    state = _settle(problem, fit, hyper, START_DAMPING, update_dispersion, first if free_prior else max_steps, short)
    used, ratio = state.n_steps, FIRST_RATIO
    while free_prior and ratio > LAST_RATIO and used < max_steps and not problem.is_over():
        for proposal in _moves(state, ratio):
            steps = min(each, max_steps - used)
            trial = _tried(problem, state, proposal, update_dispersion, steps, short)
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
        state = _settle(problem, state.fit, state.hyper, state.damping, update_dispersion, each, short)
        used += state.n_steps
    return Mode(state.fit, state.hyper, used, state.damping)


def _tried(
    problem: Problem, state: _State, proposal: Hyper, update: Update, max_steps: int, short: bool
) -> _State | None:
    """Where a move leads to; None where it leads out of what floating point can hold: the state so far is kept."""
    with suppress(NotPositiveDefiniteError, NonFiniteError):
        return _settle(problem, state.fit, proposal, state.damping, update, max_steps, short)
    return None


def _settle(
    problem: Problem,
    fit: LaplaceFit,
    hyper: Hyper,
    damping: float,
    update_dispersion: Update,
    max_steps: int,
    short: bool,
) -> _State:
    """Bring weights and dispersion to rest: Gauss–Newton steps while far away, then L-BFGS at fixed dispersions."""
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
        if steps % interval and moved.decrement >= NEAR:
            continue
        updated = _limited(hyper, update_dispersion(fit, hyper))
        change = abs(math.log(updated.dispersion / hyper.dispersion))
        hyper = updated
        if moved.decrement < NEAR and change < NEAR_DISPERSION:
            break
    for _ in range(rounds):
        mode = refine(problem, fit, hyper, rest_steps, damping)
        fit, steps = mode.fit, steps + mode.n_steps // STEPS_FOR_ONE
        updated = _limited(hyper, update_dispersion(fit, hyper))
        change = abs(math.log(updated.dispersion / hyper.dispersion))
        hyper = updated
        if change < NEAR_DISPERSION:
            break
    posterior = fit.posterior(replace(hyper, temperature=1.0), spectral=False)
    gradient = fit.objective_gradient(hyper)
    squared = float(gradient @ posterior.solve(gradient))
    evidence = log_evidence(fit, hyper, posterior) + 0.5 * min(squared, MAX_CORRECTION**2)
    return _State(fit, hyper, damping, evidence, math.sqrt(max(squared, 0.0)), steps)


def _moves(state: _State, ratio: float) -> list[Hyper]:
    """Prior precisions to try next: MacKay's, then all of them scaled, in his direction first."""
    present = state.hyper.prior_precision
    target = mackay_fixed_point(state.fit, state.hyper).prior_precision
    move = MACKAY_DAMPING * (target / present).log()
    candidates = [present * move.clamp(-LONGEST_MOVE, LONGEST_MOVE).exp()]
    if len(present) > 1:
        far = (target / present).log().clamp(-LONGEST_OF_GROUPS, LONGEST_OF_GROUPS)
        candidates.insert(0, present * far.exp())
    factors = (ratio, 1 / ratio) if float(move.sum()) > 0 else (1 / ratio, ratio)
    candidates += [present * factor for factor in factors]
    return [replace(state.hyper, prior_precision=_bounded(values)) for values in candidates]


def _limited(hyper: Hyper, updated: Hyper) -> Hyper:
    """The updated dispersion, with a damped and limited move."""
    move = MACKAY_DAMPING * math.log(updated.dispersion / hyper.dispersion)
    return replace(hyper, dispersion=hyper.dispersion * math.exp(min(max(move, -LONGEST_MOVE), LONGEST_MOVE)))


def _bounded(values: Tensor) -> Tensor:
    return values.clamp(*PRECISION_BOUNDS)
