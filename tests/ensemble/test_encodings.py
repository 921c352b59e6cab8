"""Ensembles of two encodings (plain numbers and binned columns): which are fitted, and how they are weighted."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.frozen import FrozenEstimator

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save
from sklearn_laplace._approximation.held_out import CrossFit
from sklearn_laplace._approximation.row_densities import RowDensities
from sklearn_laplace._data.rows import PreparedData
from sklearn_laplace._data.target_scale import TargetScale
from sklearn_laplace._ensemble import fit as ensemble_fit
from sklearn_laplace._ensemble.encodings import exact_kinds
from sklearn_laplace._ensemble.fit import LEAST_SHARE
from sklearn_laplace._ensemble.weights import of_kinds
from sklearn_laplace.errors import BoundWarning, ClippedWarning
from sklearn_laplace.laplace.latent import LatentGaussian
from sklearn_laplace.laplace.likelihoods import Categorical, Gaussian
from sklearn_laplace.laplace.links import Probit
from sklearn_laplace.options import Members

pytestmark = pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ModeWarning")  # few units, many bins
SMALL = {"hidden_layer_sizes": (8,), "random_state": 0}
KINDS = (None, 6)


def steps(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Piecewise linear in the first column with 17 random knots, linear in the second."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    heights = np.random.default_rng(1).normal(size=17)
    y = np.interp(X[:, 0], np.linspace(-3, 3, 17), heights) + 0.3 * X[:, 1]
    return X, y + 0.05 * rng.normal(size=n)


X, Y = make_friedman1(80, noise=1.0, random_state=0)
NEW, NEW_Y = make_friedman1(300, noise=1.0, random_state=1)


@pytest.fixture(scope="module")
def both() -> LaplaceRegressor:
    return LaplaceRegressor(**SMALL, n_bins=KINDS).fit(X, Y)


def densities(model: LaplaceRegressor, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Predictive density of each row under each member."""
    return np.exp([member.log_predictive_density(X, y) for member in model.members_])


def test_the_first_kind_is_what_it_is_alone(both):
    """The first encoding's members are bit-identical to a fit of it alone, up to one common variance factor."""
    alone = LaplaceRegressor(**SMALL, n_bins=(None,)).fit(X, Y)
    factor = both.hyper_.dispersion / alone.hyper_.dispersion
    assert 0.25 <= factor < 1
    for one, other in zip(alone.members_, both.members_, strict=False):
        assert other.n_bins is None
        np.testing.assert_array_equal(one.predict(NEW), other.predict(NEW))
        np.testing.assert_allclose(other.predict_std(NEW) ** 2, factor * one.predict_std(NEW) ** 2, rtol=1e-8)


def test_members_are_of_both_kinds_and_answer_together(both):
    members, weights = both.members_, both.member_weights_
    assert [member.n_bins for member in members] == [None] * 4 + [6] * 4
    assert weights.sum() == pytest.approx(1)
    assert len(set(weights[:4].round(12))) == len(set(weights[4:].round(12))) == 1, "equal weights within an encoding"
    assert weights[0] != pytest.approx(weights[4], rel=1e-3)
    means = np.array([member.predict(NEW) for member in members])
    np.testing.assert_allclose(both.predict(NEW), weights @ means, rtol=1e-10)
    variances = np.array([member.predict_std(NEW) ** 2 for member in members])
    expected = weights @ (variances + (means - weights @ means) ** 2)
    np.testing.assert_allclose(both.predict_std(NEW) ** 2, expected, rtol=1e-8)
    log_density = both.log_predictive_density(NEW, NEW_Y)
    np.testing.assert_allclose(np.exp(log_density), weights @ densities(both, NEW, NEW_Y), rtol=1e-6)


def test_kinds_are_weighed_by_stacking_of_rows_that_were_held_out(monkeypatch):
    """Encoding weights maximise the held-out density, then the variance factor does; both checked by direct search."""
    by_kind, sample_weight = [], np.random.default_rng(5).uniform(0.5, 2, 70)
    original = CrossFit.densities_of_rows

    def spied(self, hyper, held_out):
        by_kind.append(original(self, hyper, held_out))
        weights.append(self.held_out(hyper).weights.numpy())  # in training order
        return by_kind[-1]

    weights: list[np.ndarray] = []
    monkeypatch.setattr(CrossFit, "densities_of_rows", spied)
    rows, targets = steps(70)
    model = LaplaceRegressor(**SMALL, n_bins=KINDS, likelihood="gaussian").fit(
        rows, targets, sample_weight=sample_weight
    )
    counts = weights[0]
    np.testing.assert_allclose(np.sort(counts), np.sort(sample_weight * sample_weight.sum() / (sample_weight**2).sum()))
    first, second = (np.exp(kind.logs) for kind in by_kind)
    assert len(first) == len(rows)

    def loss(w):
        return -np.average(np.log((1 - w) * first + w * second), weights=counts)

    best = minimize_scalar(loss, bounds=(0, 1), method="bounded")
    share = float(model.member_weights_[[member.n_bins == 6 for member in model.members_]].sum())
    assert LEAST_SHARE < share < 1, "the optimum has to be interior for the comparison to mean anything"
    assert share == pytest.approx(best.x, abs=1e-2)  # EM stops at a gain of 1e-9 nats per step
    grid = np.linspace(0.25, 1, 400)
    one, other = by_kind
    along = [
        np.average(np.log((1 - share) * np.exp(one.scaled(f)) + share * np.exp(other.scaled(f))), weights=counts)
        for f in grid
    ]
    assert model._ensemble.factor == pytest.approx(grid[int(np.argmax(along))], abs=4e-3)


def test_variances_times_a_factor_are_those_of_another_normal():
    errors, variance = np.array([0.3, -2.0]), np.array([0.5, 1.5])
    one = RowDensities(norm.logpdf(errors, scale=np.sqrt(variance)), errors**2 / variance, 1)
    np.testing.assert_allclose(one.scaled(0.4), norm.logpdf(errors, scale=np.sqrt(0.4 * variance)), rtol=1e-12)


def test_kinds_of_classes_are_stacked_without_a_factor():
    """Each encoding fits one half of the rows: equal weights. A fit with both encodings has no factor."""
    knows = np.where(np.arange(80) % 2, [[0.9], [0.1]], [[0.1], [0.9]])
    kinds = [RowDensities(logs, np.zeros(80), 0) for logs in np.log(knows)]
    weights, factor = of_kinds(kinds, np.ones(80))
    np.testing.assert_allclose(weights, [0.5, 0.5], atol=1e-6)
    assert factor == 1
    labels = (np.median(Y) < Y).astype(int)
    model = LaplaceClassifier(**SMALL, n_bins=KINDS, n_members=1).fit(X, labels)
    assert {member.n_bins for member in model.members_} == {None, 6}
    assert model._ensemble.factor == 1


def test_noise_that_is_given_stays():
    """The variance factor does not change a user-set noise level."""
    model = LaplaceRegressor(**SMALL, n_bins=KINDS, sigma_noise=0.8, n_members=1).fit(X, Y)
    assert {member.n_bins for member in model.members_} == {None, 6}
    assert model._ensemble.factor < 1
    assert model.sigma_noise_ == pytest.approx(0.8)


@pytest.fixture
def caught(monkeypatch):
    """Cross-fitted nets of each encoding, with the hyperparameters of their held-out densities."""
    calls = []
    original = CrossFit.densities_of_rows

    def spied(self, hyper, held_out):
        calls.append((self, hyper))
        return original(self, hyper, held_out)

    monkeypatch.setattr(CrossFit, "densities_of_rows", spied)
    return calls


def dense(fit, hyper):
    """Posterior precision H/φ + δ I, column by column."""
    identity = torch.eye(len(fit.theta), dtype=torch.float64)
    return torch.stack([fit.curvature.times(row) for row in identity]) / hyper.dispersion + (
        hyper.prior_precision[0] * identity
    )


def test_density_of_a_row_is_that_of_the_net_without_it(caught):
    """Normal density with epistemic variance plus noise; one factor rescales all variances."""
    weights = np.random.default_rng(2).uniform(0.5, 2, len(X))
    LaplaceRegressor(**SMALL, n_bins=KINDS, likelihood="gaussian", n_members=1).fit(X, Y, sample_weight=weights)
    assert len(caught) == 2
    for cross, hyper in list(caught):  # a copy: the calls below append to it
        errors, variances, counts = (np.empty(len(X)) for _ in range(3))
        for k, (fit, chunks) in enumerate(cross.parts):
            here = (cross.fold == k).numpy()
            x, y, w = (torch.cat(part) for part in zip(*chunks, strict=True))
            mean, jacobian = fit.network.jacobian(x)
            rows = jacobian.rows()[:, 0].double()
            errors[here], counts[here] = (y - mean)[:, 0], w
            variances[here] = ((rows @ torch.linalg.inv(dense(fit, hyper))) * rows).sum(1) + hyper.dispersion
        factor = np.average(errors**2 / variances, weights=counts)
        expected = norm.logpdf(errors, scale=np.sqrt(factor * variances))
        row_densities = cross.densities_of_rows(hyper, cross.held_out(hyper))
        np.testing.assert_allclose(row_densities.logs, expected, rtol=1e-6, atol=1e-6)


def test_density_of_a_class_is_that_of_the_net_without_the_row(caught):
    """With the probit link, as for the choice of the prior on held-out rows."""
    rows, targets = steps(90)
    labels = np.digitize(targets, [-0.5, 0.5])
    LaplaceClassifier(**SMALL, n_bins=KINDS, n_members=1).fit(rows, labels)
    assert len(caught) == 2
    for cross, hyper in list(caught):  # a copy: the calls below append to it
        expected = np.empty(len(rows))
        for k, (fit, chunks) in enumerate(cross.parts):
            x, y, _ = (torch.cat(part) for part in zip(*chunks, strict=True))
            mean, jacobian = fit.network.jacobian(x)
            jacobians, inverse = jacobian.rows().double(), torch.linalg.inv(dense(fit, hyper))
            latent = LatentGaussian(mean.double(), jacobians @ inverse @ jacobians.mT)
            p = Probit(torch.zeros(0, 0)).mean(Categorical().class_logits(latent))
            expected[(cross.fold == k).numpy()] = p[torch.arange(len(y)), y].log()
        np.testing.assert_allclose(cross.densities_of_rows(hyper, None).scaled(1.0), expected, rtol=1e-6)


def test_what_suits_the_table_counts_for_more():
    """Bins win on a piecewise linear target, numbers on a slope; the mixture is close to the better one or beats it."""
    rows, targets = steps(150, seed=2)
    new, new_targets = steps(400, seed=9)
    slope = rows[:, 0] + 0.3 * np.random.default_rng(3).normal(size=150)
    share, gain = {}, {}
    for name, y, y_new in (("bends", targets, new_targets), ("a slope", slope, new[:, 0])):
        model = LaplaceRegressor(**SMALL, n_bins=(None, 16), n_members=2).fit(rows, y)
        bent = np.array([member.n_bins == 16 for member in model.members_])
        share[name] = model.member_weights_[bent].sum()
        of_members = densities(model, new, y_new)
        alone = [np.log(of_members[kind].mean(0)).mean() for kind in (bent, ~bent)]
        gain[name] = model.log_predictive_density(new, y_new).mean() - max(alone)
    assert share["bends"] > 0.6 > 0.4 > share["a slope"]
    assert min(gain.values()) > -0.1


def test_without_nets_that_hold_rows_out_the_first_kind_is_alone():
    options = {**SMALL, "prior_precision": 1.0, "sigma_noise": 0.5}
    model, alone = (LaplaceRegressor(**options, n_bins=n).fit(X, Y) for n in (KINDS, None))
    assert [member.n_bins for member in model.members_] == [None]
    np.testing.assert_array_equal(model.predict(NEW), alone.predict(NEW))


def test_a_kind_with_little_to_say_has_one_member_or_none(monkeypatch):
    """The very first member always stays: previous posteriors and attributes use it."""
    for shares, expected in (([0.95, 0.05], [None] * 2), ([0.05, 0.95], [None, 6, 6])):
        monkeypatch.setattr("sklearn_laplace._ensemble.fit.of_kinds", lambda *_, shares=shares: (np.array(shares), 0.5))
        model = LaplaceRegressor(**SMALL, n_bins=KINDS, likelihood="gaussian", n_members=2).fit(X, Y)
        assert [member.n_bins for member in model.members_] == expected
        assert model.member_weights_.sum() == pytest.approx(1)
        assert (model._ensemble.factor == 1) == (None in expected and 6 not in expected), (
            "one encoding alone keeps its variances"
        )


@pytest.mark.parametrize("rule", ["evidence", "loo"])
def test_another_rule_weighs_each_member(rule):
    model = LaplaceRegressor(**SMALL, n_bins=KINDS, likelihood="gaussian", n_members=Members(2, weights=rule)).fit(X, Y)
    assert len(model.member_weights_) == len(model.members_)
    assert len(set(model.member_weights_.round(9))) > 2
    assert model.member_weights_.sum() == pytest.approx(1)


def test_so_many_members_of_each_kind():
    model = LaplaceRegressor(**SMALL, n_bins=(6, None), likelihood="gaussian", n_members=2).fit(X, Y)
    assert [member.n_bins for member in model.members_] == [6, 6, None, None]


def test_intervals_of_both_kinds_cover(both):
    low, high = both.predict_interval(NEW, 0.9)[1].T
    assert 0.85 < np.mean((low <= NEW_Y) & (high >= NEW_Y)) < 0.97


def test_it_is_kept_and_read_again(both, tmp_path):
    save(both, tmp_path / "model.laplace")
    for again in (pickle.loads(pickle.dumps(both)), load(tmp_path / "model.laplace")):
        np.testing.assert_array_equal(again.predict_std(NEW), both.predict_std(NEW))
        np.testing.assert_array_equal(again.member_weights_, both.member_weights_)
        assert [member.n_bins for member in again.members_] == [member.n_bins for member in both.members_]


def test_weights_of_kinds_stay_where_the_posterior_is_made_anew(both):
    again = pickle.loads(pickle.dumps(both)).refit_laplace(prior_precision=3.0)
    np.testing.assert_array_equal(again.member_weights_, both.member_weights_)
    assert not np.array_equal(again.predict_std(NEW), both.predict_std(NEW))
    back = again.refit_laplace(prior_precision="auto")
    np.testing.assert_allclose(back.predict_std(NEW), both.predict_std(NEW), rtol=1e-8)
    assert clone(both).n_bins == KINDS


def test_weights_by_name_are_those_of_one_net(both):
    """Weight names are ambiguous with two encodings: the error quotes the value, and the model stays unchanged."""
    before = both.predict_std(NEW)
    with pytest.raises(ValueError, match=r"temperature=\{'2': 0.5\} names weights of one net.* 2 kinds .*n_members=1"):
        both.refit_laplace(temperature={"2": 0.5})
    np.testing.assert_array_equal(both.predict_std(NEW), before)
    colder = both.members_[0].refit_laplace(temperature={"2": 0.5})
    assert not np.array_equal(colder.predict_std(NEW), both.members_[0].predict_std(NEW))


@pytest.mark.parametrize("n_bins", ["auto", (None, 8)])
def test_targets_that_do_not_vary_have_no_say_in_the_kinds(monkeypatch, n_bins):
    """All held-out errors are zero: no noise level can be learnt, and the prediction is the constant."""
    monkeypatch.setattr("sklearn_laplace._ensemble.encodings.SMALL_ROWS", 60)
    with pytest.warns(BoundWarning):
        model = LaplaceRegressor(**SMALL, n_bins=n_bins).fit(X[:61], np.full(61, 3.0))
    np.testing.assert_allclose(model.predict(NEW), 3.0, atol=1e-3)
    assert np.isfinite(model.member_weights_).all() and model.member_weights_.sum() == pytest.approx(1)


def test_more_rows_are_taken_in_by_every_member(both):
    later = pickle.loads(pickle.dumps(both)).partial_fit(NEW[:100], NEW_Y[:100])
    for before, after in zip(both.members_, later.members_, strict=True):
        assert not np.array_equal(before.predict(NEW), after.predict(NEW))
    before, after = (np.square(model.predict(NEW[:100]) - NEW_Y[:100]).mean() for model in (both, later))
    assert after < before


def test_a_previous_posterior_has_one_kind(both):
    later = LaplaceRegressor(**SMALL, n_bins=KINDS, prior=FrozenEstimator(both)).fit(NEW[:50], NEW_Y[:50])
    assert [member.n_bins for member in later.members_] == [None]


def test_classes_have_kinds_as_well():
    rows, targets = steps(200)
    new, new_targets = steps(500, seed=4)
    model = LaplaceClassifier(**SMALL, n_bins=(None, 16), n_members=2).fit(rows, targets > 0)
    np.testing.assert_allclose(model.predict_proba(new).sum(1), 1, rtol=1e-12)
    binned = np.array([member.n_bins == 16 for member in model.members_])
    of_members = densities(model, new, new_targets > 0)
    alone = [np.log(of_members[kind].mean(0)).mean() for kind in (binned, ~binned)]
    assert model.log_predictive_density(new, new_targets > 0).mean() > max(alone) - 0.05
    assert {member.n_bins for member in model.members_} == {None, 16}


def test_leave_one_out_has_the_noise_of_each_kind(both):
    """The leave-one-out variance combines the members', each with the noise level of its encoding."""
    mean, std = both.loo_predict(return_std=True)
    of_each = [member.loo_predict(return_std=True) for member in both.members_]
    means, stds = (np.array(part) for part in zip(*of_each, strict=True))
    np.testing.assert_allclose(mean, both.member_weights_ @ means, rtol=1e-9)
    expected = both.member_weights_ @ (stds**2 + (means - mean) ** 2)
    np.testing.assert_allclose(std**2, expected, rtol=1e-7)


@pytest.mark.parametrize("value", [(), (8, 8), (None, 0), [None, "8"], (None, None)])
def test_what_is_no_tuple_of_kinds_is_refused(value):
    with pytest.raises(ValueError, match="n_bins="):
        LaplaceRegressor(**SMALL, n_bins=value).fit(X, Y)


def test_kinds_are_of_the_built_in_net():
    with pytest.raises(ValueError, match="n_bins can only be used with the built-in net"):
        LaplaceRegressor(torch.nn.Linear(10, 1), n_bins=KINDS).fit(X, Y)


def test_nets_that_train_one_after_the_other_have_numbers_alone_by_default():
    model = LaplaceRegressor(**SMALL, prior_precision="evidence").fit(X, Y)
    assert {member.n_bins for member in model.members_} == {None}


def test_columns_of_two_values_have_no_pieces():
    """Binary columns have a single bin, so both encodings coincide. A missing value is not a third value."""
    flags = (X > 0.5).astype(float)
    flags[::9, 2] = np.nan
    for table, expected in ((flags, (None,)), (np.column_stack([flags, X[:, 3]]), (None, 8))):
        rows = np.repeat(table, 5, axis=0)
        scale = TargetScale(np.zeros(1), np.ones(1), np.ones(1))
        data = PreparedData(rows, np.zeros((len(rows), 1)), np.ones(len(rows)), 1, scale)
        parameters = {**LaplaceRegressor().get_params(), "hidden_layer_sizes": (50,)}
        assert exact_kinds(parameters, data.shape(), Gaussian()) == expected


def test_a_net_of_ones_own_is_the_only_kind():
    net = torch.nn.Sequential(torch.nn.Linear(10, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    models = [LaplaceRegressor(net, n_bins=n, max_epochs=2, random_state=0).fit(X, Y) for n in ("auto", None)]
    assert [len(model.members_) for model in models] == [1, 1]
    np.testing.assert_array_equal(*(model.predict(NEW) for model in models))


@pytest.mark.parametrize(
    ("shares", "expected"), [([0.5, 0.5], ["", "another "]), ([0.95, 0.05], [""]), ([0.05, 0.95], ["another "])]
)
def test_only_kinds_that_count_are_warned_of(monkeypatch, shares, expected):
    """Warnings of an encoding with a negligible weight are suppressed."""
    monkeypatch.setattr("sklearn_laplace._ensemble.fit.of_kinds", lambda *_: (np.array(shares), 1.0))
    original = ensemble_fit.fit_member

    def warning(request, *rest, **more):
        if not request.is_member:
            warnings.warn(f"{request.parameters['n_bins']} pieces", ClippedWarning, stacklevel=1)
        return original(request, *rest, **more)

    monkeypatch.setattr(ensemble_fit, "fit_member", warning)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        LaplaceRegressor(**SMALL, n_bins=KINDS, likelihood="gaussian", n_members=1).fit(X, Y)
    messages = [str(warning.message) for warning in caught if str(warning.message).endswith(" pieces")]
    kinds = {"": "None pieces", "another ": "another member of the ensemble: 6 pieces"}
    assert messages == [kinds[prefix] for prefix in expected]
