"""Larger data of the examples: local files and OpenML give the same arrays, and cached data need no network.

The responses of OpenML are synthetic, in the cache format of scikit-learn's ``fetch_openml``. Only a network connection
could check real responses.
"""

import gzip
import hashlib
import json
import sys
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import _openml

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import open_data


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Requests beyond the cache fail immediately."""

    def refuse(request, *args, **kwargs):
        raise URLError(f"no network: {request.full_url}")

    monkeypatch.setattr(_openml, "urlopen", refuse)
    monkeypatch.setattr(_openml.time, "sleep", lambda seconds: None)


def cache_openml(home, number, frame, target, nominal=()):
    """Write a data set in the cache format of fetch_openml: description, features, qualities and ARFF file, gzipped."""

    def keep(path, content):
        path = home / "openml" / "openml.org" / f"{path}.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content.encode()))

    def quoted(value):
        return "?" if pd.isna(value) else f"'{value}'" if " " in str(value) else str(value)

    lines = [f"@RELATION made_up_{number}"]
    for column in frame:
        values = ",".join(quoted(value) for value in dict.fromkeys(frame[column].dropna()))
        lines.append(f"@ATTRIBUTE {column} " + (f"{{{values}}}" if column in nominal else "NUMERIC"))
    rows = [",".join(map(quoted, row)) for row in frame.itertuples(index=False)]
    arff = "\n".join([*lines, "@DATA", *rows, ""])
    features = [
        {
            "index": str(index),
            "name": column,
            "data_type": "nominal" if column in nominal else "numeric",
            "is_target": str(column == target).lower(),
            "is_ignore": "false",
            "is_row_identifier": "false",
            "number_of_missing_values": str(int(frame[column].isna().sum())),
        }
        for index, column in enumerate(frame)
    ]
    description = {
        "id": str(number),
        "name": f"made_up_{number}",
        "version": "1",
        "file_id": str(number),
        "description": "made up",
        "format": "ARFF",
        "status": "active",
        "url": f"https://www.openml.org/data/v1/download/{number}/made_up.arff",
        "md5_checksum": hashlib.md5(arff.encode()).hexdigest(),
    }
    rows_there = {"quality": [{"name": "NumberOfInstances", "value": f"{len(frame)}.0"}]}
    keep(f"api/v1/json/data/{number}", json.dumps({"data_set_description": description}))
    keep(f"api/v1/json/data/features/{number}", json.dumps({"data_features": {"feature": features}}))
    keep(f"api/v1/json/data/qualities/{number}", json.dumps({"data_qualities": rows_there}))
    for path in (f"{number}/made_up.arff", str(number)):  # by URL, and before scikit-learn 1.7 by number
        keep(f"data/v1/download/{path}", arff)


def keep_arrays(folder, name, **arrays):
    path = folder / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


@pytest.mark.parametrize("name", open_data.REGRESSION)
def test_numbers_are_the_same_from_both_routes(name, tmp_path):
    """The sources differ in numeric categories and a second target."""
    rng = np.random.default_rng(0)
    number, target = open_data.REGRESSION[name]
    X, y = rng.normal(size=(20, 4)).round(3), rng.normal(size=20).round(2)
    X[:, 1] = rng.integers(0, 2, 20)
    keep_arrays(tmp_path, f"uci_regression/{name}", X=X, y=y)
    frame = pd.DataFrame(X, columns=["a", "CHAS", "c", "d"]).assign(**{target: y})
    frame["CHAS"] = frame["CHAS"].astype(int)
    cache_openml(tmp_path, number, frame, target, nominal=["CHAS"])
    for arrays in (
        open_data.uci_regression(name, tmp_path),
        open_data.uci_regression(name, "openml", data_home=tmp_path),
    ):
        np.testing.assert_array_equal(arrays[0], X)
        np.testing.assert_array_equal(arrays[1], y)
        assert arrays[0].dtype == arrays[1].dtype == np.float64


@pytest.mark.parametrize("name", open_data.CLASSIFICATION)
def test_classes_are_the_same_from_both_routes(name, tmp_path):
    """OpenML has string labels and, for some sets, other scales, missing values, or further rows and columns."""
    rng = np.random.default_rng(0)
    number, target, labels = open_data.CLASSIFICATION[name]
    n, d = open_data.SHORTENED.get(name, (30, 3))
    X, y = rng.integers(0, 10, (n, d)).astype(float), rng.integers(0, len(labels), n)
    X[:2], y[: len(labels)] = [[0.0], [9.0]], range(len(labels))
    folder = 2 * X / 9 - 1 if name in open_data.SCALED else X
    keep_arrays(tmp_path, f"uci_classification/{name}", X=folder, y=y)
    frame = pd.DataFrame(X, columns=[f"A{i + 20}" for i in range(d)])
    if name == "waveform":
        frame = frame.assign(noise=1.0)
    frame[target] = np.array(labels)[y]
    if name == "breast_cancer":
        frame = pd.concat([frame, frame.iloc[:1].assign(A21=np.nan)])
    if name == "waveform":
        frame = pd.concat([frame, frame.iloc[:5]])
    cache_openml(tmp_path, number, frame, target, nominal=[target])
    for arrays in (
        open_data.uci_classification(name, tmp_path),
        open_data.uci_classification(name, "openml", data_home=tmp_path),
    ):
        np.testing.assert_allclose(arrays[0], folder, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(arrays[1], y)
        assert arrays[1].dtype.kind == "i"


def test_pictures_are_the_same_from_both_routes(tmp_path, monkeypatch):
    """Grey values from 0 to 1; only the first of OpenML's 70,000 rows are used."""
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (6, 28, 28), dtype=np.uint8), np.array([3, 0, 9, 1, 1, 5])
    keep_arrays(tmp_path, "images/mnist_train_10k", X=X[:5], y=y[:5].astype(np.uint8))
    keep_arrays(tmp_path, "images/fashion_mnist_2k", X=X[:4])
    frame = pd.DataFrame(X.reshape(6, -1), columns=[f"pixel{i + 1}" for i in range(784)]).assign(**{"class": y})
    for number in (open_data.DIGITS, open_data.CLOTHES):
        cache_openml(tmp_path, number, frame, "class", nominal=["class"])
    monkeypatch.setattr(open_data, "N_DIGITS", 5)
    monkeypatch.setattr(open_data, "N_CLOTHES", 4)
    for source in (tmp_path, "openml"):
        images, labels = open_data.digits(source, data_home=tmp_path)
        assert images.shape == (5, 28, 28) and images.dtype == np.float64
        np.testing.assert_array_equal(images, X[:5] / 255)
        np.testing.assert_array_equal(labels, y[:5])
        assert labels.dtype.kind == "i"
        np.testing.assert_array_equal(open_data.clothes(source, data_home=tmp_path), X[:4] / 255)


def california(rng):
    """Table with missing numbers, and strings with a space."""
    columns = open_data.TABLES["california_housing"][1]
    frame = pd.DataFrame(rng.normal(size=(8, 9)).round(2), columns=columns[:9])
    frame.loc[3, "total_bedrooms"] = np.nan
    frame["ocean_proximity"] = ["NEAR BAY", "INLAND"] * 4
    return frame, frame, ["ocean_proximity"]


def diamonds(rng):
    """Table whose target is not the last column."""
    frame = pd.DataFrame({name: rng.normal(size=6).round(2) for name in open_data.TABLES["diamonds"][1]})
    frame["price"] = rng.integers(300, 900, 6)
    frame["cut"], frame["color"], frame["clarity"] = ["Ideal", "Very Good"] * 3, list("EIJEEJ"), ["SI2", "VS1"] * 3
    return frame, frame[[*frame.columns.drop("price"), "price"]], ["cut", "color", "clarity"]


def bike_sharing(rng):
    """Table with codes and scaled values locally, strings and units at OpenML."""
    folder = pd.DataFrame({name: rng.integers(0, 2, 8) for name in open_data.BIKE_COLUMNS})
    folder["season"], folder["weathersit"] = [1, 2, 3, 4] * 2, [1, 1, 2, 2, 3, 3, 4, 4]
    folder["temp"], folder["atemp"] = 0.24, [0.2879, 0.2727] * 4
    folder["hum"], folder["windspeed"], folder["cnt"] = 0.81, 0.0896, rng.integers(1, 900, 8)
    there = folder.set_axis(open_data.TABLES["bike_sharing_hourly"][1], axis=1)
    there["season"] = there["season"].map(dict(enumerate(["spring", "summer", "fall", "winter"], start=1)))
    there["weather"] = there["weather"].map(dict(enumerate(["clear", "misty", "rain", "heavy_rain"], start=1)))
    there[["holiday", "workingday"]] = there[["holiday", "workingday"]].map(lambda value: str(bool(value)))
    there["temp"], there["feel_temp"] = 9.84, there["feel_temp"] * 50
    there["windspeed"] = 6.0032
    folder.insert(0, "instant", range(8))
    folder.insert(1, "dteday", "2011-01-01")
    folder["casual"], folder["registered"] = 1, 2
    return folder, there, ["season", "weather", "holiday", "workingday"]


def credit(rng):
    """Table with codes locally, strings at OpenML."""
    folder = pd.DataFrame(rng.integers(1, 5, (12, 21)))
    there = folder.set_axis(open_data.TABLES["credit_g"][1], axis=1)
    words = {0: ["<0", "no checking"], 2: ["existing paid", "critical/other existing credit"], 3: ["radio/tv", "other"]}
    codes = {0: ["A11", "A14"], 2: ["A32", "A34"], 3: ["A43", "A410"]}
    for column, (prefix, known) in open_data.CREDIT_WORDS.items():
        folder[column] = codes.get(column, [f"{prefix}1", f"{prefix}2"]) * 6
        there[there.columns[column]] = words.get(column, list(known[:2])) * 6
    folder[20], there["class"] = [1, 2] * 6, ["good", "bad"] * 6
    return folder, there, [*there.columns[list(open_data.CREDIT_WORDS)], "class"]


def phoneme(rng):
    """Table with classes from 0 locally, from 1 at OpenML."""
    folder = pd.DataFrame(rng.normal(size=(6, 5)).round(3)).assign(Class=[0, 1, 1, 0, 0, 1])
    there = folder.set_axis(open_data.TABLES["phoneme"][1], axis=1)
    return folder, there.assign(Class=there["Class"] + 1), ["Class"]


TABLES = {
    "california_housing": (california, "median_house_value"),
    "diamonds": (diamonds, "price"),
    "bike_sharing_hourly": (bike_sharing, "count"),
    "credit_g": (credit, "class"),
    "phoneme": (phoneme, "Class"),
}


@pytest.mark.parametrize("name", open_data.TABLES)
def test_tables_are_the_same_from_both_routes(name, tmp_path):
    """Column names and order, strings, units and missing values are those of the local file."""
    made, target = TABLES[name]
    folder, there, nominal = made(np.random.default_rng(0))
    (tmp_path / "tables").mkdir()
    headless = name in open_data.HEADLESS
    folder.to_csv(tmp_path / f"tables/{name}.csv.gz", index=False, header=not headless)
    cache_openml(tmp_path, open_data.TABLES[name][0], there, target, nominal)
    expected = open_data.table(name, tmp_path)
    pd.testing.assert_frame_equal(open_data.table(name, "openml", data_home=tmp_path), expected)
    assert len(expected.columns) == len(there.columns)
    assert not set(expected.columns) & set(open_data.GIVEN_AWAY.get(name, []))


def test_words_that_openml_did_not_have_are_an_error(tmp_path):
    """Unknown categories must not become missing values."""
    frame = pd.DataFrame({"RI": [1.0, 2.0], "Type": ["headlamps", "a lens"]})
    cache_openml(tmp_path, 41, frame, "Type", nominal=["Type"])
    with pytest.raises(ValueError, match=r"Type has the values a lens; expected build wind.* give a folder"):
        open_data.uci_classification("glass", "openml", data_home=tmp_path)


def test_gaps_are_the_middle_third_and_ties_are_cut_somewhere():
    """2 round(n / 6) rows around the median, with all rows strictly between the smallest and largest value."""
    rng = np.random.default_rng(0)
    for n in (4, 20, 100, 101, 308):
        X = np.stack([rng.permutation(n), rng.integers(0, 5, n), np.zeros(n)], axis=1).astype(float)
        masks = open_data.gap_masks(X)
        assert masks.shape == (3, n) and masks.dtype == bool
        half = round(n / 6)
        assert (masks.sum(axis=1) == 2 * half).all()
        np.testing.assert_array_equal(np.sort(X[masks[0], 0]), np.arange(n // 2 - half, n // 2 + half))
        for mask, column in zip(masks, X.T, strict=True):
            inside = (column > column[mask].min()) & (column < column[mask].max())
            assert mask[inside].all()


def test_ties_are_cut_as_in_the_published_gap_splits():
    """Yacht data, 22 hulls at the same 14 speeds: the published split determines which ties are in the gap."""
    speeds = np.tile(np.arange(0.125, 0.46, 0.025), 22)
    (mask,) = open_data.gap_masks(speeds[:, None])
    ends = [mask[speeds == end] for end in (speeds[mask].min(), speeds[mask].max())]
    published = "......#...#.###.#...#.", ".....####......##..#.."
    assert ["".join(".#"[int(inside)] for inside in end) for end in ends] == list(published)


@pytest.mark.parametrize(
    ("call", "file"),
    [
        (lambda source: open_data.digits(source), "images/mnist_train_10k.npz"),
        (lambda source: open_data.clothes(source), "images/fashion_mnist_2k.npz"),
        (lambda source: open_data.uci_regression("yacht", source), "uci_regression/yacht.npz"),
        (lambda source: open_data.uci_classification("glass", source), "uci_classification/glass.npz"),
        (lambda source: open_data.table("phoneme", source), "tables/phoneme.csv.gz"),
    ],
    ids=["digits", "clothes", "uci_regression", "uci_classification", "table"],
)
def test_a_missing_file_is_named_with_what_to_do(call, file, tmp_path):
    """The message names the file, the folder and the alternatives."""
    with pytest.raises(FileNotFoundError, match=rf"{file} is not in .*the file is not.* or 'openml' to fetch"):
        call(tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"{file} is not in .*no such folder"):
        call(tmp_path / "nowhere")


@pytest.mark.filterwarnings("ignore:A network error occurred")
def test_without_network_and_cache_the_error_says_so(tmp_path):
    """The message names the data set, the cache and the alternative."""
    with pytest.raises(ConnectionError, match=r"set 554 is not in .* cache, .* did not answer.*give a folder"):
        open_data.digits("openml", data_home=tmp_path)


@pytest.mark.parametrize("read", [open_data.uci_regression, open_data.uci_classification, open_data.table])
def test_unknown_names_are_refused_with_those_there_are(read, tmp_path):
    """A misspelt name is not reported as a missing file."""
    with pytest.raises(ValueError, match="no set 'yatch'; expected one of "):
        read("yatch", tmp_path)
