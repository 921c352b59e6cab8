"""Tables as read from a file: categories, missing values, heavy tails, and errors."""

from __future__ import annotations

import io
import pickle
from decimal import Decimal
from fractions import Fraction

import joblib
import nets
import numpy as np
import pandas as pd
import pytest
import torch
import trainings
from shortened import all_steps
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._table import column as _columns
from sklearn_laplace._table import table as _tables
from sklearn_laplace._table.fillings import order
from sklearn_laplace.nets import MLP, TableMLP

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.TableWarning"),
    pytest.mark.usefixtures("short_trainings"),
]
"""Many tests set a column to an unknown category; tests/data/test_dirt.py covers the warnings."""

N = 60
EFFECT = {"red": 2.0, "green": 0.0, "blue": -2.0}
FIXED = {
    "hidden_layer_sizes": (4,),
    "prior_precision": 1.0,
    "sigma_noise": 0.3,
    "random_state": 0,
    "memory": trainings.MEMORY,
}
CHOSEN = {
    "hidden_layer_sizes": (4,),
    "prior_precision": "evidence",
    "n_members": 1,
    "random_state": 0,
    "memory": trainings.MEMORY,
}


def as_read(n: int = N, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """A table read from a CSV file: strings, numbers with gaps, a boolean and an integer column."""
    rng = np.random.default_rng(seed)
    colour = np.tile(list(EFFECT), n)[:n]
    x, size = rng.normal(size=n), rng.normal(size=n)
    y = np.array([EFFECT[c] for c in colour]) + np.sin(2 * x) + 0.1 * rng.normal(size=n)
    size[::7] = np.nan
    table = pd.DataFrame({"x": x, "colour": colour, "size": size, "new": x > 0, "rooms": rng.integers(1, 5, n)})
    file = io.StringIO()
    table.to_csv(file, index=False)
    file.seek(0)
    return pd.read_csv(file), y


@pytest.fixture(scope="module")
def fitted():
    table, y = as_read()
    with all_steps():
        return LaplaceRegressor(**CHOSEN).fit(table, y), table, y


def std_at(model, table, **changes):
    return model.predict(table.assign(**changes), return_std=True)[1]


# ---------------------------------------------------------------------- categories


def test_a_table_as_it_was_read_needs_no_preparation(fitted):
    model, table, y = fitted
    assert model.score(table, y) > 0.95
    assert list(model.feature_names_in_) == list(table.columns)
    assert isinstance(model.net_.module_, TableMLP)


def test_a_classifier_takes_the_same_tables():
    table, y = as_read()
    model = LaplaceClassifier(hidden_layer_sizes=(4,), prior_precision=1.0, random_state=0).fit(table, y > 0)
    assert model.score(table, y > 0) > 0.9
    known, unknown = model.predict_proba(table), model.predict_proba(table.assign(colour="violet"))
    assert np.abs(unknown - 0.5).mean() < np.abs(known - 0.5).mean()


def test_an_unseen_category_widens_by_the_spread_between_the_seen_ones(fitted):
    """The effects of the three levels have a standard deviation of 1.6, about the uncertainty of an unseen one."""
    model, table, _ = fitted
    seen, unseen = model.predict(table, return_std=True)[1], std_at(model, table, colour="violet")
    assert np.all(unseen > 3 * seen.mean())
    assert 0.8 < np.median(unseen) < 5.0


def test_embeddings_have_a_prior_precision_of_their_own_also_under_scalar(fitted):
    model, _, _ = fitted
    assert model.prior_groups_ == ("all", "embeddings.0.weight")
    assert len(model.prior_precision_) == 2


@pytest.mark.usefixtures("complete_training")
def test_a_column_without_effect_leaves_unseen_levels_narrow():
    """The uncertainty of an unseen level is the spread between the levels, which is zero here."""
    table, y = as_read()
    table["mark"] = np.random.default_rng(3).choice(["a", "b", "c", "d"], N)
    model = LaplaceRegressor(**CHOSEN).fit(table, y)
    assert std_at(model, table, mark="?").mean() < 0.5 * std_at(model, table, colour="?").mean()


def test_the_embedding_of_what_was_not_seen_stays_at_the_prior(fitted):
    model, _, _ = fitted
    weight = model.net_.module_.embeddings[0].weight.detach()
    assert float(weight[:, -1].abs().max()) < 1e-6 < float(weight[:, :-1].abs().max())
    sizes = [block.size for block in model.laplace_.network.blocks]
    k = [block.name for block in model.laplace_.network.blocks].index("embeddings.0")
    variance = model.posterior_.marginal_variance()[sum(sizes[:k]) : sum(sizes[: k + 1])].view(4, 4)
    np.testing.assert_allclose(variance[:, -1].numpy(), 1 / model.prior_precision_[1], rtol=1e-6)


@pytest.mark.usefixtures("complete_training")
def test_a_linear_net_with_categories_is_a_linear_model_with_random_effects():
    """The posterior is that of Bayesian linear regression on indicators, with the same prior and scales."""
    table, y = as_read()
    table = table[["x", "colour"]]
    model = LaplaceRegressor(
        hidden_layer_sizes=(), prior_precision=2.0, sigma_noise=0.5, standardize_y=False, random_state=0
    ).fit(table, y)
    z = ((table.x - table.x.mean()) / table.x.std(ddof=0)).to_numpy()[:, None]
    levels = (table.colour.to_numpy()[:, None] == np.array(["blue", "green", "red", "?"])).astype(float)
    design = np.column_stack([z / 2**0.5, np.ones(N), levels / 2**0.5])
    covariance = np.linalg.inv(design.T @ design / 0.25 + 2.0 * np.eye(design.shape[1]))
    mean, std = model.predict(table, return_std=True)
    np.testing.assert_allclose(mean, design @ covariance @ design.T @ y / 0.25, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(std**2, np.einsum("ni,ij,nj->n", design, covariance, design) + 0.25, rtol=1e-6)
    # An unknown level is one of the known ones: of 16 values at even shares, 5 are blue, 6 green and 5 red.
    at = [design * np.array([1, 1, 0, 0, 0, 0]) + np.eye(6)[2 + level] * 2**-0.5 for level in range(3)]
    means = np.array([rows @ covariance @ design.T @ y / 0.25 for rows in at])
    variances = np.array([np.einsum("ni,ij,nj->n", rows, covariance, rows) for rows in at])
    shares = np.array([5, 6, 5]) / 16
    expected = shares @ variances + shares @ means**2 - (shares @ means) ** 2 + 0.25
    _, std = model.predict(table.assign(colour="?"), return_std=True)
    np.testing.assert_allclose(std**2, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["object", "category", "string"])
def test_strings_are_categories_whatever_type_holds_them(dtype, fitted):
    table, y = as_read()
    converted = table.astype({"colour": dtype})
    expected = LaplaceRegressor(**FIXED).fit(table, y).predict(table)
    model = LaplaceRegressor(**FIXED).fit(converted, y)
    np.testing.assert_array_equal(model.predict(converted), expected)
    np.testing.assert_array_equal(model.predict(table), expected)


@pytest.mark.parametrize("options", [{}, {"hessian_structure": "kron"}, {"prior": "ard"}])
@pytest.mark.usefixtures("complete_training")
def test_a_table_of_categories_alone_is_fitted(options):
    """Without numeric columns the first layer has no weights, only embeddings."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.choice(list("uvw"), 80), "b": rng.choice(list("xy"), 80)})
    y = np.where(table.a == "u", 1.0, 0.0) - np.where(table.b == "x", 0.5, 0.0) + 0.1 * rng.normal(size=80)
    model = LaplaceRegressor(**CHOSEN, **options).fit(table, y)
    assert np.sqrt(np.mean((model.predict(table) - y) ** 2)) < 0.15, "the noise level is 0.1"
    seen, new = model.predict_std(pd.DataFrame({"a": ["u", "?"], "b": ["x", "x"]}), kind="epistemic")
    assert new > 3 * seen


def test_polars_tables_are_read_as_pandas_ones():
    polars = pytest.importorskip("polars")
    table, y = as_read()
    other = polars.DataFrame({name: table[name].tolist() for name in table.columns})
    other = other.with_columns(polars.col("size").fill_nan(None))
    expected = LaplaceRegressor(**FIXED).fit(table, y).predict(table)
    for kind in (polars.String, polars.Categorical, polars.Enum(sorted(EFFECT))):
        frame = other.with_columns(polars.col("colour").cast(kind))
        np.testing.assert_array_equal(LaplaceRegressor(**FIXED).fit(frame, y).predict(frame), expected)


def test_arrays_of_objects_and_lists_are_read_as_tables():
    table, y = as_read()
    expected = LaplaceRegressor(**FIXED).fit(table, y).predict(table)
    for rows in (table.to_numpy(dtype=object), table.to_numpy(dtype=object).tolist()):
        np.testing.assert_array_equal(LaplaceRegressor(**FIXED).fit(rows, y).predict(rows), expected)


def test_levels_are_equal_by_value_not_by_type():
    """Integers read back as floats, and a category dtype with other categories in another order."""
    table, y = as_read()
    model = LaplaceRegressor(**FIXED, categorical_features=["rooms", "colour", "new"]).fit(table, y)
    expected = model.predict(table)
    other = table.astype({"rooms": float, "new": int})
    other["colour"] = pd.Categorical(other.colour, categories=["violet", *sorted(EFFECT)])
    np.testing.assert_array_equal(model.predict(other), expected)


def test_a_missing_category_is_a_level_where_the_training_has_it_and_unknown_elsewhere():
    table, y = as_read()
    gaps = table.astype({"colour": object})
    gaps.loc[gaps.colour == "red", "colour"] = None
    model = LaplaceRegressor(**FIXED).fit(gaps, y)
    renamed = LaplaceRegressor(**FIXED).fit(table.replace({"colour": {"red": "~"}}), y)
    np.testing.assert_array_equal(model.predict(gaps), renamed.predict(table.replace({"colour": {"red": "~"}})))
    model = LaplaceRegressor(**FIXED).fit(table, y)
    for nothing in (None, np.nan, pd.NA):
        missing = table.assign(colour=pd.Series([nothing] * N, dtype=object))
        np.testing.assert_array_equal(model.predict(missing), model.predict(table.assign(colour="violet")))


def test_ten_thousand_levels_take_seconds_and_the_rarest_share_an_embedding():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"id": [f"u{k}" for k in range(10_000)], "x": rng.normal(size=10_000)})
    fitted_table = _tables.Table.of(table, np.ones(10_000), None)
    assert fitted_table.levels == (_columns.MAX_LEVELS + 1, 0)
    coded = fitted_table.coded(table)
    assert (coded[:, 0] == _columns.MAX_LEVELS).sum() == 10_000 - _columns.MAX_LEVELS
    model = LaplaceRegressor(**FIXED | {"hidden_layer_sizes": (2,)}, subset_of_weights="last_layer", max_epochs=1)
    part = table.iloc[:300]
    model.fit(part, part.x)
    assert np.isfinite(model.predict(table.iloc[290:310])).all()


@pytest.mark.usefixtures("complete_training")
def test_a_category_of_one_row_is_less_certain_than_one_of_many():
    table, y = as_read()
    table = table.astype({"colour": object})
    table.loc[5, "colour"] = "violet"
    model = LaplaceRegressor(**FIXED).fit(table, y)
    rare, unseen = std_at(model, table, colour="violet"), std_at(model, table, colour="?")
    assert std_at(model, table, colour="red").mean() < rare.mean() < unseen.mean()


# ---------------------------------------------------------------------- missing numbers


def test_a_missing_number_has_an_effect_of_its_own():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 2))
    y = x[:, 1] + 0.05 * rng.normal(size=80)
    x[::4, 0], y[::4] = np.nan, y[::4] + 5.0
    model = LaplaceRegressor(**CHOSEN).fit(x, y)
    assert model.score(x, y) > 0.95
    assert model.net_.module_.first.in_features == 3  # two numbers and one indicator


def test_an_update_refuses_the_first_missing_numbers_of_a_column_by_name():
    """The net has no input that marks them; predictions take them, see test_gaps.py."""
    table, y = as_read()
    model = LaplaceRegressor(**FIXED).fit(table, y)
    with pytest.raises(ValueError, match=r"Input X contains NaN in column 'x', in 60 rows.*SimpleImputer"):
        model.partial_fit(table.assign(x=np.nan), y)
    model.partial_fit(table.assign(size=np.nan), y)


def test_infinity_is_refused_by_name():
    table, y = as_read()
    model = LaplaceRegressor(**FIXED)
    with pytest.raises(ValueError, match=r"infinity.*in column 'size'"):
        model.fit(table.assign(size=np.inf), y)
    with pytest.raises(ValueError, match=r"infinity.*in column 1"):
        model.fit(np.column_stack([y, y * np.inf]), y)


def test_a_column_all_missing_has_no_influence():
    table, y = as_read()
    rest = table.drop(columns=["size"])
    model = LaplaceRegressor(**FIXED).fit(table.assign(size=np.nan), y)
    mean, std = model.predict(table.assign(size=np.nan), return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    network = model.laplace_.network
    total = model.laplace_.curvature.times(torch.ones(network.n_parameters, dtype=torch.float64))
    curvature = network.tensors(total)["first.weight"]
    assert float(curvature[:, 1].abs().max()) == 0.0  # position of "size" among the numeric columns
    assert LaplaceRegressor(**FIXED).fit(rest, y).score(rest, y) > 0.9


def test_tags_say_that_only_the_built_in_net_takes_missing_values():
    assert LaplaceRegressor().__sklearn_tags__().input_tags.allow_nan
    assert not LaplaceRegressor(nets.Hidden).__sklearn_tags__().input_tags.allow_nan
    X = np.array([[1.0, np.nan], [2.0, 3.0]])
    with pytest.raises(ValueError, match="contains NaN"):
        LaplaceRegressor(nets.regressor()).fit(X, X[:, 0])


# ---------------------------------------------------------------------- weights, scales, times


def test_weights_are_repetitions_in_every_kind_of_column():
    table, y = as_read()
    table["tail"] = np.random.default_rng(5).standard_cauchy(N)
    table.loc[3, "tail"] = 1e6
    weights = np.random.default_rng(2).integers(0, 3, N)
    again = np.repeat(np.arange(N), weights)
    weighted = LaplaceRegressor(**CHOSEN, sigma_noise=0.3).fit(table, y, sample_weight=weights)
    repeated = LaplaceRegressor(**CHOSEN, sigma_noise=0.3).fit(table.iloc[again], y[again])
    assert weighted._table == repeated._table
    np.testing.assert_array_equal(weighted.predict(table.iloc[again]), repeated.predict(table.iloc[again]))


def test_a_table_of_well_behaved_numbers_has_the_plain_net():
    X = np.random.default_rng(0).normal(size=(N, 3))
    model = LaplaceRegressor(**FIXED).fit(pd.DataFrame(X, columns=list("abc")), X[:, 0])
    assert type(model.net_.module_) is MLP
    assert type(model.net_.module_[0]).__name__ == "Standardise"
    np.testing.assert_array_equal(
        model.predict(pd.DataFrame(X, columns=list("abc"))),
        LaplaceRegressor(**FIXED).fit(X, X[:, 0]).predict(X),
    )


def test_heavy_tails_are_drawn_in_without_an_end():
    """The target depends on the logarithm of a log-normal column; uncertainty keeps growing far out."""
    rng = np.random.default_rng(0)
    X = np.exp(3 * rng.normal(size=(200, 1)))
    y = np.log(X[:, 0]) + 0.1 * rng.normal(size=200)
    model = LaplaceRegressor(**CHOSEN).fit(X, y)
    assert type(model.net_.module_[0]).__name__ == "Compress"
    std = model.predict(np.array([[1e4], [1e9], [1e18]]), return_std=True)[1]
    assert std[0] < std[1] < std[2]


@pytest.mark.usefixtures("complete_training")
def test_an_outlier_leaves_the_other_rows_their_scale():
    """One value with six digits too many would dominate the standard deviation of its column."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 1))
    X[7], y = 1e6, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=100)
    kept = np.arange(100) != 7
    assert LaplaceRegressor(**CHOSEN).fit(X, y).score(X[kept], y[kept]) > 0.7


def test_times_are_days_and_booleans_are_numbers():
    """Within two days, where no cycle is added."""
    table, y = as_read()
    days = np.arange(N) * 1.5 / N
    dated = table.assign(when=pd.Timestamp("2020-01-01") + pd.to_timedelta(days, unit="D"))
    numbered = table.assign(when=18262.0 + days, new=table.new.astype(float))
    expected = LaplaceRegressor(**FIXED).fit(numbered, y).predict(numbered)
    model = LaplaceRegressor(**FIXED).fit(dated, y)
    np.testing.assert_allclose(model.predict(dated), expected, rtol=1e-9)
    zoned = dated.assign(when=dated.when.dt.tz_localize("UTC"))
    model = LaplaceRegressor(**FIXED).fit(zoned, y)
    elsewhere = zoned.assign(when=zoned.when.dt.tz_convert("Asia/Tokyo"))
    np.testing.assert_allclose(model.predict(elsewhere), expected, rtol=1e-9)


# ---------------------------------------------------------------------- other methods of the estimator


def test_a_saved_model_keeps_its_levels(tmp_path):
    table, y = as_read()
    model = LaplaceRegressor(**FIXED, categorical_features=["colour", "rooms", "new"]).fit(table, y)
    expected = model.predict(table, return_std=True)
    joblib.dump(model, tmp_path / "model.joblib")
    for other in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
        for mine, theirs in zip(expected, other.predict(table, return_std=True), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert other._table == model._table


def test_rows_come_and_go_in_coded_form():
    table, y = as_read()
    model = LaplaceRegressor(**FIXED, hessian_structure="full").fit(table.iloc[:50], y[:50])
    before = model.predict(table, return_std=True)
    model.partial_fit(table.iloc[50:], y[50:])
    assert model.loo_predict().shape == (N,)
    model.forget(table.iloc[50:], y[50:])
    for mine, theirs in zip(before, model.predict(table, return_std=True), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_a_row_alone_with_its_level_is_predicted_as_unknown_when_it_is_left_out():
    table, y = as_read()
    table = table.astype({"colour": object})
    table.loc[5, "colour"] = "violet"
    model = LaplaceRegressor(**FIXED).fit(table, y)
    _, std = model.loo_predict(return_std=True)
    assert std.argmax() == 5


@pytest.mark.usefixtures("complete_training")
def test_an_unknown_level_widens_intervals():
    table, y = as_read()
    model = LaplaceRegressor(hidden_layer_sizes=(3,), random_state=0).fit(table, y)
    _, ends = model.predict_interval(table, 0.9)
    inside = (ends[:, 0] <= y) & (y <= ends[:, 1])
    assert inside.mean() > 0.8
    unknown = model.predict_interval(table.assign(colour="?"), 0.9)[1]
    assert np.ptp(unknown, axis=1).mean() > 2 * np.ptp(ends, axis=1).mean()


def test_searches_pipelines_and_clones_take_tables(tmp_path):
    table, y = as_read()
    scaler = ColumnTransformer([("scale", StandardScaler(), ["x"])], remainder="passthrough")
    pipe = make_pipeline(scaler.set_output(transform="pandas"), LaplaceRegressor(**{**FIXED, "memory": str(tmp_path)}))
    search = GridSearchCV(pipe, {"laplaceregressor__temperature": [1.0, 2.0]}, cv=2).fit(table, y)
    assert search.best_estimator_[-1]._table.levels.count(3) == 1
    copy = clone(LaplaceRegressor(categorical_features=["colour"]))
    assert copy.categorical_features == ["colour"]


def test_folds_of_a_search_have_levels_of_their_own():
    table, y = as_read(40)
    table.loc[3, "colour"] = "violet"
    model = LaplaceRegressor(hidden_layer_sizes=(2,), sigma_noise=0.3, map_prior_precision=1.0, random_state=0)
    search = GridSearchCV(model, {"prior_precision": [0.1, 1.0]}, cv=2).fit(table, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_several_outputs_and_workers_take_tables():
    table, y = as_read()
    both = np.column_stack([y, -y])
    model = LaplaceRegressor(**FIXED).fit(table, both)
    assert model.predict(table).shape == (N, 2)
    expected = model.predict(table, return_std=True)[1]
    np.testing.assert_array_equal(model.set_params(n_jobs=2).predict(table, return_std=True)[1], expected)


@pytest.mark.usefixtures("complete_training")
def test_relevance_has_one_value_for_each_column_of_the_table():
    table, y = as_read()
    table = table.drop(columns="new").assign(nothing=np.nan)
    model = LaplaceRegressor(**CHOSEN, prior="ard").fit(table, y)
    relevance = dict(zip(table.columns, model.feature_relevance_, strict=True))
    assert np.isclose(sum(relevance.values()), 1.0)
    assert sorted(relevance, key=relevance.get)[-2:] in (["x", "colour"], ["colour", "x"])
    assert relevance["nothing"] < 1e-12  # 1 − γ/n is zero up to rounding for a column without data


@pytest.mark.usefixtures("complete_training")
def test_a_previous_posterior_keeps_its_levels():
    table, y = as_read()
    first = LaplaceRegressor(**FIXED).fit(table.iloc[:30], y[:30])
    model = LaplaceRegressor(**FIXED, prior=FrozenEstimator(first))
    later = table.iloc[30:].assign(colour=table.colour.iloc[30:].replace({"red": "violet"}))
    model.fit(later, y[30:])
    assert [column.codes for column in model._table.columns] == [column.codes for column in first._table.columns]
    assert std_at(model, table, colour="red").mean() < 1.5 * std_at(model, table, colour="green").mean()


# ---------------------------------------------------------------------- errors


def test_columns_of_another_order_or_name_are_refused_as_by_scikit_learn():
    table, y = as_read()
    model = LaplaceRegressor(**FIXED).fit(table, y)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table[table.columns[::-1]])
    with pytest.raises(ValueError, match="features"), pytest.warns(UserWarning, match="feature names"):
        model.predict(table.to_numpy(dtype=object)[:, :3])


@pytest.mark.parametrize("asked", ["colours", 3.0, [1.5], {"colour"}])
def test_categorical_features_of_another_kind_are_refused(asked):
    table, y = as_read()
    with pytest.raises(ValueError, match=r"categorical_features=.* has to be 'from_dtype', None, a list"):
        LaplaceRegressor(**FIXED, categorical_features=asked).fit(table, y)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["color"], r"names 'color'; the columns of X are x, colour"),
        ([7], r"holds position 7, and X has 5 columns; expected 0 to 4"),
        ([True, False], r"a mask of 2 values, and X has 5 columns"),
    ],
)
def test_categorical_features_that_are_not_there_are_refused(asked, message):
    table, y = as_read()
    with pytest.raises(ValueError, match=message):
        LaplaceRegressor(**FIXED, categorical_features=asked).fit(table, y)


def test_names_positions_and_a_mask_mean_the_same_columns():
    table, y = as_read()
    asked = (["colour", "rooms"], [1, -1], np.array([False, True, False, False, True]))
    models = [LaplaceRegressor(**FIXED, categorical_features=columns).fit(table, y) for columns in asked]
    assert models[0]._table == models[1]._table == models[2]._table
    assert models[0]._table.levels == (0, 3, 0, 0, 4)
    with pytest.raises(ValueError, match="X has no column names"):
        LaplaceRegressor(**FIXED, categorical_features=["x"]).fit(np.zeros((5, 2)), np.arange(5))


def test_strings_are_refused_by_name_where_nothing_is_categorical():
    table, y = as_read()
    with pytest.raises(
        ValueError, match=r"could not convert string to float: 'red' in column 'colour' of X.*from_dtype"
    ):
        LaplaceRegressor(**FIXED, categorical_features=None).fit(table, y)


def test_numbers_and_strings_in_one_column_are_refused_by_name():
    table, y = as_read()
    mixed = table.astype({"rooms": object})
    mixed.loc[2, "rooms"] = "many"
    with pytest.raises(ValueError, match=r"column 'rooms' of X holds numbers and strings, .*'many'.*to_numeric"):
        LaplaceRegressor(**FIXED).fit(mixed, y)
    model = LaplaceRegressor(**FIXED).fit(table, y)
    with pytest.raises(ValueError, match=r"column 'rooms' of X holds numbers and strings"):
        model.predict(mixed)


@pytest.mark.parametrize("value", [{"a": 1}, [1], pd.Timestamp("2020-01-01")])
def test_values_that_are_neither_numbers_nor_strings_are_refused_by_name(value):
    table, y = as_read()
    odd = table.astype({"rooms": object})
    odd.at[2, "rooms"] = value
    with pytest.raises(TypeError, match=r"column 'rooms' of X holds .*argument must be a string or a real number"):
        LaplaceRegressor(**FIXED).fit(odd, y)


def test_a_given_net_says_which_columns_it_cannot_take():
    table, y = as_read()
    table = table.drop(columns="size")
    with pytest.raises(
        ValueError, match=r"the given net accepts only numbers; X has other values in column 'colour'.*OneHotEncoder"
    ):
        LaplaceRegressor(nets.Hidden).fit(table, y)
    with pytest.raises(ValueError, match="categorical_features can only be used with the built-in net"):
        LaplaceRegressor(nets.Hidden, categorical_features=["colour"]).fit(table, y)


def test_text_that_looks_like_numbers_stays_text_in_a_single_row():
    """The type of a column is fixed by the training rows, so a single row is coded as in a table."""
    X = np.array([["1", "x"], ["2", "y"], ["A", "x"]])
    table = _tables.Table.of(X, np.ones(3), None)
    np.testing.assert_array_equal(table.coded(X[:1]), table.coded(X)[:1])


@pytest.mark.parametrize("text", [False, True], ids=["numbers", "and text"])
def test_numbers_of_a_categorical_type_are_categories_whatever_the_other_columns_are(text):
    rng = np.random.default_rng(0)
    code = rng.integers(1, 4, N)
    table = pd.DataFrame({"size": rng.normal(size=N), "code": code})
    table = table.assign(t="a") if text else table
    y = table["size"] + np.array([3.0, -2.0, 0.0])[code - 1]
    typed = table.assign(code=table["code"].astype("category"))
    named = LaplaceRegressor(categorical_features=["code", *table.columns[2:]], **FIXED).fit(table, y)
    by_type = LaplaceRegressor(**FIXED).fit(typed, y)
    assert by_type.table_.rows[1][1] == "category"
    np.testing.assert_array_equal(by_type.predict(typed), named.predict(table))
    plain = LaplaceRegressor(**FIXED).fit(table[["size", "code"]], y)
    np.testing.assert_array_equal(plain.predict(typed[["size", "code"]]), plain.predict(table[["size", "code"]]))


@pytest.mark.parametrize("kind", [Decimal, Fraction])
def test_levels_of_any_number_type_are_found_again(kind):
    levels = [kind("0.1"), kind("0.2"), kind("0.3")]
    code = np.arange(N) % 3
    table = pd.DataFrame({"x": np.sin(np.arange(N)), "c": [levels[k] for k in code]})
    model = LaplaceRegressor(categorical_features=["c"], **FIXED).fit(table, 3.0 * code)
    assert model.score(table, 3.0 * code) > 0.9
    np.testing.assert_array_equal(model.predict(table), model.predict(table.assign(c=table["c"].astype(float))))


def test_large_identifiers_are_told_apart_or_refused():
    code = np.arange(N) % 3
    table = pd.DataFrame({"id": 2**60 + code, "x": np.sin(np.arange(N))})
    model = LaplaceRegressor(categorical_features=["id"], **FIXED)
    for kind in (np.int64, object, "category"):
        with pytest.raises(ValueError, match=r"column 'id' of X holds numbers of 2\*\*53 or more as categories"):
            model.fit(table.astype({"id": kind}), 3.0 * code)
    assert model.fit(table.astype({"id": str}), 3.0 * code).score(table.astype({"id": str}), 3.0 * code) > 0.9


def test_a_further_unknown_column_adds_its_variance():
    """The 16 copies combine the values of columns almost independently of each other."""
    orders = np.array([order(place) for place in range(18)])
    np.testing.assert_array_equal(np.sort(orders, 1), np.tile(np.arange(16), (18, 1)))
    correlation = np.abs(np.corrcoef(orders[:15]) - np.eye(15))
    assert correlation[:5, :5].max() < 0.1
    assert correlation.max() < 0.4
