"""Far from the training rows: predictions get more uncertain, without a change inside the range."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import torch
import trainings
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine, make_moons
from sklearn.frozen import FrozenEstimator

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save
from sklearn_laplace.errors import UnsupportedCombinationError

X_CURVE = np.linspace(0, 6, 60)[:, None]
Y_CURVE = np.sin(X_CURVE[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=60)
SMALL = {"hidden_layer_sizes": (10,), "n_members": 1, "random_state": 0}


@pytest.fixture(scope="module")
def curve():
    return LaplaceRegressor(random_state=0, memory=trainings.MEMORY).fit(X_CURVE, Y_CURVE)


@pytest.fixture(scope="module")
def moons():
    return LaplaceClassifier(random_state=0, memory=trainings.MEMORY).fit(*make_moons(200, noise=0.2, random_state=0))


def directions(X, distance, n=100):
    """Rows in random directions, at a distance in standard deviations times the root of the number of columns."""
    drawn = np.random.default_rng(1).normal(size=(n, X.shape[1]))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return X.mean(0) + distance * X.std(0) * np.sqrt(X.shape[1]) * drawn


@pytest.mark.parametrize(
    ("table", "limits"),
    [
        (make_moons(200, noise=0.2, random_state=0), (0.8, 0.65, 0.55)),
        (load_breast_cancer(return_X_y=True), (0.8, 0.65, 0.55)),
        (load_wine(return_X_y=True), (0.7, 0.5, 0.4)),
    ],
    ids=["moons", "cancer", "wine"],
)
def test_classes_are_uncertain_far_from_the_data(table, limits):
    """Mean of the largest probability at 3, 10 and 100 standard deviations."""
    X, y = table
    model = LaplaceClassifier(random_state=0).fit(X, y)
    for distance, limit in zip((3, 10, 100), limits, strict=True):
        assert model.predict_proba(directions(X, distance)).max(1).mean() < limit


def test_numbers_are_uncertain_far_from_the_data():
    """The epistemic standard deviation never falls along a ray outside, and exceeds that of y at 10."""
    X, y = (part[:150] for part in load_diabetes(return_X_y=True))
    model = LaplaceRegressor(random_state=0).fit(X, y)
    rays = np.stack([directions(X, distance, 30) for distance in np.geomspace(1, 100, 20)])
    std = model.predict_std(rays.reshape(-1, 10), kind="epistemic").reshape(20, 30)
    outside = (model.outside(rays.reshape(-1, 10)) > 0).any(1).reshape(20, 30)
    assert (np.diff(std, axis=0)[outside[:-1]] >= 0).all()
    assert model.predict_std(directions(X, 10), kind="epistemic").min() > y.std()


@pytest.mark.parametrize("kind", [LaplaceRegressor, LaplaceClassifier])
def test_rows_inside_the_range_have_the_same_predictions_to_the_bit(kind, curve, moons):
    """Beside rows outside, and as without the growth outside."""
    model = curve if kind is LaplaceRegressor else moons
    inside = X_CURVE if model is curve else make_moons(50, noise=0.0, random_state=1)[0]
    far = np.vstack([inside, inside + 100])
    plain = kind(predictive="glm", random_state=0, memory=trainings.MEMORY).fit(*_rows_of(model))
    of_kind = LaplaceRegressor.score_samples if kind is LaplaceRegressor else LaplaceClassifier.predict_proba
    for predict in (lambda m, rows: m.predict_std(rows), of_kind):
        np.testing.assert_array_equal(predict(model, far)[: len(inside)], predict(model, inside))
        np.testing.assert_array_equal(predict(model, inside), predict(plain, inside))
        assert not np.allclose(predict(model, far)[len(inside) :], predict(plain, far)[len(inside) :], rtol=1e-3)


def _rows_of(model):
    return (X_CURVE, Y_CURVE) if isinstance(model, LaplaceRegressor) else make_moons(200, noise=0.2, random_state=0)


def test_all_predictions_of_numbers_agree(curve):
    """Standard deviation, covariance, draws, gradient, distribution and members, at rows on both sides."""
    rows = np.array([[3.0], [7.5], [12.0], [20.0], [-6.0]])
    std = curve.predict_std(rows)
    _, covariance = curve.predict(rows, return_cov=True)
    np.testing.assert_allclose(np.sqrt(covariance.diagonal()), std, rtol=1e-6)
    draws = curve.sample_y(rows, 4000, random_state=0)
    np.testing.assert_allclose(draws.std(1), std, rtol=0.1)
    np.testing.assert_allclose(np.corrcoef(draws)[2, 3], covariance[2, 3] / (std[2] * std[3]), atol=0.05)
    pairs = (curve.sample_y([[3.0], [other]], 5, random_state=0) for other in (4.0, 40.0))
    np.testing.assert_array_equal(*(pair[0] for pair in pairs))
    np.testing.assert_allclose(curve.predict_dist(rows).std(), std, rtol=1e-6)
    gradient = curve.predict(rows, return_std=True, return_mean_grad=True, return_std_grad=True)[3][:, 0]
    step = 1e-2  # covariances have single precision
    numeric = (curve.predict_std(rows + step) - curve.predict_std(rows - step)) / (2 * step)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-2, atol=1e-4)
    assert curve.members_[0].predict_std(rows[3:])[0] > Y_CURVE.std()


def test_links_and_entropies_of_classes_are_uncertain(moons):
    """Links other than "plugin" and "bridge" average over the wide logits; so do entropies."""
    far = np.array([[0.0, 50.0], [50.0, 0.0]])
    for link in ("moderated", "probit", "mc", "bridge_norm", "quadrature"):
        assert deepcopy(moons).refit_laplace(link=link).predict_proba(far).max() < 0.6
    entropy = moons.predict_entropy(far)
    assert (np.ravel(entropy)[: len(far)] > 0.6).all()


@pytest.mark.parametrize(
    ("options", "targets"),
    [
        ({"likelihood": "poisson"}, np.random.default_rng(0).poisson(np.exp(Y_CURVE + 1))),
        ({"target_transform": "log"}, np.exp(Y_CURVE)),
    ],
)
def test_logarithms_have_no_growth(options, targets):
    """A variance of logarithms would raise the mean of y, or lower its median."""
    models = [LaplaceRegressor(predictive=p, **options, **SMALL).fit(X_CURVE, targets) for p in ("auto", "glm")]
    np.testing.assert_array_equal(*(model.predict_quantiles([[30.0]], [0.05, 0.5, 0.95]) for model in models))


def test_each_target_has_a_scale():
    """Also without standardisation: the error bars of a target do not depend on the others."""
    targets = np.column_stack([Y_CURVE, 1000 * Y_CURVE[::-1]])
    options = {**SMALL, "prior_precision": 1.0, "sigma_noise": [0.1, 100.0]}
    for standardised in (True, False):
        model = LaplaceRegressor(standardize_y=standardised, **options).fit(X_CURVE, targets)
        std, plain = (
            deepcopy(model).refit_laplace(predictive=p).predict_std([[-60.0]], kind="epistemic")
            for p in ("auto", "glm")
        )
        added = np.sqrt(std**2 - plain**2)[0]
        np.testing.assert_allclose(added / targets.std(0), model.outside([[-60.0]])[0, 0] ** 1.5, rtol=1e-3)


def test_a_linear_net_and_a_given_net_have_no_growth_by_default():
    """A linear function is meant to hold everywhere, and so may a net of the user's."""
    far = [[60.0]]
    for options in (
        {"hidden_layer_sizes": ()},
        {"net": torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))},
    ):
        models = [
            LaplaceRegressor(predictive=value, n_members=1, random_state=0, **options).fit(X_CURVE, Y_CURVE)
            for value in ("auto", "glm")
        ]
        np.testing.assert_array_equal(*(model.predict_std(far) for model in models))


@pytest.mark.usefixtures("short_training")
def test_rows_that_come_later_extend_the_range_until_they_are_forgotten():
    model = LaplaceRegressor(**SMALL).fit(X_CURVE, Y_CURVE)
    assert model.outside([[9.0]])[0, 0] > 0.3
    before = model.predict_std([[9.0]])
    model.partial_fit([[10.0], [8.0]], [0.0, 0.0])
    assert model.outside([[9.0]])[0, 0] == 0
    model.forget([[8.0]], [0.0])
    assert model.outside([[9.0]])[0, 0] == 0
    model.forget([[10.0]], [0.0])
    np.testing.assert_allclose(model.predict_std([[9.0]]), before, rtol=1e-6)


def test_distances_are_those_of_the_columns():
    """In widths of the range; infinite where no distance is defined; a dataframe for a dataframe."""
    table = pd.DataFrame(
        {"age": [20.0, 30.0, 40.0, 60.0] * 3, "town": ["Bern", "Graz", "Rome", "Bern"] * 3, "one": 1.0}
    )
    model = LaplaceRegressor(prior_precision=1.0, sigma_noise=0.1, **SMALL).fit(table, np.arange(12.0))
    new = pd.DataFrame(
        {"age": [180.0, 45.0, np.nan], "town": ["Bern", "Oslo", "Rome"], "one": [1.0, 1.0, 5.0]}, index=list("abc")
    )
    found = model.outside(new)
    expected = pd.DataFrame({"age": [2.0, 0.0, np.inf], "town": [0.0, np.inf, 0.0], "one": 0.0}, index=list("abc"))
    pd.testing.assert_frame_equal(found, expected)


def test_units_of_the_columns_and_of_the_targets_do_not_matter():
    """Powers of two scale exactly."""
    far = np.array([[9.0], [-30.0]])
    model = LaplaceRegressor(**SMALL).fit(X_CURVE, Y_CURVE)
    scaled = LaplaceRegressor(**SMALL).fit(4 * X_CURVE, 8 * Y_CURVE)
    np.testing.assert_allclose(scaled.predict_std(4 * far), 8 * model.predict_std(far), rtol=1e-6)
    unscaled = LaplaceRegressor(standardize_y=False, **SMALL).fit(X_CURVE, 8 * Y_CURVE)
    assert unscaled.predict_std(far, kind="epistemic")[1] > 8 * Y_CURVE.std()


@pytest.mark.usefixtures("short_training")
def test_the_next_value_of_a_discrete_column_is_inside():
    """The year after the last one is no surprise; the one after that is."""
    X = np.column_stack([np.repeat(np.arange(2010.0, 2020.0), 6), X_CURVE])
    model = LaplaceRegressor(**SMALL).fit(X, Y_CURVE)
    new = [[year, 3.0] for year in (2020, 2021, 2009, 2000)]
    np.testing.assert_allclose(model.outside(new)[:, 0], [0, 1 / 9, 0, 1])


@pytest.mark.usefixtures("short_training")
def test_forgetting_a_training_row_keeps_the_range_of_later_rows():
    """Its value is an end of the training range, not of the wider one."""
    X = np.column_stack([X_CURVE[:, 0], np.arange(60) % 2])
    model = LaplaceRegressor(**SMALL, hessian_structure="full").fit(X, Y_CURVE).partial_fit([[3.0, 5.0]], [0.0])
    model.forget(X[:1], Y_CURVE[:1])
    assert model.outside([[3.0, 5.0]]).max() == 0


def given_net(n_inputs, n_outputs):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(n_inputs, 16), torch.nn.Tanh(), torch.nn.Linear(16, n_outputs))


def test_a_given_net_extrapolates_if_asked():
    """Probabilities far away are even, and those of rows inside are the same to the bit, also after a refit."""
    X, y = make_moons(100, noise=0.2, random_state=0)
    models = [
        LaplaceClassifier(net=given_net(2, 1), predictive=p, random_state=0).fit(X, y) for p in ("glm", "extrapolating")
    ]
    inside, far = X[:20], directions(X, 100)
    np.testing.assert_array_equal(*(model.predict_proba(inside) for model in models))
    plain, growing = (model.predict_proba(far).max(1).mean() for model in models)
    assert growing < 0.51 < 0.8 < plain
    refitted = models[0].refit_laplace(predictive="extrapolating")
    np.testing.assert_array_equal(refitted.predict_proba(far), models[1].predict_proba(far))


@pytest.mark.usefixtures("short_training")
def test_the_growth_of_a_given_net_is_that_of_the_built_in_one():
    """The same range, the same scale: std(y) at one width beyond; weights count as copies of rows."""
    model = LaplaceRegressor(net=given_net(1, 1), predictive="extrapolating", random_state=0).fit(X_CURVE, Y_CURVE)
    plain = deepcopy(model).refit_laplace(predictive="glm")
    built_in = LaplaceRegressor(**SMALL).fit(X_CURVE, Y_CURVE)
    far = np.array([[60.0], [-9.0], [3.0]])
    np.testing.assert_array_equal(model.outside(far), built_in.outside(far))
    added = np.sqrt(model.predict_std(far) ** 2 - plain.predict_std(far) ** 2)
    np.testing.assert_allclose(added, Y_CURVE.std() * model.outside(far)[:, 0] ** 1.5, rtol=1e-6)
    twice = [np.repeat(part, 2, axis=0) for part in (X_CURVE, Y_CURVE)]
    copies = LaplaceRegressor(net=given_net(1, 1), predictive="extrapolating", random_state=0).fit(*twice)
    np.testing.assert_array_equal(copies.outside(far), model.outside(far))


@pytest.mark.usefixtures("short_training")
def test_a_given_net_knows_its_columns(tmp_path):
    """Later rows extend the range; a stored model and a dataframe have it; a prior of an earlier fit hands it on."""
    table = pd.DataFrame(X_CURVE.astype(np.float32), columns=["hour"])
    model = LaplaceRegressor(net=given_net(1, 1), predictive="extrapolating", random_state=0).fit(table, Y_CURVE)
    far = pd.DataFrame({"hour": np.float32([9.0, 3.0])}, index=["a", "b"])
    assert model.outside(far).loc["b", "hour"] == 0 < model.outside(far).loc["a", "hour"]
    assert "outside the range" in str(model.report(table + 100, Y_CURVE))
    save(model, tmp_path / "model.safetensors")
    stored = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(stored.predict_std(far), model.predict_std(far))
    later = LaplaceRegressor(net=given_net(1, 1), prior=FrozenEstimator(model), random_state=0)
    assert later.fit(table[:20] + 8, Y_CURVE[:20]).outside(far).loc["a", "hour"] == 0
    assert model.partial_fit(far[:1], [0.0]).outside(far).loc["a", "hour"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"likelihood": "poisson"}, "cannot be used with counts"),
        ({"target_transform": "log"}, "cannot be used with counts or target_transform"),
    ],
)
def test_what_has_no_range_is_refused(options, message):
    with pytest.raises(UnsupportedCombinationError, match=message):
        LaplaceRegressor(predictive="extrapolating", **options, **SMALL).fit(X_CURVE, np.exp(Y_CURVE).round())


@pytest.mark.usefixtures("short_training")
def test_a_given_net_of_an_earlier_version_has_no_range():
    model = LaplaceRegressor(net=given_net(1, 1), random_state=0).fit(X_CURVE, Y_CURVE)
    model._ranges = None
    for asked in (model.outside, model.refit_laplace(predictive="extrapolating").predict_std):
        with pytest.raises(AttributeError, match="Fit it again"):
            asked(X_CURVE)
    assert "outside the range" not in str(model.refit_laplace(predictive="glm").report(X_CURVE + 100, Y_CURVE))
    later = LaplaceRegressor(net=given_net(1, 1), prior=FrozenEstimator(model), random_state=0).fit(X_CURVE, Y_CURVE)
    assert later.predict_std(X_CURVE).shape == (60,)
