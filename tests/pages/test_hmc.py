"""The Hamiltonian Monte Carlo sampler of experiment 4 on densities with known moments."""

import importlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch

PAPERS = Path(__file__).parents[2] / "examples/3_papers"
SCALES = np.array([0.3, 1.0, 2.0])
MEAN = np.array([1.0, -2.0, 0.5])
COVARIANCE = SCALES[:, None] * (0.9 + 0.1 * np.eye(3)) * SCALES
PRECISION = np.linalg.inv(COVARIANCE)


def by_autograd(log_density):
    """Function that returns log density and gradient, as the sampler expects."""

    def density(theta):
        theta = torch.tensor(theta, requires_grad=True)
        value = log_density(theta)
        return value.detach().numpy(), torch.autograd.grad(value.sum(), theta)[0].numpy()

    return density


def gaussian(theta):
    slope = -(theta - MEAN) @ PRECISION
    return ((theta - MEAN) * slope).sum(-1) / 2, slope


@pytest.fixture
def hmc(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPERS))
    return importlib.import_module("hmc")


def within_errors(values, expected):
    """True if means over the 32 chains (C, …) are within four of their standard errors."""
    errors = values.std(0, ddof=1) / len(values) ** 0.5
    return (np.abs(values.mean(0) - expected) < 4 * errors).all()


@pytest.fixture
def drawn(hmc):
    rng = np.random.default_rng(0)
    start = 5 * rng.normal(size=(32, 3))
    return hmc.sample(gaussian, start, n_draws=400, n_warmup=300, path_length=2.0, rng=rng)


def test_moments_of_a_correlated_gaussian(drawn):
    """Chains start far outside; the tolerance is the spread between chains, which is checked to be small."""
    centred = drawn.theta - MEAN
    moments = np.einsum("ncp,ncq->cpq", centred, centred) / len(centred)
    assert drawn.theta.shape == (400, 32, 3)
    assert within_errors(drawn.theta.mean(0), MEAN)
    assert within_errors(moments, COVARIANCE)
    assert (moments.std(0) / len(moments[0]) ** 0.5 < 0.3 * SCALES[:, None] * SCALES).all()


def test_chains_accept_as_often_as_asked_for_and_agree(drawn, hmc):
    """Dual averaging ends slightly above .8; split R-hat is near 1 for converged and large for separate chains."""
    assert 0.8 < drawn.acceptance.mean() < 0.95  # .86 to .90 over 16 seeds
    assert drawn.acceptance.min() > 0.5
    assert (hmc.split_r_hat(drawn.theta) < 1.05).all()
    apart = drawn.theta + 10 * np.arange(32)[:, None]
    assert (hmc.split_r_hat(apart) > 5).all()


def test_a_chain_that_starts_where_it_is_steep_gets_away(hmc):
    """A common step size that suits the other chains would reject every move of this chain."""

    def density(theta):
        return -(theta**4).sum(-1) / 4, -(theta**3)

    start = np.ones((8, 10))
    start[0] = 1000.0
    drawn = hmc.sample(density, start, n_draws=200, n_warmup=200, path_length=1.0, rng=np.random.default_rng(6))
    assert np.abs(drawn.theta[:, 0]).max() < 5
    assert drawn.acceptance.min() > 0.5
    assert (hmc.split_r_hat(drawn.theta) < 1.1).all()


def test_a_drift_shows_in_split_r_hat(hmc):
    """Chains with a common drift agree with each other, but not with their own halves."""
    drifting = np.linspace(0, 5, 200)[:, None, None] + np.random.default_rng(1).normal(size=(200, 4, 1))
    assert hmc.split_r_hat(drifting) > 1.5


def test_moments_where_the_density_is_not_gaussian(hmc):
    """Logistic density: variance π²/3. Two modes with a low barrier: both have the correct mass."""
    rng = np.random.default_rng(2)

    def draws(density):
        start = rng.normal(size=(32, 1))
        return hmc.sample(density, start, n_draws=400, n_warmup=100, path_length=3.0, rng=rng).theta

    theta = draws(by_autograd(lambda theta: (-theta - 2 * torch.nn.functional.softplus(-theta)).sum(-1)))
    assert within_errors((theta**2).mean(0), math.pi**2 / 3)
    lumps, shares = torch.tensor([-1.5, 1.5]).double(), torch.tensor([0.25, 0.75]).double()
    theta = draws(by_autograd(lambda theta: torch.logsumexp(shares.log() - (theta - lumps).square() / 2, -1)))
    assert within_errors(theta.mean(0), 0.75)


def test_a_step_into_nowhere_is_refused(hmc):
    """Paths of a single step stay inside the interval where the density is not NaN."""

    def density(theta):
        with np.errstate(invalid="ignore"):
            return np.sqrt(1 - theta[:, 0] ** 2) * 0, 0 * theta

    rng = np.random.default_rng(3)
    theta = hmc.sample(density, np.zeros((32, 1)), n_draws=400, n_warmup=100, path_length=0.05, rng=rng).theta
    assert np.abs(theta).max() < 1
    assert within_errors((theta**2).mean(0), 1 / 3)


def test_the_energy_error_is_of_second_order_and_time_runs_back(hmc):
    """Halving the step size quarters the error; reversing the momentum leads back to the start."""
    rng = np.random.default_rng(4)
    theta, momentum = MEAN + rng.normal(size=(8, 3)) * SCALES, rng.normal(size=(8, 3))
    value, gradient = gaussian(theta)
    before, errors = value - (momentum**2).sum(-1) / 2, []
    for n_steps in (50, 100, 200):
        end = hmc.leapfrog(gaussian, theta, momentum, gradient, np.full(8, 2.0 / n_steps), n_steps)
        errors.append(np.abs(end[2] - (end[1] ** 2).sum(-1) / 2 - before).mean())
        back = hmc.leapfrog(gaussian, end[0], -end[1], end[3], np.full(8, 2.0 / n_steps), n_steps)
        np.testing.assert_allclose(back[0], theta, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(-back[1], momentum, rtol=1e-9, atol=1e-9)
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.1)


def test_the_density_of_experiment_4_is_the_posterior_of_its_net(monkeypatch):
    """HMC samples the posterior of the Laplace approximation: same function, same gradient at the mode."""
    monkeypatch.syspath_prepend(str(PAPERS))
    experiment = importlib.import_module("plot_04_cubic_hmc")
    X, y = experiment.points(20, np.random.default_rng(3))
    x, target = X[:, 0], (y - y.mean()) / y.std()
    density = experiment.log_posterior(x, target, experiment.NOISE / y.std())
    model = experiment.trained(density, X, y, seed=0, n_starts=1)
    theta = experiment.weights_of(model)
    mean = y.mean() + y.std() * experiment.outputs(theta[None], x)[0]
    np.testing.assert_allclose(mean, model.predict(X), rtol=1e-9)
    gradient = np.linalg.norm(density(theta[None])[1])
    assert gradient == pytest.approx(len(y) * model.gradient_norm_, rel=1e-6)


def test_the_gradient_of_experiment_4_is_that_of_its_density(monkeypatch):
    """The analytic gradient agrees with central differences of the density."""
    monkeypatch.syspath_prepend(str(PAPERS))
    experiment = importlib.import_module("plot_04_cubic_hmc")
    rng = np.random.default_rng(5)
    density = experiment.log_posterior(rng.uniform(-4, 4, 20), rng.normal(size=20), 0.12)
    theta, direction = rng.normal(size=(2, 4, 78))
    ahead, behind = (density(theta + sign * 1e-5 * direction)[0] for sign in (1, -1))
    np.testing.assert_allclose((density(theta)[1] * direction).sum(-1), (ahead - behind) / 2e-5, rtol=1e-6)
