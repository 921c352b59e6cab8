r"""The MAP stage: a net and rows in, θ*, δ and φ out. It knows nothing of the subset, structure or link asked for.

First the net's own epochs (none for the built-in net while Gauss–Newton is affordable, and none where it goes on from
an earlier training), with damped evidence steps on the way where the hyperparameters are free; then
:func:`~sklearn_laplace.selection.alternate` and :func:`~sklearn_laplace.mode.refine` to the mode. The evidence of this
stage is that of all weights: exact (``full`` or its dual ``functional``, whichever is cheaper) while a step stays
within the budget (``_budget.py``), else ``kron``, or ``diag`` under a prior that ``kron`` cannot hold.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from skorch.callbacks import Callback
from torch import Tensor, nn

from . import _skorch
from ._budget import LARGE, SINGLE_THREAD_FLOPS, SINGLE_THREAD_PASS, Budget, budget_for, exact_cost
from ._memory import MemoryBudget
from ._progress import Task
from ._skorch import TrainingRows, Watch
from ._threads import single_thread
from .by_name import ColumnsModule, unit_of
from .curvatures import GGN
from .data_loss import DataLoss
from .errors import MemoryBudgetError, ModeWarning, NonFiniteLossError
from .evidence import effective_parameters, log_evidence, mackay_fixed_point
from .laplace import Hyper, LaplaceFit, fit_laplace
from .likelihoods._base import Likelihood
from .mode import Mode, Problem, refine
from .network import Network
from .prior import Prior
from .selection import alternate, maximise_evidence
from .structures import Diag, Full, Functional, Kron
from .structures._base import Curvature

QUICK_STEPS = 14
"""Gauss–Newton steps of a net that is only to be scored, as many as cross-fitted nets take."""
ROWS_FOR_MEMBERS = 100
"""Rows from which a default fit trains members together, and further members take few steps."""
NOISELESS = 0.005
"""Noise variance of standardised targets below which a net takes all of its steps, from initial weights: where there is
next to no noise, second-order steps find more than gradients have left to be found."""
BEGUN_DISPERSION = 0.5
"""Dispersion that such a training starts from, in units of the squared errors of held-out rows."""
START_STEPS, START_REFINE_STEPS = 8, 10
"""Gauss–Newton and L-BFGS steps of a net that gradients have trained before, and that is not noiseless."""
MEMBER_STEPS, MEMBER_REFINE_STEPS, NOISELESS_STEPS = 6, 6, 14
"""Those of a net that knows how another one's training has ended, and its Gauss–Newton steps where it is noiseless."""
FEW_MEMBER_STEPS = 3
"""Gauss–Newton steps of such a net of few rows."""
KRON_REFINE_STEPS = 20
"""L-BFGS steps at the end in the metric of an approximate curvature."""
EPOCH_DAMPING = 0.7
STARTS = (1.0, 0.1)
"""Starts of the prior precision, in units of the natural one. The strong start alone may end in a straight line, the
weak one alone in an over-fitted net: ``tests/test_quality.py`` fails with either."""
LITTLE = 2.0
"""Effective parameters, of as many as a linear model has, up to which the strong start may have ended in a line or
less. Only then the weak one has half as many steps, and the evidence chooses: between two nets that both follow the
data it prefers the worse one as often as not, and all steps are worth more to one (yacht, boston, energy, concrete)."""
FIRST_LAYER, BEHIND = 10.0, 0.1
"""One more start where there are several: from a strong prior over the first layer, a column that is of no use never
comes in, from a weak one it seldom goes. The evidence of three random tables rose by 50 to 135 nats."""
GROUPED_STEPS = 3
"""Times the Gauss–Newton steps where several prior precisions are chosen: unused columns take several moves to go."""
CONVERGENCE_ROUNDS, NOISY_ROUNDS, CONVERGED_DISPERSION = 3, 1, 1e-6
"""Final rounds of a dispersion step and a refinement, the same where there is a noise to speak of, and the change of
log φ that ends them."""
FAR_FROM_MODE = 1.0
"""Distance to the mode, in posterior standard deviations per effective parameter, that gives a warning."""


@dataclass(frozen=True)
class Past:
    """An earlier posterior as the prior of new rows.

    Parameters
    ----------
    fit : LaplaceFit
        Of the rows seen so far, whose curvature adds up over rows.
    hyper : Hyper
        Under which they were fitted.
    module : nn.Module
        The trained net's.
    """

    fit: LaplaceFit
    hyper: Hyper
    module: nn.Module

    def dual_rows(self, n_columns: int) -> int:
        """Rows × columns that a dual form holds of the past; nothing in any other structure."""
        return round(self.fit.total_weight) * n_columns if isinstance(self.fit.curvature, Functional) else 0

    def within(self, structure: type[Curvature]) -> LaplaceFit:
        """The fit with its curvature in this structure: its own, or ``Full``, P products with it."""
        if isinstance(self.fit.curvature, structure):
            return self.fit
        blocks, theta = self.fit.network.blocks, self.fit.theta
        identity = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
        matrix = torch.stack([self.fit.curvature.times(row) for row in identity])
        return replace(self.fit, curvature=Full(matrix, tuple(block.size for block in blocks)))


@dataclass(frozen=True)
class Start:
    """Where a training starts that knows how another one of the same rows has ended.

    Parameters
    ----------
    theta : ndarray of shape (P,), float64, or None
        Weights, in the order of the network; None for initial ones. Arrays, as all of this: a cache tells equal ones by
        their values.
    prior_precision : ndarray of shape (G,), float64
    dispersion : float
    folds : tuple of ndarray of shape (P,)
        Weights of the nets that have not seen a part of the rows.
    by_evidence : bool
        Whether its prior precisions are those of largest evidence.
    by_gradients : bool
        Whether gradients have trained the nets (``_training/start.py``). Then the prior precisions are still to be
        chosen, and the dispersion is the squared error of held-out rows.
    """

    theta: np.ndarray | None
    prior_precision: np.ndarray
    dispersion: float
    folds: tuple[np.ndarray, ...]
    by_evidence: bool = True
    by_gradients: bool = False

    def of_fold(self, fold: int) -> Start:
        """Where one of these nets may go on, with all rows; with more of them than there are, one that is new."""
        return replace(self, theta=self.folds[fold] if fold < len(self.folds) else None, folds=())

    @property
    def hyper(self) -> Hyper:
        """Under which that training has ended."""
        return Hyper(torch.from_numpy(self.prior_precision), self.dispersion)


@dataclass(frozen=True)
class Plan:
    """What the MAP stage is to find, and from where.

    Parameters
    ----------
    likelihood : Likelihood
    prior : callable
        Network → Prior: the grouping of the precisions.
    precision : Tensor or None
        Fixed precisions: 0-d, or one a group; None lets the evidence choose.
    dispersion : float or None
        Fixed dispersion; None lets ``update_dispersion`` choose.
    update_dispersion : callable
        (fit, hyper) → hyper with the next dispersion.
    natural_start : bool
        Whether precisions of 1 are natural (the built-in net); otherwise the fan-in decides.
    memory : MemoryBudget
        Of the stage's own curvature and a chunk of rows.
    past : Past or None
        What stands for the rows seen so far.
    again : Hyper or None
        Where a training under much the same circumstances has ended.
    softens : bool
        Whether rows that were held out may weaken the prior.
    quick : bool
        Whether a few Gauss–Newton steps are enough, near a mode: of a net that is only to be scored.
    begun : float or None
        Where gradients have trained the net before (``_training/start.py``): the squared error of held-out rows.
    many : bool
        Whether there are at least ``ROWS_FOR_MEMBERS`` rows.
    is_over : callable
        → bool, whether the training has to end.
    """

    likelihood: Likelihood
    prior: Callable[[Network], Prior]
    precision: Tensor | None
    dispersion: float | None
    update_dispersion: Callable[[LaplaceFit, Hyper], Hyper]
    natural_start: bool
    memory: MemoryBudget
    past: Past | None = None
    again: Hyper | None = None
    softens: bool = False
    quick: bool = False
    begun: float | None = None
    many: bool = False
    is_over: Callable[[], bool] = bool  # never

    @property
    def is_noisy(self) -> bool:
        """Whether the targets of many rows were seen to have more than next to no noise."""
        known = self.begun if self.again is None else self.again.dispersion
        return self.many and self.likelihood.has_dispersion and known is not None and known >= NOISELESS

    @property
    def first_dispersion(self) -> float:
        """φ that a training starts from which nothing else is known of."""
        start = self.likelihood.dispersion_start
        return start if self.begun is None else min(start, BEGUN_DISPERSION * self.begun)

    @property
    def free_dispersion(self) -> bool:
        """Whether φ is chosen by the data."""
        return self.dispersion is None and self.likelihood.has_dispersion

    def start(self, network: Network, prior: Prior) -> Hyper:
        """Fixed values where given; else the past's, or the natural prior and a noise of the targets' variance."""
        ones = torch.ones(prior.n_groups, dtype=torch.float64, device=network.theta.device)
        values = ones if self.natural_start else network.natural_precisions(prior)
        dispersion = self.first_dispersion
        if self.again is not None:
            values, dispersion = self.again.prior_precision.to(ones), self.again.dispersion
        if self.past is not None:
            same = self.past.fit.prior.names == prior.names
            before, dispersion = self.past.hyper.prior_precision, self.past.hyper.dispersion
            values = before if same else before.log().mean().exp() * ones
        if self.precision is not None:
            values = self.precision.to(ones) * ones
        return Hyper(values, dispersion if self.dispersion is None else self.dispersion)

    def update(self, fit: LaplaceFit, hyper: Hyper) -> Hyper:
        """The next dispersion, if it is free; the prior precisions stay."""
        if not self.free_dispersion:
            return hyper
        return replace(hyper, dispersion=self.update_dispersion(fit, hyper).dispersion)


@dataclass(frozen=True)
class Fold:
    """A net that has not seen some of the rows.

    Parameters
    ----------
    theta : Tensor of shape (P,), float64
        Its weights, in the order of the trained network.
    held_out : Tensor of shape (m,), int64
        Which rows it has not seen.
    """

    theta: Tensor
    held_out: Tensor

    def seen(self, n_rows: int) -> Tensor:
        """The rows that it has seen.

        Examples
        --------
        >>> Fold(torch.zeros(1), torch.tensor([0, 3])).seen(5)
        tensor([1, 2, 4])
        """
        kept = torch.ones(n_rows, dtype=torch.bool, device=self.held_out.device)
        kept[self.held_out] = False
        return kept.nonzero()[:, 0]


@dataclass(frozen=True)
class MapResult:
    """A trained net and the hyperparameters that it was trained under.

    Parameters
    ----------
    net : NeuralNet
        Trained, in eval mode, trimmed for prediction.
    mode : Mode
        The pass over the data at θ*, the hyperparameters, the distance to the mode.
    history : list of dict
        One entry an epoch of the net's own training.
    n_steps : int
        Epochs, Gauss–Newton and L-BFGS steps together.
    is_small : bool
        Whether more than one thread would not pay.
    input_dtype : torch.dtype
        In which the network takes its inputs.
    post_hoc : bool
        Whether the net was trained by somebody else, so that the hyperparameters are still to be chosen.
    folds : tuple of Fold
        Nets trained without a part of the rows each, see ``_cross_fit.py``.
    """

    net: NeuralNet
    mode: Mode
    history: list[dict[str, object]]
    n_steps: int
    is_small: bool
    input_dtype: torch.dtype
    post_hoc: bool = False
    by_evidence: bool = True
    folds: tuple[Fold, ...] = ()

    def start(self) -> Start:
        """Where another training of these rows may start."""
        theta, hyper, folds = self.mode.fit.network.theta, self.mode.hyper, [fold.theta for fold in self.folds]
        at, precision, *others = (part.cpu().numpy() for part in (theta, hyper.prior_precision, *folds))
        return Start(at, precision, hyper.dispersion, tuple(others), self.by_evidence)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all trained tensors."""
        return self.mode.fit.network.parameter_names


class EpochTasks(Callback):
    """Each epoch of a net as a part of a task.

    Parameters
    ----------
    task : Task
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    def on_epoch_begin(self, net: NeuralNet, **kwargs: Any) -> None:
        """See the class."""
        self.epoch = self.task.subtask("epoch").__enter__()

    def on_epoch_end(self, net: NeuralNet, **kwargs: Any) -> None:
        """See the class."""
        self.epoch.__exit__(None, None, None)


def n_dual_rows(rows: TrainingRows, likelihood: Likelihood, n_outputs: int) -> int:
    """M = rows × columns of the output factor of the training's curvature."""
    return len(rows) * GGN().n_columns(likelihood, n_outputs)


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
    cost, _ = _exact(network, rows, n_dual, plan.past)
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
        hyper = _train_epochs(net, rows, network, prior, problem, plan, task)
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
    return MapResult(
        _skorch.finish(net, mode.fit.network), mode, history, steps + mode.n_steps, small, rows.inputs.dtype
    )


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
    net = _skorch.finish(trained.net, mode.fit.network)
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


def is_exact(network: Network, rows: TrainingRows, n_outputs: int, plan: Plan) -> bool:
    """Whether a training takes exact steps."""
    cost, _ = _exact(network, rows, n_dual_rows(rows, plan.likelihood, n_outputs), plan.past)
    return cost <= budget_for(len(rows)).exact_step


def _exact(network: Network, rows: TrainingRows, n_dual: int, past: Past | None) -> tuple[float, type[Curvature]]:
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
    cost, exact_form = _exact(network, rows, n_dual, plan.past)
    large: type[Curvature] = Kron if unit_of(network.blocks, prior.groups) in Kron.holds else Diag
    large = large if plan.past is None else type(plan.past.fit.curvature)
    exact = cost <= budget_for(len(rows)).exact_step if exact is None else exact
    able: list[type[Curvature]] = [exact_form, large] if exact else [large]
    able = [*able, Diag] if trained else able[:1]
    able = able if asked is None else [asked, Diag]
    n_dual += 0 if plan.past is None else plan.past.dual_rows(n_columns)
    structure = next((kind for kind in able if memory.fits(kind, network, n_dual, n_columns)), None)
    if structure is None:
        needed = able[-1].memory(network.blocks, n_dual)
        raise MemoryBudgetError(
            f"the pass over the rows needs a curvature of all {network.n_parameters:,} weights beside the posterior's, "
            f"{needed:,} bytes and those of a row; {memory}. Use a larger memory_budget or a smaller net, or train it "
            "elsewhere and give FrozenEstimator(net)."
        )
    past = None if plan.past is None else plan.past.within(structure)
    told = {} if past is None else past.curvature.options
    chunks = rows.chunks(memory.pass_rows(structure, network, n_columns, structure.memory(network.blocks, n_dual)))
    return Problem(
        lambda network: fit_laplace(network, likelihood, rule, structure, prior, chunks, past=past, **told),
        lambda network: DataLoss(network, likelihood, chunks, past),
        plan.is_over,
    )


def _best_start(problem: Problem, fit: LaplaceFit, hyper: Hyper, plan: Plan, max_steps: int, n_linear: int) -> Mode:
    """The alternation from one start, or the best by evidence from several; several precisions share the steps."""
    free_prior = plan.precision is None
    first = free_prior and plan.past is None and plan.again is None
    network, prior = fit.network, fit.prior
    factors = _start_factors(network, prior) if first else [torch.ones_like(hyper.prior_precision)]
    factors = factors[:1] if plan.begun is not None else factors
    if several := free_prior and has_groups(network, prior):
        max_steps = GROUPED_STEPS * max_steps // len(factors)
    found: list[Mode] = []
    for factor in factors:
        if found and problem.is_over():
            break
        if found and not several and effective_parameters(found[0].fit, found[0].hyper) > LITTLE * n_linear:
            break
        start, update = replace(hyper, prior_precision=factor * hyper.prior_precision), plan.update
        steps = max_steps // 2 if found and not several else max_steps
        train = partial(alternate, free_prior=free_prior, update_dispersion=update, short=plan.is_noisy)
        found.append(train(problem, fit, start, max_steps=steps))
    if len(found) == 1:
        return found[0]
    best = max(found, key=lambda mode: log_evidence(mode.fit, mode.hyper))
    return replace(best, n_steps=sum(mode.n_steps for mode in found))


def has_groups(network: Network, prior: Prior) -> bool:
    """Whether several precisions were asked for, beside those that embeddings have anyway."""
    return prior.n_groups - int((_levels(network, prior) > 0).sum()) > 1


def _levels(network: Network, prior: Prior) -> Tensor:
    """How many embeddings each precision (G,) is of, float64; 0 where it is of something else."""
    module, shapes = network.module, network.layout.shapes
    apart = module.apart if isinstance(module, ColumnsModule) else ()
    found = [shapes[name][1] if name in apart else 0 for name in prior.names]
    return torch.tensor(found, dtype=torch.float64, device=network.theta.device)


def _start_factors(network: Network, prior: Prior) -> list[Tensor]:
    """What the natural precisions (G,) are multiplied by, start by start."""
    groups, ones = prior.groups, torch.ones(prior.n_groups, dtype=torch.float64, device=network.theta.device)
    # Many levels could take up each row's target at once, and nothing would be learnt of its numbers any more.
    shared_out = _levels(network, prior).clamp_min(1.0)
    factors = [factor * shared_out for factor in STARTS]
    if has_groups(network, prior):
        first = groups[: network.blocks[0].size].unique()
        factors.append((BEHIND * ones).index_fill(0, first, FIRST_LAYER))
    return factors


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


def _train_epochs(
    net: NeuralNet, rows: TrainingRows, network: Network, prior: Prior, problem: Problem, plan: Plan, task: Task
) -> Hyper:
    """The net's own epochs, with evidence steps between them."""
    hyper = plan.start(network, prior)
    past = None if plan.past is None else plan.past.fit
    net.criterion_.bind(network, net.module_, prior, hyper, past)
    free_prior = plan.precision is None

    def between(live: NeuralNet) -> None:
        nonlocal hyper
        fit = problem.linearise(network.with_state_of(live.module_))
        target = mackay_fixed_point(fit, hyper) if free_prior else hyper
        target = replace(target, dispersion=plan.update(fit, hyper).dispersion)
        hyper = _part_of_the_way(hyper, target)
        live.criterion_.bind(network, live.module_, prior, hyper, past)

    if net.max_epochs <= 0:
        return hyper
    free = free_prior or plan.free_dispersion
    try:
        with task.subtask("epochs", net.max_epochs) as epochs:
            net.callbacks_ = [*net.callbacks_, ("laplace_progress", EpochTasks(epochs))]
            period = max(1, net.max_epochs // budget_for(len(rows)).evidence_steps)
            _skorch.run_epochs(net, rows, Watch(period, between if free else None, plan.is_over))
    except NonFiniteLossError:
        problem.linearise(network)  # which names the layer where the loss was not finite at the start
        raise
    return hyper


def _part_of_the_way(hyper: Hyper, target: Hyper) -> Hyper:
    precision = hyper.prior_precision * (target.prior_precision / hyper.prior_precision) ** EPOCH_DAMPING
    dispersion = hyper.dispersion * (target.dispersion / hyper.dispersion) ** EPOCH_DAMPING
    return replace(hyper, prior_precision=precision, dispersion=dispersion)


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
