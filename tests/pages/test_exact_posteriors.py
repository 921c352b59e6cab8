"""The benchmark of exact posteriors: its density is the package's, and its distance is the known one."""

from __future__ import annotations

from dataclasses import replace

import exact_posteriors
import numpy as np
import pytest
from scipy.stats import norm


def test_the_sampled_density_is_that_of_the_package():
    """Value and gradient at the mode and at draws of the prior, in float64; a change of δ by 1e-3 is detected."""
    rng = np.random.default_rng(0)
    X = rng.normal([3.0, -1.0], [2.0, 0.1], size=(25, 2))
    table = exact_posteriors.Table(X, 50 + 4 * np.sin(X[:, 0]) + rng.normal(size=25), X[:3])
    model = exact_posteriors.fitted(table, 0.7, 1.3, hessian_structure="full")
    given = exact_posteriors.problem(table, model)
    assert given.dispersion == pytest.approx((1.3 / table.y.std()) ** 2)
    assert exact_posteriors.disagreement(given, model, table) < exact_posteriors.AGREES
    assert exact_posteriors.disagreement(replace(given, precision=0.7007), model, table) > 1e-5
    at_mode = exact_posteriors.outputs(model.laplace_.theta.numpy(), given.judged, exact_posteriors.UNITS, np.tanh)
    np.testing.assert_allclose(given.in_units(at_mode), model.predict(table.judged), rtol=1e-12)


def test_wasserstein_distances_of_normal_distributions_are_the_known_ones():
    """A shift costs its size, a factor of the deviations √(2/π) |s − 1|; quantiles serve as draws, hence 1e-3."""
    draws = np.repeat(norm.ppf((np.arange(5000) + 0.5) / 5000)[:, None], 3, axis=1)
    means, stds = np.array([[0.0, 0.5, 0.0]]), np.array([[1.0, 1.0, 1.4]])
    expected = [0.0, 0.5, 0.4 * np.sqrt(2 / np.pi)]
    np.testing.assert_allclose(exact_posteriors.wasserstein(draws, means, stds), expected, atol=1e-3)
    twice = np.repeat(means, 2, axis=0), np.repeat(stds, 2, axis=0)
    np.testing.assert_allclose(exact_posteriors.wasserstein(draws, *twice), expected, atol=1e-3)
