"""Checkpoints: a fit that was stopped at any step goes on to the same result, and its file is safe and whole."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._estimator import sources
from sklearn_laplace._sources import recognise
from sklearn_laplace._training import checkpoint, recipe
from sklearn_laplace._training.checkpoint import Checkpoint


class Killed(BaseException):
    """Stands for the end of the process."""


def rows(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n, 3))
    return X, np.sin(6 * X[:, 0]) + (0.1 + X[:, 1]) * rng.normal(size=n)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Short trainings without nets with exact steps, and a state after each step."""
    monkeypatch.setattr(recipe, "STEPS_AT_1000", (60, 40))
    monkeypatch.setattr(recipe, "STEPS_OF_FEW", 50)
    monkeypatch.setattr("sklearn_laplace._ensemble.train_members.affords_exact_net", lambda *args: False)
    monkeypatch.setattr(checkpoint, "EVERY", -1.0)


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
    """Below 1,001 rows both repeats are one tensor program; the noise varies, so that the last cycle is weighted."""
    X, y = rows(n)
    plain = LaplaceRegressor(random_state=0).fit(X, y)
    expected = plain.predict(X[:50], return_std=True)
    assert plain.noise_model_ is not None
    path = tmp_path / "state"

    def fit() -> LaplaceRegressor:
        return LaplaceRegressor(random_state=0, checkpoint=path).fit(X, y)

    n_states = killed_after(monkeypatch, -1, fit)
    assert n_states >= 50
    rng = np.random.default_rng(n)
    for stop in (1, rng.integers(2, n_states), n_states) if n < 1000 else rng.integers(2, n_states, size=2):
        killed_after(monkeypatch, int(stop), fit)
        assert path.exists()
        left = []
        n_left = killed_after(monkeypatch, -1, lambda left=left: left.append(fit()))
        assert n_left <= n_states - stop + 1  # what was done before is not done again
        for value, reference in zip(left[0].predict(X[:50], return_std=True), expected, strict=True):
            np.testing.assert_array_equal(value, reference)
        assert not path.exists()


@pytest.mark.parametrize("kind", [LaplaceRegressor, LaplaceClassifier])
def test_a_streamed_fit_goes_on_to_the_same_result(kind, tmp_path, monkeypatch):
    """The rows that were read before are skipped."""
    X, y = rows(1500)
    y = y if kind is LaplaceRegressor else y > 0
    file = np.memmap(tmp_path / "x", np.float64, "w+", shape=X.shape)
    file[:] = X
    for module in (recognise, sources):
        monkeypatch.setattr(module, "SAMPLE_ROWS", 500)
    monkeypatch.setattr("sklearn_laplace._training.stream.BUFFER_ROWS", 300)
    expected = kind(random_state=0).fit(file, y).predict_std(X[:50])
    path = tmp_path / "state"

    def fit() -> LaplaceRegressor | LaplaceClassifier:
        return kind(random_state=0, checkpoint=str(path)).fit(file, y)

    n_states = killed_after(monkeypatch, -1, fit)
    killed_after(monkeypatch, 2 * n_states // 3, fit)
    np.testing.assert_array_equal(fit().predict_std(X[:50]), expected)


def test_seeds_are_part_of_the_state(tmp_path, monkeypatch):
    """Without ``random_state`` a fit that goes on has the seeds of its beginning."""
    X, y = rows()
    path, seeds = tmp_path / "state", []

    def fit() -> None:
        LaplaceRegressor(checkpoint=path).fit(X, y)

    killed_after(monkeypatch, 20, fit)
    seeds.append(torch.load(path, weights_only=True)["finished"]["seeds"])
    killed_after(monkeypatch, 1, fit)
    seeds.append(torch.load(path, weights_only=True)["finished"]["seeds"])
    assert seeds[0] == seeds[1]


def test_a_random_generator_is_told_by_its_state(tmp_path, monkeypatch):
    X, y = rows()
    path = tmp_path / "state"

    def fit(seed: int) -> None:
        LaplaceRegressor(random_state=np.random.RandomState(seed), checkpoint=path).fit(X, y)

    killed_after(monkeypatch, 20, lambda: fit(0))
    with pytest.raises(ValueError, match="belongs to a fit with other parameters or rows"):
        fit(1)
    fit(0)
    assert not path.exists()


def test_the_file_belongs_to_one_fit(tmp_path, monkeypatch):
    """Other rows or parameters are refused, and leave the file as it is; limits and places may change."""
    X, y = rows()
    path = tmp_path / "state"
    killed_after(monkeypatch, 20, lambda: LaplaceRegressor(random_state=0, checkpoint=path).fit(X, y))
    content = path.read_bytes()
    for model, targets in (
        (LaplaceRegressor(random_state=0, checkpoint=path), y + 1),
        (LaplaceRegressor(random_state=1, checkpoint=path), y),
    ):
        with pytest.raises(ValueError, match=r"belongs to a fit with other parameters or rows.*Remove the file"):
            model.fit(X, targets)
    assert path.read_bytes() == content
    LaplaceRegressor(random_state=0, checkpoint=path, verbose=0, max_time=1e3, n_jobs=2).fit(X, y)
    assert not path.exists()


class Dangerous:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("content", ["text", "pickle", "torch", "cut", "empty"])
def test_other_files_are_refused_and_cannot_run_code(content, tmp_path, monkeypatch):
    X, y = rows()
    path, trace = tmp_path / "state", tmp_path / "trace"
    if content == "text":
        path.write_text("a,b\n1,2\n")
    elif content == "pickle":
        path.write_bytes(pickle.dumps({"format": 1, "key": Dangerous(trace)}))
    elif content == "torch":
        torch.save({"format": 1, "key": "", "finished": {}, "state": Dangerous(trace)}, path)
    elif content == "empty":
        path.touch()
    else:
        killed_after(monkeypatch, 20, lambda: LaplaceRegressor(random_state=0, checkpoint=path).fit(X, y))
        path.write_bytes(path.read_bytes()[:-200])
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"is no checkpoint of this package"):
        LaplaceRegressor(random_state=0, checkpoint=path).fit(X, y)
    assert path.read_bytes() == before
    assert not trace.exists()


@pytest.mark.parametrize("model", [LaplaceRegressor, LaplaceClassifier])
def test_a_path_is_checked_before_the_fit(model, tmp_path):
    X, y = rows(40)
    with pytest.raises(TypeError, match=r"checkpoint=3 has to be None or the path of a file"):
        model(checkpoint=3).fit(X, y > 0)
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere does not exist"):
        model(checkpoint=tmp_path / "nowhere" / "state").fit(X, y > 0)
