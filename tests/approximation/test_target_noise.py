"""Noise level of each of several targets: estimates from held-out errors, and fits whose targets differ in noise."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch

from sklearn_laplace import LaplaceRegressor, load, save
from sklearn_laplace._ensemble.noise_model import NoiseModel
from sklearn_laplace._ensemble.target_noise import TargetNoise, target_noise
from sklearn_laplace.laplace.selection import HeldOutErrors

LEVELS = np.array([0.1, 1.0])
SMALL = {"hidden_layer_sizes": (10,), "random_state": 0}


def rows(n, seed, levels=LEVELS):
    """Rows with two smooth targets of standard deviation near one."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    mean = np.column_stack([np.sin(X[:, 0]) + X[:, 1], X[:, 0] - X[:, 1]])
    return X, mean + levels * rng.normal(size=(n, 2))


X, Y = rows(150, 0)
X_NEW, Y_NEW = rows(3000, 1)


def held_out(errors, variance, weights=None, noise=None):
    weights = np.ones(len(errors)) if weights is None else weights
    noise = np.ones(errors.shape) if noise is None else np.tile(noise, (len(errors), 1))
    return HeldOutErrors(*map(torch.from_numpy, (errors, variance, noise, weights)))


def inside(low, high):
    """Fraction of fresh rows between two ends, for each target."""
    return ((low <= Y_NEW) & (high >= Y_NEW)).mean(0)


# ---------------------------------------------------------------------- the estimate


@pytest.mark.parametrize("seed", range(4))
def test_under_other_levels_they_are_those_of_largest_density(seed):
    """Against a fine grid, with variances of predictions that differ between rows, and weights."""
    rng = np.random.default_rng(seed)
    levels = np.array([0.1, 1.0, 3.0])
    variance = rng.gamma(1.0, 0.02, size=(300, 3))
    errors = rng.normal(size=(300, 3)) * np.sqrt(variance + 0.2 * levels)
    weights = rng.integers(1, 4, size=300).astype(float)
    found = target_noise(held_out(errors, variance, weights, levels), 0.2).levels
    expected = oracles.target_levels(errors, variance, weights, 0.2)
    np.testing.assert_allclose(found, expected / expected.mean(), rtol=5e-3)


def test_under_one_level_variances_are_proportional_to_it():
    """Closed form; it recovers the levels of errors whose variances are all multiplied by them. Their mean is 1."""
    rng = np.random.default_rng(0)
    variance, levels = rng.gamma(1.0, 0.3, size=(10_000, 2)), np.array([0.01, 1.0])
    errors = rng.normal(size=(10_000, 2)) * np.sqrt(levels * (variance + 0.5))
    found = target_noise(held_out(errors, variance), 0.5).levels
    np.testing.assert_allclose(found, levels / levels.mean(), rtol=0.05)
    expected = (errors**2 / (variance + 0.5)).mean(0)
    np.testing.assert_allclose(found, expected / expected.mean(), rtol=1e-12)


def test_targets_that_differ_by_chance_share_one_level():
    """The Bayesian information criterion accepts two levels for few of many samples of equal noise."""
    drawn = (np.random.default_rng(seed).normal(size=(100, 2)) for seed in range(200))
    accepted = [target_noise(held_out(errors, np.zeros((100, 2))), 1.0) is not None for errors in drawn]
    assert np.mean(accepted) < 0.08  # P(χ²₁ > log 100) = .03


def test_one_target_has_no_levels():
    """Its level is φ."""
    assert target_noise(held_out(np.ones((20, 1)), np.zeros((20, 1))), 1.0) is None


# ---------------------------------------------------------------------- fits


@pytest.fixture(scope="module", params=["joint", "alone"])
def fitted(request):
    """Members that train together, or a net alone."""
    options = {} if request.param == "joint" else {"n_members": 1}
    return LaplaceRegressor(likelihood="gaussian", **options, **SMALL).fit(X, Y)


def test_intervals_of_each_target_cover(fitted):
    """One level for both would cover about 1.00 and .7 of the rows."""
    assert isinstance(fitted.noise_model_, TargetNoise)
    low, high = np.moveaxis(fitted.predict_quantiles(X_NEW, [0.05, 0.95]), 1, 0)
    np.testing.assert_allclose(inside(low, high), 0.9, atol=0.08)
    assert 5 < fitted.sigma_noise_[1] / fitted.sigma_noise_[0] < 16


def test_moments_and_draws_have_the_levels(fitted):
    """Aleatoric standard deviations are the noise levels; draws have them too."""
    aleatoric = fitted.predict_std(X_NEW[:5], kind="aleatoric")
    np.testing.assert_allclose(aleatoric, np.tile(fitted.sigma_noise_, (5, 1)), rtol=1e-6)
    mean, std = fitted.predict(X_NEW[:5], return_std=True)
    draws = np.stack([fitted.sample_y(X_NEW[:5], n_samples=2000, random_state=k) for k in range(2)])
    spread = np.sqrt(((draws - mean[None, ..., None]) ** 2).mean((0, -1)))
    np.testing.assert_allclose(spread, std, rtol=0.1)


def test_a_saved_model_has_the_levels(fitted, tmp_path):
    """A file gives the same predictions."""
    save(fitted, tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.noise_model_ == fitted.noise_model_
    for one, other in zip(again.predict(X_NEW, return_std=True), fitted.predict(X_NEW, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)


def test_noise_that_varies_starts_from_the_levels():
    """The first target has little noise that varies; the second has much constant noise."""
    spread = 0.1 * np.exp(X[:, 0])
    pair = np.column_stack([X[:, 1] + spread * np.random.default_rng(2).normal(size=150), Y[:, 1]])
    model = LaplaceRegressor(likelihood="heteroscedastic", n_members=1, **SMALL).fit(X, pair)
    assert isinstance(model.noise_model_, NoiseModel)
    aleatoric = model.predict_std(X_NEW, kind="aleatoric")
    assert np.corrcoef(np.log(aleatoric[:, 0]), X_NEW[:, 0])[0, 1] > 0.7
    assert 0.7 < np.median(aleatoric[:, 1]) < 1.4


def test_the_noise_of_an_average_row_is_that_of_each_target():
    """Also if the noise varies: root mean squares over the training rows."""
    noise = LEVELS * np.exp(0.7 * X[:, :1])
    model = LaplaceRegressor(likelihood="heteroscedastic", **SMALL).fit(X, X + noise * (Y - Y.mean(0)))
    aleatoric = model.predict_std(X, kind="aleatoric")
    np.testing.assert_allclose(model.sigma_noise_, np.sqrt((aleatoric**2).mean(0)), rtol=0.5)


def test_rows_are_added_under_the_levels():
    """An update keeps the levels, and ``forget`` undoes it."""
    model = LaplaceRegressor(n_members=1, hessian_structure="full", **SMALL).fit(X, Y)
    before = model.predict(X_NEW, return_std=True)
    levels = model.noise_model_
    more = rows(50, 5)
    model.partial_fit(*more)
    assert model.noise_model_ == levels and isinstance(levels, TargetNoise)
    std = model.predict_std(X_NEW, kind="epistemic")
    assert (std.mean(0) < np.sqrt(before[1] ** 2 - model.sigma_noise_**2).mean(0)).all()
    model.forget(*more)
    for one, other in zip(model.predict(X_NEW, return_std=True), before, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_noise_that_differs_between_targets_does_not_vary_with_x():
    """A noise net with its prior mean at one level would learn the difference, and vary by a tenth."""
    model = LaplaceRegressor(likelihood="heteroscedastic", n_members=1, **SMALL).fit(*rows(100, 0))
    aleatoric = model.predict_std(X_NEW, kind="aleatoric")
    assert (aleatoric.std(0) / aleatoric.mean(0) < 1e-3).all()
    np.testing.assert_allclose(aleatoric.mean(0), LEVELS, rtol=0.3)


def test_a_noise_that_was_given_is_kept():
    """``sigma_noise`` as a number is the noise of both targets."""
    model = LaplaceRegressor(sigma_noise=0.5, n_members=1, **SMALL).fit(X, Y)
    assert model.noise_model_ is None
    np.testing.assert_allclose(model.sigma_noise_, 0.5, rtol=1e-6)
