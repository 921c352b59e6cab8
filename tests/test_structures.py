"""Each structure's posterior is the dense one that its definition says, built from the oracles alone."""

import contracts
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sklearn_laplace.errors import UnsupportedCombinationError
from sklearn_laplace.network import Network
from sklearn_laplace.structures import STRUCTURES
from sklearn_laplace.subsets import SUBSETS

few = settings(max_examples=15, deadline=None, derandomize=True)


@st.composite
def problems(draw, subset: str, kind: str) -> contracts.Example:
    """Nets with or without a dense tensor, of any small shape, with rows of which some have no weight."""
    smallest = 2 if kind == "categorical" else 1
    d, width, n_outputs = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(smallest, 3))
    seed, n = draw(st.integers(0, 2**31)), draw(st.integers(n_outputs, 8))
    if subset == "all" and draw(st.booleans()):
        module: nn.Module = contracts.Scaled(d, width, n_outputs, seed)
    else:
        module = oracles.random_mlp((d, width, width, n_outputs), seed=seed)
    x, y = contracts.random_rows(kind, n, d, n_outputs, seed)
    network = Network.trace(module, x)
    network = network.select(SUBSETS[subset]().names(network), x)
    return contracts.Example(kind, module, network, x, y, oracles.random_weights(n, seed))


@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize("subset", sorted(SUBSETS))
@pytest.mark.parametrize("structure", sorted(STRUCTURES))
@given(data=st.data())
@few
def test_posterior_is_the_dense_one_of_its_definition(structure, subset, kind, data):
    """full, functional: the GGN; diag: its diagonal; kron: B ⊗ A a layer. 1e-8: float64, conditions up to 1e5."""
    problem = data.draw(problems(subset, kind))
    precision = data.draw(st.sampled_from([0.1, 1.0, 30.0]))
    scale = data.draw(st.sampled_from([0.2, 1.0, 4.0]))
    tensorwise = data.draw(st.booleans())
    network = problem.network
    prior = network.tensor_prior() if tensorwise else network.scalar_prior()
    values = precision * torch.linspace(1, 3, prior.n_groups, dtype=torch.float64)
    posterior = problem.fit(structure, prior).curvature.posterior(prior.precision(values), scale)

    H = contracts.dense_curvature(structure, problem)
    P = oracles.posterior_precision(H, values[prior.groups], scale)
    covariance = contracts.covariance_of(posterior, network.n_parameters)
    contracts.close(covariance, torch.linalg.inv(P), 1e-8, "covariance of the weights")
    contracts.close(posterior.logdet_precision(), torch.linalg.slogdet(P).logabsdet, 1e-8, "log determinant")
    new = contracts.random_rows(kind, 5, problem.x.shape[1], problem.network(problem.x).shape[1], seed=1)[0]
    J = oracles.jacobian(problem.module, network.parameter_names, new)
    expected = oracles.glm_covariance(J, contracts.to_oracle(network, P))
    contracts.close(posterior.covariance(problem.jacobian(new)), expected, 1e-8, "covariance of the outputs")
    joint = posterior.cross_covariance(problem.jacobian(new), problem.jacobian(new))
    contracts.close(joint, oracles.glm_joint_covariance(J, contracts.to_oracle(network, P)), 1e-8, "joint covariance")


@pytest.mark.parametrize("structure", ["kron", "functional"])
def test_a_precision_for_each_parameter_is_refused_where_the_form_is_lost(structure):
    """Within one input column all precisions have to be equal; the message says what to use instead."""
    problem = contracts.example("gaussian")
    curvature = problem.fit(structure).curvature
    delta = torch.ones(problem.network.n_parameters, dtype=torch.float64)
    bias_block = delta.clone()
    bias_block[-1] = 2.0  # the last output's bias
    for refused in (torch.linspace(1, 2, len(delta), dtype=torch.float64), bias_block):
        with pytest.raises(
            UnsupportedCombinationError, match=rf"hessian_structure='{structure}'.*layer 'body\.\d'"
        ) as e:
            curvature.posterior(refused, 1.0)
        assert "prior_structure='scalar' or 'tensor'" in str(e.value) and "'full' or 'diag'" in str(e.value)


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_a_precision_for_each_input_column_is_exact(structure):
    """Relevance of each input (ARD) keeps the Kronecker form: whitening the columns."""
    problem = contracts.example("categorical", seed=3)
    network = problem.network
    parts = []
    for i, block in enumerate(network.blocks):
        columns = torch.logspace(-1, 1, block.inputs, dtype=torch.float64) * (i + 1)
        parts.append(columns.repeat(block.outputs))
    delta = torch.cat(parts)
    posterior = problem.fit(structure).curvature.posterior(delta, 1.6)
    P = oracles.posterior_precision(contracts.dense_curvature(structure, problem), delta, 1.6)
    contracts.close(contracts.covariance_of(posterior, len(delta)), torch.linalg.inv(P), 1e-8, "covariance")
    contracts.close(posterior.marginal_variance(), torch.linalg.inv(P).diagonal(), 1e-8, "marginal variance")


def test_kron_of_one_row_is_exact():
    """One row of weight one and one output: the block of a layer is a Kronecker product, no approximation."""
    problem = contracts.example("gaussian", n=4, sizes=(2, 3, 1))
    one = contracts.Example(
        "gaussian", problem.module, problem.network, problem.x[:1], problem.y[:1], torch.full((1,), 1.7).double()
    )
    H = oracles.ggn("gaussian", one.module, one.network.parameter_names, one.x, one.y, one.weights)
    exact = contracts.to_package(one.network, oracles.block_diagonal(H, [3, 9, 4]))
    batch = one.batch()
    curvature = STRUCTURES["kron"].zero(one.network.blocks, contracts.CPU).add(batch)
    covariance = contracts.covariance_of(curvature.posterior(torch.tensor(0.5).double(), 1.0), len(H))
    expected = torch.linalg.inv(oracles.posterior_precision(exact, 0.5))
    contracts.close(covariance, expected, 1e-10, "kron of one row")


def test_integer_weights_are_repeated_rows():
    """The definition of a sample weight, for every structure at once."""
    problem = contracts.example("categorical", seed=5)
    counts = oracles.random_weights(len(problem.x), 5, integer=True)
    index = torch.repeat_interleave(torch.arange(len(counts)), counts.long())
    weighted = contracts.Example("categorical", problem.module, problem.network, problem.x, problem.y, counts)
    ones = torch.ones(len(index), dtype=torch.float64)
    repeated = contracts.Example(
        "categorical", problem.module, problem.network, problem.x[index], problem.y[index], ones
    )
    delta = torch.tensor(0.3, dtype=torch.float64)
    for structure in STRUCTURES:
        a, b = (
            contracts.covariance_of(p.fit(structure).curvature.posterior(delta, 1.0), p.network.n_parameters)
            for p in (weighted, repeated)
        )
        contracts.close(a, b, 1e-10, structure)


def test_last_layer_is_found_behind_a_parameter_of_the_net_itself():
    """A position embedding or a gain owned by the outermost module is no layer, and not the last one called."""
    problem = contracts.example("gaussian")
    assert SUBSETS["last_layer"]().names(problem.network) == ("body.2.weight", "body.2.bias")


def test_last_layer_is_refused_where_it_is_not_linear():
    """The message names what was found and what to use instead."""
    module = nn.Sequential(oracles.random_mlp((2, 3)), nn.LayerNorm(3).double())
    network = Network.trace(module, torch.zeros(2, 2, dtype=torch.float64))
    with pytest.raises(UnsupportedCombinationError, match=r"found '1' \(LayerNorm\). Use subset_of_weights='all'"):
        SUBSETS["last_layer"]().names(network)
