"""Forked processes: OpenMP threads do not survive a fork, so a parallel region in the child could wait forever.

Each test runs in a new process with two torch threads and a time limit. Its trainings have few steps: any step has the
parallel regions.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fork and OpenMP as on Linux")

SECONDS = 120
SETUP = """
import os
import sys

import numpy as np
import torch

from shortened import few_steps
from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

few_steps().__enter__()
torch.set_num_threads(2)
rng = np.random.default_rng(0)
X = rng.normal(size=(200, 5))
y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=200)
big = torch.ones(1000, 1000)


def fitted(**options):
    (big @ big).sum()
    return LaplaceRegressor(
        n_members=1, likelihood="gaussian", hidden_layer_sizes=(100,), random_state=0, **options
    ).fit(X, y)


def answers(model):
    mean, std, *gradients = model.predict(X[:50], return_std=True, return_mean_grad=True, return_std_grad=True)
    return np.concatenate([mean, std, *(part.ravel() for part in gradients)])


def in_child(function):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(write, np.asarray(function(), dtype=np.float64).tobytes())
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        output = stream.read()
    assert os.waitpid(pid, 0)[1] == 0
    return np.frombuffer(output)
"""


def run(script: str) -> None:
    """Run the script; at the time limit, kill it with all the processes that it has started."""
    process = subprocess.Popen(
        [sys.executable, "-c", SETUP + script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        pytest.fail(f"a forked process hangs for more than {SECONDS} s")
    assert process.returncode == 0, output


def test_a_forked_process_fits_and_predicts_as_its_parent():
    """After a backward pass of autograd in the parent (epochs, gradients in X), and with workers in the child.

    Then several members for classes, with the quadrature of the link. Last, a fork amid a fit: in the child, the end of
    a single-thread block does not restore the two threads.
    """
    run("""
for options in ({}, {"max_epochs": 3, "batch_size": 50}, {"hessian_structure": "full", "n_jobs": 2}):
    expected = answers(fitted(**options))
    in_forked = in_child(lambda: answers(fitted(**options)))
    np.testing.assert_allclose(in_forked, expected, rtol=1e-6, atol=1e-6)  # sums over one or two threads
    assert torch.get_num_threads() == 2, "the parent keeps its threads"

labels = (y > 0).astype(int) + (y > 0.5)
fit = lambda: LaplaceClassifier(n_members=2, random_state=0).fit(X, labels).predict_proba(X[:50]).ravel()
(big @ big).sum()
np.testing.assert_allclose(in_child(fit), fit(), rtol=1e-3, atol=1e-4)

from sklearn_laplace.laplace.torch_state import single_thread


def rest_of_the_block():
    blocks.__exit__(None, None, None)
    fitted()
    return [torch.get_num_threads()]


blocks = single_thread(True)
blocks.__enter__()
in_forked = in_child(rest_of_the_block)
blocks.__exit__(None, None, None)
assert in_forked.tolist() == [1] and torch.get_num_threads() == 2
""")


def test_a_search_in_forked_workers():
    """joblib's "multiprocessing" backend."""
    run("""
import joblib
from sklearn.model_selection import GridSearchCV

if sys.version_info >= (3, 14):  # joblib uses the default start method, which is no longer fork
    import multiprocessing
    multiprocessing.set_start_method("fork")
search = GridSearchCV(fitted(), {"hidden_layer_sizes": [(100,)]}, cv=2, refit=False)
alone = search.fit(X, y).cv_results_["mean_test_score"]
with joblib.parallel_config("multiprocessing", n_jobs=2):
    in_forked = search.fit(X, y).cv_results_["mean_test_score"]
np.testing.assert_allclose(in_forked, alone, rtol=1e-3)
""")
