"""Intervals of several targets that hold jointly, ``predict_interval(joint=True)``."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from sklearn_laplace import LaplaceRegressor, predict_interval
from sklearn_laplace.distributions import NormalMixture
from sklearn_laplace.distributions.joint import joint_levels
from sklearn_laplace.errors import UnsupportedCombinationError

SMALL = {"hidden_layer_sizes": (8,), "n_bins": None, "random_state": 0}


def correlated(n, rng, rho, n_targets=3):
    """Two inputs, and targets in different units whose noise is correlated."""
    X = rng.uniform(-2, 2, size=(n, 2))
    noise = np.sqrt(rho) * rng.normal(size=(n, 1)) + np.sqrt(1 - rho) * rng.normal(size=(n, n_targets))
    units = 10.0 ** np.arange(n_targets)
    return X, units * (np.sin(X[:, :1] + np.arange(n_targets)) + 0.3 * noise)


def held(intervals, y):
    """True for each row and target inside its interval."""
    return (intervals[:, :, 0] <= y) & (y <= intervals[:, :, 1])


@pytest.mark.parametrize("rho", [-0.4, 0.0, 0.5, 0.9])
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_boxes_have_their_probability(rho, level):
    """Against scipy's distribution function of the multivariate normal."""
    matrix = np.full((3, 3), rho) + (1 - rho) * np.eye(3)
    mixture = NormalMixture(np.zeros((1, 3, 1)), np.ones((1, 3, 1)), np.ones(1))
    q = joint_levels(mixture, matrix[None, None], np.array([level]))[0, 0]
    z = scipy.stats.norm.ppf((1 + q) / 2)
    inside = scipy.stats.multivariate_normal(cov=matrix).cdf(np.full(3, z), lower_limit=np.full(3, -z))
    assert inside == pytest.approx(level, abs=3e-3)


@pytest.mark.parametrize("rho", [-0.13, 0.5, 0.9])
def test_boxes_of_eight_targets_have_their_probability(rho):
    """Up to .011, and four standard errors of 200,000 draws, .0045."""
    matrix = np.full((8, 8), rho) + (1 - rho) * np.eye(8)
    mixture, levels = NormalMixture(np.zeros((1, 8, 1)), np.ones((1, 8, 1)), np.ones(1)), np.array([0.5, 0.8, 0.9])
    z = scipy.stats.norm.ppf((1 + joint_levels(mixture, matrix[None, None], levels)[:, 0]) / 2)
    largest = np.abs(np.random.default_rng(0).normal(size=(200_000, 8)) @ np.linalg.cholesky(matrix).T).max(1)
    np.testing.assert_allclose([(largest < end).mean() for end in z], levels, atol=0.011 + 0.0045)


def test_a_mixture_has_the_probability_of_its_draws():
    """Components with different means and correlations; four standard errors of 100,000 draws are 0.004."""
    rng = np.random.default_rng(0)
    means, stds = rng.normal(size=(1, 2, 3)), rng.uniform(0.5, 2, size=(1, 2, 3))
    weights, rho = np.array([0.2, 0.3, 0.5]), np.array([-0.8, 0.1, 0.9])
    matrices = np.stack([np.array([[1, r], [r, 1]]) for r in rho])[None]
    mixture = NormalMixture(means, stds, weights)
    q = joint_levels(mixture, matrices, np.array([0.8]))[0]
    chosen = rng.choice(3, size=100_000, p=weights)
    z = np.einsum("ncd,nd->nc", np.linalg.cholesky(matrices[0])[chosen], rng.normal(size=(100_000, 2)))
    draws = means[0].T[chosen] + stds[0].T[chosen] * z
    ends = [mixture.ppf((1 + side * q) / 2)[0] for side in (-1, 1)]
    assert ((ends[0] <= draws) & (draws <= ends[1])).all(1).mean() == pytest.approx(0.8, abs=6e-3)


@pytest.mark.parametrize("method", ["normal", "jackknife+"])
def test_joint_intervals_cover_all_targets_together(method):
    """Independent noise would give levels that are too large by about .03 here; each target is covered more often."""
    rng = np.random.default_rng(1)
    X, y = correlated(250, rng, rho=0.8)
    X_new, y_new = correlated(2000, rng, rho=0.8)
    model = LaplaceRegressor(n_members=1, **SMALL).fit(X, y)
    inside = held(model.predict_interval(X_new, 0.9, method=method, joint=True)[1], y_new)
    assert inside.all(1).mean() == pytest.approx(0.9, abs=0.03)
    assert (inside.mean(0) > inside.all(1).mean()).all()
    alone = held(model.predict_interval(X_new, 0.9, method=method)[1], y_new)
    assert alone.all(1).mean() < inside.all(1).mean() - 0.02


def test_a_mixture_of_nets_with_varying_noise_covers_jointly():
    """Default ensemble; several levels add a last axis and are nested."""
    rng = np.random.default_rng(2)
    X, y = correlated(200, rng, rho=0.5, n_targets=2)
    X_new, y_new = correlated(1500, rng, rho=0.5, n_targets=2)
    model = LaplaceRegressor(**SMALL).fit(X, y)
    intervals = model.predict_interval(X_new, [0.5, 0.9], joint=True)[1]
    assert intervals.shape == (1500, 2, 2, 2)
    assert (np.diff(intervals[:, :, 0]) < 0).all() and (np.diff(intervals[:, :, 1]) > 0).all()
    for place, level in enumerate((0.5, 0.9)):
        assert held(intervals[..., place], y_new).all(1).mean() == pytest.approx(level, abs=0.05)


def test_left_out_residuals_of_a_users_net_hold_jointly():
    """Without cross-fitted nets: closed-form leave-one-out, with the largest residual of each row."""
    rng = np.random.default_rng(3)
    X, y = correlated(150, rng, rho=0.8)
    X_new, y_new = correlated(2000, rng, rho=0.8)
    model = LaplaceRegressor(hidden_layer_sizes=(), random_state=0, likelihood="gaussian").fit(X, y)
    inside = held(model.predict_interval(X_new, 0.8, method="jackknife+", joint=True)[1], y_new)
    assert inside.all(1).mean() == pytest.approx(0.8, abs=0.06)  # 150 rows: a standard error of 0.03


@pytest.mark.parametrize("method", ["normal", "jackknife+"])
def test_one_target_has_the_same_intervals(method):
    """Jointly or alone, for a target of one or two dimensions."""
    X, y = correlated(60, np.random.default_rng(4), rho=0.0, n_targets=1)
    for targets in (y, y[:, 0]):
        model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.3, **SMALL).fit(X, targets)
        alone, jointly = (
            model.predict_interval(X, [0.5, 0.9], method=method, joint=joint)[1] for joint in (False, True)
        )
        np.testing.assert_allclose(jointly, alone, rtol=1e-12)
        in_pipeline = predict_interval(
            make_pipeline(FunctionTransformer(), model), X, [0.5, 0.9], method=method, joint=True
        )
        np.testing.assert_array_equal(in_pipeline[1], jointly)


def test_what_has_no_joint_intervals_is_refused():
    """Counts, and values other than True and False."""
    X = np.random.default_rng(5).uniform(size=(40, 2))
    counts = np.random.default_rng(5).poisson(3, size=(40, 2))
    model = LaplaceRegressor(likelihood="poisson", prior_precision=1.0, n_members=1, **SMALL).fit(X, counts)
    with pytest.raises(UnsupportedCombinationError, match=r"joint=True cannot be used with likelihood='poisson'.*Bonf"):
        model.predict_interval(X, joint=True)
    with pytest.raises(ValueError, match="joint='yes' has to be True or False"):
        model.predict_interval(X, joint="yes")
