"""The newcomer's path: a CSV of one's own, a pipeline, intervals, a picture, a file, and a process that opens it."""

import subprocess
import sys

import matplotlib
import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import sklearn_laplace
from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.plotting import PredictionIntervalDisplay

matplotlib.use("Agg")
N_ROWS, N_FIT = 90, 70
LOAD = """
import sys
import numpy as np, pandas as pd, skops.io
from sklearn_laplace import predict_interval
pipe = skops.io.load("model.skops", trusted=["sklearn_laplace.regressor.LaplaceRegressor", *sys.argv[1:]])
X = pd.read_csv("flats.csv").drop(columns="rent")[70:]
np.savez("again.npz", *predict_interval(pipe, X))
"""
MIXED = {
    # nothing but an identifier taken out: text and gaps go to the net as they are
    "as it is": lambda: make_column_transformer(("drop", ["id"]), remainder="passthrough"),
    "encoded": lambda: make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["size", "year"]),
        (OneHotEncoder(sparse_output=False, handle_unknown="ignore"), ["town"]),
    ),
}


def write_flats(path):
    """Rents by size, year and town, in text and numbers, some of them missing."""
    rng = np.random.default_rng(0)
    size, town = rng.uniform(30, 150, N_ROWS).round(), rng.choice(["Bern", "Basel", "Chur"], N_ROWS)
    rent = 300 + 12 * size + 250 * (town == "Basel") + 100 * rng.normal(size=N_ROWS)
    year = rng.integers(1900, 2020, N_ROWS).astype(float)
    table = pd.DataFrame({"id": np.arange(N_ROWS), "town": town, "size": size, "year": year, "rent": rent.round()})
    table.loc[rng.choice(N_ROWS, 9, replace=False), "year"] = np.nan
    table.loc[rng.choice(N_ROWS, 9, replace=False), "town"] = None
    table.to_csv(path, index=False)


@pytest.mark.parametrize("columns", MIXED)
def test_from_a_csv_to_the_same_numbers_in_a_new_process(columns, tmp_path, monkeypatch):
    """What a first user does, in fewer than fifteen lines; each of them fails in its own way if anything is missing."""
    monkeypatch.chdir(tmp_path)
    write_flats("flats.csv")

    table = pd.read_csv("flats.csv")
    X, y = table.drop(columns="rent"), table["rent"]
    pipe = make_pipeline(MIXED[columns](), LaplaceRegressor(hidden_layer_sizes=(10,), random_state=0))
    pipe.fit(X[:N_FIT], y[:N_FIT])
    mean, interval = sklearn_laplace.predict_interval(pipe, X[N_FIT:])
    PredictionIntervalDisplay.from_estimator(pipe, X[N_FIT:], y[N_FIT:]).figure_.savefig("intervals.png")
    skops.io.dump(pipe, "model.skops")

    inside = (interval[:, 0] <= y[N_FIT:]) & (y[N_FIT:] <= interval[:, 1])
    assert inside.mean() > 0.6  # twenty rows at a level of .9: five standard errors
    assert np.corrcoef(mean, y[N_FIT:])[0, 1] > 0.9
    assert matplotlib.image.imread("intervals.png")[..., :3].std() > 0.02
    untrusted = skops.io.get_untrusted_types(file="model.skops")
    assert set(untrusted) <= {"sklearn_laplace.regressor.LaplaceRegressor", "numpy.dtype"}
    subprocess.run([sys.executable, "-W", "error", "-c", LOAD, *untrusted], check=True, timeout=300)
    again = np.load("again.npz")
    np.testing.assert_array_equal(again["arr_0"], mean)
    np.testing.assert_array_equal(again["arr_1"], interval)


def test_save_says_what_to_do_with_a_pipeline(tmp_path):
    """The other way to a file holds one of our estimators, not the steps before it."""
    pipe = make_pipeline(StandardScaler(), LaplaceRegressor())
    with pytest.raises(TypeError, match=r"save was given a Pipeline.*save the last step"):
        sklearn_laplace.save(pipe, tmp_path / "model")
