"""Files and states that somebody has crafted: nothing runs, nothing hangs, and what is loaded can predict.

Each attack was tried on the code before it was closed. ``docs/security.md`` states what is promised.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import pickle
import struct
import subprocess
import sys
import time
import tracemalloc
import warnings

import crafted
import nets
import numpy as np
import pytest
import safetensors.numpy
import skops.io
import torch
from former import current
from skorch import NeuralNet
from torch import nn

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save
from sklearn_laplace._export import files as _files
from sklearn_laplace._storage import describe as _persistence
from sklearn_laplace._storage import restore as _restoring
from sklearn_laplace._storage.stored import known
from sklearn_laplace.errors import StateError

RNG = np.random.default_rng(37)
X = RNG.normal(size=(40, 3))
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=40)
TABLE = np.array([["a", 1.0], ["b", np.nan], ["c", 3.0]], dtype=object)[np.arange(40) % 3]
CHEAP = {"prior_precision": "evidence", "sigma_noise": "evidence", "likelihood": "gaussian", "n_members": 1}
SMALL = {"hidden_layer_sizes": (5,), "random_state": 0}
IDENTITY = "torch.nn.modules.linear.Identity"
REGRESSOR = "sklearn_laplace.regressor.LaplaceRegressor"
KEY = b"0123456789abcdef"


class Command:
    """What a pickle would run."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class Own(nn.Module):
    """A module of the user's, with a method among its attributes."""

    def __init__(self, n_in=3):
        super().__init__()
        self.layer, self.squash = nn.Linear(n_in, 1), self.bent

    def bent(self, x):
        return torch.tanh(x)

    def forward(self, x):
        return self.squash(self.layer(x))


@pytest.fixture(scope="module")
def models():
    return {
        "regressor": LaplaceRegressor(**SMALL, **CHEAP).fit(X, Y),
        "table": LaplaceRegressor(**SMALL, **CHEAP).fit(TABLE, Y),
        "classifier": LaplaceClassifier(n_members=2, prior_precision="evidence", **SMALL).fit(X, Y > 0),
        "mixture": LaplaceRegressor(likelihood="heteroscedastic", n_members=2, **SMALL).fit(X, Y),
        "layers": LaplaceRegressor(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1)), random_state=0).fit(
            X, Y
        ),
    }


@pytest.fixture
def path(models, tmp_path):
    save(models["regressor"], tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture
def file(path):
    """The content of a file, to be changed."""
    return crafted.Crafted(path)


def shadowed(file, call):
    """A module whose printed form is made by a call, as an entry."""
    return file.add(["module", ["known", IDENTITY], {"training": False, "extra_repr": call}])


# ---------------------------------------------------------------------- attacks that ran code or wrote files


def unpickles(file, marker):
    """skorch's ``__setstate__`` unpickles the bytes that it is given; printing the net's device calls it."""
    net = file.entry(file.first("bare", "NeuralNet"))
    content = file.text_of_bytes(pickle.dumps({"device": Command(marker)}))
    pairs = [["device", "cpu"], ["torch_load_kwargs", file.add(["dict", None, [["weights_only", False]]])]]
    state = file.add(["dict", None, [*pairs, ["__cuda_dependent_attributes__", content]]])
    method = file.add(["method", net, "__setstate__"])
    call = file.add(["partial", method, [state], {}])
    file.first("bare", "NeuralNet")[2]["device"] = shadowed(file, call)


def writes_a_file(file, marker):
    """skorch's ``History.to_file`` writes to any path."""
    history = file.add(["list", ["known", "skorch.history.History"], []])
    call = file.add(["partial", file.add(["method", history, "to_file"]), [str(marker)], {}])
    file.first("bare", "NeuralNet")[2]["device"] = shadowed(file, call)


def saves_parameters(file, marker):
    """skorch's ``save_params`` and ``load_params`` open any path."""
    net = file.entry(file.first("bare", "NeuralNet"))
    call = file.add(["partial", file.add(["method", net, "save_params"]), [str(marker)], {}])
    file.first("bare", "NeuralNet")[2]["device"] = shadowed(file, call)


def answers_by_a_method(file, marker):
    """An attribute of the estimator in place of its ``predict``."""
    history = file.add(["list", ["known", "skorch.history.History"], []])
    file.fitted().append(["predict", file.add(["method", history, "to_file"])])


def hooks(file, marker):
    """torch calls the hooks of a module before its forward pass."""
    history = file.add(["list", ["known", "skorch.history.History"], []])
    hook = file.add(["partial", file.add(["method", history, "to_file"]), [str(marker)], {}])
    file.first("module", "Linear")[2]["_forward_pre_hooks"] = file.add(["dict", None, [[0, hook]]])


ATTACKS = [unpickles, writes_a_file, saves_parameters, answers_by_a_method, hooks]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_crafted_file_runs_nothing(attack, file, path, tmp_path):
    """Refused, and without the effect that it was made for."""
    marker = tmp_path / "marker"
    attack(file, marker)
    file.write(path)
    with pytest.raises(StateError):
        load(path).predict(X)
    assert not marker.exists()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_crafted_file_of_skops_runs_nothing(attack, path, file, models, tmp_path, monkeypatch):
    """The same trees as the state of an estimator, with nothing but LaplaceRegressor trusted."""
    marker = tmp_path / "marker"
    attack(file, marker)
    parts = next(node for node in file.nodes if node[0] == "dict" and {"parameters"} <= {str(p[0]) for p in node[2]})
    root = dict(map(tuple, parts[2]))["fitted"]
    arrays = [_array(values, header) for values, header in zip(file.arrays, file.tree["arrays"], strict=True)]
    tree = json.dumps({"nodes": file.nodes, "root": root})
    honest = LaplaceRegressor.__getstate__
    monkeypatch.setattr(
        LaplaceRegressor,
        "__getstate__",
        lambda self: {**honest(self), "fitted": {"tree": tree, "arrays": arrays, "foreign": []}},
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
    """Parameters are those of the class; ``predict`` is none."""
    honest = LaplaceRegressor.__getstate__

    def state(self):
        found = honest(self)
        return {**found, "parameters": {**found["parameters"], "predict": "x"}}

    monkeypatch.setattr(LaplaceRegressor, "__getstate__", state)
    content = skops.io.dumps(models["regressor"])
    with pytest.raises(ValueError, match=r"has no parameters \['predict'\]"):
        skops.io.loads(content, trusted=[REGRESSOR])


# ---------------------------------------------------------------------- every way in

METHODS = ["__setstate__", "__init__", "__reduce__", "load_params", "save_params", "initialize", "to_file", "forward"]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "owner",
    [
        ["list", ["known", "skorch.history.History"], []],
        ["bare", ["known", "skorch.net.NeuralNet"], {}],
        ["module", ["known", "torch.nn.modules.linear.Linear"], {"training": False}],
        ["bare", ["known", "sklearn.frozen._frozen.FrozenEstimator"], {}],
    ],
    ids=["History", "NeuralNet", "Linear", "FrozenEstimator"],
)
def test_no_method_of_a_library_is_bound(owner, name):
    """A bound method is one that the user's own class defines."""
    tree = {"nodes": [owner, ["method", ["node", 0], name]], "root": ["node", 1]}
    with pytest.raises(StateError, match=r"as a method of \w+, which it is not"):
        _restoring.unpack({"tree": json.dumps(tree)}, known())


@pytest.mark.parametrize("name", sorted(known().things))
def test_a_partial_calls_activations_alone(name):
    """None of the classes that a state may name is called by it; functions of one tensor, and skorch's setter, are."""
    tree = {"nodes": [["partial", ["known", name], [], {}]], "root": ["node", 0]}
    thing = known().things[name]
    if thing in known().partials:
        assert name.startswith(("torch.", "torch.nn.functional.", "skorch.setter.optimizer_setter"))
        assert _restoring.unpack({"tree": json.dumps(tree)}, known()).func is thing
    else:
        with pytest.raises(StateError, match="a partial of"):
            _restoring.unpack({"tree": json.dumps(tree)}, known())


@pytest.mark.parametrize(
    "name",
    ["builtins.eval", "os.system", "posix.system", "torch.load", "torch.hub.load", "pickle.loads", "subprocess.Popen",
     "skorch.callbacks.Checkpoint", "sklearn_laplace._export.files.save", "numpy.load", "importlib.import_module",
     "sklearn_laplace._export.atomic.write_whole", "torch.nn.modules.module.Module.apply", "__main__", "", "a" * 10**6],
)  # fmt: skip
def test_names_are_looked_up_in_the_closed_list(name, file, path):
    """Neither imported nor found by attribute."""
    file.first("module")[1] = ["known", name]
    file.write(path)
    with pytest.raises(StateError, match=r"which is not among the classes") as error:
        load(path)
    assert len(str(error.value)) < 1000


SHADOWS = [
    ("module", "Linear", "forward"), ("module", "Linear", "__call__"), ("module", "Linear", "extra_repr"),
    ("module", "Linear", "__class__"), ("module", "Linear", "__dict__"), ("module", "Linear", "__deepcopy__"),
    ("module", "Linear", "__reduce_ex__"), ("module", "Linear", "__reduce__"), ("module", "Linear", "_get_name"),
    ("module", "Linear", "named_parameters"), ("module", "Linear", "__getattr__"), ("module", "Linear", "a.b"),
    ("module", "Linear", ""), ("bare", "NeuralNet", "__repr__"), ("bare", "NeuralNet", "history"),
    ("bare", "NeuralNet", "initialize"), ("bare", "NeuralNet", "__format__"), ("bare", "NeuralNet", "__deepcopy__"),
]  # fmt: skip
"""Attributes in place of methods and properties: calls, printing, copying, formatting, looking up."""


@pytest.mark.parametrize(("kind", "owner", "name"), SHADOWS)
def test_no_attribute_stands_in_for_a_method(kind, owner, name, file, path):
    """Not even a function that does no harm, such as tanh."""
    file.first(kind, owner)[2][name] = ["known", "torch.tanh"]
    file.write(path)
    with pytest.raises(StateError, match=r"the attribute .*, which no instance has"):
        load(path)


@pytest.mark.parametrize(
    "name", ["predict", "fit", "members_", "prior_path_", "__class__", "_options", "_ensemble", "net_"]
)
def test_no_fitted_attribute_stands_in_for_a_method(name, file, path):
    """Methods and properties of the estimator, and attributes of another type than a fit's."""
    pairs = file.fitted()
    pairs[:] = [pair for pair in pairs if pair[0] != name] + [[name, ["known", "torch.tanh"]]]
    file.write(path)
    with pytest.raises(StateError, match=r"which no fit sets|is needed"):
        load(path)


@pytest.mark.parametrize(
    ("kind", "owner", "name", "value"),
    [
        ("bare", "NeuralNet", "device", ["known", "torch.tanh"]),
        ("bare", "NeuralNet", "module_", "x"),
        ("bare", "NeuralNet", "torch_load_kwargs", {"weights_only": 0}),
        ("bare", "NeuralNet", "criterion__likelihood", ["known", IDENTITY]),
        ("data", "Hyper", "prior_precision", 1.0),
        ("data", "Hyper", "dispersion", "1"),
        ("data", "Network", "module", "x"),
        ("data", "LaplaceFit", "likelihood", ["known", "torch.tanh"]),
        ("data", "TargetScale", "scale", [1.0]),
        ("module", "Linear", "_parameters", None),
        ("module", "Linear", "training", 1),
        ("module", "Linear", "in_features", ["known", "skorch.net.NeuralNet"]),
    ],
)
def test_types_are_checked_before_anything_looks_at_a_value(kind, owner, name, value, file, path):
    """Of nets, of data classes and of modules."""
    if isinstance(value, dict):
        value = file.add(["dict", None, list(map(list, value.items()))])
    file.first(kind, owner)[2][name] = value
    file.write(path)
    with pytest.raises(StateError, match=r"is needed|which is not known here"):
        load(path)


def test_a_net_does_not_come_with_unsafe_loading(file, path, models):
    """Later ``net_.load_params(f_params=…)`` would unpickle any file; the option is dropped, also by pickle."""
    file.first("bare", "NeuralNet")[2]["torch_load_kwargs"] = file.add(["dict", None, [["weights_only", False]]])
    file.write(path)
    assert load(path).net_.torch_load_kwargs is None
    model = pickle.loads(pickle.dumps(models["regressor"]))
    model.net_.torch_load_kwargs = {"weights_only": False}
    assert pickle.loads(pickle.dumps(model)).net_.torch_load_kwargs is None
    model.net_.torch_load_kwargs = {"weights_only": True}
    assert pickle.loads(pickle.dumps(model)).net_.torch_load_kwargs == {"weights_only": True}


def test_a_net_is_not_compiled_with_the_files_options(path):
    """torch's compiler runs the program that "cpp.cxx" names, at the next fit."""
    template = NeuralNet(nn.Linear, criterion=nn.MSELoss, module__in_features=3, module__out_features=1)
    save(LaplaceRegressor(template), path)
    file = crafted.Crafted(path)
    options = file.add(["dict", None, [["cpp.cxx", file.add(["list", None, ["/tmp/evil"]])]]])
    file.first("bare", "NeuralNet")[2].update({"compile": True, "compile__options": options})
    file.write(path)
    net = load(path).net
    assert net.compile is False and not [name for name in vars(net) if name.startswith("compile__")]


def test_a_net_starts_no_workers(file, path):
    """An iterator's options of a file: their number, and what each of them calls first."""
    more = {"iterator_valid__num_workers": 2, "iterator_valid__worker_init_fn": ["known", "torch.tanh"]}
    file.first("bare", "NeuralNet")[2].update({**more, "iterator_valid__batch_size": 7})
    file.write(path)
    held = vars(load(path).net_)
    assert held["iterator_valid__batch_size"] == 7 and not set(more) & set(held)


class OwnList(list):
    def __init__(self):
        pytest.fail("it ran")


class OwnKey:
    def __hash__(self):
        pytest.fail("it ran")


def test_containers_and_keys_of_ones_own_do_not_run(path):
    """Their ``__init__`` and ``__hash__`` would."""
    save(LaplaceRegressor(augment=doubled), path)
    original = crafted.Crafted(path)
    foreign = original.add(["foreign", 1])
    for node, match in (
        (["list", foreign, []], "a OwnList, whose code would run"),
        (["dict", None, [[original.add(["bare", foreign, {}]), 1]]], "a OwnKey as a key"),
    ):
        file = original.copy()
        file.tree["foreign"].append(f"{__name__}.{match.split()[1].strip(',')}")
        next(pair for pair in file.parameters() if pair[0] == "cv")[1] = file.add(node)
        file.write(path)
        with pytest.raises(StateError, match=match):
            load(path, trusted=[doubled, OwnList, OwnKey])


def doubled(X, random_state):
    return X


def test_whole_numbers_with_the_same_hash_are_no_keys(file, path):
    """Equal modulo 2⁶¹ − 1: a megabyte of them took half a minute."""
    pairs = [[k * (2**61 - 1), 1] for k in range(3000)]
    file.fitted().append(["_x", file.add(["dict", None, pairs])])
    refused_quickly(file.content(), path, "holds a int as a key")


@pytest.mark.parametrize("pair", [lambda k: ["complex", f"{-1000003 * k}+{k}j"], lambda k: ["tuple", [k, -k]]])
def test_other_keys_are_few(pair, file, path):
    """Complex numbers of one hash cost nothing to find."""
    file.fitted().append(["_x", file.add(["dict", None, [[pair(k), 1] for k in range(8_000)]])])
    refused_quickly(file.content(), path, "holds a complex as a key|more than 5000 keys that are no text")


def test_a_member_is_held_once(models, path):
    """Thousands of references to one would make thousands of predictions."""
    save(models["mixture"], path)
    file = crafted.Crafted(path)
    members = file.first("data", "Ensemble")[2]["members"]
    members[1] = members[1] * 3
    refused_quickly(file.content(), path, "one member of a LaplaceRegressor several times")


@pytest.mark.parametrize(
    "changed",
    [
        {"weights": lambda n: np.r_[2.0, np.full(n - 1, -1 / (n - 1))]},
        {"weights": lambda n: np.r_[np.nan, np.full(n - 1, 1 / (n - 1))]},
        {"weights": lambda n: np.full(n, 1j / n)},
        {"shares": lambda n: np.full(n + 1, 1 / (n + 1))},
        {"shares": lambda n: np.full(n, 1.0)},
        {"factor": lambda n: 0.0},
        {"factor": lambda n: float("nan")},
        {"members": lambda n: ()},
    ],
)
def test_weights_of_members_are_weights(changed, models, path):
    """Each finite, none below zero, of sum one; and a factor of variances above zero."""
    model = copy.copy(models["mixture"])
    values = {name: make(len(model._ensemble.members)) for name, make in changed.items()}
    model._ensemble = dataclasses.replace(model._ensemble, **values)
    save(model, path)
    with pytest.raises(StateError, match=r"a weight for each member|multiplies variances|needs 1 to 1000 members"):
        load(path)


def test_a_callback_is_no_net_that_is_compiled(path):
    """A default callback replaced by a class, with options of its own."""
    save(LaplaceRegressor(NeuralNet(nn.Linear, criterion=nn.MSELoss, module__in_features=3)), path)
    file = crafted.Crafted(path)
    more = {"callbacks__epoch_timer": ["known", "skorch.net.NeuralNet"], "callbacks__epoch_timer__compile": True}
    file.first("bare", "NeuralNet")[2].update(more)
    file.write(path)
    assert not set(more) & set(vars(load(path).net))


def test_a_setter_is_no_value(file, path):
    """As a callback's ``set_params`` skorch would call it, with the file's keywords."""
    values = {"training": False, "set_params": ["known", "skorch.setter.optimizer_setter"]}
    file.fitted().append(["_x", file.add(["module", ["known", IDENTITY], values])])
    refused_quickly(file.content(), path, "a function as 'set_params' of Identity")


def test_blocks_are_as_large_as_the_net(file, path):
    """Matrices of their sizes would be made, from a file of 40 kB."""
    file.first("data", "Block")[2]["inputs"] = 2**23
    refused_quickly(file.content(), path, "the state has blocks of .* weights, and the net has 26")


def test_whole_numbers_of_numpy_are_numbers_of_samples(models, path):
    """A search over an array sets them."""
    model = pickle.loads(pickle.dumps(models["regressor"])).set_params(**current(n_samples=np.int64(50)))
    save(model, path)
    assert load(path).n_samples == 50


def test_heads_are_at_least_one(models, path):
    """torch divides by them, and the process ends."""
    save(models["layers"], path)
    file = crafted.Crafted(path)
    heads = ["module", ["known", "torch.nn.modules.activation.MultiheadAttention"], {"num_heads": 0}]
    file.nodes[file.first("module", "Sequential")[2]["_modules"][1]][2].append(["x", file.add(heads)])
    refused_quickly(file.content(), path, "the state gives a MultiheadAttention the 'num_heads'")


def test_a_model_predicts_finite_numbers(file, path):
    """A scale of NaN is of the right type and shape."""
    place = file.nodes[file.first("data", "TargetScale")[2]["scale"][1]][1]
    file.arrays[place] = np.array([np.nan])
    refused_quickly(file.content(), path, "not finite")


@pytest.mark.parametrize("names", [np.array(["a"]), np.array(["a", "b", "c", "d"]), np.arange(3)])
def test_names_of_columns_are_as_many_strings(names, file, path):
    """Predictions of a table compare its columns with them."""
    array = file.add(["array", file.add_array(names), [0]])
    file.fitted().append(["feature_names_in_", array])
    refused_quickly(file.content(), path, "the state names the columns .* expected 3 strings")


def test_a_file_names_no_cache(path, models):
    """joblib unpickles what it finds there."""
    save(LaplaceRegressor(memory=str(path.parent)), path)
    assert load(path).memory is None


@pytest.mark.parametrize(
    ("args", "keywords"),
    [
        ([["known", "torch.nn.modules.linear.Linear"], "lr"], {}),
        ([], {"optimizer_name": "(a+)+$"}),
        ([], {"param": "lr"}),
        ([], {"optimizer_attr": ["known", "torch.tanh"]}),
    ],
)
def test_skorchs_setter_gets_no_arguments_of_a_file(args, keywords, file, path):
    """It sets attributes of whatever it is given, and compiles its name as a regular expression."""
    node = file.first("partial")
    node[2], node[3] = args, keywords
    file.write(path)
    with pytest.raises(StateError, match="a partial of"):
        load(path)


def test_an_attribute_does_not_stand_in_for_a_layer(file, path):
    """torch looks for submodules where it finds no attribute."""
    file.first("module", "MLP")[2]["0"] = ["known", "torch.tanh"]
    file.write(path)
    with pytest.raises(StateError, match="attribute '0', which no instance has"):
        load(path)
    model = LaplaceRegressor(**SMALL, **CHEAP).fit(TABLE, Y)
    save(model, path)
    file = crafted.Crafted(path)
    file.first("module", "TableMLP")[2]["behind"] = ["known", "torch.tanh"]
    file.write(path)
    with pytest.raises(StateError, match=r"the attributes \['behind'\] twice"):
        load(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("pos", -(2**31)), ("pos", 2**31 - 1), ("pos", 625), ("pos", 1.0), ("key", 3)],
)
def test_a_random_generator_is_within_its_state(name, value, path):
    """numpy reads out of bounds: the next draw ended the process."""
    save(LaplaceRegressor(random_state=np.random.RandomState(3)), path)
    assert load(path).random_state.rand() == np.random.RandomState(3).rand()
    file = crafted.Crafted(path)
    state = next(node for node in file.nodes if node[0] == "dict" and {"key", "pos"} <= {pair[0] for pair in node[2]})
    next(pair for pair in state[2] if pair[0] == name)[1] = value
    file.write(path)
    with pytest.raises(StateError, match=r"random generator at position|is needed"):
        load(path)


def test_other_generators_are_pickled(path):
    """Their states have positions of their own."""
    generator = np.random.RandomState(np.random.PCG64(3))
    found = pickle.loads(pickle.dumps(LaplaceRegressor(random_state=generator)))
    assert found.random_state.rand() == np.random.RandomState(np.random.PCG64(3)).rand()
    with pytest.raises(ValueError, match=r"RandomState, found in parameters.random_state, cannot be saved"):
        save(LaplaceRegressor(random_state=generator), path)


def test_only_data_classes_of_data_are_known():
    """Derivatives and bases of a curvature hold functions; none of these is ever stored."""
    assert {"Linearisation", "Eigenbasis", "CrossValidation"} & {
        name.rpartition(".")[2] for name in known().things
    } == set()


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_module_with_a_state_of_its_own_is_not_made(kind, file, path):
    """Its ``__setstate__`` does not run, and without it the object would be half of one."""
    file.first("module", "Tanh")[1] = ["known", f"torch.nn.modules.rnn.{kind}"]
    file.write(path)
    with pytest.raises(StateError, match="which is more than these"):
        load(path)


# ---------------------------------------------------------------------- the user's own classes


def test_a_method_of_ones_own_class_travels_where_the_class_is_handed_in(tmp_path):
    """It leads back to the module that holds it. Without the class there is neither."""
    model = LaplaceRegressor(Own, random_state=0, **CHEAP).fit(X, Y)
    save(model, tmp_path / "model")
    with pytest.raises(StateError, match=r"needs .*Own, which is none of the classes"):
        load(tmp_path / "model")
    found = load(tmp_path / "model", trusted=[Own])
    np.testing.assert_array_equal(found.predict(X), model.predict(X))
    assert found.net_.module_.squash.__self__ is found.net_.module_
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))


@pytest.mark.parametrize(
    "name", ["forward_hook", "__init__", "load_state_dict", "register_forward_hook", "apply", "xyz"]
)
def test_of_a_trusted_class_its_own_methods_alone(name, tmp_path):
    """Those that torch's base class defines are torch's."""
    save(LaplaceRegressor(Own, random_state=0, **CHEAP).fit(X, Y), tmp_path / "model")
    file = crafted.Crafted(tmp_path / "model")
    file.first("method")[2] = name
    file.write(tmp_path / "model")
    with pytest.raises(StateError, match=f"'{name}' as a method of Own, which it is not"):
        load(tmp_path / "model", trusted=[Own])


def test_a_module_with_a_replaced_method_is_pickled_and_not_saved(tmp_path):
    """An instance attribute ``forward``: a pickle has the whole object, a file refuses it."""
    module = nets.Hidden(3)
    module.forward = Forward(module)
    model = LaplaceRegressor(**current(prior_mean={"x": module}))
    found = pickle.loads(pickle.dumps(model)).prior_mean["x"]
    assert torch.equal(found(torch.ones(2, 3)), module(torch.ones(2, 3)))
    with pytest.raises(ValueError, match=r"Hidden, found in parameters\.prior_mean\.x, cannot be saved"):
        save(model, tmp_path / "model")


class Forward:
    def __init__(self, module):
        self.layers = [module.get_submodule(name) for name, _ in module.named_children()]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_loading_runs_no_code_of_trusted_classes(tmp_path, monkeypatch):
    """A class that is trusted is made without its ``__init__``, and is asked for nothing."""
    save(LaplaceRegressor(Own, random_state=0, **CHEAP).fit(X, Y), tmp_path / "model")

    def fail(*args):
        raise AssertionError("it ran")

    for name in ("__init__", "forward"):
        monkeypatch.setattr(Own, name, fail)
    assert load(tmp_path / "model", trusted=[Own]).__sklearn_is_fitted__()


# ---------------------------------------------------------------------- bounds


def refused_quickly(content, path, match, seconds=2.0, megabytes=64):
    """Time of the processor, since others may run beside; memory in a second run, which is slower."""
    path.write_bytes(content)
    start = time.process_time()
    with pytest.raises(StateError, match=match):
        load(path)
    taken = time.process_time() - start
    tracemalloc.start()
    try:
        with pytest.raises(StateError, match=match):
            load(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < seconds and peak < megabytes * 2**20, (taken, peak)


def test_nested_data_classes_do_not_hang(file, path):
    """Hashing 2³⁴ copies of a frozen data class took for ever, from a file of 7 kB."""
    entry = file.add(["data", ["known", "sklearn_laplace._data.table.Table"], {"columns": ["tuple", []]}])
    for _ in range(34):
        entry = file.add(
            ["data", ["known", "sklearn_laplace._data.table.Table"], {"columns": ["tuple", [entry, entry]]}]
        )
    file.fitted().append(["_x", file.add(["dict", None, [[entry, 1]]])])
    refused_quickly(file.content(), path, r"stands for [\d,]{12,} objects in a tree of [\d,]{4,6} entries")


@pytest.mark.parametrize(
    "node",
    [
        lambda entry: ["tuple", [entry, entry]],
        lambda entry: ["list", None, [entry, entry]],
        lambda entry: ["set", [entry, entry]],
        lambda entry: ["dict", None, [[0, entry], [1, entry]]],
        lambda entry: ["objects", [2], [entry, entry]],
        lambda entry: ["module", ["known", IDENTITY], {"a": entry, "b": entry}],
        lambda entry: ["partial", ["known", "torch.tanh"], [entry, entry], {}],
    ],
    ids=["tuple", "list", "set", "dict", "objects", "module", "partial"],
)
def test_shared_parts_do_not_multiply(node, file, path):
    """Whatever holds them: what is printed, compared or copied later is bounded by the size of the file."""
    entry = file.add(["tuple", []])
    for _ in range(60):
        entry = file.add(node(entry))
    file.fitted().append(["_x", entry])
    refused_quickly(file.content(), path, "stands for")


def test_objects_do_not_contain_themselves(file, path):
    """Twelve lists of each other have 12! paths for whoever prints them."""
    first = len(file.nodes)
    for _ in range(12):
        file.add(["list", None, [["node", first + k] for k in range(12)]])
    file.fitted().append(["_x", ["node", first]])
    refused_quickly(file.content(), path, "contains itself")


def test_depth_is_bounded(file, path):
    """Of entries in each other, of nodes that refer to the next, and of JSON itself."""
    other = file.copy()
    entry: list[object] = ["tuple", []]
    for _ in range(300):
        entry = ["tuple", [entry]]
    file.fitted().append(["_x", entry])
    refused_quickly(file.content(), path, "levels deep")
    entry = other.add(["tuple", []])
    for _ in range(20_000):
        entry = other.add(["tuple", [entry]])
    other.fitted().append(["_x", entry])
    refused_quickly(other.content(), path, "levels deep")
    text = np.frombuffer(b'{"nodes": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", dtype=np.uint8)
    arrays = {"tree": text}
    metadata = {**crafted.METADATA, "checksum": str(crafted.zlib.crc32(text.tobytes()))}
    refused_quickly(safetensors.numpy.save(arrays, metadata), path, "damaged")


def test_the_header_is_bounded_before_it_is_parsed(path):
    """safetensors took 664 MB for a header of 57 MB."""
    entries = ", ".join(f'"{k}": {{"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}' for k in range(300_000))
    header = ("{" + entries + "}").encode()
    content = struct.pack("<Q", len(header)) + header
    before = _peak()
    refused_quickly(content, path, "has a header of")
    assert _peak() - before < 64 * 1024


def _peak():
    """Most memory that this process has held, in kB."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_entries_are_bounded(file, path, monkeypatch):
    """Each takes up to 70 bytes once it is parsed; ``save`` keeps the same bound."""
    monkeypatch.setattr("sklearn_laplace._export.files.MOST_ENTRIES", 1000)
    refused_quickly(file.content(), path, r"has [\d,]+ values, and 1,000 are the most")
    with pytest.raises(ValueError, match=r"a file holds at most .* 1,000. Use pickle"):
        save(LaplaceRegressor(categorical_features=list(range(1000))), path)


def test_an_array_is_used_once(file, path):
    """A thousand tensors of one array would take a thousand times its memory."""
    tensor = file.first("tensor")
    for _ in range(1000):
        file.fitted().append([f"_{len(file.nodes)}", file.add(list(tensor))])
    refused_quickly(file.content(), path, "twice")


def test_what_was_removed_is_missed(file, path):
    """A fitted model does not become one that is not fitted."""
    file.fitted().clear()
    refused_quickly(file.content(), path, r"\d+ nodes and \d+ arrays that nothing refers to")


@pytest.mark.parametrize("shape", [[0, 10**30], [-1], [1.5], ["a"], [2**63], [1] * 65, None, 3, [[1]]])
def test_shapes_that_no_array_has(shape, file, path):
    """Numpy's own error named neither file nor array."""
    file.tree["arrays"][0][1] = shape
    refused_quickly(file.content(), path, "a shape that none can have|shape .* and its tree needs")


@pytest.mark.parametrize(
    "dtype", ["|O", "f8,f8", "f8," * 10**5, "<U99999999999", 3, None, ["f8"], "V8", "object", "(2,)f8"]
)
def test_data_types_that_no_file_has(dtype, file, path):
    """Objects, structures, and what numpy would parse for long."""
    file.tree["arrays"][0][0] = dtype
    refused_quickly(file.content(), path, "names the data type|data type .* and its tree needs")


@pytest.mark.parametrize("text", ['{"nodes": NaN}', "[]", '"x"', "3", "null", "{}", '{"nodes": 1e999}'])
def test_trees_that_are_none(text, path):
    """JSON of another form."""
    tree = np.frombuffer(text.encode(), dtype=np.uint8)
    metadata = {**crafted.METADATA, "checksum": str(crafted.zlib.crc32(tree.tobytes()))}
    refused_quickly(safetensors.numpy.save({"tree": tree}, metadata), path, "constant NaN|object is needed|lacks")


@pytest.mark.parametrize("device", ["meta", "xla", "hpu:0", "cuda:99999", "", "cpu\n", 3])
def test_tensors_lie_on_devices_that_hold_values(device, file, path):
    """On "meta" they would have none."""
    file.first("tensor")[4] = device
    refused_quickly(file.content(), path, "is not the name of a device")


@pytest.mark.parametrize("size", [2**31, 2**62, -(2**31), -100])
def test_sizes_of_layers_are_sizes(size, models, path):
    """torch ends the process for some of them."""
    save(models["layers"], path)
    file = crafted.Crafted(path)
    padding = {"training": False, "padding": ["tuple", [size, 1]], "output_size": ["tuple", [2, 2]]}
    children = file.nodes[file.first("module", "Sequential")[2]["_modules"][1]][2]
    children.append(["x", file.add(["module", ["known", "torch.nn.modules.fold.Fold"], padding])])
    refused_quickly(file.content(), path, "the state gives a Fold the 'padding'")


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 3.0), ("_kind", "x"), ("_skl_callbacks", "x"), ("_nets", 3), ("a b", 1)]
)
def test_fitted_attributes_replace_no_others(name, value, file, path):
    """Parameters, what the class holds, scikit-learn's callbacks."""
    file.fitted().append([name, value])
    refused_quickly(file.content(), path, "which no fit sets")


def test_a_part_of_a_fit_is_none(file, path):
    """Even where a layer that pads keeps the model from being tried."""
    file.fitted()[:] = [pair for pair in file.fitted() if pair[0] != "_weight_unit"]
    pad = ["module", ["known", "torch.nn.modules.padding.ReflectionPad1d"], {"training": False, "padding": 1}]
    children = file.nodes[file.first("module", "MLP")[2]["_modules"][1]][2]
    children.append(["x", file.add(pad)])
    refused_quickly(file.content(), path, "a part of a fit, without _weight_unit")


def test_text_is_of_characters(file, path):
    """numpy fails on others when it is asked for them."""
    place = file.add_array(np.array(["abc"]))
    file.arrays[place] = np.frombuffer(np.full(3, 0xFFFFFFFF, np.uint32).tobytes(), np.uint8)
    file.fitted().append(["_x", file.add(["array", place, [0]])])
    refused_quickly(file.content(), path, "numbers that are no characters")


def test_parts_that_do_not_fit_together_are_found_before_the_model_is_used(models, path):
    """A column of 10⁹ levels, a statistic of another shape, too many samples."""
    save(models["table"], path)
    original = crafted.Crafted(path)
    levels = original.copy()
    levels.first("module", "Levels")[2]["n_levels"] = 10**7
    refused_quickly(levels.content(), path, "embedding has 3 levels; expected 10000000")
    samples = original.copy()
    next(pair for pair in samples.parameters() if pair[0] == "n_samples")[1] = 10**9
    refused_quickly(samples.content(), path, "n_samples=1000000000; expected")
    widths = original.copy()
    for header, place in zip(widths.tree["arrays"], range(len(widths.arrays)), strict=True):
        if header[1] == [5]:  # biases of the hidden layer
            widths.arrays[place], header[1] = np.zeros(7, dtype=header[0]), [7]
    refused_quickly(widths.content(), path, "cannot predict")


def layers_of(*shapes):
    """Linear layers without a bias, of weights of these shapes, and nothing in them."""

    def add(file):
        found = []
        for shape in shapes:
            weight = file.add(["tensor", file.add_array(np.zeros(shape)), [0, 1], "float64", "cpu", False])
            held = file.add(["dict", None, [["weight", weight], ["bias", None]]])
            values = {"training": False, "_parameters": held, "in_features": 1, "out_features": 1}
            found.append(file.add(["module", ["known", "torch.nn.modules.linear.Linear"], values]))
        return found

    return add


def shifts(file):
    """Constants of shapes that multiply."""
    found = []
    for shape in ((2500, 1, 1), (2500, 1, 1, 1)):
        axes = list(range(len(shape)))
        values = file.add(["tensor", file.add_array(np.zeros(shape, np.float32)), axes, "float32", "cpu", None])
        buffers = file.add(["dict", None, [["values", values]]])
        found.append(file.add(["module", ["known", "sklearn_laplace.nets.mlp.Shift"], {"_buffers": buffers}]))
    return found


def nested(file):
    """Layers in layers, each three times: within the bound of shared parts, and thousands of calls."""
    entry = file.add(["module", ["known", "torch.nn.modules.activation.Tanh"], {"training": False}])
    for _ in range(8):
        held = file.add(["dict", None, [[str(k), entry] for k in range(3)]])
        entry = file.add(["module", ["known", "torch.nn.modules.container.Sequential"], {"_modules": held}])
    return [entry]


def padding(file):
    """A layer that pads its input by a number that it holds."""
    values = {"size": 10**9, "alpha": 0.1, "beta": 0.75, "k": 1.0}
    return [file.add(["module", ["known", "torch.nn.modules.normalization.LocalResponseNorm"], values])]


@pytest.mark.parametrize(
    "add", [layers_of((0, 1), (2**27, 0)), shifts, nested, padding], ids=["empty", "shifts", "nested", "padding"]
)
def test_the_trial_is_bounded(add, file, path):
    """Whether it is refused, or not tried: a small file takes neither time nor memory."""
    for node in list(file.nodes):
        if node[0] == "module" and str(node[1][-1]).endswith(".MLP"):
            children = file.nodes[node[2]["_modules"][1]][2]
            children += [[f"x{place}", entry] for place, entry in enumerate(add(file))]
    file.write(path)
    before, start = _peak(), time.process_time()
    with contextlib.suppress(StateError):
        load(path)
    assert time.process_time() - start < 2 and _peak() - before < 64 * 1024


@pytest.mark.parametrize("name", ["regressor", "table", "classifier", "mixture", "layers"])
def test_fuzzed_files_are_refused_or_predict(name, models, path):
    """``examples/benchmarks/faults.py`` does this for thousands of files; here a few of each kind of model."""
    save(models[name], path)
    original, rng = crafted.Crafted(path), np.random.default_rng(len(name))
    rows, refused = TABLE if name == "table" else X, 0
    for _ in range(60):
        crafted.fuzzed(original, rng).write(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = WATCH(path, load)
            except StateError:
                refused += 1
            else:
                assert np.isfinite(np.asarray(found.predict(rows), dtype=float)).all()
        assert not WATCH.seen and WATCH.seconds < 2
    assert refused > 20


WATCH = crafted.Watch()


def test_the_watch_sees_what_it_is_for(tmp_path):
    """Otherwise the test above could not fail."""

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
    """Checksums that were computed again do not help; nor does another key, or none."""
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
    """Somebody writes to the file between the verification and the reading."""
    save(models["regressor"], path, key=KEY)
    honest, verify = path.read_bytes(), _files._check_mac

    def meanwhile(*args):
        verify(*args)
        path.write_bytes(b"other bytes" + honest[11:])

    monkeypatch.setattr(_files, "_check_mac", meanwhile)
    np.testing.assert_array_equal(load(path, key=KEY).predict(X), models["regressor"].predict(X))
    assert path.read_bytes() != honest


def test_the_key_is_verified_before_the_tree_is_parsed(models, path, monkeypatch):
    """Nothing of an unauthentic file reaches a parser but safetensors' own."""
    save(models["regressor"], path)
    monkeypatch.setattr(_files, "_tree", lambda *args: pytest.fail("parsed"))
    file = crafted.Crafted(path)
    file.write(path, **{"hmac-sha256": "0" * 64})
    with pytest.raises(StateError, match="was changed"):
        load(path, key=KEY)


@pytest.mark.parametrize(("key", "given"), [("a" * 20, "a str"), (b"short", "5 bytes"), (3, "an int|a int")])
@pytest.mark.parametrize("use", [lambda p, key: load(p, key=key), lambda p, key: save(LaplaceRegressor(), p, key=key)])
def test_keys_are_bytes_of_some_length(use, key, given, path):
    """A short one is guessed."""
    with pytest.raises(ValueError, match=rf"key was given ({given}); it has to be None or at least 16 bytes"):
        use(path, key)


# ---------------------------------------------------------------------- files of a killed save

KILLED = """
import os, sys
from sklearn_laplace import LaplaceRegressor, save

os.fsync = lambda *args: os.kill(os.getpid(), 9)
save(LaplaceRegressor(), sys.argv[1])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a lock tells that the writer is gone")
def test_what_a_killed_save_left_is_removed_by_the_next(tmp_path):
    """And what another process is writing stays."""
    import fcntl

    path = tmp_path / "model.safetensors"
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", KILLED, path], timeout=120).returncode == -9
    assert len(os.listdir(tmp_path)) == 1, "the second one has removed the first one's"
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
    """Replacing a device would break the machine; reading a pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    os.symlink("loop", tmp_path / "loop")
    for name in ("pipe", "loop"):
        with pytest.raises(OSError, match=r"a device or a pipe|cannot be written|too many|Symlink loop|symbolic links"):
            save(LaplaceRegressor(), tmp_path / name)
    with pytest.raises(StateError, match="is not a regular file"):
        load(tmp_path / "pipe")
    save(LaplaceRegressor(), tmp_path / ("n" * 250))
    (tmp_path / ("n" * 250)).chmod(0o4750)
    save(LaplaceRegressor(), tmp_path / ("n" * 250))
    assert (tmp_path / ("n" * 250)).stat().st_mode & 0o7777 == 0o750


def test_a_folder_that_is_not_there_is_named(tmp_path, monkeypatch):
    """``sub/../f`` needs ``sub``, as for any program."""
    monkeypatch.chdir(tmp_path)
    for path in ("sub/../f", "sub/f"):
        with pytest.raises(FileNotFoundError, match=r"there is no folder sub.*Create it first"):
            save(LaplaceRegressor(), path)
    assert os.listdir(tmp_path) == []
    os.mkdir("sub")
    save(LaplaceRegressor(), "sub/../f")
    assert load("f").get_params()["n_members"] == LaplaceRegressor().n_members


@pytest.mark.parametrize("path", ["", "a\0b", "..", "sub/..", "sub/"])
def test_paths_that_name_no_file(path, tmp_path, monkeypatch):
    """A folder is none."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("sub")
    with pytest.raises((ValueError, IsADirectoryError), match=r"path=.* has to be the name of a file|is a folder"):
        save(LaplaceRegressor(), path)


def test_a_partly_read_state_leaves_nothing_behind(models):
    """An estimator whose state is refused stays as it was."""
    state = models["regressor"].__getstate__()
    found = LaplaceRegressor(n_members=3)
    with pytest.raises(StateError):
        found.__setstate__({**state, "fitted": {**state["fitted"], "tree": "{}"}})
    assert found.n_members == 3 and not found.__sklearn_is_fitted__()


def test_descriptions_are_symmetric():
    """What is written can be read: a bare object, an enumeration, a partial."""
    things = {"a": torch.tanh, "b": nn.Linear(2, 1), "c": [1, (2.5, None)], "d": torch.Size([1, 2])}
    found = _restoring.unpack(_persistence.pack(things, known()), known())
    assert found["a"] is torch.tanh and found["c"] == things["c"] and found["d"] == things["d"]
