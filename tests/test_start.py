"""Nets that gradients train side by side before their exact steps: fits of 301 to 949 rows."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from sklearn_laplace import LaplaceRegressor, _map
from sklearn_laplace._progress import Task
from sklearn_laplace._skorch import TrainingRows
from sklearn_laplace._training.batched import Encoded, Stacked
from sklearn_laplace._training.start import begun, gradient_start, starts_by_gradients
from sklearn_laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.nets import MLP
from sklearn_laplace.network import Network

RNG = np.random.default_rng(0)
N = 400
X = RNG.normal(size=(N, 3))
Y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
NOISY = Y + 0.3 * RNG.normal(size=N)


def nets(n: int = 3) -> list[MLP]:
    return [MLP(3, 1, (20,), input_mean=X.mean(0), input_scale=X.std(0), seed=seed).double() for seed in range(n)]


def rows_of(y: np.ndarray, weights: np.ndarray | None = None) -> TrainingRows:
    targets = (y - y.mean()) / y.std()
    parts = X, targets[:, None], np.ones(N) if weights is None else weights
    return TrainingRows(*(torch.from_numpy(part) for part in parts))


HELD_OUT = [torch.arange(0, N, 2), torch.arange(1, N, 2)]


def plan_of(**options: object) -> _map.Plan:
    return _map.Plan(
        LIKELIHOODS["gaussian"](),
        lambda network: network.scalar_prior(),
        None,
        None,
        lambda fit, hyper: hyper,
        natural_start=True,
        memory=None,
        many=True,
        **options,
    )


def network_of(module: MLP) -> Network:
    return Network.trace(copy.deepcopy(module), torch.from_numpy(X))


def outputs(module: MLP, state: dict) -> torch.Tensor:
    trained = copy.deepcopy(module)
    trained.load_state_dict(state)
    with torch.no_grad():
        return trained(torch.from_numpy(X))[:, 0]


@pytest.mark.parametrize("shift", [None, [0.7]])
def test_nets_side_by_side_are_the_nets(shift):
    modules = [MLP(3, 1, (5, 4), output_shift=shift, seed=seed) for seed in range(3)]
    x = torch.from_numpy(X).float()
    stacked = Stacked(modules, learns_scales=False)
    together = stacked(*Encoded.of(modules[0], x, torch.float32).taken(torch.arange(N)))
    torch.testing.assert_close(together, torch.stack([module(x) for module in modules]))


def test_the_dispersion_is_the_error_of_rows_that_a_net_has_not_seen():
    modules, rows = nets(), rows_of(NOISY, RNG.uniform(0.5, 2.0, size=N))
    found = gradient_start(modules, rows, HELD_OUT, 1.0, 0)
    squares = [
        rows.weights[part] * (outputs(module, state)[part] - rows.targets[part, 0]).square()
        for module, state, part in zip(modules[1:], found.states[1:], HELD_OUT, strict=True)
    ]
    weights = torch.cat([rows.weights[part] for part in HELD_OUT])
    assert found.dispersion == pytest.approx(float(torch.cat(squares).sum() / weights.sum()), rel=1e-5)
    assert found.dispersion < 0.35  # .07 of it is noise; of the mean it would be 1


def test_no_net_learns_from_its_rows_held_out():
    """With other targets of those rows it is the same net; the one that has seen them is another."""
    rows = rows_of(NOISY)
    moved = rows.targets.clone()
    moved[HELD_OUT[0]] = 100.0
    plain, other = (
        gradient_start(nets(), replace(rows, targets=targets), HELD_OUT, 1.0, 0) for targets in (rows.targets, moved)
    )
    for name, value in plain.states[1].items():
        torch.testing.assert_close(other.states[1][name], value, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(other.states[2]["2.weight"], plain.states[2]["2.weight"], atol=0.01)


def test_a_stronger_prior_makes_smaller_weights():
    weak, strong = (gradient_start(nets(), rows_of(NOISY), HELD_OUT, prior, 0) for prior in (0.1, 100.0))
    sizes = [float(found.states[0]["5.weight"].square().sum()) for found in (weak, strong)]
    assert sizes[1] < 0.5 * sizes[0]


def test_targets_with_noise_begin_by_gradients():
    modules, rows = nets(), rows_of(NOISY)
    network, before = network_of(modules[0]), copy.deepcopy(modules[0].state_dict())
    following = begun(modules, network, rows, HELD_OUT, plan_of(), 0, Task())
    assert following.is_noisy
    assert following.first_dispersion == pytest.approx(_map.BEGUN_DISPERSION * following.begun)
    assert not torch.equal(modules[0].state_dict()["2.weight"], before["2.weight"])


def test_targets_almost_without_noise_start_from_initial_weights():
    smooth = X[:, 0] + 0.1 * X[:, 1]
    modules, rows, plan = nets(), rows_of(smooth), plan_of()
    before = copy.deepcopy(modules[0].state_dict())
    assert begun(modules, network_of(modules[0]), rows, HELD_OUT, plan, 0, Task()) is plan
    for name, value in before.items():
        torch.testing.assert_close(modules[0].state_dict()[name], value, rtol=0, atol=0)


def test_only_many_rows_with_normal_noise_begin_by_gradients():
    network, rows = network_of(nets()[0]), rows_of(NOISY)
    assert starts_by_gradients(network, rows, 1, plan_of())
    assert not starts_by_gradients(network, rows, 1, replace(plan_of(), many=False))
    assert not starts_by_gradients(network, rows, 1, replace(plan_of(), likelihood=LIKELIHOODS["poisson"]()))
    several = replace(plan_of(), prior=lambda network: network.tensor_prior())
    assert not starts_by_gradients(network, rows, 1, several)


@pytest.mark.parametrize("options", [{}, {"n_bins": None, "prior_precision": 2.0}], ids=["default", "given prior"])
def test_a_fit_that_begins_by_gradients_is_near_the_function(options):
    """Two fits are the same but for rounding; no warning; the mean is near the function, and intervals cover it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, again = (LaplaceRegressor(random_state=0, **options).fit(X, NOISY) for _ in range(2))
    fresh = np.random.default_rng(1).normal(size=(1000, 3))
    truth = np.sin(2 * fresh[:, 0]) + fresh[:, 1] * fresh[:, 2]
    mean, std = model.predict(fresh, return_std=True)
    np.testing.assert_allclose(again.predict(fresh), mean, rtol=1e-8)
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.45  # the truth has a standard deviation of 1.2
    y = truth + 0.3 * np.random.default_rng(2).normal(size=1000)
    assert 0.85 < (np.abs(y - mean) < 1.645 * std).mean() < 0.96
