"""A forked process: OpenMP's threads do not survive a fork, and the next parallel region in the child waits forever.

Each test is a process of its own with two torch threads, under a time limit.
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

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

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
        found = stream.read()
    assert os.waitpid(pid, 0)[1] == 0
    return np.frombuffer(found)
"""


def run(script: str) -> None:
    """Run the script, and every process that it has started no longer than this."""
    process = subprocess.Popen(
        [sys.executable, "-c", SETUP + script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        pytest.fail(f"a forked process hangs for more than {SECONDS} s")
    assert process.returncode == 0, output


@pytest.mark.parametrize("options", ["", "max_epochs=3, batch_size=50", "hessian_structure='full', n_jobs=2"])
def test_a_forked_process_fits_and_predicts_as_its_parent(options):
    """With autograd's backward pass in the parent first (epochs, gradients in X), and workers in the child."""
    run(f"""
expected = answers(fitted({options}))
found = in_child(lambda: answers(fitted({options})))
np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)  # sums of one thread and of two
assert torch.get_num_threads() == 2, "the parent keeps its threads"
""")


def test_a_process_forked_amid_a_fit_keeps_one_thread():
    """The block that took the threads away does not bring them back in the child."""
    run("""
from sklearn_laplace._runtime.threads import single_thread

fitted()


def rest_of_the_block():
    blocks.__exit__(None, None, None)
    fitted()
    return [torch.get_num_threads()]


blocks = single_thread(True)
blocks.__enter__()
found = in_child(rest_of_the_block)
blocks.__exit__(None, None, None)
assert found.tolist() == [1] and torch.get_num_threads() == 2
""")


def test_a_search_in_forked_workers():
    """joblib's "multiprocessing" backend."""
    run("""
import joblib
from sklearn.model_selection import GridSearchCV

if sys.version_info >= (3, 14):  # joblib takes the default start method, which is no longer fork
    import multiprocessing
    multiprocessing.set_start_method("fork")
expected = fitted()
search = GridSearchCV(expected, {"hidden_layer_sizes": [(40,), (100,)]}, cv=2)
alone = search.fit(X, y).cv_results_["mean_test_score"]
with joblib.parallel_config("multiprocessing", n_jobs=2):
    found = search.fit(X, y).cv_results_["mean_test_score"]
np.testing.assert_allclose(found, alone, rtol=1e-3)
""")


def test_classes_in_a_forked_process():
    """Several members and the link's integrals."""
    run("""
labels = (y > 0).astype(int) + (y > 0.5)
fit = lambda: LaplaceClassifier(random_state=0).fit(X, labels).predict_proba(X[:50]).ravel()
(big @ big).sum()
np.testing.assert_allclose(in_child(fit), fit(), rtol=1e-3, atol=1e-4)
""")
