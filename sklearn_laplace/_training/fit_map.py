r"""The MAP stage: a net and rows in, θ*, δ and φ out. It knows nothing of the subset, structure or link asked for.

First the net's own epochs (none for the built-in net while Gauss–Newton is affordable, and none where it goes on from
an earlier training), with damped evidence steps on the way where the hyperparameters are free; then
:func:`~sklearn_laplace.laplace.mode.alternate` and :func:`~sklearn_laplace.laplace.mode.refine` to the mode. The
evidence of this stage is that of all weights: exact (``full`` or its dual ``functional``, whichever is cheaper) while a
step stays within the budget (``_runtime/budget.py``), else ``kron``, or ``diag`` under a prior that ``kron`` cannot
hold.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

from skorch import NeuralNet

from .._host.epochs import finish
from .._host.rows import TrainingRows
from .._runtime.budget import LARGE, SINGLE_THREAD_FLOPS, SINGLE_THREAD_PASS, Budget, budget_for, exact_cost
from .._runtime.progress import Task
from .._runtime.threads import single_thread
from ..errors import MemoryBudgetError, ModeWarning
from ..laplace.curvatures import GGN
from ..laplace.evidence import effective_parameters
from ..laplace.fit import Hyper, LaplaceFit, fit_laplace
from ..laplace.likelihoods._base import Likelihood
from ..laplace.mode.alternating import alternate
from ..laplace.mode.data_loss import DataLoss
from ..laplace.mode.lbfgs import refine
from ..laplace.mode.problem import Mode, Problem
from ..laplace.network.network import Network
from ..laplace.previous import PreviousPosterior
from ..laplace.prior import Prior
from ..laplace.prior_groups import unit_of
from ..laplace.selection import maximise_evidence
from ..laplace.structures import Diag, Full, Functional, Kron
from ..laplace.structures._base import Curvature
from .evidence_epochs import train_epochs
from .plan import MapResult, Plan
from .starts import _best_start

QUICK_STEPS = 14
"""Gauss–Newton steps of a net that is only to be scored, as many as cross-fitted nets take."""
ROWS_FOR_MEMBERS = 100
"""Rows from which a default fit trains members together, and further members take few steps."""
START_STEPS, START_REFINE_STEPS = 8, 10
"""Gauss–Newton and L-BFGS steps of a net that gradients have trained before, and that is not noiseless."""
MEMBER_STEPS, MEMBER_REFINE_STEPS, NOISELESS_STEPS = 6, 6, 14
"""Those of a net that knows how another one's training has ended, and its Gauss–Newton steps where it is noiseless."""
FEW_MEMBER_STEPS = 3
"""Gauss–Newton steps of such a net of few rows."""
KRON_REFINE_STEPS = 20
"""L-BFGS steps at the end in the metric of an approximate curvature."""
CONVERGENCE_ROUNDS, NOISY_ROUNDS, CONVERGED_DISPERSION = 3, 1, 1e-6
"""Final rounds of a dispersion step and a refinement, the same where there is a noise to speak of, and the change of
log φ that ends them."""
FAR_FROM_MODE = 1.0
"""Distance to the mode, in posterior standard deviations per effective parameter, that gives a warning."""


def fit_map(
    net: NeuralNet, network: Network, rows: TrainingRows, n_outputs: int, plan: Plan, task: Task, *, own_epochs: bool
) -> MapResult:
    """Train the net to the mode of its posterior, choosing the hyperparameters on the way.

    Parameters
    ----------
    net : NeuralNet
        Initialised for these rows.
    network : Network
        Its module, traced.
    rows : TrainingRows
    n_outputs : int
    plan : Plan
    task : Task
        Whose parts the epochs and the way to the mode are.
    own_epochs : bool
        Whether the net says how many epochs it trains; otherwise as many as it takes without Gauss–Newton.

    Returns
    -------
    MapResult

    Warns
    -----
    ModeWarning
        When the weights end far from a mode.
    """
    n_dual = n_dual_rows(rows, plan.likelihood, n_outputs)
    budget = budget_for(len(rows))
    cost, _ = _exact(network, rows, n_dual, plan.previous)
    exact = cost <= budget.exact_step
    # Under what another one's training has found, nets beside it and more members take steps over all rows.
    goes_on = not exact and plan.again is not None
    if not (exact or goes_on or own_epochs):
        size = budget.batch_size if net.batch_size == -1 else net.batch_size
        epochs = budget.epoch_steps if size == -1 else math.ceil(budget.epoch_steps * size / len(rows))
        net.set_params(batch_size=size, max_epochs=epochs)
    small = cost <= SINGLE_THREAD_FLOPS
    with single_thread(small or (not exact and len(rows) * network.n_parameters <= SINGLE_THREAD_PASS)):
        prior = plan.prior(network)
        problem = problem_of(network, prior, rows, n_dual, plan)
        hyper = plan.start(network, prior)
        if net.max_epochs > 0:
            hyper = train_epochs(net, rows, network, prior, problem, plan, hyper, task)
        fit = problem.linearise(network.with_state_of(net.module_))
        steps, damping = len(net.history), 0.0
        free_prior = plan.precision is None
        with task.subtask("mode"):
            if exact or goes_on:
                steps_of = _steps(plan, budget, small=small, exact=exact)
                n_linear = (rows.inputs[0].numel() + 1) * n_outputs
                found = _best_start(problem, fit, hyper, plan, steps_of, n_linear)
                fit, hyper, steps, damping = found.fit, found.hyper, steps + found.n_steps, found.damping
            elif free_prior or plan.free_dispersion:
                hyper = maximise_evidence(
                    fit, hyper, free_prior=free_prior, free_dispersion=plan.free_dispersion, warn=False
                )
            refine_steps = _refine_steps(plan, budget, exact=exact)
            mode = _converge(problem, fit, hyper, plan, refine_steps, damping)
        # Of few steps by design, of which held-out rows judge what they are worth, mode_distance_ tells.
        if not (plan.quick or plan.is_noisy or plan.is_over()):
            _warn_far(mode)
    history = [dict(entry) for entry in net.history]
    return MapResult(finish(net, mode.fit.network), mode, history, steps + mode.n_steps, small, rows.inputs.dtype)


def _steps(plan: Plan, budget: Budget, *, small: bool, exact: bool) -> int:
    """Gauss–Newton steps of a net."""
    if plan.quick:
        return QUICK_STEPS
    steps = budget.gauss_newton_steps if small else budget.dear_gauss_newton_steps
    if not exact:
        return steps // 4
    if plan.again is None:
        return START_STEPS if plan.is_noisy else steps
    if plan.is_noisy:
        return MEMBER_STEPS if budget is LARGE else FEW_MEMBER_STEPS
    return NOISELESS_STEPS if _goes_on_noiseless(plan, budget) else steps


def _refine_steps(plan: Plan, budget: Budget, *, exact: bool) -> int:
    """L-BFGS steps of a net at the end."""
    if plan.quick:
        return 0
    if not exact:
        return KRON_REFINE_STEPS
    if plan.again is None:
        return START_REFINE_STEPS if plan.is_noisy else budget.refine_steps
    if plan.is_noisy:
        return MEMBER_REFINE_STEPS
    return START_REFINE_STEPS if _goes_on_noiseless(plan, budget) else budget.refine_steps


def _goes_on_noiseless(plan: Plan, budget: Budget) -> bool:
    """Whether a net of many rows, almost without noise, goes on from where another training has ended."""
    return plan.likelihood.has_dispersion and budget is LARGE


def continued(trained: MapResult, rows: TrainingRows, plan: Plan, factor: float) -> MapResult:
    """The same training, brought to the mode under a multiple of its prior precisions."""
    fit, hyper = trained.mode.fit, trained.mode.hyper
    budget, n_dual = budget_for(len(rows)), n_dual_rows(rows, plan.likelihood, fit.n_outputs)
    problem = problem_of(fit.network, fit.prior, rows, n_dual, plan)
    hyper = replace(hyper, prior_precision=factor * hyper.prior_precision)
    steps = budget.gauss_newton_steps // 4
    found = alternate(problem, fit, hyper, free_prior=False, update_dispersion=plan.update, max_steps=steps)
    refine_steps = budget.refine_steps if isinstance(fit.curvature, Full | Functional) else KRON_REFINE_STEPS
    mode = _converge(problem, found.fit, found.hyper, plan, refine_steps, found.damping)
    mode = replace(mode, n_steps=trained.n_steps + found.n_steps + mode.n_steps)
    net = finish(trained.net, mode.fit.network)
    return replace(trained, net=net, mode=mode, n_steps=mode.n_steps, by_evidence=False)


def keep_mode(
    net: NeuralNet,
    network: Network,
    rows: TrainingRows,
    n_outputs: int,
    plan: Plan,
    structure: type[Curvature] | None = None,
) -> MapResult:
    """A trained net as it is: the pass over the data at its weights, nothing retrained.

    Parameters
    ----------
    net : NeuralNet
        Trained; a copy of ours, which loses what only training needs.
    network : Network
        Its module, traced, in the rows' dtype.
    rows : TrainingRows
    n_outputs : int
    plan : Plan
    structure : curvature class, optional
        That of the pass; by default exact where that is affordable.

    Returns
    -------
    MapResult
        With the plan's starting hyperparameters; ``mode.decrement`` says how far the weights are from a mode under
        them.
    """
    n_dual = n_dual_rows(rows, plan.likelihood, n_outputs)
    small = exact_cost(network.blocks, n_dual)[0] <= SINGLE_THREAD_FLOPS
    with single_thread(small):
        prior = plan.prior(network)
        fit = problem_of(network, prior, rows, n_dual, plan, trained=True, asked=structure).linearise(network)
        hyper = plan.start(network, prior)
        mode = Mode(fit, plan.update(fit, hyper), 0)
    history = [dict(entry) for entry in net.history]
    net.trim_for_prediction()
    return MapResult(net, mode, history, 0, small, rows.inputs.dtype, post_hoc=True)


def _converge(problem: Problem, fit: LaplaceFit, hyper: Hyper, plan: Plan, max_steps: int, damping: float) -> Mode:
    """The mode, with the dispersion that belongs to it."""
    mode = refine(problem, fit, hyper, max_steps, damping)
    steps = mode.n_steps
    rounds = NOISY_ROUNDS if plan.is_noisy else CONVERGENCE_ROUNDS
    for _ in range(rounds if plan.free_dispersion else 0):
        updated = plan.update(mode.fit, mode.hyper)
        if abs(math.log(updated.dispersion / mode.hyper.dispersion)) < CONVERGED_DISPERSION:
            break
        mode = refine(problem, mode.fit, updated, max_steps // 4, damping)
        steps += mode.n_steps
    return replace(mode, n_steps=steps)


def _warn_far(mode: Mode) -> None:
    effective = max(effective_parameters(mode.fit, mode.hyper, mode.fit.posterior(mode.hyper, spectral=False)), 1.0)
    distance = mode.decrement / effective**0.5
    if distance > FAR_FROM_MODE:
        warnings.warn(
            f"the weights are {distance:.2g} posterior standard deviations per effective parameter away from a mode, "
            "and a Laplace approximation is only as good as its mode. Train longer (max_epochs), with a smaller lr, or "
            "under a larger prior_precision.",
            ModeWarning,
            stacklevel=2,
        )


def n_dual_rows(rows: TrainingRows, likelihood: Likelihood, n_outputs: int) -> int:
    """M = rows × columns of the output factor of the training's curvature."""
    return len(rows) * GGN().n_columns(likelihood, n_outputs)


def is_exact(network: Network, rows: TrainingRows, n_outputs: int, plan: Plan) -> bool:
    """Whether a training takes exact steps."""
    cost, _ = _exact(network, rows, n_dual_rows(rows, plan.likelihood, n_outputs), plan.previous)
    return cost <= budget_for(len(rows)).exact_step


def _exact(
    network: Network, rows: TrainingRows, n_dual: int, past: PreviousPosterior | None
) -> tuple[float, type[Curvature]]:
    """Multiply-adds of an exact step, and its structure: only a past in dual form has dual rows."""
    if past is None:
        return exact_cost(network.blocks, n_dual)
    held = past.dual_rows(n_dual // len(rows))
    return exact_cost(network.blocks, n_dual + held, frozenset({"rows"} if held else ()))


def problem_of(
    network: Network,
    prior: Prior,
    rows: TrainingRows,
    n_dual: int,
    plan: Plan,
    *,
    trained: bool = False,
    exact: bool | None = None,
    asked: type[Curvature] | None = None,
) -> Problem:
    """The rows as functions of a network, in the structure asked for; by default the exact one while it is affordable.

    Raises
    ------
    MemoryBudgetError
        When it does not fit: a training does not depend on the memory. That of a trained net is a smaller one then.
    """
    rule, n_columns, likelihood, memory = GGN(), n_dual // len(rows), plan.likelihood, plan.memory
    cost, exact_form = _exact(network, rows, n_dual, plan.previous)
    large: type[Curvature] = Kron if unit_of(network.blocks, prior.groups) in Kron.holds else Diag
    large = large if plan.previous is None else type(plan.previous.fit.curvature)
    exact = cost <= budget_for(len(rows)).exact_step if exact is None else exact
    able: list[type[Curvature]] = [exact_form, large] if exact else [large]
    able = [*able, Diag] if trained else able[:1]
    able = able if asked is None else [asked, Diag]
    n_dual += 0 if plan.previous is None else plan.previous.dual_rows(n_columns)
    structure = next((kind for kind in able if memory.fits(kind, network, n_dual, n_columns)), None)
    if structure is None:
        needed = able[-1].memory(network.blocks, n_dual)
        raise MemoryBudgetError(
            f"the pass over the rows needs a curvature of all {network.n_parameters:,} weights beside the posterior's, "
            f"{needed:,} bytes and those of a row; {memory}. Use a larger memory_budget or a smaller net, or train it "
            "elsewhere and give FrozenEstimator(net)."
        )
    past = None if plan.previous is None else plan.previous.within(structure)
    told = {} if past is None else past.curvature.options
    chunks = rows.chunks(memory.pass_rows(structure, network, n_columns, structure.memory(network.blocks, n_dual)))
    return Problem(
        lambda network: fit_laplace(network, likelihood, rule, structure, prior, chunks, past=past, **told),
        lambda network: DataLoss(network, likelihood, chunks, past),
        plan.is_over,
    )
