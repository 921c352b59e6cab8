"""What a default fit may cost: multiply-adds, steps and bytes, in two tiers of rows.

Up to 300 rows a fit is to take no longer than a few plain trainings by Adam, since searches and ensembles make many of
them; beyond, it may take longer and comes closer to its mode. ``tests/estimator/test_sklearn.py`` times it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..laplace.jacobian.blocks import ParameterBlock
from ..laplace.structures import Diag, Full, Functional, Kron
from ..laplace.structures._base import Curvature

SMALL_ROWS = 300
SINGLE_THREAD_FLOPS = 2e8
"""Multiply-adds of one exact step up to which more than one thread does not pay."""
SINGLE_THREAD_PASS = 1e7
"""The same of a forward pass over all rows, rows × weights, for a training without exact steps."""
FULL_BATCH_ROWS = 10_000
"""Rows up to which nets go by steps over all of them, in Kronecker form, where exact ones are too dear: those steps
grow with the rows, and a training by mini-batches has 5,000 steps however many rows there are."""
FLOAT32_ROWS = 10_000
"""``dtype="auto"``: float64 up to this sum of weights."""


@dataclass(frozen=True)
class Budget:
    """Limits of one tier.

    Parameters
    ----------
    exact_step : float
        Multiply-adds of one exact Gauss–Newton step up to which the training takes such steps.
    exact_posterior : float
        Multiply-adds of the pass and the eigendecomposition up to which ``hessian_structure="auto"`` is exact.
    posterior_bytes : int
        Memory up to which it is.
    gauss_newton_steps, dear_gauss_newton_steps : int
        Steps of the alternation with the evidence, for cheap and for dear ones.
    refine_steps : int
        L-BFGS steps at the end.
    epoch_steps, batch_size : int
        Gradient steps of the built-in net where Gauss–Newton is too dear, and their batch; −1 is all rows.
    evidence_steps : int
        Evidence steps during epochs.
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
    """The tier of a number of rows.

    Examples
    --------
    >>> budget_for(200).refine_steps, budget_for(2000).refine_steps
    (30, 120)
    """
    return SMALL if n_rows <= SMALL_ROWS else LARGE


def exact_cost(
    blocks: Sequence[ParameterBlock], n_dual: int, provides: frozenset[str] = frozenset({"rows"})
) -> tuple[float, type[Curvature]]:
    """Multiply-adds of one exact step, and the cheaper of the two exact structures.

    Parameters
    ----------
    blocks : sequence of ParameterBlock
    n_dual : int
        M: rows times columns of the output factor.
    provides : frozenset of str
        Forms of a row's contribution; without rows there is no dual form.

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
    """Multiply-adds of one step in Kronecker form: the factors' sums, N Σ (K O² + I²), and their eigendecompositions.

    Parameters
    ----------
    blocks : sequence of ParameterBlock
    n_rows : int
    n_columns : int
        K, of the output factor.

    Examples
    --------
    >>> kron_cost([ParameterBlock("0", 50, 11, factored=True)], n_rows=100, n_columns=1)
    514762.0
    """
    sums = sum(n_rows * (n_columns * block.outputs**2 + block.inputs**2) for block in blocks)
    return float(sums + 2 * sum(block.outputs**3 + block.inputs**3 for block in blocks))


def eigen_cost(blocks: Sequence[ParameterBlock], n_dual: int) -> float:
    """Multiply-adds of the eigendecomposition that the evidence of one precision needs, about 10 · size³."""
    return 10 * float(min(sum(block.size for block in blocks), n_dual)) ** 3


def automatic_structure(
    blocks: Sequence[ParameterBlock],
    n_dual: int,
    n_rows: int,
    provides: frozenset[str],
    unit: str,
    fits: Callable[[type[Curvature]], bool],
) -> type[Curvature]:
    """The most faithful structure within the budget: exact (the cheaper of two forms), else ``kron`` or ``diag``.

    Parameters
    ----------
    blocks : sequence of ParameterBlock
    n_dual : int
        M: rows × columns of the output factor.
    n_rows : int
        Chooses the budget.
    provides : frozenset of str
        Forms of a row's contribution, of which the structure has to take one.
    unit : str
        Within what the prior precisions are equal, which the structure has to hold.
    fits : callable
        Whether a structure fits in memory.

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
