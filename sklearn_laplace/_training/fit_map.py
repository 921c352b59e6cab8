"""MAP stage: train a net to the mode θ* of its posterior, and select prior precision δ and noise level φ.

The net's own gradient epochs come first, with damped evidence steps in between if hyperparameters are free. By default,
the built-in net skips the epochs if exact Gauss–Newton steps are affordable or it has a warm start. In these cases,
:func:`~sklearn_laplace.laplace.mode.alternate` follows. :func:`~sklearn_laplace.laplace.mode.refine` reaches the mode.

The evidence covers all weights. If the budget of ``_table/limits.py`` allows it, the curvature is exact (``full`` or
its dual ``functional``), and the steps are called exact. Otherwise the curvature is ``kron``, or ``diag`` under a prior
that ``kron`` does not support. The subset, structure and link of the posterior play no role here.

**Gradient start.** For many rows, nets of one shape are first trained jointly by gradient steps; exact steps follow. A
few hundred steps of Adam in single precision (``batched.py``) take as long as about five exact steps of each net. The
penalty is that of ``batched.py``, with δ fixed and φ the smallest mean squared training error so far. The encoded
columns have no learnable scales, because the nets share one encoding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from skorch import NeuralNet
from torch import Tensor

from .._table.limits import LARGE, SINGLE_THREAD_FLOPS, SINGLE_THREAD_PASS, SMALL_ROWS, Budget, budget_for, exact_cost
from ..errors import MemoryBudgetError
from ..laplace.curvatures import GGN
from ..laplace.evidence import effective_parameters, log_evidence
from ..laplace.fit import Hyper, LaplaceFit, TrainingRows, fit_laplace
from ..laplace.likelihoods._base import Likelihood
from ..laplace.mode.alternating import alternate
from ..laplace.mode.problem import DataLoss, Mode, Problem, refine
from ..laplace.network.network import Network
from ..laplace.prior import Prior
from ..laplace.prior_groups import ColumnsModule, unit_of
from ..laplace.selection import maximise_evidence
from ..laplace.structures import Diag, Kron
from ..laplace.structures._base import Curvature
from ..laplace.torch_state import single_thread
from ..laplace.updates import PreviousPosterior
from ..nets import MLP, TableMLP
from ..nets.skorch_net import finish
from .batched import Training, mean_errors
from .epochs import train_epochs
from .plan import NOISELESS, MapResult, Plan
from .progress import Steps, Task
from .recipe import Schedule
from .stacked import Squares, Stacked


@dataclass(frozen=True)
class Effort:
    """Maximum numbers of steps in training to the mode."""

    gauss_newton: int
    refine: int  # L-BFGS, in the last part


SCORED = Effort(14, 0)
"""Effort for comparing encodings."""
LATER_NOISELESS = Effort(14, 10)
"""Effort for a net after the first, for many rows with targets almost free of noise."""
NOISY = Effort(8, 10)
"""Effort for the first net, after gradient training, if targets are noisy."""
LATER_NOISY = Effort(6, 6)
"""Effort for a net with noisy targets and the hyperparameters of an earlier training run."""
LATER_NOISY_OF_FEW = Effort(3, 6)
"""Like ``LATER_NOISY``, in the budget tier for few rows, and in a joint ensemble after gradient training."""
KRON_REFINE_STEPS = 20
"""Maximum number of final L-BFGS steps if the curvature is not exact."""
CONVERGENCE_ROUNDS, CONVERGED_DISPERSION = 3, 1e-6
"""Maximum number of rounds that update φ and refine the weights, and change of log φ below which the rounds end.
Noisy targets have one round."""


def fit_map(
    net: NeuralNet, network: Network, rows: TrainingRows, plan: Plan, task: Task, *, own_epochs: bool
) -> MapResult:
    """Train the net to the mode of its posterior, and select the free hyperparameters.

    If ``own_epochs`` is False, the budget sets the number of epochs: zero with exact steps or a warm start.
    """
    n_dual = n_dual_rows(rows, plan.likelihood)
    budget = budget_for(len(rows))
    cost, _ = _exact(network, rows, n_dual, plan.previous)
    exact = cost <= budget.exact_step
    # With the hyperparameters of an earlier training run, full-batch steps suffice.
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
            hyper = train_epochs(net, rows, network, prior, problem, plan, hyper=hyper, task=task)
        fit = problem.linearise(network.with_state_of(net.module_))
        steps, damping = len(net.history), 0.0
        free_prior, effort = plan.precision is None, _effort(plan, budget, small=small, exact=exact)
        with task.subtask("mode") as stage, Steps(stage) as progress:
            problem = replace(problem, advance=progress.advance)
            if exact or goes_on:
                n_linear = (rows.inputs[0].numel() + 1) * rows.n_outputs
                start = _best_start(problem, fit, hyper, plan, effort.gauss_newton, n_linear)
                fit, hyper, steps, damping = start.fit, start.hyper, steps + start.n_steps, start.damping
            elif free_prior or plan.free_dispersion:
                hyper = maximise_evidence(
                    fit, hyper, free_prior=free_prior, free_dispersion=plan.free_dispersion, warn=False
                )
            mode = _converge(problem, fit, hyper, plan, effort.refine, damping)
    history = [dict(entry) for entry in net.history]
    return MapResult(finish(net, mode.fit.network), mode, history, steps + mode.n_steps, small, rows.inputs.dtype)


def _effort(plan: Plan, budget: Budget, *, small: bool, exact: bool) -> Effort:
    if plan.quick:
        return SCORED
    steps = budget.gauss_newton_steps if small else budget.dear_gauss_newton_steps
    if not exact:
        return Effort(steps // 4, KRON_REFINE_STEPS)
    if plan.is_noisy:
        later = LATER_NOISY if budget is LARGE else LATER_NOISY_OF_FEW
        return NOISY if plan.again is None else later
    if plan.again is not None and plan.likelihood.has_dispersion and budget is LARGE:
        return LATER_NOISELESS
    return Effort(steps, budget.refine_steps)


def _converge(problem: Problem, fit: LaplaceFit, hyper: Hyper, plan: Plan, max_steps: int, damping: float) -> Mode:
    """Refine the weights to the mode, in alternation with updates of a free dispersion."""
    # A few steps leave a net with noisy targets far from its mode.
    is_far = plan.is_noisy and damping > 0
    mode = refine(problem, fit, hyper, max_steps, damping, is_far=is_far)
    steps = mode.n_steps
    rounds = 1 if plan.is_noisy else CONVERGENCE_ROUNDS
    for _ in range(rounds if plan.free_dispersion else 0):
        updated = plan.update(mode.fit, mode.hyper)
        if abs(math.log(updated.dispersion / mode.hyper.dispersion)) < CONVERGED_DISPERSION:
            break
        mode = refine(problem, mode.fit, updated, max_steps // 4, damping, is_far=is_far)
        steps += mode.n_steps
    return replace(mode, n_steps=steps)


def n_dual_rows(rows: TrainingRows, likelihood: Likelihood) -> int:
    """Dual dimension M of the training's curvature: rows × columns of the output factor."""
    return len(rows) * GGN().n_columns(likelihood, rows.n_outputs)


def is_exact(network: Network, rows: TrainingRows, plan: Plan) -> bool:
    """Return True if the training uses exact Gauss–Newton steps."""
    cost, _ = _exact(network, rows, n_dual_rows(rows, plan.likelihood), plan.previous)
    return cost <= budget_for(len(rows)).exact_step


def _exact(
    network: Network, rows: TrainingRows, n_dual: int, past: PreviousPosterior | None
) -> tuple[float, type[Curvature]]:
    """Multiply-adds and structure of an exact step. A previous posterior allows dual form only if it is dual itself."""
    if past is None:
        return exact_cost(network.blocks, n_dual)
    previous_rows = past.dual_rows(n_dual // len(rows))
    return exact_cost(network.blocks, n_dual + previous_rows, frozenset({"rows"} if previous_rows else ()))


def problem_of(
    network: Network,
    prior: Prior,
    rows: TrainingRows,
    n_dual: int,
    plan: Plan,
    *,
    exact: bool | None = None,
) -> Problem:
    """Inputs of the mode search, exact if affordable. The memory budget may cause an error, never another method."""
    rule, n_columns, likelihood, memory = GGN(), n_dual // len(rows), plan.likelihood, plan.options.memory
    cost, exact_form = _exact(network, rows, n_dual, plan.previous)
    large: type[Curvature] = Kron if unit_of(network.blocks, prior.groups) in Kron.holds else Diag
    large = large if plan.previous is None else type(plan.previous.fit.curvature)
    exact = cost <= budget_for(len(rows)).exact_step if exact is None else exact
    structure = exact_form if exact else large
    n_dual += 0 if plan.previous is None else plan.previous.dual_rows(n_columns)
    if not memory.fits(structure, network, n_dual, n_columns):
        needed = structure.memory(network.blocks, n_dual)
        raise MemoryBudgetError(
            f"the training needs a curvature of all {network.n_parameters:,} weights in addition to the posterior's, "
            f"{needed:,} bytes and those of one row; {memory}. Use a larger memory_budget or a smaller net, or train "
            "the net elsewhere and give net=FrozenEstimator(net)."
        )
    past = None if plan.previous is None else plan.previous.within(structure)
    options = {} if past is None else past.curvature.options
    chunks = rows.chunks(memory.pass_rows(structure, network, n_columns, structure.memory(network.blocks, n_dual)))
    return Problem(
        lambda network: fit_laplace(network, likelihood, rule, structure, prior, chunks, past=past, **options),
        lambda network: DataLoss(network, likelihood, chunks, past),
        plan.is_over,
    )


STARTS = 1.0, 0.1
"""Initial prior precisions, in natural units. With the strong prior alone, the net may stay linear. With the weak one
alone, it may overfit."""
LITTLE = 2.0
"""Maximum effective number of parameters after the strong start, relative to a linear model, for which the weak start
is tried."""
GROUPED_START = 10.0, 0.1
"""A further start for models with several prior precisions: values for the first layer and for later layers. A strong
prior of the first layer keeps irrelevant columns out."""


def _best_start(problem: Problem, fit: LaplaceFit, hyper: Hyper, plan: Plan, max_steps: int, n_linear: int) -> Mode:
    """Alternate steps of weights and hyperparameters from one or several starts; return the mode of largest evidence.

    ``fit`` is the pass at the initial weights; ``n_linear`` is the number of parameters of a linear model.
    """
    free_prior = plan.precision is None
    first = free_prior and plan.previous is None and plan.again is None
    network, prior = fit.network, fit.prior
    factors = _start_factors(network, prior) if first else [torch.ones_like(hyper.prior_precision)]
    factors = factors[:1] if plan.begun is not None else factors
    several = free_prior and has_groups(network, prior)
    modes: list[Mode] = []
    for factor in factors:
        if modes and problem.is_over():
            break
        if modes and not several and effective_parameters(modes[0].fit, modes[0].hyper) > LITTLE * n_linear:
            break
        start, update = replace(hyper, prior_precision=factor * hyper.prior_precision), plan.update
        steps = max_steps // 2 if modes and not several else max_steps
        train = partial(alternate, free_prior=free_prior, update_dispersion=update, short=plan.is_noisy)
        modes.append(train(problem, fit, start, max_steps=steps))
    if len(modes) == 1:
        return modes[0]
    best = max(modes, key=lambda mode: log_evidence(mode.fit, mode.hyper))
    return replace(best, n_steps=sum(mode.n_steps for mode in modes))


def has_groups(network: Network, prior: Prior) -> bool:
    """Return True if the prior has several precisions, not counting those of embeddings."""
    return prior.n_groups - int((_levels(network, prior) > 0).sum()) > 1


def _levels(network: Network, prior: Prior) -> Tensor:
    """Number of embedding levels of each prior group (G,), float64; 0 for groups of other weights."""
    module, shapes = network.module, network.layout.shapes
    embeddings = module.apart if isinstance(module, ColumnsModule) else ()
    levels = [shapes[name][1] if name in embeddings else 0 for name in prior.names]
    return torch.tensor(levels, dtype=torch.float64, device=network.theta.device)


def _start_factors(network: Network, prior: Prior) -> list[Tensor]:
    """Factors (G,) of the natural precisions for each start."""
    groups, ones = prior.groups, torch.ones(prior.n_groups, dtype=torch.float64, device=network.theta.device)
    # Without this factor, an embedding of many levels could fit all targets at once, and numbers would not be used.
    by_levels = _levels(network, prior).clamp_min(1.0)
    factors = [factor * by_levels for factor in STARTS]
    if has_groups(network, prior):
        (first, later), place = GROUPED_START, groups[: network.blocks[0].size].unique()
        factors.append((later * ones).index_fill(0, place, first))
    return factors


SCHEDULE = Schedule(600, lr=0.02, weight_decay=0.0, most_further=0, bias_rate=1.0)
"""Schedule of the gradient training."""


def starts_by_gradients(network: Network, rows: TrainingRows, plan: Plan) -> bool:
    """True if gradient training precedes exact steps.

    This requires normal noise of unknown level, more than ``SMALL_ROWS`` rows, hidden layers, and a prior precision
    that is fixed or common to all groups.
    """
    is_open = plan.free_dispersion and plan.previous is None and plan.likelihood.quadratic
    if not is_open or len(rows) <= SMALL_ROWS or not is_exact(network, rows, plan):
        return False
    is_deep = isinstance(network.module, MLP | TableMLP) and len(network.module.hidden_layer_sizes) > 0
    return is_deep and not (plan.precision is None and has_groups(network, plan.prior(network)))


def gradient_start(
    modules: Sequence[MLP] | Sequence[TableMLP], rows: TrainingRows, seen: Tensor, prior: float, seed: int, steps: Steps
) -> float | None:
    """Train nets of the same shape in place; return the mean squared error of held-out rows.

    ``seen`` (K, n) is 1 for the training rows of a net, else 0; ``prior`` is the prior precision δ. For targets almost
    free of noise, return None and keep the initial weights, because gradient training then leads to worse modes.
    """
    stacked, loss = Stacked(modules, learns_scales=False), Squares()
    training = Training(stacked, loss, rows, seen, SCHEDULE, seed % 2**31, [prior] * len(modules), from_zero=False)
    outputs, precision = torch.empty(0), training.precision.double()
    judges = (seen < 1).any(1)  # nets with held-out rows
    unseen = ((1 - seen) * rows.weights)[judges]
    with single_thread(stacked.is_small(SCHEDULE)):
        for begin, end in SCHEDULE.cycles:
            training.run(SCHEDULE.rate, SCHEDULE.decay, range(begin, end), steps)
            outputs = training.outputs()
            steps.score(mean_errors(loss, rows, outputs[judges], unseen, precision), rows.n_outputs)
            noise = mean_errors(loss, rows, outputs, seen * rows.weights, precision)
            training.noise = torch.minimum(training.noise, noise.to(training.noise))
    errors = mean_errors(loss, rows, outputs[judges], unseen, precision)
    error = float((errors * unseen.sum(1)).sum() / unseen.sum())
    if error < NOISELESS:
        return None
    for module, state in zip(modules, stacked.written(), strict=True):
        module.load_state_dict(state)
    return error


def started(
    modules: Sequence[MLP] | Sequence[TableMLP],
    network: Network,
    rows: TrainingRows,
    seen: Tensor,
    plan: Plan,
    seed: int,
    steps: Steps,
) -> Plan:
    """Train nets by gradients in place, and return the plan of the exact steps that follow."""
    prior = float(plan.start(network, plan.prior(network)).prior_precision.mean())
    return replace(plan, begun=gradient_start(modules, rows, seen, prior, seed, steps))
