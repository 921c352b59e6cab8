"""Posterior of each structure against the dense matrix of its definition, built from the oracles alone."""

import contracts
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.errors import JitterWarning, NotPositiveDefiniteError, UnsupportedCombinationError
from sklearn_laplace.laplace import Hyper, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.likelihoods import Categorical, Gaussian
from sklearn_laplace.laplace.linalg import cholesky, eigh
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.prior import Prior
from sklearn_laplace.laplace.prior_groups import GROUPINGS
from sklearn_laplace.laplace.structures import STRUCTURES, Full, Functional, LowRank, kron
from sklearn_laplace.laplace.subsets import SUBSETS, Subnetwork
from sklearn_laplace.nets import TableMLP

OUTER_LAYERS = dict.fromkeys(("0.weight", "0.bias", "4.weight", "4.bias"))
few = settings(max_examples=8, deadline=None, derandomize=True)


@st.composite
def problems(draw, subset: str, kind: str) -> contracts.Example:
    """Small random nets, with or without a dense tensor, and rows of which some have weight zero."""
    smallest = 2 if kind == "categorical" else 1
    d, width, n_outputs = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(smallest, 3))
    seed, n = draw(st.integers(0, 2**31)), draw(st.integers(n_outputs, 8))
    if subset == "all" and draw(st.booleans()):
        module: nn.Module = contracts.Scaled(d, width, n_outputs, seed)
    else:
        module = oracles.random_mlp((d, width, width, n_outputs), seed=seed)
    x, y = contracts.random_rows(kind, n, d, n_outputs, seed)
    network = trace(module, x)
    chosen = Subnetwork(OUTER_LAYERS) if SUBSETS[subset] is Subnetwork else SUBSETS[subset]()
    network = chosen.of(network, x)
    return contracts.Example(kind, module, network, x, y, oracles.random_weights(n, seed))


@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize("subset", sorted(SUBSETS))
@pytest.mark.parametrize("structure", sorted(STRUCTURES))
@given(data=st.data())
@few
def test_posterior_is_the_dense_one_of_its_definition(structure, subset, kind, data):
    """full, functional, low_rank: the GGN; diag, block: its parts; kron: B ⊗ A; ekfac: its diagonal in that eigenbasis.

    Tolerance 1e-8: float64 with condition numbers up to 1e5.
    """
    problem = data.draw(problems(subset, kind))
    precision = data.draw(st.sampled_from([0.1, 1.0, 30.0]))
    scale = data.draw(st.sampled_from([0.2, 1.0, 4.0]))
    tensorwise = structure != "ekfac" and data.draw(st.booleans())
    network = problem.network
    prior = GROUPINGS["tensor"].prior(network) if tensorwise else network.scalar_prior()
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


@pytest.mark.parametrize("n_outputs", [7, 8, 11])
@pytest.mark.parametrize("module", ["mlp", "scaled"])
def test_full_of_many_outputs_is_the_dense_product(n_outputs, module):
    """With and without a tensor that is no layer; on both sides of the number of columns that is called many."""
    x, y = contracts.random_rows("categorical", 20, 3, n_outputs, seed=n_outputs)
    made = oracles.random_mlp((3, 4, n_outputs), seed=1) if module == "mlp" else contracts.Scaled(3, 4, n_outputs, 1)
    network = trace(made, x)
    prior = GROUPINGS["tensor"].prior(network)
    fit = fit_laplace(network, Categorical(), GGN(), Full, prior, [(x, y, torch.ones(20).double())])
    for values in (torch.ones(prior.n_groups).double(), torch.logspace(-1, 1, prior.n_groups, dtype=torch.float64)):
        posterior = fit.curvature.posterior(prior.precision(values), 1.0)
        jacobian = network.jacobian(x[:6])[1]
        rows, root = jacobian.rows(), posterior.root
        expected = rows @ (root @ root.mT) @ rows.mT
        torch.testing.assert_close(posterior.covariance(jacobian), expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(posterior.variance(jacobian), expected.diagonal(dim1=1, dim2=2).clone())


def test_the_density_of_weights_is_around_the_moved_mean():
    """After partial_fit, log density at posterior draws against torch's with the dense covariance."""
    X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)).double().numpy()
    options = {"prior_precision": 2.0, "sigma_noise": 0.3, "likelihood": "gaussian", "map_prior_precision": 1.0}
    model = LaplaceRegressor(hidden_layer_sizes=(3,), hessian_structure="full", random_state=0, **options)
    model.fit(X, X.sum(1))
    model.partial_fit(X[:5] + 1, X[:5].sum(1))
    fit, posterior = model.laplace_, model.posterior_
    theta = fit.theta + posterior.sample(4, torch.Generator().manual_seed(1))
    covariance = contracts.covariance_of(posterior, posterior.n_parameters)
    expected = torch.distributions.MultivariateNormal(fit.theta, covariance).log_prob(theta)
    assert fit.shift is not None
    contracts.close(fit.log_prob(theta, model.hyper_), expected, 1e-8, "log density")
    with pytest.raises(ValueError, match=r"theta has shape \(4, 2\); expected \(…, 13\), one value per weight"):
        fit.log_prob(theta[:, :2], model.hyper_)


@pytest.mark.parametrize("kind", contracts.KINDS)
@given(data=st.data())
@few
def test_one_basis_serves_all_precisions(kind, data):
    """Kronecker factors with a precision per block: a single eigenbasis gives the dense covariance for each value."""
    problem = data.draw(problems("all", kind))
    network = problem.network
    sizes = torch.tensor([block.size for block in network.blocks])
    by_block = Prior(torch.arange(len(sizes)).repeat_interleave(sizes), tuple(block.name for block in network.blocks))
    prior = by_block if data.draw(st.booleans()) else network.scalar_prior()
    curvature = problem.fit("kron", prior).curvature
    new = contracts.random_rows(kind, 5, problem.x.shape[1], problem.network(problem.x).shape[1], seed=1)[0]
    rotate = curvature.rotation(prior.groups)
    assert rotate is not None
    covariance = rotate(problem.jacobian(new))
    H = contracts.dense_curvature("kron", problem)
    J = oracles.jacobian(problem.module, network.parameter_names, new)
    for precision in (0.1, 1.0, 30.0):
        values = precision * torch.linspace(1, 3, prior.n_groups, dtype=torch.float64)
        P = oracles.posterior_precision(H, values[prior.groups], 1.0)
        expected = oracles.glm_covariance(J, contracts.to_oracle(network, P))
        contracts.close(covariance(prior.precision(values)), expected, 1e-8, f"covariance of the outputs, {precision}")


def test_columns_with_precisions_of_their_own_share_no_basis():
    """There is no common eigenbasis then, nor for a structure without Kronecker factors."""
    problem = contracts.example("gaussian")
    n = problem.network.n_parameters
    assert problem.fit("kron").curvature.rotation(torch.arange(n)) is None
    assert problem.fit("diag").curvature.rotation(torch.zeros(n, dtype=torch.long)) is None


def test_a_precision_for_each_parameter_is_refused_where_the_form_is_lost():
    """Precisions have to be equal within an input column; the message names the alternatives."""
    problem = contracts.example("gaussian")
    curvature = problem.fit("kron").curvature
    delta = torch.ones(problem.network.n_parameters, dtype=torch.float64)
    bias_block = delta.clone()
    bias_block[-1] = 2.0  # the last output's bias
    for refused in (torch.linspace(1, 2, len(delta), dtype=torch.float64), bias_block):
        with pytest.raises(UnsupportedCombinationError, match=r"hessian_structure='kron'.*layer 'body\.\d'") as e:
            curvature.posterior(refused, 1.0)
        assert "'scalar', 'layer', 'tensor' or 'ard'" in str(e.value) and "'full' or 'diag'" in str(e.value)


def test_a_diagonal_matrix_needs_no_decomposition(monkeypatch):
    """For example, the input factor of a layer on indicators; eigenvalues ascend, eigenvectors are unit vectors."""
    matrix = torch.tensor([3.0, 0.0, 1.0, 1.0]).double().diag()
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: pytest.fail("decomposed"))
    values, vectors = eigh(matrix)
    assert values.tolist() == [0.0, 1.0, 1.0, 3.0]
    assert torch.equal(vectors @ values.diag() @ vectors.mT, matrix)
    assert torch.equal(vectors @ vectors.mT, torch.eye(4).double())


def test_kron_decomposes_its_factors_once_for_all_precisions(monkeypatch):
    """Only precisions that differ within a layer need new input factors."""
    curvature, decomposed = contracts.example("categorical").fit("kron").curvature, []
    monkeypatch.setattr(kron, "eigh", lambda matrix: decomposed.append(matrix) or eigh(matrix))
    n, n_layers = sum(part.block.size for part in curvature.parts), len(curvature.parts)
    for delta in (0.1, 1.0, 10.0):
        curvature.posterior(torch.full((n,), delta, dtype=torch.float64), 1.0)
        curvature.eigenvalues()
    assert len(decomposed) == 2 * n_layers
    columns = [torch.arange(1, p.block.inputs + 1).double().repeat(p.block.outputs) for p in curvature.parts]
    curvature.posterior(torch.cat(columns), 1.0)
    assert len(decomposed) == 3 * n_layers


@pytest.mark.parametrize("structure", sorted(set(STRUCTURES) - {"ekfac"}))
def test_a_precision_for_each_input_column_is_exact(structure):
    """A precision per input (ARD) keeps the Kronecker form after whitening the columns."""
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


@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize("structure", ["kron", "ekfac"])
def test_kronecker_forms_of_one_row_are_exact(structure, kind):
    """For a single row the block of a layer is exactly a Kronecker product, with any number of outputs."""
    problem = contracts.example(kind, n=4)
    one = contracts.Example(
        kind, problem.module, problem.network, problem.x[:1], problem.y[:1], torch.full((1,), 1.7).double()
    )
    exact = contracts.dense_curvature("block_diagonal", one)
    eye = torch.eye(len(exact), dtype=torch.float64)
    contracts.close(torch.stack([one.fit(structure).curvature.times(row) for row in eye]), exact, 1e-10, structure)


def test_integer_weights_are_repeated_rows():
    """Definition of a sample weight, for every structure."""
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
    """A parameter of the outermost module, such as a position embedding, is not a layer."""
    problem = contracts.example("gaussian")
    assert SUBSETS["last_layer"]().names(problem.network) == ("body.2.weight", "body.2.bias")


def test_last_layer_is_refused_where_it_is_not_linear():
    """The message names the last module and an alternative."""
    module = nn.Sequential(oracles.random_mlp((2, 3)), nn.LayerNorm(3).double())
    network = trace(module, torch.zeros(2, 2, dtype=torch.float64))
    with pytest.raises(UnsupportedCombinationError, match=r"found '1' \(LayerNorm\). Use subset_of_weights='all'"):
        SUBSETS["last_layer"]().names(network)


# ---------------------------------------------------------------------- block, ekfac, low_rank


def test_block_of_one_layer_is_full():
    """With a single layer the block structure loses nothing."""
    module = oracles.random_mlp((3, 2), seed=1)
    x, y = contracts.random_rows("categorical", 9, 3, 2, 1)
    one = contracts.Example("categorical", module, trace(module, x), x, y, oracles.random_weights(9, 1))
    delta = torch.tensor(0.4, dtype=torch.float64)
    full, block = (
        contracts.covariance_of(one.fit(key).curvature.posterior(delta, 1.3), 8) for key in ("full", "block_diagonal")
    )
    contracts.close(block, full, 1e-12, "block of one layer")


@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_ekfac_is_never_farther_from_the_block_than_kron(kind, seed):
    """Frobenius norm per layer: ekfac has the best diagonal in the same eigenbasis."""
    problem = contracts.example(kind, seed, n=7, sizes=(3, 4, 3))
    exact, kron, ekfac = (contracts.dense_curvature(key, problem) for key in ("block_diagonal", "kron", "ekfac"))
    ours = {key: problem.fit(key).curvature for key in ("kron", "ekfac")}
    start = 0
    for block in problem.network.blocks:
        span = slice(start, start + block.size)
        far, near = ((exact - other)[span, span].norm() for other in (kron, ekfac))
        assert near <= far * (1 + 1e-9) + 1e-12 * exact.norm()
        start += block.size
    eye = torch.eye(start, dtype=torch.float64)
    for key, dense in (("kron", kron), ("ekfac", ekfac)):
        contracts.close(torch.stack([ours[key].times(row) for row in eye]), dense, 1e-9, key)
    assert (exact - ekfac).norm() < (exact - kron).norm()


@pytest.mark.parametrize("key", ["kron", "ekfac"])
def test_kronecker_forms_are_exact_for_linear_regression(key):
    """A single layer and output: B is N and A the mean of a aᵀ, for any rows."""
    module = oracles.random_mlp((4, 1), seed=2)
    x, y = contracts.random_rows("gaussian", 12, 4, 1, 2)
    problem = contracts.Example("gaussian", module, trace(module, x), x, y, oracles.random_weights(12, 2))
    exact = contracts.dense_curvature("full", problem)
    eye = torch.eye(5, dtype=torch.float64)
    contracts.close(torch.stack([problem.fit(key).curvature.times(row) for row in eye]), exact, 1e-10, key)


def test_ekfac_adds_up_in_one_basis_and_in_no_other():
    """Later rows use the eigenvectors of the first rows."""
    whole = contracts.example("categorical", seed=2, n=12)
    fit = whole.fit("ekfac")
    again = [(whole.x, whole.y, whole.weights)]
    arguments = (whole.network, whole.likelihood, GGN(), STRUCTURES["ekfac"], whole.network.scalar_prior(), again)
    twice = fit.curvature.merge(fit_laplace(*arguments, like=fit.curvature).curvature)
    contracts.close(twice.eigenvalues(), 2 * fit.curvature.eigenvalues(), 1e-12, "the same rows again")
    contracts.close(twice.subtract(fit.curvature).eigenvalues(), fit.curvature.eigenvalues(), 1e-12, "and out")
    with pytest.raises(UnsupportedCombinationError, match="can only merge or subtract curvatures"):
        fit.curvature.merge(fit_laplace(*arguments).curvature)


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_low_rank_keeps_the_leading_eigenpairs(rank):
    """A single batch gives the best approximation of that rank, small batches nearly so."""
    problem = contracts.example("categorical", seed=6, n=30)
    exact = contracts.dense_curvature("full", problem)
    values, vectors = torch.linalg.eigh(exact)
    best = vectors[:, -rank:] @ torch.diag(values[-rank:]) @ vectors[:, -rank:].mT
    eye = torch.eye(len(exact), dtype=torch.float64)

    def dense(curvature):
        return torch.stack([curvature.times(row) for row in eye])

    zero = LowRank.zero(problem.network.blocks, contracts.CPU, rank)
    error = (dense(zero.add_(problem.batch())) - exact).norm()
    assert error <= 1.1 * (best - exact).norm() + 1e-12
    one_by_one = zero
    for i in range(30):
        one_by_one = one_by_one.add_(problem.batch(slice(i, i + 1)))
    assert (dense(one_by_one) - exact).norm() <= 1.3 * (best - exact).norm() + 1e-12
    assert len(one_by_one.posterior(torch.tensor(1.0).double(), 1.0).gram) <= rank


@pytest.mark.parametrize("kind", contracts.KINDS)
def test_low_rank_of_full_rank_is_functional_is_full(kind):
    """The three structures represent the same posterior."""
    problem = contracts.example(kind, seed=8)
    delta = torch.tensor(0.6, dtype=torch.float64)
    covariances = [
        contracts.covariance_of(problem.fit(key).curvature.posterior(delta, 1.7), problem.network.n_parameters)
        for key in ("full", "functional", "low_rank")
    ]
    for other in covariances[1:]:
        contracts.close(other, covariances[0], 1e-9, "the same posterior")


def test_a_solution_is_had_without_the_root():
    """Training solves with hundreds of posteriors and needs no root of them."""
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(150, 200, generator=generator, dtype=torch.float64)
    delta = torch.rand(150, generator=generator, dtype=torch.float64) + 0.5
    vector = torch.randn(150, generator=generator, dtype=torch.float64)
    dense = half @ half.mT / 3 + delta.diag()
    posterior = Full((half @ half.mT).tril(), (150,)).posterior(delta, 1 / 3)
    torch.testing.assert_close(posterior.solve(vector), torch.linalg.solve(dense, vector))
    assert "root" not in vars(posterior)
    torch.testing.assert_close(posterior.root @ posterior.root.mT, dense.inverse())
    assert not posterior.root.tril(-1).any()


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_functional_is_full_of_a_table_under_one_set_of_precisions_after_another(kind):
    """The Gram matrix is a sum over layers; a multiple of the last precisions reuses the last Gram matrix.

    Tolerance 1e-9: the same quantity by another float64 algorithm.
    """
    module = TableMLP([0, 3, 0, 4], [True, False, False, False], 2, hidden_layer_sizes=(6,), seed=3).double()
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    x[:, 1], x[:, 3], x[2, 0] = torch.arange(9) % 3, torch.arange(9) % 4, torch.nan
    y = torch.randn(9, 2, generator=generator).double() if kind == "gaussian" else torch.arange(9) % 2
    network = trace(module, x)
    prior = GROUPINGS["tensor"].prior(network)
    rows = [(x, y, oracles.random_weights(9))]
    likelihood = Gaussian() if kind == "gaussian" else Categorical()
    fits = [fit_laplace(network, likelihood, GGN(), structure, prior, rows) for structure in (Full, Functional)]
    first = torch.logspace(-1, 1, prior.n_groups, dtype=torch.float64)
    for values in (first, 1.7 * first, first * (1 + 1e-9), 0.3 * first, first.flip(0), torch.ones_like(first), first):
        hyper = Hyper(values, 0.5 if kind == "gaussian" else 1.0)
        one, other = (fit.posterior(hyper, spectral=False) for fit in fits)
        gradient = fits[0].objective_gradient(hyper)
        torch.testing.assert_close(other.solve(gradient), one.solve(gradient), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(other.logdet_precision(), one.logdet_precision(), rtol=1e-9, atol=0)
        of_groups = [posterior.shrinkage(prior.groups, prior.n_groups) for posterior in (one, other)]
        torch.testing.assert_close(of_groups[1], of_groups[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("precision", [1e-3, 1.0, 1e12])
def test_effective_parameters_of_the_dual_form_keep_their_digits(precision):
    """Effective parameters as weights minus shrinkage have 13 correct digits, also under a dominant prior."""
    module, generator = oracles.random_mlp((3, 40, 1), seed=2), torch.Generator().manual_seed(0)
    x, y = (torch.randn(150, k, generator=generator, dtype=torch.float64) for k in (3, 1))
    network = trace(module, x)
    prior = network.scalar_prior()
    fit = fit_laplace(network, Gaussian(), GGN(), Functional, prior, [(x, y, torch.ones(150).double())])
    posterior = fit.posterior(Hyper(torch.tensor([precision]).double(), dispersion=0.1))
    effective = prior.counts.sum() - posterior.shrinkage(prior.groups, 1)[0]
    rows = network.jacobian(x)[1].rows()[:, 0]
    values = torch.linalg.eigvalsh(rows @ rows.mT).clamp_min(0) / 0.1
    expected = (values / (values + precision)).sum()
    torch.testing.assert_close(effective, expected, rtol=1e-8, atol=1e-12 * 201)


def test_a_curvature_that_rounding_has_made_indefinite_is_repaired():
    """Rounding of float32 rows makes zero eigenvalues negative; they become zero again under the given prior."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(30, 60, generator=generator, dtype=torch.float64)
    noise = torch.randn(60, 60, generator=generator, dtype=torch.float64)
    curvature = Full(1e4 * rows.mT @ rows + 3.0 * (noise + noise.mT), (60,))
    with pytest.warns(JitterWarning, match="not positive definite in floating point"):
        variance = curvature.posterior(torch.ones(60, dtype=torch.float64), 1.0).marginal_variance()
    expected = Full(1e4 * rows.mT @ rows, (60,)).posterior(torch.ones(60, dtype=torch.float64), 1.0).marginal_variance()
    assert (variance > 0.2 * expected).all() and (variance < 1.01).all()


def test_a_matrix_that_is_indefinite_of_itself_is_refused():
    """No jitter turns the matrix into a sum of outer products."""
    matrix = torch.diag(torch.tensor([-1.0, 1.0], dtype=torch.float64))
    with pytest.raises(NotPositiveDefiniteError, match="use a larger prior_precision"):
        cholesky(matrix, torch.full((2,), 1e-3, dtype=torch.float64))
