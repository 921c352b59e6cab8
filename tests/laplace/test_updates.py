"""Updates after training: partial_fit and forget against closed forms and dense matrices."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import contracts
import nets
import numpy as np
import oracles
import pytest
import torch

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save
from sklearn_laplace.errors import MemoryBudgetError, NotPositiveDefiniteError, UnsupportedCombinationError
from sklearn_laplace.laplace import Hyper
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.laplace.updates import add_rows

RNG = np.random.default_rng(17)
X, X_NEW = RNG.normal(size=(90, 4)), 3 * RNG.normal(size=(6, 4))
Y = X @ RNG.normal(size=(4, 2)) + [1.0, -2.0] + 0.3 * RNG.normal(size=(90, 2))
WEIGHTS = RNG.integers(1, 4, size=90).astype(float)
LABELS = np.array(["low", "mid", "top"])[np.digitize(Y[:, 0], [0.0, 2.0])]
OLD, NEW = slice(0, 40), slice(40, 90)
DELTA, SIGMA = 2.0, 0.5
FAST = {"map_prior_precision": 1.0, "random_state": 0}
"""A single training, for claims that do not depend on how the prior of the training is chosen."""


def linear(structure: str, **options):
    options = {"standardize_X": False, "standardize_y": False, "random_state": 0, **options}
    options = {"prior_precision": DELTA, "sigma_noise": SIGMA, **options}
    return LaplaceRegressor(nets.regressor(nets.Linear), hessian_structure=structure, **options)


def truth(rows, y, weights=None, delta=DELTA):
    """Closed-form posterior for these rows."""
    w = torch.ones(len(y), dtype=torch.float64) if weights is None else torch.tensor(weights)
    features = torch.tensor(np.column_stack([X[rows], np.ones(len(y))]))
    return oracles.bayesian_linear_regression(features, torch.tensor(y.reshape(len(y), -1)), w, delta, SIGMA**2)


def assert_is(model, exact, n_outputs=1):
    """Assert that mean, joint covariance and evidence equal the closed form."""
    mean, covariance = exact.predict(torch.tensor(np.column_stack([X_NEW, np.ones(6)])))
    model_mean, model_cov = model.predict(X_NEW, return_cov=True)
    np.testing.assert_allclose(model_mean.reshape(6, -1), mean.numpy(), rtol=1e-9, atol=1e-9)
    for k in range(n_outputs):
        expected = covariance.numpy() + SIGMA**2 * np.eye(6)
        np.testing.assert_allclose(model_cov.reshape(6, 6, -1)[..., k], expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(model.log_marginal_likelihood_value_, float(exact.log_evidence), rtol=1e-9)


# ---------------------------------------------------------------------- closed forms


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("structure", ["full", "kron", "functional"])
def test_a_linear_net_that_takes_in_rows_is_bayesian_linear_regression_on_all(structure, weights):
    """In a single update or in three. kron is exact with a single output."""
    y = Y[:, 0]
    part = [None if weights is None else weights[rows] for rows in (OLD, NEW)]
    model = linear(structure).fit(X[OLD], y[OLD], sample_weight=part[0])
    in_one = copy.deepcopy(model).partial_fit(X[NEW], y[NEW], sample_weight=part[1])
    assert_is(in_one, truth(slice(None), y, weights))
    for rows in (slice(40, 50), slice(50, 51), slice(51, 90)):
        model.partial_fit(X[rows], y[rows], sample_weight=None if weights is None else weights[rows])
    assert_is(model, truth(slice(None), y, weights))


@pytest.mark.parametrize("structure", ["full", "kron"])
def test_forgetting_undoes_it_and_takes_out_rows_of_the_fit(structure):
    """The result is the posterior of the remaining rows, for updates in any order."""
    y = Y[:, 0]
    model = linear(structure).fit(X[OLD], y[OLD])
    before = model.predict(X_NEW, return_cov=True), model.log_marginal_likelihood_value_
    model.partial_fit(X[NEW], y[NEW]).forget(X[NEW], y[NEW])
    for got, expected in zip(model.predict(X_NEW, return_cov=True), before[0], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.log_marginal_likelihood_value_, before[1], rtol=1e-9)
    model.partial_fit(X[NEW], y[NEW]).forget(X[OLD], y[OLD])
    assert_is(model, truth(NEW, y[NEW]))


def test_several_outputs_and_a_prior_of_tensors():
    """Two targets, with a separate precision for the bias."""
    model = linear("full", prior_precision=[0.5, 20.0]).fit(X[OLD], Y[OLD]).partial_fit(X[NEW], Y[NEW])
    delta = torch.tensor([0.5, 0.5, 0.5, 0.5, 20.0], dtype=torch.float64)
    assert_is(model, truth(slice(None), Y, delta=delta), n_outputs=2)


@pytest.mark.parametrize("kind", contracts.KINDS)
@pytest.mark.parametrize(
    "structure", sorted(set(STRUCTURES) - {"ekfac", "low_rank_diag"})
)  # whose basis depends on the first rows
def test_the_mean_moves_to_the_minimum_of_old_posterior_and_new_rows(structure, kind):
    """Two updates, for any structure and likelihood: mean, loss and gradient against dense algebra.

    Old rows enter with the curvature of the structure, new rows with their exact curvature.
    """
    whole = contracts.example(kind, seed=3, n=12)
    old, first, second = (
        replace(whole, x=whole.x[rows], y=whole.y[rows], weights=whole.weights[rows])
        for rows in (slice(0, 5), slice(5, 8), slice(8, 12))
    )
    dispersion = 0.4 if kind == "gaussian" else 1.0
    hyper = Hyper(torch.tensor([1.3], dtype=torch.float64), dispersion, temperature=3.0)
    names = whole.network.parameter_names
    fit = old.fit(structure)
    shift, nll, gradient, stored = torch.zeros(len(fit.gradient), dtype=torch.float64), fit.nll, fit.gradient, [old]
    for new in (first, second):
        fit = add_rows(fit, new.fit(structure), new.fit("functional").curvature, hyper)
        exact = contracts.to_package(whole.network, oracles.ggn(kind, new.module, names, new.x, new.y, new.weights))
        past = replace(whole, **{k: torch.cat([getattr(e, k) for e in stored]) for k in ("x", "y", "weights")})
        H = contracts.dense_curvature(structure, past)
        at_mean = new.fit("full").gradient + exact @ shift
        system = (H + exact) / dispersion + 1.3 * torch.eye(len(H), dtype=torch.float64)
        move = -torch.linalg.solve(system, at_mean / dispersion)
        nll, gradient = nll + float(gradient @ move + 0.5 * move @ H @ move), gradient + H @ move
        shift = shift + move
        nll += new.fit("full").nll + float(new.fit("full").gradient @ shift + 0.5 * shift @ exact @ shift)
        gradient = gradient + new.fit("full").gradient + exact @ shift
        stored.append(new)
        contracts.close(fit.shift, shift, 1e-9, "shift")
        contracts.close(fit.theta, whole.network.theta + shift, 1e-9, "mean")
        contracts.close(fit.gradient, gradient, 1e-9, "gradient")
        np.testing.assert_allclose(fit.nll, nll, rtol=1e-9)
    np.testing.assert_allclose(fit.total_weight, float(whole.weights.sum()), rtol=1e-12)


def test_a_diagonal_does_not_overshoot():
    """A hundred weights share a correction that each could make alone; a Jacobi step would be 100 times too long."""
    rng = np.random.default_rng(0)
    features = np.ones((40, 100)) + 0.01 * rng.normal(size=(40, 100))
    model = LaplaceRegressor(
        nets.regressor(nets.Linear),
        hessian_structure="diag",
        prior_precision=0.1,
        sigma_noise=1.0,
        standardize_X=False,
        standardize_y=False,
        random_state=0,
    ).fit(features[:20], np.zeros(20))
    moved = model.partial_fit(features[20:], np.ones(20)).predict(features)
    assert (moved > 0).all() and (moved < 1).all()


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_dual_form_becomes_the_primal_one_where_that_is_cheaper(outputs):
    """With more rows × outputs than weights the form changes: same posterior as `full`, and bounded memory.

    Tolerance: two factorisations of the same matrix.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 3))
    y = np.sin(x @ rng.normal(size=(3, outputs))) + 0.1 * rng.normal(size=(400, outputs))
    dual, primal = (
        LaplaceRegressor(
            hidden_layer_sizes=(20,), hessian_structure=name, prior_precision=1.0, sigma_noise=0.1, random_state=0
        ).fit(x[:40], y[:40])
        for name in ("functional", "full")
    )
    n_weights, names, sizes = dual.laplace_.network.n_parameters, [dual.structure_], []
    for first in range(40, 400, 20):
        for model in (dual, primal):
            model.partial_fit(x[first : first + 20], y[first : first + 20])
        names.append(dual.structure_)
        sizes.append(len(pickle.dumps((dual.laplace_.curvature, dual.posterior_))))
    dual_rows = outputs * np.arange(40, 401, 20)
    assert names == ["functional" if rows <= n_weights else "full" for rows in dual_rows] and {*names} > {"full"}
    assert max(sizes) < 3 * 8 * n_weights**2 + 10**5
    for got, expected in zip(dual.predict(x, return_std=True), primal.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(
        dual.predict_std(x, kind="epistemic"), primal.predict_std(x, kind="epistemic"), rtol=1e-6
    )
    np.testing.assert_allclose(dual.log_marginal_likelihood_value_, primal.log_marginal_likelihood_value_, rtol=1e-6)
    assert dual.forget(x[380:], y[380:]).structure_ == "full"
    np.testing.assert_allclose(dual.predict_std(x), primal.forget(x[380:], y[380:]).predict_std(x), rtol=1e-6)


def test_members_and_classes_become_primal_as_well(tmp_path):
    """Every ensemble member changes its form; a saved copy can be updated further."""
    model = LaplaceClassifier(
        hidden_layer_sizes=(4,), n_members=2, hessian_structure="functional", prior_precision=1.0, random_state=0
    ).fit(X[:12], LABELS[:12])
    assert model.structure_ == "functional"
    model.partial_fit(X[12:], LABELS[12:])
    assert [member.structure_ for member in model.members_] == ["full", "full"]
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    for each in (model, again):
        each.partial_fit(X[:5], LABELS[:5])
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))


# ---------------------------------------------------------------------- nets that are not linear


@pytest.mark.parametrize("structure", ["full", "block_diagonal", "kron", "ekfac", "low_rank_diag", "diag"])
def test_new_rows_teach_and_forgetting_restores(structure):
    """partial_fit on the right half reduces error and std there; forget restores the first predictions."""
    x = np.linspace(-3, 3, 80)[:, None]
    y = np.sin(x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=80)
    left, right = slice(0, 45), slice(45, 80)
    options = {"hidden_layer_sizes": (12,), "map_prior_precision": 1.0, "random_state": 0}
    model = LaplaceRegressor(hessian_structure=structure, **options).fit(x[left], y[left])
    before = model.predict(x, return_std=True)
    weights = {name: p.clone() for name, p in model.net_.module_.named_parameters()}
    model.partial_fit(x[right], y[right])
    mean, std = model.predict(x, return_std=True)
    assert np.mean((mean[right] - y[right]) ** 2) < 0.9 * np.mean((before[0][right] - y[right]) ** 2)
    assert std[right].mean() < before[1][right].mean()
    assert all(torch.equal(p, weights[name]) for name, p in model.net_.module_.named_parameters())
    model.forget(x[right], y[right])
    for got, expected in zip(model.predict(x, return_std=True), before, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-9)


def test_all_answers_speak_of_the_moved_mean():
    """predict, predict_dist, predict_std and sample_y describe the same distribution."""
    model = LaplaceRegressor(hidden_layer_sizes=(8,), hessian_structure="full", **FAST).fit(X[OLD], Y[OLD, 0])
    before = model.predict(X_NEW)
    mean = model.partial_fit(X[NEW], Y[NEW, 0] + 5).predict(X_NEW)
    assert np.abs(mean - before).max() > 0.5
    np.testing.assert_allclose(model.predict_dist(X_NEW).mean(), mean, rtol=1e-12)
    np.testing.assert_allclose(model.predict(X_NEW, return_std=True)[0], mean, rtol=1e-12)
    draws = model.sample_y(X_NEW, 20_000)
    spread = model.predict_std(X_NEW)
    np.testing.assert_allclose(draws.mean(1), mean, atol=0.03 * spread.max())
    np.testing.assert_allclose(draws.std(1), spread, rtol=0.03)


def test_a_classifier_learns_classes_that_it_was_told_of():
    """The first call lists all classes; later rows of a new class raise its probability."""
    first = LABELS != "top"
    model = LaplaceClassifier(hidden_layer_sizes=(8,), hessian_structure="full", **FAST)
    model.partial_fit(X[first], LABELS[first], classes=["top", "mid", "low"])
    assert model.classes_.tolist() == ["low", "mid", "top"]
    before, evidence = model.predict_proba(X), model.log_marginal_likelihood_value_
    model.partial_fit(X[~first], LABELS[~first])
    after = model.predict_proba(X)
    assert after[~first, 2].mean() > before[~first, 2].mean() + 0.3
    np.testing.assert_allclose(after.sum(1), 1.0)
    model.forget(X[~first], LABELS[~first])
    np.testing.assert_allclose(model.predict_proba(X), before, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(model.log_marginal_likelihood_value_, evidence, rtol=1e-9)


def test_the_first_call_is_a_fit():
    """Results are identical."""
    first, second = (LaplaceRegressor(hidden_layer_sizes=(5,), **FAST) for _ in range(2))
    np.testing.assert_array_equal(
        first.partial_fit(X, Y[:, 0]).predict_std(X_NEW), second.fit(X, Y[:, 0]).predict_std(X_NEW)
    )


def test_hyperparameters_stay_until_they_are_chosen_again():
    """Prior and noise change only with refit_laplace, which raises the evidence of all rows at the moved mean."""
    model = LaplaceRegressor(hidden_layer_sizes=(5,), hessian_structure="kron", **FAST).fit(X[OLD], Y[OLD, 0])
    chosen = model.prior_precision_, model.sigma_noise_
    model.partial_fit(X[NEW], 3 * Y[NEW, 0])
    assert (model.prior_precision_, model.sigma_noise_) == chosen
    evidence = model.log_marginal_likelihood_value_
    model.refit_laplace()
    assert model.log_marginal_likelihood_value_ > evidence + 1.0
    assert model.sigma_noise_ > chosen[1]


# ---------------------------------------------------------------------- refusals


@pytest.fixture(scope="module")
def fitted():
    """Fitted estimators that no test changes: every call below is refused."""
    return {
        "regressor": linear("full").fit(X[OLD], Y[OLD]),
        "classifier": LaplaceClassifier(hidden_layer_sizes=(3,), hessian_structure="diag", **FAST).fit(X, LABELS),
        "functional": LaplaceRegressor(hidden_layer_sizes=(20,), hessian_structure="functional", **FAST).fit(
            X[OLD], Y[OLD, 0]
        ),
        "balanced": LaplaceClassifier(hidden_layer_sizes=(3,), class_weight="balanced", **FAST).fit(X, LABELS),
    }


@pytest.mark.parametrize(
    ("name", "method", "rows", "targets", "error", "message"),
    [
        (
            "regressor",
            "forget",
            X[50:60] * 9,
            Y[50:60],
            NotPositiveDefiniteError,
            "cannot remove these rows.*Remove only rows that were fitted",
        ),
        ("regressor", "forget", X[OLD], Y[OLD], ValueError, "cannot remove rows of total weight 40 from a fit of"),
        ("functional", "forget", X[:5], Y[:5, 0], UnsupportedCombinationError, "Use hessian_structure='full'"),
        ("regressor", "partial_fit", X[NEW, :3], Y[NEW], ValueError, "X has 3 features, but LaplaceRegressor is expec"),
        (
            "regressor",
            "partial_fit",
            X[NEW],
            Y[NEW, 0],
            ValueError,
            "y has 1 columns; expected 2, one for each fitted target",
        ),
        ("regressor", "partial_fit", X[NEW], Y[OLD], ValueError, "inconsistent numbers of samples"),
        ("classifier", "partial_fit", X[:2], ["low", "zebra"], ValueError, r"labels \['zebra'\], which are not among"),
        ("balanced", "partial_fit", X[:2], LABELS[:2], ValueError, "class_weight='balanced' depends on all rows"),
        ("balanced", "forget", X[:2], LABELS[:2], ValueError, "class_weight='balanced' depends on all rows"),
    ],
)
def test_what_cannot_be_taken_in_or_out_is_refused_and_nothing_is_lost(
    fitted, name, method, rows, targets, error, message
):
    """The message names a solution, and predictions do not change."""
    model = fitted[name]
    before = model.predict_std(X_NEW)
    with pytest.raises(error, match=message):
        getattr(model, method)(rows, targets)
    np.testing.assert_array_equal(model.predict_std(X_NEW), before)


def test_other_classes_in_a_later_call_are_refused(fitted):
    """The net has one output for each class of the first call."""
    with pytest.raises(ValueError, match=r"classes=\['low'\] differ from those of the first call, \['low', 'mid', "):
        fitted["classifier"].partial_fit(X[:2], LABELS[:2], classes=["low"])


def test_rows_that_would_not_fit_in_memory_are_refused(fitted):
    """The dual form grows with the rows."""
    model = copy.deepcopy(fitted["functional"]).set_params(memory_budget="0.1MB")
    with pytest.raises(MemoryBudgetError, match="for 121 weights and 90 rows"):
        model.partial_fit(X[NEW], Y[NEW, 0])


def test_nothing_can_be_forgotten_before_a_fit():
    """The error is scikit-learn's."""
    with pytest.raises(ValueError, match="not fitted yet"):
        LaplaceRegressor().forget(X, Y)
