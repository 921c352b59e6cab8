"""Leave-one-out predictions and choices of the estimators, compared with explicit refits without each row."""

from __future__ import annotations

import pickle
import warnings

import nets
import numpy as np
import oracles
import pytest
import torch
import trainings
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._ensemble import fit_alone as ensemble_fit
from sklearn_laplace.errors import BoundWarning, MemoryBudgetError, UnsupportedCombinationError
from sklearn_laplace.options import LowRank

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(41)
N = 24
X, X_NEW = RNG.normal(size=(N, 3)), RNG.normal(size=(6, 3))
X[5] = X[4]
Y = np.column_stack([np.sin(X[:, 0]) + X[:, 1], 40 * X[:, 2] + 7]) + RNG.normal(size=(N, 2)) * [0.3, 9.0]
Y[5] = Y[4]  # rows 4 and 5 are equal; leaving out one of them keeps the other
WEIGHTS = RNG.uniform(0.5, 2.0, size=N).round(2)
WEIGHTS[[2, 11]] = 0.0
LABELS = np.array(["no", "perhaps", "yes"])[np.digitize(Y[:, 0], [-0.6, 0.8])]
COUNTS = RNG.poisson(np.exp(0.5 + 0.6 * X[:, 0])).astype(float)
LINEAR = {"net": nets.Linear, "standardize_X": False, "random_state": 0}
SMALL = {"hidden_layer_sizes": (5,), "n_members": 1, "random_state": 0, "memory": trainings.MEMORY}
CHOSEN = {"prior_precision": "loo", "sigma_noise": "loo"}


def in_net_units(y, weights):
    """Standardised targets (n, C) and their scale (C,)."""
    y = y.reshape(len(y), -1)
    mean = np.average(y, axis=0, weights=weights)
    scale = np.sqrt(np.average((y - mean) ** 2, axis=0, weights=weights))
    return (y - mean) / scale, mean, scale


def linear_refits(x, y, w, delta, noise):
    """Mean (n, C) and variance (n,) of each row by a Bayesian linear regression of the others, zero prior mean."""
    A = np.column_stack([x, np.ones(len(x))])
    means, variances = [], []
    for n in range(len(A)):
        rest = w * (np.arange(len(A)) != n)
        P = (A.T * rest) @ A / noise + delta * np.eye(A.shape[1])
        means.append(A[n] @ np.linalg.solve(P, (A.T * rest) @ y / noise))
        variances.append(A[n] @ np.linalg.solve(P, A[n]))
    return np.array(means), np.array(variances)


def linear_density(x, y, w, delta, noise):
    """Σ w log N(y; mean, variance + noise) of the predictions of linear_refits."""
    mean, variance = linear_refits(x, y, w, delta, noise)
    total = (variance + noise)[:, None]
    return float(w @ (-0.5 * ((y - mean) ** 2 / total + np.log(2 * np.pi * total))).sum(1))


def linearised_refits(model, x, y, w):
    """Mean (n, C) and covariance (n, C, C) by refits of the linearised net in its random weights (dense oracle)."""
    module, inputs = model.laplace_.network.module, torch.tensor(x, dtype=torch.float64)
    names, random = tuple(model.subset_), torch.cat([torch.tensor(m).flatten() for m in model.subset_.values()])
    J = oracles.jacobian(module, names, inputs)[..., random]
    theta = oracles.flatten(module, names)[random]
    y, w = torch.tensor(y), torch.tensor(w, dtype=torch.float64)
    f, noise = oracles.outputs(module, inputs), model.hyper_.dispersion
    return oracles.leave_one_out_refits("gaussian", f, J, y, w, theta, model.prior_precision_, noise)


# ------------------------------------------------------------------------------ predictions


@pytest.mark.parametrize("y", [Y[:, 0], Y], ids=["one target", "two targets"])
def test_a_linear_nets_rows_are_predicted_as_by_refits_without_them(y):
    """With weights, rows of weight zero and equal rows, for each prior precision of a grid."""
    model = LaplaceRegressor(**LINEAR, prior_precision=1.0).fit(X, y, WEIGHTS)
    targets, center, scale = in_net_units(y, WEIGHTS)
    for delta in (1e-2, 0.3, 5.0, 80.0):
        mean, std = model.refit_laplace(prior_precision=delta).loo_predict(return_std=True)
        noise = model.hyper_.dispersion
        expected, variance = linear_refits(X, targets, WEIGHTS, delta, noise)
        expected, spread = expected * scale + center, np.sqrt(variance + noise)[:, None] * scale
        assert mean.shape == std.shape == y.shape
        np.testing.assert_allclose(mean, expected.reshape(y.shape), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(std, spread.reshape(y.shape), rtol=1e-9)
        np.testing.assert_array_equal(model.loo_predict(), mean)


@pytest.mark.parametrize(
    "options",
    [
        {"hessian_structure": "full"},
        {"hessian_structure": "functional"},
        {"hessian_structure": "kron"},
        {"hessian_structure": "ekfac"},
        {"hessian_structure": "diag"},
        {"hessian_structure": LowRank(2)},
        {"curvature": "empirical_fisher"},
        {"subset_of_weights": "last_layer"},
        {"subset_of_weights": "subnetwork"},
        {"net": nets.regressor(), "standardize_X": False, "subset_of_weights": ["out.weight"]},
    ],
    ids=str,
)
def test_the_mean_is_that_of_refits_whatever_the_structure_and_the_subset(options):
    """Equal to refits of the linearised net in its random weights; for exact curvatures also in the std."""
    options = {**({} if "net" in options else SMALL), "random_state": 0, **options}
    model = LaplaceRegressor(**options).fit(X, Y, WEIGHTS)
    targets, center, scale = in_net_units(Y, WEIGHTS)
    unit = 1.0 if "net" in options else WEIGHTS.sum() / (WEIGHTS**2).sum()  # to Kish's number of rows
    expected, covariance = linearised_refits(model, X, targets, unit * WEIGHTS)
    mean, std = model.loo_predict(return_std=True)
    np.testing.assert_allclose(mean, expected.numpy() * scale + center, rtol=1e-6, atol=1e-6 * scale.max())
    if options.get("curvature") is None and model.structure_ in ("full", "functional"):
        variance = covariance.diagonal(dim1=1, dim2=2).numpy() + model.hyper_.dispersion
        np.testing.assert_allclose(std, np.sqrt(variance) * scale, rtol=1e-7)
    assert (std > 0.99 * np.asarray(model.sigma_noise_)).all()


def test_a_classifiers_rows_are_near_refits_of_its_logits_through_the_link():
    """One Newton step from the full fit; the error is of second order in the leverage."""
    model = LaplaceClassifier(**LINEAR, prior_precision=2.0, link="mc").fit(X, LABELS, WEIGHTS)
    p, std = model.loo_predict(return_std=True)
    assert p.shape == std.shape == (N, 3)
    np.testing.assert_allclose(p.sum(1), 1.0, rtol=1e-12)
    refits = np.empty_like(p)
    for n in range(N):
        rest = np.where(np.arange(N) == n, 0.0, WEIGHTS)
        refits[n] = clone(model).fit(X, LABELS, rest).predict_proba(X[n : n + 1])[0]
    error, change = np.abs(p - refits).max(1), np.abs(model.predict_proba(X) - refits).max(1)
    busy = WEIGHTS > 0
    assert np.median(error[busy]) < 0.15 * np.median(change[busy])
    np.testing.assert_allclose(p[~busy], refits[~busy], atol=1e-7)  # weight zero changes nothing
    assert (std > 0).all() and (std**2 <= p * (1 - p) + 1e-12).all()


def test_counts_have_mean_rates_and_a_density_of_their_own():
    """Predicted rates are close to those of refits, as for classes."""
    model = LaplaceRegressor(**LINEAR, likelihood="poisson", prior_precision=1.0).fit(X, COUNTS)
    mean, std = model.loo_predict(return_std=True)
    refits = [clone(model).fit(X, COUNTS, np.arange(N) != n).predict(X[n : n + 1])[0] for n in range(N)]
    change = np.abs(np.log(model.predict(X) / refits))
    assert np.median(np.abs(np.log(mean / refits))) < 0.15 * np.median(change)
    assert (std > np.sqrt(mean)).all()  # Poisson noise, and more


def test_one_of_two_equal_rows_still_has_the_other():
    """A fit merges equal rows, but leave-one-out treats them as separate rows of weight one."""
    model = LaplaceRegressor(**LINEAR, prior_precision=1.0, sigma_noise=0.5, standardize_y=False).fit(X, Y[:, 0])
    heavy = np.where(np.arange(N) == 4, 2.0, np.arange(N) != 5)
    merged = clone(model).fit(X, Y[:, 0], heavy)
    np.testing.assert_allclose(merged.predict(X), model.predict(X), rtol=1e-9)
    apart, together = model.loo_predict(), merged.loo_predict()
    np.testing.assert_allclose(apart[4], apart[5], rtol=1e-12)
    assert abs(together[4] - Y[4, 0]) > 1.01 * abs(apart[4] - Y[4, 0])


def test_the_order_of_the_rows_is_the_users():
    """Rows are merged and shuffled in the training; predictions are in the order of the user's rows."""
    order = np.random.default_rng(0).permutation(N)
    one, other = (LaplaceRegressor(**SMALL).fit(X[rows], Y[rows]) for rows in (np.arange(N), order))
    np.testing.assert_allclose(other.loo_predict(), one.loo_predict()[order], rtol=1e-9)


@pytest.mark.usefixtures("complete_training")
def test_rows_of_weight_zero_are_predicted_plainly_whatever_they_say():
    """Their targets may be unknown classes or negative counts."""
    model = LaplaceRegressor(**LINEAR, prior_precision=1.0).fit(X, Y, WEIGHTS)
    idle = WEIGHTS == 0
    np.testing.assert_allclose(model.loo_predict()[idle], model.predict(X[idle]), rtol=1e-9)
    strange, negative = np.where(idle, "zzz", LABELS), np.where(idle, -3.0, COUNTS)
    for estimator, y, plain in ((LaplaceClassifier, LABELS, strange), (LaplaceRegressor, COUNTS, negative)):
        options = {"likelihood": "poisson"} if estimator is LaplaceRegressor else {}
        actual, expected = (
            estimator(**LINEAR, **options, prior_precision=1.0).fit(X, t, WEIGHTS).loo_predict() for t in (plain, y)
        )
        np.testing.assert_allclose(actual, expected, rtol=1e-9)
        assert np.isfinite(actual).all()


@pytest.mark.parametrize("class_weight", [None, "balanced", {"yes": 3.0, "no": 0.0}])
def test_shares_and_class_weights_count_as_in_the_fit(class_weight):
    """Weights that sum to one are scaled to their effective number of rows, and class weights multiply weights."""
    shares = WEIGHTS / WEIGHTS.sum()
    shares = shares / shares.sum()
    options = {**LINEAR, "prior_precision": 1.0, "class_weight": class_weight}
    model = LaplaceClassifier(**options).fit(X, LABELS, shares)
    merged = shares.copy()  # Kish's effective number of rows is that of the merged rows
    merged[4], merged[5] = merged[4] + merged[5], 0.0
    worth = shares / (merged**2).sum()
    other = LaplaceClassifier(**options).fit(X, LABELS, worth)
    np.testing.assert_allclose(model.loo_predict(), other.loo_predict(), rtol=1e-7)


# ------------------------------------------------------------------------------ the rows that are kept


def test_a_fit_keeps_copies():
    """Changes to the user's arrays after the fit have no effect."""
    x, y = X.copy(), Y.copy()
    model = LaplaceRegressor(**SMALL).fit(x, y)
    before = model.loo_predict()
    x += 5
    y *= 3
    np.testing.assert_array_equal(model.loo_predict(), before)


def test_rows_that_come_later_are_left_out_too():
    """For a linear net, partial_fit gives the same as a fit to all rows, including rows of weight zero."""
    options = {**LINEAR, "prior_precision": 1.0, "sigma_noise": 0.5, "standardize_y": False}
    y = Y[:, 0]
    model = LaplaceRegressor(**options).fit(X[:14], y[:14], WEIGHTS[:14])
    model.partial_fit(X[14:], y[14:], WEIGHTS[14:])
    whole = LaplaceRegressor(**options).fit(X, y, WEIGHTS)
    for actual, expected in zip(model.loo_predict(True), whole.loo_predict(True), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-8)
    model.refit_laplace(prior_precision="loo"), whole.refit_laplace(prior_precision="loo")
    np.testing.assert_allclose(model.prior_precision_, whole.prior_precision_, rtol=1e-6)


def test_forgetting_drops_every_row():
    """After forget, the pickle contains no row, and methods that need the rows raise an error."""
    rows = np.ascontiguousarray(RNG.normal(size=(20, 3)))
    model = LaplaceRegressor(**SMALL, hessian_structure="full").fit(rows, rows[:, 0] + np.sin(5 * rows[:, 1]))
    assert any(row.tobytes() in pickle.dumps(model) for row in rows)
    model.forget(rows[:3], rows[:3, 0] + np.sin(5 * rows[:3, 1]))
    assert not any(row.tobytes() in pickle.dumps(model) for row in rows)
    for call in (
        model.loo_predict,
        lambda: model.refit_laplace(prior_precision="loo"),
    ):
        with pytest.raises(UnsupportedCombinationError, match=r"needs the training rows, but forget has removed"):
            call()
    model.partial_fit(rows[:3], rows[:3, 0])
    with pytest.raises(UnsupportedCombinationError, match="loo_predict needs the training rows"):
        model.loo_predict()
    path = model.prior_path_
    assert np.isnan(path.loo_log_density).all() and np.isfinite(path.log_marginal_likelihood).all()


def test_what_cannot_be_left_out_is_refused_before_a_training(monkeypatch):
    """A posterior as prior stands for rows that are not available."""
    previous = LaplaceRegressor(**SMALL).fit(X, Y[:, 0])
    model = LaplaceRegressor(**SMALL, prior=FrozenEstimator(previous)).fit(X, Y[:, 0])
    with pytest.raises(UnsupportedCombinationError, match="loo_predict cannot be used with prior=Frozen"):
        model.loo_predict()
    assert np.isnan(model.prior_path_.loo_log_density).all()

    def never(*args):
        raise AssertionError("trained")

    monkeypatch.setattr(ensemble_fit, "train", never)
    for option in CHOSEN:
        with pytest.raises(UnsupportedCombinationError, match=f"{option}='loo' cannot be used with prior=Frozen"):
            clone(model).set_params(**{option: "loo"}).fit(X, Y[:, 0])


@pytest.mark.parametrize("estimator", [LaplaceRegressor, LaplaceClassifier])
def test_pickled_models_leave_out_to_the_bit(estimator):
    """The stored rows are pickled, and predictions are equal to the bit."""
    model = estimator(**SMALL).fit(X, LABELS if estimator is LaplaceClassifier else Y, WEIGHTS)
    loaded = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(loaded.loo_predict(), model.loo_predict())


def test_several_temperatures_have_no_leave_one_out():
    """Leave-one-out needs a common temperature for all weights."""
    model = LaplaceRegressor(**SMALL).fit(X, Y[:, 0])
    tensor = model.laplace_.network.parameter_names[0]
    model.refit_laplace(temperature={tensor: 3.0})
    with pytest.raises(UnsupportedCombinationError, match="one temperature for all weights"):
        model.loo_predict()
    assert np.isnan(model.prior_path_.loo_log_density).all()


def test_an_exact_curvature_that_does_not_fit_is_refused():
    """A diagonal posterior needs little memory, but leave-one-out needs an exact curvature and Jacobians."""
    x, y = RNG.normal(size=(300, 3)), RNG.normal(size=300)
    options = {"hessian_structure": "diag", "hidden_layer_sizes": (80,), "map_prior_precision": 1.0, "random_state": 0}
    model = LaplaceRegressor(**options, max_epochs=1, memory_budget="64MB").fit(x, y)
    mean = model.loo_predict()
    model.set_params(memory_budget="2MB")
    with pytest.raises(MemoryBudgetError, match=r"leave-one-out needs an exact curvature of the 401 random weights"):
        model.loo_predict()
    model.set_params(memory_budget="2.9MB")
    with pytest.raises(MemoryBudgetError, match=r"leave-one-out needs about .* MB for Jacobians"):
        model.loo_predict()
    model.set_params(memory_budget="40MB")  # smaller chunks, the same answers
    np.testing.assert_allclose(model.loo_predict(), mean, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------ hyperparameters


@pytest.mark.parametrize("rules", [{"prior_precision": "loo"}, {"sigma_noise": "loo"}, CHOSEN], ids=["δ", "σ", "δ, σ"])
def test_what_is_chosen_has_the_largest_density_of_all_refits(rules):
    """No better point on a fine grid of explicit refits of a linear net; user-set values are kept."""
    fixed = {"prior_precision": 3.0, "sigma_noise": 0.4}
    model = LaplaceRegressor(**LINEAR, **{**fixed, **rules}).fit(X, Y[:, 0], WEIGHTS)
    targets, _, scale = in_net_units(Y[:, 0], WEIGHTS)
    noise, delta = float(model.sigma_noise_ / scale[0]) ** 2, model.prior_precision_
    for name, value in fixed.items():
        if name not in rules:
            assert getattr(model, f"{name}_") == pytest.approx(value, rel=1e-12)
    best = linear_density(X, targets, WEIGHTS, delta, noise)
    grid = np.exp(np.linspace(-1.5, 1.5, 31))
    deltas = delta * grid if "prior_precision" in rules else [delta]
    noises = noise * grid if "sigma_noise" in rules else [noise]
    densities = [linear_density(X, targets, WEIGHTS, d, v) for d in deltas for v in noises]
    assert max(densities) <= best + 2e-3  # nats; the last step of the search is a parabola
    assert min(densities) < best - 0.3  # and the grid is not flat


def test_two_rules_are_each_satisfied():
    """Prior precision by leave-one-out and noise level by the evidence, and vice versa."""
    targets, _, scale = in_net_units(Y[:, 0], WEIGHTS)

    def is_top(values):
        return values[1] >= max(values) - 2e-3

    for rules in ({"prior_precision": "loo"}, {"sigma_noise": "loo"}):
        model = LaplaceRegressor(**LINEAR, **rules, map_prior_precision=1.0).fit(X, Y[:, 0], WEIGHTS)
        delta, noise = model.prior_precision_, float(model.sigma_noise_ / scale[0]) ** 2
        by_loo, by_evidence = [], []
        for factor in (0.8, 1.0, 1.25):
            d, v = (delta * factor, noise) if "prior_precision" in rules else (delta, noise * factor)
            by_loo.append(linear_density(X, targets, WEIGHTS, d, v))
            d, v = (delta, noise * factor) if "prior_precision" in rules else (delta * factor, noise)
            by_evidence.append(model.log_marginal_likelihood(d, np.sqrt(v) * scale[0]))
        assert is_top(by_loo) and is_top(by_evidence)


@pytest.mark.parametrize("kind", ["classes", "two classes", "counts", "kron"])
@pytest.mark.usefixtures("complete_training")
def test_point_by_point_searches_end_at_the_top(kind):
    """Σ log p of the left-out rows, computed from loo_predict, has its maximum at the chosen precision."""
    y = {"classes": LABELS, "two classes": LABELS == "yes", "counts": COUNTS, "kron": Y[:, 0]}[kind]
    options = {"kron": {"hessian_structure": "kron", "sigma_noise": 0.5}, "counts": {"likelihood": "poisson"}}
    estimator = LaplaceClassifier if "classes" in kind else LaplaceRegressor
    net = LINEAR if "classes" in kind else SMALL
    model = estimator(**net, **options.get(kind, {}), prior_precision="loo").fit(X, y)

    def density(m):
        path = m.prior_path_
        value = path.loo_log_density[len(path.prior_precision) // 2]
        if estimator is LaplaceClassifier:
            p = m.loo_predict()
            np.testing.assert_allclose(value, np.log(p[np.arange(N), np.searchsorted(m.classes_, y)]).sum(), rtol=1e-6)
        if kind == "kron":
            mean, std = m.loo_predict(True)
            expected = -0.5 * (((y - mean) / std) ** 2 + np.log(2 * np.pi * std**2)).sum()
            np.testing.assert_allclose(value, expected, rtol=1e-6)
        return value

    best, delta = density(model), model.prior_precision_
    near = np.abs(np.log(model.prior_path_.prior_precision / delta)) < np.log(5)
    assert near.sum() == 5 and model.prior_path_.loo_log_density[near].max() < best + 0.02
    assert all(density(model.refit_laplace(prior_precision=f * delta)) < best + 0.02 for f in (0.8, 1.25))


@pytest.mark.usefixtures("complete_training")
def test_several_precisions_are_searched_in_turn():
    """The density at the chosen precisions is above that at those of the evidence."""
    model = LaplaceRegressor(**SMALL, prior="tensor", sigma_noise=0.5).fit(X, Y[:, 0])
    middle = len(model.prior_path_.prior_precision) // 2
    before = model.prior_path_.loo_log_density[middle]
    model.refit_laplace(prior_precision="loo")
    assert model.prior_precision_.shape == (4,)
    assert model.prior_path_.prior_precision.shape == (25, 4)
    assert model.prior_path_.loo_log_density[middle] > before


def test_the_net_is_trained_as_under_the_evidence(tmp_path):
    """The choice follows the training: both rules share one cached training, and refits switch between them."""
    by_evidence = {"prior_precision": "evidence", "sigma_noise": "evidence"}
    evidence = LaplaceRegressor(**{**SMALL, **by_evidence, "memory": str(tmp_path)}).fit(X, Y[:, 0])
    entries = len(list(tmp_path.rglob("output.pkl")))
    model = clone(evidence).set_params(**CHOSEN).fit(X, Y[:, 0])
    assert len(list(tmp_path.rglob("output.pkl"))) == entries == 1
    np.testing.assert_array_equal(model.predict(X_NEW), evidence.predict(X_NEW))
    assert model.prior_precision_ != evidence.prior_precision_
    again = clone(evidence).fit(X, Y[:, 0]).refit_laplace(**CHOSEN)
    assert (again.prior_precision_, again.sigma_noise_) == (model.prior_precision_, model.sigma_noise_)
    model.refit_laplace(**by_evidence)
    assert (model.prior_precision_, model.sigma_noise_) == (evidence.prior_precision_, evidence.sigma_noise_)
    model.refit_laplace(sigma_noise="loo")  # the prior precision chosen in the training is kept
    assert model.prior_precision_ == evidence.prior_precision_ and model.sigma_noise_ != evidence.sigma_noise_


@pytest.mark.usefixtures("complete_training")
def test_searches_take_it_as_a_candidate():
    """GridSearchCV compares "loo" with "evidence"."""
    x = RNG.normal(size=(40, 2))
    y, grid = x[:, 0] + RNG.normal(size=40), {"prior_precision": ["evidence", "loo"]}
    search = GridSearchCV(LaplaceRegressor(**SMALL), grid, cv=2, error_score="raise").fit(x, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_a_choice_at_the_bound_is_reported():
    """The weights of this linear net are in the thousands, so that the weakest prior is best."""
    y = X @ np.array([3e3, -2e3, 1e3])
    options = {"standardize_y": False, "sigma_noise": 0.1, "map_prior_precision": 1e-6}
    with pytest.warns(
        BoundWarning, match=r"the leave-one-out density is largest at the bound of the search: prior_pre"
    ):
        LaplaceRegressor(**LINEAR, prior_precision="loo", **options).fit(X, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior_precision": "lo"}, "Did you mean 'loo'"),
        ({"sigma_noise": "lo"}, "Did you mean 'loo'"),
        ({"sigma_noise": "loo", "likelihood": "poisson"}, "sigma_noise='loo' cannot be used with likelihood='poisson'"),
    ],
)
def test_wrong_rules_are_refused(options, message):
    """The message states the valid alternatives."""
    with pytest.raises(ValueError, match=message):
        LaplaceRegressor(**SMALL, **options).fit(X, COUNTS)


# ------------------------------------------------------------------------------ the path


def test_the_path_holds_the_evidence_and_the_density_of_each_point():
    """Equal to refits for each precision, in the units of y, under a user-set noise level."""
    model = LaplaceRegressor(**LINEAR, sigma_noise=0.5).fit(X, Y[:, 0], WEIGHTS)
    attributes = set(vars(model))
    path = model.prior_path_
    assert set(vars(model)) == attributes
    targets, _, scale = in_net_units(Y[:, 0], WEIGHTS)
    assert path.prior_precision[12] == pytest.approx(model.prior_precision_, rel=1e-12)
    np.testing.assert_allclose(path.prior_precision[[0, -1]] / model.prior_precision_, [1e-4, 1e4], rtol=1e-9)
    assert path.log_marginal_likelihood[12] == pytest.approx(model.log_marginal_likelihood_value_, rel=1e-9)
    for delta, evidence, density in zip(
        path.prior_precision, path.log_marginal_likelihood, path.loo_log_density, strict=True
    ):
        assert evidence == pytest.approx(model.log_marginal_likelihood(delta), rel=1e-9)
        expected = linear_density(X, targets, WEIGHTS, delta, (0.5 / scale[0]) ** 2)
        assert density == pytest.approx(expected - WEIGHTS.sum() * np.log(scale[0]), rel=1e-7)
    assert set(path) == {"prior_precision", "log_marginal_likelihood", "loo_log_density"}


@pytest.mark.parametrize("structure", ["full", "kron"])
def test_a_free_noise_is_the_best_at_each_point_of_each_score(structure):
    """The spline is compared with a search at two of the points."""
    model = LaplaceRegressor(**LINEAR, hessian_structure=structure).fit(X, Y[:, 0])
    path = model.prior_path_
    assert path.log_marginal_likelihood[12] == pytest.approx(model.log_marginal_likelihood_value_, abs=1e-6)
    assert path.log_marginal_likelihood[12] == pytest.approx(path.log_marginal_likelihood.max(), abs=1e-6)
    sigmas = model.sigma_noise_ * np.exp(np.linspace(-1.5, 1.5, 121))
    for k in (8, 15):
        delta = path.prior_precision[k]
        evidence = max(model.log_marginal_likelihood(delta, sigma) for sigma in sigmas)
        assert path.log_marginal_likelihood[k] == pytest.approx(evidence, abs=5e-3)
        fixed = clone(model).set_params(map_prior_precision=1.0, prior_precision=delta, sigma_noise="loo")
        fixed.fit(X, Y[:, 0])
        mean, std = fixed.loo_predict(True)
        density = -0.5 * (((Y[:, 0] - mean) / std) ** 2 + np.log(2 * np.pi * std**2)).sum()
        assert path.loo_log_density[k] == pytest.approx(density, abs=2e-2)


def test_a_path_of_a_large_fit_leaves_leave_one_out_aside(monkeypatch):
    """Leave-one-out is omitted if it would make the attribute slow."""
    from sklearn_laplace._ensemble import prior_path as _path

    model = LaplaceClassifier(**SMALL).fit(X, LABELS)
    assert np.isfinite(model.prior_path_.loo_log_density).all()
    monkeypatch.setattr(_path, "LARGE", _path.replace(_path.LARGE, exact_posterior=1e5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(model.prior_path_.loo_log_density).all()
