"""Data sets that scikit-learn does not bundle, for examples and benchmarks, from a folder or OpenML.

``source`` is a folder or the word ``"openml"``. A folder holds ``uci_regression/NAME.npz`` and
``uci_classification/NAME.npz`` (``X``, ``y``), and ``tables/NAME.csv.gz``. Its pictures are
``images/mnist_train_10k.npz`` and ``images/fashion_mnist_2k.npz`` (``X`` of grey values 0 … 255, ``y``). ``"openml"``
fetches the same sets with :func:`sklearn.datasets.fetch_openml`, by number instead of name. They are stored in
scikit-learn's cache (``data_home``), so a second run needs no network. Sets that OpenML stores in another form are
converted to the form of the folder. Where the data differ, a comment next to the number states how.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pandas as pd
from sklearn.datasets import fetch_openml

OPENML = "openml"

DIGITS, N_DIGITS = 554, 10_000
"""mnist_784, 70,000 rows, columns pixel1 … pixel784 and class "0" … "9". The first 10,000 rows are used, which belong
to MNIST's training part. The folder also has 10,000 rows, but most of its pictures differ."""
CLOTHES, N_CLOTHES = 40996, 2_000
"""Fashion-MNIST, in the same form; the first 2,000 rows are used."""

REGRESSION: dict[str, tuple[int, str]] = {
    "boston": (531, "MEDV"),  # CHAS and RAD are categories at OpenML
    "concrete": (44959, "strength"),  # of the suite CTR23; values may be rounded differently
    "energy": (44960, "heating_load"),  # of CTR23; its other target, cooling_load, is dropped
    "wine": (44972, "quality"),  # red_wine of CTR23; its rows may be in another order
    "yacht": (42370, "Residuary.resistance"),  # yacht_hydrodynamics
}
"""Number and target at OpenML; the columns are those of the folder, in the same order. ``gap_masks`` depends on the
order of rows with tied values, and splits by position depend on the order of all rows."""
NOT_COLUMNS = "cooling_load", "y2"

CLASSIFICATION: dict[str, tuple[int, str, Sequence[str]]] = {
    # The folder has the first two sets as scaled by LIBSVM, each column to [−1, 1]. There, breast_cancer has the
    # sample number as its first column, and lacks the 16 rows with missing values. At OpenML,
    # the sets are not scaled, and breast_cancer has no sample number (9 columns).
    "australian": (40981, "A15", ("0", "1")),
    "breast_cancer": (15, "Class", ("benign", "malignant")),  # breast-w: Wisconsin, 1992, not the later wdbc (1510)
    "glass": (
        41,
        "Type",
        ("build wind float", "build wind non-float", "vehic wind float", "containers", "tableware", "headlamps"),
    ),
    # The folder has 1,000 rows of 21 columns from Breiman's generator. waveform-5000 is another draw of this
    # generator, with 19 more columns of pure noise. Its first 1,000 rows and 21 columns have the same
    # distribution, but other values.
    "waveform": (60, "class", ("0", "1", "2")),
}
"""Number, target and classes (0 … K − 1) at OpenML. The order of the rows may differ from that in the folder."""
SCALED, SHORTENED = ("australian", "breast_cancer"), {"waveform": (1000, 21)}


def _words(text: str, apart: str | None = None) -> list[str]:
    return text.split(apart)


TABLES: dict[str, tuple[int, Sequence[str]]] = {
    "california_housing": (
        43939,  # the table with ocean_proximity and missing numbers of bedrooms; 537 and 44977 have neither
        _words(
            "longitude latitude housing_median_age total_rooms total_bedrooms population households median_income "
            "median_house_value ocean_proximity"
        ),
    ),
    "diamonds": (42225, _words("carat cut color clarity depth table price x y z")),
    # Bike_Sharing_Demand, version 2: without the columns in GIVEN_AWAY, with other category names and units (BIKE_…).
    "bike_sharing_hourly": (
        42712,
        _words("season year month hour holiday weekday workingday weather temp feel_temp humidity windspeed count"),
    ),
    "credit_g": (
        31,
        _words(
            "checking_status duration credit_history purpose credit_amount savings_status employment "
            "installment_commitment personal_status other_parties residence_since property_magnitude age "
            "other_payment_plans housing existing_credits job num_dependents own_telephone foreign_worker class"
        ),
    ),
    "phoneme": (1489, _words("V1 V2 V3 V4 V5 Class")),  # classes 1 and 2 at OpenML, 0 and 1 in the folder
}
"""Number and columns at OpenML, in the order of the folder's columns."""
HEADLESS = "credit_g", "phoneme"
"""Tables whose files have no column names; both sources call the columns "0", "1" and so on."""
GIVEN_AWAY = {"bike_sharing_hourly": ["instant", "dteday", "casual", "registered"]}
"""Columns to drop: the row number, the day (given by year, month and weekday), and the two parts of the target."""

BIKE_COLUMNS = _words("season yr mnth hr holiday weekday workingday weathersit temp atemp hum windspeed cnt")
BIKE_WORDS: dict[str, dict[str, int]] = {
    "season": {"spring": 1, "summer": 2, "fall": 3, "winter": 4},
    "holiday": {"False": 0, "True": 1},
    "workingday": {"False": 0, "True": 1},
    "weathersit": {"clear": 1, "misty": 2, "rain": 3, "heavy_rain": 4},
}
BIKE_UNITS = {"temp": 41.0, "atemp": 50.0, "windspeed": 67.0}
"""Value that corresponds to 1 in the folder: temperature (°C), felt temperature (°C), wind speed (km/h)."""

CREDIT_WORDS: dict[int, tuple[str, Sequence[str]]] = {  # column → prefix of its codes, and words in code order
    0: ("A1", ("<0", "0<=X<200", ">=200", "no checking")),
    2: (
        "A3",
        ("no credits/all paid", "all paid", "existing paid", "delayed previously", "critical/other existing credit"),
    ),
    3: (
        "A4",
        _words(
            "new car,used car,furniture/equipment,radio/tv,domestic appliance,repairs,education,vacation,retraining,"
            "business,other",
            ",",
        ),
    ),
    5: ("A6", ("<100", "100<=X<500", "500<=X<1000", ">=1000", "no known savings")),
    6: ("A7", ("unemployed", "<1", "1<=X<4", "4<=X<7", ">=7")),
    8: ("A9", ("male div/sep", "female div/dep/mar", "male single", "male mar/wid", "female single")),
    9: ("A10", ("none", "co applicant", "guarantor")),
    11: ("A12", ("real estate", "life insurance", "car", "no known property")),
    13: ("A14", ("bank", "stores", "none")),
    14: ("A15", ("rent", "own", "for free")),
    16: ("A17", ("unemp/unskilled non res", "unskilled resident", "skilled", "high qualif/self emp/mgmt")),
    18: ("A19", ("none", "yes")),
    19: ("A20", ("yes", "no")),
}
FROM_ZERO = 2, 3
"""Columns of credit_g whose codes start at 0 (A30 and A40) instead of 1."""


# ---------------------------------------------------------------------- public functions


def digits(source: str | Path, *, data_home: str | Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return handwritten digits.

    Parameters
    ----------
    source : str or Path
        A folder, or "openml".
    data_home : str or Path, optional
        scikit-learn's cache, for "openml".

    Returns
    -------
    X : ndarray of shape (10000, 28, 28)
        Grey values from 0 to 1.
    y : ndarray of int, shape (10000,)

    Raises
    ------
    FileNotFoundError
        If the folder has no such file.
    ConnectionError
        If OpenML cannot be reached and its files are not in the cache (raised by all functions of this module).
    """
    if _is_openml(source):
        return _pictures(DIGITS, N_DIGITS, data_home)
    with np.load(_file(source, "images/mnist_train_10k.npz")) as held:
        return held["X"] / 255.0, held["y"].astype(int)


def clothes(source: str | Path, *, data_home: str | Path | None = None) -> np.ndarray:
    """Return pictures of clothes, shape (2000, 28, 28), in the form of :func:`digits`."""
    if _is_openml(source):
        return _pictures(CLOTHES, N_CLOTHES, data_home)[0]
    with np.load(_file(source, "images/fashion_mnist_2k.npz")) as held:
        return held["X"] / 255.0


def uci_regression(
    name: str, source: str | Path, *, data_home: str | Path | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return float X (n, d) and y (n,) of boston, concrete, energy, wine or yacht."""
    number, target = _known(name, REGRESSION)
    if not _is_openml(source):
        with np.load(_file(source, f"uci_regression/{name}.npz")) as held:
            return held["X"].astype(float), held["y"].ravel().astype(float)
    frame = _frame(number, data_home)
    y = frame[target].to_numpy(dtype=float)
    return frame.drop(columns=[target, *NOT_COLUMNS], errors="ignore").to_numpy(dtype=float), y


def gap_masks(X: np.ndarray) -> np.ndarray:
    """Return the gap splits of Foong et al. (2019), "In-between" uncertainty in Bayesian neural networks.

    Parameters
    ----------
    X : ndarray of shape (n, d)

    Returns
    -------
    ndarray of bool, shape (d, n)
        Row i is True where the i-th column is in its middle third, the test part.

    Notes
    -----
    The middle third consists of the 2 round(n / 6) rows around the middle of the sorted column. If values are tied, the
    sorting algorithm determines which of the tied rows belong to it. The published splits used the quicksort of an
    older NumPy, whose order of ties depends on the positions of the rows in the file. With this quicksort, all 46 masks
    of boston, concrete, energy, wine and yacht equal the published masks. With a stable sort, only 8 masks do.
    """
    X = np.asarray(X, dtype=float)
    n, half = len(X), round(len(X) / 6)
    masks = np.zeros(X.shape[::-1], dtype=bool)
    for mask, column in zip(masks, X.T, strict=True):
        mask[_quicksort_order(column)[n // 2 - half : n // 2 + half]] = True
    return masks


def uci_classification(
    name: str, source: str | Path, *, data_home: str | Path | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return float X (n, d) and classes 0 … K − 1 (n,) of australian, breast_cancer, glass or waveform."""
    number, target, classes = _known(name, CLASSIFICATION)
    if not _is_openml(source):
        with np.load(_file(source, f"uci_classification/{name}.npz")) as held:
            return held["X"].astype(float), held["y"].astype(int)
    frame = _frame(number, data_home)
    y = _coded(frame[target], {label: code for code, label in enumerate(classes)}).to_numpy()
    X = frame.drop(columns=target).to_numpy(dtype=float)
    complete = ~np.isnan(X).any(axis=1)
    X, y = X[complete], y[complete]
    if name in SCALED:
        low, high = X.min(axis=0), X.max(axis=0)
        X = 2 * (X - low) / (high - low) - 1
    rows, columns = SHORTENED.get(name, X.shape)
    return X[:rows, :columns], y[:rows]


def table(name: str, source: str | Path, *, data_home: str | Path | None = None) -> pd.DataFrame:
    """Return a table including its target; columns may have text and missing values.

    The names are california_housing, diamonds, bike_sharing_hourly, credit_g and phoneme. Columns have the names and
    values of the file in the folder. Columns in ``GIVEN_AWAY`` are omitted. Columns without names in the file are
    called "0", "1" and so on.
    """
    number, columns = _known(name, TABLES)
    if not _is_openml(source):
        path = _file(source, f"tables/{name}.csv.gz")
        held = pd.read_csv(path, header=None if name in HEADLESS else "infer")
        held.columns = held.columns.map(str)
        return held.drop(columns=GIVEN_AWAY.get(name, []))
    held = _frame(number, data_home)[list(columns)]
    if name in HEADLESS:
        held = held.set_axis([str(i) for i in range(len(columns))], axis=1)
    if name == "bike_sharing_hourly":
        held = held.set_axis(BIKE_COLUMNS, axis=1)
        for column, words in BIKE_WORDS.items():
            held[column] = _coded(held[column], words)
    if name == "credit_g":
        for column, (prefix, words) in CREDIT_WORDS.items():
            start = 0 if column in FROM_ZERO else 1
            held[str(column)] = _coded(held[str(column)], {w: f"{prefix}{start + i}" for i, w in enumerate(words)})
        held["20"] = _coded(held["20"], {"good": 1, "bad": 2})
    if name == "phoneme":
        held["5"] = _coded(held["5"], {"1": 0, "2": 1})
    held = held.apply(_plain)
    for column, unit in BIKE_UNITS.items() if name == "bike_sharing_hourly" else ():
        held[column] = (held[column] / unit).round(4)  # the file has four digits
    return held


# ---------------------------------------------------------------------- implementation


def _is_openml(source: str | Path) -> bool:
    return str(source) == OPENML


def _known(name: str, sets: Mapping[str, Any]) -> Any:
    if name not in sets:
        raise ValueError(f"There is no set {name!r}; expected one of {', '.join(sets)}.")
    return sets[name]


def _file(source: str | Path, name: str) -> Path:
    path = Path(source) / name
    if not path.is_file():
        found = "the folder is there, the file is not" if Path(source).is_dir() else "there is no such folder"
        raise FileNotFoundError(
            f"{name} is not in {source}: {found}. Give a folder that has {name}, or 'openml' to fetch the set."
        )
    return path


def _fetched(number: int, data_home: str | Path | None, dtype: type, as_frame: bool) -> Any:
    """Return a fetched set, with all values of the type ``dtype``.

    Without a type, scikit-learn up to 1.9 cannot read numeric categories with pandas 3.1 (its pull request 34902).
    """
    try:
        return fetch_openml(
            data_id=number, data_home=data_home, as_frame=as_frame, parser="pandas", read_csv_kwargs={"dtype": dtype}
        )
    except URLError as error:
        raise ConnectionError(
            f"OpenML's set {number} is not in scikit-learn's cache, and openml.org did not answer ({error}). Connect "
            "to the network, or give a folder that holds the data instead of 'openml'."
        ) from error


def _frame(number: int, data_home: str | Path | None) -> pd.DataFrame:
    """Return columns and targets of a set as text, without the quotes of ARFF files; NaN for missing values."""
    frame = _fetched(number, data_home, str, as_frame=True).frame
    return frame.apply(lambda column: column.astype(object).map(_unquoted))


def _unquoted(value: Any) -> Any:
    return value.strip("'") if isinstance(value, str) else value


def _pictures(number: int, n_rows: int, data_home: str | Path | None) -> tuple[np.ndarray, np.ndarray]:
    held = _fetched(number, data_home, np.uint8, as_frame=False)
    X, y = held.data[:n_rows], held.target[:n_rows]
    return X.reshape(-1, 28, 28) / 255.0, y.astype(int)


def _coded(column: pd.Series, codes: Mapping[str, Any]) -> pd.Series:
    """Return the column with each word replaced by its code."""
    unknown = sorted(set(map(str, column)) - set(codes))
    if unknown:
        raise ValueError(
            f"{column.name} has the values {', '.join(unknown)}; expected {', '.join(codes)}. OpenML may have changed "
            "the set: give a folder that holds the data instead of 'openml'."
        )
    return column.map(codes)


def _plain(column: pd.Series) -> pd.Series:
    """Return a column as read from CSV: numbers if all values are numeric, text otherwise."""
    try:
        return pd.to_numeric(column)
    except ValueError:
        return column.astype("str")


def _quicksort_order(values: np.ndarray, short: int = 15) -> np.ndarray:
    """Return the positions that sort the values, with ties ordered as by an older NumPy's quicksort.

    The pivot is the median of three values, the larger part is deferred, and insertion sort is used for parts of up to
    16 values.
    """
    x, order = values.tolist(), list(range(len(values)))
    parts = [(0, len(order) - 1)]
    while parts:
        low, high = parts.pop()
        while high - low > short:
            middle = (low + high) // 2
            for first, second in ((low, middle), (middle, high), (low, middle)):
                if x[order[second]] < x[order[first]]:
                    order[first], order[second] = order[second], order[first]
            pivot = x[order[middle]]
            i, j = low, high - 1
            order[middle], order[j] = order[j], order[middle]
            while True:
                i, j = i + 1, j - 1
                while x[order[i]] < pivot:
                    i += 1
                while pivot < x[order[j]]:
                    j -= 1
                if i >= j:
                    break
                order[i], order[j] = order[j], order[i]
            order[i], order[high - 1] = order[high - 1], order[i]
            if i - low < high - i:
                parts.append((i + 1, high))
                high = i - 1
            else:
                parts.append((low, i - 1))
                low = i + 1
        for end in range(low + 1, high + 1):
            moved, i = order[end], end
            while i > low and x[moved] < x[order[i - 1]]:
                order[i] = order[i - 1]
                i -= 1
            order[i] = moved
    return np.array(order, dtype=int)
