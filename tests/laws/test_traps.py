"""Errors that other implementations of the Laplace approximation have made, each with a test that fails on it."""

from __future__ import annotations

import copy

import joblib
import nets
import numpy as np
import oracles
import pytest
import torch
from sklearn.model_selection import GridSearchCV
from skorch.callbacks import Callback

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, metrics
from sklearn_laplace.laplace import fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.jacobian import FactoredJacobian
from sklearn_laplace.laplace.structures import STRUCTURES

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(43)
X, X_NEW = RNG.normal(size=(60, 3)), 2 * RNG.normal(size=(9, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.3 * RNG.normal(size=60)
LABELS = (Y > 0).astype(int)
SMALL = {"hidden_layer_sizes": (6,), "random_state": 0}
FIXED = {**SMALL, "prior_precision": 1.0, "sigma_noise": 0.3}


def linear(**options):
    """A linear net with fixed prior precision and noise level: the posterior has a closed form."""
    options = {"standardize_X": False, "standardize_y": False, "random_state": 0, **options}
    options = {"prior_precision": 2.0, "sigma_noise": 0.5, **options}
    return LaplaceRegressor(nets.regressor(nets.Linear, **options.pop("net", {})), **options)


def closed_form(sigma=0.5, delta=2.0, weights=None):
    features = torch.tensor(np.column_stack([X, np.ones(60)]))
    w = torch.ones(60, dtype=torch.float64) if weights is None else torch.tensor(weights)
    return oracles.bayesian_linear_regression(features, torch.tensor(Y[:, None]), w, delta, sigma**2)


def epistemic(exact):
    return exact.predict(torch.tensor(np.column_stack([X_NEW, np.ones(9)])))[1].diagonal().sqrt().numpy()


def test_trap_1_a_mean_loss_is_not_taken_for_a_sum():
    """Neither the evidence nor the training depends on the batch size."""
    for size in (7, 60, -1):
        model = linear(net={"batch_size": size, "max_epochs": 3}).fit(X, Y)
        np.testing.assert_allclose(model.log_marginal_likelihood_value_, float(closed_form().log_evidence), rtol=1e-9)


@pytest.mark.parametrize("structure", ["full", "functional", "kron", "block_diagonal", "low_rank"])
def test_trap_2_the_curvature_is_divided_by_the_noise_variance(structure):
    """Different noise levels give different posteriors, each equal to the closed form."""
    for sigma in (0.25, 2.0):
        got = linear(sigma_noise=sigma, hessian_structure=structure).fit(X, Y).predict_std(X_NEW, kind="epistemic")
        np.testing.assert_allclose(got, epistemic(closed_form(sigma)), rtol=1e-9)


@pytest.mark.usefixtures("complete_training")
def test_trap_3_a_candidate_is_scored_by_itself_alone():
    """The score of a candidate does not depend on the candidates before it."""
    model = LaplaceRegressor(**SMALL, n_members=1)
    scores = [
        GridSearchCV(model, {"prior_precision": grid}, cv=2, scoring=metrics.neg_nlpd, refit=False)
        .fit(X, Y)
        .cv_results_["mean_test_score"][-1]
        for grid in ([1e-3, 50.0, 1.0], [1.0])
    ]
    assert scores[0] == scores[1]


@pytest.mark.usefixtures("complete_training")
def test_trap_4_a_search_over_the_prior_is_scored_by_something_that_depends_on_it():
    """With a fixed training, the log density depends on the prior precision and R² does not."""
    grid = {"prior_precision": [1e-3, 1.0, 1e3]}
    search = GridSearchCV(
        LaplaceRegressor(map_prior_precision=1.0, **SMALL),
        grid,
        cv=2,
        scoring={"r2": "r2", "nlpd": metrics.neg_nlpd},
        refit=False,
    ).fit(X, Y)
    assert len(set(search.cv_results_["mean_test_r2"])) == 1
    assert len(set(search.cv_results_["mean_test_nlpd"])) == 3


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_trap_5_the_empirical_fisher_is_that_of_the_log_density(sigma):
    """Σ g gᵀ with g the gradient of −log p(y): no factor two, and 1/σ⁴ where the Gauss–Newton matrix has 1/σ²."""
    model = linear(curvature="empirical_fisher", hessian_structure="full", sigma_noise=sigma).fit(X, Y)
    features = torch.tensor(np.column_stack([X, np.ones(60)]))
    residual = torch.tensor(Y - model.predict(X))
    gradients = features * residual[:, None] / sigma**2
    covariance = torch.linalg.inv(gradients.mT @ gradients + 2.0 * torch.eye(4))
    rows = torch.tensor(np.column_stack([X_NEW, np.ones(9)]))
    expected = (rows @ covariance @ rows.mT).diagonal().sqrt()
    np.testing.assert_allclose(model.predict_std(X_NEW, kind="epistemic"), expected.numpy(), rtol=1e-8)


@pytest.mark.parametrize("structure", ["kron", "ekfac"])
def test_trap_6_scaling_a_kronecker_curvature_keeps_its_damping_exact(structure):
    """The posterior precision is s·B ⊗ A + δ I for every s, without δ inside the factors."""
    model = linear(hessian_structure=structure, temperature=0.2, sigma_noise=3.0).fit(X, Y)
    precision = closed_form().covariance.inverse() - 2.0 * torch.eye(4)  # AᵀA / σ² at σ = .5
    expected = torch.linalg.inv(precision * 0.25 / (9.0 * 0.2) + 2.0 * torch.eye(4))
    rows = torch.tensor(np.column_stack([X_NEW, np.ones(9)]))
    std = (rows @ expected @ rows.mT).diagonal().sqrt()
    np.testing.assert_allclose(model.predict_std(X_NEW, kind="epistemic"), std.numpy(), rtol=1e-8)


def test_trap_7_a_new_temperature_makes_a_new_covariance():
    """No outdated cache: the covariance equals that of a new fit."""
    model = linear().fit(X, Y)
    before = model.predict(X_NEW, return_cov=True)[1]
    after = model.refit_laplace(temperature=0.1).predict(X_NEW, return_cov=True)[1]
    np.testing.assert_array_equal(after, linear(temperature=0.1).fit(X, Y).predict(X_NEW, return_cov=True)[1])
    assert (np.diag(after) < np.diag(before)).all()


def test_trap_8_the_predictive_has_the_noise_in_it_and_not_a_noise_of_one():
    """total² = epistemic² + σ², with the noise level of the data."""
    model = LaplaceRegressor(**SMALL, n_members=1).fit(X, 10 * Y)
    assert 1.5 < model.sigma_noise_ < 5
    total, part = model.predict_std(X_NEW), model.predict_std(X_NEW, kind="epistemic")
    np.testing.assert_allclose(total**2 - part**2, model.sigma_noise_**2, rtol=1e-9)


def test_trap_9_an_evidence_step_leaves_the_net_in_training_mode():
    """Dropout and batch norm stay in training mode after the curvature has been computed."""
    modes = []

    class Spy(Callback):
        def on_grad_computed(self, net, **kwargs):
            modes.append(net.module_.training)

    net = nets.regressor(module__dropout=0.3, module__norm=True, max_epochs=30, callbacks=[Spy()])
    LaplaceRegressor(net, random_state=0).fit(X, Y)
    assert len(modes) >= 30 and all(modes)


def test_trap_10_draws_of_functions_are_not_one_draw_for_all_rows():
    """The correlations between rows are those of the posterior, and below one for distant rows."""
    model = LaplaceRegressor(**SMALL, n_members=1).fit(X, Y)
    draws = model.sample_y(X_NEW, 20_000, kind="epistemic")
    covariance = model.predict(X_NEW, return_cov=True)[1] - model.sigma_noise_**2 * np.eye(9)
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    np.testing.assert_allclose(np.corrcoef(draws), covariance / scale, atol=0.03)
    assert np.abs(covariance / scale).min() < 0.7


def test_trap_11_the_number_of_rows_is_the_sum_of_the_weights_seen():
    """Rows of weight zero do not count, and rows of weight three count three times: kron averages over N_w."""
    weights = RNG.integers(0, 4, size=60).astype(float)
    model = linear(hessian_structure="kron").fit(X, Y, sample_weight=weights)
    assert model.laplace_.total_weight == model.laplace_.curvature.total_weight == weights.sum()
    np.testing.assert_allclose(
        model.predict_std(X_NEW, kind="epistemic"), epistemic(closed_form(weights=weights)), rtol=1e-9
    )


@pytest.fixture(scope="module", params=[*sorted(STRUCTURES), "default"])
def fitted(request):
    """Two members with each structure, and a default fit; tests must not change them."""
    options = SMALL if request.param == "default" else {**FIXED, "n_members": 2, "hessian_structure": request.param}
    return LaplaceRegressor(**options).fit(X, Y)


def test_trap_12_reading_does_not_write(fitted):
    """Neither a property nor a prediction changes the state that would be stored."""
    model = copy.deepcopy(fitted)
    names = set(vars(model))
    before = joblib.hash(model)
    for method in (model.predict, model.predict_std, model.predict_interval, model.sample_y, model.score_samples):
        method(X_NEW)
    model.log_marginal_likelihood(prior_precision=3.0)
    assert model.sigma_noise_ > 0 and model.posterior_.n_parameters > 0
    assert set(vars(model)) == names and joblib.hash(model) == before


def test_trap_13_a_prediction_factorises_nothing(fitted, monkeypatch):
    """All work of order P³ is done in fit."""

    def refuse(*args, **kwargs):
        raise AssertionError("a factorisation inside predict")

    for name in ("eigh", "eigvalsh", "cholesky_ex", "cholesky", "svd", "inv", "solve"):
        monkeypatch.setattr(torch.linalg, name, refuse)
    fitted.predict(X_NEW, return_std=True)
    fitted.predict_dist(X_NEW)


@pytest.mark.parametrize("structure", ["diag", "kron", "ekfac"])
def test_trap_14_no_jacobian_of_rows_times_outputs_times_weights_is_held(structure, monkeypatch):
    """Fit and predict with these structures use the factors of linear layers."""

    def refuse(self):
        raise AssertionError("a dense Jacobian")

    # the training itself uses an exact structure
    model = LaplaceClassifier(hessian_structure="diag", prior_precision=1.0, n_members=1, **SMALL).fit(X, LABELS)
    monkeypatch.setattr(FactoredJacobian, "rows", refuse)
    fit = model.laplace_
    rows = [(torch.tensor(X), torch.tensor(LABELS), torch.ones(60, dtype=torch.float64))]
    curvature = STRUCTURES[structure].zero(fit.network.blocks, torch.device("cpu"))
    again = fit_laplace(fit.network, fit.likelihood, GGN(), STRUCTURES[structure], fit.prior, rows, like=curvature)
    posterior = again.posterior(model.hyper_)
    posterior.covariance(fit.network.jacobian(torch.tensor(X_NEW))[1])


def test_trap_15_a_classifier_has_the_curvature_of_a_classifier():
    """The curvature has the factor p (1 − p), not that of a regression."""
    model = LaplaceClassifier(nets.classifier(nets.Hidden), hessian_structure="full", random_state=0).fit(X, LABELS)
    network = model.laplace_.network
    names = network.parameter_names
    order = network.tensors(torch.arange(network.n_parameters))
    index = torch.cat([order[name].flatten() for name in names])
    rows = torch.tensor(X), torch.tensor(LABELS)
    expected = oracles.ggn("categorical", network.module, names, *rows)
    got = model.laplace_.curvature.matrix[index][:, index]
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)
    regression = oracles.ggn("gaussian", network.module, names, rows[0], torch.zeros(60, 2))
    assert not torch.allclose(got, regression, rtol=0.1)


@pytest.mark.parametrize("name", ["prior_precision", "sigma_noise", "temperature", "map_prior_precision"])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_trap_16_a_precision_or_a_noise_that_is_not_positive_is_refused(name, value):
    """Zero, negative, NaN and infinite values raise an error."""
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        LaplaceRegressor(**{name: value}).fit(X, Y)
