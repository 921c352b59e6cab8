"""Prediction intervals for rows that are distributed differently from those of the fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

import sklearn_laplace
from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.errors import UnsupportedCombinationError

METHODS = ["jackknife+", "cv+"]


def line(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A line with five times the noise in its right half."""
    random = np.random.default_rng(seed)
    X = random.uniform(-2, 2, size=(n, 1))
    return X, X[:, 0] + np.where(X[:, 0] > 0, 0.5, 0.1) * random.normal(size=n)


X, Y = line(240, 0)
NEW, NEW_Y = line(4000, 1)
TO_THE_RIGHT = norm.pdf(X[:, 0], 1.3, 0.4)
IN_NEW = norm.pdf(NEW[:, 0], 1.3, 0.4)


@pytest.fixture(scope="module")
def fitted() -> LaplaceRegressor:
    """A fit with one noise level, which is too small on the right."""
    return LaplaceRegressor(likelihood="gaussian", random_state=0).fit(X, Y)


@pytest.mark.parametrize("method", METHODS)
def test_weighted_intervals_cover_after_a_shift(fitted, method):
    """Rows drawn around 1.3: the plain intervals are too short there, the weighted ones are not."""
    covered = []
    for weight in (None, TO_THE_RIGHT):
        low, high = fitted.predict_interval(NEW, 0.9, method=method, calibration_weight=weight)[1].T
        covered.append(np.average((low <= NEW_Y) & (high >= NEW_Y), weights=IN_NEW))
    assert covered[0] < 0.82 and 0.86 < covered[1] < 0.97, covered


def test_equal_weights_change_nothing(fitted):
    """Weights count up to a factor, and belong to the rows in the order of the fit."""
    for method in METHODS:
        plain, equal = (
            fitted.predict_interval(NEW[:5], [0.5, 0.9], method=method, calibration_weight=weight)[1]
            for weight in (None, np.full(len(X), 7.0))
        )
        np.testing.assert_allclose(equal, plain, rtol=1e-9)
    order = np.random.default_rng(2).permutation(len(X))
    other = LaplaceRegressor(likelihood="gaussian", random_state=0).fit(X[order], Y[order])
    one, another = (
        model.predict_interval(NEW[:5], calibration_weight=weight, method="jackknife+")[1]
        for model, weight in ((fitted, TO_THE_RIGHT), (other, TO_THE_RIGHT[order]))
    )
    np.testing.assert_allclose(another, one, rtol=1e-6)


def test_weighted_quantiles_by_hand(fitted):
    """The smallest score whose cumulative weight reaches the level, for an effective number of rows."""
    held_out = fitted._ensemble.held_out.weighted(TO_THE_RIGHT, fitted._ensemble.first.kept)
    order = np.lexsort(np.column_stack([X, Y]).T[::-1])[np.random.default_rng(0).permutation(len(Y))]
    weights = TO_THE_RIGHT[order]
    weights = weights * weights.sum() / (weights**2).sum()
    np.testing.assert_allclose(held_out.weights.numpy(), weights)
    np.testing.assert_allclose(held_out.other_weights.sum(), weights.sum())


def test_rows_are_found_by_their_values(fitted):
    """As many rows as scores of single nets, because all rows are there several times, in another order."""
    held_out, kept = fitted._ensemble.held_out, fitted._ensemble.first.kept
    repeated = np.random.default_rng(3).permutation(np.arange(len(held_out.others)) % len(X))
    rows = replace(kept, X=kept.X[repeated], targets=kept.targets[repeated], weights=kept.weights[repeated])
    assert len(rows.X) == len(held_out.others)
    one, another = held_out.weighted(TO_THE_RIGHT, kept), held_out.weighted(TO_THE_RIGHT[repeated], rows)
    np.testing.assert_array_equal(another.weights, one.weights)
    np.testing.assert_array_equal(another.other_weights, one.other_weights)


def test_leave_one_out_scores_have_weights_too():
    """Without noise further nets hold out the folds, and the quantile is reduced by leave-one-out scores."""
    x = np.linspace(-1, 1, 60)[:, None]
    model = LaplaceRegressor(hidden_layer_sizes=(8,), n_members=1, likelihood="gaussian", random_state=0).fit(
        x, x[:, 0]
    )
    held_out, kept = model._ensemble.held_out, model._ensemble.first.kept
    importance = np.linspace(0, 1, 60)
    weighted = held_out.weighted(importance, kept)
    expected = importance * importance.sum() / (importance**2).sum()
    np.testing.assert_allclose(weighted.other_weights.numpy(), expected)
    assert held_out.exponent > 0 and not np.allclose(weighted.weights, expected)  # folds are in another order


def test_what_has_no_weighted_residuals_is_refused(fitted):
    """Quantiles of the distribution, too few weights, removed rows, and fits whose nets hold out no rows."""
    with pytest.raises(UnsupportedCombinationError, match=r"calibration_weight weights residuals.*method='normal'"):
        fitted.predict_interval(NEW, calibration_weight=TO_THE_RIGHT)
    with pytest.raises(ValueError, match="calibration_weight has 7 entries for 240 rows"):
        sklearn_laplace.predict_interval(fitted, NEW, method="cv+", calibration_weight=np.ones(7))
    with pytest.raises(ValueError, match=r"non-zero|zero for every row"):
        fitted.predict_interval(NEW, method="cv+", calibration_weight=np.zeros(len(X)))
    linear = LaplaceRegressor(hidden_layer_sizes=()).fit(X, Y)
    with pytest.raises(UnsupportedCombinationError, match="calibration_weight needs nets that were trained without"):
        linear.predict_interval(NEW, method="jackknife+", calibration_weight=TO_THE_RIGHT)
    with pytest.raises(UnsupportedCombinationError, match=r"method='cv\+' needs nets that were trained without"):
        linear.predict_interval(NEW, method="cv+")
    with pytest.raises(UnsupportedCombinationError, match="forget has removed"):
        linear.forget(X[:3], Y[:3]).predict_interval(NEW, method="jackknife+", calibration_weight=TO_THE_RIGHT)
