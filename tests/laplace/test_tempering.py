"""Temperature per layer, P = S H S + diag(δ) with S = T^−½: dense algebra, and use in the estimators."""

from __future__ import annotations

import pickle
from dataclasses import replace

import contracts
import numpy as np
import oracles
import pytest
import torch
import trainings
from sklearn.base import clone
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.errors import UnsupportedCombinationError
from sklearn_laplace.laplace import Hyper
from sklearn_laplace.laplace.evidence import evidence_derivatives, log_evidence
from sklearn_laplace.laplace.prior_groups import GROUPINGS, temperatures
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.tempering import TemperedPosterior

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(37)
X, X_NEW = RNG.normal(size=(60, 3)), 2 * RNG.normal(size=(7, 3))
Y = np.sin(X[:, 0]) + X[:, 1] + 0.2 * RNG.normal(size=60)
LABELS = np.where(Y > 0, "up", "down")
SMALL = {"hidden_layer_sizes": (5,), "map_prior_precision": 1.0, "random_state": 0, "memory": trainings.MEMORY}
BY_LAYER = {"body.0": 3.0, "scale": 0.2}
BY_TENSOR = {"body.0.weight": 3.0, "body": 0.5}


@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize("structure", sorted(STRUCTURES))
@pytest.mark.parametrize("grouped", [False, True], ids=["scalar", "tensor"])
@pytest.mark.parametrize("names", [BY_LAYER, BY_TENSOR], ids=["by-layer", "by-tensor"])
def test_every_answer_is_that_of_the_dense_matrix(structure, kind, grouped, names):
    """Holds for every structure; ekfac refuses what it cannot represent."""
    example = contracts.example(kind, seed=1)
    network = example.network
    prior = GROUPINGS["tensor"].prior(network) if grouped else network.scalar_prior()
    T = temperatures(network, names)
    values = torch.logspace(-0.5, 0.7, prior.n_groups, dtype=torch.float64)
    hyper = Hyper(values, 0.3 if kind == "gaussian" else 1.0, T)
    fit = example.fit(structure, prior)
    if structure == "ekfac" and (grouped or names is BY_TENSOR):
        with pytest.raises(UnsupportedCombinationError, match="'ekfac' needs one prior precision"):
            fit.posterior(hyper)
        return
    S, delta = torch.diag(T.rsqrt()), values[prior.groups]
    H = S @ contracts.dense_curvature(structure, example) @ S
    scale = 1 / hyper.dispersion
    covariance = torch.linalg.inv(oracles.posterior_precision(H, delta, scale))
    posterior, p, what = fit.posterior(hyper), len(T), structure
    theta = fit.theta + torch.linspace(-1, 2, p).double()
    density = torch.distributions.MultivariateNormal(fit.theta, covariance).log_prob(theta)
    contracts.close(fit.log_prob(theta, hyper), density, 1e-9, what)
    assert isinstance(posterior, TemperedPosterior) and posterior.n_parameters == p
    contracts.close(contracts.covariance_of(posterior, p), covariance, 1e-9, what)
    contracts.close(posterior.solve(delta), covariance @ delta, 1e-9, what)
    contracts.close(posterior.marginal_variance(), covariance.diagonal(), 1e-9, what)
    contracts.close(posterior.logdet_precision(), -torch.linalg.slogdet(covariance).logabsdet, 1e-10, what)
    members = nn.functional.one_hot(prior.groups, prior.n_groups).double()
    weighted = delta[:, None] * covariance.square() * delta
    first, second = posterior.prior_statistics(prior.groups, prior.n_groups)
    contracts.close(first, members.mT @ (delta * covariance.diagonal()), 1e-9, what)
    contracts.close(second, members.mT @ weighted @ members, 1e-9, what)
    contracts.close(posterior.shrinkage(prior.groups, prior.n_groups), first, 1e-9, what)

    new = contracts.random_rows(kind, 4, 2, 3, seed=9)[0]
    J = oracles.jacobian(example.module, network.parameter_names, new)[..., contracts.oracle_order(network).argsort()]
    expected = J @ covariance @ J.mT
    contracts.close(posterior.covariance(example.jacobian(new)), expected, 1e-9, what)
    contracts.close(posterior.variance(example.jacobian(new)), expected.diagonal(dim1=1, dim2=2), 1e-9, what)
    crossed = J.flatten(0, 1) @ covariance @ J.flatten(0, 1).mT
    contracts.close(posterior.cross_covariance(*[example.jacobian(new)] * 2), crossed, 1e-9, what)

    f = oracles.outputs(example.module, example.x)
    fits = (example.weights * oracles.log_likelihood(kind, f, example.y, hyper.dispersion)).sum()
    dense = float(oracles.log_evidence(fits, H, delta, scale, network.theta))
    assert log_evidence(fit, hyper) == pytest.approx(dense, rel=1e-9)
    assert log_evidence(fit, hyper, posterior) == pytest.approx(dense, rel=1e-9)

    def along(logs):
        moved = replace(hyper, prior_precision=logs.exp())
        return log_evidence(fit, moved)

    expected = oracles.evidence_gradient_by_differences(along, values.log())
    torch.testing.assert_close(evidence_derivatives(fit, hyper).gradient[:-1], expected, rtol=1e-6, atol=1e-6)


def test_a_convolution_and_a_part_of_a_layer_have_temperatures():
    """Convolution and a mask of single weights."""
    module = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 1))
    model = LaplaceRegressor(module, hessian_structure="full", temperature={"1": 0.2, "4.bias": 3.0}, random_state=0)
    features = RNG.normal(size=(40, 6))
    mask = {"1.weight": np.array([[[True, False, True]], [[False, True, True]]]), "4.bias": np.array([True])}
    for subset in ("all", mask):
        fitted = clone(model).set_params(subset_of_weights=subset).fit(features, features[:, 0])
        H, hyper, network = fitted.laplace_.curvature.matrix, fitted.hyper_, fitted.laplace_.network
        assert {0.2, 3.0} <= set(hyper.temperature.tolist()) <= {0.2, 1.0, 3.0}
        S = torch.diag(hyper.temperature.rsqrt())
        P = S @ H @ S / hyper.dispersion + float(hyper.prior_precision) * torch.eye(len(H), dtype=torch.float64)
        J = network.jacobian(torch.tensor(features))[1].rows()[:, 0]
        expected = (J @ torch.linalg.inv(P) * J).sum(1).sqrt()
        std = fitted.predict_std(features, kind="epistemic") / fitted._scale.scale
        np.testing.assert_allclose(std, expected, rtol=1e-8)


@pytest.mark.parametrize("structure", ["full", "functional", "kron", "ekfac", "diag"])
def test_one_temperature_for_every_layer_is_one_temperature(structure):
    """Given for each layer or as a number; with ``full`` also for an ensemble."""
    options = {"map_prior_precision": "same", "n_members": 4} if structure == "full" else {}
    by_number, by_name = (
        LaplaceRegressor(temperature=T, hessian_structure=structure, likelihood="gaussian", **{**SMALL, **options}).fit(
            X, Y
        )
        for T in (0.3, {"2": 0.3, "5": 0.3})
    )
    np.testing.assert_allclose(by_name.predict_std(X_NEW), by_number.predict_std(X_NEW), rtol=1e-9)
    np.testing.assert_allclose(
        by_name.log_marginal_likelihood_value_, by_number.log_marginal_likelihood_value_, rtol=1e-9
    )
    assert by_name.prior_precision_ == by_number.prior_precision_, "the evidence chooses at temperature 1"


def test_a_cold_layer_is_surer_and_a_refit_is_a_new_fit():
    """A temperature needs no training, and that of a single call does not change the estimator."""
    model = LaplaceClassifier(hessian_structure="kron", predictive="mc", **SMALL).fit(X, LABELS)
    variance = model.posterior_.marginal_variance()
    precision = model.prior_precision_
    model.refit_laplace(temperature={"2": 0.01})
    ratios = model.laplace_.network.tensors(model.posterior_.marginal_variance() / variance)
    assert float(ratios["2.weight"].max()) < 1 and float((ratios["5.weight"] - 1).abs().max()) < 1e-9
    assert model.prior_precision_ == precision
    again = clone(model).fit(X, LABELS)
    np.testing.assert_array_equal(model.predict_proba(X_NEW), again.predict_proba(X_NEW))
    evidence = model.log_marginal_likelihood_value_
    assert model.log_marginal_likelihood() == pytest.approx(evidence, rel=1e-12)
    other = model.log_marginal_likelihood(temperature={"5": 2.0})
    assert other != pytest.approx(evidence)
    assert model.refit_laplace(temperature={"5": 2.0}).log_marginal_likelihood_value_ == pytest.approx(other, rel=1e-12)


def test_a_tempered_model_is_saved_and_learns_on():
    """A pickled copy is identical; partial_fit moves the mean as at temperature 1."""
    model = LaplaceRegressor(temperature={"5": 0.1}, hessian_structure="full", likelihood="gaussian", **SMALL).fit(
        X[:40], Y[:40]
    )
    loaded = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(loaded.predict_std(X_NEW), model.predict_std(X_NEW))
    plain = LaplaceRegressor(hessian_structure="full", likelihood="gaussian", **SMALL).fit(X[:40], Y[:40])
    for each in (loaded, plain):
        each.partial_fit(X[40:], Y[40:])
    np.testing.assert_allclose(loaded.predict(X_NEW), plain.predict(X_NEW), rtol=1e-12)
    assert (loaded.predict_std(X_NEW) != plain.predict_std(X_NEW)).all()


@pytest.mark.parametrize(
    ("temperature", "error", "message"),
    [
        (
            {"hidden": 1.0},
            ValueError,
            r"has unknown names \['hidden'\]; the net's layers and tensors are 2, 2.bias, 2.weight, 5, 5",
        ),
        ({"2": 0.0}, ValueError, r"temperature\['2'\]=0.0 has to be a finite number above zero"),
        ({"2": "cold"}, ValueError, r"temperature\['2'\]='cold' has to be a finite number"),
        ("cold", ValueError, "temperature='cold' has to be a finite number above zero"),
        (
            {"2.bias": 2.0},
            UnsupportedCombinationError,
            "'ekfac' needs the same temperature for all tensors of a layer.*'kron'",
        ),
    ],
)
def test_a_wrong_temperature_is_refused_before_training(temperature, error, message, monkeypatch):
    """The message names the value and the alternatives."""
    monkeypatch.setattr("sklearn_laplace._training.train.fit_map", lambda *args, **kwargs: pytest.fail("trained"))
    with pytest.raises(error, match=message):
        LaplaceRegressor(temperature=temperature, hessian_structure="ekfac", **{**SMALL, "memory": None}).fit(X, Y)


def test_a_wrong_name_in_a_refit_loses_nothing():
    """Predictions do not change."""
    model = LaplaceRegressor(**SMALL).fit(X, Y)
    before = model.predict_std(X_NEW)
    with pytest.raises(ValueError, match="temperature has unknown names"):
        model.refit_laplace(temperature={"nothing": 2.0})
    np.testing.assert_array_equal(model.predict_std(X_NEW), before)
    assert model.temperature == 1.0
