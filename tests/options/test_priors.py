"""The prior: its mean, groups of weights that share a precision, and the structures that support them."""

from __future__ import annotations

import itertools
import math
import pickle
import warnings
from dataclasses import replace

import contracts
import nets
import numpy as np
import oracles
import pytest
import torch
from sklearn.base import clone
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._ensemble.relevance import relevance
from sklearn_laplace._training import fit_map as _map
from sklearn_laplace.errors import UnsupportedCombinationError
from sklearn_laplace.laplace import Hyper, fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.evidence import (
    diagonal_derivatives,
    evidence_derivatives,
    log_evidence,
    mackay_fixed_point,
)
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.mode import DataLoss, Problem, refine
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.prior_groups import GROUPINGS, prior_mean
from sklearn_laplace.laplace.selection import evidence as selection
from sklearn_laplace.laplace.selection import maximise_evidence
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.nets.skorch_net import MAPLoss
from sklearn_laplace.options import GaussianPrior

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(31)
X, X_NEW = RNG.normal(size=(60, 4)), 2 * RNG.normal(size=(7, 4))
Y = X @ RNG.normal(size=(4, 2)) + [1.0, -2.0] + 0.3 * RNG.normal(size=(60, 2))
WEIGHTS = RNG.integers(1, 4, size=60).astype(float)
DELTA, SIGMA = 2.0, 0.5
SMALL = {"hidden_layer_sizes": (4,), "n_members": 1, "random_state": 0}
GAUSSIAN = {**SMALL, "likelihood": "gaussian"}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mlp(kind: str, sizes: tuple[int, ...] = (3, 4, 2), seed: int = 0, n: int = 12) -> contracts.Example:
    """An MLP, whose first layer is linear in the input columns."""
    sizes = (*sizes[:-1], contracts.n_outputs_of(kind, sizes[-1]))
    module = oracles.random_mlp(sizes, seed=seed)
    x, y = contracts.random_rows(kind, n, sizes[0], sizes[-1], seed)
    return contracts.Example(kind, module, trace(module, x), x, y, oracles.random_weights(n, seed))


# ------------------------------------------------------------------------------ the mean


def linear(structure: str, **options):
    options = {"standardize_X": False, "standardize_y": False, "random_state": 0, **options}
    options = {"prior_precision": DELTA, "sigma_noise": SIGMA, **options}
    return LaplaceRegressor(nets.regressor(nets.Linear), hessian_structure=structure, **options)


def assert_is(model, exact, covariance: bool):
    features = torch.tensor(np.column_stack([X_NEW, np.ones(len(X_NEW))]))
    mean, cov = exact.predict(features)
    got_mean, got_cov = model.predict(X_NEW, return_cov=True)
    np.testing.assert_allclose(got_mean.reshape(len(X_NEW), -1), mean.numpy(), rtol=1e-9, atol=1e-9)
    if covariance:
        np.testing.assert_allclose(
            got_cov.reshape(len(X_NEW), len(X_NEW), -1)[..., 0], cov.numpy() + SIGMA**2 * np.eye(len(X_NEW)), rtol=1e-9
        )
        np.testing.assert_allclose(model.log_marginal_likelihood_value_, float(exact.log_evidence), rtol=1e-9)


@pytest.mark.parametrize("structure", ["full", "functional", "kron", "diag"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_linear_net_under_a_prior_mean_is_bayesian_linear_regression(structure, outputs):
    """Mean, covariance and evidence, with weights and with rows added by partial_fit."""
    centre = 3 * normal(5, outputs)
    mean = {"linear.weight": centre[:4].T.numpy(), "linear.bias": centre[4]}  # arrays and tensors
    y = Y[:, 0] if outputs == 1 else Y
    truth = oracles.bayesian_linear_regression(
        torch.tensor(np.column_stack([X, np.ones(60)])),
        torch.tensor(y.reshape(60, -1)),
        torch.tensor(WEIGHTS),
        DELTA,
        SIGMA**2,
        centre,
    )
    model = linear(structure, prior=mean).fit(X, y, sample_weight=WEIGHTS)
    exact = structure in ("full", "functional") or (structure == "kron" and outputs == 1)
    assert_is(model, truth, exact)
    if exact:
        model = linear(structure, prior=mean).fit(X[:20], y[:20], sample_weight=WEIGHTS[:20])
        assert_is(model.partial_fit(X[20:], y[20:], sample_weight=WEIGHTS[20:]), truth, True)


def test_one_number_is_the_mean_of_all_weights():
    """A number equals the dict with that number everywhere; tensors that are not in a dict have mean zero."""
    dicts = [{"linear.weight": np.full((1, 4), 0.7), "linear.bias": [0.7]}, {"linear.bias": [0.7]}, {}]
    by_number, by_dict, part, none, default = (
        linear("full", prior=mean).fit(X, Y[:, 0]).predict(X_NEW) for mean in (0.7, *dicts, 0.0)
    )
    np.testing.assert_array_equal(by_number, by_dict)
    np.testing.assert_array_equal(none, default)
    assert len({*by_number, *part, *none}) == 3 * len(X_NEW)


@pytest.mark.parametrize("kind", contracts.ALL_KINDS)
def test_objective_gradient_and_criterion_are_autodiff(kind):
    """The criterion of an epoch is the objective times φ/N_w, and so is its gradient."""
    example = mlp(kind)
    prior = replace(GROUPINGS["tensor"].prior(example.network), mean=normal(example.network.n_parameters))
    hyper = Hyper(torch.linspace(0.4, 0.9, prior.n_groups, dtype=torch.float64), 0.2 if kind == "gaussian" else 1.0)
    fit, moved = (
        replace(example, network=example.network.with_parameters(example.network.theta + step)).fit("full", prior)
        for step in (0.0, 0.1)
    )
    network, names = example.network, example.network.parameter_names

    def arguments(theta):
        delta, mean = (contracts.to_oracle(network, v) for v in (hyper.prior_precision[prior.groups], prior.mean))
        flat = contracts.to_oracle(network, theta)
        data = example.x, example.y, example.weights
        return kind, example.module, names, flat, *data, delta, hyper.dispersion, mean

    difference = oracles.map_objective(*arguments(moved.theta)) - oracles.map_objective(*arguments(fit.theta))
    assert moved.objective(hyper) - fit.objective(hyper) == pytest.approx(float(difference), rel=1e-9)
    expected = oracles.map_gradient(*arguments(fit.theta))
    contracts.close(contracts.to_oracle(network, fit.objective_gradient(hyper)), expected, 1e-10, "gradient")

    total = float(example.weights.sum())
    criterion = MAPLoss(example.likelihood, total, len(example.x))
    criterion.bind(network, example.module, prior, hyper)
    example.module.zero_grad()
    criterion(example.module(example.x), (example.y, example.weights)).backward()
    gradient = torch.cat([p.grad.flatten() for p in example.module.parameters()])
    contracts.close(gradient, expected * hyper.dispersion / total, 1e-10, "gradient of the criterion")


@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize("structure", ["full", "functional", "kron"])
def test_the_evidence_and_its_derivatives_know_the_mean(structure, kind):
    """By the dense formula and finite differences; the maximum is MacKay's fixed point."""
    example = contracts.example(kind, seed=2)
    network = example.network
    prior = replace(GROUPINGS["tensor"].prior(network), mean=normal(network.n_parameters))
    fit = example.fit(structure, prior)
    hyper = Hyper(torch.logspace(0.6, -0.4, prior.n_groups, dtype=torch.float64), 0.6 if kind == "gaussian" else 1.0)
    H, f = contracts.dense_curvature(structure, example), oracles.outputs(example.module, example.x)

    def dense(logs):
        noise = float(logs[-1].exp()) if kind == "gaussian" else 1.0
        fits = (example.weights * oracles.log_likelihood(kind, f, example.y, noise)).sum()
        delta = logs[:-1].exp()[prior.groups]
        return float(oracles.log_evidence(fits, H, delta, 1 / noise, network.theta, prior.mean))

    logs = torch.cat([hyper.prior_precision, torch.tensor([hyper.dispersion], dtype=torch.float64)]).log()
    assert log_evidence(fit, hyper) == pytest.approx(dense(logs), rel=1e-9)
    expected = oracles.evidence_gradient_by_differences(dense, logs)
    torch.testing.assert_close(evidence_derivatives(fit, hyper).gradient, expected, rtol=1e-6, atol=1e-6)
    best = maximise_evidence(fit, hyper)
    again = mackay_fixed_point(fit, best)
    torch.testing.assert_close(again.prior_precision, best.prior_precision, rtol=1e-3, atol=0)


def test_refine_ends_at_the_mode_around_the_mean():
    """The gradient of the oracle vanishes at the mode."""
    example = mlp("gaussian", n=25)
    prior = replace(example.network.scalar_prior(), mean=normal(example.network.n_parameters))
    rows, likelihood = [(example.x, example.y, example.weights)], example.likelihood
    problem = Problem(
        lambda network: fit_laplace(network, likelihood, GGN(), STRUCTURES["full"], prior, rows),
        lambda network: DataLoss(network, likelihood, rows),
    )
    hyper = Hyper(torch.full((1,), 3.0).double(), 0.2)
    mode = refine(problem, problem.linearise(example.network), hyper, max_steps=400)
    theta, mean = (contracts.to_oracle(example.network, v) for v in (mode.fit.theta, prior.mean))
    data = example.x, example.y, example.weights
    gradient = oracles.map_gradient(
        "gaussian", example.module, example.network.parameter_names, theta, *data, 3.0, 0.2, mean
    )
    assert float(gradient.norm()) < 1e-4 * float((mode.fit.gradient / 0.2).norm())
    assert mode.decrement < 1e-4


@pytest.mark.usefixtures("complete_training")
def test_a_strong_prior_holds_a_pretrained_net_where_it_was():
    """Transfer learning: a few rows of another function barely change the net, but do without the prior mean."""
    module = LaplaceRegressor(nets.Hidden(4, 1), standardize_y=False, random_state=0).fit(X, Y[:, 0]).net_.module_
    before = module(torch.tensor(X_NEW))[:, 0].detach().numpy()
    options = {"prior_precision": 1e4, "sigma_noise": 1.0, "standardize_y": False, "random_state": 0}
    held = LaplaceRegressor(module, prior=module.state_dict(), **options).fit(X[:5], Y[:5, 1])
    torn = LaplaceRegressor(module, **options).fit(X[:5], Y[:5, 1])
    assert np.abs(held.predict(X_NEW) - before).max() < 0.02
    assert np.abs(torn.predict(X_NEW) - before).max() > 0.5


def test_parameters_and_half_precision_are_means_as_they_are():
    """Parameters with requires_grad, and bfloat16, which numpy does not have."""
    module = nn.Linear(X.shape[1], 1)
    options = {"prior_precision": 1.0, "sigma_noise": 1.0, "random_state": 0}
    answers = [
        LaplaceRegressor(module, prior=mean, **options).fit(X[:9], Y[:9, 1]).predict(X[:3])
        for mean in (
            dict(module.named_parameters()),
            {name: value.bfloat16() for name, value in module.state_dict().items()},
        )
    ]
    np.testing.assert_allclose(*answers, rtol=0.05, atol=0.05)


def test_the_built_in_net_starts_at_the_means_and_takes_its_own_state():
    """Buffers of a state_dict have no prior and are ignored."""
    first = LaplaceRegressor(**GAUSSIAN).fit(X, Y[:, 0])
    state = first.net_.module_.state_dict()
    assert len(state) > len(dict(first.net_.module_.named_parameters()))
    second = LaplaceRegressor(prior=state, prior_precision=1e6, sigma_noise=1.0, **SMALL).fit(X, Y[:, 0])
    for name, parameter in second.net_.module_.named_parameters():
        torch.testing.assert_close(parameter, state[name], rtol=0, atol=1e-2)
    np.testing.assert_array_equal(clone(second).fit(X, Y[:, 0]).predict(X_NEW), second.predict(X_NEW))


@pytest.mark.parametrize(
    ("subset", "expected"),
    [
        ("last_layer", [5.0, 6.0, 7.0, 8.0, 9.0]),
        ({"5.weight": np.array([[True, False, False, True]]), "2.bias": np.array([True, False, False, False])}, None),
    ],
    ids=["last-layer", "masks"],
)
def test_a_subset_has_its_part_of_the_mean(subset, expected):
    """The mean may include tensors outside of the subset of weights."""
    mean = {"2.bias": [1.0, 2.0, 3.0, 4.0], "5.weight": [[5.0, 6.0, 7.0, 8.0]], "5.bias": [9.0]}
    model = LaplaceRegressor(prior=mean, subset_of_weights=subset, hessian_structure="full", **GAUSSIAN)
    assert model.fit(X, Y[:, 0]).laplace_.prior.mean.tolist() == (expected or [1.0, 5.0, 8.0])


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (GaussianPrior(mean="zero"), "prior='zero' has to be a finite number, or a dict of arrays"),
        (GaussianPrior(mean=True), "prior=True has to be a finite number"),
        (np.nan, "prior=nan has to be a finite number"),
        (GaussianPrior(mean=[0.0, 1.0]), "has to be a finite number, or a dict"),
        ({"2.bias": ["a"]}, "has to be a finite number, or a dict"),
        ({"2.bias": [np.inf] * 4}, "arrays of finite numbers"),
        ({"2.bias": [0.0]}, r"an array of shape \(1,\) for '2.bias'; expected \(4,\)"),
        ({"hidden.bias": [0.0]}, r"has unknown parameters \['hidden.bias'\]; the net's parameters are 2.weight, 2.bi"),
    ],
)
@pytest.mark.parametrize("training", ["same", 1.0])
def test_a_wrong_mean_is_refused_before_training(prior, message, training, monkeypatch):
    """The error states the given value and the expected one."""
    monkeypatch.setattr("sklearn_laplace._training.train.fit_map", lambda *args, **kwargs: pytest.fail("trained"))
    with pytest.raises(ValueError, match=message):
        LaplaceRegressor(prior=prior, map_prior_precision=training, **SMALL).fit(X, Y[:, 0])


# ------------------------------------------------------------------------------ the groups

MEMBERS = {
    "scalar": {"all": 22},
    "layer": {"0": 12, "2": 10},
    "tensor": {"0.weight": 8, "0.bias": 4, "2.weight": 8, "2.bias": 2},
    "ard": {"0.weight[:, 0]": 4, "0.weight[:, 1]": 4, "0.bias": 4, "2.weight": 8, "2.bias": 2},
}


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_groups_are_what_their_names_say(name):
    """Group names in the order of the parameters, and the members of an input column."""
    network = mlp("gaussian", (2, 4, 2)).network
    prior = GROUPINGS[name].prior(network)
    assert dict(zip(prior.names, prior.counts.tolist(), strict=True)) == MEMBERS[name]
    assert GROUPINGS[name].names(network, network.parameter_names) == prior.names
    if name == "ard":
        groups = network.tensors(prior.groups)
        assert groups["0.weight"].tolist() == [[0, 1]] * 4
        assert groups["2.weight"].unique().tolist() == [3]


def test_each_parameter_has_its_name():
    """The name of a group is the index of its weight in its tensor."""
    network = mlp("gaussian", (2, 3, 1)).network
    prior = GROUPINGS["parameter"].prior(network)
    numbers = network.tensors(prior.groups)
    assert prior.counts.tolist() == [1.0] * 13
    assert prior.names[int(numbers["0.weight"][2, 1])] == "0.weight[2, 1]"
    assert prior.names[int(numbers["2.bias"][0])] == "2.bias[0]"


def test_a_layer_is_known_by_its_module():
    """Tensors of the net itself are named by its class; the two tensors of a norm layer form one group."""
    network = contracts.example("gaussian").network
    assert GROUPINGS["layer"].prior(network).names == ("Scaled", "body.0", "body.2")
    normed = trace(nets.Hidden(2, 1, 3, norm=True).double(), torch.zeros(4, 2).double())
    assert GROUPINGS["layer"].prior(normed).names == ("hidden", "norm", "out")


@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize("structure", sorted(STRUCTURES))
@pytest.mark.parametrize("name", sorted(set(GROUPINGS) - {"scalar", "tensor"}))
def test_a_structure_holds_the_grouping_or_refuses_it(name, structure, kind):
    """Posterior, evidence and derivatives against dense algebra, for every structure that supports the grouping."""
    example = mlp(kind)
    prior = GROUPINGS[name].prior(example.network)
    values = torch.logspace(-1, 1, prior.n_groups, dtype=torch.float64)
    hyper = Hyper(values, 0.3 if kind == "gaussian" else 1.0)
    fit = example.fit(structure, prior)
    if GROUPINGS[name].unit not in STRUCTURES[structure].holds:
        with pytest.raises(UnsupportedCombinationError, match=f"hessian_structure='{structure}'"):
            fit.posterior(hyper)
        return
    H, delta = contracts.dense_curvature(structure, example), values[prior.groups]
    covariance = torch.linalg.inv(oracles.posterior_precision(H, delta, hyper.scale(1)))
    posterior, p = fit.posterior(hyper), len(delta)
    what = f"{structure}, {name}"
    contracts.close(contracts.covariance_of(posterior, p), covariance, 1e-9, what)
    contracts.close(posterior.solve(delta), covariance @ delta, 1e-9, what)
    contracts.close(posterior.marginal_variance(), covariance.diagonal(), 1e-9, what)
    contracts.close(posterior.logdet_precision(), -torch.linalg.slogdet(covariance).logabsdet, 1e-10, what)
    new = contracts.random_rows(kind, 4, 3, 2, seed=9)[0]
    J = oracles.jacobian(example.module, example.network.parameter_names, new)
    J = J[..., contracts.oracle_order(example.network).argsort()]
    contracts.close(posterior.covariance(example.jacobian(new)), J @ covariance @ J.mT, 1e-9, what)
    crossed = J.flatten(0, 1) @ covariance @ J.flatten(0, 1).mT
    contracts.close(posterior.cross_covariance(*[example.jacobian(new)] * 2), crossed, 1e-9, what)
    members = nn.functional.one_hot(prior.groups, prior.n_groups).double()
    weighted = delta[:, None] * covariance.square() * delta
    first, second = posterior.prior_statistics(prior.groups, prior.n_groups)
    contracts.close(first, members.mT @ (delta * covariance.diagonal()), 1e-9, what)
    contracts.close(posterior.shrinkage(prior.groups, prior.n_groups), first, 1e-9, what)
    contracts.close(second, members.mT @ weighted @ members, 1e-9, what)


@pytest.mark.parametrize("name", ["ard", "parameter"])
@pytest.mark.parametrize("structure", ["full", "functional", "diag", "kron", "low_rank"])
def test_many_groups_reach_the_evidence_of_newtons_method(structure, name, monkeypatch):
    """Without second derivatives: within a thousandth of a nat of the maximum, and never below the start."""
    if GROUPINGS[name].unit not in STRUCTURES[structure].holds:
        return
    example = mlp("gaussian", (6, 5, 1), seed=3, n=50)
    prior = GROUPINGS[name].prior(example.network)
    fit = example.fit(structure, prior)
    start = Hyper(torch.ones(prior.n_groups).double(), 1.0)
    evidences = []
    for limit in (10**6, 0):
        monkeypatch.setattr(selection, "NEWTON_GROUPS", limit)
        evidences.append(log_evidence(fit, maximise_evidence(fit, start, warn=False)))
    newton, diagonal = evidences
    assert diagonal > log_evidence(fit, start) + 3.0
    assert diagonal == pytest.approx(newton, abs=1e-3)


@pytest.mark.parametrize("name", ["layer", "ard", "parameter"])
def test_the_diagonal_of_many_groups_bounds_that_of_the_hessian(name):
    """Equal gradients; steps along each axis are at most Newton's, and equal for one weight per group."""
    example = mlp("gaussian", (3, 4, 2), seed=5, n=20)
    prior = GROUPINGS[name].prior(example.network)
    fit = example.fit("full", prior)
    hyper = Hyper(torch.logspace(-1, 1, prior.n_groups, dtype=torch.float64), 0.4)
    exact, bound = evidence_derivatives(fit, hyper), diagonal_derivatives(fit, hyper)
    torch.testing.assert_close(bound.gradient, exact.gradient, rtol=1e-10, atol=1e-10)
    diagonal = exact.hessian.diagonal()
    assert bool((bound.hessian <= diagonal + 1e-9).all())
    if name == "parameter":
        torch.testing.assert_close(bound.hessian[:-1], diagonal[:-1], rtol=1e-9, atol=1e-12)


def test_the_line_search_keeps_the_diagonal_from_losing_evidence(monkeypatch):
    """Steps that are ten times too long are halved until the evidence increases."""
    example = mlp("gaussian", (6, 5, 1), seed=3, n=50)
    fit = example.fit("full", GROUPINGS["parameter"].prior(example.network))
    evidences, original = [], selection.diagonal_derivatives

    def long(fit, hyper):
        evidences.append(log_evidence(fit, hyper))
        exact = original(fit, hyper)
        return replace(exact, hessian=exact.hessian / 10)

    monkeypatch.setattr(selection, "diagonal_derivatives", long)
    maximise_evidence(fit, Hyper(torch.full((fit.prior.n_groups,), 30.0).double(), 1.0), warn=False)
    assert len(evidences) > 3 and all(later >= earlier for earlier, later in itertools.pairwise(evidences))


def test_a_warning_about_many_groups_names_a_few():
    """Thousands of weights at a bound give one short message."""
    example = mlp("gaussian", (6, 5, 1), n=30)
    prior = GROUPINGS["parameter"].prior(example.network)
    fit, values = example.fit("diag", prior), torch.full((prior.n_groups,), 1e-6).double()
    with pytest.warns(match=r"0.weight\[4, 1\]' = 1e-06|, \d\d more") as caught:
        selection.warn_at_bounds(fit, Hyper(values), free_prior=True, free_dispersion=False)
    assert len(str(caught[0].message)) < 700


RELEVANT = RNG.normal(size=(150, 6))
TARGETS = np.sin(1.5 * RELEVANT[:, 0]) + RELEVANT[:, 3] + 0.1 * RNG.normal(size=150)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The training does not depend on the structure, so all structures can share it."""
    return str(tmp_path_factory.mktemp("trainings"))


@pytest.mark.parametrize("structure", ["full", "functional", "kron", "block_diagonal", "diag", "low_rank"])
@pytest.mark.usefixtures("complete_training")
def test_relevance_is_determined(structure, cache):
    """Relevant columns have small precisions, irrelevant ones large precisions."""
    model = LaplaceRegressor(prior="ard", hessian_structure=structure, memory=cache, **SMALL).fit(RELEVANT, TARGETS)
    by_name = dict(zip(model.prior_groups_, model.prior_precision_, strict=True))
    columns = np.array([by_name[f"2.weight[:, {k}]"] for k in range(6)])
    assert set(by_name) == {*(f"2.weight[:, {k}]" for k in range(6)), "2.bias", "5.weight", "5.bias"}
    relevant = np.isin(np.arange(6), [0, 3])
    assert columns[~relevant].min() > 3 * columns[relevant].max()


@pytest.mark.parametrize("structure", ["full", "functional", "kron", "diag"])
def test_a_refit_under_other_groups_is_a_new_fit(structure):
    """With a fixed training prior the groups only matter for the posterior."""
    start = LaplaceRegressor(map_prior_precision=1.0, hessian_structure=structure, **GAUSSIAN)
    model = clone(start).fit(X, Y[:, 0])
    for change in (
        {"prior": "ard"},
        {"prior": "layer", "temperature": {"2": 0.3, "5.bias": 2.0}},
        {"prior": "layer", "prior_precision": [0.5, 2.0], "temperature": 1.0},
        {"prior": "ard", "prior_precision": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]},
        {"prior": "scalar", "prior_precision": [1.0, 2.0, 3.0, 4.0]},
        *([{"prior": "parameter", "prior_precision": "evidence"}] if structure != "kron" else []),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # bounds
            other = clone(model.refit_laplace(**change)).fit(X, Y[:, 0])
        np.testing.assert_array_equal(model.prior_precision_, other.prior_precision_)
        np.testing.assert_array_equal(model.predict_std(X_NEW), other.predict_std(X_NEW))
        assert model.prior_groups_ == other.prior_groups_
        assert model.log_marginal_likelihood_value_ == other.log_marginal_likelihood_value_


def test_given_precisions_are_those_of_the_groups_whatever_is_random():
    """One per group of the whole net; a last layer uses the precision of its group."""
    options = {"prior": "layer", "prior_precision": [3.0, 5.0], "hessian_structure": "full", **GAUSSIAN}
    model = LaplaceRegressor(**options).fit(X, Y[:, 0])
    assert model.prior_precision_.tolist() == [3.0, 5.0] and model.prior_groups_ == ("2", "5")
    last = LaplaceRegressor(subset_of_weights="last_layer", **options).fit(X, Y[:, 0])
    assert last.prior_precision_ == pytest.approx(5.0) and last.prior_groups_ == ("5",)


@pytest.mark.usefixtures("complete_training")
def test_one_precision_a_parameter_fits_and_classifies():
    """Chosen by evidence or given; "auto" chooses a structure that supports it."""
    labels = np.where(Y[:, 0] > 1, "up", "down")
    model = LaplaceClassifier(prior="parameter", **SMALL).fit(X, labels)
    assert model.prior_precision_.shape == (len(model.prior_groups_),) and model.score(X, labels) > 0.9
    model = LaplaceRegressor(prior="parameter", prior_precision=np.linspace(0.5, 2, 25), **GAUSSIAN)
    model.fit(X, Y[:, 0])
    delta = model.laplace_.network.tensors(model.laplace_.prior.precision(model.hyper_.prior_precision))
    np.testing.assert_allclose(delta["2.weight"].flatten(), np.linspace(0.5, 2, 25)[:16])
    assert model.prior_groups_[7] == "2.weight[1, 3]"


@pytest.mark.usefixtures("complete_training")
def test_a_large_net_trains_under_one_precision_a_parameter(monkeypatch):
    """Without affordable exact steps, "diag" is used where Kronecker factors do not support the grouping."""
    nothing = replace(_map.budget_for(10), exact_step=0, exact_posterior=0, epoch_steps=40)
    for module in ("_training.fit_map", "_training.epochs", "_table.limits"):
        monkeypatch.setattr(f"sklearn_laplace.{module}.budget_for", lambda n_rows: nothing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_layer, by_weight = (LaplaceRegressor(prior=name, **SMALL).fit(X, Y[:, 0]) for name in ("layer", "parameter"))
    assert (by_layer.structure_, by_weight.structure_) == ("kron", "diag")
    assert by_weight.score(X, Y[:, 0]) > 0.5


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"prior": "parameter", "hessian_structure": "kron"},
            UnsupportedCombinationError,
            "'kron' does not support one prior precision for each weight.*within each column.*'ard', 'layer'.*'block_",
        ),
        (
            {"prior": "tensor", "hessian_structure": "ekfac"},
            UnsupportedCombinationError,
            r"'ekfac' does not support one prior precision for each tensor.*each layer.*\['layer', 'scalar'\]",
        ),
        (
            {"prior_precision": [1.0, 2.0, 3.0, 4.0], "hessian_structure": "ekfac"},
            UnsupportedCombinationError,
            "'ekfac' does not support one prior precision for each tensor",
        ),
        (
            {"prior": "ard", "hessian_structure": "ekfac"},
            UnsupportedCombinationError,
            "'ekfac' does not support one prior precision for each input column and other tensor",
        ),
        (
            {"prior": "ard", "prior_precision": [1.0, 2.0]},
            ValueError,
            r"has 2 entries; expected 1 \(scalar\) or 7 \(one per input column and other tensor: 2.weight\[:, 0\], 2.w",
        ),
        (
            {"prior": "parameter", "prior_precision": [1.0, 2.0]},
            ValueError,
            r"or 25 \(one per weight: 2.weight\[0, 0\], 2.weight\[0, 1\], .* … \(25 in all\)\)",
        ),
        ({"prior": "layer", "prior_precision": [1.0] * 3}, ValueError, r"or 2 \(one per layer: 2, 5\)"),
    ],
)
@pytest.mark.parametrize("training", ["same", 1.0])
def test_a_pattern_that_cannot_be_held_is_refused_before_training(options, error, message, training, monkeypatch):
    """The error states the reason and the alternatives."""
    monkeypatch.setattr("sklearn_laplace._training.train.fit_map", lambda *args, **kwargs: pytest.fail("trained"))
    with pytest.raises(error, match=message):
        LaplaceRegressor(map_prior_precision=training, **options, **SMALL).fit(X, Y[:, 0])


@pytest.mark.parametrize("training", ["same", 1.0])
def test_a_net_without_input_columns_has_no_relevance(training, monkeypatch):
    """The error names a first layer that is not linear, before the training."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = nn.LayerNorm(4), nn.Linear(4, 1)

        def forward(self, x):
            return self.out(self.norm(x))

    monkeypatch.setattr("sklearn_laplace._training.train.fit_map", lambda *args, **kwargs: pytest.fail("trained"))
    with pytest.raises(UnsupportedCombinationError, match=r"first layer with weights.*found 'norm' \(LayerNorm\)"):
        LaplaceRegressor(Normed, prior="ard", map_prior_precision=training).fit(X, Y[:, 0])


def test_groups_that_a_mask_empties_are_none():
    """Groups without random weights are dropped."""
    mask = {"2.weight": np.array([[True, False, False, False]] * 4)}
    model = LaplaceRegressor(prior="ard", subset_of_weights=mask, hessian_structure="full", **GAUSSIAN)
    assert model.fit(X, Y[:, 0]).prior_groups_ == ("2.weight[:, 0]",)
    assert math.isfinite(model.prior_precision_)


def test_tied_tensors_have_one_mean_under_any_of_their_names():
    """A state_dict contains all names."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(torch.tanh(self.a(x)))

    tied = Tied().double()
    network = trace(tied, torch.zeros(3, 2).double())
    torch.testing.assert_close(prior_mean(network, tied.state_dict()), network.theta)
    assert prior_mean(network, {"b.weight": torch.ones(2, 2)}).sum() == 4


def test_the_likelihoods_all_take_it():
    """The Poisson net shifts its output, but the prior mean is that of the weights."""
    counts = RNG.poisson(np.exp(0.3 * X[:, 0] + 1.0))
    model = LaplaceRegressor(likelihood="poisson", prior=GaussianPrior("ard", mean=0.1), **SMALL).fit(X, counts)
    assert np.isfinite(model.log_marginal_likelihood_value_) and model.score(X, counts) > 0
    assert set(LIKELIHOODS) >= {"poisson"}


# ------------------------------------------------------------------------------ relevance of columns


@pytest.mark.parametrize("structure", ["full", "functional", "kron", "diag"])
def test_relevance_is_that_of_the_formula(structure):
    """γ_k / (n_k δ_k) by the dense posterior of the structure's curvature, with sum one."""
    example = mlp("gaussian", (4, 3, 1), n=20)
    prior = GROUPINGS["ard"].prior(example.network)
    hyper = Hyper(torch.logspace(-1, 1, prior.n_groups, dtype=torch.float64), 0.3, temperature=0.01)
    shares = relevance(example.fit(structure, prior), hyper, 4)
    delta = hyper.prior_precision[prior.groups]
    H = contracts.dense_curvature(structure, example)
    variance = torch.linalg.inv(oracles.posterior_precision(H, delta, 1 / 0.3)).diagonal()
    columns = [prior.names.index(f"0.weight[:, {k}]") for k in range(4)]
    share = torch.stack([(1 - delta * variance)[prior.groups == k].mean() for k in columns])
    expected = share / hyper.prior_precision[columns]
    np.testing.assert_allclose(shares, (expected / expected.sum()).numpy(), rtol=1e-8)


@pytest.mark.parametrize("kind", [LaplaceRegressor, LaplaceClassifier])
@pytest.mark.usefixtures("complete_training")
def test_columns_that_matter_are_told_from_those_that_do_not(kind):
    """Two relevant columns have nine tenths of the relevance, in any units, and a constant one has none."""
    rows = np.column_stack([RELEVANT, np.full(150, 3.0)])
    targets = TARGETS if kind is LaplaceRegressor else TARGETS > 0
    model = kind(prior="ard", **SMALL)
    shares = clone(model).fit(rows, targets).feature_relevance_
    assert shares.shape == (7,) and shares.sum() == pytest.approx(1.0)
    assert shares[[0, 3]].sum() > 0.9 and shares[[0, 3]].min() > shares[[1, 2, 4, 5]].max()
    assert shares[6] == pytest.approx(0, abs=1e-12)
    scales = np.array([1e-6, 1e3, 1.0, 1e6, 1e-3, 50.0, 1.0])
    scaled = clone(model).fit(rows * scales + scales, targets).feature_relevance_
    np.testing.assert_allclose(scaled, shares, atol=0.02)


@pytest.mark.usefixtures("complete_training")
def test_relevance_follows_the_order_of_the_columns():
    """The objective of a linear net has one mode: permuted columns have permuted relevances."""
    model = LaplaceRegressor(prior="ard", hidden_layer_sizes=(), random_state=0)
    order = np.array([3, 5, 0, 1, 4, 2])
    shares = clone(model).fit(RELEVANT, TARGETS).feature_relevance_
    permuted = clone(model).fit(RELEVANT[:, order], TARGETS).feature_relevance_
    np.testing.assert_allclose(permuted, shares[order], rtol=0.05, atol=1e-3)
    assert shares[[0, 3]].sum() > 0.95


@pytest.mark.usefixtures("complete_training")
def test_a_net_of_ones_own_has_relevances_of_the_columns_that_it_sees():
    """Those of its first layer; also after pickling and refit_laplace."""
    model = LaplaceRegressor(nets.Hidden(6, 1), prior="ard", random_state=0).fit(RELEVANT, TARGETS)
    shares = model.feature_relevance_
    assert shares.shape == (6,) and shares[[0, 3]].sum() > 0.6
    np.testing.assert_allclose(pickle.loads(pickle.dumps(model)).feature_relevance_, shares, rtol=1e-10)
    precisions = [1.0] * len(model.prior_groups_)
    assert (model.refit_laplace(prior_precision=precisions).feature_relevance_ > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a prior precision for each input column, but this fit has 1 other groups of weights. Use prior='a"),
        ({"prior": "ard", "prior_precision": 2.0}, "with prior_precision as a rule or as one number per group"),
        ({"prior": "ard", "subset_of_weights": "last_layer"}, "a subset_of_weights that includes the first layer"),
        ({"prior": "parameter"}, "needs a prior precision for each input column"),
    ],
)
def test_without_precisions_of_the_columns_there_is_no_relevance(options, message):
    """AttributeError with the reason, and hasattr is False."""
    model = LaplaceRegressor(**options, **GAUSSIAN).fit(X, Y[:, 0])
    with pytest.raises(AttributeError, match=message):
        _ = model.feature_relevance_
    assert not hasattr(model, "feature_relevance_")


def test_columns_of_something_else_have_no_relevance():
    """The first layer has more inputs than X has columns."""

    class Squares(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(8, 1)

        def forward(self, x):
            return self.out(torch.cat([x, x.square()], dim=1))

    model = LaplaceRegressor(Squares, prior="ard", random_state=0).fit(X, Y[:, 0])
    with pytest.raises(AttributeError, match="the layer has 8 inputs and X has 4 columns"):
        _ = model.feature_relevance_


# ------------------------------------------------------------------------------ stopping rules


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
@pytest.mark.parametrize("name", sorted(GROUPINGS))
def test_the_search_stops_at_a_stationary_point_within_its_iterations(name, kind, monkeypatch):
    """For every grouping the gradient in log δ and log φ vanishes, except at a bound where it points outwards."""
    example = mlp(kind, (5, 4, 2), seed=4, n=60)
    fit = example.fit("full", GROUPINGS[name].prior(example.network))
    calls = []
    for routine in ("evidence_derivatives", "diagonal_derivatives"):
        original = getattr(selection, routine)
        monkeypatch.setattr(selection, routine, lambda *args, original=original: calls.append(1) or original(*args))
    best = maximise_evidence(fit, Hyper(torch.ones(fit.prior.n_groups).double(), 1.0), warn=False)
    assert len(calls) < selection.MAX_ITERATIONS
    gradient = evidence_derivatives(fit, best).gradient
    low, high = best.prior_precision <= 1.001e-6, best.prior_precision >= 0.999e8
    inner = gradient[:-1][~low & ~high]
    # The last Newton step gains less than 1e-9 nats, the last diagonal step less than 1e-4, which corresponds to a
    # gradient of √(2·1e-4·½ n γ).
    assert inner.abs().max() < (1e-3 if fit.prior.n_groups <= selection.NEWTON_GROUPS else 0.05)
    assert bool((gradient[:-1][low] <= 0).all() and (gradient[:-1][high] >= -1e-3).all())
    if kind == "gaussian":
        assert abs(float(gradient[-1])) < 0.05


@pytest.mark.parametrize("name", sorted(GROUPINGS))
@pytest.mark.usefixtures("complete_training")
def test_the_alternation_stops_within_its_steps(name, monkeypatch):
    """Moves that have begun are finished and one more settling may follow: at most half of the steps are added."""
    shares, original = [], _map.alternate

    def watched(*args, **options):
        result = original(*args, **options)
        shares.append(result.n_steps / options["max_steps"])
        return result

    monkeypatch.setattr("sklearn_laplace._training.fit_map.alternate", watched)
    LaplaceRegressor(prior=name, **SMALL).fit(RELEVANT, TARGETS)
    n_starts = 1 if name == "scalar" else 3  # more starts where the first one has learnt almost nothing
    assert len(shares) == n_starts and max(shares) <= 1.5
