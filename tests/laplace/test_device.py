"""Number of values that the host reads, each of which would stall a GPU; counted on the CPU."""

from __future__ import annotations

from typing import Any

import oracles
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sklearn_laplace.laplace import Hyper, LaplaceFit, Rows, fit_laplace
from sklearn_laplace.laplace.curvatures import CURVATURES
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.network import Network, trace
from sklearn_laplace.laplace.structures import STRUCTURES

READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal.default")
"""Operations whose result the host needs."""
CASES = [
    (rule, structure)
    for rule in CURVATURES
    for structure in STRUCTURES
    if CURVATURES[rule].provides & STRUCTURES[structure].accepts
]


class Reads(TorchDispatchMode):
    """Mode that counts these operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += any(name in str(func) for name in READS)
        return func(*args, **(kwargs or {}))


def problem(kind: str, n_chunks: int) -> tuple[Network, list[Rows]]:
    module = oracles.random_mlp((3, 4, 3))
    generator = torch.Generator().manual_seed(0)
    chunks = []
    for _ in range(n_chunks):
        x = torch.randn(6, 3, generator=generator).double()
        y = torch.randint(3, (6,), generator=generator) if kind == "categorical" else x.sin()
        chunks.append((x, y, torch.ones(6).double()))
    return trace(module, chunks[0][0]), chunks


def fit(kind: str, rule: str, structure: str, n_chunks: int) -> tuple[LaplaceFit, int]:
    network, chunks = problem(kind, n_chunks)
    with Reads() as reads:
        fitted_net = fit_laplace(
            network,
            LIKELIHOODS[kind](),
            CURVATURES[rule]().sampling(2, 0),
            STRUCTURES[structure],
            network.scalar_prior(),
            chunks,
        )
    return fitted_net, reads.count


def test_what_is_read_is_counted():
    with Reads() as reads:
        float(torch.ones(1)), bool(torch.ones(1) > 0)
    assert reads.count == 2


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
@pytest.mark.parametrize(("rule", "structure"), CASES)
def test_no_chunk_of_the_pass_is_waited_for(rule, structure, kind):
    """The count does not grow with the number of chunks, except for the symmetry check of the exact Hessian."""
    few, many = (fit(kind, rule, structure, n_chunks)[1] for n_chunks in (2, 5))
    assert many - few <= (3 if rule == "hessian" else 0)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_no_chunk_of_a_prediction_is_waited_for(structure):
    actual, _ = fit("categorical", "ggn", structure, 2)
    posterior = actual.posterior(Hyper(torch.ones(1, dtype=torch.float64)))
    x = problem("categorical", 1)[1][0][0]
    posterior.covariance(actual.network.jacobian(x)[1])  # values that the posterior reads once
    with Reads() as reads:
        posterior.covariance(actual.network.jacobian(x)[1])
    assert reads.count == 0
