"""Crafted files and states: no code runs, neither while they are read nor in later calls.

Each attack worked, or was tried, on an earlier format. ``docs/security.md`` states the guarantees.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pickle
import sys

import crafted
import nets
import numpy as np
import pytest
import safetensors.numpy
import skops.io
import torch
from crafted import attribute, put, remove
from former import current
from refused import refused
from skorch import NeuralNet
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save
from sklearn_laplace._export import files as _files
from sklearn_laplace._storage.describe import pack
from sklearn_laplace._storage.kinds import kind_of
from sklearn_laplace._storage.registry import known
from sklearn_laplace._storage.restore import Reader, reading
from sklearn_laplace.errors import StateError

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(37)
X = RNG.normal(size=(40, 3))
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=40)
TABLE = np.array([["a", 1.0], ["b", np.nan], ["c", 3.0]], dtype=object)[np.arange(40) % 3]
CHEAP = {"prior_precision": "evidence", "sigma_noise": "evidence", "likelihood": "gaussian", "n_members": 1}
SMALL = {"hidden_layer_sizes": (5,), "random_state": 0}
REGRESSOR = "sklearn_laplace._estimator.regressor.LaplaceRegressor"
KEY = b"0123456789abcdef"


class Command:
    """An object whose unpickling runs a command."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class Own(nn.Module):
    """A user's module with a function as an attribute."""

    def __init__(self, n_in=3):
        super().__init__()
        self.layer, self.squash = nn.Linear(n_in, 1), bent

    def forward(self, x):
        return self.squash(self.layer(x))


def bent(x):
    return torch.tanh(x)


@pytest.fixture(scope="module")
def models():
    return {
        "regressor": LaplaceRegressor(**SMALL, **CHEAP).fit(X, Y),
        "table": LaplaceRegressor(**SMALL, **CHEAP).fit(TABLE, Y),
        "classifier": LaplaceClassifier(n_members=2, prior_precision=0.1, **SMALL).fit(X, Y > 0),
        "mixture": LaplaceRegressor(likelihood="heteroscedastic", n_members=2, **SMALL).fit(X, Y),
        "layers": LaplaceRegressor(
            nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1)), random_state=0, max_epochs=5, **CHEAP
        ).fit(X, Y),
    }


@pytest.fixture(scope="module")
def model_of_own_class():
    return LaplaceRegressor(Own, random_state=0, **CHEAP).fit(X, Y)


@pytest.fixture
def path(models, tmp_path):
    save(models["regressor"], tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture
def file(path):
    """The editable content of a saved file."""
    return crafted.Crafted(path)


# ---------------------------------------------------------------------- attacks that ran code or wrote files


def unpickles(file, marker):
    """skorch's ``__setstate__`` unpickles bytes; printing the net's device called it."""
    net = file.first("skorch.NeuralNet")
    content = ["scalar", file.add_array(np.array(pickle.dumps({"device": Command(marker)})))[1]]
    state = ["dict", "device", "cpu", "__cuda_dependent_attributes__", content]
    call = ["partial", ["method", ["ref", file.objects.index(net)], "__setstate__"], state]
    identity = file.add(["object", "nn.Identity", "training", False, "extra_repr", call], 0)
    put(net, "device", identity)


def unpickles_later(file, marker):
    """With this option skorch's ``load_params`` unpickles."""
    content = ["scalar", file.add_array(np.array(pickle.dumps({"device": Command(marker)})))[1]]
    net = file.first("skorch.NeuralNet")
    put(net, "torch_load_kwargs", ["dict", "weights_only", False])
    put(net, "__cuda_dependent_attributes__", content)


def writes_a_file(file, marker):
    """skorch's ``History.to_file`` writes to any path."""
    call = ["partial", ["method", ["list", ["named", "skorch.History"]], "to_file"], str(marker)]
    put(file.first("skorch.NeuralNet"), "device", call)


def saves_parameters(file, marker):
    """skorch's ``save_params`` and ``load_params`` open any path."""
    net = file.first("skorch.NeuralNet")
    put(net, "device", ["partial", ["method", ["ref", file.objects.index(net)], "save_params"], str(marker)])


def answers_by_a_method(file, marker):
    """An instance attribute replaces the method ``predict``."""
    put(file.fitted(), "predict", ["named", "torch.tanh"])


def hooks(file, marker):
    """torch calls the hooks of a module before its forward pass."""
    put(file.first("nn.Linear"), "_forward_pre_hooks", ["dict", 0, ["named", "torch.tanh"]])


ATTACKS = [unpickles, unpickles_later, writes_a_file, saves_parameters, answers_by_a_method, hooks]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_crafted_file_runs_nothing(attack, file, path, tmp_path):
    """The file is refused, and its effect does not occur."""
    marker = tmp_path / "marker"
    attack(file, marker)
    file.write(path)
    with pytest.raises(StateError):
        load(path).predict(X)
    assert not marker.exists()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_crafted_file_of_skops_runs_nothing(attack, path, file, models, tmp_path, monkeypatch):
    """The same trees in a skops file that only trusts LaplaceRegressor."""
    marker = tmp_path / "marker"
    attack(file, marker)
    arrays = [_array(values, header) for values, header in zip(file.arrays, file.tree["arrays"], strict=True)]
    parts = {"root": file.fitted(), "objects": file.objects[:-1], "headers": file.tree["headers"]}
    honest = LaplaceRegressor.__getstate__
    monkeypatch.setattr(
        LaplaceRegressor,
        "__getstate__",
        lambda self: {**honest(self), "fitted": {"tree": json.dumps(parts), "arrays": arrays, "own": []}},
    )
    content = skops.io.dumps(models["regressor"])
    assert skops.io.get_untrusted_types(data=content) == [REGRESSOR]
    with pytest.raises(StateError):
        skops.io.loads(content, trusted=[REGRESSOR]).predict(X)
    assert not marker.exists()


def _array(values, header):
    dtype, shape = np.dtype(header[0]), tuple(header[1])
    return values if values.dtype == dtype else np.frombuffer(values.tobytes(), dtype).reshape(shape)


def test_skops_cannot_set_other_attributes(models, monkeypatch):
    """Only constructor parameters can be set; ``predict`` is none."""
    honest = LaplaceRegressor.__getstate__

    def state(self):
        fitted_state = honest(self)
        return {**fitted_state, "parameters": {**fitted_state["parameters"], "predict": "x"}}

    monkeypatch.setattr(LaplaceRegressor, "__getstate__", state)
    content = skops.io.dumps(models["regressor"])
    with pytest.raises(ValueError, match=r"has no parameters \['predict'\]"):
        skops.io.loads(content, trusted=[REGRESSOR])


# ---------------------------------------------------------------------- everything that a file may contain

METHODS = ["__setstate__", "__init__", "__reduce__", "load_params", "save_params", "initialize", "to_file", "forward"]


def unpacked(root, *objects):
    """The value of a tree without arrays."""
    with reading("the state"):
        return Reader.of({"tree": json.dumps({"root": root, "objects": objects, "headers": []})}).value()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("owner", ["skorch.NeuralNet", "nn.Linear", "sklearn.FrozenEstimator", "LaplaceFit"])
def test_no_method_is_bound(owner, name):
    """No node describes a method, and no tag describes an attribute of a class."""
    for node in (["method", ["named", owner], name], ["named", f"{owner}.{name}"], ["named", owner, name]):
        with pytest.raises(StateError, match=r"the kind 'method', which is not known|not among the classes|is damaged"):
            unpacked(node)


CALLS = ["partial", "method", "call", "reduce", "skeleton", "parts", "bare", "data", "module", "known", "foreign"]


@pytest.mark.parametrize("kind", CALLS)
def test_no_node_calls_anything(kind):
    """Neither node kinds of the previous format nor other kinds."""
    for tag in known():
        with pytest.raises(StateError, match=f"the kind '{kind}', which is not known"):
            unpacked([kind, ["named", tag]])


@pytest.mark.parametrize("tag", sorted(tag for tag, thing in known().items() if not isinstance(thing, type)))
def test_functions_are_values_alone(tag):
    """A function cannot create an object."""
    assert unpacked(["named", tag]) is known()[tag]
    with pytest.raises(StateError, match="which a saved model cannot contain"):
        unpacked(["ref", 0], ["object", tag])


@pytest.mark.parametrize("tag", sorted(tag for tag, thing in known().items() if isinstance(thing, type)))
def test_an_object_of_each_class_needs_its_attributes(tag, monkeypatch):
    """No known class is called; an object without its attributes is refused or has no effect."""
    kind = known()[tag]
    if kind is not nn.Module and not issubclass(kind, torch.optim.Optimizer):  # torch wraps their methods
        failing = functools.wraps(kind.__init__)(lambda *args, **more: pytest.fail("it ran"))
        monkeypatch.setattr(kind, "__init__", failing, raising=False)
    value, refused = None, ""
    try:
        value = unpacked(["ref", 0], ["object", tag])
    except StateError as error:
        refused = str(error)
    made = kind_of(kind) is not None and type(value) is kind
    assert made or "needs" in refused or "a saved model cannot contain" in refused or "damaged" in refused


@pytest.mark.parametrize(
    "name",
    ["builtins.eval", "os.system", "posix.system", "torch.load", "torch.hub.load", "pickle.loads", "subprocess.Popen",
     "skorch.callbacks.Checkpoint", "skorch.setter.optimizer_setter", "skorch.history.History", "skorch.History",
     "sklearn_laplace._export.files.save", "numpy.load", "importlib.import_module", "__main__", "", "a" * 10**6,
     "sklearn_laplace._files.write_whole", "torch.nn.modules.module.Module.apply", "nn.Module.apply"],
)  # fmt: skip
def test_names_are_looked_up_in_the_closed_list(name, file, path):
    """Names are neither imported nor resolved as attributes."""
    original = file.copy()
    file.first("nn.Linear")[1] = name
    original.carry(["named", name])
    for each in (file, original):
        each.write(path)
        with pytest.raises(StateError, match=r"which is not among the classes") as error:
            load(path)
        assert len(str(error.value)) < 1000


SHADOWS = [
    ("nn.Linear", "forward"), ("nn.Linear", "__call__"), ("nn.Linear", "extra_repr"), ("nn.Linear", "__class__"),
    ("nn.Linear", "__dict__"), ("nn.Linear", "__deepcopy__"), ("nn.Linear", "__reduce_ex__"), ("nn.Linear", ""),
    ("nn.Linear", "__reduce__"), ("nn.Linear", "_get_name"), ("nn.Linear", "named_parameters"), ("nn.Linear", "a.b"),
    ("nn.Linear", "__getattr__"), ("nn.Linear", 3), ("skorch.NeuralNet", "__repr__"), ("skorch.NeuralNet", "history"),
    ("skorch.NeuralNet", "initialize"), ("skorch.NeuralNet", "__format__"), ("skorch.NeuralNet", "__deepcopy__"),
    ("Hyper", "__class__"), ("Member", "outputs"),
]  # fmt: skip
"""Attributes that would replace methods and properties: calls, printing, copying, formatting, attribute access."""


@pytest.mark.parametrize(("owner", "name"), SHADOWS)
def test_no_attribute_stands_in_for_a_method(owner, name, file, path):
    """Even with a harmless function such as tanh."""
    put(file.first(owner), name, ["named", "torch.tanh"])
    file.write(path)
    with pytest.raises(StateError, match=r"the attribute .*, which it cannot have"):
        load(path)


@pytest.mark.parametrize(
    "name", ["predict", "fit", "members_", "prior_path_", "__class__", "_options", "_ensemble", "net_"]
)
def test_no_fitted_attribute_stands_in_for_a_method(name, file, path):
    """Methods and properties of the estimator, and fitted attributes of a wrong type."""
    put(file.fitted(), name, ["named", "torch.tanh"])
    file.write(path)
    with pytest.raises(StateError, match=r"which no fit sets|is needed"):
        load(path)


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        ("skorch.NeuralNet", "device", ["named", "torch.tanh"]),
        ("skorch.NeuralNet", "module_", "x"),
        ("skorch.NeuralNet", "history_", 3),
        ("skorch.NeuralNet", "criterion__likelihood", ["named", "nn.Identity"]),
        ("Hyper", "prior_precision", 1.0),
        ("Hyper", "dispersion", "1"),
        ("Network", "module", "x"),
        ("LaplaceFit", "likelihood", ["named", "torch.tanh"]),
        ("TargetScale", "scale", ["list", 1.0]),
        ("nn.Linear", "_parameters", None),
        ("nn.Linear", "_parameters", ["dict", 1, None]),
        ("nn.Linear", "training", 1),
        ("nn.Linear", "in_features", ["named", "skorch.NeuralNet"]),
    ],
)
def test_types_are_checked_before_anything_uses_a_value(owner, name, value, file, path):
    """In nets, data classes and modules."""
    put(file.first(owner), name, value)
    file.write(path)
    with pytest.raises(StateError, match=r"is needed|which is not known here"):
        load(path)


NOT_STORED = {
    "torch_load_kwargs": ["dict", "weights_only", False],
    "compile": True,
    "compile__options": ["dict", "cpp.cxx", ["list", "/tmp/evil"]],
    "iterator_valid__num_workers": 2,
    "iterator_valid__worker_init_fn": ["named", "torch.tanh"],
    "callbacks__epoch_timer": ["named", "skorch.NeuralNet"],
    "callbacks__epoch_timer__compile": True,
    "virtual_params_": ["dict", "lr", ["named", "torch.tanh"]],
    "optimizer_": None,
    "callbacks_": ["list", 1],
}
"""Attributes of a net that would make a later call run or start something that the file chooses."""


@pytest.mark.parametrize("name", NOT_STORED)
def test_a_net_has_no_attribute_that_makes_later_calls_run_something(name, file, path):
    """Unpickling, torch's compiler, worker processes, callbacks and setters."""
    put(file.first("skorch.NeuralNet"), name, NOT_STORED[name])
    file.write(path)
    with pytest.raises(
        StateError, match=rf"a NeuralNet the attributes \['{name}'\], which a saved model cannot contain"
    ):
        load(path)


def test_such_attributes_are_not_written(models, path):
    """Neither to a file nor to a pickle; the batch size is."""
    template = NeuralNet(nn.Linear, criterion=nn.MSELoss, module__in_features=3, module__out_features=1, compile=True)
    template.set_params(torch_load_kwargs={"weights_only": False}, iterator_valid__num_workers=2)
    template.set_params(iterator_valid__batch_size=7, callbacks__print_log=None)
    save(LaplaceRegressor(template), path)
    net = load(path).net
    assert net.torch_load_kwargs is None and net.compile is False and net.iterator_valid__batch_size == 7
    assert not {"iterator_valid__num_workers", "callbacks__print_log"} & set(vars(net))
    model = pickle.loads(pickle.dumps(models["regressor"]))
    model.net_.torch_load_kwargs = {"weights_only": False}
    assert pickle.loads(pickle.dumps(model)).net_.torch_load_kwargs is None


class OwnList(list):
    def __init__(self):
        pytest.fail("it ran")


class OwnKey:
    def __hash__(self):
        pytest.fail("it ran")


def test_containers_and_keys_of_ones_own_do_not_run(path):
    """Their ``__init__`` and ``__hash__`` are not called."""
    save(LaplaceRegressor(doubled), path)
    original = crafted.Crafted(path)
    for name, node, match in (
        ("OwnList", lambda own: own, "an object of .*OwnList.*, which a saved model cannot contain"),
        ("OwnKey", lambda own: ["dict", own, 1], "a OwnKey as a key"),
        ("OwnKey", lambda own: ["set", own], "a OwnKey as a key"),
    ):
        file = original.copy()
        file.tree["own"].append(f"{__name__}.{name}")
        file.carry(node(file.add(["object", 1])))
        file.write(path)
        with pytest.raises(StateError, match=match):
            load(path, trusted=[doubled, OwnList, OwnKey])


def doubled(X, random_state):
    return X


def test_a_setter_is_no_value(file, path):
    """As ``set_params`` of a callback, skorch would call it with arguments from the file."""
    file.carry(["named", "skorch.setter.optimizer_setter"])
    refused(file.content(), path, "which is not among the classes")


def test_a_file_names_no_cache(path, models):
    """joblib would unpickle the content of the cache."""
    save(LaplaceRegressor(memory=str(path.parent)), path)
    assert load(path).memory is None


def test_an_attribute_does_not_stand_in_for_a_layer(file, path):
    """torch looks for submodules only if there is no such attribute."""
    put(file.first("MLP"), "0", ["named", "torch.tanh"])
    file.write(path)
    with pytest.raises(StateError, match="attribute '0', which it cannot have"):
        load(path)
    model = LaplaceRegressor(**SMALL, **CHEAP).fit(TABLE, Y)
    save(model, path)
    file = crafted.Crafted(path)
    put(file.first("TableMLP"), "behind", ["named", "torch.tanh"])
    file.write(path)
    with pytest.raises(StateError, match=r"the attributes \['behind'\] twice"):
        load(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("pos", -(2**31)), ("pos", 2**31 - 1), ("pos", 625), ("pos", 1.0), ("key", 3), ("gauss", "x"), ("has_gauss", 0.5)],
)
def test_a_random_generator_is_within_its_state(name, value, path):
    """numpy read out of bounds, and the next sample ended the process."""
    save(LaplaceRegressor(random_state=np.random.RandomState(3)), path)
    assert load(path).random_state.rand() == np.random.RandomState(3).rand()
    file = crafted.Crafted(path)
    node = attribute(file.parameters(), "random_state")
    node[["random", "key", "pos", "has_gauss", "gauss"].index(name)] = value
    file.write(path)
    with pytest.raises(StateError, match=r"random generator at position"):
        load(path)


def test_other_generators_are_pickled(path):
    """Their states differ from that of MT19937."""
    generator = np.random.RandomState(np.random.PCG64(3))
    loaded = pickle.loads(pickle.dumps(LaplaceRegressor(random_state=generator)))
    assert loaded.random_state.rand() == np.random.RandomState(np.random.PCG64(3)).rand()
    with pytest.raises(ValueError, match=r"RandomState, found in parameters.random_state, cannot be saved"):
        save(LaplaceRegressor(random_state=generator), path)


def test_no_data_class_holds_a_function():
    """Derivatives and bases of a curvature contain functions, and are never stored."""
    names = {tag.rpartition(".")[2] for tag in known()}
    assert not {"Linearisation", "Eigenbasis", "CrossValidation"} & names
    for kind in filter(dataclasses.is_dataclass, known().values()):
        assert "Callable" not in str([one.type for one in dataclasses.fields(kind)])


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_module_with_a_state_of_its_own_is_not_made(kind, file, path):
    """Its ``__setstate__`` is not run, and without it the object would be incomplete."""
    file.first("nn.Tanh")[1] = f"nn.{kind}"
    file.write(path)
    with pytest.raises(StateError, match="which is not among the classes"):
        load(path)
    file.tree["own"].append(f"torch.nn.modules.rnn.{kind}")
    file.first(f"nn.{kind}")[1] = 0
    file.write(path)
    with pytest.raises(StateError, match=f"object of .*{kind}.*, which a saved model cannot contain"):
        load(path, trusted=[getattr(nn, kind)])


# ---------------------------------------------------------------------- the user's own classes


def test_a_function_of_the_user_is_trusted(model_of_own_class, tmp_path):
    """Both the function and its module class have to be trusted."""
    model = model_of_own_class
    save(model, tmp_path / "model")
    for trusted in ([], [Own], [bent]):
        with pytest.raises(StateError, match=r"needs .*(Own|bent), which is not a class"):
            load(tmp_path / "model", trusted=trusted)
    loaded = load(tmp_path / "model", trusted=[Own, bent])
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.net_.module_.squash is bent
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))


class Bound(Own):
    def __init__(self, n_in=3):
        super().__init__(n_in)
        self.squash = self.bent

    def bent(self, x):
        return torch.tanh(x)


class Hooked(Own):
    def __init__(self, n_in=3):
        super().__init__(n_in)
        self.register_forward_hook(halved)


def halved(module, inputs, outputs):
    return outputs / 2


class Partial(Own):
    def __init__(self, n_in=3):
        super().__init__(n_in)
        self.squash = functools.partial(torch.clamp, max=1.0)


class Stateful(Own):
    def __setstate__(self, state):
        pytest.fail("it ran")


@pytest.mark.parametrize("kind", [Bound, Hooked, Partial, Stateful])
def test_modules_that_are_more_than_data_are_not_saved(kind, tmp_path):
    """Methods, hooks, partial functions and ``__setstate__`` would be code in the file."""
    model = LaplaceRegressor(kind(), random_state=0)
    with pytest.raises(ValueError, match=r"found in parameters\.net.*, cannot be saved"):
        save(model, tmp_path / "model")


@pytest.mark.parametrize("name", ["bent", "forward", "__init__", "load_state_dict", "register_forward_hook", "apply"])
def test_no_method_of_a_trusted_class_is_bound(name, model_of_own_class, tmp_path):
    """Neither its own methods nor those of torch's base class."""
    save(model_of_own_class, tmp_path / "model")
    original = crafted.Crafted(tmp_path / "model")
    place = next(k for k, node in enumerate(original.objects) if type(node[1]) is int)
    for node in (["method", ["ref", place - 1], name], ["named", 0, name], ["named", f"Own.{name}"]):
        file = original.copy()
        put(file.objects[place], "squash", node)
        file.write(tmp_path / "model")
        with pytest.raises(StateError, match=r"the kind 'method'|not among the classes|damaged"):
            load(tmp_path / "model", trusted=[Own, bent])
    put(original.objects[place], name, ["named", "torch.tanh"])
    original.write(tmp_path / "model")
    if name != "bent":
        with pytest.raises(StateError, match=f"a Own the attribute '{name}', which it cannot have"):
            load(tmp_path / "model", trusted=[Own, bent])


def test_a_module_with_a_replaced_method_is_pickled_and_not_saved(tmp_path):
    """With an instance attribute ``forward``, a pickle has the whole object and save raises an error."""
    module = nets.Hidden(3)
    module.forward = Forward(module)
    model = LaplaceRegressor(**current(prior_mean={"x": module}))
    loaded = pickle.loads(pickle.dumps(model)).prior.mean["x"]
    assert torch.equal(loaded(torch.ones(2, 3)), module(torch.ones(2, 3)))
    with pytest.raises(ValueError, match=r"Hidden, found in parameters\.prior\.mean\.x, cannot be saved"):
        save(model, tmp_path / "model")


class Forward:
    def __init__(self, module):
        self.layers = [module.get_submodule(name) for name, _ in module.named_children()]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_loading_runs_no_code_of_trusted_classes(model_of_own_class, tmp_path, monkeypatch):
    """An object of a trusted class is created without ``__init__`` and without a forward pass."""
    save(model_of_own_class, tmp_path / "model")

    def fail(*args):
        raise AssertionError("it ran")

    for name in ("__init__", "forward"):
        monkeypatch.setattr(Own, name, fail)
    assert load(tmp_path / "model", trusted=[Own, bent]).__sklearn_is_fitted__()


# ---------------------------------------------------------------------- structure of a tree


def test_objects_do_not_contain_themselves(file, path):
    """An object can only refer to earlier objects."""
    first = len(file.objects) - 1
    for _ in range(12):
        file.objects.insert(-1, ["object", "nn.Identity", "x", ["list", *(["ref", first + k] for k in range(12))]])
    file.tree["root"][1] += 12
    file.carry(["ref", first])
    refused(file.content(), path, rf"refers to number {first} of {first}")


@pytest.mark.parametrize("levels", [2_000, 50_000])
def test_a_tree_that_is_too_deep_is_refused(levels, file, path):
    """Reading is recursive; a RecursionError names no file."""
    file.carry("deep")
    file.write(path)  # with the checksums in the tree
    text = json.dumps(file.tree).replace('"deep"', '["tuple",' * levels + "1" + "]" * levels)
    tree = np.frombuffer(text.encode(), dtype=np.uint8)
    arrays = {str(place): values for place, values in enumerate(file.arrays)} | {"tree": tree}
    metadata = {**crafted.METADATA, "checksum": str(crafted.zlib.crc32(tree.tobytes()))}
    refused(safetensors.numpy.save(arrays, metadata), path, r"is damaged \(RecursionError")


def test_each_array_has_one_header(file, path):
    """An array is one array or one tensor."""
    header = next(header for header in file.tree["headers"] if len(header) == 4)
    file.tree["headers"].append(list(header))
    refused(file.content(), path, "damaged")


@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64", "qint8", "float7", 3])
def test_a_tensor_has_the_type_of_its_array(dtype, file, path):
    """Its values are never converted."""
    place = file.add_array(np.zeros(1000, np.uint8), dtype, "cpu", None)
    file.carry(place)
    refused(file.content(), path, "as a tensor of|damaged")


@pytest.mark.parametrize("shape", [[0, 10**30], [-1], [1.5], ["a"], [2**63], [1] * 65, None, 3, [[1]]])
def test_shapes_that_no_array_has(shape, file, path):
    """The error names the file and the array, unlike numpy's."""
    file.tree["arrays"][0][1] = shape
    refused(file.content(), path, "an impossible shape|shape .* and its tree needs")


@pytest.mark.parametrize(
    "dtype", ["|O", "f8,f8", "f8," * 10**5, "<U99999999999", 3, None, ["f8"], "V8", "object", "(2,)f8"]
)
def test_data_types_that_no_file_has(dtype, file, path):
    """Objects, which numpy would unpickle, and structured types."""
    file.tree["arrays"][0][0] = dtype
    refused(file.content(), path, "names the data type|data type .* and its tree needs")


@pytest.mark.parametrize("text", ['{"objects": NaN}', "[]", '"x"', "3", "null", "{}", '{"objects": 1e999}'])
def test_trees_that_are_none(text, path):
    """JSON with another structure."""
    tree = np.frombuffer(text.encode(), dtype=np.uint8)
    metadata = {**crafted.METADATA, "checksum": str(crafted.zlib.crc32(tree.tobytes()))}
    refused(safetensors.numpy.save({"tree": tree}, metadata), path, "constant NaN|object is needed|lacks")


@pytest.mark.parametrize("device", ["meta", "xla", "hpu:0", "cuda:99999", "", "cpu\n", 3])
def test_tensors_lie_on_devices_that_hold_values(device, file, path):
    """Tensors on the device "meta" have no values."""
    next(header for header in file.tree["headers"] if len(header) == 4)[2] = device
    refused(file.content(), path, "is not the name of a device")


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", 3.0), ("_kind", "x"), ("_skl_callbacks", "x"), ("_nets", 3), ("a b", 1), ("_x", 1)],
)
def test_fitted_attributes_replace_no_others(name, value, file, path):
    """Parameters, private attributes and scikit-learn's callbacks."""
    put(file.fitted(), name, value)
    refused(file.content(), path, "which no fit sets")


def test_a_part_of_a_fit_is_none(file, path):
    """Otherwise the first prediction would lack an attribute."""
    remove(file.fitted(), "_weight_unit")
    refused(file.content(), path, "a part of a fit, without _weight_unit")


def test_text_is_of_characters(file, path):
    """numpy fails later on code points that are not characters."""
    node = file.add_array(np.array(["abc"]))
    file.arrays[node[1]] = np.frombuffer(np.full(3, 0xFFFFFFFF, np.uint32).tobytes(), np.uint8)
    file.carry(node)
    refused(file.content(), path, "invalid character codes")


@pytest.mark.parametrize("name", ["regressor", "table", "classifier", "mixture", "layers"])
def test_fuzzed_files_run_nothing(name, models, path):
    """They are refused, or describe another model. ``examples/benchmarks/faults.py`` reads thousands."""
    save(models[name], path)
    original, rng = crafted.Crafted(path), np.random.default_rng(len(name))
    refused_files = 0
    for _ in range(60):
        crafted.fuzzed(original, rng).write(path)
        try:
            loaded = WATCH(path, load)
        except StateError:
            refused_files += 1
        else:
            assert isinstance(loaded, LaplaceRegressor | LaplaceClassifier)
        assert not WATCH.seen
    assert refused_files > 20


WATCH = crafted.Watch()


def test_the_watch_sees_what_it_is_for(tmp_path):
    """Control: the fuzz test detects commands, writes and executed code."""

    def attack(path):
        os.system("true")
        (tmp_path / "b").write_text("x")
        exec("1")
        (tmp_path / "b").read_text()

    WATCH(tmp_path / "a", attack)
    first, second = ["os.system", "open"], ["os.system", "open", "compile", "exec", "open"]
    assert [event.partition(" ")[0] for event in WATCH.seen] == first + second


# ---------------------------------------------------------------------- authenticity


def test_a_key_finds_tampering(models, path):
    """Neither recomputed checksums nor a wrong or missing key are accepted."""
    save(models["regressor"], path, key=KEY)
    np.testing.assert_array_equal(load(path, key=KEY).predict(X), models["regressor"].predict(X))
    np.testing.assert_array_equal(load(path).predict(X), models["regressor"].predict(X))
    with safetensors.safe_open(path, framework="numpy") as stored:
        mac = stored.metadata()["hmac-sha256"]
    file = crafted.Crafted(path)
    file.write(path, **{"hmac-sha256": mac})
    load(path, key=KEY)  # the same content again
    file.arrays[0] = file.arrays[0] + 1
    file.write(path, **{"hmac-sha256": mac})
    with pytest.raises(StateError, match="was changed after it was saved, or saved with another key"):
        load(path, key=KEY)
    save(models["regressor"], path, key=b"another key of 16 bytes")
    with pytest.raises(StateError, match="saved with another key"):
        load(path, key=KEY)
    save(models["regressor"], path)
    with pytest.raises(StateError, match=r"was saved without a key, and load was given one"):
        load(path, key=KEY)


def test_what_is_verified_is_what_is_used(models, path, monkeypatch):
    """The file is changed between verification and reading."""
    save(models["regressor"], path, key=KEY)
    honest, verify = path.read_bytes(), _files._check_mac

    def meanwhile(*args):
        verify(*args)
        path.write_bytes(b"other bytes" + honest[11:])

    monkeypatch.setattr(_files, "_check_mac", meanwhile)
    np.testing.assert_array_equal(load(path, key=KEY).predict(X), models["regressor"].predict(X))
    assert path.read_bytes() != honest


def test_the_key_is_verified_before_the_tree_is_parsed(models, path, monkeypatch):
    """Only safetensors' parser reads an unauthenticated file."""
    save(models["regressor"], path)
    monkeypatch.setattr(_files, "_tree", lambda *args: pytest.fail("parsed"))
    file = crafted.Crafted(path)
    file.write(path, **{"hmac-sha256": "0" * 64})
    with pytest.raises(StateError, match="was changed"):
        load(path, key=KEY)


@pytest.mark.parametrize(("key", "given"), [("a" * 20, "a str"), (b"short", "5 bytes"), (3, "an int|a int")])
@pytest.mark.parametrize("use", [lambda p, key: load(p, key=key), lambda p, key: save(LaplaceRegressor(), p, key=key)])
def test_keys_are_bytes_of_some_length(use, key, given, path):
    """Short keys can be guessed."""
    with pytest.raises(ValueError, match=rf"key is ({given}); expected None or at least 16 bytes"):
        use(path, key)


# ---------------------------------------------------------------------- files of a killed save

KILLED = """
import os, sys
from sklearn_laplace import LaplaceRegressor, save

os.fsync = lambda *args: os.kill(os.getpid(), 9)
for _ in range(2):
    child = os.fork()
    if child == 0:
        save(LaplaceRegressor(), sys.argv[1])
    assert os.waitpid(child, 0)[1] == 9
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a lock shows whether the writer is alive")
def test_what_a_killed_save_left_is_removed_by_the_next(tmp_path, processes):
    """A temporary file that another process is writing is kept."""
    import fcntl

    path = tmp_path / "model.safetensors"
    assert processes.run(KILLED, str(path)).returncode == 0
    assert len(os.listdir(tmp_path)) == 1, "the second save has removed the file of the first one"
    written, other = tmp_path / f".{path.name}.{'a' * 16}.saving", tmp_path / f".{path.name}.{'a' * 16}"
    written.write_bytes(b"on the way")
    other.write_bytes(b"the user's")
    with written.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        save(LaplaceRegressor(), path)
        assert sorted(os.listdir(tmp_path)) == sorted([written.name, other.name, path.name])
    save(LaplaceRegressor(), path)
    assert sorted(os.listdir(tmp_path)) == sorted([other.name, path.name])


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes in folders")
def test_what_is_no_file_is_neither_written_nor_read(tmp_path):
    """Replacing a device would break the machine; reading a pipe would block."""
    os.mkfifo(tmp_path / "pipe")
    os.symlink("loop", tmp_path / "loop")
    for name in ("pipe", "loop"):
        with pytest.raises(OSError, match=r"a device or a pipe|symbolic links lead in a circle"):
            save(LaplaceRegressor(), tmp_path / name)
    with pytest.raises(StateError, match="is not a regular file"):
        load(tmp_path / "pipe")
    save(LaplaceRegressor(), tmp_path / ("n" * 250))
    (tmp_path / ("n" * 250)).chmod(0o4750)
    save(LaplaceRegressor(), tmp_path / ("n" * 250))
    assert (tmp_path / ("n" * 250)).stat().st_mode & 0o7777 == 0o750


def test_a_folder_that_is_not_there_is_named(tmp_path, monkeypatch):
    """``sub/../f`` needs ``sub`` to exist."""
    monkeypatch.chdir(tmp_path)
    for path in ("sub/../f", "sub/f"):
        with pytest.raises(FileNotFoundError, match=r"the folder sub.*does not exist. Create it first"):
            save(LaplaceRegressor(), path)
    assert os.listdir(tmp_path) == []
    os.mkdir("sub")
    save(LaplaceRegressor(), "sub/../f")
    assert load("f").get_params()["n_members"] == LaplaceRegressor().n_members


@pytest.mark.parametrize("path", ["", "a\0b", "..", "sub/..", "sub/"])
def test_paths_that_name_no_file(path, tmp_path, monkeypatch):
    """The path of a folder is refused."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("sub")
    with pytest.raises((ValueError, IsADirectoryError), match=r"path=.* has to be the name of a file|is a folder"):
        save(LaplaceRegressor(), path)


def test_a_partly_read_state_leaves_nothing_behind(models):
    """A refused state leaves the estimator unchanged."""
    state = models["regressor"].__getstate__()
    model = LaplaceRegressor(n_members=3)
    with pytest.raises(StateError):
        model.__setstate__({**state, "fitted": {**state["fitted"], "tree": "{}"}})
    assert model.n_members == 3 and not model.__sklearn_is_fitted__()


def test_descriptions_are_symmetric():
    """Reading inverts packing."""
    things = {"a": torch.tanh, "b": nn.Linear(2, 1), "c": [1, (2.5, None)], "d": torch.Size([1, 2])}
    copies = Reader.of(pack(things)).value()
    assert copies["a"] is torch.tanh and copies["c"] == things["c"] and copies["d"] == things["d"]
