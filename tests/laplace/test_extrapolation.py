"""The functions outside the range of the training rows: variance, covariance and draws against one kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sklearn_laplace.laplace import fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.extrapolation import FARTHEST, Extrapolation
from sklearn_laplace.laplace.fit import Hyper
from sklearn_laplace.laplace.likelihoods import Gaussian
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.predictives import GLM
from sklearn_laplace.laplace.structures import Full

SCALE = np.array([1.7, 0.4])
LOW, HIGH, WIDTH = (np.array(values) for values in ([-1.0, -np.inf, 0.0], [1.0, np.inf, 5.0], [2.0, 1.0, 4.0]))


def extrapolation(scale=SCALE):
    return Extrapolation(*(torch.from_numpy(part) for part in (LOW, HIGH, WIDTH, scale)))


def kernel(x, z):
    """Covariance of the functions of scale 1 at two rows, written out column by column."""

    def features(row):
        values = []
        for value, low, high, width in zip(row, LOW, HIGH, WIDTH, strict=True):
            for beyond in (low - value, value - high):
                e = max(beyond, 0.0) / width
                values.append(e**1.5)
        return np.array(values)

    return float(features(x) @ features(z))


@pytest.fixture
def rows():
    """Rows inside, outside on either side, far away, and with a missing number."""
    drawn = np.random.default_rng(0).normal(size=(12, 3)) * [3.0, 10.0, 6.0]
    return np.vstack([[0.0, 1e9, 1.0], drawn])


def test_variance_and_joint_covariance_are_those_of_the_kernel(rows):
    """Rows on different sides of the range are independent, and so are the outputs."""
    x, n = torch.from_numpy(rows), len(rows)
    expected = np.array([[kernel(a, b) for b in rows] for a in rows])
    outside = extrapolation()
    np.testing.assert_allclose(outside.variance(x), expected.diagonal()[:, None] * SCALE**2, rtol=1e-12)
    joint = outside.joint_covariance(x).view(n, 2, n, 2)
    for output, scale in enumerate(SCALE):
        np.testing.assert_allclose(joint[:, output, :, output], scale**2 * expected, rtol=1e-12, atol=1e-12)
    assert not joint[:, 0, :, 1].any()


def test_draws_are_functions_with_the_covariance_of_the_kernel(rows):
    """Two calls with one set of weights agree; the covariance of 40,000 draws has an error of about 1/200."""
    x, generator = torch.from_numpy(rows), torch.Generator().manual_seed(0)
    state = generator.get_state()
    drawn = extrapolation().drawn(40_000, generator)
    assert torch.equal(generator.get_state(), state)
    draws = drawn(x).numpy()
    np.testing.assert_array_equal(drawn(x[3:5]).numpy(), draws[3:5])
    assert not draws[0].any()
    expected = np.array([[kernel(a, b) for b in rows] for a in rows])
    for output, scale in enumerate(SCALE):
        found = draws[:, output] @ draws[:, output].T / 40_000
        np.testing.assert_allclose(found, scale**2 * expected, rtol=0, atol=0.03 * scale**2 * expected.max())


def test_missing_and_huge_numbers_have_finite_variances():
    x = torch.tensor([[np.nan, 0.0, 1.0], [1e300, 0.0, 1.0]], dtype=torch.float64)
    assert extrapolation().variance(x)[:, 0].tolist() == [0.0, pytest.approx(SCALE[0] ** 2 * FARTHEST**3)]


def test_the_linearised_predictive_adds_it_to_its_own_variance(rows):
    """Rows inside the range keep their variance to the bit."""
    torch.manual_seed(0)
    network = trace(torch.nn.Linear(3, 2).double(), torch.from_numpy(rows[:1]))
    x = torch.from_numpy(rows)
    batch = x, torch.zeros(len(x), 2).double(), torch.ones(len(x)).double()
    fit = fit_laplace(network, Gaussian(), GGN(), Full, network.scalar_prior(), [batch])
    posterior = fit.posterior(Hyper(torch.ones(1).double()))
    plain, wider = (predictive.latent(network, posterior, x) for predictive in (GLM(), GLM(extrapolation())))
    added = wider.variance - plain.variance
    assert torch.equal(wider.mean, plain.mean)
    assert torch.equal(wider.covariance[0], plain.covariance[0])
    np.testing.assert_allclose(added, [kernel(row, row) * SCALE**2 for row in rows], rtol=1e-9, atol=1e-9)
    joint = GLM(extrapolation()).joint_covariance(network, posterior, x).view(len(x), 2, len(x), 2)
    np.testing.assert_allclose(joint.diagonal(dim1=0, dim2=2).movedim(-1, 0), wider.covariance, rtol=1e-9, atol=1e-9)
