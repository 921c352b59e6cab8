"""Other data of the quality benchmarks: mixed tables as read from CSV, and pictures.

``tables/*.csv.gz`` have numbers, text and missing values, as returned by the reader. Columns that reveal the target or
identify the row are omitted. A split holds out a random fifth, seeded by its number. ``images/*.npz`` have 10,000
pictures of digits, of which a fifth is the test part, and pictures of clothes, on which a model of digits should be
uncertain. Without ``test``, a ninth of the training part and the first half of the clothes are scored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

TARGETS = {"california_housing": "median_house_value", "diamonds": "price", "bike_sharing_hourly": "cnt"}
CLASS_TARGETS = {"credit_g": -1, "phoneme": -1}
DROPPED = {"bike_sharing_hourly": ["casual", "registered", "instant", "dteday"]}
"""Omitted columns: two parts of the target, the row number, and the day (given by year, month and weekday)."""
TEST_SHARE, HELD_OUT_SHARE = 0.2, 1 / 9


def table(path: Path) -> tuple[pd.DataFrame, np.ndarray]:
    """All rows of a table, and its targets: numbers, or labels for the tables in ``CLASS_TARGETS``."""
    name = path.name.removesuffix(".csv.gz")
    frame = pd.read_csv(path, header=None if name in CLASS_TARGETS else "infer")
    frame.columns = frame.columns.map(str)
    target = frame.columns[-1] if name in CLASS_TARGETS else TARGETS[name]
    y = frame[target].to_numpy()
    X = frame.drop(columns=[target, *DROPPED.get(name, [])])
    return X, y if name in CLASS_TARGETS else y.astype(float)


def table_parts(path: Path, split: int, test: bool, n_rows: int | None) -> tuple[Any, ...]:
    """Training rows and scored rows of a table, or of n random rows of it (stratified for classes)."""
    X, y = table(path)
    labels = y if path.name.removesuffix(".csv.gz") in CLASS_TARGETS else None
    if n_rows is not None and n_rows < len(y):
        kept, _ = train_test_split(np.arange(len(y)), train_size=n_rows, stratify=labels, random_state=split)
        X, y = X.iloc[kept].reset_index(drop=True), y[kept]
    return _held_out(X, y, split, test, stratify=labels is not None)


def digits(folder: Path, split: int, test: bool, n_rows: int | None) -> tuple[Any, ...]:
    """Training rows and scored rows of digits, grey values from 0 to 1."""
    with np.load(folder / "mnist_train_10k.npz") as pictures:
        X, y = pictures["X"].reshape(len(pictures["y"]), -1) / 255, pictures["y"].astype(int)
    kept = np.random.default_rng(split).permutation(len(y))[:n_rows]
    return _held_out(X[kept], y[kept], split, test, stratify=True)


def clothes(folder: Path, test: bool) -> np.ndarray:
    """Pictures of clothes (n, 784), unfamiliar to a model of digits."""
    with np.load(folder / "fashion_mnist_2k.npz") as pictures:
        X = pictures["X"].reshape(len(pictures["X"]), -1) / 255
    half = len(X) // 2
    return X[half:] if test else X[:half]


def _held_out(X: Any, y: np.ndarray, split: int, test: bool, stratify: bool) -> tuple[Any, ...]:
    for share in (TEST_SHARE,) if test else (TEST_SHARE, HELD_OUT_SHARE):
        both = train_test_split(X, y, test_size=share, stratify=y if stratify else None, random_state=split)
        X, X_new, y, y_new = both
    return X, y, X_new, y_new
