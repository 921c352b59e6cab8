"""Quantiles increase with their level, and intervals are nested, for every likelihood and mixture."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.distributions import CountMixture, NegativeBinomialLogNormal, NormalMixture, PoissonLogNormal
from sklearn_laplace.distributions.evaluation import nested, quantiles_of

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(17)
X = RNG.uniform(-2, 2, size=(100, 2))
MEAN = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1]
COUNTS = RNG.poisson(np.exp(1 + MEAN) * RNG.gamma(2, 0.5, 100))
Y = MEAN + RNG.normal(size=100) * np.exp(0.5 * X[:, 1])
SMALL = {"hidden_layer_sizes": (6,), "n_bins": None, "random_state": 0}


def random_levels(rng):
    """Unordered levels in all parts of the distribution, many of them close to each other."""
    anywhere = rng.uniform(0.001, 0.999, 20)
    close = np.concatenate([level + np.array([1e-14, 1e-9, 1e-6, 1e-5]) for level in anywhere[:10]])
    return rng.permutation(np.concatenate([anywhere, close, [1e-9, 0.5, 1 - 1e-9]]))


def random_distribution(kind, rng):
    """Six targets with narrow and wide components, in several scales."""
    n, j, scale = 6, 5, 10.0 ** rng.integers(-3, 4)
    means, stds = scale * rng.normal(size=(n, j)), scale * 10.0 ** rng.uniform(-3, 1, size=(n, j))
    weights = rng.dirichlet(np.ones(j))
    logs, variances = rng.normal(2, 2, size=(n, j)), 10.0 ** rng.uniform(-4, 1.3, size=(n, j))
    return {
        "normal": lambda: scipy.stats.norm(means[:, 0], stds[:, 0]),
        "mixture": lambda: NormalMixture(means, stds, weights),
        "poisson": lambda: PoissonLogNormal(logs[:, 0], variances[:, 0]),
        "negative_binomial": lambda: NegativeBinomialLogNormal(logs[:, 0], variances[:, 0], 10.0 ** rng.uniform(-4, 1)),
        "counts": lambda: CountMixture(tuple(map(PoissonLogNormal, logs.T[:3], variances.T[:3])), np.ones(3) / 3),
    }[kind]()


def assert_increase(values, levels):
    ordered = values[:, np.argsort(levels)]
    assert (ordered[:, 1:] >= ordered[:, :-1]).all()


@pytest.mark.parametrize("kind", ["normal", "mixture", "poisson", "negative_binomial", "counts"])
def test_quantiles_of_random_distributions_increase(kind):
    """Probabilities of counts have errors of 1e-5, with which bisections from different brackets could cross."""
    rng = np.random.default_rng(0)
    for _ in range(2):
        levels = random_levels(rng)
        assert_increase(quantiles_of(random_distribution(kind, rng), levels), levels)


@pytest.mark.parametrize(
    ("options", "y"),
    [
        ({"likelihood": "gaussian", "n_members": 1}, Y),
        ({"n_members": 2}, Y),
        ({"likelihood": "poisson", "n_members": 2, "prior_precision": 1.0}, COUNTS),
        ({"likelihood": "negative_binomial", "n_members": 1, "prior_precision": 1.0}, COUNTS),
        ({"n_members": 1}, np.column_stack([Y, -Y + 0.1 * MEAN])),
    ],
)
def test_intervals_and_quantiles_of_fits_are_nested(options, y):
    """Random levels in one call, for one and several targets."""
    model = LaplaceRegressor(**{**SMALL, **options}).fit(X, y)
    levels = random_levels(np.random.default_rng(1))
    ends = model.predict_interval(X[:12], levels)[1].reshape(-1, 2, len(levels))
    assert_increase(-ends[:, 0], levels)
    assert_increase(ends[:, 1], levels)
    assert_increase(model.predict_quantiles(X[:12], levels), levels)


def test_crossing_ends_are_widened():
    """The end of the higher level is kept where it is outside, otherwise it takes that of the lower level."""
    ends = np.array([[[-1.0, -3.0, -2.0], [1.0, 3.0, 4.0]]])
    expected = np.array([[[-1.0, -3.0, -3.0], [1.0, 3.0, 4.0]]])
    np.testing.assert_array_equal(nested(ends, np.array([0.5, 0.8, 0.9])), expected)
    np.testing.assert_array_equal(nested(ends[..., [2, 0, 1]], np.array([0.9, 0.5, 0.8])), expected[..., [2, 0, 1]])
