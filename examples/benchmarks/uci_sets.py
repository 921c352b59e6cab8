"""UCI tables of the benchmarks: the parts of each split, and code common to the scripts.

The folder ``--data DIR`` has ``boston.npz`` and so on. Each file has ``X`` (rows, columns), ``y`` (rows,) and
``test_masks`` (splits, rows), the standard 90/10 splits of Hernández-Lobato & Adams (2015). Either the test part of a
split is scored, or *inner rows*: a ninth of its training part, drawn with a separate seed and held out. Use the inner
rows for all choices, and the test parts only for final results.

``gap_test_masks`` (columns, rows) are the gap splits of Foong et al. (2019): the middle third of a column is the test
part. The inner rows are the middle third of the next column, among the remaining rows. Classification tables have only
``X`` and ``y``. They are split as in Immer et al. (2021): 70 % training, 15 % validation, 15 % test, stratified, with
ten seeds.
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
"""One in ``HELD_OUT`` training rows is held out, drawn with the seed ``SEED`` + split."""


def parts(path: Path, split: int, test: bool) -> tuple[np.ndarray, ...]:
    """Training rows and scored rows: X, y of each."""
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
    """Same as :func:`parts`, for the gap split of a column."""
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
    """Number of gap splits: one for each column."""
    with np.load(path) as table:
        return len(table["gap_test_masks"])


def class_parts(path: Path, split: int, test: bool) -> tuple[np.ndarray, ...]:
    """Same as :func:`parts`, for classes: the validation or the test part is scored, and the other one is not used."""
    with np.load(path) as table:
        X, y = table["X"], table["y"]
    seed = CLASS_SEEDS[split]
    X, X_rest, y, y_rest = train_test_split(X, y, test_size=0.3, stratify=y, random_state=seed)
    halves = train_test_split(X_rest, y_rest, test_size=0.5, stratify=y_rest, random_state=seed)
    return X, y, halves[int(test)], halves[2 + int(test)]


def parser(description: str | None, splits: int | None = None) -> argparse.ArgumentParser:
    """Parser for the options of a script; with ``splits``, it has ``--test`` and ``--splits`` with this default."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, required=True, help="folder of the tables")
    if splits is None:
        arguments.set_defaults(splits=1)
    else:
        arguments.add_argument(
            "--splits", type=int, default=splits, help=f"how many of the splits 0–9, {splits} by default"
        )
        arguments.add_argument("--test", action="store_true", help="score the test parts: for final results only")
    arguments.add_argument("--only", default=",".join(TABLES), help="names of tables, as in yacht,boston")
    arguments.add_argument("--quick", action="store_true", help="smoke test on the two small tables")
    return arguments


def asked(options: argparse.Namespace) -> tuple[int, Sequence[str]]:
    """Number of splits, and names of the tables."""
    return (1, SMALL) if options.quick else (options.splits, options.only.split(","))


def part_judged(test: bool) -> str:
    """Description of the scored rows for the title of a table."""
    return "test part" if test else "a ninth of the training part"


def header(title: str, columns: Sequence[str]) -> str:
    """Header of a markdown table, below a line with the title."""
    return "\n".join(["", title, "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"])


def line(cells: Iterable[float | str]) -> str:
    """Row of a markdown table; – for missing numbers."""
    return "| " + " | ".join(_shown(cell) for cell in cells) + " |"


def _shown(cell: float | str) -> str:
    if isinstance(cell, str):
        return cell
    return "–" if np.isnan(cell) else f"{cell:.3f}" if abs(cell) < 100 else f"{cell:,.0f}"
