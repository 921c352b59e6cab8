"""The optimisation problem of the MAP stage: the loss of the rows with its curvature."""

from __future__ import annotations

from .._host.rows import TrainingRows
from .._runtime.budget import budget_for, exact_cost
from ..errors import MemoryBudgetError
from ..laplace.curvatures import GGN
from ..laplace.fit import fit_laplace
from ..laplace.likelihoods._base import Likelihood
from ..laplace.mode.data_loss import DataLoss
from ..laplace.mode.problem import Problem
from ..laplace.network.network import Network
from ..laplace.previous import PreviousPosterior
from ..laplace.prior import Prior
from ..laplace.prior_groups import unit_of
from ..laplace.structures import Diag, Kron
from ..laplace.structures._base import Curvature
from .plan import Plan


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
