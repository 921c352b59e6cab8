"""Ranges of the numbers of a file, and bounds on the work of reading it; see also test_security.py."""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import time

import crafted
import numpy as np
import pytest
from crafted import attribute, put
from refused import refused_quickly

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, load, save
from sklearn_laplace._export import files, trial
from sklearn_laplace._runtime.memory import MemoryBudget
from sklearn_laplace._storage.ranges import RANGE_OF
from sklearn_laplace._storage.registry import data_classes, fields_of
from sklearn_laplace.errors import StateError

RNG = np.random.default_rng(48)
X = RNG.normal(size=(44, 3))
Y = np.cos(X[:, 0]) + 0.1 * RNG.normal(size=44)
SMALL = {"hidden_layer_sizes": (5,), "random_state": 0}
ONE = {**SMALL, "n_members": 1, "prior_precision": 1.0}
GAUSSIAN = {**ONE, "sigma_noise": 0.1, "likelihood": "gaussian"}


@pytest.fixture(scope="module")
def models():
    structures = ("full", "block_diagonal", "kron", "ekfac", "low_rank_diag", "diag", "low_rank", "functional")
    return {
        "mixture": LaplaceRegressor(likelihood="heteroscedastic", n_members=2, **SMALL).fit(X, Y),
        "default": LaplaceRegressor(**SMALL).fit(X, Y),
        "counts": LaplaceRegressor(likelihood="negative_binomial", **SMALL).fit(X, RNG.poisson(np.exp(X[:, 0]))),
        "skewed": LaplaceRegressor(target_transform="log", **ONE).fit(X, np.exp(Y)),
        "targets": LaplaceRegressor(**{**GAUSSIAN, "sigma_noise": np.array([0.5, 1.0])}).fit(X, np.c_[Y, X[:, 1]]),
        "tempered": LaplaceRegressor(temperature=0.5, hessian_structure="kron", **ONE).fit(X, Y),
        "classifier": LaplaceClassifier(**ONE).fit(X, np.array(["u", "v", "w"])[np.arange(44) % 3]),
        **{name: LaplaceRegressor(hessian_structure=name, **GAUSSIAN).fit(X, Y) for name in structures},
    }


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture
def crafted_of(models, path):
    """The editable content of the file of a model."""

    def made(name):
        save(models[name], path)
        return crafted.Crafted(path)

    return made


# ---------------------------------------------------------------------- ranges


def test_every_number_has_a_range():
    """A new attribute needs an entry. Codes of categories belong to values of any type, and a trial reads them."""
    numbers = {
        f"{kind.__name__}.{name}"
        for kind in data_classes()
        for name, annotation in fields_of(kind).items()
        if re.search(r"\b(int|float|Tensor|ndarray)\b", f"{annotation} {getattr(annotation, '__name__', '')}")
    }
    buffers = {"NumbersAndPieces", "Pieces", "Standardise", "Compress", "fitted"}
    listed = {name for name in RANGE_OF if name.partition(".")[0] not in buffers}
    assert numbers - {"Column.codes"} == listed


OUTSIDE = {
    "positive": [-2.0, 0.0, np.nan, np.inf, 1 - 2j],
    "positive or infinite": [-2.0, 0.0, np.nan, 1 - 2j],
    "of at least 0": [-1.0, np.nan, np.inf, 1j],
    "of at least 1": [0.0, -3.0],
    "finite": [np.nan, -np.inf, 1 + 0j],
    "real": [1j],
}
NAMES = [
    *("mixture", "default", "counts", "skewed", "targets", "tempered", "classifier", "full", "block_diagonal", "kron"),
    *("ekfac", "low_rank_diag", "diag", "low_rank", "functional"),
]


@pytest.mark.parametrize("name", NAMES)
def test_numbers_out_of_their_range_are_refused(name, crafted_of, path):
    """Each attribute of each class in a file; the kinds of wrong values take turns."""
    original, tried = crafted_of(name), set()
    for place, node in enumerate(original.objects):
        for attribute_name, value in zip(node[2::2], node[3::2], strict=True):
            words = RANGE_OF.get(f"{node[1]}.{attribute_name}")
            is_number = type(value) in (int, float) or (isinstance(value, list) and value[:1] == ["array"])
            if words is None or not is_number or (node[1], attribute_name) in tried:
                continue
            tried.add((node[1], attribute_name))
            wrong = OUTSIDE[words][(len(tried) + len(name)) % len(OUTSIDE[words])]
            if with_wrong(original, place, attribute_name, wrong, path):
                with pytest.raises(StateError, match=f"as '{attribute_name}' of {node[1]}"):
                    load(path)
    assert len(tried) > 25


def with_wrong(original, place, name, wrong, path):
    """Write the file with one wrong number in an attribute; False if its type alone excludes it."""
    file = original.copy()
    value = attribute(file.objects[place], name)
    if type(value) in (int, float):
        if isinstance(wrong, complex) or (type(value) is int and not np.isfinite(wrong)):
            return False
        number = int(wrong) if type(value) is int else wrong
        put(file.objects[place], name, number if np.isfinite(wrong) else ["float", repr(wrong)])
    else:
        old, of_tensor = file.arrays[value[1]], list(file.tree["headers"][value[1]][1:])
        changed = old.astype(np.result_type(old, type(wrong)))
        if not changed.size or (old.dtype.kind in "iu" and not isinstance(wrong, complex)):
            return False
        changed.flat[-1] = wrong
        of_tensor[:1] = [str(changed.dtype)] if of_tensor else []
        put(file.objects[place], name, file.add_array(changed, *of_tensor))
    file.write(path)
    return True


@pytest.mark.parametrize(
    "wrong", [["float", "nan"], -1.0, 0.0, lambda file: file.add_array(np.array(-1.0), "float64", "cpu", None)]
)
def test_a_temperature_is_positive(wrong, crafted_of, path):
    """As a number and as a tensor."""
    file = crafted_of("full")
    put(file.first("Hyper"), "temperature", wrong(file) if callable(wrong) else wrong)
    refused_quickly(file.content(), path, r"as 'temperature' of Hyper; the numbers there are positive")


def test_complex_weights_are_refused(crafted_of, path):
    """Their predictions would be complex."""
    file = crafted_of("full")
    place = attribute(attribute(file.first("nn.Linear"), "_parameters"), "weight")[1]
    file.set_array(place, file.arrays[place].astype(np.complex128))
    refused_quickly(file.content(), path, "complex numbers as '_parameters' of Linear")


def test_weights_that_are_not_finite_are_refused(crafted_of, path):
    """Weights have no range, but the model predicts no numbers."""
    file = crafted_of("full")
    for node in file.objects:
        if node[1] in ("nn.Linear", "StandardisedLinear"):
            for _, place in filter(None, attribute(node, "_parameters")[2::2]):
                file.arrays[place] = file.arrays[place] * np.array(np.nan, dtype=file.arrays[place].dtype)
    refused_quickly(file.content(), path, "the model cannot predict|not finite")


@pytest.mark.parametrize(
    "labels",
    [
        ["w", "v", "u"], ["u", "u", "v"], ["u", "v"], ["a", "b", "c", "d"], [["u", "v", "w"]], [0, 1, 7, 9], [2, 1, 3],
        [0.0, 1.0, np.nan], [1j, 2j, 3j], "u",
    ],
)  # fmt: skip
def test_labels_are_sorted_unique_and_as_many_as_outputs(labels, crafted_of, path):
    """``predict`` and scores look labels up in them."""
    file = crafted_of("classifier")
    put(file.fitted(), "classes_", file.add_array(np.array(labels)))
    refused_quickly(file.content(), path, "the state has classes_=.*expected 3 labels, sorted and unique")


@pytest.mark.parametrize("items", [("u", "v", 3), (1, 2, 3), ("u", "v", None), ("w", "v", "u")])
def test_labels_that_are_objects_are_strings(items, crafted_of, path):
    """Any object with a comparison was accepted."""
    file = crafted_of("classifier")
    put(file.fitted(), "classes_", ["objects", ["size", 3], *items])
    refused_quickly(file.content(), path, "the state has classes_=.*expected 3 labels")


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["no", "yes"], dtype=object), np.array([False, True]), np.array([-1.0, 3.0]),
        np.array([3, 8], "uint8"), np.array(["b", "äöü"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("likelihood", ["bernoulli", "categorical"])
def test_labels_of_each_type_are_read_again(labels, likelihood, path):
    """With one logit, and with an output per class."""
    options = {**ONE, "likelihood": likelihood}
    model = LaplaceClassifier(**options).fit(X, labels[(Y > 0.5).astype(int)])
    save(model, path)
    loaded = load(path)
    assert loaded.classes_.tolist() == labels.tolist() and loaded.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_only_a_classifier_has_labels(crafted_of, path):
    """A regressor has none, and a classifier needs them."""
    file = crafted_of("full")
    put(file.fitted(), "classes_", file.add_array(np.array([0, 1])))
    refused_quickly(file.content(), path, "labels if and only if it is a classifier")
    file = crafted_of("classifier")
    crafted.remove(file.fitted(), "classes_")
    file.write(path)
    with pytest.raises(StateError, match=r"labels if and only if|nothing refers to"):
        load(path)


# ---------------------------------------------------------------------- work of the trial prediction


def many_members(file, n, distinct=None):
    """Add copies of the first member, and of one of its parts for each."""
    first = crafted.add_members(file, n)
    if distinct is not None:
        place = attribute(file.objects[first], distinct)[1]
        _, start = file.add(file.objects[place], place + 1, n)
        for k in range(n):
            put(file.objects[first + n + k], distinct, ["ref", start + k])


@pytest.mark.parametrize(("n", "distinct"), [(998, None), (200, "fit"), (600, "hyper")])
def test_many_members_are_not_all_tried(n, distinct, crafted_of, path):
    """1,000 members that share every part took 50 s, from a file of half a megabyte."""
    file = crafted_of("full")
    many_members(file, n, distinct)
    file.write(path)
    start = time.process_time()
    assert len(load(path)._ensemble.members) == n + 1
    assert time.process_time() - start < 2


def test_each_distinct_member_of_a_small_file_is_tried(crafted_of, path):
    """Not the first one alone."""
    file = crafted_of("full")
    many_members(file, 3, "posterior")
    last = attribute(file.objects[attribute(file.first("Ensemble"), "members")[-1][1]], "posterior")
    put(file.objects[last[1]], "half", file.add_array(np.ones((7, 7)), "float64", "cpu", None))
    refused_quickly(file.content(), path, "the model cannot predict")


def widened(file, old, new, width):
    """Give a net another number of outputs: each size that contains it is another one."""
    sizes = {old: new, old * width: new * width}
    hidden = next(shape[0] for _, shape, _ in file.tree["arrays"] if len(shape) == 1 and shape[0] > old * width)
    sizes[hidden] = hidden + (new - old) * width
    for place, (_, shape, _) in enumerate(file.tree["arrays"]):
        if shape and set(shape) & set(sizes):
            shape[:] = [sizes.get(size, size) for size in shape]
            file.arrays[place] = np.resize(file.arrays[place], shape)
    for holder, key in crafted.places(file.objects):
        if type(holder[key]) is int and holder[0] not in ("ref", "array"):
            holder[key] = sizes.get(holder[key], holder[key])


@pytest.mark.parametrize("n_outputs", [40, 6000])
def test_many_outputs_take_little(n_outputs, path):
    """Their C × C covariances took 50 s and half a gigabyte; a legal file has few enough, or is not tried."""
    save(LaplaceClassifier(hessian_structure="diag", **ONE).fit(X, np.arange(44) % 11), path)
    file = crafted.Crafted(path)
    widened(file, 11, n_outputs, 6)
    file.set_array(attribute(file.fitted(), "classes_")[1], np.arange(n_outputs))
    file.write(path)
    start = time.process_time()
    loaded = load(path)
    assert loaded._ensemble.first.fit.n_outputs == n_outputs and time.process_time() - start < 2
    assert (trial._tried(loaded) != []) == (n_outputs == 40)


@pytest.mark.parametrize("name", ["full", "classifier"])
@pytest.mark.parametrize("n_outputs", [2000, 2**40])
def test_a_wrong_number_of_outputs_is_no_way_around_the_trial(name, n_outputs, crafted_of, path):
    """Too many are not tried, so a forward pass counts them."""
    file = crafted_of(name)
    put(file.first("LaplaceFit"), "n_outputs", n_outputs)
    if name == "classifier":
        file.set_array(attribute(file.fitted(), "classes_")[1], np.arange(2000))
    refused_quickly(file.content(), path, "outputs, and those of its net have the shape|expected .* labels")


# ---------------------------------------------------------------------- bounds before the file is read

HOLE = 700 * 2**20


def sparse(path, start, size):
    """Write the start of a file, and a hole behind it."""
    with path.open("wb") as opened:
        opened.write(start)
        opened.truncate(len(start) + size)


@pytest.mark.parametrize("name", ["behind", "extra", "tree"])
def test_a_sparse_file_is_refused_by_its_header(name, crafted_of, path):
    """A hole of 700 MB behind the arrays, in an array that the tree does not list, or as the tree took 1.4 GB."""
    content = crafted_of("full").content()
    n_header = struct.unpack("<Q", content[:8])[0]
    header, body = json.loads(content[8 : 8 + n_header]), content[8 + n_header :]
    if name != "behind":
        header.pop(name, None)
        header[name] = {"dtype": "U8", "shape": [HOLE], "data_offsets": [len(body), len(body) + HOLE]}
    if name == "tree":
        gone = min(
            entry["data_offsets"][0] for key, entry in json.loads(content[8 : 8 + n_header]).items() if key == "tree"
        )
        size = json.loads(content[8 : 8 + n_header])["tree"]["data_offsets"][1] - gone
        header["old"] = {"dtype": "U8", "shape": [size], "data_offsets": [gone, gone + size]}
    text = json.dumps(header).encode()
    sparse(path, struct.pack("<Q", len(text)) + text + body, HOLE)
    refused_quickly(
        None, path, "arrays have .* bytes, and|not listed extra|its tree has 734,003,200 bytes", megabytes=4
    )


@pytest.mark.parametrize(
    "offsets",
    [[[0, 8], [0, 8]], [[0, 8], [4, 12]], [[0, 8], [9, 17]], [[8, 0], [0, 8]], [[0, 8], [8, 24]], [[-8, 0], [0, 8]]],
    ids=["same", "overlapping", "gap", "backwards", "too long", "negative"],
)
def test_arrays_of_a_header_cover_the_file_once(offsets, path):
    """Thousands of arrays at one place would multiply the memory of the file."""
    entries = {str(k): {"dtype": "F64", "shape": [1], "data_offsets": pair} for k, pair in enumerate(offsets)}
    text = json.dumps(entries).encode()
    content = struct.pack("<Q", len(text)) + text + bytes(16)
    refused_quickly(content, path, "cannot be read as a file of safetensors")


@pytest.mark.parametrize("entry", [3, {}, {"dtype": "F64"}, {"dtype": "X", "shape": [1], "data_offsets": [0, 8]},
                                   {"dtype": "F64", "shape": 1, "data_offsets": [0, 8]},
                                   {"dtype": "F64", "shape": [1], "data_offsets": [0, 8, 9]},
                                   {"dtype": "F64", "shape": [1.0], "data_offsets": [0, 8]},
                                   {"dtype": "F64", "shape": [True], "data_offsets": [0, 8]},
                                   {"dtype": "F64", "shape": [1], "data_offsets": [0, 8], "more": 1}])  # fmt: skip
def test_entries_of_a_header_have_three_parts(entry, path):
    """The error names the file and its format."""
    for header in ({"tree": entry}, [entry], entry, "[" * 5000):
        text = json.dumps(header).encode() if header != "[" * 5000 else header.encode()
        content = struct.pack("<Q", len(text)) + text + bytes(8)
        refused_quickly(content, path, "cannot be read as a file of safetensors|was not written by")


def test_a_file_that_becomes_shorter_is_refused(crafted_of, path, monkeypatch):
    """Between the tree and the arrays."""
    content, read_tree = crafted_of("full").content(), files._tree

    def shortened(*args):
        tree = read_tree(*args)
        path.write_bytes(content[:200])
        return tree

    path.write_bytes(content)
    monkeypatch.setattr(files, "_tree", shortened)
    with pytest.raises(StateError, match="became shorter while it was read"):
        load(path)


@pytest.mark.parametrize("value", [None, "7" * 20_000_000, [1] * 100_000], ids=["none", "digits", "list"])
def test_unknown_keys_of_the_tree_are_refused(value, crafted_of, path):
    """Their values were parsed and ignored."""
    file = crafted_of("full")
    file.tree["more"] = value
    refused_quickly(file.content(), path, r"its tree has \['more'\], which no tree has", megabytes=128)


def test_unknown_keys_of_a_pickled_tree_are_refused(models):
    """The same description."""
    state = models["full"].__getstate__()
    tree = {**json.loads(state["fitted"]["tree"]), "more": 1}
    with pytest.raises(StateError, match=r"its tree has \['more'\], which no tree has"):
        LaplaceRegressor().__setstate__({**state, "fitted": {**state["fitted"], "tree": json.dumps(tree)}})


def test_the_text_of_a_tree_is_bounded(crafted_of, path, monkeypatch):
    """Also in ``save``."""
    file = crafted_of("full")
    monkeypatch.setattr(files, "MOST_TREE", 1000)
    refused_quickly(file.content(), path, r"its tree has [\d,]+ bytes; at most 1,000 are allowed")
    with pytest.raises(ValueError, match=r"a file holds at most .* and 1,000\. Use pickle"):
        save(LaplaceRegressor(categorical_features=list(range(1000))), path)


# ---------------------------------------------------------------------- limits of the machine


def test_limits_of_a_file_are_at_most_those_of_the_machine(path):
    """``n_jobs=3000`` started 1,603 threads at predict."""
    save(LaplaceRegressor(n_jobs=3000, memory_budget="8000TB", **GAUSSIAN).fit(X, Y), path)
    loaded = load(path)
    assert loaded.n_jobs == os.cpu_count() and loaded.memory_budget is None


@pytest.mark.parametrize(("n_jobs", "budget"), [(None, None), (1, "1MB"), (-1, 10**6), (-3000, "0.5GB")])
def test_limits_within_those_of_the_machine_are_kept(n_jobs, budget, path):
    """-1 stands for all processors of any machine."""
    model = LaplaceRegressor(n_jobs=n_jobs, memory_budget=budget)
    save(model, path)
    assert (load(path).n_jobs, load(path).memory_budget) == (n_jobs, budget)
    assert pickle.loads(pickle.dumps(model)).n_jobs == n_jobs
    assert budget is None or MemoryBudget.of(budget).size < MemoryBudget.of(None).size


@pytest.mark.parametrize("n_jobs", [3000, 2**40])
def test_the_trial_takes_one_thread(n_jobs, models, path, monkeypatch):
    """It predicts three rows."""
    used = []
    monkeypatch.setattr(trial, "_answer", lambda model, rows: used.append(model.n_jobs))
    model = pickle.loads(pickle.dumps(models["full"])).set_params(n_jobs=n_jobs)
    save(model, path)
    load(path)
    assert used == [None]


@pytest.mark.parametrize("n_jobs", [0, 2.5, "all"])
def test_a_fitted_model_has_a_number_of_jobs(n_jobs, models, path):
    """Otherwise the first prediction would refuse it."""
    save(pickle.loads(pickle.dumps(models["full"])).set_params(n_jobs=n_jobs), path)
    with pytest.raises(StateError, match=r"the model cannot predict .*n_jobs="):
        load(path)
