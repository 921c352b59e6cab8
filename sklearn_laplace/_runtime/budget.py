"""Limits on the cost of a default fit: multiply-adds, steps and bytes, in two tiers by the number of rows.

Up to 300 rows, a fit takes no longer than a few trainings with Adam, since searches and ensembles run many fits. With
more rows it comes closer to its mode. ``tests/estimator/test_sklearn.py`` checks the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..laplace.jacobian.jacobian import ParameterBlock
from ..laplace.structures import Diag, Full, Functional, Kron
from ..laplace.structures._base import Curvature

SMALL_ROWS = 300
"""Maximum number of rows of the lower tier."""
SINGLE_THREAD_FLOPS = 2e8
"""Multiply-adds of one exact step up to which further threads do not save time."""
SINGLE_THREAD_PASS = 1e7
"""Rows × weights of one forward pass up to which further threads do not save time in a training without exact steps."""
FULL_BATCH_ROWS = 10_000
"""Maximum number of rows for full-batch steps in Kronecker form if exact steps are too expensive: their cost grows with
the rows, and that of mini-batches does not."""
FLOAT32_ROWS = 10_000
"""Total weight up to which ``dtype="auto"`` means float64."""


@dataclass(frozen=True)
class Budget:
    """Limits of one tier: costs in multiply-adds, memory in bytes."""

    exact_step: float  # of a Gauss–Newton step in the training
    exact_posterior: float  # pass over the data and eigendecomposition of an automatic exact structure
    posterior_bytes: int  # of an automatic exact structure
    gauss_newton_steps: int  # cheap ones, each alternating with an evidence step
    dear_gauss_newton_steps: int  # expensive ones
    refine_steps: int  # L-BFGS, after the Gauss–Newton steps
    epoch_steps: int  # gradient steps of the built-in net if Gauss–Newton steps are too expensive
    batch_size: int  # −1: all rows
    evidence_steps: int  # during the epochs


def budget_for(n_rows: int) -> Budget:
    return SMALL if n_rows <= SMALL_ROWS else LARGE


def exact_cost(
    blocks: Sequence[ParameterBlock], n_dual: int, provides: frozenset[str] = frozenset({"rows"})
) -> tuple[float, type[Curvature]]:
    """Multiply-adds of one exact step, and the cheaper exact structure.

    The dual dimension M is rows × columns of the output factor. ``provides`` has the forms of a row's curvature
    contribution; without "rows" there is no dual form.
    """
    p, m = float(sum(block.size for block in blocks)), float(n_dual)
    panel = sum(b.outputs + b.inputs if b.positions == 1 else b.size for b in blocks)
    primal, dual = m * p**2 + p**3, m**2 * panel + 2 * m**3
    return (dual, Functional) if dual < primal and Functional.accepts & provides else (primal, Full)


def automatic_structure(
    blocks: Sequence[ParameterBlock],
    n_dual: int,
    n_rows: int,
    provides: frozenset[str],
    unit: str,
    fits: Callable[[type[Curvature]], bool],
) -> type[Curvature]:
    """Most accurate structure that is affordable and ``fits`` in memory: an exact one, else ``kron``, else ``diag``.

    It accepts one of the forms that the curvature ``provides``, and supports the ``unit``, such as "layer", within
    which prior precisions are equal.
    """
    budget = budget_for(n_rows)
    cost, exact = exact_cost(blocks, n_dual, provides)
    n_parameters = sum(block.size for block in blocks)
    size = min(n_dual, n_parameters) if exact is Functional else n_parameters
    cost += 10 * float(size) ** 3  # eigendecomposition for the evidence of a single precision
    if cost <= budget.exact_posterior and exact.memory(blocks, n_dual) <= budget.posterior_bytes and fits(exact):
        return exact
    return Kron if Kron.accepts & provides and unit in Kron.holds and fits(Kron) else Diag


SMALL = Budget(1.5e9, 5e9, 2**28, 60, 36, 30, 400, -1, 8)
LARGE = Budget(1e10, 2e11, 2**30, 60, 60, 120, 5000, 256, 20)
