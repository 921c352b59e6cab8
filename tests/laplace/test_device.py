"""Number of values that the host reads, each of which would stall a GPU; counted on the CPU."""

from __future__ import annotations

import oracles
import pytest
import torch
from host_reads import Reads

from sklearn_laplace._training.progress import Clock, Steps, Task
from sklearn_laplace.laplace import Hyper, LaplaceFit, Rows, fit_laplace
from sklearn_laplace.laplace.curvatures import CURVATURES
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.network import Network, trace
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.nets import TableMLP
from sklearn_laplace.nets.stacked import StackedNets

CASES = [
    (rule, structure)
    for rule in CURVATURES
    for structure in STRUCTURES
    if CURVATURES[rule].provides & STRUCTURES[structure].accepts
]


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


def test_no_category_is_waited_for():
    """An index that is a tensor without dimensions would be read by the host, for each column and chunk."""
    x = torch.tensor([[0.5, 1.0, 0.0], [2.0, 3.0, 1.0]], dtype=torch.float64)
    net = TableMLP([0, 3, 2], [True, False, False], 1, hidden_layer_sizes=(5,)).double()
    network = trace(net, x)
    stacked = StackedNets.of([network, network])
    with Reads() as reads:
        network.jacobian(x)
        stacked.outputs(x)
    assert reads.count == 0


def test_losses_are_read_when_they_are_shown(capsys):
    """Once in ``each`` steps, not in every step."""
    with Steps(Task(Clock(verbose=2), ("training",)), 20, each=10) as steps, Reads() as reads:
        for _ in range(9):
            steps.advance(torch.ones(()))
        assert reads.count == 0
        steps.advance(torch.ones(()))
    assert "step 10 of 20, loss 1" in capsys.readouterr().out
