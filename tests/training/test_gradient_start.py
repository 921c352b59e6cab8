"""First-order training of all nets in one batch, the start of the exact second-order steps."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace._host.rows import TrainingRows
from sklearn_laplace._runtime.budget import SMALL_ROWS
from sklearn_laplace._training.batches import Encoded
from sklearn_laplace._training.gradient_start import gradient_start, may_start_by_gradients
from sklearn_laplace._training.plan import BEGUN_DISPERSION, NOISELESS, Plan, WarmStart
from sklearn_laplace._training.stacked import Stacked
from sklearn_laplace._training.train import begin
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.network import Network, trace
from sklearn_laplace.nets import MLP

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


def plan_of(**options: object) -> Plan:
    return Plan(
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
    return trace(copy.deepcopy(module), torch.from_numpy(X))


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
    start = gradient_start(modules, rows, HELD_OUT, 1.0, 0)
    squares = [
        rows.weights[part] * (outputs(module, state)[part] - rows.targets[part, 0]).square()
        for module, state, part in zip(modules[1:], start.states[1:], HELD_OUT, strict=True)
    ]
    weights = torch.cat([rows.weights[part] for part in HELD_OUT])
    assert start.dispersion == pytest.approx(float(torch.cat(squares).sum() / weights.sum()), rel=1e-5)
    assert start.dispersion < 0.35  # 0.07 of it is noise; a constant prediction would have 1


def test_no_net_learns_from_its_rows_held_out():
    """Other targets of the held-out rows leave the net unchanged; the net trained on these rows changes."""
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
    sizes = [float(start.states[0]["5.weight"].square().sum()) for start in (weak, strong)]
    assert sizes[1] < 0.5 * sizes[0]


ONE_KIND = {"n_bins": None, "n_members": 2, "random_state": 0}


def fit_and_starts(X: np.ndarray, y: np.ndarray) -> tuple[LaplaceRegressor, list[WarmStart]]:
    """Fitted model, and the start points that its fit got from first-order training."""
    starts = []

    def spied(*args):
        starts.append(begin(*args))
        return starts[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sklearn_laplace._ensemble.fit.begin", spied)
        return LaplaceRegressor(**ONE_KIND).fit(X, y), starts


@pytest.fixture(scope="module")
def noisy() -> tuple[LaplaceRegressor, list[WarmStart]]:
    return fit_and_starts(X, NOISY)


def test_targets_with_noise_begin_by_gradients(noisy):
    """One net of all rows and three cross-fitted ones; the exact steps continue from there."""
    model, (start,) = noisy
    assert start.by_gradients and start.dispersion > NOISELESS
    mode = model._ensemble.first.fit.theta.numpy()
    assert [len(start.theta), *map(len, start.folds)] == [len(mode)] * 4
    assert np.linalg.norm(mode - start.theta) < np.linalg.norm(start.theta)


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ModeWarning")
def test_targets_almost_without_noise_start_from_initial_weights():
    _, (start,) = fit_and_starts(X[:310], X[:310, 0] + 0.1 * X[:310, 1])
    assert start.dispersion < NOISELESS
    assert start.theta is None and start.folds == ()


def test_a_start_by_gradients_leaves_prior_and_noise_open(noisy):
    """The initial dispersion is a fraction of the held-out squared error; no prior precision is carried over."""
    _, starts = noisy
    plan = plan_of(begun=starts[0].dispersion)
    assert plan.again is None and plan.is_noisy
    assert plan.first_dispersion == pytest.approx(BEGUN_DISPERSION * starts[0].dispersion)


def test_few_rows_start_from_initial_weights():
    _, starts = fit_and_starts(X[:SMALL_ROWS], NOISY[:SMALL_ROWS])
    assert starts == []


def test_only_normal_noise_begins_by_gradients():
    network = network_of(nets()[0])
    assert may_start_by_gradients(network, plan_of())
    assert not may_start_by_gradients(network, replace(plan_of(), likelihood=LIKELIHOODS["poisson"]()))
    assert not may_start_by_gradients(network, replace(plan_of(), prior=lambda network: network.tensor_prior()))


@pytest.mark.parametrize(
    ("n", "options"),
    [(310, {}), (N, {"n_bins": None, "n_members": 2, "prior_precision": 2.0})],
    ids=["default", "given prior"],
)
def test_a_fit_that_begins_by_gradients_is_near_the_function(n, options):
    """A repeated fit is equal up to rounding; no warning; the mean is close to the truth and intervals cover it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, again = (LaplaceRegressor(random_state=0, **options).fit(X[:n], NOISY[:n]) for _ in range(2))
    fresh = np.random.default_rng(1).normal(size=(1000, 3))
    truth = np.sin(2 * fresh[:, 0]) + fresh[:, 1] * fresh[:, 2]
    mean, std = model.predict(fresh, return_std=True)
    np.testing.assert_allclose(again.predict(fresh), mean, rtol=1e-8)
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.45  # the function has a standard deviation of 1.2
    y = truth + 0.3 * np.random.default_rng(2).normal(size=1000)
    assert 0.85 < (np.abs(y - mean) < 1.645 * std).mean() < 0.96
