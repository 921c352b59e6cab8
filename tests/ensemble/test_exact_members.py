"""Default ensembles: members trained in one batch, and members trained by exact second-order steps."""

from __future__ import annotations

import functools
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from sklearn.base import clone

from sklearn_laplace import LaplaceRegressor, load, save
from sklearn_laplace._approximation.calibration import HeldOutDensities, HeldOutRepeats
from sklearn_laplace._ensemble import fit as ensemble_fit
from sklearn_laplace._ensemble import parts as ensemble_parts
from sklearn_laplace._ensemble import train_members as ensemble_train
from sklearn_laplace._ensemble.weights import of_kinds
from sklearn_laplace._host.rows import TrainingRows
from sklearn_laplace._training.batched import train_stacked
from sklearn_laplace._training.batches import Encoded
from sklearn_laplace._training.losses import Squares
from sklearn_laplace._training.recipe import Schedule, recipes_for
from sklearn_laplace._training.stacked import Stacked
from sklearn_laplace.errors import NotPositiveDefiniteError
from sklearn_laplace.laplace.selection import HeldOutErrors
from sklearn_laplace.nets import TableMLP


def waves(n: int, seed: int = 0, noise: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    X = random.uniform(-2, 2, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + noise * random.normal(size=n)


def zigzag(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Four periods of a triangle wave, which a net on plain numbers learns slowly."""
    random = np.random.default_rng(seed)
    X = random.uniform(size=(n, 2))
    return X, np.abs(4 * X[:, 0] % 1 - 0.5) + 0.02 * random.normal(size=n)


@pytest.fixture(scope="module")
def fitted() -> LaplaceRegressor:
    return LaplaceRegressor(random_state=0).fit(*waves(150))


# ---------------------------------------------------------------------- members


def test_nets_that_have_seen_all_rows_come_first(fitted):
    """One net trained by exact steps on all rows, then repeats of eight members that hold out an eighth each."""
    ensemble = fitted._ensemble
    held_out = [0 if member.unseen is None else len(member.unseen) for member in ensemble.members]
    n_repeats = len(held_out) // 8
    assert n_repeats >= 1
    assert held_out == [0, *[19, 19, 19, 19, 19, 19, 18, 18] * n_repeats]
    assert ensemble.weights.sum() == pytest.approx(1)
    assert ensemble.weights[0] >= ensemble_parts.LEAST_EXACT - 1e-12
    assert fitted.mode_distance_ < 1, "the estimator's attributes are those of a net at its mode"


@pytest.mark.parametrize("n", [20, 39])
def test_few_rows_have_nets_of_exact_steps_alone(n):
    model = LaplaceRegressor(random_state=0).fit(*waves(n))
    assert all(member.unseen is None for member in model._ensemble.members)


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ModeWarning")
@pytest.mark.parametrize("n", [150, 310])
def test_targets_almost_without_noise_have_nets_of_exact_steps_alone(n):
    model = LaplaceRegressor(random_state=0).fit(*waves(n, noise=0.001))
    assert all(member.unseen is None for member in model._ensemble.members)
    X, y = waves(500, seed=1, noise=0.0)
    assert np.sqrt(np.mean((model.predict(X) - y) ** 2)) < 0.05


def test_nets_whose_exact_steps_are_dear_are_left_out(monkeypatch):
    monkeypatch.setattr("sklearn_laplace._ensemble.encodings.MOST_ADDED", 1e3)
    model = LaplaceRegressor(random_state=0).fit(*waves(150))
    assert all(member.unseen is not None for member in model._ensemble.members)


def test_a_net_that_cannot_be_trained_is_left_out(monkeypatch):
    """The members trained in one batch remain; "auto" promises no number of members, so there is no warning."""

    def failing(*args, **options):
        raise NotPositiveDefiniteError("a matrix is not positive definite.")

    monkeypatch.setattr(ensemble_fit, "fit_member", failing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = LaplaceRegressor(random_state=0).fit(*waves(150))
    assert all(member.unseen is not None for member in model._ensemble.members)


@pytest.mark.parametrize(("rows", "expected"), [(waves, {None}), (zigzag, {8})])
def test_in_place_of_members_the_kind_that_errs_less_is_trained(rows, expected, monkeypatch):
    """Plain numbers, unless bins err much less: binned nets are overconfident far from the rows."""
    monkeypatch.setattr(ensemble_train, "PILOT_NOISELESS", 1.0)
    model = LaplaceRegressor(random_state=0).fit(*rows(310))
    assert {member.n_bins for member in model._ensemble.members} == expected


def test_a_given_number_of_pieces_is_that_of_all():
    model = LaplaceRegressor(random_state=0, n_bins=5).fit(*waves(310))
    assert {member.n_bins for member in model._ensemble.members} == {5}


# ---------------------------------------------------------------------- weights


def test_weights_are_those_of_largest_density_of_held_out_rows(monkeypatch):
    """Compared with a direct search over the weight, then over the common variance factor."""
    calls = []

    def spied(kinds, weights):
        calls.append((kinds, weights))
        return of_kinds(kinds, weights)

    monkeypatch.setattr(ensemble_parts, "of_kinds", spied)
    monkeypatch.setattr(ensemble_parts, "LEAST_EXACT", 0.0)
    counts = np.random.default_rng(5).uniform(0.5, 2, 150)
    model = LaplaceRegressor(random_state=0).fit(*waves(150, noise=0.4), sample_weight=counts)
    (((other, one), weights),), ensemble = calls, model._ensemble
    first, second = (np.exp(kind.scaled(1.0)) for kind in (one, other))

    def loss(share):
        return -np.average(np.log((1 - share) * first + share * second), weights=weights)

    share = float(ensemble.weights[[member.unseen is None for member in ensemble.members]].sum())
    best = minimize_scalar(loss, bounds=(0, 1), method="bounded").x
    assert 0.02 < best < 0.98, "the optimum has to be interior for the comparison to mean anything"
    assert share == pytest.approx(best, abs=1e-2)
    grid = np.linspace(0.25, 1, 400)
    along = [
        np.average(np.log((1 - share) * np.exp(one.scaled(f)) + share * np.exp(other.scaled(f))), weights=weights)
        for f in grid
    ]
    assert ensemble.factor == pytest.approx(grid[int(np.argmax(along))], abs=4e-3)


@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_densities_are_those_of_a_mixture_of_normals(spread):
    """Two partitions into folds; the log noise variance is normal, integrated here on a fine grid."""
    random = np.random.default_rng(3)
    errors, variance = random.normal(size=(2, 6, 1)), random.uniform(0.1, 0.5, size=(2, 6, 1))
    level, known = random.uniform(0.5, 2.0, size=(1, 6, 1)), random.uniform(0.1, 0.4, size=(6, 1))
    shares = np.array([0.3, 0.7])
    noise = np.repeat(level, 2, 0)
    tensors = (torch.from_numpy(part) for part in (errors, variance, noise, known, np.ones(6), shares))
    logs = HeldOutDensities(HeldOutRepeats(*tensors), spread, 0.8, 1.3).scaled(0.5)
    nodes = np.linspace(-8, 8, 4001)
    weights = norm.pdf(nodes) * (nodes[1] - nodes[0])
    for row in range(6):
        std = math.sqrt(known[row, 0] + spread**2)
        total = 0.4 * (variance[:, row] + noise[:, row] * np.exp(std * nodes - spread**2 / 2))
        density = norm.pdf(errors[:, row], scale=np.sqrt(total)) @ weights
        assert logs[row] == pytest.approx(math.log(shares @ density), abs=2e-3)


def test_densities_of_another_net_have_its_errors_and_their_own_best_factor():
    random = np.random.default_rng(4)
    uniform = (torch.from_numpy(random.uniform(0.5, 1, size=(2, 9, 1))) for _ in range(3))
    repeats = HeldOutRepeats(*uniform, None, *parts(9))
    chosen = np.array([0, 2, 3, 5, 6, 7, 8, 10, 11])
    errors, variance = random.normal(size=(12, 1)), random.uniform(0.1, 0.5, size=(12, 1))
    held_out = HeldOutErrors(*(torch.from_numpy(part) for part in (errors, variance, np.ones((12, 1)), np.ones(12))))
    densities = HeldOutDensities(repeats, 0.0, 1.0, 0.5).of_net(held_out, 0.25, chosen)
    total = variance[chosen] + 0.5 * repeats.noise[0].numpy()

    def loss(log_factor):
        return -norm.logpdf(errors[chosen], scale=np.sqrt(np.exp(log_factor) * total)).sum()

    best = math.exp(minimize_scalar(loss, bounds=(-3, 1.5), method="bounded").x)
    expected = norm.logpdf(errors[chosen], scale=np.sqrt(0.7 * best * total))[:, 0]
    np.testing.assert_allclose(densities.scaled(0.7), expected, atol=1e-3)


def parts(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(n, dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)


# ---------------------------------------------------------------------- training in one batch


def nets(activations: list[str]) -> list[TableMLP]:
    encoding = {"input_edges": [[-2.0, 0.0, 2.0]] * 2, "input_quartiles": ([0.0, 0.0], [1.0, 1.0])}
    return [
        TableMLP([0, 0], [False, False], 1, (5, 4), activation=activation, seed=seed, **encoding).double()
        for seed, activation in enumerate(activations)
    ]


def test_repeats_that_train_together_train_as_each_of_them_alone():
    """Activation, learning rate and weight decay differ between partitions; the row order is the same."""
    X, y = waves(60)
    rows = TrainingRows(torch.from_numpy(X), torch.from_numpy(y)[:, None], torch.ones(60, dtype=torch.float64))
    seen = torch.ones(4, 60)
    for k in range(4):
        seen[k, k::4] = 0
    schedules = [Schedule(30, batch_size=16, most_further=0), Schedule(30, 16, 0.06, 0.01, most_further=0)]
    modules, priors = nets(["silu", "silu", "gelu", "gelu"]), [0.1, 0.2, 0.3, 0.4]
    together = Stacked(modules, torch.float64)
    outputs, _ = train_stacked(
        together, Squares(), rows, seen, schedules, seed=0, prior=priors, noise_of=lambda outputs: None
    )
    for k, schedule in enumerate(schedules):
        part = slice(2 * k, 2 * k + 2)
        alone = Stacked(modules[part], torch.float64)
        expected, _ = train_stacked(
            alone, Squares(), rows, seen[part], [schedule], seed=0, prior=priors[part], noise_of=lambda outputs: None
        )
        torch.testing.assert_close(outputs[part], expected, rtol=1e-9, atol=1e-9)
        for state, other in zip(together.written()[part], alone.written(), strict=True):
            for name, value in other.items():
                torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-9)


def test_stacked_nets_of_two_activations_say_what_each_of_them_says():
    modules, x = nets(["silu", "gelu", "gelu"]), torch.from_numpy(waves(20)[0])
    stacked = Stacked(modules, torch.float64)
    outputs = stacked(*Encoded.of(modules[0], x, torch.float64).taken(torch.arange(20)))
    torch.testing.assert_close(outputs, torch.stack([module(x) for module in modules]))


def test_few_rows_have_one_program_and_many_have_two():
    for n, n_programs in ((100, 1), (1000, 1), (1001, 2), (10_000, 2)):
        assert len({recipe.program for recipe in recipes_for(n, 10)}) == n_programs


# ---------------------------------------------------------------------- the fitted estimator


def test_a_gap_stays_a_gap_where_pieces_are_more_accurate():
    """Binned nets are overconfident in a gap; the net with exact steps, of weight ``LEAST_EXACT`` or more, is not."""
    for curve in (lambda x: x**3 / 20, np.abs):
        random = np.random.default_rng(0)
        x = np.concatenate([random.uniform(-4, -1, 100), random.uniform(1.5, 4, 100)])
        model = LaplaceRegressor(random_state=0).fit(x[:, None], curve(x) + 0.2 * random.normal(size=200))
        on_data = model.predict_std(x[:, None], kind="epistemic").mean()
        assert model.predict_std([[0.25]], kind="epistemic")[0] > 2 * on_data


def test_files_and_pickles_keep_both(fitted, tmp_path):
    X = waves(30, seed=2)[0]
    save(fitted, tmp_path / "model.safetensors")
    for again in (load(tmp_path / "model.safetensors"), pickle.loads(pickle.dumps(fitted))):
        for one, other in zip(fitted.predict(X, return_std=True), again.predict(X, return_std=True), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-10)


def test_a_posterior_made_anew_keeps_what_held_out_rows_have_chosen(fitted):
    X, model = waves(30, seed=2)[0], pickle.loads(pickle.dumps(fitted))
    std = model.predict_std(X)
    model.refit_laplace(temperature=2.0)
    assert not np.allclose(model.predict_std(X), std, rtol=1e-6)
    model.refit_laplace(temperature=1.0)
    np.testing.assert_allclose(model.predict_std(X), std, rtol=1e-8)


def test_a_temperature_applies_to_all_members(fitted):
    """Given to the fit or to a new posterior of it, with the same result; hyperparameters are selected without it."""
    X, cold = waves(30, seed=2)[0], clone(fitted).set_params(temperature=0.01).fit(*waves(150))
    assert {member.hyper.temperature for member in cold._ensemble.members} == {0.01}
    again = pickle.loads(pickle.dumps(fitted)).refit_laplace(temperature=0.01)
    for kind in ("epistemic", "total"):
        np.testing.assert_allclose(cold.predict_std(X, kind=kind), again.predict_std(X, kind=kind), rtol=1e-9)
    assert (cold.predict_std(X, kind="epistemic") < fitted.predict_std(X, kind="epistemic")).all()


@functools.cache
def of_seed(seed: int) -> LaplaceRegressor:
    return LaplaceRegressor(random_state=0).fit(*waves(200, seed=seed))


def test_intervals_cover():
    covered = []
    for seed in range(3):
        model = of_seed(seed)
        X, y = waves(1000, seed=10 + seed)
        low, high = model.predict_interval(X)[1].T
        covered.append(np.mean((low <= y) & (y <= high)))
    assert 0.86 < np.mean(covered) < 0.97


def test_the_same_rows_in_another_order_are_the_same_model(fitted):
    (X, y), order = waves(150), np.random.default_rng(1).permutation(150)
    permuted = LaplaceRegressor(random_state=0).fit(X[order], y[order])
    X_new = waves(50, seed=3)[0]
    np.testing.assert_allclose(permuted.predict(X_new), fitted.predict(X_new), atol=0.05)


def test_small_fits_stay_on_one_thread(monkeypatch):
    """On a busy machine, parallel regions of small matrix products wait for threads without a core."""
    n_threads = {}
    training, approximation = ensemble_train.train_stacked, ensemble_fit.approximate_jointly

    def trained(*args, **options):
        n_threads["training"] = torch.get_num_threads()
        return training(*args, **options)

    def approximated(*args):
        n_threads["posterior"] = torch.get_num_threads()
        return approximation(*args)

    monkeypatch.setattr(ensemble_train, "train_stacked", trained)
    monkeypatch.setattr(ensemble_fit, "approximate_jointly", approximated)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = LaplaceRegressor(random_state=0).fit(*waves(100))
    finally:
        torch.set_num_threads(before)
    assert n_threads == {"training": 1, "posterior": 1}
    assert all(member.is_small for member in model._ensemble.members)
