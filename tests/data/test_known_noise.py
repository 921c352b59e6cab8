"""Known noise levels of targets or rows: generalised least squares, and everything built on it."""

from __future__ import annotations

import pickle

import contracts
import nets
import numpy as np
import oracles
import pytest
import sklearn
import torch
import trainings
from sklearn.base import clone
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.errors import UnsupportedCombinationError
from sklearn_laplace.laplace import Hyper
from sklearn_laplace.laplace.curvatures import CURVATURES
from sklearn_laplace.laplace.structures import STRUCTURES

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(19)
X, X_NEW = RNG.normal(size=(60, 4)), 3 * RNG.normal(size=(6, 4))
V = np.exp(RNG.normal(size=(60, 2)))
Y = X @ RNG.normal(size=(4, 2)) + [1.0, -2.0] + 0.3 * np.sqrt(V) * RNG.normal(size=(60, 2))
WEIGHTS = RNG.integers(0, 4, size=60).astype(float)
DELTA = 2.0
SMALL = {"hidden_layer_sizes": (5,), "n_members": 1, "random_state": 0, "memory": trainings.MEMORY}


def features(rows):
    return torch.tensor(np.column_stack([rows, np.ones(len(rows))]))


def linear(**options):
    """Linear net, whose posterior has a closed form."""
    options = {"standardize_X": False, "standardize_y": False, "random_state": 0, **options}
    options = {"prior_precision": DELTA, "sigma_noise": 1.0, **options}
    return LaplaceRegressor(nets.regressor(nets.Linear, **options.pop("net", {})), **options)


def assert_is(model, y, variances, weights=None, rows=slice(None)):
    """Compare mean, covariance and evidence with one Bayesian linear regression for each target."""
    y, variances = y.reshape(len(y), -1)[rows], variances.reshape(len(variances), -1)[rows]
    w = torch.ones(len(y)).double() if weights is None else torch.tensor(weights[rows])
    mean, cov = model.predict(X_NEW, return_cov=True)
    evidence = 0.0
    for c in range(y.shape[1]):
        exact = oracles.bayesian_linear_regression(
            features(X[rows]), torch.tensor(y[:, c : c + 1]), w, DELTA, torch.tensor(variances[:, c])
        )
        expected_mean, epistemic = exact.predict(features(X_NEW))
        np.testing.assert_allclose(mean.reshape(6, -1)[:, c], expected_mean[:, 0].numpy(), rtol=1e-9, atol=1e-9)
        noise = np.average(variances[:, c], weights=w.numpy())
        expected = epistemic.numpy() + noise * np.eye(6)
        np.testing.assert_allclose(cov.reshape(6, 6, -1)[..., c], expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(np.atleast_1d(model.sigma_noise_)[c], noise**0.5, rtol=1e-12)
        evidence += float(exact.log_evidence if exact.log_density is None else exact.log_density)
    np.testing.assert_allclose(model.log_marginal_likelihood_value_, evidence, rtol=1e-9)


# ---------------------------------------------------------------------- closed forms


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
@pytest.mark.parametrize(("structure", "sigma", "size"), [("full", 1.0, -1), ("functional", 0.7, 7), ("auto", 3.0, 33)])
@pytest.mark.parametrize("outputs", ["one", "two", "two-shared"])
def test_a_linear_net_is_generalised_least_squares(outputs, structure, sigma, size, weights):
    """Noise variance σ²·vₙ of row n: mean, covariance and evidence have the closed form for every batch size."""
    y, v = (Y[:, 0], V[:, 0]) if outputs == "one" else (Y, V if outputs == "two" else V[:, 0])
    model = linear(sigma_noise=sigma, hessian_structure=structure, net={"max_epochs": 3, "batch_size": size})
    model.fit(X, y, sample_weight=weights, sample_noise_variance=v)
    full = np.broadcast_to(v.reshape(60, -1), y.reshape(60, -1).shape)
    assert_is(model, y, sigma**2 * full, weights)


@pytest.mark.parametrize("structure", ["full", "functional"])
def test_a_sigma_for_each_target_is_a_regression_for_each(structure):
    """The likelihood contains the noise ratios between targets, and sigma_noise_ returns the given values."""
    sigma = np.array([0.2, 3.0])
    model = linear(sigma_noise=sigma, hessian_structure=structure).fit(X, Y)
    assert_is(model, Y, np.tile(sigma**2, (60, 1)))
    parts = linear(sigma_noise=sigma, hessian_structure=structure).fit(X[:40], Y[:40]).partial_fit(X[40:], Y[40:])
    assert_is(parts, Y, np.tile(sigma**2, (60, 1)))
    both = linear(sigma_noise=(0.2, 3.0), hessian_structure=structure).fit(X, Y, sample_noise_variance=V)
    assert_is(both, Y, sigma**2 * V)


def test_targets_with_noise_of_their_own_keep_their_scale():
    """Targets are standardised separately, so the unit of one target does not affect the other."""
    model = LaplaceRegressor(**SMALL, sigma_noise=[0.5, 0.25]).fit(X, Y)
    other = LaplaceRegressor(**SMALL, sigma_noise=[0.5, 256.0]).fit(X, Y * [1.0, 1024.0])
    for got, expected in zip(other.predict(X_NEW, return_std=True), model.predict(X_NEW, return_std=True), strict=True):
        np.testing.assert_allclose(got, expected * [1.0, 1024.0], rtol=1e-7)
    np.testing.assert_allclose(model.sigma_noise_, [0.5, 0.25], rtol=1e-12)
    np.testing.assert_allclose(other.sigma_noise_, [0.5, 256.0], rtol=1e-12)
    shift = model.log_marginal_likelihood_value_ - other.log_marginal_likelihood_value_
    np.testing.assert_allclose(shift, 60 * np.log(1024), rtol=1e-9)


def test_one_sigma_is_the_same_for_each_target():
    """A scalar and equal entries give bit-identical results."""
    first = LaplaceRegressor(**SMALL, sigma_noise=0.4).fit(X, Y * [1.0, 30.0])
    second = LaplaceRegressor(**SMALL, sigma_noise=[0.4, 0.4]).fit(X, Y * [1.0, 30.0])
    np.testing.assert_array_equal(first.predict_std(X_NEW), second.predict_std(X_NEW))
    np.testing.assert_allclose(first.sigma_noise_, 0.4, rtol=1e-12)


@pytest.mark.usefixtures("complete_training")
def test_the_factor_of_largest_evidence_is_that_of_the_closed_form():
    """sigma_noise='evidence' finds the factor by which the given variances are too large, here about 1/0.09."""
    y, v = Y[:, 0], V[:, 0]

    def exact_evidence(log_parameters):
        delta, factor = (float(value) for value in torch.as_tensor(log_parameters).exp())
        rows = features(X), torch.tensor(y[:, None]), torch.ones(60, dtype=torch.float64)
        return float(oracles.bayesian_linear_regression(*rows, delta, factor * torch.tensor(v)).log_evidence)

    optimum, best = oracles.numerical_optimum(exact_evidence, np.log([1.0, 0.1]))
    model = linear(sigma_noise="evidence", prior_precision="evidence").fit(X, y, sample_noise_variance=v)
    # The search stops when no move of 30 % gains a tenth of a nat.
    assert best - 0.15 <= model.log_marginal_likelihood_value_ <= best + 1e-6
    np.testing.assert_allclose(model.sigma_noise_**2 / v.mean(), float(optimum[1].exp()), rtol=0.02)
    np.testing.assert_allclose(float(optimum[1].exp()), 0.09, atol=0.05)  # three standard errors of 60 rows


@pytest.mark.usefixtures("complete_training")
def test_the_residual_factor_weighs_residuals_by_their_variance():
    """σ² is the mean of r²/v."""
    model = LaplaceRegressor(**SMALL, sigma_noise="residual").fit(X, Y, sample_noise_variance=V)
    residual = Y - model.predict(X)
    # φ is a scalar: the mean over both targets of squared residuals in units of their noise.
    factor = np.mean(residual**2 / V)
    np.testing.assert_allclose(model.sigma_noise_, np.sqrt(factor * V.mean(0)), rtol=1e-4)


@pytest.mark.parametrize("structure", ["full", "functional"])
def test_rows_that_come_and_go_bring_their_noise(structure):
    """partial_fit equals generalised least squares on all rows; forget reverts it, evidence included."""
    model = linear(sigma_noise=0.8, hessian_structure=structure)
    known = [{"sample_noise_variance": V[rows]} for rows in (slice(0, 25), slice(25, 60))]
    model.fit(X[:25], Y[:25], **known[0])
    before = model.predict(X_NEW, return_cov=True), model.log_marginal_likelihood_value_
    model.partial_fit(X[25:], Y[25:], **known[1])
    mean, std = model.predict(X_NEW), model.predict_std(X_NEW, kind="epistemic")
    whole = linear(sigma_noise=0.8, hessian_structure="full").fit(X, Y, sample_noise_variance=V)
    np.testing.assert_allclose(mean, whole.predict(X_NEW), rtol=1e-9)
    np.testing.assert_allclose(std, whole.predict_std(X_NEW, kind="epistemic"), rtol=1e-9)
    evidence = model.log_marginal_likelihood_value_
    np.testing.assert_allclose(evidence, whole.log_marginal_likelihood_value_, rtol=1e-9)
    if structure == "full":
        model.forget(X[25:], Y[25:], **known[1])
        for got, expected in zip(model.predict(X_NEW, return_cov=True), before[0], strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(model.log_marginal_likelihood_value_, before[1], rtol=1e-9)


# ---------------------------------------------------------------------- dense matrices


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_every_structure_holds_the_curvature_of_known_noise(structure):
    """Compared with dense matrices from autodiff of the density, with a noise variance for each row."""
    problem = contracts.example("gaussian", seed=4, noisy=True)
    expected = contracts.dense_curvature(structure, problem)
    fit = problem.fit(structure)
    covariance = contracts.covariance_of(
        fit.posterior(Hyper(torch.tensor([0.7]).double(), dispersion=0.3)), len(expected)
    )
    P = oracles.posterior_precision(expected, 0.7, 1 / 0.3)
    contracts.close(torch.linalg.inv(covariance), P, 1e-8, structure)


@pytest.mark.parametrize("rule", ["ggn", "empirical_fisher", "hessian"])
@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ClippedWarning")
def test_the_dispersion_multiplies_the_known_noise(rule):
    """Curvature, loss, gradient and log-likelihood at φ are those of a density with variance φ·v."""
    problem, phi = contracts.example("gaussian", seed=6, noisy=True), 0.4
    fit = problem.fit("full", rule=CURVATURES[rule]())
    names = problem.network.parameter_names
    rows = problem.module, names, problem.x, problem.y, problem.weights
    variance = phi * problem.noise
    dense = {"ggn": oracles.ggn, "empirical_fisher": oracles.empirical_fisher, "hessian": oracles.hessian}[rule]
    H = oracles.nearest_semidefinite(dense("gaussian", *rows, noise_variance=variance))
    hyper = Hyper(torch.tensor([1.5]).double(), dispersion=phi)
    covariance = contracts.covariance_of(fit.posterior(hyper), problem.network.n_parameters)
    precision = contracts.to_oracle(problem.network, torch.linalg.inv(covariance))
    contracts.close(precision, oracles.posterior_precision(H, 1.5), 1e-9, rule)
    theta = oracles.flatten(problem.module, names)
    loss = ("gaussian", problem.module, names, theta, problem.x, problem.y, problem.weights, 0.0, variance)
    np.testing.assert_allclose(fit.log_likelihood(hyper), -float(oracles.map_objective(*loss)), rtol=1e-10)
    gradient = contracts.to_oracle(problem.network, fit.gradient) / phi
    contracts.close(gradient, oracles.map_gradient(*loss), 1e-10, "gradient")


# ---------------------------------------------------------------------- invariances


def answers(model):
    return np.column_stack([*model.predict(X_NEW, return_std=True), model.predict_std(X_NEW, kind="epistemic")])


@pytest.mark.parametrize("sigma", [1.0, "evidence"])
def test_the_unit_of_the_variances_is_that_of_the_factor(sigma):
    """v → c·v with σ → σ/√c changes nothing; a chosen σ adapts by itself."""
    fixed = not isinstance(sigma, str)
    first = LaplaceRegressor(**SMALL, sigma_noise=sigma).fit(X, Y, sample_noise_variance=V)
    second = LaplaceRegressor(**SMALL, sigma_noise=sigma / 8 if fixed else sigma)
    second.fit(X, Y, sample_noise_variance=64 * V)
    np.testing.assert_array_equal(answers(second), answers(first))
    np.testing.assert_array_equal(second.sigma_noise_, first.sigma_noise_)
    assert second.log_marginal_likelihood_value_ == first.log_marginal_likelihood_value_


@pytest.mark.parametrize("sigma", [0.3, "evidence"])
def test_equal_variances_are_as_good_as_none(sigma):
    """A variance common to all rows is part of σ: the fits are equal up to rounding."""
    first = LaplaceRegressor(**SMALL, sigma_noise=sigma).fit(X, Y[:, 0])
    second = LaplaceRegressor(**SMALL, sigma_noise=sigma if isinstance(sigma, str) else sigma / 2)
    second.fit(X, Y[:, 0], sample_noise_variance=np.full(60, 4.0))
    np.testing.assert_allclose(answers(second), answers(first), rtol=1e-9)
    np.testing.assert_allclose(second.log_marginal_likelihood_value_, first.log_marginal_likelihood_value_, rtol=1e-12)


def test_a_precision_is_a_weight_where_the_noise_is_given():
    """The posterior is that of sample_weight = 1/v; only the evidence differs."""
    first = linear(sigma_noise=0.5).fit(X, Y[:, 0], sample_noise_variance=V[:, 0])
    second = linear(sigma_noise=0.5).fit(X, Y[:, 0], sample_weight=1 / V[:, 0])
    np.testing.assert_allclose(first.predict(X_NEW), second.predict(X_NEW), rtol=1e-9)
    epistemic = [model.predict_std(X_NEW, kind="epistemic") for model in (first, second)]
    np.testing.assert_allclose(*epistemic, rtol=1e-9)
    assert abs(first.log_marginal_likelihood_value_ - second.log_marginal_likelihood_value_) > 1.0


def test_a_weight_of_k_is_k_copies_of_a_row_with_its_noise():
    """Bit-identical in any row order. Equal rows with different noise variances are not merged."""
    weights = np.random.default_rng(1).choice([0, 1, 2], p=[0.1, 0.8, 0.1], size=60)
    index = np.random.default_rng(2).permutation(np.repeat(np.arange(60), weights))
    model = LaplaceRegressor(**SMALL)
    first = answers(model.fit(X, Y, sample_weight=weights, sample_noise_variance=V))
    evidence = model.log_marginal_likelihood_value_
    np.testing.assert_array_equal(answers(model.fit(X[index], Y[index], sample_noise_variance=V[index])), first)
    assert model.log_marginal_likelihood_value_ == evidence
    twice = linear().fit(np.vstack([X, X]), np.vstack([Y, Y]), sample_noise_variance=np.vstack([V, 9 * V]))
    merged = 1 / (1 / V + 1 / (9 * V))  # two measurements of one value
    once = linear().fit(X, Y, sample_noise_variance=merged)
    np.testing.assert_allclose(twice.predict(X_NEW), once.predict(X_NEW), rtol=1e-9)
    epistemic = [m.predict_std(X_NEW, kind="epistemic") for m in (twice, once)]
    np.testing.assert_allclose(*epistemic, rtol=1e-9)


@pytest.mark.usefixtures("complete_training")
def test_rows_that_are_known_to_be_worthless_do_not_spoil_the_rest():
    """Rows with a huge noise variance affect neither the likelihood nor the target scale."""
    y, v = Y[:, 0], 0.09 * V[:, 0]
    wild = (
        np.vstack([X, RNG.normal(size=(5, 4))]),
        np.append(y, 1e5 * RNG.normal(size=5)),
        np.append(v, np.full(5, 1e12)),
    )
    options = {**SMALL, "sigma_noise": 1.0, "prior_precision": 1.0}
    mean, std = LaplaceRegressor(**options).fit(X, y, sample_noise_variance=v).predict(X_NEW, return_std=True)
    model = LaplaceRegressor(**options).fit(*wild[:2], sample_noise_variance=wild[2])
    np.testing.assert_allclose(model.predict(X_NEW), mean, atol=0.3 * std.max())
    np.testing.assert_allclose(model._scale.scale, y.std(), rtol=0.2)


def test_a_very_exact_row_does_not_set_the_scale():
    """With weights 1/v in the target scale, this row would dominate it."""
    v = np.where(np.arange(60) == 7, 1e-6, 0.09)
    model = LaplaceRegressor(**SMALL, sigma_noise=1.0).fit(X, Y[:, 0], sample_noise_variance=v)
    np.testing.assert_allclose(model._scale.scale, Y[:, 0].std(), rtol=0.05)
    np.testing.assert_allclose(model.predict(X[7:8]), Y[7, 0], atol=5e-3)


# ---------------------------------------------------------------------- the estimator


def test_the_noise_of_a_new_row_is_that_of_an_average_row():
    """Standard deviation, covariance, distribution and draws agree, in the unit of each target."""
    y, v = Y * [1.0, 40.0], V * [1.0, 1600.0]
    model = LaplaceRegressor(**SMALL, sigma_noise=0.3).fit(X, y, sample_weight=WEIGHTS, sample_noise_variance=v)
    noise = 0.3 * np.sqrt(np.average(v, axis=0, weights=WEIGHTS))
    np.testing.assert_allclose(model.sigma_noise_, noise, rtol=1e-12)
    np.testing.assert_allclose(model.predict_std(X_NEW, kind="aleatoric"), np.tile(noise, (6, 1)), rtol=1e-12)
    std = model.predict_std(X_NEW)
    np.testing.assert_allclose(std**2, model.predict_std(X_NEW, kind="epistemic") ** 2 + noise**2, rtol=1e-9)
    np.testing.assert_allclose(model.predict_dist(X_NEW).std(), std, rtol=1e-12)
    covariance = model.predict(X_NEW, return_cov=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance).T), std, rtol=1e-9)
    np.testing.assert_allclose(model.sample_y(X_NEW, 20_000).std(-1), std, rtol=0.03)


@pytest.mark.parametrize("net", [None, nets.regressor(nets.Hidden, batch_size=16, max_epochs=30)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.usefixtures("complete_training")
def test_a_net_trains_on_the_likelihood_with_its_noise(net, dtype):
    """The built-in net and a skorch net follow the precise half of the rows; the built-in net reaches the mode."""
    y = np.where(np.arange(60) % 2, 1.0, -1.0) + 0.1 * X[:, 0]
    v = np.where(np.arange(60) % 2, 0.01, 100.0)
    model = LaplaceRegressor(
        net, sigma_noise=1.0, prior_precision=0.1, random_state=0, dtype=dtype, standardize_y=False
    )
    model.fit(X, y, sample_noise_variance=v)
    np.testing.assert_allclose(model.predict(X).mean(), 1.0, atol=0.1)
    assert model.mode_distance_ < 0.1 or net is not None


def test_models_with_known_noise_are_cloned_saved_and_refitted():
    """sigma_noise may be an array; refit_laplace with another common factor equals a new fit."""
    model = LaplaceRegressor(**SMALL, map_prior_precision=1.0, sigma_noise=np.array([0.1, 0.4]))
    model.fit(X, Y, sample_noise_variance=V)
    for other in (pickle.loads(pickle.dumps(model)), clone(model).fit(X, Y, sample_noise_variance=V)):
        np.testing.assert_array_equal(answers(other), answers(model))
    model.refit_laplace(sigma_noise=[0.2, 0.8], prior_precision=3.0)
    np.testing.assert_array_equal(answers(clone(model).fit(X, Y, sample_noise_variance=V)), answers(model))
    with pytest.raises(ValueError, match=r"sigma_noise=\[0.2, 0.7\] has other noise ratios between the 2 targets"):
        model.refit_laplace(sigma_noise=[0.2, 0.7])
    one = LaplaceRegressor(**SMALL, map_prior_precision=1.0, sigma_noise=0.3)
    one.fit(X, Y[:, 0], sample_noise_variance=V[:, 0])
    for sigma in (0.7, "evidence"):
        one.refit_laplace(sigma_noise=sigma)
        fresh = clone(one).fit(X, Y[:, 0], sample_noise_variance=V[:, 0])
        np.testing.assert_array_equal(answers(fresh), answers(one))


def test_the_variances_are_routed_through_pipelines_and_cross_validation():
    """With metadata routing, each fold gets the variances of its rows."""
    with sklearn.config_context(enable_metadata_routing=True):
        step = LaplaceRegressor(**SMALL).set_fit_request(sample_noise_variance=True)
        pipe = make_pipeline(StandardScaler(), step)
        folds = [(np.arange(30), np.arange(30, 60)), (np.arange(30, 60), np.arange(30))]
        results = cross_validate(
            pipe, X, Y[:, 0], cv=folds, params={"sample_noise_variance": V[:, 0]}, return_estimator=True
        )
    for model, (train, _) in zip(results["estimator"], folds, strict=True):
        scaler = StandardScaler().fit(X[train])
        alone = LaplaceRegressor(**SMALL)
        alone.fit(scaler.transform(X[train]), Y[train, 0], sample_noise_variance=V[train, 0])
        np.testing.assert_array_equal(model.predict(X_NEW), alone.predict(scaler.transform(X_NEW)))


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("variances", "message"),
    [
        (V[:, 0] * 0, "sample_noise_variance holds 0 in row 0; expected variances above zero"),
        (-V[:, 0], "sample_noise_variance holds -.*; expected variances above zero"),
        (
            np.full(60, 1e80),
            "sample_noise_variance holds 1e.80 in row 0; expected variances above zero, from 1e-60 to 1e.60",
        ),
        (np.full(60, np.nan), "sample_noise_variance holds nan in row 0"),
        (np.full(60, np.inf), "sample_noise_variance holds inf in row 0"),
        (
            V[:9, 0],
            r"sample_noise_variance has shape \(9,\); expected \(60,\), one variance for each row, or \(60, 2\)",
        ),
        (V[:, :1], r"sample_noise_variance has shape \(60, 1\); expected"),
    ],
)
def test_variances_are_checked_wherever_they_are_taken(variances, message):
    """fit, partial_fit and forget check the variances; the fitted model stays unchanged."""
    model = linear().fit(X, Y, sample_noise_variance=V)
    before = answers(model)
    for method in (LaplaceRegressor().fit, model.partial_fit, model.forget):
        with pytest.raises(ValueError, match=message):
            method(X, Y, sample_noise_variance=variances)
    np.testing.assert_array_equal(answers(model), before)


def test_likelihoods_without_noise_refuse_it():
    """For classes and counts the error gives the reason and an alternative."""
    labels, counts = (Y[:, 0] > 0).astype(int), np.abs(Y[:, 0]).round()
    for model, y, name in (
        (LaplaceClassifier(**SMALL, prior_precision=1.0), labels, "categorical"),
        (LaplaceRegressor(likelihood="poisson", **SMALL, prior_precision=1.0), counts, "poisson"),
    ):
        message = f"sample_noise_variance cannot be used with likelihood='{name}', whose variance .* sample_weight"
        for method in (model.fit, model.partial_fit):
            with pytest.raises(UnsupportedCombinationError, match=message):
                method(X, y, sample_noise_variance=V[:, 0])
        with pytest.raises(UnsupportedCombinationError, match=message):
            model.fit(X, y).forget(X[:3], y[:3], sample_noise_variance=V[:3, 0])


def test_all_rows_or_none_have_known_noise():
    """σ² and σ²·v have different units, so rows with and without variances cannot be mixed."""
    with pytest.raises(ValueError, match="sample_noise_variance was given in fit; pass it for these rows, too"):
        linear().fit(X, Y, sample_noise_variance=V).partial_fit(X[:3], Y[:3])
    with pytest.raises(ValueError, match="was not given in fit; omit it, or fit all rows with it"):
        linear().fit(X, Y).partial_fit(X[:3], Y[:3], sample_noise_variance=V[:3])


def test_a_sigma_for_each_target_is_as_long_as_there_are_targets():
    """The length is checked in fit, when the number of targets is known."""
    with pytest.raises(ValueError, match="sigma_noise has 3 entries; expected 1 or 2, one for each target"):
        LaplaceRegressor(sigma_noise=[1.0, 2.0, 3.0]).fit(X, Y)
    with pytest.raises(ValueError, match=r"sigma_noise=\[1.0, -2.0\] has to be a finite number above zero"):
        LaplaceRegressor(sigma_noise=[1.0, -2.0]).fit(X, Y)
    with pytest.raises(ValueError, match="has to be a finite number above zero"):
        LaplaceRegressor(sigma_noise=[[1.0, 2.0]]).fit(X, Y)
