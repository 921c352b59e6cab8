"""Default ensembles: members trained in one batch, and members trained by exact second-order steps."""

from __future__ import annotations

import math
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.base import clone

from sklearn_laplace import LaplaceRegressor, load, save
from sklearn_laplace._ensemble import exact_members, joint_members
from sklearn_laplace._ensemble import fit as ensemble_fit
from sklearn_laplace._ensemble import train_members as ensemble_train
from sklearn_laplace._ensemble.calibration import HeldOutRepeats
from sklearn_laplace._training.recipe import FOLDS_OF_MANY
from sklearn_laplace.errors import NotPositiveDefiniteError
from sklearn_laplace.laplace.fit import TrainingRows


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


def test_nets_with_exact_steps_come_first(fitted):
    """Four nets that hold out a quarter each, then repeats of eight members that hold out an eighth each."""
    ensemble = fitted._ensemble
    held_out = [len(member.unseen) for member in ensemble.members]
    n_repeats = (len(held_out) - FOLDS_OF_MANY) // 8
    assert n_repeats >= 1
    assert held_out == [38, 38, 37, 37, *[19, 19, 19, 19, 19, 19, 18, 18] * n_repeats]
    assert ensemble.weights.sum() == pytest.approx(1)
    assert ensemble.weights[:FOLDS_OF_MANY].sum() >= joint_members.LEAST_EXACT - 1e-12


def test_their_hyperparameters_are_their_own(fitted):
    """Prior precision and noise level are common to the nets with exact steps, and to the others."""
    members = fitted._ensemble.members
    for name in ("prior_precision", "dispersion"):
        values = [float(getattr(member.hyper, name)) for member in members]
        assert len(set(values[:4])) == len(set(values[4:])) == 1 and values[0] != values[4]


@pytest.mark.usefixtures("short_training")
def test_no_net_learns_from_its_rows_held_out(monkeypatch):
    """Other targets of the held-out rows do not change any net."""
    recorded, original = [], exact_members.without_folds

    def spied(request, rows, plan, masks, first, task, **how):
        recorded.append((request, rows, plan, task))
        return original(request, rows, plan, masks, first, task, **how)

    with monkeypatch.context() as patch:
        patch.setattr(exact_members, "without_folds", spied)
        LaplaceRegressor(random_state=0).fit(*waves(80))
    ((request, rows, plan, task),) = recorded
    masks = np.stack([np.arange(80) % 3 == 0] * 2)
    moved = rows.targets.clone()
    moved[torch.from_numpy(masks[0])] = 5.0
    (plain, outputs), (changed, of_changed) = (
        original(request, of_rows, plan, masks, 0, task, lead=False) for of_rows in (rows, replace(rows, targets=moved))
    )
    torch.testing.assert_close(outputs, of_changed)
    for state, of_changed_net in zip(plain.states, changed.states, strict=True):
        torch.testing.assert_close(of_changed_net, state)
    assert not torch.allclose(plain.states[0]["first.weight"], plain.states[1]["first.weight"])


@pytest.mark.parametrize("n", [4, 9])
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


@pytest.mark.usefixtures("short_training")
def test_nets_whose_exact_steps_are_dear_are_left_out(monkeypatch):
    monkeypatch.setattr("sklearn_laplace._ensemble.joint_members.MOST_ADDED", 1e3)
    model = LaplaceRegressor(random_state=0).fit(*waves(150))
    assert {len(member.unseen) for member in model._ensemble.members} == {18, 19}


@pytest.mark.usefixtures("short_training")
def test_a_net_that_cannot_be_trained_is_left_out(monkeypatch):
    """The members trained in one batch remain; "auto" promises no number of members, so there is no warning."""

    def failing(*args, **options):
        raise NotPositiveDefiniteError("a matrix is not positive definite.")

    monkeypatch.setattr(ensemble_train, "exact_repeat", failing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = LaplaceRegressor(random_state=0).fit(*waves(150))
    assert {len(member.unseen) for member in model._ensemble.members} == {18, 19}


@pytest.mark.parametrize(("rows", "expected"), [(waves, {None}), (zigzag, {8})])
def test_in_place_of_members_the_kind_that_errs_less_is_trained(rows, expected, monkeypatch):
    """Plain numbers, unless bins err much less: binned nets are overconfident far from the rows."""
    monkeypatch.setattr(ensemble_train, "PILOT_NOISELESS", 1.0)
    model = LaplaceRegressor(random_state=0).fit(*rows(310))
    assert {member.n_bins for member in model._ensemble.members} == expected


@pytest.mark.usefixtures("short_training")
def test_a_given_number_of_pieces_is_that_of_all():
    model = LaplaceRegressor(random_state=0, n_bins=5).fit(*waves(100))
    assert {member.n_bins for member in model._ensemble.members} == {5}


# ---------------------------------------------------------------------- weights


def test_nets_with_exact_steps_have_at_least_their_share():
    """Errors of the first repeat are much larger; the other repeats share the rest in the same proportions."""
    random = np.random.default_rng(0)
    targets = torch.from_numpy(random.normal(size=(60, 1)))
    rows = TrainingRows(torch.zeros(60, 1), targets, torch.ones(60, dtype=torch.float64))
    outputs = [targets + scale * torch.from_numpy(random.normal(size=(60, 1))) for scale in (9.0, 1.0, 1.0)]
    free, bounded = (joint_members.shares_of(rows, outputs, None, least) for least in (0.0, 0.2))
    assert free[0] < 1e-6 and bounded[0] == pytest.approx(0.2) and sum(bounded) == pytest.approx(1)
    assert bounded[1] / bounded[2] == pytest.approx(free[1] / free[2])


@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_densities_are_those_of_a_mixture_of_normals(spread):
    """Two partitions into folds; the log noise variance is normal, integrated here on a fine grid."""
    random = np.random.default_rng(3)
    errors, variance = random.normal(size=(2, 6, 1)), random.uniform(0.1, 0.5, size=(2, 6, 1))
    level, known = random.uniform(0.5, 2.0, size=(1, 6, 1)), random.uniform(0.1, 0.4, size=(6, 1))
    shares = np.array([0.3, 0.7])
    noise = np.repeat(level, 2, 0)
    tensors = (torch.from_numpy(part) for part in (errors, variance, noise, known, np.ones(6), shares))
    repeats = HeldOutRepeats(*tensors)
    logs = (repeats.log_densities(0.4, spread)[..., 0] + repeats.shares.log()[:, None]).logsumexp(0)
    logs = logs - 0.5 * math.log(2 * math.pi)
    nodes = np.linspace(-8, 8, 4001)
    weights = norm.pdf(nodes) * (nodes[1] - nodes[0])
    for row in range(6):
        std = math.sqrt(known[row, 0] + spread**2)
        total = 0.4 * (variance[:, row] + noise[:, row] * np.exp(std * nodes - spread**2 / 2))
        density = norm.pdf(errors[:, row], scale=np.sqrt(total)) @ weights
        assert float(logs[row]) == pytest.approx(math.log(shares @ density), abs=2e-3)


# ---------------------------------------------------------------------- training in one batch


# ---------------------------------------------------------------------- the fitted estimator


def test_a_gap_stays_a_gap_where_pieces_are_more_accurate():
    """Binned nets are overconfident in a gap; nets with exact steps, of weight ``LEAST_EXACT`` or more, are not."""
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


@pytest.mark.usefixtures("short_training")
def test_a_temperature_applies_to_all_members():
    """Given to the fit or to a new posterior of it, with the same result; hyperparameters are selected without it."""
    fitted = LaplaceRegressor(random_state=0).fit(*waves(150))
    X, cold = waves(30, seed=2)[0], clone(fitted).set_params(temperature=0.01).fit(*waves(150))
    assert {member.hyper.temperature for member in cold._ensemble.members} == {0.01}
    again = pickle.loads(pickle.dumps(fitted)).refit_laplace(temperature=0.01)
    for kind in ("epistemic", "total"):
        np.testing.assert_allclose(cold.predict_std(X, kind=kind), again.predict_std(X, kind=kind), rtol=1e-9)
    assert (cold.predict_std(X, kind="epistemic") < fitted.predict_std(X, kind="epistemic")).all()


def test_intervals_cover(fitted):
    covered = []
    for seed, model in ((0, fitted), (2, LaplaceRegressor(random_state=0).fit(*waves(200, seed=2)))):
        X, y = waves(500, seed=10 + seed)
        low, high = model.predict_interval(X)[1].T
        covered.append(np.mean((low <= y) & (y <= high)))
    assert 0.86 < np.mean(covered) < 0.97


def test_the_same_rows_in_another_order_are_the_same_model(fitted):
    (X, y), order = waves(150), np.random.default_rng(1).permutation(150)
    permuted = LaplaceRegressor(random_state=0).fit(X[order], y[order])
    X_new = waves(50, seed=3)[0]
    np.testing.assert_allclose(permuted.predict(X_new), fitted.predict(X_new), atol=0.05)


@pytest.mark.usefixtures("short_training")
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

    steps = exact_members.alternate

    def stepped(*args, **options):
        n_threads["exact steps"] = torch.get_num_threads()
        return steps(*args, **options)

    monkeypatch.setattr(exact_members, "alternate", stepped)
    monkeypatch.setattr(ensemble_train, "train_stacked", trained)
    monkeypatch.setattr(ensemble_fit, "approximate_jointly", approximated)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = LaplaceRegressor(random_state=0).fit(*waves(60))
    finally:
        torch.set_num_threads(before)
    assert n_threads == {"training": 1, "posterior": 1, "exact steps": 1}
    assert all(member.is_small for member in model._ensemble.members)
