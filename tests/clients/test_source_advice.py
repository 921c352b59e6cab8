"""Advice in errors about Parquet files, dask and pipelines for ONNX, followed in place of the mistake."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from quick import client
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_laplace import LaplaceRegressor, to_onnx
from sklearn_laplace._table.source_of import source_of

N = 24


def table(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    height, age = rng.uniform(1, 2, N), rng.uniform(1, 9, N)
    return pd.DataFrame({"height": height, "age": age, "price": height + rng.normal(size=N)})


ROWS = table()


def fit(*arguments) -> LaplaceRegressor:
    options = {"hidden_layer_sizes": (4,), "prior_precision": 1.0, "sigma_noise": 1.0}
    return LaplaceRegressor(**options, n_members=1, random_state=0).fit(*arguments)


def refusal(call, kind: type[Exception]) -> str:
    """Message of the error that a call raises."""
    with pytest.raises(kind) as refused:
        call()
    return str(refused.value)


@pytest.fixture
def folder(tmp_path) -> Path:
    client("pyarrow")
    for place in range(2):
        table(place).to_parquet(tmp_path / f"{place}.parquet")
    return tmp_path


def test_columns_of_files_are_named_after_the_advice(folder):
    """Targets and weights of rows in files are columns of these files."""
    message = refusal(lambda: fit(folder, ROWS["price"]), TypeError)
    assert "it has to be the name of a column, or a list of names" in message
    fit(folder, "price")
    fit(folder, ["price"])
    message = refusal(lambda: fit(folder, "price", ROWS["age"]), TypeError)
    assert "it has to be the name of a column." in message
    fit(folder, "price", "age")
    message = refusal(lambda: fit(folder, "cost"), ValueError)
    fit(folder, message.rpartition(" are ")[2].rstrip(".").split(", ")[-1])


def test_files_are_found_after_each_advice(folder):
    message = refusal(lambda: fit(folder / "2.parquet", "price"), FileNotFoundError)
    assert "expected a folder, a file or a pattern of Parquet files" in message
    for path in (folder, folder / "0.parquet", f"{folder}/*.parquet"):
        fit(path, "price")


@pytest.mark.parametrize("replaced", [True, False])
def test_files_are_read_after_each_advice(folder, replaced):
    """An empty file among others, and alone."""
    damaged = folder / "1.parquet"
    damaged.write_bytes(b"")
    message = refusal(lambda: fit(folder, "price"), ValueError)
    assert "write this one again, or remove it" in message
    alone = refusal(lambda: fit(damaged, "price"), ValueError)
    assert "write this one again, or remove it" in alone or "Remove or replace this file" in alone
    if replaced:
        table(1).to_parquet(damaged)
        fit(damaged, "price")
    else:
        damaged.unlink()
    fit(folder, "price")


def test_changed_files_are_read_after_the_advice(folder):
    source = source_of(folder, "price")
    table(2)[:5].to_parquet(folder / "1.parquet")
    message = refusal(lambda: list(source.all_blocks()), OSError)
    assert "Call again when all files are complete" in message
    assert source_of(folder, "price").n_rows == N + 5
    fit(folder, "price")


def test_collections_have_equal_partitions_after_each_advice():
    """Targets in other partitions or in memory, and labels of columns."""
    client("dask.dataframe")
    import dask.array
    import dask.dataframe

    X, y = ROWS[["height", "age"]].to_numpy(), ROWS["price"].to_numpy()
    lazy, named = dask.array.from_array(X, chunks=(8, 2)), dask.dataframe.from_pandas(ROWS, npartitions=3)
    targets = dask.array.from_array(y, chunks=12)
    message = refusal(lambda: fit(lazy, targets), ValueError)
    assert message.endswith("Repartition them alike, or pass the name of a column of X.")
    fit(lazy, targets.rechunk(8))
    fit(named, "price")
    message = refusal(lambda: fit(lazy, y), TypeError)
    assert message.endswith("Pass a collection of dask with the same partitions, or the name of a column of X.")
    message = refusal(lambda: fit(named, "cost"), ValueError)
    assert "its columns are ['height', 'age', 'price']" in message


@pytest.mark.filterwarnings("ignore::sklearn_laplace.errors.ExperimentalWarning")
def test_workers_of_dask_fit_after_the_advice():
    """Two workers share the process of the test, and have one each after the advice."""
    distributed = client("distributed")
    client("dask.dataframe")
    import dask.dataframe

    rows = dask.dataframe.from_pandas(ROWS, npartitions=2)
    workers = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**workers, processes=False) as local, distributed.Client(local):
        message = refusal(lambda: fit(rows, "price"), ValueError)
    ((name, value),) = re.findall(r"start it with (\w+)=(True)\.", message)
    with distributed.LocalCluster(**workers, **{name: value == "True"}) as local, distributed.Client(local):
        model = fit(rows, "price")
    np.testing.assert_allclose(model.predict(ROWS[["height", "age"]]), fit(rows, "price").predict(rows), rtol=1e-6)


def test_a_pipeline_is_exported_after_the_advice():
    """The other steps by another package, and the estimator by ours, one graph after the other."""
    converter, runtime = client("skl2onnx"), client("onnxruntime")
    X, y = ROWS[["height", "age"]].to_numpy(), ROWS["price"]
    estimator = LaplaceRegressor(hidden_layer_sizes=(4,), prior_precision=1.0, n_members=1, random_state=0)
    pipeline = make_pipeline(StandardScaler(), estimator).fit(X, y)
    message = refusal(lambda: to_onnx(pipeline), TypeError)
    (package,) = re.findall(r"Export the other steps of a pipeline with (\w+)\.", message)
    assert package == converter.__name__
    values = X
    for graph in (converter.to_onnx(pipeline[:-1], X), to_onnx(pipeline[-1])):
        session = runtime.InferenceSession(graph.SerializeToString())
        values = session.run(None, {session.get_inputs()[0].name: values})[0]
    np.testing.assert_allclose(values.ravel(), pipeline.predict(X), rtol=1e-6)
