"""Piecewise linear encoding of numeric columns (``n_bins``): definition, fits and invariances."""

from __future__ import annotations

import numpy as np
import oracles
import pandas as pd
import pytest
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save
from sklearn_laplace.nets import TableMLP
from sklearn_laplace.nets.mlp import Pieces

FIXED = {"hidden_layer_sizes": (4,), "prior_precision": 1.0, "sigma_noise": 0.3, "random_state": 0}
CHOSEN = {"hidden_layer_sizes": (8,), "prior_precision": "evidence", "n_members": 1, "random_state": 0}


def jagged(n: int, seed: int = 0, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Piecewise linear in the first column with 33 random knots, constant in the second."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    heights = np.random.default_rng(1).normal(size=33)
    return X, np.interp(X[:, 0], np.linspace(-3, 3, 33), heights) + noise * rng.normal(size=n)


def edges_of(model: LaplaceRegressor) -> list[list[float]]:
    return model.net_.module_.standardise.edges


def test_pieces_are_those_of_their_definition():
    """Inside the bins, at the edges, far outside, and for missing values."""
    rng = np.random.default_rng(0)
    edges = [np.sort(rng.normal(size=count)).tolist() for count in (2, 5, 9)]
    X = 3 * rng.normal(size=(50, 3))
    X[:5, 1], X[5, 2], X[6, 0] = edges[1], 1e6, -1e6
    layer = Pieces(edges)
    expected = np.hstack([oracles.pieces(column, of_column) for column, of_column in zip(X.T, edges, strict=True)])
    np.testing.assert_allclose(layer.pieces(torch.from_numpy(X)), expected, rtol=1e-12, atol=1e-12)
    assert layer.counts == (1, 4, 8)
    for stored, expected in zip(layer.edges, edges, strict=True):
        np.testing.assert_allclose(stored, expected, rtol=1e-12)
    X[3, 1] = np.nan
    absent = layer(torch.from_numpy(X)).isnan().nonzero()
    assert absent.tolist() == [[3, column] for column in range(1, 5)]


def test_equal_slopes_are_the_number_itself():
    """The encoding can represent x itself: the pieces times their lengths sum to x minus the first edge."""
    layer = Pieces([[-1.0, 0.0, 0.5, 4.0]])
    x = torch.linspace(-5, 9, 41, dtype=torch.float64)[:, None]
    torch.testing.assert_close(layer.pieces(x) @ layer.length, x[:, 0] + 1.0)


def test_a_linear_net_of_pieces_is_a_linear_net_of_columns_made_of_them():
    """Same inputs and prior as a linear net on encoded columns, so the same mean and standard deviation."""
    X, y = jagged(60)
    options = {**FIXED, "hidden_layer_sizes": ()}
    model = LaplaceRegressor(**options, n_bins=5).fit(X, y)

    def encoded(rows):
        parts = zip(rows.T, edges_of(model), strict=True)
        return np.hstack([oracles.pieces(column, edges) for column, edges in parts])

    plain = LaplaceRegressor(**options).fit(encoded(X), y)
    new = 2 * X[:20]
    for mine, theirs in zip(
        model.predict(new, return_std=True), plain.predict(encoded(new), return_std=True), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8)


def test_edges_are_quantiles_and_weights_are_copies():
    X, y = jagged(80)
    weights = np.random.default_rng(2).integers(0, 4, 80)
    again = np.repeat(np.arange(80), weights)
    model = LaplaceRegressor(**FIXED, n_bins=4)
    weighted = edges_of(model.fit(X, y, sample_weight=weights))
    expected = np.quantile(X[again], np.linspace(0, 1, 5), axis=0, method="inverted_cdf")
    np.testing.assert_allclose(np.transpose(weighted), expected, rtol=1e-12)
    predictions = model.predict(X, return_std=True)
    for mine, theirs in zip(predictions, model.fit(X[again], y[again]).predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_bends_are_learnt_and_far_away_stays_far_away():
    """Bins let a small net follow sharp bends; uncertainty still grows far from the rows."""
    X, y = jagged(400)
    X_new, y_new = jagged(400, seed=5, noise=0.0)
    smooth, bent = (LaplaceRegressor(**CHOSEN, n_bins=n).fit(X, y) for n in (None, 48))
    error = [np.sqrt(np.mean((model.predict(X_new) - y_new) ** 2)) for model in (smooth, bent)]
    assert error[1] < 0.75 * error[0]
    assert bent.log_marginal_likelihood_value_ > smooth.log_marginal_likelihood_value_ + 100
    std = bent.predict_std(np.array([[0.0, 0.0], [20.0, 0.0], [400.0, 0.0]]), kind="epistemic")
    assert (std[1:] > 3 * std[0]).all()


def test_a_search_finds_the_pieces():
    X, y = jagged(200)
    model = LaplaceRegressor(**CHOSEN, likelihood="gaussian")
    search = GridSearchCV(model, {"n_bins": [None, 24]}, cv=2, refit=False).fit(X, y)
    assert search.best_params_ == {"n_bins": 24}


def test_every_kind_of_column_has_its_pieces():
    """Categories have no bins; columns with at most two values have one; values may be missing."""
    rng = np.random.default_rng(0)
    n = 90
    table = pd.DataFrame(
        {
            "x": rng.normal(size=n),
            "colour": np.tile(["red", "green", "blue"], n)[:n],
            "gaps": np.where(np.arange(n) % 7, rng.normal(size=n), np.nan),
            "new": rng.normal(size=n) > 0,
            "same": np.full(n, 1e9),
            "none": np.full(n, np.nan),
            "heavy": np.exp(4 * rng.normal(size=n)),
        }
    )
    y = np.abs(table.x.to_numpy()) + 2.0 * (table.colour == "red") + 0.1 * rng.normal(size=n)
    model = LaplaceRegressor(**CHOSEN, prior="ard", n_bins=6).fit(table, y)
    assert model.net_.module_.standardise.counts == (6, 6, 1, 1, 1, 6)
    assert model.score(table, y) > 0.9
    assert np.isfinite(model.predict(table, return_std=True)).all()
    relevance = dict(zip(table.columns, model.feature_relevance_, strict=True))
    assert sum(relevance.values()) == pytest.approx(1.0)
    assert sorted(relevance, key=relevance.get)[-2:] in (["x", "colour"], ["colour", "x"])
    # Heavy tails are compressed before binning, so extrapolation beyond the last edge is logarithmic.
    far = model.predict(table.assign(heavy=1e12)) - model.predict(table.assign(heavy=table.heavy.max()))
    assert np.abs(far).max() < 50


def test_a_table_of_categories_has_no_pieces():
    colours = pd.DataFrame({"colour": np.tile(["red", "green", "blue"], 20)})
    y = np.tile([1.0, 2.0, 4.0], 20) + 0.01 * np.arange(60)
    model = LaplaceRegressor(**FIXED, n_bins=4).fit(colours, y)
    assert model.net_.module_.standardise.counts == ()
    np.testing.assert_array_equal(model.predict(colours), LaplaceRegressor(**FIXED).fit(colours, y).predict(colours))


def test_classes_take_pieces():
    X, y = jagged(400)
    labels = np.where(y > 0, "up", "down")
    smooth, bent = (LaplaceClassifier(**CHOSEN, n_bins=n).fit(X, labels) for n in (None, 48))
    X_new, y_new = jagged(400, seed=5, noise=0.0)
    scores = [model.score(X_new, np.where(y_new > 0, "up", "down")) for model in (smooth, bent)]
    assert scores[1] > scores[0] + 0.03


def test_a_previous_posterior_keeps_its_edges():
    X, y = jagged(80)
    first = LaplaceRegressor(**FIXED, n_bins=4).fit(X[:40], y[:40])
    later = LaplaceRegressor(**FIXED, n_bins=4, prior=FrozenEstimator(first)).fit(X[40:], y[40:])
    assert edges_of(later) == edges_of(first)
    assert edges_of(LaplaceRegressor(**FIXED, prior=FrozenEstimator(first)).fit(X[40:], y[40:])) == edges_of(first)
    with pytest.raises(ValueError, match="not that of the previous posterior"):
        LaplaceRegressor(**FIXED, n_bins=None, prior=FrozenEstimator(first)).fit(X[40:], y[40:])


def test_rows_that_come_later_go_through_the_same_pieces():
    X, y = jagged(80)
    model = LaplaceRegressor(**FIXED, n_bins=4).fit(X[:60], y[:60])
    before, edges = model.predict_std(X[60:], kind="epistemic"), edges_of(model)
    assert edges_of(model.partial_fit(X[60:], y[60:])) == edges
    assert (model.predict_std(X[60:], kind="epistemic") < before).all()


def test_a_saved_model_keeps_its_edges(tmp_path):
    X, y = jagged(80)
    model = LaplaceRegressor(**FIXED, n_bins=4).fit(X, y)
    save(model, tmp_path / "model.safetensors")
    for mine, theirs in zip(
        model.predict(X, return_std=True), load(tmp_path / "model.safetensors").predict(X, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_single_precision_keeps_the_edges_in_double_precision():
    """In single precision, a column of dates in seconds would lose its bins."""
    X, y = jagged(80)
    X = 1e9 + X
    model = LaplaceRegressor(**FIXED, n_bins=4, dtype="float32").fit(X, y)
    assert isinstance(model.net_.module_, TableMLP)
    assert model.net_.module_.standardise.left.dtype == torch.float64
    assert np.unique(model.predict(X)).size > 40


@pytest.mark.parametrize("value", [0, 2.5, "8", True])
def test_what_is_no_number_of_pieces_is_refused(value):
    X, y = jagged(20)
    with pytest.raises(ValueError, match="n_bins="):
        LaplaceRegressor(**FIXED, n_bins=value).fit(X, y)


def test_pieces_are_of_the_built_in_net():
    X, y = jagged(20)
    with pytest.raises(ValueError, match="n_bins can only be used with the built-in net"):
        LaplaceRegressor(torch.nn.Linear(2, 1), n_bins=4).fit(X, y)
