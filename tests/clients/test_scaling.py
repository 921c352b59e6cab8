"""The scripts of ``examples/scaling``: torchrun, dask and Ray fit the same model as one process, and no fit hangs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from quick import client

pyarrow = client("pyarrow")
import few_rows  # noqa: E402 (without pyarrow, all tests of this file are skipped first)

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "scaling"
N, CLOSE = 3000, 0.05
"""Number of rows, and largest difference of log-likelihoods of two short trainings with other mini-batches."""
OF_CLASSES, FEW = "8000", "300"
"""Number of rows of which a classifier learns nearly all, and one that is fitted in memory."""
LIMIT = 300
"""Seconds after which a process counts as hanging."""
posix = pytest.mark.skipif(sys.platform == "win32", reason="gloo needs POSIX here")


def environment() -> dict[str, str]:
    paths = [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
    }


def command(script: str, *options: str, ranks: int = 0) -> list[str]:
    start = [sys.executable]
    if ranks:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*start, str(Path(__file__).parent / "few_rows.py"), str(SCRIPTS / script), *options]


def results(text: str) -> list[dict]:
    """Lines of JSON among the other output."""
    lines = [line[line.index("{") :] for line in text.splitlines() if '{"' in line and line.endswith("}")]
    return [json.loads(line) for line in lines]


def run(*arguments: str, ranks: int = 0) -> list[dict]:
    """Results of a script in processes of its own."""
    ended = subprocess.run(
        command(*arguments, ranks=ranks), env=environment(), capture_output=True, text=True, timeout=2 * LIMIT
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    return results(ended.stdout)


def run_here(script: str, *options: str) -> list[dict]:
    """Results of a script in this process, which has imported the packages already."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as text:
        for (module, name), value in few_rows.SMALL.items():
            patch.setattr(module, name, value)
        patch.syspath_prepend(str(SCRIPTS))
        patch.setattr(sys, "argv", [])
        few_rows.run(str(SCRIPTS / script), *options)
    return results(text.getvalue())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def alone(folder):
    """One process."""
    return run_here("with_torchrun.py", "--folder", folder, "--rows", str(N))[0]


@pytest.fixture(scope="module")
def ranks(folder, alone, tmp_path_factory):
    """Two ranks, with the results of numbers, of classes and of few rows each. Their processes start only once."""
    new = tmp_path_factory.mktemp("ranks")
    few = ["--folder", str(new / "few"), "--rows", FEW, "--memory", str(new / "memory")]
    script = str(SCRIPTS / "with_torchrun.py")
    classes = ["+", script, "--folder", str(new / "labels"), "--rows", OF_CLASSES, "--classes"]
    lines = run("with_torchrun.py", "--folder", folder, "--rows", str(N), *classes, "+", script, *few, ranks=2)
    assert not list(new.glob("memory/sklearn_laplace/*"))
    return [[line for line in lines if line["rank"] == rank] for rank in range(2)]


@posix
def test_ranks_of_torchrun_end_with_the_same_model(ranks, alone):
    """The same to the bit on both ranks, and as good as that of one process."""
    first, second = (of_rank[0] for of_rank in ranks)
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["digest"] == second["digest"]
    assert abs(first["log_likelihood"] - alone["log_likelihood"]) < CLOSE


@posix
def test_ranks_fit_one_classifier(ranks):
    """The same to the bit on both ranks; the labels are text in Parquet files."""
    first, second = (of_rank[1] for of_rank in ranks)
    assert first["digest"] == second["digest"]
    assert first["log_likelihood"] > first["of the truth"] - CLOSE


@posix
def test_ranks_fit_a_small_table_as_one_process_does(ranks, tmp_path):
    """Every rank has all rows then, and the model is that of one process, to the bit."""
    options = ["--folder", str(tmp_path / "rows"), "--rows", FEW, "--memory", str(tmp_path / "alone")]
    alone = run_here("with_torchrun.py", *options)[0]
    assert {of_rank[2]["digest"] for of_rank in ranks} == {alone["digest"]}
    assert not list(tmp_path.glob("*/sklearn_laplace/*"))


@pytest.mark.usefixtures("forked_workers_of_dask")
def test_workers_of_dask_fit_one_model(folder, alone):
    """Three workers with unequal numbers of the eight row groups."""
    client("distributed")
    import dask

    with dask.config.set({"distributed.worker.preload": ["few_rows"]}):
        fitted = run_here("with_dask.py", "--folder", folder, "--rows", str(N), "--workers", "3")[0]
    assert abs(fitted["log_likelihood"] - alone["log_likelihood"]) < CLOSE
    assert 12 < fitted["mean"] < 17  # of the lazy predictions of all rows


def test_collections_with_other_partitions_are_refused():
    """Each partition of X needs its targets; a dataframe of some rows is fitted as the rows themselves."""
    client("dask.array")
    import dask.array as da

    from sklearn_laplace import LaplaceRegressor

    X = np.random.default_rng(0).random((60, 3))
    y, model = X[:, 0] + X[:, 1] ** 2, LaplaceRegressor(n_members=1, prior_precision="evidence", random_state=0)
    lazy = da.from_array(X, chunks=(20, 2))
    with pytest.raises(ValueError, match=r"y has 2 partitions, and X has 3\. Repartition them alike"):
        model.fit(lazy, da.from_array(y, chunks=30))
    with pytest.raises(ValueError, match=r"partition 0 of X has 20 rows"):
        model.fit(lazy, da.from_array(y, chunks=((10, 20, 30),)))
    from_dask = model.fit(lazy, da.from_array(y, chunks=20)).predict(lazy).compute()
    np.testing.assert_allclose(from_dask, model.fit(X, y).predict(X), rtol=1e-10)


def test_ray_trains_on_two_workers(folder, alone, ray_cluster, tmp_path, monkeypatch):
    """The same to the bit on both workers, and as good as that of one process."""
    torch_of_ray = client("ray.train.torch")

    def trainer(fit, *, train_loop_config, **options):
        """Workers print to the logs of Ray, where lines of other processes are too: here they print to a file."""

        def small_fit(config):
            few_rows.make_small()
            few_rows.score_few()
            with open(tmp_path / f"{os.getpid()}.out", "w") as file, contextlib.redirect_stdout(file):
                fit(config)

        return made(small_fit, train_loop_config=train_loop_config, **options)

    made = torch_of_ray.TorchTrainer
    monkeypatch.setattr(torch_of_ray, "TorchTrainer", trainer)
    path = tmp_path / "model.joblib"
    options = ["--folder", folder, "--rows", str(N), "--model", str(path)]
    run_here("with_ray.py", *options)
    lines = [results(file.read_text())[0] for file in tmp_path.glob("*.out")]
    ranks = {line["rank"]: line for line in lines}
    assert sorted(ranks) == [0, 1]
    assert {line["digest"] for line in lines} == {ranks[0]["digest"]}
    assert abs(ranks[0]["log_likelihood"] - alone["log_likelihood"]) < CLOSE
    assert path.exists()


def test_all_rows_of_files_are_counted_once(folder, alone):
    """Row by row, over files, row groups and blocks."""
    import pandas as pd

    from sklearn_laplace._table.source import joined
    from sklearn_laplace._table.source_of import source_of

    source = source_of(folder, "y")
    assert source.n_rows == N
    assert len(source.lengths) == 8
    rows = joined(list(source.all_blocks()))
    expected = pd.concat([pd.read_parquet(path) for path in sorted(Path(folder).glob("*.parquet"))])
    np.testing.assert_array_equal(rows.X.to_numpy(), expected.drop(columns="y").to_numpy())
    np.testing.assert_array_equal(rows.y, expected["y"].to_numpy())


def test_a_path_is_read_like_its_rows(folder, alone):
    """Up to the size of a sample, the fit of files is that of their rows; predictions find the columns."""
    import pandas as pd

    from sklearn_laplace import LaplaceRegressor

    table = pd.concat([pd.read_parquet(path) for path in sorted(Path(folder).glob("*.parquet"))])[:300]
    path = Path(folder).parent / "few.parquet"
    table.assign(w=np.linspace(0.5, 2, 300)).to_parquet(path, row_group_size=100)
    model = LaplaceRegressor(random_state=0, n_members=1, prior_precision="evidence")
    from_file = model.fit(path, "y", "w").predict(path, return_std=True)  # in blocks
    X, y, w = table.drop(columns="y").reset_index(drop=True), table["y"].to_numpy(), np.linspace(0.5, 2, 300)
    in_memory = model.fit(X, y, w).predict(X, return_std=True)
    for one, other in zip(from_file, in_memory, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
    for X_, y_, message in (
        (path, "z", r"there is no column 'z' in X; its columns are x0"),
        (path, y, r"y is of type ndarray; with files as X it has to be the name of a column"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            model.fit(X_, y_)
    table.drop(columns="x3").to_parquet(path)
    with pytest.raises(ValueError, match=r"X has no column 'x3', which the fit had"):
        model.predict(path)


def test_labels_are_read_from_a_column(tmp_path, monkeypatch):
    """Text and categories of pandas; a missing label is an error before any training."""
    import pandas as pd

    from sklearn_laplace import LaplaceClassifier
    from sklearn_laplace._estimator import sources
    from sklearn_laplace._table import source_of as recognise
    from sklearn_laplace._training import batches
    from sklearn_laplace.errors import CutWarning

    for module in (recognise, sources):
        monkeypatch.setattr(module, "SAMPLE_ROWS", 300)
    monkeypatch.setattr(batches, "BUFFER_ROWS", 1000)  # the first buffer is filled whatever the time limit
    X = np.random.default_rng(0).random((1000, 2))
    labels = pd.Series(np.where(X[:, 0] > 0.5, "yes", "no"))
    labels[999] = "perhaps"  # not in the sample
    path, table = tmp_path / "rows.parquet", pd.DataFrame(X, columns=["a", "b"])
    for column in (labels, labels.astype("category")):
        table.assign(label=column).to_parquet(path, row_group_size=100)
        with pytest.warns(CutWarning):
            model = LaplaceClassifier(max_time=0.01, random_state=0).fit(path, "label")
        assert model.classes_.tolist() == ["no", "perhaps", "yes"]
        assert model.feature_names_in_.tolist() == ["a", "b"]
        assert model.predict_proba(path).shape == (1000, 3)
    labels[7] = None
    table.assign(label=labels).to_parquet(path)
    with pytest.raises(ValueError, match=r"Input y contains (None|NaN): 1 of 1000 values missing, the first in row 7"):
        LaplaceClassifier().fit(path, "label")


def started(*options: str, ranks: int = 0) -> subprocess.Popen:
    arguments = command("with_torchrun.py", *options, ranks=ranks)
    return subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def states(memory: Path) -> list[Path]:
    return list(memory.glob("sklearn_laplace/*.state"))


def wait_for_state(memory: Path, seconds: float) -> None:
    """Wait until there is a state of a fit."""
    end = time.monotonic() + seconds
    while not states(memory) and time.monotonic() < end:
        time.sleep(0.02)
    assert states(memory)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_killed_driver_goes_on_to_the_same_model(folder, alone, tmp_path):
    options = ["--folder", folder, "--rows", str(N), "--memory", str(tmp_path)]
    process = started(*options)
    wait_for_state(tmp_path, LIMIT)
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert states(tmp_path)
    assert run_here("with_torchrun.py", *options)[0]["digest"] == alone["digest"]
    assert not states(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_the_ranks_end_when_one_is_killed(folder, tmp_path):
    """Neither the launcher nor the other rank hangs, and the next call goes on."""
    options = ["--folder", folder, "--rows", str(N), "--memory", str(tmp_path)]
    process = started(*options, ranks=2)
    wait_for_state(tmp_path, LIMIT)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(children[-1]), signal.SIGKILL)
    process.communicate(timeout=LIMIT)
    assert process.returncode != 0
    ranks = run("with_torchrun.py", *options, ranks=2)
    assert ranks[0]["digest"] == ranks[1]["digest"]
