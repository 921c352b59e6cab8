"""Weak signals and linear functions: linear members of regressions, and small signals of classes and counts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import poisson
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import log_loss, roc_auc_score

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.nets import MLP, TableMLP

N_NEW = 4000


def rows(seed: int, n: int, d: int = 6) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    """Generator, X of n training and ``N_NEW`` fresh rows, and a linear function of variance 1."""
    rng = np.random.default_rng(seed)
    slope = rng.normal(size=d)
    X = rng.normal(size=(n + N_NEW, d))
    return rng, X, X @ (slope / np.linalg.norm(slope))


def classes(seed: int, signal: float, n: int = 150) -> tuple[np.ndarray, ...]:
    rng, X, f = rows(seed, n)
    y = (signal * f + rng.logistic(size=len(X)) > 0).astype(int)
    return X[:n], y[:n], X[n:], y[n:]


def numbers(seed: int, signal: float, n: int = 80) -> tuple[np.ndarray, ...]:
    rng, X, f = rows(seed, n)
    y = signal * f + rng.normal(size=len(X))
    return X[:n], y[:n], X[n:], y[n:]


def counts(seed: int, signal: float, n: int) -> tuple[np.ndarray, ...]:
    rng, X, f = rows(seed, n)
    y = rng.poisson(np.exp(signal * f))
    return X[:n], y[:n], X[n:], y[n:]


def layers(model) -> set[tuple[int, ...]]:
    return {one.net_.module_.hidden_layer_sizes for one in model.members_}


@pytest.fixture(scope="module")
def weak() -> LaplaceClassifier:
    X, y, _, _ = classes(1001, 0.6, 90)
    return LaplaceClassifier(random_state=0).fit(X, y)


def test_a_weak_signal_of_classes_is_found(weak):
    """A constant prediction has an AUC of .5 and a log loss of .704."""
    _, _, X, y = classes(1001, 0.6, 90)
    p = weak.predict_proba(X)
    assert roc_auc_score(y, p[:, 1]) > 0.6
    assert log_loss(y, p) < 0.683


def test_a_joint_ensemble_finds_a_weak_signal_of_classes_and_none_in_noise():
    """Mean gain of the log loss over that of the class frequencies, three samples of 150 rows."""
    for signal, least in ((0.6, 0.007), (0.0, -0.004)):
        gains = []
        for seed in range(1002, 1005):
            X, y, X_new, y_new = classes(seed, signal)
            model = LaplaceClassifier(random_state=0).fit(X, y)
            frequencies = np.full(len(y_new), y.mean())
            gains.append(log_loss(y_new, frequencies) - log_loss(y_new, model.predict_proba(X_new)))
        assert np.mean(gains) > least


@pytest.mark.parametrize(("seed", "n", "gain"), [(1002, 80, 0.03), (1001, 150, 0.007)])
def test_a_weak_signal_of_numbers_is_found(seed, n, gain):
    X, y, X_new, y_new = numbers(seed, 0.4 if n == 80 else 0.3, n)
    model = LaplaceRegressor(random_state=seed - 1000).fit(X, y)
    assert () in layers(model)
    constant = -0.5 * np.log(2 * np.pi * y.var()) - 0.5 * ((y_new - y.mean()) ** 2).mean() / y.var()
    assert model.log_predictive_density(X_new, y_new).mean() > constant + gain


def test_a_weak_signal_of_counts_is_found():
    """A constant rate has a gain of zero."""
    assert fit_of_counts(5002)[1] > 0.015


def test_a_joint_ensemble_finds_a_weak_signal_of_counts():
    """Mean gain of the log probability over that of the mean count, three samples of 100 rows."""
    assert np.mean([fit_of_counts(seed, 100)[1] for seed in range(5000, 5003)]) > 0.004


def fit_of_counts(seed: int, n: int = 90) -> tuple[LaplaceRegressor, float]:
    X, y, X_new, y_new = counts(seed, 0.3, n)
    model = LaplaceRegressor(likelihood="poisson", random_state=0).fit(X, y)
    return model, model.log_predictive_density(X_new, y_new).mean() - poisson.logpmf(y_new, y.mean()).mean()


@pytest.fixture(scope="module")
def joint() -> tuple[LaplaceRegressor, LaplaceRegressor, tuple[np.ndarray, ...]]:
    """A default fit and a linear one of a strong linear signal, with their rows."""
    data = numbers(7000, 3.0, 200)
    models = [
        LaplaceRegressor(random_state=0, **options).fit(*data[:2]) for options in ({}, {"hidden_layer_sizes": ()})
    ]
    return (*models, data)


def test_a_linear_function_is_learnt_as_by_a_linear_net(joint):
    """The linear members have most of the weight, and nets with exact steps have a fifth at least."""
    default, linear, (_, _, X, y) = joint
    weights = {}
    for one, weight in zip(default.members_, default.member_weights_, strict=True):
        sizes = one.net_.module_.hidden_layer_sizes
        weights[sizes] = weights.get(sizes, 0.0) + weight
    assert weights[()] > 0.5
    assert weights[(50,)] >= 0.2 - 1e-12
    best = linear.log_predictive_density(X, y).mean()
    assert default.log_predictive_density(X, y).mean() > best - 0.02
    assert default.members_[0].net_.module_.hidden_layer_sizes == (50,)  # attributes are those of the first member


def test_its_intervals_are_as_right_as_those_of_a_linear_net(joint):
    """The noise of these rows happens to be small, .81, and intervals of all nets are too narrow by it."""
    default, linear, (_, _, X, y) = joint
    covered = []
    for model in (default, linear):
        low, high = model.predict_interval(X, 0.9)[1].T
        covered.append(np.mean((low <= y) & (y <= high)))
    assert covered[1] - 0.02 < covered[0] < 0.9


def test_a_function_that_bends_has_no_linear_members():
    """Held-out rows give them a weight of zero, and they are left out."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-2, 2, size=(150, 2))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=150)
    assert () not in layers(LaplaceRegressor(random_state=0).fit(X, y))


def test_without_a_signal_little_is_lost():
    """Log loss minus that of the frequencies of the classes. Logistic regression loses .025 on average here."""
    lost = []
    for seed in range(1, 4):
        X, y, X_new, y_new = classes(2000 + seed, 0.0)
        p = LaplaceClassifier(random_state=seed).fit(X, y).predict_proba(X_new)
        lost.append(log_loss(y_new, p) - log_loss(y_new, np.tile([1 - y.mean(), y.mean()], (len(y_new), 1))))
    assert max(lost) < 0.02
    assert np.mean(lost) < 0.005


@pytest.mark.parametrize("n", [12, 20])
def test_few_rows_show_a_strong_signal(n):
    """Mean gain of the log loss over that of the class frequencies, three samples."""
    gains = []
    for seed in range(1001, 1004):
        X, y, X_new, y_new = classes(seed, 3.0, n)
        p = LaplaceClassifier(random_state=0).fit(X, y).predict_proba(X_new)
        gains.append(log_loss(y_new, np.full(len(y_new), y.mean())) - log_loss(y_new, p))
    assert np.mean(gains) > 0.03


def test_rare_classes_keep_the_class_frequencies():
    """Six of 99 rows without a signal: all new rows have about their frequency."""
    rng = np.random.default_rng(77)
    X, y = rng.normal(size=(99, 6)), rng.permutation(np.arange(99) < 6).astype(int)
    p = LaplaceClassifier(random_state=0).fit(X, y).predict_proba(rng.normal(size=(1000, 6)))[:, 1]
    assert 0.04 < p.mean() < 0.11
    assert p.std() < 0.05


@pytest.mark.parametrize(
    "options",
    [{"hidden_layer_sizes": (50,)}, {"prior_precision": 100.0}, {"n_members": 1}, {"map_prior_precision": 1.0}],
    ids=lambda options: next(iter(options)),
)
def test_what_a_user_sets_is_kept(options):
    """Without options there would be linear members."""
    X, y, _, _ = numbers(1000, 0.6)
    assert () not in layers(LaplaceRegressor(random_state=0, **options).fit(X, y))


def test_noise_that_varies_is_kept():
    """The mean is constant and the noise is not."""
    rng = np.random.default_rng(5)
    X = rng.uniform(-2, 2, size=(300, 2))
    y = np.exp(X[:, 0]) * rng.normal(size=300)
    model = LaplaceRegressor(random_state=0).fit(X, y)
    std = model.predict_std([[-1.5, 0.0], [1.5, 0.0]])
    assert std[1] > 5 * std[0]


@pytest.mark.parametrize("sizes", [(), (7,)])
def test_a_prior_from_earlier_rows_has_the_same_net(sizes):
    """Layers that are left open are those of the previous posterior, linear or not."""
    X, y, X_new, y_new = classes(1001, 0.6, 90)
    one = LaplaceClassifier(hidden_layer_sizes=sizes, n_members=1, prior_precision=1.0, random_state=0).fit(X, y)
    later = LaplaceClassifier(prior=FrozenEstimator(one), random_state=0).fit(X_new[:300], y_new[:300])
    assert layers(later) == {sizes}
    before, after = (log_loss(y_new[300:], model.predict_proba(X_new[300:])) for model in (one, later))
    assert after < before


def test_categories_are_linear_too():
    """One level of a category has an effect, which nets with hidden layers miss."""
    rng = np.random.default_rng(2)
    colour = rng.integers(3, size=90 + N_NEW)
    X = pd.DataFrame({"colour": np.array(["red", "green", "blue"])[colour], "size": rng.normal(size=len(colour))})
    y = 0.6 * (colour == 1) + rng.normal(size=len(colour))
    model = LaplaceRegressor(random_state=2).fit(X[:90], y[:90])
    assert () in layers(model)
    assert np.corrcoef(model.predict(X[90:]), colour[90:] == 1)[0, 1] > 0.5


@pytest.mark.parametrize("sizes", [(), (5,), (4, 3)])
def test_a_net_knows_its_layers(sizes):
    """Both built-in nets, without numeric columns too."""
    assert MLP(3, 2, sizes).hidden_layer_sizes == sizes
    assert TableMLP([0, 3], [True, False], 1, sizes).hidden_layer_sizes == sizes
    assert TableMLP([3, 2], [False, False], 1, sizes).hidden_layer_sizes == sizes
