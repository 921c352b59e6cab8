"""The sampler of experiment 4 against densities whose moments are known: a reference has to be right itself."""

import importlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch

PAPERS = Path(__file__).parents[1] / "examples/3_papers"
SCALES = torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)
MEAN = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
CORRELATION = 0.9 * torch.ones(3, 3, dtype=torch.float64) + 0.1 * torch.eye(3, dtype=torch.float64)
COVARIANCE = SCALES[:, None] * CORRELATION * SCALES
PRECISION = torch.linalg.inv(COVARIANCE)


def gaussian(theta):
    centred = theta - MEAN
    return -(centred @ PRECISION * centred).sum(-1) / 2


@pytest.fixture
def hmc(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPERS))
    return importlib.import_module("hmc")


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def within_errors(values, expected):
    """Whether means over the chains (C, …) are within four of their own standard errors (32 chains)."""
    errors = values.std(0) / len(values) ** 0.5
    return bool(((values.mean(0) - expected).abs() < 4 * errors).all())


@pytest.fixture
def drawn(hmc):
    return hmc.sample(
        gaussian,
        start=5 * random(32, 3, seed=0),
        n_draws=400,
        n_warmup=150,
        path_length=2.0,
        generator=torch.Generator().manual_seed(1),
    )


def test_moments_of_a_correlated_gaussian(drawn):
    """From starts far outside; the tolerance is the spread of the chains themselves, and that is small."""
    centred = drawn.theta - MEAN
    moments = torch.einsum("ncp,ncq->cpq", centred, centred) / len(centred)
    assert drawn.theta.shape == (400, 32, 3)
    assert within_errors(drawn.theta.mean(0), MEAN)
    assert within_errors(moments, COVARIANCE)
    assert (moments.std(0) / len(moments) ** 0.5 < 0.1 * SCALES[:, None] * SCALES).all()


def test_chains_accept_as_often_as_asked_for_and_agree(drawn, hmc):
    """Dual averaging ends within .1 of .8; split R-hat of converged chains is near 1, of separate ones far above."""
    assert drawn.acceptance.mean() == pytest.approx(0.8, abs=0.1)
    assert drawn.acceptance.min() > 0.5
    assert (hmc.split_r_hat(drawn.theta) < 1.05).all()
    apart = drawn.theta + 10 * torch.arange(32)[:, None]
    assert (hmc.split_r_hat(apart) > 5).all()


def test_a_drift_shows_in_split_r_hat(hmc):
    """Chains that move together agree with each other, not with their own halves."""
    drifting = torch.linspace(0, 5, 200)[:, None, None] + random(200, 4, 1, seed=2)
    assert hmc.split_r_hat(drifting) > 1.5


def test_moments_where_the_density_is_not_gaussian(hmc):
    """Logistic: variance π²/3; a mixture of two lumps a barrier of 1 nat apart: both have their share."""
    theta = hmc.sample(
        lambda theta: (-theta - 2 * torch.nn.functional.softplus(-theta)).sum(-1),
        start=random(32, 1, seed=3),
        n_draws=400,
        n_warmup=100,
        path_length=3.0,
        generator=torch.Generator().manual_seed(4),
    ).theta
    assert within_errors(theta.square().mean(0), torch.tensor([math.pi**2 / 3], dtype=torch.float64))
    lumps = torch.tensor([-1.5, 1.5], dtype=torch.float64)
    shares = torch.tensor([0.25, 0.75], dtype=torch.float64)
    theta = hmc.sample(
        lambda theta: torch.logsumexp(shares.log() - (theta - lumps).square() / 2, -1),
        start=random(32, 1, seed=5),
        n_draws=400,
        n_warmup=100,
        path_length=2.0,
        generator=torch.Generator().manual_seed(6),
    ).theta
    assert within_errors(theta.mean(0), (shares @ lumps)[None])


def test_the_energy_error_is_of_second_order_and_time_runs_back(hmc):
    """Half the step, a quarter of the error over the same time; the momentum turned round leads to the start."""
    theta, momentum = MEAN + random(8, 3, seed=7) * SCALES, random(8, 3, seed=8)
    value, gradient = hmc.value_and_gradient(gaussian, theta)
    before = value - momentum.square().sum(-1) / 2
    errors = []
    for halvings in range(3):
        n_steps = 50 * 2**halvings
        end = hmc.leapfrog(gaussian, theta, momentum, gradient, 2.0 / n_steps, n_steps)
        errors.append((end[2] - end[1].square().sum(-1) / 2 - before).abs().mean())
        back = hmc.leapfrog(gaussian, end[0], -end[1], end[3], 2.0 / n_steps, n_steps)
        torch.testing.assert_close(back[0], theta, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(-back[1], momentum, rtol=1e-9, atol=1e-9)
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.1)


def test_the_density_of_experiment_4_is_the_posterior_of_its_net(monkeypatch):
    """HMC and the Laplace approximations have to speak of one posterior: same function, same mode."""
    monkeypatch.syspath_prepend(str(PAPERS))
    experiment = importlib.import_module("plot_04_cubic_hmc")
    X, y = experiment.points(20, np.random.default_rng(3))
    x, target = torch.from_numpy(X[:, 0]), torch.from_numpy((y - y.mean()) / y.std())
    log_density = experiment.log_posterior(x, target, experiment.NOISE / y.std())
    model = experiment.trained(log_density, X, y, seed=0, n_starts=1)
    theta = experiment.weights_of(model)
    found = y.mean() + y.std() * experiment.outputs(theta[None], x)[0]
    np.testing.assert_allclose(found, model.predict(X), rtol=1e-9)
    gradient, elsewhere = (
        importlib.import_module("hmc").value_and_gradient(log_density, point[None])[1].norm()
        for point in (theta, theta + 0.1)
    )
    assert gradient < 1e-3 * elsewhere
