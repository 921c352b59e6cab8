"""Calibration under distribution shift: later rows, reweighted rows, and rows unlike the training data.

- **Time.** Hourly rentals of bicycles, sorted by time. The model is fitted to rows of the first four fifths of the
  hours. It is scored on the last fifth (*later*) and on other rows of the first part (*same time*).
- **Weights.** The scored rows of a table have weights exp(1.5 u). Here u is the first principal component of the
  standardised numeric columns, standardised and limited to ±2. The table has the coverage of 90 % intervals. *Rows* is
  the effective number (Σw)² / Σw² of scored rows.
- **Outside.** AUROC of rows unlike the training data against other held-out rows. Regression: the middle third of a
  column is removed from the training part and detected by ``score_samples``. Classification: the rows of a class are
  removed, and detected by ``score_samples`` and by the entropy of the probabilities. The table has the mean and the
  smallest value over columns or classes.

``python examples/benchmarks/shift.py --data DIR --out OUT`` uses the training part of split 0 of each table, never test
parts. DIR holds the folders ``uci_regression``, ``uci_classification``, ``regression_folds`` and ``tables``.
``--quick`` runs the part *weights* on Friedman's function with 300 rows, which needs no data.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import many_rows
import numpy as np
import pandas as pd
import torch
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from uci_sets import header, line

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

LEVEL, STRENGTH, MOST = 0.9, 1.5, 2.0
MOST_FITTED, MOST_JUDGED = 2000, 4000
WEIGHTED = "concrete", "wine", "sml", "power", "elevators", "naval", "california", "diamonds", "bike"
GAPS = "yacht", "boston", "energy", "concrete", "wine"
CLASSES = "glass", "waveform", "satellite"
LEAST_OF_CLASS = 20
"""Classes with fewer rows are not removed."""
Line = list[float | str]


def coverage(ends: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Weighted share of targets (n,) inside their intervals (n, 2)."""
    return float(np.average((ends[:, 0] <= y) & (y <= ends[:, 1]), weights=weights))


def in_time(data: Path) -> Iterator[Line]:
    """Fit the first four fifths of the hours, and score the last fifth."""
    X = pd.read_csv(data / "tables" / "bike_sharing_hourly.csv.gz").rename(columns={"cnt": "count"})
    X = X.drop(columns=[name for name in ("casual", "registered", "instant") if name in X])
    y = X.pop("count").to_numpy(float)
    end = len(y) * 4 // 5
    order = np.random.default_rng(0).permutation(end)
    parts = {"same time": order[MOST_FITTED : MOST_FITTED + MOST_JUDGED], "later": np.arange(end, len(y))}
    model = LaplaceRegressor(random_state=0).fit(X.iloc[order[:MOST_FITTED]], y[order[:MOST_FITTED]])
    for name, rows in parts.items():
        new, target = X.iloc[rows], y[rows]
        error = np.sqrt(np.mean((model.predict(new) - target) ** 2))
        density = model.log_predictive_density(new, target).mean()
        covered = coverage(model.predict_interval(new, LEVEL)[1], target)
        epistemic = np.median(model.predict_std(new, kind="epistemic"))
        yield [name, str(len(rows)), f"{error:.4g}", float(density), covered, f"{epistemic:.4g}"]


def direction(X: pd.DataFrame) -> Any:
    """Function from rows to u: the first principal component of their numbers, standardised and limited."""
    numbers = list(X.select_dtypes("number"))
    centre = X[numbers].median()
    scale = StandardScaler().fit(X[numbers].fillna(centre))
    axis = PCA(1, random_state=0).fit(scale.transform(X[numbers].fillna(centre)))
    unit = axis.transform(scale.transform(X[numbers].fillna(centre))).std()
    return lambda rows: (axis.transform(scale.transform(rows[numbers].fillna(centre)))[:, 0] / unit).clip(-MOST, MOST)


def by_weights(data: Path | None, name: str) -> Line:
    """Coverage of one table with rows weighted along the first principal component."""
    if data is None:
        X, y = many_rows.friedman(1300)
        most = 300
    else:
        X, y, _, _ = many_rows.parts(data, name, 0, test=True)
        most = min(MOST_FITTED, len(y) * 2 // 3)
    order = np.random.default_rng(0).permutation(len(y))
    fitted, judged = order[:most], order[most : most + MOST_JUDGED]
    tilt = direction(X.iloc[fitted])
    weights = np.exp(STRENGTH * tilt(X.iloc[judged]))
    model = LaplaceRegressor(random_state=0).fit(X.iloc[fitted], y[fitted])
    new, target = X.iloc[judged], y[judged]
    effective = weights.sum() ** 2 / (weights**2).sum()
    return [name, str(most), f"{effective:.0f}", coverage(model.predict_interval(new, LEVEL)[1], target, weights)]


def outside_gap(data: Path, name: str) -> Line:
    """AUROC of rows in the middle third of each column, which the training part lacks."""
    with np.load(data / "uci_regression" / f"{name}.npz") as table:
        X, y, test = table["X"].astype(float), table["y"].ravel(), table["test_masks"][0].astype(bool)
    X, y = X[~test], y[~test]
    found = []
    for column in range(X.shape[1]):
        order = X[:, column].argsort(kind="stable")
        gap = order[len(y) // 3 : 2 * len(y) // 3]
        rest, like = train_test_split(np.setdiff1d(order, gap), test_size=0.2, random_state=0)
        model = LaplaceRegressor(random_state=0).fit(X[rest], y[rest])
        is_outside = np.repeat([True, False], [len(gap), len(like)])
        found.append(roc_auc_score(is_outside, -model.score_samples(np.concatenate([X[gap], X[like]]))))
    return [name, "gap of a column", str(len(found)), float(np.mean(found)), float(np.min(found)), np.nan, np.nan]


def outside_classes(data: Path, name: str) -> Line:
    """AUROC of rows of a class that the training part lacks."""
    with np.load(data / "uci_classification" / f"{name}.npz") as table:
        X, y = table["X"].astype(float), table["y"].ravel().astype(int)
    chosen = np.random.default_rng(0).permutation(len(y))[: 2 * MOST_FITTED]
    X, y = X[chosen], y[chosen]
    found = []
    for label in np.unique(y):
        of_class = y == label
        if of_class.sum() < LEAST_OF_CLASS:
            continue
        rest, like = train_test_split(np.flatnonzero(~of_class), test_size=0.3, random_state=0, stratify=y[~of_class])
        model = LaplaceClassifier(random_state=0).fit(X[rest], y[rest])
        new = np.concatenate([X[of_class], X[like]])
        is_outside = np.repeat([True, False], [of_class.sum(), len(like)])
        p = model.predict_proba(new)
        entropy = -(p * np.log(p.clip(min=np.finfo(float).tiny))).sum(1)
        found.append([roc_auc_score(is_outside, score) for score in (-model.score_samples(new), entropy)])
    by_score, by_entropy = np.array(found).T
    scores = by_score.mean(), by_score.min(), by_entropy.mean(), by_entropy.min()
    return [name, "class", str(len(found)), *map(float, scores)]


def show(out: Path, name: str, columns: tuple[str, ...], lines: Iterator[Line]) -> None:
    """Print and write a table, line by line."""
    print(header(name, columns), flush=True)
    with (out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for each in lines:
            print(line(each), flush=True)
            writer.writerow(
                [cell if isinstance(cell, str) else "–" if np.isnan(cell) else f"{cell:.3f}" for cell in each]
            )
            file.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the tables")
    parser.add_argument("--out", type=Path, default=Path("shift"), help="folder of the CSVs")
    parser.add_argument("--part", default="time,weights,outside", help="parts, separated by commas")
    parser.add_argument("--quick", action="store_true", help="one part on Friedman's function")
    options = parser.parse_args()
    if not options.quick and options.data is None:
        parser.error("--data is required without --quick")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # constant columns of some gaps
    options.out.mkdir(parents=True, exist_ok=True)
    parts = ["weights"] if options.quick else options.part.split(",")
    if "time" in parts:
        columns = "rows", "number", "RMSE", "log-likelihood", "coverage", "median epistemic std"
        show(options.out, "shift_time", columns, in_time(options.data))
    if "weights" in parts:
        columns = "table", "fitted", "rows", "coverage"
        data, tables = (None, ["friedman"]) if options.quick else (options.data, WEIGHTED)
        show(options.out, "shift_weights", columns, (by_weights(data, name) for name in tables))
    if "outside" in parts:
        columns = "table", "removed", "times", "score_samples", "smallest", "entropy", "smallest entropy"
        lines = [(outside_gap, name) for name in GAPS] + [(outside_classes, name) for name in CLASSES]
        show(options.out, "shift_outside", columns, (judge(options.data, name) for judge, name in lines))


if __name__ == "__main__":
    main()
