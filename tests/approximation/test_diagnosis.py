"""Diagnosis of a fit: each warning is issued in the intended cases, and not in similar ordinary fits."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import replace

import nets
import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.datasets import load_iris, make_friedman1, make_moons
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import r2_score
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._approximation.diagnosis import Fresh, Vitals, explained_by_a_line
from sklearn_laplace.errors import BoundWarning, InterpolationWarning, ModeWarning, PinnedWarning, WeakPriorWarning
from sklearn_laplace.laplace.evidence import effective_parameters, log_evidence
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS

RNG = np.random.default_rng(41)
X = RNG.normal(size=(80, 3))
Y = np.sin(X[:, 0]) + X[:, 1] + 0.2 * RNG.normal(size=80)
NOISE = RNG.normal(size=80)
LABELS = np.where(Y > 0, "up", "down")
COINS = np.where(NOISE > 0, "up", "down")


def sized(options):
    defaults = {} if "net" in options else {"hidden_layer_sizes": (20,)}
    return {**defaults, "n_members": 1, "random_state": 0, **options}


def regressor(**options):
    return LaplaceRegressor(**{"likelihood": "gaussian", **sized(options)})


def classifier(**options):
    return LaplaceClassifier(**sized(options))


def categories(fit) -> set[type]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    return {warning.category for warning in caught}


# ------------------------------------------------------------------------------ ordinary fits


ORDINARY = {
    "friedman": lambda: (
        regressor(n_members="auto", likelihood="auto"),
        *make_friedman1(150, noise=1.0, random_state=0),
    ),
    "linear-net": lambda: (regressor(hidden_layer_sizes=()), X, Y),
    "flat-prior-on-few-weights": lambda: (regressor(hidden_layer_sizes=(), prior_precision=1e-6), X, Y),
    "natural-prior": lambda: (regressor(prior_precision=1.0), X, Y),
    "given-noise": lambda: (regressor(sigma_noise=0.2), X, Y),
    "ten-rows": lambda: (regressor(), X[:10, :2], X[:10, 0] - X[:10, 1] + 0.2 * NOISE[:10]),
    "three-rows": lambda: (regressor(), X[:3], Y[:3]),
    "last-layer": lambda: (regressor(subset_of_weights="last_layer"), X, Y),
    "one-weight": lambda: (regressor(subset_of_weights={"5.bias": np.array([True])}, hessian_structure="full"), X, Y),
    "diagonal": lambda: (regressor(hessian_structure="diag"), X, Y),
    "cold": lambda: (regressor(temperature=1e-4), X, Y),
    "hot": lambda: (regressor(temperature=1e8), X, Y),
    "shares": lambda: (
        regressor(hidden_layer_sizes=(8,)),
        np.repeat(X, 3, axis=0),
        np.repeat(Y, 3) + np.tile(NOISE, 3),
    ),
    "iris": lambda: (classifier(), *load_iris(return_X_y=True)),
    "moons": lambda: (classifier(n_members="auto"), *make_moons(150, noise=0.2, random_state=0)),
    "nothing-to-learn": lambda: (regressor(n_members="auto", likelihood="auto"), X, NOISE),
    "separable": lambda: (classifier(), X, X[:, 0] > 0),
    "one-of-two-hundred": lambda: (classifier(), np.tile(X, (3, 1))[:200], np.arange(200) == 17),
}


@pytest.mark.parametrize("case", sorted(ORDINARY))
def test_an_ordinary_fit_says_nothing(case):
    """Ordinary fits issue no warnings; false alarms would make users ignore them."""
    model, rows, targets = ORDINARY[case]()
    assert categories(lambda: model.fit(rows, targets)) == set()


# ------------------------------------------------------------------------------ pinned weights


PINNED = {
    "strong-prior": (
        lambda: (regressor(prior_precision=1e4), X, Y),
        r"constant, and a linear model explains \d\d% of .*Use a smaller prior_precision",
    ),
    "strong-prior-on-classes": (lambda: (classifier(prior_precision=1e4), X, LABELS), "determine 0.*nearly constant"),
    "strong-posterior": (
        lambda: (regressor(map_prior_precision=1.0, prior_precision=1e7), X, Y),
        "error bars hardly depend on the rows. Use a smaller prior_precision.*If map_prior_precision is a number",
    ),
}


@pytest.mark.parametrize("case", sorted(PINNED))
def test_weights_that_are_pinned_to_the_prior_are_reported(case):
    """Constant predictions can look plausible; the message states the cause and what to do."""
    build, message = PINNED[case]
    model, rows, targets = build()
    with pytest.warns(PinnedWarning, match=message):
        model.fit(rows, targets)
    if isinstance(model, LaplaceClassifier) or "bars" not in message:
        mean = model.predict(rows) if isinstance(model, LaplaceRegressor) else model.predict_proba(rows)
        assert np.ptp(mean, axis=0).max() < 0.05
    else:
        assert (model.predict_std(rows, kind="epistemic") < 1e-2 * model.sigma_noise_).all()


def test_a_refit_is_diagnosed_as_well():
    """refit_laplace warns for a strong prior, and no longer for a moderate one."""
    model = regressor(map_prior_precision=1.0, prior_precision=1.0).fit(X, Y)
    with pytest.warns(PinnedWarning, match="hardly depend on the rows"):
        model.refit_laplace(prior_precision=1e8)
    assert categories(lambda: model.refit_laplace(prior_precision=1.0)) == set()


def test_weights_that_are_held_at_a_mean_are_no_accident():
    """A given prior mean with a strong prior is intended by the user."""
    state = regressor(prior_precision=1.0, sigma_noise=0.2).fit(X, Y).net_.module_.state_dict()
    held = regressor(prior=state, prior_precision=1e6, sigma_noise=1.0)
    assert categories(lambda: held.fit(X, Y)) == set()


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_a_constant_that_the_evidence_prefers_is_an_answer(kind):
    """With nothing to learn, the evidence prefers constant predictions, which is not a user error."""
    model, targets = (regressor(), NOISE) if kind == "numbers" else (classifier(), COINS)
    assert categories(lambda: model.fit(X, targets)) == set()
    assert model.n_effective_parameters_ < 1
    assert categories(lambda: regressor().fit(X, np.ones(80))) == {BoundWarning}


# ------------------------------------------------------------------------------ interpolation


def over_trained():
    """Frozen net, overfitted to few rows without a prior."""
    net = nets.regressor(module__n_in=3, module__hidden=60, max_epochs=300, lr=0.02)
    net.fit(X[:25].astype(np.float32), NOISE[:25, None].astype(np.float32))
    return regressor(net=FrozenEstimator(net))


INTERPOLATING = {
    "weak-prior": lambda: (regressor(prior_precision=1e-3, sigma_noise="evidence"), X, NOISE),
    "weak-training": lambda: (regressor(map_prior_precision=1e-4, hidden_layer_sizes=(50,)), X, NOISE),
    "residual": lambda: (regressor(prior_precision=1e-3, sigma_noise="residual"), X, NOISE),
    "copies": lambda: (regressor(prior_precision=1e-2), np.tile(X[:20], (5, 1)), np.tile(Y[:20], 5)),
}


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.BoundWarning")
@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ModeWarning")
@pytest.mark.parametrize("case", sorted(INTERPOLATING))
def test_a_net_that_goes_through_all_targets_is_reported(case):
    """The residuals do not determine the noise: σ is far too small in each of these cases."""
    model, rows, targets = INTERPOLATING[case]()
    with pytest.warns(
        InterpolationWarning, match=r"effective parameters for (80|20|25) different targets.*sigma_noise"
    ):
        model.fit(rows, targets)
    assert model.sigma_noise_ < 0.5 * (0.2 if case == "copies" else NOISE.std())


def test_an_over_trained_frozen_net_has_the_noise_of_left_out_rows():
    """Its residuals are nearly zero, and its left-out errors as large as the noise."""
    model = over_trained().set_params(prior_precision="auto")
    assert InterpolationWarning not in categories(lambda: model.fit(X[:25], NOISE[:25]))
    assert model.predict_std(X[:25]).mean() > 0.7 * NOISE.std()
    with pytest.warns(InterpolationWarning, match=r"standard deviation is 0\.\d+ times the root mean squared error"):
        model.set_params(prior_precision=1e4, sigma_noise="residual").fit(X[:25], NOISE[:25])


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.WeakPriorWarning")
def test_a_given_noise_needs_no_residuals():
    """With a given noise level there is no InterpolationWarning for the same net."""
    known_noise = regressor(prior_precision=1e-3, sigma_noise=1.0)
    assert InterpolationWarning not in categories(lambda: known_noise.fit(X, NOISE))


# ------------------------------------------------------------------------------ weak priors


WEAK = {
    "given-noise": lambda: (regressor(prior_precision=1e-6, sigma_noise=0.2), X, Y),
    "linear": lambda: (
        regressor(hidden_layer_sizes=(), prior_precision=1e-6, sigma_noise=0.2),
        RNG.normal(size=(80, 160)),
        Y,
    ),
    "coins": lambda: (classifier(prior_precision=1e-6, hidden_layer_sizes=(50,)), X, COINS),
    "one-logit": lambda: (classifier(prior_precision=1e-9, likelihood="bernoulli", hidden_layer_sizes=(50,)), X, COINS),
}


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ModeWarning")
@pytest.mark.parametrize("case", sorted(WEAK))
def test_a_prior_that_is_too_weak_is_reported(case):
    """Away from the rows, predictions are far wider than the targets, or class probabilities are uninformative."""
    model, rows, targets = WEAK[case]()
    with pytest.warns(
        WeakPriorWarning,
        match=r"(nats less probable than|times as wide as) under a constant prediction.*larger prior_prec",
    ):
        model.fit(rows, targets)
    if isinstance(model, LaplaceRegressor):
        away = 3 * RNG.normal(size=(50, rows.shape[1]))
        assert np.median(model.predict_std(away)) > 10 * Y.std()
    assert categories(lambda: type(model)(n_members=1, random_state=0).fit(rows, targets)) == set()


# ------------------------------------------------------------------------------ the numbers


@pytest.mark.parametrize("name", ["scalar", "ard"])
def test_the_volume_and_the_distance_are_those_of_the_evidence(name):
    """Volume and distance equal their definitions with dense matrices."""
    model = regressor(hidden_layer_sizes=(4,), hessian_structure="full", prior=name).fit(X, Y)
    fit, hyper = model.laplace_, model.hyper_
    vitals = Vitals.of(fit, hyper, effective_parameters(fit, hyper), log_evidence(fit, hyper))
    delta = hyper.prior_precision[fit.prior.groups]
    precision = fit.curvature.matrix / hyper.dispersion + torch.diag(delta)
    volume = torch.linalg.slogdet(precision).logabsdet - delta.log().sum()
    assert vitals.volume == pytest.approx(float(volume), rel=1e-8)
    assert vitals.distance == pytest.approx(float((delta * fit.theta.square()).sum()), rel=1e-10)
    assert vitals.effective == pytest.approx(len(delta) - float((delta * torch.linalg.inv(precision).diagonal()).sum()))
    assert vitals.whole and vitals.exact and vitals.n_targets == 80
    assert vitals.learnt == pytest.approx(r2_score(Y, model.predict(X)), rel=1e-8)


def test_the_evidence_of_a_linear_net_is_its_predictive_density():
    """Basis of the criterion for a weak prior: fit − ½ volume − ½ distance is log N(y; 0, K + σ²I)."""
    model = regressor(
        hidden_layer_sizes=(), prior_precision=0.3, sigma_noise=0.5, standardize_y=False, hessian_structure="full"
    ).fit(X, Y)
    fit, hyper = model.laplace_, model.hyper_
    vitals = Vitals.of(fit, hyper, effective_parameters(fit, hyper), log_evidence(fit, hyper))
    features = np.column_stack([(X - X.mean(0)) / X.std(0) / math.sqrt(3), np.ones(80)])
    expected = multivariate_normal(np.zeros(80), features @ features.T / 0.3 + 0.25 * np.eye(80)).logpdf(Y)
    assert vitals.fit - 0.5 * vitals.volume - 0.5 * vitals.distance == pytest.approx(expected, rel=1e-8)


def test_no_criterion_has_a_unit():
    """The criteria do not depend on the units of X and y."""

    def vitals(factor):
        model = regressor(hidden_layer_sizes=(4,)).fit(X * factor, Y * factor)
        fit, hyper = model.laplace_, model.hyper_
        return Vitals.of(fit, hyper, effective_parameters(fit, hyper), log_evidence(fit, hyper))

    first = vitals(1.0)
    for scale in (1e-6, 1e6):
        second = vitals(scale)
        assert second.fit - second.baseline == pytest.approx(first.fit - first.baseline, rel=1e-3)
        assert second.volume == pytest.approx(first.volume, rel=1e-3)
        assert second.distance == pytest.approx(first.distance, rel=1e-3)


def test_the_guess_is_the_best_constant():
    """Regression: normal density with the moments of the targets. Classes: uniform probabilities. Counts: none."""
    values = RNG.normal(size=200)
    expected = (-0.5 * math.log(2 * math.pi * values.var()) - 0.5 * (values - values.mean()) ** 2 / values.var()).mean()
    assert LIKELIHOODS["gaussian"](values.var()).baseline(1) == pytest.approx(expected)
    assert LIKELIHOODS["gaussian"](2.0).baseline(3) == pytest.approx(3 * LIKELIHOODS["gaussian"](2.0).baseline(1))
    assert LIKELIHOODS["categorical"]().baseline(4) == pytest.approx(-math.log(4))
    assert LIKELIHOODS["bernoulli"]().baseline(1) == pytest.approx(-math.log(2))
    assert LIKELIHOODS["poisson"]().baseline(1) is None


def test_each_criterion_has_its_threshold():
    """Values on both sides of each threshold, with ordinary values of the others."""
    usual = Vitals(151, 60.0, 60.0, 1, 60.0, 10.0, -40.0, 30.0, 20.0, -85.0, whole=True, exact=True)
    nothing = replace(usual, effective=0.3, distance=1e-9, fit=-85.0, volume=1.0)
    assert not (usual.pinned or usual.undetermined or usual.interpolates or usual.weak_prior or usual.is_suspicious)
    assert nothing.pinned and not replace(nothing, distance=1.0).pinned and not replace(nothing, effective=1.5).pinned
    assert not replace(nothing, n_rows=9.0).pinned and not replace(nothing, whole=False).pinned
    assert not replace(nothing, fit=-60.0).pinned and replace(nothing, baseline=None).pinned
    assert replace(usual, effective=0.05).undetermined and not replace(usual, effective=0.05, n_weights=3).undetermined
    assert replace(usual, effective=58.0).interpolates and not replace(usual, effective=56.0).interpolates
    assert replace(usual, effective=30.0, n_different=30.0).interpolates
    assert not replace(usual, effective=58.0, exact=False).interpolates
    assert replace(usual, effective=31.0).is_suspicious and not replace(usual, effective=29.0).is_suspicious
    assert nothing.is_constant and not usual.is_constant and replace(usual, learnt=0.09).is_constant
    weak = replace(usual, volume=2 * (85.0 - 40.0) + 121.0)
    overfits = replace(usual, volume=2 * (85.0 - 40.0) + 49.0, n_weights=60, effective=58.0)
    assert overfits.weak_prior and not replace(overfits, n_weights=62).weak_prior
    assert not replace(overfits, volume=overfits.volume - 2.0).weak_prior
    assert not replace(overfits, of_numbers=False).weak_prior
    assert weak.weak_prior and weak.is_suspicious and not replace(weak, volume=weak.volume - 2.0).weak_prior
    assert not replace(weak, fit=-90.0).weak_prior and not replace(weak, n_weights=10).weak_prior
    assert not replace(weak, baseline=None).weak_prior and not replace(weak, exact=False).weak_prior
    assert Fresh(0.75, 0.0, 100.0).is_narrow and not Fresh(0.77, 0.0, 100.0).is_narrow
    assert Fresh(1.0, 2.1, 50.0).is_wide and not Fresh(1.0, 1.9, 50.0).is_wide and not Fresh(1.0, 9.0, 9.0).is_wide


# ------------------------------------------------------------------------------ fresh rows


def own(width=20):
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))


def test_the_defaults_are_silent_on_friedman():
    """Held-out rows calibrate the mixture. 150 rows are among the ordinary fits."""
    rows, targets = make_friedman1(60, noise=1.0, random_state=1)
    assert categories(lambda: LaplaceRegressor(random_state=0).fit(rows, targets)) == set()


def test_a_selected_prior_that_leaves_a_net_without_function_is_reported():
    """Unscaled columns saturate the hidden units, and the evidence fits such a net: R² ≈ 0, with right intervals."""
    rows = X * [1e3, 1e-2, 50.0] + [1e4, 0.0, 5.0]
    targets = X[:, 0] - 0.5 * X[:, 1] + 0.1 * NOISE
    model = regressor(net=own(), standardize_X=False)
    with pytest.warns(PinnedWarning, match=r"a linear model explains 9\d% .*standardize_X=True does so.*max_epochs"):
        model.fit(rows, targets)
    assert model.score(rows, targets) < 0.5
    assert categories(lambda: model.set_params(standardize_X="auto").fit(rows, targets)) == set()


def test_a_constant_is_no_mistake_if_there_is_nothing_to_learn():
    """A strong prior warns only if a linear model explains the targets."""
    assert categories(lambda: regressor(prior_precision=1e4).fit(X, NOISE)) == set()


def test_a_distance_from_the_mode_is_no_mistake_if_intervals_are_right():
    """Without noise, a training ends far from a mode: .8 to 2.4 standard deviations per parameter over ten seeds."""
    rows = np.random.default_rng(0).normal(size=(80, 2))
    model = regressor(sigma_noise="residual", prior_precision="evidence")
    assert categories(lambda: model.fit(rows, rows.sum(1))) <= {BoundWarning}
    assert model.mode_distance_ > 0.5 * model.n_effective_parameters_**0.5


def test_a_distance_from_the_mode_is_reported_if_intervals_are_wrong():
    """A tiny given noise and a prior of next to nothing: each fit is reported, most for their distance.

    Where a training ends depends on the last bits of the processor's kernels: of ten seeds, four to six end far from a
    mode, others interpolate or saturate, which has other warnings.
    """
    found = []
    for seed in (0, 2, 5, 7, 9):
        rng = np.random.default_rng(seed)
        rows, noise = rng.normal(size=(80, 3)), rng.normal(size=80)
        model = regressor(prior_precision=1e-6, sigma_noise=1e-5, random_state=seed)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(rows, np.sin(3 * rows[:, 0]) + rows[:, 1] + 0.3 * noise)
        assert {warning.category for warning in caught} & {ModeWarning, PinnedWarning, WeakPriorWarning}
        found += [str(warning.message) for warning in caught if warning.category is ModeWarning]
    assert found and all(re.search(r"away from a mode, and the 90 % intervals contain \d+% of", text) for text in found)


def test_a_prior_that_weakens_the_training_is_reported():
    """The evidence recognises an overfitted net, whose left-out intervals seem right."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(300, 4))
    weak = regressor(prior_precision=1e-4, sigma_noise="evidence")
    targets = np.sin(rows[:, 0]) + rows[:, 1] + 0.5 * rng.normal(size=300)
    with pytest.warns(WeakPriorWarning, match="nats less probable"):
        weak.fit(rows, targets)
    assert categories(lambda: regressor(sigma_noise="evidence").fit(rows, targets)) == set()


def test_a_linear_model_explains_what_the_dense_formula_says():
    """R² of left-out rows, against a fit without each row; a missing value counts as the mean."""
    weights = RNG.integers(1, 3, size=80).astype(float)
    errors, spread = [], []
    for k in range(80):
        left = np.arange(80) != k
        features = np.column_stack([np.ones(80), X])
        root = np.sqrt(weights[left])[:, None]
        solution = np.linalg.lstsq(root * features[left], root[:, 0] * Y[left], rcond=None)[0]
        errors.append(weights[k] * (Y[k] - features[k] @ solution) ** 2)
        spread.append(weights[k] * (Y[k] - np.average(Y, weights=weights)) ** 2)
    assert explained_by_a_line(X, Y[:, None], weights) == pytest.approx(1 - sum(errors) / sum(spread), rel=1e-10)
    holes = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
    assert 0 < explained_by_a_line(holes, Y[:, None], weights) < 1
    assert explained_by_a_line(X, (Y > 0).astype(int), weights) > 0.3
    assert explained_by_a_line(X[:7], Y[:7, None], weights[:7]) is None
