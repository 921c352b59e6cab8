"""Safe files: a loaded model is bit-identical to the saved one, or an error names the problem."""

from __future__ import annotations

import functools
import json
import os
import pickle
import sys
import zlib
from pathlib import Path

import crafted
import nets
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import skops.io
import torch
from former import current
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from skorch.exceptions import SkorchException
from torch import nn

import sklearn_laplace
from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, options, save
from sklearn_laplace._storage.registry import known
from sklearn_laplace.errors import StateError
from sklearn_laplace.laplace.structures import STRUCTURES
from sklearn_laplace.options import Kron

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(31)
X, X_NEW = RNG.normal(size=(45, 3)), RNG.normal(size=(6, 3))
Y = np.sin(X[:, 0]) + X[:, 1] + 0.2 * RNG.normal(size=45)
LABELS = np.where(Y > 0.6, "up", np.where(Y < -0.6, "down", "flat"))
TABLE = np.array([["a", 1.0], ["b", np.nan], ["c", 3.0]], dtype=object)[np.arange(45) % 3]
TABLE_NEW = np.array([["a", 2.0], ["z", np.nan]], dtype=object)
CHEAP = {"prior_precision": "evidence", "sigma_noise": "evidence", "likelihood": "gaussian", "n_members": 1}
SMALL = {"hidden_layer_sizes": (6,), "random_state": 0}


class Squashing(nn.Module):
    """A module with a function as an attribute, and with tied weights."""

    def __init__(self, n_in=3):
        super().__init__()
        self.first, self.second = nn.Linear(n_in, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.squash, self.kept = torch.tanh, [self.first.weight, self.second]
        self.out = nn.Linear(3, 1)

    def forward(self, x):
        return self.out(self.squash(self.kept[1](self.squash(self.first(x)))))


def regressor(**options):
    return LaplaceRegressor(**current(**{**SMALL, **CHEAP, **options}))


def classifier(**options):
    return LaplaceClassifier(**current(**{**SMALL, "n_members": 1, "prior_precision": 0.1, **options}))


MODELS = {
    "mixture": lambda: LaplaceRegressor(**SMALL).fit(X, Y),
    "noise": lambda: LaplaceRegressor(likelihood="heteroscedastic", n_members=2, **SMALL).fit(X, Y),
    "table": lambda: regressor(categorical_features=[0]).fit(TABLE, Y),
    "targets": lambda: regressor(sigma_noise=np.array([0.5, 1.0])).fit(X, np.c_[Y, X[:, 0]]),
    "last layer": lambda: regressor(subset_of_weights="last_layer", dtype="float32").fit(X, Y),
    "generator": lambda: regressor(random_state=np.random.RandomState(3)).fit(X, Y),
    "streamed": lambda: regressor(hessian_structure="full").fit(X[:30], Y[:30]).partial_fit(X[30:], Y[30:]),
    "classifier": lambda: classifier(n_members=2).fit(X, LABELS),
    "ard": lambda: classifier(**current(prior_structure="ard", prior_precision="evidence")).fit(X, LABELS == "up"),
    "layers": lambda: LaplaceRegressor(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1)), random_state=0).fit(
        X, Y
    ),
    **{
        name: lambda name=name: regressor(hessian_structure=name, subset_of_weights="all").fit(X, Y)
        for name in STRUCTURES
    },
}
LINEAR = "torch.nn.modules.linear.Linear"


@pytest.fixture(scope="module")
def fitted():
    """Each model is fitted once, when it is first used."""
    return functools.cache(lambda name: MODELS[name]())


@pytest.fixture
def stored(fitted, tmp_path):
    """A small model in a file."""
    save(fitted("last layer"), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def answers(model, rows):
    """All predictions of a model for new rows, as one flat array."""
    arrays = [model.predict_std(rows, kind=kind) for kind in ("total", "epistemic", "aleatoric")]
    arrays += [model.score_samples(rows)]
    if isinstance(model, LaplaceClassifier):
        return np.concatenate([np.ravel(array) for array in [*arrays, model.predict_proba(rows)]])
    arrays += [*model.predict(rows, return_std=True), model.sample_y(rows, 3), *model.predict_interval(rows)]
    arrays += [np.ravel(model.predict_quantiles(rows, [0.1, 0.9]))]
    if model._kept is not None and np.ndim(model.predict(rows)) == 1:
        arrays += [*model.loo_predict(return_std=True)]
    return np.concatenate([np.ravel(array) for array in arrays])


def rows_of(name):
    return TABLE_NEW if name == "table" else X_NEW


def assert_same_parameters(loaded, model):
    for name, value in model.get_params(deep=False).items():
        other = loaded.get_params(deep=False)[name]
        assert type(other) is type(value), name
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(other, value)
        elif not isinstance(value, np.random.RandomState | nn.Module):
            assert other == value, name


# ---------------------------------------------------------------------- equal predictions


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_saved_model_answers_to_the_bit(name, fitted, tmp_path):
    """All predictions and parameters, for every structure, kind of net and likelihood."""
    model = fitted(name)
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(answers(loaded, rows_of(name)), answers(model, rows_of(name)))
    assert_same_parameters(loaded, model)
    assert loaded.log_marginal_likelihood_value_ == model.log_marginal_likelihood_value_
    assert loaded.structure_ == model.structure_


ELSEWHERE = """
import sys
import numpy as np
import skops.io
sys.path[:0] = {tests!r}
from test_formats import answers, rows_of, load

for name, way in {ways!r}:
    path = f"{{name}}.{{way}}"
    if way == "skops":
        model = skops.io.load(path, trusted=skops.io.get_untrusted_types(file=path))
    else:
        model = load(path)
    np.save(f"{{path}}.npy", answers(model, rows_of(name)))
"""


def test_saved_models_answer_to_the_bit_in_another_process(fitted, tmp_path, processes):
    """A mixture, a learnt noise, a table with categories and a classifier, with safetensors and skops."""
    names = ["mixture", "noise", "table", "classifier", "functional"]
    ways = [(name, way) for name in names for way in ("safetensors", "skops")]
    for name, way in ways:
        path = tmp_path / f"{name}.{way}"
        (skops.io.dump if way == "skops" else save)(fitted(name), path)
    folders = [os.path.dirname(file) for file in (__file__, nets.__file__, crafted.__file__)]
    script = ELSEWHERE.format(tests=folders, ways=ways)
    run = processes.run(script, folder=tmp_path)
    assert run.returncode == 0, run.stderr
    for name, way in ways:
        loaded = np.load(tmp_path / f"{name}.{way}.npy")
        np.testing.assert_array_equal(loaded, answers(fitted(name), rows_of(name)), err_msg=f"{name} by {way}")


@pytest.mark.parametrize("name", ["mixture", "noise", "table", "classifier", "low_rank_diag"])
def test_skops_has_to_trust_nothing_but_the_estimator(name, fitted):
    """The state is text and arrays, which skops loads without trust."""
    content = skops.io.dumps(fitted(name))
    kind = type(fitted(name))
    assert skops.io.get_untrusted_types(data=content) == [f"{kind.__module__}.{kind.__qualname__}"]
    loaded = skops.io.loads(content, trusted=skops.io.get_untrusted_types(data=content))
    np.testing.assert_array_equal(answers(loaded, rows_of(name)), answers(fitted(name), rows_of(name)))
    assert_same_parameters(loaded, fitted(name))


def test_skops_names_the_module_of_a_user(tmp_path):
    """skops lists the class of the user's module as untrusted."""
    model = LaplaceRegressor(nets.Hidden(3), random_state=0, **CHEAP).fit(X, Y)
    content = skops.io.dumps(model.set_params(net=None))
    assert "nets.Hidden" in skops.io.get_untrusted_types(data=content)


def test_a_loaded_model_goes_on(fitted, stored):
    """partial_fit, forget and refit_laplace as for the original."""
    model = pickle.loads(pickle.dumps(fitted("full")))
    save(model, stored)
    loaded = load(stored)
    for each in (loaded, model):
        each.partial_fit(X[:9] + 1, Y[:9]).forget(X[:3] + 1, Y[:3]).refit_laplace(temperature=0.5)
    np.testing.assert_array_equal(answers(loaded, X_NEW), answers(model, X_NEW))
    np.testing.assert_array_equal(clone(loaded).fit(X, Y).predict(X_NEW), fitted("full").predict(X_NEW))


def test_parameters_come_back_as_they_were(stored):
    """Parameters of an unfitted estimator keep their types, including values that JSON does not have."""
    expected = {
        "hidden_layer_sizes": (3, 4),
        "prior_precision": [float("inf")],
        "sigma_noise": np.array([0.5, np.nan], dtype=np.float32),
        "random_state": np.random.RandomState(5),
        "categorical_features": ["a", 1, True],
        "prior_mean": {"0.weight": np.arange(6.0).reshape(2, 3).T},
        "max_epochs": 10**30,
        "lr": np.float64(0.1),
        "net": Squashing,
        "hessian_structure": Kron(damping="ritter"),
    }
    save(LaplaceRegressor(**current(**expected)), stored)
    params = load(stored, trusted=[Squashing]).get_params()
    for name in ("hidden_layer_sizes", "categorical_features", "max_epochs", "lr"):
        assert params[name] == expected[name] and type(params[name]) is type(expected[name])
    assert params["sigma_noise"].tobytes() == expected["sigma_noise"].tobytes()
    assert params["random_state"].rand() == np.random.RandomState(5).rand()
    assert params["prior_precision"] == [float("inf")]
    assert params["net"] is Squashing
    assert isinstance(params["hessian_structure"], Kron) and params["hessian_structure__damping"] == "ritter"
    array = params["prior__mean"]["0.weight"]
    assert array.flags.f_contiguous
    np.testing.assert_array_equal(array, expected["prior_mean"]["0.weight"])


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "bcd"]),
        np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
        np.array([b"x", b"yz"]),
        np.array(["a", None, 1.5], dtype=object),
        np.arange(4.0).astype(">f8"),
        np.array(3.0),
        np.zeros((0, 3)),
        np.array([1 + 2j]),
        np.arange(24.0).reshape(2, 3, 4).transpose(1, 0, 2),
        np.arange(10)[::-2],
        np.broadcast_to(np.arange(3.0), (2, 3)),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_arrays_of_any_kind_come_back(array, stored):
    """Text, times, bytes, objects, byte orders, empty arrays and many dimensions."""
    save(LaplaceRegressor(**current(prior_mean=array)), stored)
    loaded = load(stored).prior.mean
    assert loaded.dtype == array.dtype and loaded.shape == array.shape
    np.testing.assert_array_equal(loaded, array)


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["no", "yes"], dtype=object), np.array([False, True]), np.array([-1.0, 3.0]),
        np.array([3, 8], "uint8"), np.array(["b", "äöü"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("likelihood", ["bernoulli", "categorical"])
def test_labels_of_each_type_are_read_again(labels, likelihood, tmp_path):
    """With one logit, and with an output per class."""
    model = classifier(likelihood=likelihood).fit(X, labels[(Y > 0.5).astype(int)])
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.classes_.tolist() == labels.tolist() and loaded.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_a_previous_estimator_travels_along(fitted, stored):
    """``prior=FrozenEstimator(…)`` is a fitted estimator within an estimator."""
    model = regressor(hessian_structure="full", prior=FrozenEstimator(fitted("full"))).fit(X[:20], Y[:20])
    save(model, stored)
    loaded = load(stored)
    np.testing.assert_array_equal(answers(loaded.prior.estimator, X_NEW), answers(fitted("full"), X_NEW))
    assert loaded.predict(X_NEW).tolist() == model.predict(X_NEW).tolist()


# ---------------------------------------------------------------------- the user's own classes


def test_a_module_of_the_user_is_trusted(stored):
    """The user's class has to be in ``trusted``; tied weights stay tied, also in lists of the module."""
    model = LaplaceRegressor(Squashing(), random_state=0, **CHEAP).fit(X, Y)
    save(model, stored)
    with pytest.raises(ValueError, match=r"needs .*\.Squashing, which is not a class of .* trusted is empty"):
        load(stored)
    with pytest.raises(ValueError, match=r"trusted has \['nets.Hidden'\].*load\(path, trusted=\[Squashing\]\)"):
        load(stored, trusted=[nets.Hidden])
    loaded = load(stored, trusted=[Squashing])
    np.testing.assert_array_equal(answers(loaded, X_NEW), answers(model, X_NEW))
    module = loaded.net_.module_
    assert module.first.weight is module.second.weight is module.kept[0]
    assert module.kept[1] is module.second and module.squash is torch.tanh
    name = f"{Squashing.__module__}.Squashing"
    np.testing.assert_array_equal(load(stored, trusted={name: Squashing}).predict(X_NEW), model.predict(X_NEW))


def test_nothing_is_imported_by_name(stored, tmp_path, monkeypatch):
    """Even if the module's file is importable, because importing it would run it."""
    (tmp_path / "dangerous.py").write_text("raise SystemExit('executed')")
    model = LaplaceRegressor(Squashing(), random_state=0, **CHEAP).fit(X, Y)
    monkeypatch.setattr(Squashing, "__module__", "dangerous")
    save(model, stored)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"needs dangerous.Squashing"):
        load(stored)
    assert "dangerous" not in sys.modules


def test_a_skorch_net_as_template_travels(stored):
    """Its class is known; its module has to be trusted."""
    model = LaplaceRegressor(nets.regressor(), random_state=0, **CHEAP).fit(X, Y)
    save(model, stored)
    loaded = load(stored, trusted=[nets.Hidden])
    np.testing.assert_array_equal(answers(loaded, X_NEW), answers(model, X_NEW))
    assert loaded.net.max_epochs == 20 and loaded.net.optimizer is torch.optim.Adam


def test_a_loaded_template_is_fitted_again(stored):
    """With equal parameters, so the fit is equal."""
    model = LaplaceRegressor(nets.regressor(module__hidden=5), random_state=0, **CHEAP).fit(X, Y)
    save(model, stored)
    loaded = load(stored, trusted=[nets.Hidden])
    np.testing.assert_array_equal(clone(loaded).fit(X, Y).predict(X_NEW), model.predict(X_NEW))


def test_a_frozen_net_is_saved_without_its_training(stored):
    """Optimiser and callbacks are not saved: it predicts, and skorch refuses further training."""
    net = nets.regressor(nets.Hidden, module__n_in=3, max_epochs=2).fit(X.astype("f4"), Y[:, None].astype("f4"))
    model = LaplaceRegressor(FrozenEstimator(net)).fit(X, Y)
    save(model, stored)
    loaded = load(stored, trusted=[nets.Hidden])
    np.testing.assert_array_equal(answers(loaded, X_NEW), answers(model, X_NEW))
    frozen = loaded.net.estimator
    np.testing.assert_array_equal(frozen.predict(X_NEW.astype("f4")), net.predict(X_NEW.astype("f4")))
    np.testing.assert_array_equal(clone(loaded).fit(X, Y).predict(X_NEW), model.predict(X_NEW))
    with pytest.raises(SkorchException, match="trimmed for prediction"):
        frozen.partial_fit(X.astype("f4"), Y[:, None].astype("f4"))


def test_a_skorch_net_of_one_logit_needs_its_module_alone(stored):
    """The function that turns one logit into two probabilities belongs to the package."""
    net = NeuralNetClassifier(nets.Hidden, module__n_in=3, module__n_out=1, max_epochs=2, train_split=None, verbose=0)
    model = LaplaceClassifier(net, likelihood="bernoulli", random_state=0, prior_precision="evidence").fit(X, Y > 0)
    save(model, stored)
    loaded = load(stored, trusted=[nets.Hidden])
    np.testing.assert_array_equal(loaded.predict_proba(X_NEW), model.predict_proba(X_NEW))


def test_what_is_trusted_are_classes(stored):
    """Names are refused, because they would have to be imported."""
    with pytest.raises(ValueError, match=r"trusted holds 'nets.Hidden'; expected classes and functions"):
        load(stored, trusted=["nets.Hidden"])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"net": lambda: None}, r"<lambda>, found in parameters\.net, cannot be saved"),
        ({"net": nn.LSTM(3, 2)}, r"class torch\.nn\.modules\.rnn\.LSTM, found in parameters\.net, cannot be saved"),
        ({"random_state": iter([1])}, r"builtins\.list_iterator, found in parameters\.random_state"),
        ({"net": functools.partial(Squashing, n_in=3)}, r"functools\.partial, found in parameters\.net"),
        ({"device": {(1, frozenset()): 2}}, r"frozenset, found in parameters\.device"),
        ({"memory": {nn.ReLU(): 2}}, r"ReLU, found in the keys of parameters\.memory"),
        ({"net": type("Local", (nn.Module,), {"__qualname__": "f.<locals>.Local"})()}, r"<locals>\.Local, found in"),
    ],
)
def test_what_cannot_be_stored_is_named(parameters, message, stored):
    """The error states the place; an existing file is unchanged."""
    before = stored.read_bytes()
    with pytest.raises(ValueError, match=message):
        save(LaplaceRegressor(**current(**parameters)), stored)
    assert stored.read_bytes() == before and os.listdir(stored.parent) == [stored.name]


def test_only_estimators_are_saved(stored):
    """Of a search, the estimator that it has found."""
    with pytest.raises(TypeError, match=r"save was given a KFold; expected a LaplaceRegressor or a LaplaceClassifier"):
        save(KFold(), stored)
    with pytest.raises(TypeError, match=r"save was given a GridSearchCV; .*save the best_estimator_"):
        save(GridSearchCV(LaplaceRegressor(), {}), stored)
    with pytest.raises(TypeError, match=r"save was given a Pipeline; expected a LaplaceRegressor"):
        save(make_pipeline(StandardScaler(), KFold()), stored)


@pytest.mark.parametrize(("kind", "y"), [(LaplaceRegressor, Y), (LaplaceClassifier, LABELS)])
@pytest.mark.parametrize("steps", [[StandardScaler()], [SimpleImputer(), make_pipeline(StandardScaler())]])
def test_the_lines_of_the_message_save_a_pipeline(kind, y, steps, tmp_path, monkeypatch):
    """They are executed as they are printed; predictions are equal to the bit."""
    monkeypatch.chdir(tmp_path)
    fitted = make_pipeline(*map(clone, steps), kind(prior_precision=1.0, n_members=1, **SMALL)).fit(3 + 5 * X, y)
    with pytest.raises(TypeError, match=r"save was given a Pipeline; .*with skops") as caught:
        save(fitted, "model.safetensors")
    lines = [line.strip() for line in str(caught.value).splitlines() if line.startswith("    ")]
    names = {"skops": skops, "sklearn_laplace": sklearn_laplace, "make_pipeline": make_pipeline, "pipeline": fitted}
    exec("\n".join(lines), names)
    assert len(lines) == 4 and names["pipeline"] is not fitted
    np.testing.assert_array_equal(names["pipeline"].predict(X_NEW), fitted.predict(X_NEW))
    if kind is LaplaceRegressor:
        np.testing.assert_array_equal(
            sklearn_laplace.predict_std(names["pipeline"], X_NEW), sklearn_laplace.predict_std(fitted, X_NEW)
        )


# ---------------------------------------------------------------------- files


def test_a_file_that_cannot_be_written_leaves_the_old_one(stored, fitted, monkeypatch):
    """A complete new file replaces the old one atomically; otherwise temporary files are removed."""
    before = stored.read_bytes()

    def full(*paths):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        save(fitted("diag"), stored)
    assert stored.read_bytes() == before and os.listdir(stored.parent) == [stored.name]


def test_the_mode_of_a_file_stays(stored, fitted):
    """Saving keeps the permissions of an existing file."""
    stored.chmod(0o640)
    save(fitted("last layer"), stored)
    assert stored.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_file_that_is_cut_off_is_refused(share, stored):
    """At any length."""
    content = stored.read_bytes()
    stored.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"cannot be read as a file of safetensors .*cut off"):
        load(stored)


def test_a_file_of_another_kind_is_refused(stored):
    """A pickle, and a safetensors file from another program."""
    stored.write_bytes(b"name,value\na,1\n")
    with pytest.raises(ValueError, match=r"cannot be read as a file of safetensors .*another format"):
        load(stored)
    stored.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match=r"cannot be read as a file of safetensors .*a pickle or a file of joblib"):
        load(stored)
    safetensors.numpy.save_file({"weight": np.ones(3)}, stored)
    with pytest.raises(ValueError, match=r"was not written by sklearn_laplace.save: .*format=None, expected"):
        load(stored)


def changed(path, change_tree=lambda tree: None, change_arrays=lambda arrays: None, **metadata):
    """Rewrite a file with these changes and a valid checksum."""
    with safetensors.safe_open(path, framework="numpy") as file:
        names, old_metadata = file.keys(), file.metadata()
        arrays = {name: file.get_tensor(name) for name in names}
    tree = json.loads(arrays["tree"].tobytes())
    change_tree(tree)
    arrays["tree"] = np.frombuffer(json.dumps(tree).encode(), dtype=np.uint8)
    change_arrays(arrays)
    if "tree" in arrays:
        old_metadata["checksum"] = str(zlib.crc32(arrays["tree"].tobytes()))
    path.write_bytes(safetensors.numpy.save(arrays, {**old_metadata, **metadata}))


def test_another_version_is_refused(stored):
    """The error names both format versions."""
    changed(stored, version="8")
    with pytest.raises(ValueError, match=r"was written in format 8 and .* reads format 7: load it with the version"):
        load(stored)


def test_files_of_an_older_format_are_refused():
    """An earlier version wrote format 2."""
    message = r"in format 2 and this version of sklearn_laplace reads format 7: load it with the version that wrote it"
    with pytest.raises(StateError, match=message):
        load(Path(__file__).parent / "data" / "format_3.safetensors")


def first(tag):
    """Turns a function that modifies a node into a change of the first object with a tag."""

    def change(how):
        def apply(tree):
            how(next(node for node in tree["objects"] if node[1] == tag))

        return apply

    return change


def first_header(how):
    """A change of the first tensor header."""

    def apply(tree):
        how(next(header for header in tree["headers"] if len(header) == 4))

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (first("Hyper")(lambda node: node.__setitem__(1, "os.system")), r"names 'os\.system', which is not"),
        (first("Hyper")(lambda node: node.extend(["extra", 1])), r"'extra'.*, and this version .* needs"),
        (first("Hyper")(lambda node: node.__delitem__(slice(2, None))), r"holds a Hyper of \[\], and this version"),
        (first("Hyper")(lambda node: node.__setitem__(0, "exec")), r"object of .*, which a saved model cannot contain"),
        (first("Hyper")(lambda node: node.__setitem__(3, ["exec", 1])), r"the kind 'exec', which is not known"),
        (first("Hyper")(lambda node: node.__setitem__(3, ["array", 9999])), r"refers to number 9999 of"),
        (first("Hyper")(lambda node: node.__setitem__(3, ["ref", 9999])), r"refers to number 9999 of"),
        (first_header(lambda header: header.__setitem__(1, "float7")), r"damaged \(KeyError: 'float7'"),
        (first_header(lambda header: header.__setitem__(1, "int64")), r"data type float\d\d as a tensor of int64"),
        (first("nn.Linear")(lambda node: node.__setitem__(1, "torch.tanh")), "an object of .*, which a saved model"),
        (first("LaplaceRegressor")(lambda node: node.__setitem__(1, "Hyper")), "this version of sklearn_laplace needs"),
        (lambda tree: tree.pop("arrays"), r"its tree lacks \['arrays'\]"),
        (lambda tree: tree.update(own=["os.system"]), r"needs os\.system, which is not a class"),
        (lambda tree: tree["objects"].__setitem__(0, ["is", ["ref", 0]]), r"names \['ref', 0\], which is not among"),
        (
            lambda tree: tree["objects"].__setitem__(0, ["object", "nn.Tanh", "x", ["ref", 0]]),
            "refers to number 0 of 0",
        ),
    ],
)
def test_a_tree_that_was_changed_is_refused(change, message, stored):
    """Unknown classes and kinds, missing or additional fields, and dangling references."""
    changed(stored, change)
    with pytest.raises(ValueError, match=message):
        load(stored)


def test_a_tree_that_is_no_json_is_refused(stored):
    """The error states that the file is damaged."""
    changed(stored, change_arrays=lambda arrays: arrays.update(tree=np.frombuffer(b"{", dtype=np.uint8)))
    with pytest.raises(ValueError, match=r"damaged: its tree is not JSON"):
        load(stored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("tree"), r"has no array 'tree', which describes the others"),
        (lambda arrays: arrays.update(tree=np.array([255, 254], dtype=np.uint8)), r"is damaged"),
        (lambda arrays: arrays.pop("1"), r"missing are 1, not listed none"),
        (lambda arrays: arrays.update(more=np.ones(2)), r"missing are none, not listed more"),
        (lambda arrays: arrays.update({"0": arrays["0"].astype(np.int16)}), r"array 0 .* data type int16 .* needs"),
        (lambda arrays: arrays.update({"0": arrays["0"].ravel()[:0]}), r"array 0 .* shape \(0,\), and its tree needs"),
    ],
)
def test_arrays_that_were_changed_are_refused(change, message, stored):
    """Missing or additional arrays, other types and shapes."""
    changed(stored, change_arrays=change)
    with pytest.raises(ValueError, match=message):
        load(stored)


@pytest.mark.parametrize("name", ["0", "tree"])
def test_bytes_that_have_changed_are_refused(name, stored):
    """The checksum finds a flipped bit."""
    with safetensors.safe_open(stored, framework="numpy") as file:
        values = file.get_tensor(name)
    content = stored.read_bytes()
    place = content.index(values.tobytes()) + values.nbytes // 2
    stored.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    with pytest.raises(ValueError, match=r"was changed: its checksum differs"):
        load(stored)


def test_parameters_of_another_version_are_named(stored):
    """A parameter that is missing in the file."""

    def renamed(tree):
        crafted.remove(tree["objects"][-1][3], "lr")

    changed(stored, renamed)
    with pytest.raises(ValueError, match=r"differ in the parameters \['lr'\]"):
        load(stored)


def test_objects_as_data_types_are_refused(stored):
    """numpy would unpickle arrays of objects."""
    changed(stored, lambda tree: tree["arrays"].__setitem__(0, ["|O", [1], 0]))
    with pytest.raises(ValueError, match=r"names the data type '\|O', which is not a type of numbers or text"):
        load(stored)


def test_a_missing_package_is_named(stored, monkeypatch):
    """Only save needs safetensors; load reads the format itself."""
    expected = load(stored).predict(X_NEW)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(
        ImportError, match=r"save needs the package safetensors, .*pip install \"sklearn-laplace\[save\]\""
    ):
        save(LaplaceRegressor(), stored)
    np.testing.assert_array_equal(load(stored).predict(X_NEW), expected)


# ---------------------------------------------------------------------- the closed list


DATA = """
Affine Bernoulli BlockDiagonal BlockPosterior Categorical Choice Column Conv DenseFactor Diag
DiagPosterior EKFAC EKFACBlock Embedding EmpiricalFisher Ensemble FactoredJacobian Full FullPosterior Functional
FunctionalPosterior GGN Gaussian Generic HeldOutScores Hessian Hyper InfBlockPosterior
Kron KronBlock KronBlockPosterior KronPosterior LaplaceFit LayerFactor Layout Linear LogTransform LowRank LowRankDiag
MCFisher Member NegativeBinomial Network NoiseModel ParameterBlock Poisson PreparedData Prior
SelectionState SharedFactor SquaredErrors Table TargetNoise TargetScale TemperedPosterior ValidationScores WeightSharing
"""
NETS = "ColumnsModule Compress Levels MLP NumbersAndPieces Pieces Scale Shift Standardise StandardisedLinear TableMLP"


def test_the_closed_list():
    """Classes of the package, torch's layers and optimisers, skorch's nets, option objects, a few functions."""
    groups = {}
    for tag in known():
        groups.setdefault(tag.rpartition(".")[0], set()).add(tag)
    assert groups.pop("") == {*DATA.split(), *NETS.split(), "both_probabilities"}
    assert groups.pop("options") == {f"options.{name}" for name in options.__all__}
    assert groups.pop("sklearn") == {"sklearn.FrozenEstimator"}
    for prefix in ("nn", "optim", "skorch", "torch", "nn.functional"):
        owner = {"nn.functional": "torch"}.get(prefix, "skorch" if prefix == "skorch" else "torch")
        things = [known()[tag] for tag in groups.pop(prefix)]
        assert all(str(thing.__module__ or "torch").startswith((owner, "builtins")) for thing in things)
    assert not groups


@pytest.mark.parametrize("name", sorted(MODELS))
def test_nothing_of_a_built_in_model_is_the_users_own(name, fitted):
    """A fit without user classes stores none."""
    assert fitted(name).__getstate__()["fitted"]["own"] == []


def test_the_functions_are_public():
    """At the top level of the package."""
    assert {"save", "load"} <= set(sklearn_laplace.__all__)
