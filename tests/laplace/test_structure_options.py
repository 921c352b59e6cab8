"""Options bias, weight_sharing, rank and damping against dense definitions, in the engine and in the estimators."""

from __future__ import annotations

import pickle
from dataclasses import replace

import contracts
import nets
import numpy as np
import oracles
import pytest
import torch
from former import current
from sklearn.base import clone
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._table import limits as _budget
from sklearn_laplace._table import limits as _memory
from sklearn_laplace._training.cache import neutral
from sklearn_laplace.errors import MemoryBudgetError, UnsupportedCombinationError
from sklearn_laplace.laplace import Hyper
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.prior_groups import GROUPINGS
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.structures._base import WeightSharing
from sklearn_laplace.laplace.subsets import All, LastLayer, Subnetwork
from sklearn_laplace.options import EKFAC, Kron, LowRank, LowRankDiag
from sklearn_laplace.options.variants import DEFAULTS, VARIANTS, expanded

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(61)
X, X_NEW = RNG.normal(size=(60, 3)), 2 * RNG.normal(size=(8, 3))
Y = np.sin(X[:, 0]) + X[:, 1] + 0.2 * RNG.normal(size=60)
LABELS = np.where(Y > 0.5, "high", "low")
SMALL = {"hidden_layer_sizes": (5,), "random_state": 0}
POSTHOC = {"map_prior_precision": 1.0, **SMALL}


def dense(curvature):
    """Dense H from products with unit vectors."""
    size = len(curvature.eigenvalues())
    return torch.stack([curvature.times(row) for row in torch.eye(size, dtype=torch.float64)])


def sequences(kind: str, seed: int = 0, n: int = 7) -> contracts.Example:
    """Two linear layers at four positions of each row."""
    module = contracts.Around((4, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    x, y = contracts.random_rows(kind, n, 12, 2, seed)
    return contracts.Example(kind, module, trace(module, x), x, y, oracles.random_weights(n, seed))


def separate(problem: contracts.Example) -> contracts.Example:
    return replace(problem, network=problem.network.with_separate_biases())


# --------------------------------------------------------------------------------------------------
# bias
# --------------------------------------------------------------------------------------------------

PROBLEMS = {"rows": lambda kind: contracts.example(kind, seed=2), "positions": sequences}


@pytest.mark.parametrize("shape", sorted(PROBLEMS))
@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize("structure", ["kron", "ekfac", "low_rank_diag", "block_diagonal"])
def test_a_separate_bias_is_a_dense_block_beside_its_weights(structure, kind, shape):
    """The factors of the weight have no column of ones; the block of the bias is exact for every structure."""
    problem = separate(PROBLEMS[shape](kind))
    H = dense(problem.fit(structure).curvature)
    contracts.close(H, contracts.dense_curvature(structure, problem), 1e-9, structure)
    exact, start = contracts.dense_curvature("full", problem), 0
    for block in problem.network.blocks:
        span = slice(start, start + block.size)
        if block.name.endswith("bias"):
            assert not block.factored
            contracts.close(H[span, span], exact[span, span], 1e-10, "block of the bias")
            assert float(H[span, :start].abs().max()) == 0, "nothing in common with the weight"
        start += block.size


@pytest.mark.parametrize("shape", sorted(PROBLEMS))
def test_an_exact_posterior_does_not_depend_on_where_the_bias_is(shape):
    """Only the order of parameters changes; output covariances and tensors are equal."""
    problem = PROBLEMS[shape]("categorical")
    other, hyper = separate(problem), Hyper(torch.tensor([0.7]).double())
    contracts.close(
        other.fit("full").posterior(hyper).covariance(other.jacobian(other.x)),
        problem.fit("full").posterior(hyper).covariance(problem.jacobian(problem.x)),
        1e-10,
        "covariance of the outputs",
    )
    for name, tensor in other.network.tensors(other.network.theta).items():
        assert torch.equal(tensor, problem.module.get_parameter(name))


def test_a_separate_bias_stays_one_in_every_subset():
    """Subsets of whole tensors, of single weights, and of the bias alone."""
    problem = separate(contracts.example("gaussian"))
    network, x = problem.network, problem.x
    mask = torch.tensor([True, False, True])
    subsets = (
        (All(), ["scale", "body.0", "body.0.bias", "body.2", "body.2.bias"]),
        (LastLayer(), ["body.2", "body.2.bias"]),
        (Subnetwork({"body.0.bias": None}), ["body.0.bias"]),
        (Subnetwork({"body.2.weight": None, "body.2.bias": mask}), ["body.2", "body.2.bias"]),
    )
    for subset, names in subsets:
        part = subset.of(network, x)
        assert [block.name for block in part.blocks] == names
        assert all(block.factored == (block.name in ("body.0", "body.2")) for block in part.blocks)
        J = oracles.jacobian(problem.module, part.parameter_names, x)
        rows = part.jacobian(x)[1].rows()
        whole = replace(part, layout=replace(part.layout, elements={}))
        order = contracts.oracle_order(whole).argsort()
        expected = J[..., order]
        if part.layout.elements:
            expected = torch.cat([expected[..., :9], expected[..., 9:][..., mask]], -1)
        contracts.close(rows, expected, 1e-12, f"Jacobian of {names}")


@pytest.mark.parametrize("key", ["kron", "ekfac", "low_rank_diag"])
def test_separate_biases_let_weight_and_bias_have_their_own_precision(key):
    """Each block then has a single precision, which ekfac supports too."""
    problem = separate(contracts.example("gaussian", seed=4))
    prior = GROUPINGS["tensor"].prior(problem.network)
    values = torch.logspace(-1, 1, prior.n_groups, dtype=torch.float64)
    posterior = problem.fit(key, prior).curvature.posterior(values[prior.groups], 1.3)
    P = oracles.posterior_precision(contracts.dense_curvature(key, problem), values[prior.groups], 1.3)
    contracts.close(contracts.covariance_of(posterior, len(P)), torch.linalg.inv(P), 1e-8, "covariance")


# --------------------------------------------------------------------------------------------------
# weight sharing
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize("sharing", list(WeightSharing))
@pytest.mark.parametrize("structure", ["kron", "ekfac", "low_rank_diag"])
def test_kronecker_forms_expand_or_reduce_positions(structure, sharing, kind):
    """Factors and their eigenvectors follow the definition; moments and diagonal use whole rows."""
    problem = sequences(kind, seed=1)
    expected = contracts.dense_curvature(structure, problem, reduce=sharing is WeightSharing.REDUCE)
    fit = problem.fit(structure, weight_sharing=sharing)
    contracts.close(dense(fit.curvature), expected, 1e-9, structure)
    assert fit.curvature.options["weight_sharing"] is sharing
    zero = fit.curvature.emptied(fit.network.blocks, contracts.CPU)
    merged = fit.curvature.merge(fit.curvature) if structure == "kron" else zero
    assert merged.options == fit.curvature.options


@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize("sharing", list(WeightSharing))
@pytest.mark.parametrize("seed", range(3))
def test_ekfac_is_never_farther_than_kron_where_weights_are_shared(kind, sharing, seed):
    """Frobenius norm per layer: ekfac has the best diagonal in the eigenbasis of the factors."""
    problem = sequences(kind, seed)
    exact = contracts.dense_curvature("block_diagonal", problem)
    kron, ekfac = (dense(problem.fit(key, weight_sharing=sharing).curvature) for key in ("kron", "ekfac"))
    start = 0
    for block in problem.network.blocks:
        span = slice(start, start + block.size)
        far, near = ((exact - other)[span, span].norm() for other in (kron, ekfac))
        assert near < far * (1 - 1e-6)
        start += block.size


class Pooled(nn.Module):
    """Linear layers at every position, then the mean over positions; linear in the inputs."""

    def __init__(self, *layers: nn.Linear, positions: int = 5) -> None:
        super().__init__()
        self.layers, self.positions = nn.Sequential(*layers), positions

    def forward(self, x):
        return self.layers(x.unflatten(1, (self.positions, -1))).mean(1)


class EveryPosition(Pooled):
    """Linear layers with an output for each position."""

    def forward(self, x):
        return self.layers(x.unflatten(1, (self.positions, -1))).flatten(1)


def linear_problem(module: nn.Module, n_outputs: int, n: int) -> contracts.Example:
    module = module.double()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    x, y = contracts.random_rows("gaussian", n, 15, n_outputs, seed=3)
    return contracts.Example("gaussian", module, trace(module, x), x, y, oracles.random_weights(n, 3))


@pytest.mark.parametrize("structure", ["kron", "ekfac"])
@pytest.mark.parametrize(
    ("module", "n_outputs", "sharing"),
    [
        (lambda: Pooled(nn.Linear(3, 2)), 2, WeightSharing.REDUCE),
        (lambda: Pooled(nn.Linear(3, 4), nn.Linear(4, 2)), 2, WeightSharing.REDUCE),
        (lambda: EveryPosition(nn.Linear(3, 2)), 10, WeightSharing.EXPAND),
        (lambda: EveryPosition(nn.Linear(3, 4), nn.Linear(4, 1)), 5, WeightSharing.EXPAND),
    ],
    ids=["pooled", "deep pooled", "every position", "deep every position"],
)
def test_each_kind_is_exact_for_linear_nets_of_its_setting(module, n_outputs, sharing, structure):
    """Eschenhagen et al. (2023): "reduce" is exact for a mean over positions, "expand" for separate outputs.

    Holds for every layer and number of rows; the other option is not exact there.
    """
    problem = linear_problem(module(), n_outputs, n=8)
    exact = contracts.dense_curvature("block_diagonal", problem)
    curvatures = {kind: dense(problem.fit(structure, weight_sharing=kind).curvature) for kind in WeightSharing}
    contracts.close(curvatures.pop(sharing), exact, 1e-10, f"{structure}, {sharing}")
    if structure == "kron":
        (other,) = curvatures.values()
        assert (other - exact).norm() > 0.05 * exact.norm()


# --------------------------------------------------------------------------------------------------
# damping
# --------------------------------------------------------------------------------------------------


def damped_precision(problem: contracts.Example, hyper: Hyper) -> torch.Tensor:
    """Eq. 9 of Ritter et al. (2018) for each layer, with N = N_w / T rows and dispersion φ."""
    n_rows = float(problem.weights.sum()) / hyper.temperature * (1 / hyper.dispersion)
    delta = float(hyper.prior_precision[0])
    exact = contracts.dense_curvature("block_diagonal", problem)
    network = problem.network

    def form(A, B, block):
        if len(B) == 1 and torch.equal(A, block):  # a tensor without factors
            return block / (hyper.temperature * hyper.dispersion) + delta * torch.eye(len(A)).double()
        mean_B = B / problem.weights.sum()
        left = n_rows**0.5 * mean_B + delta**0.5 * torch.eye(len(B)).double()
        right = n_rows**0.5 * A + delta**0.5 * torch.eye(len(A)).double()
        return torch.kron(left, right)

    oracle_order = contracts.to_oracle(network, exact)
    return contracts.to_package(network, contracts.dense.layerwise(problem, oracle_order, form, False))


@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize("separated", [False, True])
def test_damping_of_ritter_is_equation_9(kind, separated):
    """With row weights, temperature and noise; all results of the posterior agree with this matrix."""
    problem = contracts.example(kind, seed=6)
    problem = separate(problem) if separated else problem
    hyper = Hyper(torch.tensor([0.6]).double(), dispersion=0.3, temperature=1.9)
    fit = problem.fit("kron")
    P = damped_precision(problem, hyper)
    posterior = fit.damped_posterior(hyper)
    covariance = contracts.covariance_of(posterior, len(P))
    contracts.close(covariance, torch.linalg.inv(P), 1e-9, "covariance")
    delta = hyper.prior_precision.expand(len(P))
    contracts.structures.check_posterior(posterior, covariance, delta, fit.prior, problem, "damped")


@pytest.mark.parametrize("seed", range(4))
def test_damping_of_ritter_always_adds_precision(seed):
    """Damped minus exact precision is positive semi-definite for any prior and temperature, and vanishes with δ."""
    problem = contracts.example("categorical", seed)
    fit, p = problem.fit("kron"), problem.network.n_parameters
    for delta, temperature in ((1e-3, 1.0), (1.0, 0.1), (50.0, 1e3)):
        hyper = Hyper(torch.tensor([delta]).double(), temperature=temperature)
        exact, damped = (
            torch.linalg.inv(contracts.covariance_of(posterior, p))
            for posterior in (fit.posterior(hyper), fit.damped_posterior(hyper))
        )
        assert float(torch.linalg.eigvalsh(damped - exact)[0]) > -1e-9 * float(exact.norm())
        assert float((damped - exact).norm()) > 1e-3 * delta


def test_a_temperature_is_a_number_of_pretended_rows():
    """With either damping, T = 4 equals a quarter of every row weight."""
    problem = contracts.example("categorical", seed=1)
    fewer = replace(problem, weights=problem.weights / 4)
    delta, p = torch.tensor([0.3]).double(), problem.network.n_parameters
    for method in ("posterior", "damped_posterior"):
        warm = getattr(problem.fit("kron"), method)(Hyper(delta, temperature=4.0))
        light = getattr(fewer.fit("kron"), method)(Hyper(delta))
        contracts.close(contracts.covariance_of(warm, p), contracts.covariance_of(light, p), 1e-9, method)


def test_damping_of_ritter_needs_one_precision_a_block():
    """Several precisions in a block are refused; with separate biases each block has a single one."""
    problem = contracts.example("gaussian")
    values = torch.linspace(1, 2, 5, dtype=torch.float64)
    with pytest.raises(
        UnsupportedCombinationError, match=r"\(damping='ritter'\) needs one prior .*'body\.0'.*='separate'"
    ):
        problem.fit("kron", GROUPINGS["tensor"].prior(problem.network)).damped_posterior(Hyper(values))
    apart = separate(problem)
    posterior = apart.fit("kron", GROUPINGS["tensor"].prior(apart.network)).damped_posterior(Hyper(values))
    assert bool(torch.isfinite(posterior.marginal_variance()).all())


def test_damping_shapes_predictions_and_leaves_the_evidence():
    """Smaller variances, while prior, noise, evidence and effective parameters equal those of exact damping."""
    exact = LaplaceRegressor(hessian_structure="kron", **POSTHOC).fit(X, Y)
    damped = LaplaceRegressor(hessian_structure=Kron(damping="ritter"), **POSTHOC).fit(X, Y)
    for name in ("prior_precision_", "sigma_noise_", "log_marginal_likelihood_value_", "n_effective_parameters_"):
        assert getattr(damped, name) == getattr(exact, name), name
    assert damped.log_marginal_likelihood() == exact.log_marginal_likelihood()
    np.testing.assert_array_equal(damped.predict(X_NEW), exact.predict(X_NEW))
    before = exact.predict_std(X_NEW, kind="epistemic")
    assert (damped.predict_std(X_NEW, kind="epistemic") < before).all()
    spread = damped.sample_y(X_NEW, 4000, kind="epistemic").std(1)
    np.testing.assert_allclose(spread, damped.predict_std(X_NEW, kind="epistemic"), rtol=0.1)
    for other in (exact.refit_laplace(hessian_structure=Kron(damping="ritter")), pickle.loads(pickle.dumps(damped))):
        np.testing.assert_array_equal(other.predict_std(X_NEW), damped.predict_std(X_NEW))
    np.testing.assert_array_equal(
        exact.refit_laplace(hessian_structure=Kron(damping="exact")).predict_std(X_NEW, kind="epistemic"), before
    )


def test_damping_does_not_move_the_mean_of_rows_that_come_and_go():
    """partial_fit and forget use the exact posterior; otherwise they would not undo each other."""
    models = [
        LaplaceRegressor(hessian_structure=Kron(damping=damping), **POSTHOC).fit(X[:40], Y[:40])
        for damping in ("exact", "ritter")
    ]
    for model in models:
        model.partial_fit(X[40:], Y[40:]).forget(X[:10], Y[:10])
    exact, damped = models
    np.testing.assert_array_equal(damped.predict(X_NEW), exact.predict(X_NEW))
    assert (damped.predict_std(X_NEW) < exact.predict_std(X_NEW)).all()


# --------------------------------------------------------------------------------------------------
# In the estimators
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("structure", "options"),
    [
        ("kron", {"bias": "separate"}),
        ("ekfac", {"bias": "separate", "prior_structure": "tensor"}),
        ("block_diagonal", {"bias": "separate"}),
        ("kron", {"bias": "separate", "subset_of_weights": "last_layer", "damping": "ritter"}),
        ("low_rank_diag", {"rank": 3}),
        ("low_rank_diag", {"rank": 3, "bias": "separate", "prior_precision": [0.5, 1.0, 2.0, 4.0]}),
        ("low_rank", {"rank": 3}),
    ],
)
@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_options_reach_the_posterior(kind, structure, options):
    """Options of the estimator reach the curvature; pickling, partial_fit and refits keep them."""
    estimator, targets = {"regressor": (LaplaceRegressor, Y), "classifier": (LaplaceClassifier, LABELS)}[kind]
    model = estimator(**current(hessian_structure=structure, **POSTHOC, **options)).fit(X, targets)
    plain = estimator(hessian_structure=structure, **POSTHOC).fit(X, targets)
    network, curvature = model.laplace_.network, model.laplace_.curvature
    assert network.folds_biases == ("bias" not in options)
    assert curvature.options.get("rank") == options.get("rank")
    assert model.structure_ == structure
    assert np.abs(model.predict_std(X_NEW) - plain.predict_std(X_NEW)).max() > 1e-9
    loaded = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(loaded.predict_std(X_NEW), model.predict_std(X_NEW))
    more = loaded.partial_fit(X[:5] + 1, targets[:5])
    assert more.laplace_.curvature.options == curvature.options
    assert more.laplace_.network.folds_biases == network.folds_biases
    model.refit_laplace(temperature=0.5)
    again = clone(model).fit(X, targets)
    np.testing.assert_array_equal(model.predict_std(X_NEW), again.predict_std(X_NEW))


def test_a_linear_net_with_separate_biases_knows_their_exact_marginal():
    """The block of the bias has the precision of N noisy rows plus its prior, independent of the weights."""
    model = LaplaceRegressor(
        nets.regressor(nets.Linear),
        hessian_structure=Kron(bias="separate"),
        prior_precision=2.0,
        sigma_noise=0.5,
        standardize_X=False,
        standardize_y=False,
        random_state=0,
    ).fit(X, Y)
    variance = model.laplace_.network.tensors(model.posterior_.marginal_variance())["linear.bias"]
    np.testing.assert_allclose(variance.numpy(), [1 / (60 / 0.25 + 2.0)], rtol=1e-10)


class Sequence(nn.Module):
    """Net that reads six columns as three positions of two features."""

    def __init__(self, n_out=1):
        super().__init__()
        self.first, self.last = nn.Linear(2, 4), nn.Linear(4, n_out)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.unflatten(1, (3, 2)))).mean(1))


def test_the_trainings_own_factors_are_not_taken_for_others(monkeypatch):
    """Training beyond the exact budget ends with expanded Kronecker factors, which only "expand" may reuse."""
    beyond = replace(_budget.SMALL, exact_step=0.0)
    for file in ("fit_map", "epochs"):
        monkeypatch.setattr(f"sklearn_laplace._training.{file}.budget_for", lambda n_rows: beyond)
    X6 = np.column_stack([X, X_NEW[0] * np.ones_like(X)])
    options = {"max_epochs": 5, "random_state": 0, "map_prior_precision": 1.0}
    fits = {}
    for sharing in ("expand", "reduce"):
        model = LaplaceRegressor(Sequence, hessian_structure=Kron(weight_sharing=sharing), **options)
        fits[sharing] = model.fit(X6, Y).laplace_
    for sharing, fit in fits.items():
        x = torch.tensor(X6)
        problem = contracts.Example(
            "gaussian", fit.network.module, fit.network, x, torch.zeros(60, 1), torch.ones(60).double()
        )
        expected = contracts.dense_curvature("kron", problem, reduce=sharing == "reduce")
        contracts.close(dense(fit.curvature), expected, 1e-8, sharing)


def test_reduced_factors_change_a_net_that_has_positions():
    """Nets with a single position are not affected."""
    X6 = np.column_stack([X, X[::-1]])
    for net, changes in ((Sequence, True), (nets.Hidden, False)):
        fits = [
            LaplaceRegressor(
                net, hessian_structure=EKFAC(weight_sharing=sharing), map_prior_precision=1.0, random_state=0
            ).fit(X6, Y)
            for sharing in ("expand", "reduce")
        ]
        expand, reduce = (model.predict_std(X_NEW @ np.ones((3, 6)), kind="epistemic") for model in fits)
        assert (np.abs(expand - reduce).max() > 1e-6) == changes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bias": "fold"}, "bias='fold' is not known; expected one of 'folded', 'separate'. Did you mean 'folded'"),
        ({"weight_sharing": "sum"}, "weight_sharing='sum' is not known; expected one of 'expand', 'reduce'"),
        ({"damping": "riter"}, "damping='riter' is not known; .* Did you mean 'ritter'"),
        ({"rank": 0, "hessian_structure": "low_rank"}, "rank=0 has to be a whole number of at least 1"),
        ({"rank": 2.0, "hessian_structure": "low_rank_diag"}, "rank=2.0 has to be a whole number of at least 1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("estimator", [LaplaceRegressor, LaplaceClassifier])
def test_a_wrong_value_of_a_structures_option_is_refused_before_any_work(estimator, options, message):
    """The message names the option and its known values."""
    model = estimator(**current(max_epochs=0, **options))
    with pytest.raises(ValueError, match=message):
        model.fit(X, LABELS if estimator is LaplaceClassifier else Y)


def test_every_structure_takes_what_it_declares_and_no_more():
    """Option object, ``zero`` and ``memory`` have a keyword for each option of the structure, and no others."""
    blocks, values = contracts.example("gaussian").network.blocks, {"weight_sharing": WeightSharing.REDUCE, "rank": 2}
    for key, structure in STRUCTURES.items():
        declared = {variant.value: set(variant.internal) for variant in VARIANTS if variant.value in STRUCTURES}
        assert structure.takes == declared.get(key, set()), key
        options = {name: value for name, value in values.items() if name in structure.takes}
        assert structure.zero(blocks, contracts.CPU, **options).options == options
        assert structure.memory(blocks, 9, **options) > 0
        for name in set(values) - structure.takes:
            with pytest.raises(TypeError):
                structure.zero(blocks, contracts.CPU, **{name: values[name]})


def test_a_rank_counts_in_the_memory_that_is_asked_for(monkeypatch):
    """The same net is accepted with a small rank and refused with a large one."""
    monkeypatch.setattr(_memory, "_physical_memory", lambda: 200_000)
    for structure in (LowRank, LowRankDiag):
        small, large = (
            LaplaceRegressor(
                hidden_layer_sizes=(40,), hessian_structure=structure(rank), map_prior_precision=1.0, max_epochs=0
            )
            for rank in (1, 60)
        )
        with pytest.raises(MemoryBudgetError, match=f"hessian_structure='{structure.value}' needs about"):
            large.fit(X, Y)
        assert small.fit(X, Y).structure_ == structure.value


def test_options_of_the_posterior_share_one_training():
    """They are not part of the cache key of a training."""
    parameters = expanded(LaplaceRegressor().get_params(deep=False))
    changed = {"bias": "separate", "weight_sharing": "reduce", "rank": 3, "damping": "ritter"}
    assert set(changed) == {name for variant in VARIANTS if variant.value in STRUCTURES for name in variant.internal}
    assert neutral({**parameters, **changed}) == neutral(parameters)
    assert {name: parameters[name] for name in changed} == {name: DEFAULTS[name] for name in changed}
