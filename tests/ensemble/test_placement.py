"""``device="auto"`` takes a GPU where there is one and the fit is large; the option is checked without one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._ensemble import conditions
from sklearn_laplace._ensemble.conditions import GPU_WORK, device_of_fit
from sklearn_laplace._table import rows as data_rows
from sklearn_laplace._table.rows import PreparedData, TableShape, TargetScale
from sklearn_laplace._table.source import Group
from sklearn_laplace.laplace.torch_state import AVAILABLE
from sklearn_laplace.options.resolve import resolve
from sklearn_laplace.options.variants import expanded


def device_of(model, n_rows, n_columns=10):
    """Device that the fit of this many rows would have."""
    parameters = expanded(model.get_params(deep=False))
    kind = "regressor" if isinstance(model, LaplaceRegressor) else "classifier"
    shape = TableShape(n_rows, 1, (0,) * n_columns, 0, True)
    return device_of_fit(parameters, shape, resolve(kind, parameters))["device"]


@pytest.fixture
def with_gpu(monkeypatch):
    monkeypatch.setitem(AVAILABLE, "cuda", lambda: True)


@pytest.mark.parametrize("n_rows", [100, 10**7])
def test_without_a_gpu_nothing_changes(n_rows, monkeypatch):
    """The parameters are the same object, so that the key of a training in the cache is the same too."""
    monkeypatch.setitem(AVAILABLE, "cuda", lambda: False)
    parameters = expanded(LaplaceRegressor().get_params(deep=False))
    shape = TableShape(n_rows, 1, (0,) * 10, 0, True)
    assert device_of_fit(parameters, shape, resolve("regressor", parameters)) is parameters


@pytest.mark.parametrize(("n_rows", "device"), [(1000, "auto"), (2000, "auto"), (5000, "cuda"), (10**6, "cuda")])
def test_default_regressions_take_a_gpu_from_some_rows_on(n_rows, device, with_gpu):
    """2,000 rows have nets of 15,000 weights, 5,000 rows of 39,000: 3e7 and 2e8."""
    assert device_of(LaplaceRegressor(), n_rows) == device


def test_weights_count_as_much_as_rows(with_gpu):
    """A net with (10 + 1) u + u + 1 weights."""
    units, n_rows = 1000, 10**5
    wide = LaplaceClassifier(hidden_layer_sizes=(units,), n_bins=None, n_members=1)
    assert n_rows * (12 * units + 1) >= GPU_WORK
    assert device_of(wide, n_rows) == "cuda"
    assert device_of(wide.set_params(hidden_layer_sizes=(units // 2,)), n_rows) == "auto"
    assert device_of(wide.set_params(hidden_layer_sizes=(units,)), n_rows // 2) == "auto"


def test_a_user_chooses(with_gpu):
    """A named device stays, and a given net has a device of its own."""
    assert device_of(LaplaceRegressor(device="cpu"), 10**7) == "cpu"
    assert device_of(LaplaceRegressor(nn.Linear(10, 1)), 10**7) == "auto"


def test_ranks_do_not_share_a_gpu(with_gpu, monkeypatch):
    """Several ranks of a machine would all take the first one."""
    monkeypatch.setattr(conditions.Group, "current", classmethod(lambda cls: Group(0, 2)))
    assert device_of(LaplaceRegressor(), 10**7) == "auto"


def test_a_fit_uses_the_chosen_device(with_gpu, monkeypatch):
    """The choice reaches the training, which reports that torch has no such device."""
    monkeypatch.setattr(conditions, "JOINT_WORK", 1.0)
    monkeypatch.setattr(conditions, "GPU_WORK", 1.0)
    X = np.linspace(0, 1, 20)[:, None]
    if torch.cuda.is_available():
        assert next(LaplaceRegressor().fit(X, X[:, 0]).net_.module_.parameters()).device.type == "cuda"
    else:
        with pytest.raises((RuntimeError, AssertionError), match=r"CUDA|cuda|NVIDIA"):
            LaplaceRegressor().fit(X, X[:, 0])


def test_few_rows_are_float64_unless_the_device_is_slow_at_it(monkeypatch):
    """float64 products of a consumer GPU take 32 or 64 times as long as those in float32."""
    data = PreparedData(np.zeros((3, 1)), np.ones((3, 1)), np.ones(3), 1, TargetScale(*np.ones((3, 1))))
    cpu = torch.device("cpu")
    assert data.training_rows(None, cpu, built_in=True).weights.dtype == torch.float64
    monkeypatch.setattr(data_rows, "is_slow_at_float64", lambda device: True)
    assert data.training_rows(None, cpu, built_in=True).weights.dtype == torch.float32
    assert data.training_rows(torch.float64, cpu, built_in=True).weights.dtype == torch.float64
