"""What a GPU would wait for or refuse, found on the CPU, and results of a real GPU against the CPU (``-k cuda``)."""

from __future__ import annotations

import json
import math
import os
import pathlib
import pickle
import subprocess
import sys

import nets
import numpy as np
import oracles
import pytest
import torch
from skorch.dataset import ValidSplit
from torch.utils import backend_registration

import sklearn_laplace
from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace.laplace import fit_laplace
from sklearn_laplace.laplace.curvatures import GGN
from sklearn_laplace.laplace.likelihoods import LIKELIHOODS
from sklearn_laplace.laplace.linalg import compensated
from sklearn_laplace.laplace.network import trace
from sklearn_laplace.laplace.structures import STRUCTURES

PROGRAM = pathlib.Path(__file__).parents[1] / "support" / "pretended.py"
CAN_PRETEND = "_setup_privateuseone_for_python_backend" in vars(backend_registration)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
# torch issues this warning in the first backward pass of a process on a GPU.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")


@pytest.fixture(scope="module")
def pretended():
    """Results of ``tests/support/pretended.py``; a backend can be registered once in a process."""
    if not CAN_PRETEND:
        pytest.skip("this torch cannot register a backend from Python")
    paths = [str(pathlib.Path(sklearn_laplace.__file__).parents[1]), str(PROGRAM.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_pretended_device_refuses_what_a_gpu_refuses(pretended):
    """Otherwise the tests below could not fail."""
    assert pretended["mixed"] == "aten::add has tensors on two devices, of shapes [torch.Size([3])]"


def test_no_step_of_a_joint_training_waits_for_the_device(pretended):
    """Neither reads nor copies grow with the number of steps: the orders of many epochs are sent at once."""
    assert pretended["training"]["few"] == pretended["training"]["many"] == {"reads": 1, "copies": 1}


def test_a_fit_stays_on_its_device_and_equals_that_of_the_cpu(pretended):
    """The same operations run, so that the predictions are equal up to rounding."""
    assert pretended["fit"]["devices"] == ["pretended:0"]
    assert pretended["fit"]["difference"] <= 1e-6


def test_no_chunk_of_rows_to_predict_waits_for_the_device(pretended):
    """80 rows are one chunk, 32,000 rows are several."""
    few, many = pretended["fit"]["few"], pretended["fit"]["many"]
    assert few == many
    assert few["reads"] == 1  # whether the outputs are finite


def table(n: int = 150) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(n, 3)), rng.integers(0, 3, n)])
    X[::9, 1] = np.nan
    return X, np.sin(2 * X[:, 0]) + X[:, 2] + 0.2 * rng.normal(size=n)


@needs_cuda
@pytest.mark.parametrize("structure", STRUCTURES)
def test_cuda_sums_the_same_curvature(structure):
    """float64 on both devices; only the order of the sums differs."""
    module, generator = oracles.random_mlp((3, 4, 2)), torch.Generator().manual_seed(0)
    x = torch.randn(4, 30, 3, generator=generator).double()
    found = []
    for device in ("cpu", "cuda"):
        network = trace(module.to(device), x[0].to(device))
        chunks = [(part, part[:, :2].sin(), torch.ones_like(part[:, 0])) for part in x.to(device)]
        arguments = network, LIKELIHOODS["gaussian"](), GGN(), STRUCTURES[structure], network.scalar_prior(), chunks
        fit = fit_laplace(*arguments)
        vector = torch.linspace(-1, 1, len(fit.theta), dtype=torch.float64, device=device)
        found.append([fit.curvature.times(vector).cpu(), fit.gradient.cpu(), torch.tensor(fit.nll)])
    for of_cpu, of_gpu in zip(*found, strict=True):
        torch.testing.assert_close(of_gpu.double(), of_cpu.double(), rtol=1e-9, atol=1e-9)


@needs_cuda
@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_cuda_predicts_as_the_cpu_after_the_same_training(structure):
    """One net in float64 under a fixed prior and noise; the evidence would amplify rounding, also on the CPU."""
    X, y = table()
    options = {"n_members": 1, "max_epochs": 5, "dtype": "float64", "random_state": 0, "categorical_features": [3]}
    options |= {"prior_precision": 1.0, "sigma_noise": 0.3}
    models = [LaplaceRegressor(hessian_structure=structure, device=d, **options).fit(X, y) for d in ("cpu", "cuda")]
    of_cpu, of_gpu = (model.predict(X, return_std=True) for model in models)
    np.testing.assert_allclose(of_gpu, of_cpu, rtol=1e-5, atol=1e-6)


@needs_cuda
@pytest.mark.parametrize("structure", ["full", "kron"])
@pytest.mark.parametrize("split", [ValidSplit(5), None], ids=["validation", "left-out"])
def test_cuda_trains_a_given_net_as_the_cpu(split, structure):
    """Few epochs in float64, and the choice of prior and noise by rows outside the training."""
    X, y = table()
    X = np.nan_to_num(X)
    net = nets.regressor(module__n_in=4, max_epochs=5, train_split=split)
    options = {"hessian_structure": structure, "dtype": "float64", "random_state": 0}
    models = [LaplaceRegressor(net, device=d, **options).fit(X, y) for d in ("cpu", "cuda")]
    of_cpu, of_gpu = (model.predict(X, return_std=True) for model in models)
    np.testing.assert_allclose(of_gpu, of_cpu, rtol=1e-3, atol=1e-4)


@needs_cuda
@pytest.mark.parametrize("estimator", [LaplaceRegressor, LaplaceClassifier])
def test_cuda_fits_the_defaults_as_well_as_the_cpu(estimator):
    """Long trainings amplify rounding, so that only the log density of new rows is compared, nats."""
    X, y = table(400)
    y = y if estimator is LaplaceRegressor else y > 0
    scores = []
    for device in ("cpu", "cuda"):
        model = estimator(device=device, random_state=0, categorical_features=[3]).fit(X[:200], y[:200])
        if estimator is LaplaceRegressor:
            mean, std = model.predict(X[200:], return_std=True)
            scores.append(np.mean(-np.log(std) - 0.5 * ((y[200:] - mean) / std) ** 2))
        else:
            scores.append(np.mean(np.log(model.predict_proba(X[200:])[np.arange(200), y[200:].astype(int)])))
    assert scores[1] == pytest.approx(scores[0], abs=0.1)


@needs_cuda
def test_cuda_models_predict_on_machines_without_it(monkeypatch):
    """A pickle of a model of a GPU opens on the CPU."""
    X, y = table()
    model = LaplaceRegressor(device="cuda", n_members=1, max_epochs=5, random_state=0).fit(X, y)
    expected, content = model.predict(X, return_std=True), pickle.dumps(model)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    loaded = pickle.loads(content)
    assert next(loaded.net_.module_.parameters()).device.type == "cpu"
    np.testing.assert_allclose(loaded.predict(X, return_std=True), expected, rtol=1e-4, atol=1e-5)


@needs_cuda
def test_cuda_sums_in_compensated_float32():
    """The splits are exact on the GPU as well."""
    values = torch.randn(8192, generator=torch.Generator().manual_seed(0)) * 1e4
    exact = math.fsum(values.tolist())
    assert abs(float(compensated(values.cuda())) - exact) <= 2.0**-40 * 8192 * float(values.abs().max())
