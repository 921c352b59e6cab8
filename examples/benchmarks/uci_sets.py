"""The UCI tables of the benchmarks: their parts, split by split, and what the scripts share.

A folder, ``--data DIR``, has ``boston.npz`` and so on, each with ``X`` (rows, columns), ``y`` (rows,) and
``test_masks`` (splits, rows): the standard 90/10 splits of Hernández-Lobato & Adams (2015). Of a split either its test
part is judged, or a ninth of its training part, drawn by a seed of its own and held out of the fit: whatever is still
to be chosen is looked at there, and the test parts are left for the last word.

``gap_test_masks`` (columns, rows) are the gap splits of Foong et al. (2019): the middle third of a column is the test
part. In its place the middle third of the next column can be judged, of the rows that are left. Tables of classes have
``X`` and ``y`` alone and are split as by Immer et al. (2021): 70 % to fit, 15 % for validation, 15 % for the test,
stratified, by ten seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split

TABLES = ("yacht", "boston", "energy", "concrete", "wine")
SMALL = TABLES[:2]
HELD_OUT, SEED = 9, 100
"""One in so many rows of a training part is held out, by a seed that starts here."""


def parts(path: Path, split: int, test: bool) -> tuple[np.ndarray, ...]:
    """Rows to fit and rows to judge by: X, y of each."""
    with np.load(path) as table:
        X, y, outside = table["X"], table["y"].ravel(), table["test_masks"][split].astype(bool)
    if test:
        return X[~outside], y[~outside], X[outside], y[outside]
    X, y = X[~outside], y[~outside]
    held = np.zeros(len(y), dtype=bool)
    held[np.random.default_rng(SEED + split).permutation(len(y))[: len(y) // HELD_OUT]] = True
    return X[~held], y[~held], X[held], y[held]


CLASS_TABLES = "australian", "breast_cancer", "glass", "waveform"
CLASS_SEEDS = 711, 1, 75, 359, 17, 420, 129, 666, 69, 36


def gap_parts(path: Path, column: int, test: bool) -> tuple[np.ndarray, ...]:
    """As :func:`parts`, of the gap split of a column."""
    with np.load(path) as table:
        X, y, outside = table["X"], table["y"].ravel(), table["gap_test_masks"][column].astype(bool)
    if test:
        return X[~outside], y[~outside], X[outside], y[outside]
    X, y = X[~outside], y[~outside]
    held = np.zeros(len(y), dtype=bool)
    order = X[:, (column + 1) % X.shape[1]].argsort(kind="stable")
    held[order[len(y) // 3 : 2 * len(y) // 3]] = True
    return X[~held], y[~held], X[held], y[held]


def n_gap_splits(path: Path) -> int:
    """One split a column."""
    with np.load(path) as table:
        return len(table["gap_test_masks"])


def class_parts(path: Path, split: int, test: bool) -> tuple[np.ndarray, ...]:
    """As :func:`parts`, of classes: the validation part is judged, or the test part; the other one is left aside."""
    with np.load(path) as table:
        X, y = table["X"], table["y"]
    seed = CLASS_SEEDS[split]
    X, X_rest, y, y_rest = train_test_split(X, y, test_size=0.3, stratify=y, random_state=seed)
    halves = train_test_split(X_rest, y_rest, test_size=0.5, stratify=y_rest, random_state=seed)
    return X, y, halves[int(test)], halves[2 + int(test)]


def parser(description: str | None, splits: int | None = None) -> argparse.ArgumentParser:
    """The options of a script over tables; with splits, their default number, of one that judges by held-out rows."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--data", type=Path, required=True, help="folder of the tables")
    if splits is None:
        found.set_defaults(splits=1)
    else:
        found.add_argument(
            "--splits", type=int, default=splits, help=f"how many of the splits 0–9, {splits} by default"
        )
        found.add_argument("--test", action="store_true", help="judge by the test parts: for the last word alone")
    found.add_argument("--only", default=",".join(TABLES), help="names of tables, as in yacht,boston")
    found.add_argument("--quick", action="store_true", help="less of the two small tables")
    return found


def asked(options: argparse.Namespace) -> tuple[int, Sequence[str]]:
    """How many splits, and which tables."""
    return (1, SMALL) if options.quick else (options.splits, options.only.split(","))


def part_judged(test: bool) -> str:
    """What a table's title says of the rows that are judged."""
    return "test part" if test else "a ninth of the training part"


def header(title: str, columns: Sequence[str]) -> str:
    """The head of a markdown table, with a line of its own for the title."""
    return "\n".join(["", title, "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"])


def line(cells: Iterable[float | str]) -> str:
    """A row of a markdown table; – where there is no number."""
    return "| " + " | ".join(_shown(cell) for cell in cells) + " |"


def _shown(cell: float | str) -> str:
    if isinstance(cell, str):
        return cell
    return "–" if np.isnan(cell) else f"{cell:.3f}" if abs(cell) < 100 else f"{cell:,.0f}"
