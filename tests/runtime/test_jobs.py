"""``n_jobs``: several workers give the same posteriors and predictions as one."""

from __future__ import annotations

import io
import os
import sys

import joblib
import numpy as np
import pytest
import torch

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._table import limits as _memory

pytestmark = pytest.mark.usefixtures("short_trainings")

X = np.random.default_rng(0).normal(size=(300, 3))
Y = np.sin(X[:, 0]) + 0.1 * X[:, 1]
SHARED = {"random_state": 0, "max_epochs": 0, "map_prior_precision": 1.0, "hidden_layer_sizes": (6,)}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks small enough that these few rows make several."""
    monkeypatch.setattr(_memory, "CHUNK_ROWS", (16, 64))


def fitted(n_jobs: int | None, structure: str, **options) -> LaplaceRegressor:
    return LaplaceRegressor(hessian_structure=structure, n_jobs=n_jobs, **SHARED, **options).fit(X, Y)


@pytest.mark.parametrize("backend", ["threading", "loky"])
@pytest.mark.parametrize("structure", ["diag", "kron", "block_diagonal", "ekfac"])
def test_workers_add_up_to_the_pass_of_one(structure, backend):
    """Equal up to the rounding of sums; "ekfac" cannot be summed over chunks and makes its pass in one worker."""
    alone = fitted(None, structure)
    with joblib.parallel_config(backend=backend):
        together = fitted(2 if backend == "loky" else 3, structure)
    np.testing.assert_allclose(together.predict_std(X), alone.predict_std(X), rtol=1e-9)
    assert together.log_marginal_likelihood_value_ == pytest.approx(alone.log_marginal_likelihood_value_, rel=1e-9)
    torch.testing.assert_close(together.laplace_.gradient, alone.laplace_.gradient, rtol=1e-12, atol=1e-12)
    assert together.laplace_.total_weight == 300


def test_rows_are_shared_out(monkeypatch):
    """Three workers share the chunks: each chunk is processed once, and no worker gets most of them."""
    from sklearn_laplace._ensemble import approximate as _shared_pass

    sizes = []
    alone = _shared_pass._alone

    def watched(over, chunks, **known):
        sizes.append(sum(len(weights) for _, _, weights in chunks))
        return alone(over, chunks, **known)

    monkeypatch.setattr(_shared_pass, "_alone", watched)
    fitted(3, "kron")
    assert len(sizes) == 3 and sum(sizes) == 300 and max(sizes) <= 128


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no control groups")
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_all_cores_are_those_of_the_quota(version, monkeypatch):
    """joblib respects the CPU quota of a container: half a core means one worker."""
    from joblib.externals.loky.backend import context

    base = "/sys/fs/cgroup/"
    files = {
        "v1": {base + "cpu/cpu.cfs_quota_us": "50000\n", base + "cpu/cpu.cfs_period_us": "100000\n"},
        "v2": {base + "cpu.max": "50000 100000\n"},
    }[version]
    exists = os.path.exists
    monkeypatch.setattr(context, "open", lambda name, *mode: io.StringIO(files[name]), raising=False)
    monkeypatch.setattr(
        context.os.path, "exists", lambda name: name in files if str(name).startswith(base) else exists(name)
    )
    workers = []
    pass_workers = _memory.MemoryBudget.pass_workers
    monkeypatch.setattr(
        _memory.MemoryBudget, "pass_workers", lambda *given: workers.append(given[-1]) or pass_workers(*given)
    )
    fitted(-1, "kron")
    assert workers == [1]


def test_predictions_are_the_same_to_the_bit():
    """Each chunk is predicted independently of the worker."""
    model = fitted(None, "kron")
    alone = model.predict(X, return_std=True)
    together = model.set_params(n_jobs=2).predict(X, return_std=True)
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
    labels = (Y > 0).astype(int)
    classifier = LaplaceClassifier(hessian_structure="kron", n_jobs=2, **SHARED).fit(X, labels)
    together = classifier.predict_proba(X)
    assert np.array_equal(classifier.set_params(n_jobs=None).predict_proba(X), together)


def test_only_so_many_workers_run_as_have_room(monkeypatch):
    """As many workers run as curvatures fit into the budget; a budget for one is no error with n_jobs=8."""
    alone = fitted(None, "block_diagonal")
    need = alone.laplace_.curvature.memory(alone.laplace_.network.blocks, 300)
    workers = []
    pass_workers = _memory.MemoryBudget.pass_workers
    monkeypatch.setattr(
        _memory.MemoryBudget, "pass_workers", lambda *given: workers.append(pass_workers(*given)) or workers[-1]
    )
    for budget, expected in ((int(1.9 * need), 1), (int(3.9 * need), 3)):
        with joblib.parallel_config(backend="threading"):
            together = fitted(8, "block_diagonal", memory_budget=budget)
        assert workers[-1] == expected
        np.testing.assert_allclose(together.predict_std(X), alone.predict_std(X), rtol=1e-9)


def test_predictions_share_what_is_left(monkeypatch):
    """The chunks of all workers together are at most as large as the chunk of a single worker."""
    model = fitted(None, "kron")
    monkeypatch.setattr(_memory, "CHUNK_ROWS", (1, 10**6))
    rows = {}
    for n_jobs in (None, 4):
        model.set_params(n_jobs=n_jobs, memory_budget="1MB")
        with model._asked(X) as (x, options):
            size, workers = model._ensemble.first.chunk_size(options)
            chunks = x.split(size)
        rows[n_jobs] = len(chunks[0]) * workers
        assert workers == (n_jobs or 1)
    assert rows[None] / 2 < rows[4] <= rows[None]


@pytest.mark.parametrize("n_jobs", [0, 1.5, "all", True])
def test_a_number_of_workers_that_is_none_is_refused(n_jobs):
    with pytest.raises(ValueError, match=r"n_jobs=.* has to be None or a whole number other than 0"):
        fitted(n_jobs, "kron")
