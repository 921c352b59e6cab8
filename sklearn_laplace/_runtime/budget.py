"""Limits on the cost of a default fit: multiply-adds, steps and bytes, in two tiers by the number of rows.

Up to 300 rows, a fit should take no longer than a few trainings with Adam, since searches and ensembles run many fits.
With more rows, it may take longer and comes closer to its mode. ``tests/estimator/test_sklearn.py`` checks the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..laplace.jacobian.blocks import ParameterBlock
from ..laplace.structures import Diag, Full, Functional, Kron
from ..laplace.structures._base import Curvature

SMALL_ROWS = 300
"""Maximum number of rows of the lower tier."""
SINGLE_THREAD_FLOPS = 2e8
"""Multiply-adds of one exact step up to which further threads do not save time."""
SINGLE_THREAD_PASS = 1e7
"""Rows × weights of one forward pass up to which further threads do not save time in a training without exact steps."""
FULL_BATCH_ROWS = 10_000
"""Maximum number of rows for full-batch steps in Kronecker form if exact steps are too expensive.

The cost of such a step grows with the rows. Training by mini-batches takes 5,000 steps for any number of rows.
"""
FLOAT32_ROWS = 10_000
"""Total weight up to which ``dtype="auto"`` means float64."""


@dataclass(frozen=True)
class Budget:
    """Limits of one tier: costs in multiply-adds, memory in bytes.

    ``exact_step`` limits one exact Gauss–Newton step for a training by such steps. ``exact_posterior`` and
    ``posterior_bytes`` limit an exact structure under ``hessian_structure="auto"``, the former its pass over the data
    plus its eigendecomposition.

    Cheap steps alternate with evidence steps at most ``gauss_newton_steps`` times, expensive ones
    ``dear_gauss_newton_steps`` times; at most ``refine_steps`` L-BFGS steps follow. If Gauss–Newton steps are too
    expensive, the built-in net takes ``epoch_steps`` gradient steps, with ``evidence_steps`` evidence steps during the
    epochs. A ``batch_size`` of −1 means all rows.
    """

    exact_step: float
    exact_posterior: float
    posterior_bytes: int
    gauss_newton_steps: int
    dear_gauss_newton_steps: int
    refine_steps: int
    epoch_steps: int
    batch_size: int
    evidence_steps: int


def budget_for(n_rows: int) -> Budget:
    """Limits for a number of rows.

    Examples
    --------
    >>> budget_for(200).refine_steps, budget_for(2000).refine_steps
    (30, 120)
    """
    return SMALL if n_rows <= SMALL_ROWS else LARGE


def exact_cost(
    blocks: Sequence[ParameterBlock], n_dual: int, provides: frozenset[str] = frozenset({"rows"})
) -> tuple[float, type[Curvature]]:
    """Multiply-adds of one exact step, and the cheaper one of the two exact structures.

    ``n_dual`` is the dual dimension M: rows times columns of the output factor. ``provides`` has the forms in which a
    row's curvature contribution is available; without "rows" there is no dual form.

    Examples
    --------
    >>> cost, structure = exact_cost([ParameterBlock("0", 50, 11, factored=True)], n_dual=100)
    >>> structure.__name__
    'Functional'
    """
    p, m = float(sum(block.size for block in blocks)), float(n_dual)
    panel = sum(b.outputs + b.inputs if b.positions == 1 else b.size for b in blocks)
    primal, dual = m * p**2 + p**3, m**2 * panel + 2 * m**3
    return (dual, Functional) if dual < primal and Functional.accepts & provides else (primal, Full)


def kron_cost(blocks: Sequence[ParameterBlock], n_rows: int, n_columns: int) -> float:
    """Multiply-adds of one step in Kronecker form, for N rows and K columns of the output factor.

    The sums of the factors take N Σ (K O² + I²), their eigendecompositions 2 Σ (O³ + I³). O and I are the numbers of
    outputs and inputs of a layer.

    Examples
    --------
    >>> kron_cost([ParameterBlock("0", 50, 11, factored=True)], n_rows=100, n_columns=1)
    514762.0
    """
    sums = sum(n_rows * (n_columns * block.outputs**2 + block.inputs**2) for block in blocks)
    return float(sums + 2 * sum(block.outputs**3 + block.inputs**3 for block in blocks))


def eigen_cost(blocks: Sequence[ParameterBlock], n_dual: int) -> float:
    """Multiply-adds of the eigendecomposition for the evidence of a single precision, about 10 · size³."""
    return 10 * float(min(sum(block.size for block in blocks), n_dual)) ** 3


def automatic_structure(
    blocks: Sequence[ParameterBlock],
    n_dual: int,
    n_rows: int,
    provides: frozenset[str],
    unit: str,
    fits: Callable[[type[Curvature]], bool],
) -> type[Curvature]:
    """Most accurate structure within the budget: the cheaper exact one, else ``kron``, else ``diag``.

    ``n_dual`` and ``provides`` are those of :func:`exact_cost`; ``n_rows`` selects the tier of the budget. The
    structure has to accept one of the forms, and to support a ``unit``, such as "layer", within which prior precisions
    are equal. ``fits`` returns True if a structure class fits in memory.

    Examples
    --------
    >>> blocks, forms = [ParameterBlock("0", 50, 11, factored=True)], frozenset({"rows", "layers"})
    >>> automatic_structure(blocks, 100, 100, forms, "layer", lambda structure: True).__name__
    'Functional'
    >>> automatic_structure(blocks, 100, 100, forms, "layer", lambda structure: structure is Kron).__name__
    'Kron'
    """
    budget = budget_for(n_rows)
    cost, exact = exact_cost(blocks, n_dual, provides)
    size = n_dual if exact is Functional else sum(block.size for block in blocks)
    affordable = cost + eigen_cost(blocks, size) <= budget.exact_posterior
    if affordable and exact.memory(blocks, n_dual) <= budget.posterior_bytes and fits(exact):
        return exact
    return Kron if Kron.accepts & provides and unit in Kron.holds and fits(Kron) else Diag


SMALL = Budget(1.5e9, 5e9, 2**28, 60, 36, 30, 400, -1, 8)
LARGE = Budget(1e10, 2e11, 2**30, 60, 60, 120, 5000, 256, 20)
