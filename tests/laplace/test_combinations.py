"""Every subset × curvature × structure × likelihood gives its dense posterior or a specific error."""

from __future__ import annotations

import itertools
import math
import warnings
from functools import cache

import contracts
import oracles
import pytest
import torch

from sklearn_laplace.errors import ClippedWarning, UnsupportedCombinationError
from sklearn_laplace.laplace import fit_laplace
from sklearn_laplace.laplace.curvatures import CURVATURES
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.subsets import SUBSETS, All, LastLayer, Subnetwork
from sklearn_laplace.options import resolve as _resolve

CASES = list(itertools.product(sorted(SUBSETS), sorted(CURVATURES), sorted(STRUCTURES), contracts.ALL_KINDS))
CHOSEN = {"all": All(), "last_layer": LastLayer(), "subnetwork": Subnetwork({"0.weight": None, "0.bias": None})}
DELTA, SCALE = 0.8, 1.7


@cache
def problem_of(subset, kind):
    """Example of a subset and a likelihood, with new inputs and their dense Jacobian."""
    n_outputs = contracts.n_outputs_of(kind, 3)
    module = oracles.random_mlp((2, 3, n_outputs), seed=7)
    x, y = contracts.random_rows(kind, 8, 2, n_outputs, 7)
    network = CHOSEN[subset].of(trace(module, x), x)
    problem = contracts.Example(kind, module, network, x, y, oracles.random_weights(8, 7))
    new = contracts.random_rows(kind, 4, 2, n_outputs, 1)[0]
    return problem, new, oracles.jacobian(module, network.parameter_names, new)


@cache
def exact_curvature(curvature, subset, kind):
    """Dense matrix of a rule, in the package's order."""
    problem, _, _ = problem_of(subset, kind)
    rows = problem.x, problem.y, problem.weights
    dense = contracts.DENSE_RULES[curvature](kind, problem.module, problem.network.parameter_names, *rows)
    return contracts.to_package(problem.network, dense)


@cache
def input_factor(problem, layer):
    return oracles.kron_factors(problem.kind, layer, problem.module, problem.x, problem.y, problem.weights)[0]


def psd(matrix):
    """Matrix with negative eigenvalues set to zero, as indefinite Hessians are stored."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp_min(0.0)) @ vectors.mT


def stored(structure, exact, rows, problem):
    """Part of the exact curvature that a structure stores, in the package's order; blocks are [W | b], row-major."""
    if structure in ("full", "functional", "low_rank"):
        return psd(exact)
    if structure == "diag":
        return torch.diag(exact.diagonal().clamp_min(0.0))
    matrix, start = torch.zeros_like(exact), 0
    for block in problem.network.blocks:
        span = slice(start, start + block.size)
        part = exact[span, span]
        if structure != "block_diagonal":
            layer = rows[:, :, span].unflatten(-1, (block.outputs, block.inputs))
            g = layer[..., -1].flatten(0, 1)  # the bias's input is one
            B = g.mT @ g
            A = input_factor(problem, block.name)
            basis = torch.kron(torch.linalg.eigh(B)[1], torch.linalg.eigh(A)[1])
            part = {
                "kron": torch.kron(B, A),
                "ekfac": basis @ torch.diag((basis.mT @ part @ basis).diagonal()) @ basis.mT,
                "low_rank_diag": contracts.leading_and_diagonal(A, B, part, len(part)),
            }[structure]
        matrix[span, span] = psd(part)
        start += block.size
    return matrix


@pytest.mark.parametrize(("subset", "curvature", "structure", "kind"), CASES, ids=["-".join(case) for case in CASES])
def test_every_combination_is_its_dense_posterior_or_refused(subset, curvature, structure, kind):
    """Output covariances and log determinant against matrices from autodiff."""
    rule = CURVATURES[curvature]().sampling(contracts.N_DRAWS, contracts.FISHER_SEED)
    kept = STRUCTURES[structure]
    if not kept.accepts & rule.provides:
        with pytest.raises(UnsupportedCombinationError, match=f"'{structure}' cannot store curvature='{curvature}'"):
            _resolve.check_capabilities(curvature, rule, structure, kept)
        return
    _resolve.check_capabilities(curvature, rule, structure, kept)
    problem, new, J = problem_of(subset, kind)
    network, x, y = problem.network, problem.x, problem.y
    batch = rule.batch(network.linearise(x), problem.likelihood, y, problem.weights)
    H = stored(structure, exact_curvature(curvature, subset, kind), batch.jacobian.rows(), problem)
    P = oracles.posterior_precision(H, DELTA, SCALE)

    chunks = [(x[s], y[s], problem.weights[s]) for s in (slice(0, 3), slice(3, 8))]
    fit = fit_laplace(network, problem.likelihood, rule, kept, network.scalar_prior(), chunks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClippedWarning)
        posterior = fit.curvature.posterior(torch.tensor(DELTA, dtype=torch.float64), SCALE)
    assert math.isclose(float(posterior.logdet_precision()), float(torch.linalg.slogdet(P).logabsdet), rel_tol=1e-8)
    expected = oracles.glm_covariance(J, contracts.to_oracle(network, P))
    contracts.close(posterior.covariance(problem.jacobian(new)), expected, 1e-8, "covariance of the outputs")
