"""Column names of any type: integers, tuples, dates."""

from __future__ import annotations

import nets
import numpy as np
import pandas as pd
import pytest
from sklearn.frozen import FrozenEstimator

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save

SMALL = {"hidden_layer_sizes": (), "prior_precision": 1.0, "n_members": 1, "random_state": 0}
NAMES = {
    "positions": [0, 1, 2],
    "integers": [1, 2, 3],
    "years": [2021, 2019, 2020],
    "floats": [0.5, 1.5, 2.5],
    "tuples": pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)]),
    "dates": pd.date_range("2024-01-01", periods=3),
}


def rows(names, n: int = 24) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(2)
    values = rng.normal(size=(n, 3))
    return pd.DataFrame(values, columns=names), 3 * values[:, 0] - values[:, 2] + 0.3 * rng.normal(size=n)


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("estimator", [LaplaceRegressor, LaplaceClassifier])
def test_columns_in_another_order_are_refused_whatever_their_names(estimator, names, tmp_path):
    """scikit-learn compares only strings; the same values in another order would be other inputs."""
    X, y = rows(names)
    model = estimator(**SMALL).fit(X, y if estimator is LaplaceRegressor else y > 0)
    turned = X[X.columns[::-1]]
    save(model, tmp_path / "model.safetensors")
    for fitted in (model, load(tmp_path / "model.safetensors")):
        with pytest.raises(ValueError, match=r"in another order: column 0 is named .*X\[list\(X_train.columns\)\]"):
            fitted.predict(turned)
        np.testing.assert_array_equal(fitted.predict(turned[list(X.columns)]), fitted.predict(X))
        np.testing.assert_array_equal(fitted.predict(X.to_numpy()), fitted.predict(X))
    with pytest.raises(ValueError, match="under other names"):
        model.partial_fit(X.set_axis([7, 8, 9], axis=1), y)


def test_a_given_net_and_a_previous_posterior_compare_names_of_any_type():
    X, y = rows([10, 20, 30])
    net = LaplaceRegressor(nets.regressor(max_epochs=2), prior_precision=1.0, sigma_noise=0.1).fit(X, y)
    with pytest.raises(ValueError, match="in another order"):
        net.predict(X[[20, 10, 30]])
    first = LaplaceRegressor(**SMALL, sigma_noise=0.1).fit(X, y)
    with pytest.raises(ValueError, match=r"columns, \['30', '20', '10'\]; expected .* previous posterior"):
        LaplaceRegressor(**SMALL, sigma_noise=0.1, prior=FrozenEstimator(first)).fit(X[[30, 20, 10]], y)


def test_a_fit_forgets_the_names_of_the_last_one():
    X, y = rows([10, 20, 30])
    model = LaplaceRegressor(**SMALL, sigma_noise=0.1).fit(X, y).fit(X.to_numpy(), y)
    np.testing.assert_array_equal(model.predict(X[[20, 10, 30]]), model.predict(X[[20, 10, 30]].to_numpy()))
    model.fit(X.rename(columns=str), y)
    assert list(model.feature_names_in_) == ["10", "20", "30"]


def test_equal_names_may_have_other_types():
    """Names read from a file may be floats or integers of NumPy."""
    X, y = rows([10, 20, 30])
    model = LaplaceRegressor(**SMALL, sigma_noise=0.1).fit(X, y)
    for names in ([10.0, 20.0, 30.0], pd.Index(np.array([10, 20, 30], dtype="int8")).astype(object)):
        np.testing.assert_array_equal(model.predict(X.set_axis(names, axis=1)), model.predict(X))


def test_a_number_that_is_a_position_and_another_columns_name_is_refused():
    """The advice for both meanings is executed."""
    X, y = rows([1, 2, 3])
    X = X.round()
    with pytest.raises(ValueError, match="the position 2, and X has a column named 2 at position 1") as refused:
        LaplaceRegressor(**SMALL, categorical_features=[2]).fit(X, y)
    name, position = (
        eval(part.split(" for the ")[0], {"X": X, "numpy": np})
        for part in str(refused.value).split("mask: ")[1].split(", ")
    )
    for mask, place in ((name, 1), (position, 2), ([0], 0)):
        model = LaplaceRegressor(**SMALL, sigma_noise=0.1, categorical_features=mask).fit(X, y)
        assert np.flatnonzero(model._table.levels).tolist() == [place]


def test_a_tuple_is_the_name_of_a_column():
    X, y = rows(NAMES["tuples"])
    model = LaplaceRegressor(**SMALL, sigma_noise=0.1, categorical_features=[("a", 2)]).fit(X.round(), y)
    assert np.flatnonzero(model._table.levels).tolist() == [1]
