"""First-order training of all nets in one batch, the start of the exact second-order steps."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from shortened import few_steps

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace._table.limits import SMALL_ROWS
from sklearn_laplace._training.batches import Encoded
from sklearn_laplace._training.fit_map import gradient_start, started, starts_by_gradients
from sklearn_laplace._training.plan import BEGUN_DISPERSION, NOISELESS, Plan
from sklearn_laplace._training.progress import Steps
from sklearn_laplace._training.stacked import Stacked
from sklearn_laplace.errors import ModeWarning
from sklearn_laplace.laplace.fit import TrainingRows
from sklearn_laplace.laplace.network import Network, trace
from sklearn_laplace.nets import MLP
from sklearn_laplace.options.resolve import resolve
from sklearn_laplace.options.variants import expanded

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


SEEN = torch.ones(2, N, dtype=torch.float64)
"""Each net is trained on one half of the rows."""
SEEN[0, ::2] = SEEN[1, 1::2] = 0


def plan_of(**options: object) -> Plan:
    return Plan(resolve("regressor", expanded(LaplaceRegressor().get_params(deep=False)) | options), None, None, True)


def network_of(module: MLP) -> Network:
    return trace(copy.deepcopy(module), torch.from_numpy(X))


def outputs(module: MLP) -> torch.Tensor:
    with torch.no_grad():
        return module(torch.from_numpy(X))[:, 0]


def trained(rows: TrainingRows, prior: float = 1.0, seen: torch.Tensor = SEEN) -> tuple[list[MLP], float | None]:
    modules = nets(len(seen))
    return modules, gradient_start(modules, rows, seen, prior, 0, Steps())


@pytest.mark.parametrize("shift", [None, [0.7]])
def test_nets_side_by_side_are_the_nets(shift):
    modules = [MLP(3, 1, (5, 4), output_shift=shift, seed=seed) for seed in range(3)]
    x = torch.from_numpy(X).float()
    stacked = Stacked(modules, learns_scales=False)
    together = stacked(*Encoded.of(modules[0], x, torch.float32).taken(torch.arange(N)))
    torch.testing.assert_close(together, torch.stack([module(x) for module in modules]))


def test_the_error_is_that_of_rows_that_a_net_has_not_seen():
    rows = rows_of(NOISY, RNG.uniform(0.5, 2.0, size=N))
    modules, error = trained(rows)
    unseen = (1 - SEEN) * rows.weights
    squares = torch.stack([outputs(module) - rows.targets[:, 0] for module in modules]).square()
    assert error == pytest.approx(float((unseen * squares).sum() / unseen.sum()), rel=1e-5)
    assert error < 0.35  # 0.07 of it is noise; a constant prediction would have 1


def test_a_net_of_all_rows_is_judged_by_its_copy():
    rows, seen = rows_of(NOISY), torch.ones(2, N, dtype=torch.float64)
    seen[1, ::4] = 0
    (_, other), error = trained(rows, seen=seen)
    squares = (outputs(other) - rows.targets[:, 0]).square()
    assert error == pytest.approx(float(squares[::4].mean()), rel=1e-5)


def test_no_net_learns_from_its_rows_held_out():
    """Other targets of the held-out rows leave the net unchanged; the net trained on these rows changes."""
    rows = rows_of(NOISY)
    moved = rows.targets.clone()
    moved[::2] = 100.0
    (plain, _), (other, _) = (trained(replace(rows, targets=targets)) for targets in (rows.targets, moved))
    for name, value in plain[0].state_dict().items():
        torch.testing.assert_close(other[0].state_dict()[name], value, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(other[1].state_dict()["2.weight"], plain[1].state_dict()["2.weight"], atol=0.01)


def test_a_stronger_prior_makes_smaller_weights():
    (weak, *_), (strong, *_) = (trained(rows_of(NOISY), prior)[0] for prior in (0.1, 100.0))
    assert strong.state_dict()["5.weight"].square().sum() < 0.5 * weak.state_dict()["5.weight"].square().sum()


def test_targets_almost_without_noise_keep_initial_weights():
    modules, error = trained(rows_of(X[:, 0] + 0.1 * X[:, 1]))
    assert error is None
    for module, new in zip(modules, nets(2), strict=True):
        torch.testing.assert_close(outputs(module), outputs(new))


def test_a_start_by_gradients_leaves_prior_and_noise_open():
    """The initial dispersion is a fraction of the squared error; no prior precision is carried over."""
    modules = nets(2)
    plan = started(modules, network_of(modules[0]), rows_of(NOISY), SEEN, plan_of(), 0, Steps())
    assert plan.again is None and plan.is_noisy and plan.begun > NOISELESS
    assert plan.first_dispersion == pytest.approx(BEGUN_DISPERSION * plan.begun)


def test_only_normal_noise_of_many_rows_begins_by_gradients():
    network, rows = network_of(nets()[0]), rows_of(NOISY)
    assert starts_by_gradients(network, rows, plan_of())
    assert not starts_by_gradients(network, rows.taken(torch.arange(SMALL_ROWS)), plan_of())
    assert not starts_by_gradients(network, rows, plan_of(likelihood="poisson"))
    assert not starts_by_gradients(network, rows, plan_of(prior_structure="tensor"))
    linear = trace(MLP(3, 1, (), input_mean=X.mean(0), input_scale=X.std(0)).double(), torch.from_numpy(X))
    assert not starts_by_gradients(linear, rows, plan_of())


@pytest.mark.parametrize(
    ("n", "options"),
    [(310, {}), (N, {"n_bins": None, "n_members": 2, "prior_precision": 2.0})],
    ids=["default", "given prior"],
)
def test_a_fit_that_begins_by_gradients_is_near_the_function(n, options):
    """A repeated fit is equal up to rounding; no warning; the mean is close to the truth and intervals cover it.

    Both fits that are compared have few steps of each kind.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = LaplaceRegressor(random_state=0, **options).fit(X[:n], NOISY[:n])
    with few_steps(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ModeWarning)
        once, again = (LaplaceRegressor(random_state=0, **options).fit(X[:n], NOISY[:n]) for _ in range(2))
    fresh = np.random.default_rng(1).normal(size=(1000, 3))
    truth = np.sin(2 * fresh[:, 0]) + fresh[:, 1] * fresh[:, 2]
    np.testing.assert_allclose(again.predict(fresh), once.predict(fresh), rtol=1e-8)
    mean, std = model.predict(fresh, return_std=True)
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.45  # the function has a standard deviation of 1.2
    y = truth + 0.3 * np.random.default_rng(2).normal(size=1000)
    assert 0.85 < (np.abs(y - mean) < 1.645 * std).mean() < 0.96
