"""Members for classes and counts that train together on rows in memory."""

from __future__ import annotations

import copy
from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss

import sklearn_laplace
from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._ensemble.choose import density_for
from sklearn_laplace._ensemble.conditions import trains_jointly
from sklearn_laplace._ensemble.joint_members import JointMembers
from sklearn_laplace._table.rows import TableShape
from sklearn_laplace._training import recipe
from sklearn_laplace._training.batched import Training
from sklearn_laplace._training.stacked import NegativeLog, of_mixture
from sklearn_laplace.laplace import Hyper
from sklearn_laplace.laplace.latent import LatentGaussian
from sklearn_laplace.laplace.leave_one_out.rows import linear_rows
from sklearn_laplace.laplace.likelihoods import Categorical, Poisson
from sklearn_laplace.laplace.selection import held_out_scores, log_densities, prior_factors
from sklearn_laplace.nets import TableMLP
from sklearn_laplace.options.resolve import resolve
from sklearn_laplace.options.variants import expanded

N = 600


def logits(X: np.ndarray) -> np.ndarray:
    return np.column_stack([3 * np.sin(6 * X[:, 0]), 4 * X[:, 1] - 2, 3 * np.cos(5 * X[:, 2] * X[:, 0])])


def classes(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 3))
    return X, np.array(["a", "bb", "c"], dtype=object)[(logits(X) + rng.gumbel(size=(n, 3))).argmax(1)]


def true_log_loss(X: np.ndarray, y: np.ndarray) -> float:
    true = logits(X) - np.log(np.exp(logits(X)).sum(1, keepdims=True))
    return float(-true[np.arange(len(y)), np.searchsorted(["a", "bb", "c"], y.astype(str))].mean())


@pytest.fixture(scope="module", autouse=True)
def few_rows():
    """Few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "STEPS_AT_1000", (150, 135))
        yield


@pytest.fixture(scope="module")
def fitted():
    return LaplaceClassifier(random_state=0).fit(*classes(N, 0))


def trains_together(model, n_rows, n_columns=10):
    parameters = expanded(model.get_params(deep=False))
    kind = "regressor" if isinstance(model, LaplaceRegressor) else "classifier"
    shape = TableShape(n_rows, 3, (0,) * n_columns, 0, True)
    return trains_jointly(parameters, shape, resolve(kind, parameters))


def test_classes_train_together_from_ten_rows_on():
    assert [trains_together(LaplaceClassifier(), n) for n in (9, 10, 50_000)] == [False, True, True]
    assert not trains_together(LaplaceClassifier(n_members=3), 50_000)
    assert not trains_together(LaplaceClassifier(prior_precision="evidence"), 50_000)


def test_the_probabilities_are_close_to_the_truth(fitted):
    """Four members for each recipe that held-out rows select; the log loss of new rows is close to the true one."""
    X, y = classes(4000, 1)
    assert len(fitted.members_) in (4, 8)
    assert fitted.classes_.tolist() == ["a", "bb", "c"]
    loss = -fitted.log_predictive_density(X, y).mean()
    assert true_log_loss(X, y) < loss < true_log_loss(X, y) + 0.06
    np.testing.assert_allclose(fitted.predict_proba(X).sum(1), 1.0)


def test_classes_that_few_rows_separate_are_predicted_with_confidence():
    """The curvature almost vanishes, so the prior precision of largest evidence is far too small."""
    X, y = load_breast_cancer(return_X_y=True)
    few = np.random.default_rng(1).permutation(len(y))
    model = LaplaceClassifier(random_state=1).fit(X[few[:65]], y[few[:65]])
    assert log_loss(y[few[65:]], model.predict_proba(X[few[65:]])) < 0.2


def test_held_out_rows_are_those_that_a_member_has_not_seen(fitted):
    """A row is held out by one of four members, and the curvature of a member has the weight of the others."""
    X, _ = classes(N, 0)
    unseen = [member.unseen for member in fitted._ensemble.members]
    counts = np.unique(np.concatenate(unseen), return_counts=True)[1]
    assert len(counts) == len(X)
    assert set(counts.tolist()) == {len(unseen) // 4}
    for member, keys in zip(fitted._ensemble.members, unseen, strict=True):
        assert member.fit.total_weight == N - len(keys)


def test_weights_repeat_rows(fitted):
    """A weight of three for one class is like its rows three times: its mean probability rises."""
    X, y = classes(N, 0)
    weighted = clone(fitted).fit(X, y, sample_weight=np.where(y == "a", 3.0, 1.0))
    balanced = clone(fitted).set_params(class_weight={"a": 3.0, "bb": 1.0, "c": 1.0}).fit(X, y)
    assert weighted.predict_proba(X)[:, 0].mean() > fitted.predict_proba(X)[:, 0].mean() + 0.1
    np.testing.assert_allclose(balanced.predict_proba(X), weighted.predict_proba(X), atol=1e-6)


def test_it_can_be_updated_and_saved(fitted, tmp_path):
    """partial_fit adds rows to all members, forget removes them again, and a file keeps the predictions."""
    X_more, y_more = classes(300, 2)
    model = copy.deepcopy(fitted)
    before = model.predict_proba(X_more)
    after = model.partial_fit(X_more, y_more).predict_proba(X_more)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(model.forget(X_more, y_more).predict_proba(X_more), before, atol=1e-4)
    sklearn_laplace.save(fitted, tmp_path / "model.safetensors")
    loaded = sklearn_laplace.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.predict_proba(X_more), fitted.predict_proba(X_more))


def test_counts_train_together():
    """The mean of new rows is predicted, and the log probability is far better than that of a constant rate."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(N + 2000, 3))
    rate = np.exp(1 + np.sin(6 * X[:, 0]) + X[:, 1])
    y = rng.poisson(rate)
    model = LaplaceRegressor(likelihood="poisson", random_state=0).fit(X[:N], y[:N])
    assert len(model.members_) in (4, 8)
    mean = model.predict(X[N:])
    assert np.abs(np.log(mean / rate[N:])).mean() < 0.15
    small = {"hidden_layer_sizes": (3,), "n_members": 1, "random_state": 0}
    constant = LaplaceRegressor(likelihood="poisson", **small).fit(np.zeros((N, 1)), y[:N])
    gain = model.log_predictive_density(X[N:], y[N:]) - constant.log_predictive_density(np.zeros((2000, 1)), y[N:])
    assert gain.mean() > 0.15


@pytest.mark.parametrize("n_events", [0, 2])
def test_rare_events_have_finite_rates(n_events):
    """Hardly any event: one net after the other, whose rates are close to the constant one."""
    X, y = np.random.default_rng(0).normal(size=(N, 3)), np.zeros(N)
    y[:n_events] = 1
    model = LaplaceRegressor(likelihood="poisson", hidden_layer_sizes=(5,), random_state=0).fit(X, y)
    assert all(member.unseen is None for member in model._ensemble.members)
    assert (model.predict(X) < 0.05).all()


def test_log_likelihoods_of_rare_events_are_no_squared_errors():
    """One event: the other held-out rows have errors below .01 nats, but their targets are not free of noise."""
    X, y = np.random.default_rng(0).normal(size=(N, 3)), np.zeros(N)
    y[5] = 1
    model = LaplaceRegressor(likelihood="poisson", random_state=0).fit(X, y, sample_weight=np.full(N, 40.0))
    assert len(model.members_) in (4, 8)


# ------------------------------------------------------------------------------ what held-out rows choose


def test_two_nets_tell_the_density_of_a_mixture_of_many():
    """On average over pairs of eight nets, whose mixture is the truth, within a fifth of what the mixture gains."""
    generator = torch.Generator().manual_seed(0)
    logs = 0.2 * torch.randn(8, 500, generator=generator, dtype=torch.float64) - 2
    pairs, equal = combinations(range(8), 2), torch.full((2,), 0.5, dtype=torch.float64)
    estimates = torch.stack([of_mixture(logs[list(pair)], equal, 8) for pair in pairs]).mean(0)
    truth = logs.exp().mean(0).log()
    gain = truth - logs.mean(0)
    assert (abs(estimates - truth) < 0.2 * gain).all()
    assert (gain > 0).all()


def test_densities_of_a_mixture_of_the_given_nets_are_means():
    generator = torch.Generator().manual_seed(1)
    logs, shares = torch.randn(3, 2, 9, generator=generator).double(), torch.tensor([0.5, 0.3, 0.2]).double()
    expected = torch.einsum("k,kfn->fn", shares, logs.exp()).log()
    torch.testing.assert_close(of_mixture(logs, shares, 1), expected)
    torch.testing.assert_close(of_mixture(logs, shares, 3), expected)
    torch.testing.assert_close(of_mixture(logs[:1], shares[:1] / shares[0], 4), logs[0])
    assert (of_mixture(10 * logs, shares, 50) <= 10 * logs.amax(0)).all()  # never above the best net


@pytest.mark.parametrize("n_nets", [1, 8])
def test_the_best_factor_has_the_smallest_loss(n_nets):
    """Of a fine grid, up to the prior of the factor; rows of weight zero do not matter."""
    generator, loss = torch.Generator().manual_seed(2), NegativeLog(Categorical())
    outputs, y = 3 * torch.randn(2, 61, 3, generator=generator).double(), torch.arange(61) % 3
    outputs[:, torch.arange(61), y] += 2.5
    weights, shares = (torch.arange(61) % 4).double(), torch.tensor([0.6, 0.4]).double()
    rows = weights > 0

    def objective(factor):
        p = (factor * outputs[:, rows]).softmax(-1)[:, torch.arange(int(rows.sum())), y[rows]]
        mean = -float(of_mixture(p.log(), shares, n_nets) @ weights[rows] / weights.sum())
        return mean, int(rows.sum()) * mean + np.log(factor) ** 2 / 2

    factor, found = loss.best_factor(outputs, y, weights, shares, n_nets)
    grid = np.geomspace(1 / 8, 8, 801)
    best = grid[np.argmin([objective(value)[1] for value in grid])]
    assert factor == pytest.approx(best, rel=0.02)
    assert abs(np.log(factor)) > 0.1
    assert found == pytest.approx(objective(factor)[0], rel=1e-9)


def test_the_factor_of_rows_that_are_all_right_is_bounded():
    """Without its prior it would be the largest. Counts have none."""
    outputs, y = torch.eye(2).double().repeat(20, 1)[None], torch.arange(40) % 2
    factor, _ = NegativeLog(Categorical()).best_factor(outputs, y, torch.ones(40))
    assert 3 < factor < 6
    assert NegativeLog(Poisson()).best_factor(outputs[..., :1], y[:, None].double(), torch.ones(40))[0] == 1.0


def test_the_best_cycle_is_kept(monkeypatch):
    """On random labels a long training only learns by heart: the kept outputs are those of the best cycle."""
    X, _ = classes(400, 0)
    y, losses, scores = np.random.default_rng(1).integers(2, size=400), [], {}

    def remembered(*args):
        found = best_factor(*args)
        losses.append(found[1])
        return found

    def kept(training, score):
        scores.setdefault(training, []).append(score)
        return keep_if_best(training, score)

    best_factor, keep_if_best = NegativeLog.best_factor, Training.keep_if_best
    monkeypatch.setattr(NegativeLog, "best_factor", remembered)
    monkeypatch.setattr(Training, "keep_if_best", kept)
    monkeypatch.setattr(recipe, "STEPS_AT_1000", (600, 600))
    model = LaplaceClassifier(random_state=0).fit(X, y)
    _, *of_repeats = scores.values()  # the first are those of the trial
    assert [len(of_cycles) for of_cycles in of_repeats] == [3 + (each[2] == min(each[:3])) for each in of_repeats]
    assert len(of_repeats) == 2
    assert losses[-1] < min(map(min, of_repeats)) + 0.005
    assert -model.log_predictive_density(*classes_of_chance(2000)).mean() < np.log(2) + 0.02


def classes_of_chance(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    return rng.uniform(size=(n, 3)), rng.integers(2, size=n)


def test_sharpened_members_have_larger_outputs():
    net = TableMLP([0, 0, 0], [False, False, True], 2, (5, 4), seed=0).double()
    nets = JointMembers(({},), (net.state_dict(),), torch.zeros(1, 3, dtype=torch.bool), (1.0,), (), 1, (0,))
    x = torch.randn(7, 3, dtype=torch.float64)
    before = net(x)
    net.load_state_dict(nets.sharpened(2.5).states[0])
    torch.testing.assert_close(net(x), 2.5 * before)


def test_log_densities_of_rows_are_those_of_each_posterior(fitted):
    """And the scores of held-out rows are their weighted sums."""
    fit, generator = fitted._ensemble.first.fit, torch.Generator().manual_seed(0)
    x = torch.from_numpy(classes(60, 3)[0]).to(fitted._ensemble.first.input_dtype)
    weights = torch.rand(60, generator=generator, dtype=torch.float64) + 0.5
    batches = [(x[k::2], torch.arange(30) % 3, weights[k::2]) for k in (0, 1)]
    hyper, density = Hyper(torch.tensor([0.3]).double()), density_for(fit.likelihood)
    factors = prior_factors(fit, hyper)
    logs = log_densities(fit, batches, factors[:, None] * hyper.prior_precision, density)
    for place in range(0, len(factors), 4):
        posterior = fit.posterior(Hyper(factors[place] * hyper.prior_precision))
        expected = [
            density(LatentGaussian(rows.outputs, posterior.covariance(rows.jacobian)), rows.targets, 1.0)
            for rows in linear_rows(fit.network, batches)
        ]
        torch.testing.assert_close(logs[place], torch.cat(expected))
    scores = held_out_scores([(fit, batches)], hyper, density)
    torch.testing.assert_close(scores.constants, logs @ torch.cat([weights for *_, weights in batches]))
