"""The container of a saved model: its header is compared with the file, and its tree has no other keys."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc

import crafted
import numpy as np
import pytest
from refused import refused

from sklearn_laplace import LaplaceRegressor, save
from sklearn_laplace._export import container
from sklearn_laplace.errors import StateError

pytestmark = pytest.mark.usefixtures("short_trainings")

RNG = np.random.default_rng(48)
X = RNG.normal(size=(44, 3))
Y = np.cos(X[:, 0]) + 0.1 * RNG.normal(size=44)


@pytest.fixture(scope="module")
def model():
    options = {"n_members": 1, "prior_precision": 1.0, "sigma_noise": 0.1, "likelihood": "gaussian"}
    return LaplaceRegressor(hidden_layer_sizes=(5,), random_state=0, **options).fit(X, Y)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture
def file(model, path):
    """The editable content of a saved file."""
    save(model, path)
    return crafted.Crafted(path)


def changed(content, change):
    """The content with another header."""
    n_header = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + n_header])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + n_header :]


@pytest.mark.parametrize("n_bytes", [2**34, 2**62, 2**70])
@pytest.mark.parametrize("name", ["tree", "0", "extra"])
def test_a_header_cannot_request_more_memory_than_the_file_has(name, n_bytes, file, path):
    """A file of some kB is refused before anything is allocated for its arrays."""

    def lie(header):
        begin = header.get(name, {"data_offsets": [0]})["data_offsets"][0]
        header[name] = {"dtype": "U8", "shape": [n_bytes], "data_offsets": [begin, begin + n_bytes]}

    content = changed(file.content(), lie)
    tracemalloc.start()
    try:
        refused(content, path, "cannot be read as a file of safetensors")
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("n_header", [2**34, 2**63, 2**64 - 1])
def test_a_header_is_no_longer_than_the_file(n_header, file, path):
    """Its length is a number of eight bytes."""
    refused(struct.pack("<Q", n_header) + file.content()[8:], path, "it has no header")


def test_bytes_behind_the_arrays_are_refused(file, path):
    """The entries of the header cover the file."""
    refused(file.content() + bytes(8), path, "its arrays have .* bytes, and .* follow")


def test_axes_that_no_array_has_are_refused(file, path):
    """The error names the file, unlike that of numpy."""
    content = changed(file.content(), lambda header: header["0"].update(shape=[*header["0"]["shape"], *[1] * 65]))
    refused(content, path, "cannot be read as a file of safetensors .*dimension")


@pytest.mark.parametrize(
    "offsets",
    [[[0, 8], [0, 8]], [[0, 8], [4, 12]], [[0, 8], [9, 17]], [[8, 0], [0, 8]], [[0, 8], [8, 24]], [[-8, 0], [0, 8]]],
    ids=["same", "overlapping", "gap", "backwards", "too long", "negative"],
)
def test_arrays_of_a_header_cover_the_file_once(offsets, path):
    """No byte belongs to two arrays or to none."""
    entries = {str(k): {"dtype": "F64", "shape": [1], "data_offsets": pair} for k, pair in enumerate(offsets)}
    text = json.dumps(entries).encode()
    content = struct.pack("<Q", len(text)) + text + bytes(16)
    refused(content, path, "cannot be read as a file of safetensors")


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
        refused(content, path, "cannot be read as a file of safetensors|was not written by")


def test_a_file_that_becomes_shorter_is_refused(file, path, monkeypatch):
    """Between its header and its arrays."""
    entry = container._entry

    def shortened(**values):
        os.truncate(path, 200)
        return entry(**values)

    monkeypatch.setattr(container, "_entry", shortened)
    refused(file.content(), path, "became shorter while it was read")


@pytest.mark.parametrize("value", [None, "7", [1]], ids=["none", "text", "list"])
def test_unknown_keys_of_the_tree_are_refused(value, file, path):
    """Nothing of a file is ignored."""
    file.tree["more"] = value
    refused(file.content(), path, r"its tree has \['more'\], which is unknown")


def test_unknown_keys_of_a_pickled_tree_are_refused(model):
    """The same description."""
    state = model.__getstate__()
    tree = {**json.loads(state["fitted"]["tree"]), "more": 1}
    with pytest.raises(StateError, match=r"its tree has \['more'\], which is unknown"):
        LaplaceRegressor().__setstate__({**state, "fitted": {**state["fitted"], "tree": json.dumps(tree)}})
