"""Dense curvature of an example problem, in the form of each structure and rule."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import oracles
import torch
from torch import Tensor, nn

from sklearn_laplace.laplace.curvatures.mc_fisher import row_uniforms
from sklearn_laplace.laplace.jacobian import Batch
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS

from .examples import Example, to_package


@lru_cache(maxsize=100)
def dense_curvature(structure: str, problem: Example, *, reduce: bool = False, rank: int | None = None) -> Tensor:
    """Curvature H as the structure stores it, from the oracles alone, in the package's order.

    ``reduce`` selects the weight sharing of Kronecker factors. ``rank`` is that of ``low_rank_diag``, by default full.
    Tests share the matrix and must not change it.
    """
    network, rows = problem.network, (problem.x, problem.y, problem.weights)
    names = network.parameter_names
    exact = oracles.ggn(problem.kind, problem.module, names, *rows, problem.noise_variance)
    if structure == "diag":
        exact = oracles.diagonal(exact)
    if structure == "block_diagonal":
        exact = layerwise(problem, exact, lambda A, B, block: block, reduce)
    if structure == "kron":
        exact = layerwise(problem, exact, lambda A, B, block: torch.kron(B, A), reduce)
    if structure == "ekfac":
        exact = layerwise(problem, exact, _in_kronecker_basis, reduce)
    if structure == "low_rank_diag":
        exact = layerwise(
            problem, exact, lambda A, B, block: leading_and_diagonal(A, B, block, rank or len(block)), reduce
        )
    return to_package(network, exact)


def _in_kronecker_basis(A: Tensor, B: Tensor, block: Tensor) -> Tensor:
    """Projection of the block on matrices that are diagonal in the eigenbasis of B ⊗ A."""
    basis = torch.kron(torch.linalg.eigh(B)[1], torch.linalg.eigh(A)[1])
    return basis @ oracles.diagonal(basis.mT @ block @ basis) @ basis.mT


def leading_and_diagonal(A: Tensor, B: Tensor, block: Tensor, rank: int) -> Tensor:
    """V diag(l) Vᵀ for the largest l = vᵀ block v over the eigenvectors v of B ⊗ A, plus the rest of the diagonal."""
    basis = torch.kron(torch.linalg.eigh(B)[1], torch.linalg.eigh(A)[1])
    moments = (basis.mT @ block @ basis).diagonal()
    top = moments.argsort(descending=True)[:rank]
    leading = basis[:, top] @ torch.diag(moments[top]) @ basis[:, top].mT
    return leading + torch.diag((block - leading).diagonal().clamp(min=0))


def layerwise(
    problem: Example, exact: Tensor, form: Callable[[Tensor, Tensor, Tensor], Tensor], reduce: bool
) -> Tensor:
    """Block-diagonal matrix with ``form(A, B, exact block)`` for each linear layer, in the oracles' order.

    ``form`` gets the layer's matrix [W | b] in row-major order, or W where biases are separate. Any other tensor
    has its exact block as A.
    """
    folds = problem.network.folds_biases
    tensors = [(name, problem.module.get_parameter(name).numel()) for name in problem.network.parameter_names]
    dense = torch.zeros_like(exact)
    start = 0
    while tensors:
        name, size = tensors.pop(0)
        layer, _, tensor = name.rpartition(".")
        if tensor == "weight":
            if folds and tensors and tensors[0][0] == f"{layer}.bias":
                size += tensors.pop(0)[1]
            rows = problem.x, problem.y, problem.weights
            settings = {"fold_bias": folds, "reduce": reduce, "noise_variance": problem.noise_variance}
            A, B = oracles.kron_factors(problem.kind, layer, problem.module, *rows, **settings)
            order = oracles.layer_matrix_permutation(problem.module, layer) if folds else torch.arange(size)
            back = order.argsort()
            span = slice(start, start + size)
            block = form(A, B, exact[span, span][back][:, back])[order][:, order]
        else:
            whole = exact[start : start + size, start : start + size]
            block = form(whole, torch.ones(1, 1, dtype=torch.float64), whole)
        dense[start : start + size, start : start + size] = block
        start += size
    return dense


N_DRAWS, FISHER_SEED = 3, 7
"""Draws per row and seed of the sampled Fisher."""


def sampled_fisher(
    kind: str,
    module: nn.Module,
    names: tuple[str, ...],
    x: Tensor,
    y: Tensor,
    weights: Tensor,
    noise_variance: float | Tensor = 1.0,
) -> Tensor:
    """Mean of the empirical Fisher matrices at the targets that the rule draws; independent of y."""
    f = oracles.outputs(module, x)
    uniforms = row_uniforms(x, N_DRAWS * f.shape[1], FISHER_SEED).view(len(x), N_DRAWS, -1)
    drawn = [LIKELIHOODS[kind]().sample(f, uniforms[:, s]) for s in range(N_DRAWS)]
    if isinstance(noise_variance, Tensor):
        drawn = [f + noise_variance.sqrt() * (y - f) for y in drawn]
    parts = [oracles.empirical_fisher(kind, module, names, x, y, weights, noise_variance) for y in drawn]
    return torch.stack(parts).mean(0)


def dense_contribution(batch: Batch) -> tuple[Tensor, Tensor]:
    """Contribution of a batch to the curvature (P, P), and its rows (n, K, P)."""
    rows = batch.jacobian.rows()
    ours = torch.einsum("nkp,nkq->pq", rows, rows)
    return ours if batch.matrix is None else ours + batch.matrix, rows


DENSE_RULES: dict[str, Callable[..., Tensor]] = {
    "ggn": oracles.ggn,
    "empirical_fisher": oracles.empirical_fisher,
    "mc_fisher": sampled_fisher,
    "hessian": oracles.hessian,
}
"""Dense reference of each rule."""
