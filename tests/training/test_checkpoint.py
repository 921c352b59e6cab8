"""Checkpoints: a fit that was stopped at any step goes on to the same result, and its file is safe and whole.

A fit that ends leaves its training in the cache, so that each of them has a folder of its own.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from joblib import Memory

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._ensemble import noise_model
from sklearn_laplace._estimator import sources
from sklearn_laplace._table import source_of as recognise
from sklearn_laplace._training import checkpoint, recipe
from sklearn_laplace._training.checkpoint import Checkpoint
from sklearn_laplace._training.recipe import recipes_for
from sklearn_laplace.errors import UncachedWarning

QUICK = {"hidden_layer_sizes": (8, 8), "hessian_structure": "diag", "random_state": 0}
"""Options of fits that end: the posterior, which has no states, takes less time."""


class Killed(BaseException):
    """Stands for the end of the process."""


def rows(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n, 3))
    return X, np.sin(6 * X[:, 0]) + (0.1 + X[:, 1]) * rng.normal(size=n)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Short trainings, of the noise too, without nets with exact steps, and a state after each step."""
    monkeypatch.setattr(recipe, "STEPS_AT_1000", (30, 22.5))
    for name in ("ACCURATE", "QUICK"):
        monkeypatch.setattr(noise_model, name, replace(getattr(noise_model, name), steps=2))
    monkeypatch.setattr("sklearn_laplace._ensemble.train_members.affords_exact_net", lambda *args: False)
    monkeypatch.setattr(checkpoint, "EVERY", -1.0)


def states(folder: Path) -> list[Path]:
    """Files of states of the fits that have this folder as memory."""
    return list((folder / "sklearn_laplace").glob("*"))


def killed_after(monkeypatch, n_states: int, fit) -> int:
    """Run a fit, and end it after a number of states; return the number of states of a fit that was not ended."""
    counts, write = [], Checkpoint._write

    def counted(self):
        write(self)
        counts.append(1)
        if len(counts) == n_states:
            raise Killed

    monkeypatch.setattr(Checkpoint, "_write", counted)
    try:
        fit()
    except Killed:
        pass
    finally:
        monkeypatch.setattr(Checkpoint, "_write", write)
    return len(counts)


@pytest.mark.parametrize("n", [400, 1200])
def test_a_killed_fit_goes_on_to_the_same_result(n, tmp_path, monkeypatch):
    """The noise varies, so that the last cycle is weighted. After 22 states a cycle of the second repeat has ended."""
    X, y = rows(n)
    options = QUICK | {"hidden_layer_sizes": "auto"} if n < 1000 else QUICK  # few rows have linear members then
    plain = LaplaceRegressor(**options).fit(X, y)
    expected = plain.predict(X[:50], return_std=True)
    assert plain.noise_model_ is not None

    def fit(folder: Path) -> LaplaceRegressor:
        return LaplaceRegressor(**options, memory=str(folder)).fit(X, y)

    n_states = killed_after(monkeypatch, -1, lambda: fit(tmp_path))
    assert n_states >= 50
    rng = np.random.default_rng(n)
    for stop in (1, 22, rng.integers(2, n_states), n_states) if n < 1000 else [rng.integers(2, n_states)]:
        folder, left = tmp_path / str(stop), []
        killed_after(monkeypatch, int(stop), lambda folder=folder: fit(folder))
        assert len(states(folder)) == 1
        if stop == 22:
            state = torch.load(states(folder)[0], weights_only=True)["state"]
            begin, end = recipes_for(n, 3)[1].schedule.cycles[state["cycle"]]
            assert state["done"] == end - begin
        n_left = killed_after(monkeypatch, -1, lambda folder=folder, left=left: left.append(fit(folder)))
        assert n_left <= n_states - stop + 1  # what was done before is not done again
        for value, reference in zip(left[0].predict(X[:50], return_std=True), expected, strict=True):
            np.testing.assert_array_equal(value, reference)
        assert not states(folder)


@pytest.mark.parametrize("kind", [LaplaceRegressor, LaplaceClassifier])
def test_a_streamed_fit_goes_on_to_the_same_result(kind, tmp_path, monkeypatch):
    """The rows that were read before are skipped. The training is not cached, but resumed."""
    X, y = rows(1500)
    y = y if kind is LaplaceRegressor else y > 0
    file = np.memmap(tmp_path / "x", np.float64, "w+", shape=X.shape)
    file[:] = X
    for module in (recognise, sources):
        monkeypatch.setattr(module, "SAMPLE_ROWS", 500)
    monkeypatch.setattr("sklearn_laplace._training.batches.BUFFER_ROWS", 300)
    expected = kind(**QUICK).fit(file, y).predict_std(X[:50])

    def fit() -> LaplaceRegressor | LaplaceClassifier:
        return kind(**QUICK, memory=Memory(tmp_path, verbose=0)).fit(file, y)

    n_states = killed_after(monkeypatch, -1, fit)
    assert killed_after(monkeypatch, -1, fit) == n_states
    killed_after(monkeypatch, 2 * n_states // 3, fit)
    np.testing.assert_array_equal(fit().predict_std(X[:50]), expected)
    assert not states(tmp_path)


@pytest.mark.parametrize(
    "options",
    [{"random_state": None}, {"memory": None}, {"memory": Memory(None)}],
    ids=["random_state", "memory None", "no location"],
)
def test_without_a_folder_or_a_seed_no_state_is_written(options, tmp_path, monkeypatch):
    X, y = rows()
    given = QUICK | {"memory": str(tmp_path)} | options
    assert killed_after(monkeypatch, -1, lambda: LaplaceRegressor(**given).fit(X, y)) == 0


def test_a_state_is_written_only_when_due(tmp_path, monkeypatch):
    """A fit of less than thirty seconds leaves no trace but its cached training."""
    X, y = rows()
    monkeypatch.setattr(checkpoint, "EVERY", 30.0)
    assert killed_after(monkeypatch, -1, lambda: LaplaceRegressor(**QUICK, memory=str(tmp_path)).fit(X, y)) == 0
    assert not (tmp_path / "sklearn_laplace").exists()


def test_each_fit_has_a_file_of_its_own(tmp_path, monkeypatch):
    """Other rows, parameters or random states do not meet; limits may change."""
    X, y = rows()

    def stopped(targets: np.ndarray, **options) -> int:
        options = {"random_state": 0, "memory": str(tmp_path)} | options
        killed_after(monkeypatch, 1, lambda: LaplaceRegressor(**options).fit(X, targets))
        return len(states(tmp_path))

    generators = ({"random_state": np.random.RandomState(seed)} for seed in (0, 1, 1))
    numbers = [stopped(y), stopped(y + 1), stopped(y, random_state=1), *(stopped(y, **each) for each in generators)]
    assert numbers == [1, 2, 3, 4, 5, 5]
    LaplaceRegressor(random_state=0, memory=str(tmp_path), verbose=0, max_time=1e3, n_jobs=2).fit(X, y)
    assert len(states(tmp_path)) == 4


class Dangerous:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("content", ["text", "pickle", "torch", "format", "cut", "empty"])
def test_unreadable_files_are_replaced_and_cannot_run_code(content, tmp_path, monkeypatch):
    X, y = rows()
    trace = tmp_path / "trace"

    def stopped() -> Path:
        model = LaplaceRegressor(random_state=0, memory=str(tmp_path))
        killed_after(monkeypatch, 20, lambda: model.fit(X, y))
        (path,) = states(tmp_path)
        return path

    path = stopped()
    whole = path.read_bytes()
    if content == "text":
        path.write_text("a,b\n1,2\n")
    elif content == "pickle":
        path.write_bytes(pickle.dumps({"format": checkpoint.FORMAT, "finished": Dangerous(trace)}))
    elif content == "torch":
        torch.save({"format": checkpoint.FORMAT, "finished": {}, "state": Dangerous(trace)}, path)
    elif content == "format":
        torch.save({"format": 2, "finished": {"rows": 7}, "state": None}, path)
    else:
        path.write_bytes(whole[:-200] if content == "cut" else b"")
    assert stopped().read_bytes() == whole  # as many steps from the beginning
    assert not trace.exists()


def test_a_state_that_cannot_be_written_is_a_warning(tmp_path):
    """As joblib warns of results that it cannot keep."""
    X, y = rows(120)
    (tmp_path / "sklearn_laplace").touch()
    with pytest.warns(UncachedWarning, match=r"the state of the training is not kept although memory is set: .*exists"):
        LaplaceRegressor(random_state=0, memory=str(tmp_path)).fit(X, y)
