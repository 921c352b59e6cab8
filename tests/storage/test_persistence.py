"""A pickled model equals the original, in any process and on any device, or an error names what is missing."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import sys

import joblib
import nets
import numpy as np
import pytest
import torch
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNetRegressor
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, save
from sklearn_laplace._storage.describe import pack
from sklearn_laplace._storage.restore import Reader

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(29)
X, X_NEW = RNG.normal(size=(50, 3)), RNG.normal(size=(7, 3))
Y = np.sin(X[:, 0]) + X[:, 1] + 0.2 * RNG.normal(size=50)
LABELS = np.where(Y > 0, "up", "down")
SMALL = {"hidden_layer_sizes": (5,), "random_state": 0}
SINGLE = {"likelihood": "gaussian", "n_members": 1, "random_state": 0}


class Tied(nn.Module):
    """A module with a tied weight matrix, which is also in a list."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.kept = [self.first.weight, self.second]
        self.out = nn.Linear(3, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.kept[1](torch.tanh(self.first(x)))))


def frozen():
    net = NeuralNetRegressor(nets.Hidden, module__n_in=3, max_epochs=3, train_split=None, verbose=0)
    torch.manual_seed(0)
    return FrozenEstimator(net.fit(X.astype(np.float32), Y[:, None].astype(np.float32)))


MODELS = {
    "built-in": lambda: LaplaceRegressor(**SMALL).fit(X, Y),
    "functional": lambda: LaplaceRegressor(hidden_layer_sizes=(40,), **SINGLE).fit(X, Y),
    "kron": lambda: LaplaceRegressor(nets.regressor(), hessian_structure="kron", random_state=0).fit(X, Y),
    "last-layer": lambda: LaplaceRegressor(
        subset_of_weights="last_layer", hidden_layer_sizes=(5,), sigma_noise="evidence", **SINGLE
    ).fit(X, Y),
    "tied": lambda: LaplaceRegressor(Tied, random_state=0).fit(X, Y),
    "frozen": lambda: LaplaceRegressor(frozen()).fit(X, Y),
    "classifier": lambda: LaplaceClassifier(link="mc", hessian_structure="diag", **SMALL).fit(X, LABELS),
    "streamed": lambda: (
        LaplaceRegressor(hessian_structure="full", **SMALL).fit(X[:30], Y[:30]).partial_fit(X[30:], Y[30:])
    ),
}


@pytest.fixture(scope="module", params=sorted(MODELS))
def model(request):
    return MODELS[request.param]()


def assert_same(loaded, model):
    """All predictions are equal to the bit."""
    np.testing.assert_array_equal(loaded.predict(X_NEW), model.predict(X_NEW))
    np.testing.assert_array_equal(loaded.predict_std(X_NEW), model.predict_std(X_NEW))
    np.testing.assert_array_equal(loaded.sample_y(X_NEW, 3), model.sample_y(X_NEW, 3))
    assert loaded.log_marginal_likelihood_value_ == model.log_marginal_likelihood_value_
    assert loaded.structure_ == model.structure_


def test_a_saved_model_answers_to_the_bit(model, tmp_path):
    """pickle, joblib plain and compressed, and both kinds of copies."""
    joblib.dump(model, tmp_path / "plain")
    joblib.dump(model, tmp_path / "small", compress=3)
    for loaded in (
        pickle.loads(pickle.dumps(model)),
        joblib.load(tmp_path / "plain"),
        joblib.load(tmp_path / "small"),
        copy.copy(model),
        copy.deepcopy(model),
    ):
        assert_same(loaded, model)


def test_the_state_holds_arrays_and_no_tensors(model):
    """Only the fitted part: a parameter ``net`` is pickled unchanged."""

    class Watching(pickle.Pickler):
        def persistent_id(self, value):
            assert not isinstance(value, torch.Tensor), f"a tensor of shape {tuple(value.shape)}"

    Watching(io.BytesIO()).dump({**model.__getstate__(), "parameters": None})


def test_a_loaded_model_goes_on(model):
    """partial_fit, forget and refit_laplace as for a copy; the original is unchanged."""
    if model.structure_ == "functional":
        pytest.skip("this structure has no forget")
    loaded = pickle.loads(pickle.dumps(model))
    before, targets = model.predict_std(X_NEW), LABELS if isinstance(model, LaplaceClassifier) else Y
    other = copy.deepcopy(model)
    for each in (loaded, other):
        each.partial_fit(X[:9] + 1, targets[:9]).forget(X[:3] + 1, targets[:3]).refit_laplace(temperature=0.5)
    assert_same(loaded, other)
    np.testing.assert_array_equal(model.predict_std(X_NEW), before)
    assert np.abs(loaded.predict_std(X_NEW) - before).max() > 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the process's memory map")
def test_a_memory_mapped_model_stays_in_its_file(model, tmp_path):
    """Processes can share one mapping; read-only arrays are never written to, even by partial_fit."""
    path = tmp_path / "mapped.joblib"
    joblib.dump(model, path)
    content = path.read_bytes()
    loaded = joblib.load(path, mmap_mode="r")
    with open("/proc/self/maps") as maps:
        assert str(path) in maps.read()
    # Arrays in a file are aligned differently, which can change the last digit of a sum.
    np.testing.assert_allclose(loaded.predict_std(X_NEW), model.predict_std(X_NEW), rtol=1e-12)
    if isinstance(model, LaplaceRegressor):
        np.testing.assert_allclose(loaded.predict(X_NEW), model.predict(X_NEW), rtol=1e-12)
    targets = LABELS if isinstance(model, LaplaceClassifier) else Y
    loaded.partial_fit(X[:5], targets[:5])
    assert path.read_bytes() == content


def test_tied_weights_stay_tied_after_loading():
    """Also in the lists of the module."""
    module = pickle.loads(pickle.dumps(MODELS["tied"]())).net_.module_
    assert module.first.weight is module.second.weight
    assert module.kept[0] is module.first.weight
    assert module.kept[1] is module.second


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_tensor_comes_back_as_it_was(dtype):
    """Values, dtype, strides and requires_grad."""
    tensor = torch.arange(6).reshape(2, 3).mT.to(dtype)
    loaded = Reader.of(pickle.loads(pickle.dumps(pack(tensor)))).value()
    assert torch.equal(loaded, tensor) and loaded.dtype == dtype and loaded.stride() == tensor.stride()
    if dtype.is_floating_point:
        parameter = Reader.of(pack(nn.Parameter(tensor, requires_grad=False))).value()
        assert isinstance(parameter, nn.Parameter) and not parameter.requires_grad


def test_a_model_of_a_gpu_opens_without_one(monkeypatch):
    """Simulated by the device names in the state of a CPU model."""
    model = LaplaceRegressor(hessian_structure="functional", hidden_layer_sizes=(5,), **SINGLE).fit(X, Y)
    expected = model.predict(X_NEW, return_std=True)
    model.set_params(device="cuda")
    object.__setattr__(model.net_, "device", "cuda:0")
    state = model.__getstate__()
    state["fitted"]["tree"] = state["fitted"]["tree"].replace('"cpu"', '"cuda:0"')
    monkeypatch.setattr(LaplaceRegressor, "__getstate__", lambda self: state)
    state = pickle.dumps(model)
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    loaded = pickle.loads(state)
    for got, wanted in zip(loaded.predict(X_NEW, return_std=True), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert loaded.net_.device == "cpu"
    assert loaded.partial_fit(X[:4], Y[:4]).predict(X_NEW).shape == (7,)
    with pytest.raises(ValueError, match="device='cuda' is not available: torch finds no CUDA device"):
        loaded.fit(X, Y)


# ---------------------------------------------------------------------- other processes

MODULE = """
import torch

class Net(torch.nn.Module):
    def __init__(self, n_in=3, n_out=1):
        super().__init__()
        self.layer = torch.nn.Linear(n_in, n_out)

    def forward(self, x):
        return self.layer(x)
"""
OPEN = """
import pickle, sys
import numpy as np

with open("model.pkl", "rb") as file:
    content = file.read()
try:
    pickle.loads(content)
except ImportError as error:
    print(error)
sys.path.insert(0, "modules")
print(repr(pickle.loads(content).predict_std(np.ones((1, 3)))[0]))
"""


def test_a_model_opens_in_another_process_where_its_module_is_known(tmp_path, monkeypatch, processes):
    """In the other process, without the file that defines the net, the error names its class."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "my_nets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    model = LaplaceRegressor(importlib.import_module("my_nets").Net, random_state=0).fit(X, Y)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    del sys.modules["my_nets"]
    opened = processes.run(OPEN, folder=tmp_path)
    assert opened.returncode == 0, opened.stderr
    message, std = opened.stdout.splitlines()
    assert "this LaplaceRegressor was saved with a net that needs the class my_nets.Net" in message
    assert "Put the file that defines it on the path" in message
    assert std == repr(model.predict_std(np.ones((1, 3)))[0])


def test_a_class_that_has_moved_is_named(monkeypatch):
    """Its module can be imported, but does not contain the class."""
    saved = pickle.dumps(LaplaceRegressor(nets.Hidden, random_state=0).fit(X, Y))
    monkeypatch.delattr(nets, "Hidden")
    with pytest.raises(ImportError, match=r"needs the class nets\.Hidden, which cannot be imported here"):
        pickle.loads(saved)


def test_a_local_class_cannot_be_pickled():
    """The error is pickle's. joblib sends such classes to worker processes, as tested with the parallel backends."""

    class Local(nn.Module):
        def __init__(self, n_in=3, n_out=1):
            super().__init__()
            self.layer = nn.Linear(n_in, n_out)

        def forward(self, x):
            return self.layer(x)

    with pytest.raises((pickle.PicklingError, AttributeError), match=r"(?i)local"):
        pickle.dumps(LaplaceRegressor(Local, random_state=0).fit(X, Y))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"weights": 1, "bias": 2}, r"not the state of a LaplaceRegressor: found \['bias', 'weights'\]"),
        (
            {"format": 99},
            "written in format 99 and .* reads format 7: load it with the version that wrote it, or fit and",
        ),
        (
            {"format": 3},
            r"written in format 3 and .* reads format 7: load it with the version that",
        ),
        ([1, 2], "found 'list'. Fit again"),
    ],
)
def test_a_foreign_state_is_refused(state, message):
    """The state of another class or version."""
    with pytest.raises(ValueError, match=message):
        LaplaceRegressor().__setstate__(state)


def test_a_truncated_file_is_refused():
    """The error is pickle's, before any object is created."""
    saved = pickle.dumps(LaplaceRegressor(Tied, random_state=0).fit(X, Y))
    with pytest.raises((pickle.UnpicklingError, EOFError), match=r"(?i)truncated|ran out|end"):
        pickle.loads(saved[: len(saved) // 2])


def test_unfitted_models_are_pickled_too():
    """Parameters only."""
    loaded = pickle.loads(pickle.dumps(LaplaceRegressor(nets.regressor(), temperature=0.5)))
    assert loaded.temperature == 0.5
    assert not loaded.__sklearn_is_fitted__()


# ---------------------------------------------------------------------- objects that are pickled as a whole


class Bound(nn.Module):
    """A module with its own bound method as an attribute: a reference cycle."""

    def __init__(self, n_in=3):
        super().__init__()
        self.layer, self.squash, self.kept = nn.Linear(n_in, 1), self.bent, [self.bent]

    def bent(self, x):
        return torch.tanh(x)

    def forward(self, x):
        return self.squash(self.layer(x))


def test_a_module_with_a_method_as_attribute_is_pickled_as_a_whole():
    """Pickle keeps the reference cycle between the module and its method."""
    model = LaplaceRegressor(Bound, random_state=0).fit(X, Y)
    loaded = pickle.loads(pickle.dumps(model))
    assert_same(loaded, model)
    module = loaded.net_.module_
    assert module.squash.__self__ is module and module.kept[0].__self__ is module
    assert isinstance(loaded.__getstate__()["fitted"]["own"][-1], type | Bound)


class Hooked(nets.Hidden):
    def __init__(self, n_in=3):
        super().__init__(n_in)
        self.register_forward_hook(doubled)


def doubled(module, inputs, outputs):
    return 2 * outputs


def test_a_module_with_a_hook_is_pickled_as_a_whole():
    """A hook is a function, which the description of a module cannot contain."""
    model = LaplaceRegressor(Hooked, random_state=0).fit(X, Y)
    loaded = pickle.loads(pickle.dumps(model))
    assert_same(loaded, model)
    with pytest.raises(ValueError, match=r"Hooked, found in fitted\._ensemble.*, cannot be saved"):
        save(model, "unused")


def test_equal_parts_are_stored_once():
    """Members share their training rows and the nets of the folds."""
    model = LaplaceRegressor(n_members=3, **SMALL).fit(X, Y)
    parts = model._ensemble, model._ensemble.first
    whole, one = (sum(values.nbytes for values in pack(part)["arrays"]) for part in parts)
    assert whole < 3 * one
    kept = [member.kept for member in pickle.loads(pickle.dumps(model))._ensemble.members]
    assert len({id(rows) for rows in kept}) == len({id(member.kept) for member in model._ensemble.members})
