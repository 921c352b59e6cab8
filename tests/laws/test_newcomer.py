"""A new user's workflow: CSV file, pipeline, intervals, plot, stored model, and a new process that loads it."""

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
X = pd.read_csv("flats.csv").drop(columns="rent")[70:]
names, types = sys.argv[1].split(","), sys.argv[2:]
for name in names:
    pipe = skops.io.load(f"{name}.skops", trusted=["sklearn_laplace._estimator.regressor.LaplaceRegressor", *types])
    np.savez(f"{name}.npz", *predict_interval(pipe, X))
"""
OPTIONS = {"raw": {}, "encoded": {"n_members": 1}}
MIXED = {
    # only the identifier is dropped: text and missing values go to the net unchanged
    "raw": lambda: make_column_transformer(("drop", ["id"]), remainder="passthrough"),
    "encoded": lambda: make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["size", "year"]),
        (OneHotEncoder(sparse_output=False, handle_unknown="ignore"), ["town"]),
    ),
}


def write_flats(path):
    """Rents with size, year and town as numbers and text, with missing values."""
    rng = np.random.default_rng(0)
    size, town = rng.uniform(30, 150, N_ROWS).round(), rng.choice(["Bern", "Basel", "Chur"], N_ROWS)
    rent = 300 + 12 * size + 250 * (town == "Basel") + 100 * rng.normal(size=N_ROWS)
    year = rng.integers(1900, 2020, N_ROWS).astype(float)
    table = pd.DataFrame({"id": np.arange(N_ROWS), "town": town, "size": size, "year": year, "rent": rent.round()})
    table.loc[rng.choice(N_ROWS, 9, replace=False), "year"] = np.nan
    table.loc[rng.choice(N_ROWS, 9, replace=False), "town"] = None
    table.to_csv(path, index=False)


def test_from_a_csv_to_the_same_numbers_in_a_new_process(tmp_path, monkeypatch):
    """The steps of a new user, with raw and with encoded columns: fit, intervals, plot, and a file."""
    monkeypatch.chdir(tmp_path)
    write_flats("flats.csv")
    table = pd.read_csv("flats.csv")
    X, y = table.drop(columns="rent"), table["rent"]
    predictions, untrusted = {}, set()
    for name, columns in MIXED.items():
        pipe = make_pipeline(columns(), LaplaceRegressor(hidden_layer_sizes=(10,), random_state=0, **OPTIONS[name]))
        pipe.fit(X[:N_FIT], y[:N_FIT])
        mean, interval = predictions[name] = sklearn_laplace.predict_interval(pipe, X[N_FIT:])
        PredictionIntervalDisplay.from_estimator(pipe, X[N_FIT:], y[N_FIT:]).figure_.savefig(f"{name}.png")
        skops.io.dump(pipe, f"{name}.skops")

        inside = (interval[:, 0] <= y[N_FIT:]) & (y[N_FIT:] <= interval[:, 1])
        assert inside.mean() > 0.6  # 20 rows at a level of 0.9: five standard errors below
        assert np.corrcoef(mean, y[N_FIT:])[0, 1] > 0.9
        assert matplotlib.image.imread(f"{name}.png")[..., :3].std() > 0.02
        untrusted.update(skops.io.get_untrusted_types(file=f"{name}.skops"))
    assert untrusted <= {"sklearn_laplace._estimator.regressor.LaplaceRegressor", "numpy.dtype"}
    script = [sys.executable, "-W", "error", "-c", LOAD, ",".join(MIXED), *sorted(untrusted)]
    subprocess.run(script, check=True, timeout=300)
    for name, (mean, interval) in predictions.items():
        loaded = np.load(f"{name}.npz")
        np.testing.assert_array_equal(loaded["arr_0"], mean)
        np.testing.assert_array_equal(loaded["arr_1"], interval)


def test_save_says_what_to_do_with_a_pipeline(tmp_path):
    """save stores a Laplace estimator without the earlier steps of a pipeline."""
    pipe = make_pipeline(StandardScaler(), LaplaceRegressor())
    with pytest.raises(TypeError, match=r"save was given a Pipeline.*Write the other steps with skops"):
        sklearn_laplace.save(pipe, tmp_path / "model")
