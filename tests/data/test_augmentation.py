"""Augmentation: k random copies of each row with 1/k of its weight, in training, curvature and evidence."""

from __future__ import annotations

import itertools
import pickle

import joblib
import nets
import numpy as np
import oracles
import pytest
import torch
from joblib import Memory
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV

import sklearn_laplace
from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, metrics
from sklearn_laplace._runtime import memory as _memory
from sklearn_laplace._training import fit_map as _map
from sklearn_laplace.errors import UnsupportedCombinationError
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.options import Augmentation

RNG = np.random.default_rng(29)
X, X_NEW = RNG.normal(size=(50, 3)), 2 * RNG.normal(size=(6, 3))
Y = np.cos(X[:, 0]) + X[:, 1] ** 2 + 0.1 * RNG.normal(size=50)
LABELS = np.where(Y > 1, "far", "near")
SMALL = {"hidden_layer_sizes": (4,), "random_state": 0}
FIXED = {**SMALL, "prior_precision": 1.0}
K = 3


def same(X, random_state):
    return X


def jitter(X, random_state):
    return X + 0.3 * random_state.normal(size=X.shape)


def in_place(X, random_state):
    X += 0.3 * random_state.normal(size=X.shape)
    return X


class Signs:
    """x and −x in turn: the whole orbit of the symmetry in two copies."""

    def __init__(self):
        self.signs = itertools.cycle((1.0, -1.0))

    def __call__(self, X, random_state):
        return next(self.signs) * X


class Around:
    """x plus or minus a step along each column in turn."""

    def __init__(self, step):
        self.steps = itertools.cycle([sign * step * e for e in np.eye(3) for sign in (1, -1)])

    def __call__(self, X, random_state):
        return X + next(self.steps)


class Recorded:
    """Wrapper that records the return values of an augmentation function."""

    def __init__(self, augment):
        self.augment, self.returned = augment, []

    def __call__(self, X, random_state):
        self.returned.append(np.array(self.augment(X, random_state)))
        return self.returned[-1]


def frozen(n_out=1):
    net = nets.regressor(nets.Hidden, module__n_in=3, module__n_out=n_out).initialize()
    with torch.no_grad():
        for i, p in enumerate(net.module_.parameters()):
            p.copy_(0.5 * torch.randn(p.shape, generator=torch.Generator().manual_seed(i)))
    return net


def answers(model):
    mean = model.predict_proba(X_NEW) if isinstance(model, LaplaceClassifier) else model.predict(X_NEW)
    return np.column_stack([mean, model.predict_std(X_NEW)])


# ---------------------------------------------------------------------- the definition


@pytest.mark.parametrize("curvature", ["ggn", "empirical_fisher"])
def test_the_curvature_is_that_of_all_copies_divided_by_their_number(curvature):
    """Curvature and likelihood of a frozen net, compared with autodiff over the returned copies."""
    recorded, weights = Recorded(jitter), RNG.integers(1, 4, size=50).astype(float)
    options = {"hessian_structure": "full", "curvature": curvature, "sigma_noise": 0.5, "prior_precision": 1.0}
    model = LaplaceRegressor(
        FrozenEstimator(frozen()), augment=Augmentation(recorded, n_copies=K), random_state=0, **options
    )
    model.fit(X, Y, sample_weight=weights)
    assert len(recorded.returned) == K
    fit = model.laplace_
    order = canonical_order(weights)
    x = torch.tensor(np.concatenate(recorded.returned))
    y, w = torch.tensor(np.tile(Y[order], K))[:, None], torch.tensor(np.tile(weights[order], K)) / K
    names = fit.network.parameter_names
    oracle = {"ggn": oracles.ggn, "empirical_fisher": oracles.empirical_fisher}[curvature]
    expected = oracle("gaussian", fit.network.module, names, x, y, w)
    pieces = fit.network.tensors(torch.arange(fit.network.n_parameters))
    index = torch.cat([pieces[name].flatten() for name in names])
    torch.testing.assert_close(fit.curvature.matrix[index][:, index], expected, rtol=1e-10, atol=1e-10)
    density = oracles.log_likelihood("gaussian", oracles.outputs(fit.network.module, x), y, 0.25)
    np.testing.assert_allclose(fit.log_likelihood(model.hyper_), float((w * density).sum()), rtol=1e-10)
    np.testing.assert_allclose(fit.total_weight, weights.sum(), rtol=1e-12)


def canonical_order(weights):
    """Order in which a fit passes the rows to the function."""
    recorded = Recorded(same)
    LaplaceRegressor(FrozenEstimator(frozen()), augment=recorded, sigma_noise=0.5, random_state=0).fit(
        X, Y, sample_weight=weights
    )
    distance = np.abs(recorded.returned[0][:, None] - X[None]).sum(-1)
    assert (distance.min(1) == 0).all()
    return distance.argmin(1)


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_a_fit_on_copies_is_the_fit_on_explicit_rows(structure):
    """A fit, training included, equals one on explicit copies with weights w/k."""
    recorded = Recorded(jitter)
    options = {"hessian_structure": structure, "prior_precision": 1.0, "sigma_noise": 0.2, "random_state": 0}
    model = LaplaceRegressor(
        nets.Linear, augment=Augmentation(recorded, n_copies=K), standardize_X=False, standardize_y=False, **options
    )
    model.fit(X, Y)
    order = canonical_order(np.ones(50))
    rows = np.concatenate(recorded.returned), np.tile(Y[order], K)
    plain = LaplaceRegressor(nets.Linear, standardize_X=False, standardize_y=False, **options)
    plain.fit(*rows, sample_weight=np.full(50 * K, 1 / K))
    np.testing.assert_allclose(answers(model), answers(plain), rtol=1e-8)
    np.testing.assert_allclose(model.log_marginal_likelihood_value_, plain.log_marginal_likelihood_value_, rtol=1e-9)


def test_known_noise_goes_with_the_copies():
    """For a linear net, generalised least squares on the copies."""
    recorded, v = Recorded(jitter), np.exp(RNG.normal(size=50))
    options = {
        "prior_precision": 2.0,
        "sigma_noise": 1.0,
        "standardize_X": False,
        "standardize_y": False,
        "random_state": 0,
    }
    model = LaplaceRegressor(nets.Linear, augment=Augmentation(recorded, n_copies=K), **options)
    model.fit(X, Y, sample_noise_variance=v)
    rows = np.concatenate(recorded.returned)
    plain = Recorded(same)
    LaplaceRegressor(nets.Linear, augment=plain, **options).fit(X, Y, sample_noise_variance=v)
    order = np.abs(plain.returned[0][:, None] - X[None]).sum(-1).argmin(1)
    ones = np.ones((50 * K, 1))
    exact = oracles.bayesian_linear_regression(
        torch.tensor(np.column_stack([rows, ones])),
        torch.tensor(np.tile(Y[order], K))[:, None],
        torch.full((50 * K,), 1 / K, dtype=torch.float64),
        2.0,
        torch.tensor(np.tile(v[order], K)),
    )
    mean, cov = exact.predict(torch.tensor(np.column_stack([X_NEW, np.ones(6)])))
    np.testing.assert_allclose(model.predict(X_NEW), mean[:, 0].numpy(), rtol=1e-9)
    np.testing.assert_allclose(model.predict_std(X_NEW, kind="epistemic") ** 2, cov.diagonal().numpy(), rtol=1e-9)
    np.testing.assert_allclose(model.log_marginal_likelihood_value_, float(exact.log_evidence), rtol=1e-9)


# ---------------------------------------------------------------------- effects and invariances


@pytest.mark.parametrize("k", [1, 4, 5])
@pytest.mark.parametrize(
    "model",
    [
        LaplaceRegressor(prior_precision="evidence", sigma_noise="evidence", **SMALL),
        LaplaceClassifier(prior_precision="evidence", **SMALL),
    ],
    ids=["reg", "class"],
)
def test_copies_that_are_the_rows_change_nothing(model, k):
    """The total weight is that of the rows; results are bit-identical if division by k is exact."""
    y = LABELS if isinstance(model, LaplaceClassifier) else Y
    plain = clone(model).fit(X, y)
    augmented = clone(model).set_params(augment=Augmentation(same, n_copies=k)).fit(X, y)
    if k == 5:
        np.testing.assert_allclose(answers(augmented), answers(plain), rtol=1e-6)
    else:
        np.testing.assert_array_equal(answers(augmented), answers(plain))
    evidence = plain.log_marginal_likelihood_value_
    np.testing.assert_allclose(augmented.log_marginal_likelihood_value_, evidence, rtol=1e-9)


def test_copies_of_a_frozen_nets_rows_change_nothing():
    """Without training, only rounding differs. Random copies leave no rows out, so that the evidence selects."""
    options = {"hessian_structure": "full", "prior_precision": "evidence", "sigma_noise": "evidence", "random_state": 0}
    first = LaplaceRegressor(FrozenEstimator(frozen()), **options).fit(X, Y)
    second = LaplaceRegressor(FrozenEstimator(frozen()), augment=Augmentation(same, n_copies=5), **options).fit(X, Y)
    torch.testing.assert_close(first.laplace_.curvature.matrix, second.laplace_.curvature.matrix, rtol=1e-10, atol=0)
    np.testing.assert_allclose(answers(second), answers(first), rtol=1e-9)


def test_one_row_and_shares_are_counted_before_they_are_copied():
    """Weights that sum to one are rescaled to the number of rows before copying."""
    shares = np.full(50, 1 / 50)
    model = LaplaceRegressor(**FIXED, sigma_noise=0.3)
    plain = clone(model).fit(X, Y, sample_weight=shares).laplace_.total_weight
    augmented = clone(model).set_params(augment=Augmentation(jitter, n_copies=K)).fit(X, Y, sample_weight=shares)
    np.testing.assert_allclose([plain, augmented.laplace_.total_weight], 50.0, rtol=1e-12)
    one = clone(model).set_params(augment=Augmentation(jitter, n_copies=K)).fit(X[:1], Y[:1])
    np.testing.assert_allclose(one.laplace_.total_weight, 1.0, rtol=1e-12)


def test_a_closed_orbit_makes_the_answer_symmetric():
    """With copies x and −x, a linear model has slope zero and equal uncertainty at x and −x."""
    options = {
        "prior_precision": 1.0,
        "sigma_noise": 0.3,
        "standardize_X": False,
        "standardize_y": False,
        "random_state": 0,
    }
    y = 3 * X[:, 0] + 1.0
    model = LaplaceRegressor(nets.Linear, augment=Augmentation(Signs(), n_copies=2), **options).fit(X, y)
    np.testing.assert_allclose(model.predict(X_NEW), model.predict(-X_NEW), rtol=1e-9)
    np.testing.assert_allclose(model.predict_std(X_NEW), model.predict_std(-X_NEW), rtol=1e-9)
    plain = LaplaceRegressor(nets.Linear, **options).fit(X, y)
    assert np.abs(plain.predict(X_NEW) - plain.predict(-X_NEW)).max() > 1


def test_a_net_told_of_a_symmetry_knows_more_of_the_other_side():
    """With mirrored copies of one-sided rows, the other side is predicted well; the total weight does not grow."""
    one_sided = np.abs(X)
    plain = LaplaceRegressor(**SMALL, sigma_noise=0.1, n_members=1).fit(one_sided, Y)
    model = LaplaceRegressor(**SMALL, sigma_noise=0.1, n_members=1, augment=Augmentation(Signs(), n_copies=2)).fit(
        one_sided, Y
    )
    other = model.predict_std(-one_sided, kind="epistemic")
    assert other.mean() < 0.5 * plain.predict_std(-one_sided, kind="epistemic").mean()
    assert np.mean((model.predict(-one_sided) - Y) ** 2) < 0.2 * np.mean((plain.predict(-one_sided) - Y) ** 2)
    assert model.laplace_.total_weight == plain.laplace_.total_weight == 50


def test_copies_around_a_row_are_a_stronger_prior_of_a_linear_net():
    """Input noise of covariance s² I adds N s²/σ² to the prior precision of the slopes (Bishop 1995)."""
    s, sigma = 0.8, 0.5
    options = {"sigma_noise": sigma, "standardize_X": False, "standardize_y": False, "random_state": 0}
    augment = Around(s * 3**0.5)  # 2 · 3 copies, each column shifted in a third of them
    model = LaplaceRegressor(
        nets.Linear, augment=Augmentation(augment, n_copies=6), prior_precision=1.0, **options
    ).fit(X, Y)
    stronger = LaplaceRegressor(nets.Linear, prior_precision=[1.0 + 50 * s**2 / sigma**2, 1.0], **options).fit(X, Y)
    np.testing.assert_allclose(answers(model), answers(stronger), rtol=1e-9)
    plain = LaplaceRegressor(nets.Linear, prior_precision=1.0, **options).fit(X, Y)
    assert (model.predict_std(X_NEW) < plain.predict_std(X_NEW)).all()


def test_neither_the_order_of_rows_nor_chunks_nor_repetition_matter(monkeypatch):
    """The function gets merged rows in canonical order; its generator depends on them and on random_state."""
    model = LaplaceRegressor(**FIXED, augment=Augmentation(jitter, n_copies=3))
    weights = np.random.default_rng(0).integers(1, 3, size=50)
    first = answers(model.fit(X, Y, sample_weight=weights))
    index = np.random.default_rng(1).permutation(np.repeat(np.arange(50), weights))
    np.testing.assert_array_equal(answers(model.fit(X[index], Y[index])), first)
    assert not np.array_equal(answers(model.set_params(random_state=1).fit(X[index], Y[index])), first)
    fixed = LaplaceRegressor(**FIXED, augment=Augmentation(jitter, n_copies=3), sigma_noise=0.2)
    first = answers(fixed.fit(X, Y))
    monkeypatch.setattr(_memory, "CHUNK_ROWS", (1, 7))
    np.testing.assert_allclose(answers(fixed.fit(X, Y)), first, rtol=1e-6)


def test_what_the_function_does_to_its_arguments_stays_with_it():
    """The function gets a copy of X and a separate generator; numpy's global generator is unchanged."""
    before, state = X.copy(), np.random.get_state()[1].copy()  # noqa: NPY002 - the global state is the subject
    first, second = (
        LaplaceRegressor(**FIXED, augment=Augmentation(f, n_copies=2)).fit(X, Y) for f in (in_place, jitter)
    )
    np.testing.assert_array_equal(answers(first), answers(second))
    np.testing.assert_array_equal(X, before)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


# ---------------------------------------------------------------------- the estimator


def test_augmented_models_are_cloned_and_saved():
    """An importable function is cloned, pickled and hashed like any other parameter."""
    model = LaplaceRegressor(**FIXED, augment=Augmentation(jitter, n_copies=2)).fit(X, Y)
    assert clone(model).augment.function is jitter and clone(model).augment is not model.augment
    for other in (pickle.loads(pickle.dumps(model)), clone(model).fit(X, Y)):
        np.testing.assert_array_equal(answers(other), answers(model))
    assert joblib.hash(model) == joblib.hash(pickle.loads(pickle.dumps(model)))


def test_a_cached_training_is_that_of_its_copies(tmp_path, monkeypatch):
    """The cache key contains the copies: new copies train again, another temperature or an equal function does not."""
    calls = []
    original = _map.fit_map
    monkeypatch.setattr("sklearn_laplace._training.train.fit_map", lambda *a, **k: calls.append(1) or original(*a, **k))
    model = LaplaceRegressor(**FIXED, sigma_noise=0.3, memory=Memory(tmp_path, verbose=0))
    for count, options in (
        (1, {"augment": Augmentation(jitter, n_copies=2)}),
        (1, {"temperature": 0.5}),
        (1, {"augment__function": lambda X, random_state: jitter(X, random_state)}),
        (2, {"augment__function": lambda X, random_state: X + 0.2 * random_state.normal(size=X.shape)}),
        (3, {"augment__n_copies": 3}),
        (4, {"augment": None}),
    ):
        uncached = clone(model.set_params(**options)).set_params(memory=None)
        model.fit(X, Y)
        assert len(calls) == count
        np.testing.assert_array_equal(answers(uncached.fit(X, Y)), answers(model))
        del calls[count:]


def test_rows_that_come_later_are_augmented_too():
    """For a linear net, partial_fit with augmentation equals partial_fit with explicit copies."""
    recorded = Recorded(jitter)
    options = {
        "prior_precision": 1.0,
        "sigma_noise": 0.2,
        "standardize_X": False,
        "standardize_y": False,
        "random_state": 0,
    }
    options["hessian_structure"] = "full"
    model = LaplaceRegressor(nets.Linear, augment=Augmentation(recorded, n_copies=K), **options).fit(X[:30], Y[:30])
    n_first = len(recorded.returned)
    model.partial_fit(X[30:40], Y[30:40]).partial_fit(X[40:], Y[40:])
    assert len(recorded.returned) == n_first + 2 * K
    plain = LaplaceRegressor(nets.Linear, augment=Augmentation(Recorded(jitter), n_copies=K), **options).fit(
        X[:30], Y[:30]
    )
    plain.set_params(augment=None)
    for start, part in ((30, recorded.returned[n_first : n_first + K]), (40, recorded.returned[n_first + K :])):
        n = len(part[0])
        rows = np.concatenate(part), np.tile(Y[start : start + n], K)
        plain.partial_fit(*rows, sample_weight=np.full(n * K, 1 / K))
    np.testing.assert_allclose(answers(model), answers(plain), rtol=1e-9)
    np.testing.assert_allclose(model.laplace_.total_weight, 50, rtol=1e-12)


def test_a_search_over_augmentations_works():
    """A grid may contain functions."""
    model = LaplaceRegressor(**FIXED, sigma_noise=0.3)
    grid = {"augment": [None, Augmentation(jitter, n_copies=2), Augmentation(same, n_copies=2)]}
    search = GridSearchCV(model, grid, cv=2, scoring=metrics.neg_nlpd).fit(X, Y)
    scores = search.cv_results_["mean_test_score"]
    model.set_params(augment=Augmentation(same, n_copies=2))
    inside = GridSearchCV(model, {"augment__function": [jitter, same]}, cv=2, scoring=metrics.neg_nlpd).fit(X, Y)
    np.testing.assert_array_equal(inside.cv_results_["mean_test_score"], scores[1:])
    assert scores[0] == scores[2] != scores[1]
    assert sklearn_laplace.predict_std(search, X_NEW).shape == (6,)


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"augment": "flip"}, "augment='flip' has to be None or a function"),
        ({"augment": Augmentation("flip", 2)}, "augment='flip' has to be None or a function"),
        ({"augment": Augmentation(jitter, 0)}, "n_copies of Augmentation=0 has to be a whole number of at least 1"),
        ({"augment": Augmentation(jitter, 1.5)}, "n_copies of Augmentation=1.5 has to be a whole number"),
        ({"augment": lambda X, r: X[:, :2]}, r"shape \(50, 2\); expected \(50, 3\), one new row for each row"),
        ({"augment": lambda X, r: np.vstack([X, X])}, r"\(100, 3\); expected .* several copies .* use options.Aug"),
        ({"augment": lambda X, r: None}, r"augment returned an array of shape \(\); expected"),
        (
            {"augment": lambda X, r: np.full((len(X), 1), "a")},
            "augment returned ndarray; expected an array of numbers",
        ),
        ({"augment": lambda X, r: X / 0 * 0}, "augment returned 150 values that are NaN or infinite"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("estimator", [LaplaceRegressor, LaplaceClassifier])
def test_what_is_no_augmentation_is_refused(estimator, options, message):
    """The error compares the returned value with the expected one."""
    with pytest.raises(ValueError, match=message):
        estimator(**SMALL, **options).fit(X, Y if estimator is LaplaceRegressor else LABELS)


def test_random_copies_cannot_be_forgotten():
    """The augmentation cannot change after the fit, either."""
    model = LaplaceRegressor(**FIXED, hessian_structure="full", augment=jitter).fit(X, Y)
    before = answers(model)
    with pytest.raises(
        UnsupportedCombinationError, match="forget cannot be used with augment: the fit replaced rows by random copies"
    ):
        model.forget(X[:3], Y[:3])
    with pytest.raises(ValueError, match=r"augment=Augmentation\(.*n_copies=3\) changes the training or the curvature"):
        model.refit_laplace(augment=Augmentation(jitter, n_copies=3))
    np.testing.assert_array_equal(answers(model), before)
