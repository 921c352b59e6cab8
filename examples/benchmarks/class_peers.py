"""Default classifier against CatBoost and scikit-learn's boosting: log loss, calibration error and processor seconds.

``python examples/benchmarks/class_peers.py --data DIR --out OUT`` writes ``class_peers.csv``. It prints a table and the
share of tables on which the default is at least as good. ``uci_sets.py`` and ``quality_sets.py`` describe DIR.

In addition to classification tables, there are three regression tables with targets cut at quantiles into 2, 3 or 7
classes. The last class of two tables is thinned to 1:50. Large tables are reduced to a random part. Three tenths of the
rows are the test part, which is scored only with ``--test``. Without ``--test``, a quarter of the other rows is scored.
All models are fitted on the same rows, on one thread. CatBoost uses a tenth of these rows as ``eval_set``, 1,000
iterations and ``use_best_model``. ``PYTHONPATH`` may name another version of this package.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import many_rows
import numpy as np
import pandas as pd
import quality_sets
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import train_test_split

from sklearn_laplace import LaplaceClassifier, metrics

CASES = (
    *(("breast_cancer", 0), ("australian", 0), ("glass", 0), ("waveform", 0), ("credit_g", 0), ("phoneme", 0)),
    *(("satellite", 2000), ("magic", 2000), ("california 3", 1000), ("diamonds 7", 1000), ("bike 2", 1000)),
    *(("phoneme 1:50", 0), ("magic 1:50", 1500)),
    *(("australian", 110), ("satellite", 300), ("credit_g", 200), ("magic", 150), ("diamonds 2", 400), ("bike 7", 600)),
)
"""Table and number of rows, 0 for all. A number after a name is the number of classes; "1:50" thins the last class."""
QUICK = (("breast_cancer", 0), ("credit_g", 200))
NUMBERS = {"california": "california_housing", "diamonds": "diamonds", "bike": "bike_sharing_hourly"}
TEST_SHARE, SCORED_SHARE, MOST_SCORED, RARE = 0.3, 0.25, 3000, 50
COLUMNS = ["table", "rows", "split", "model", "log loss", "calibration error", "accuracy", "processor s"]
Proba = Callable[[pd.DataFrame], np.ndarray]


def table(folder: Path, name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """All rows of a case, and their classes 0, 1, …"""
    base, _, kind = name.partition(" ")
    if base in NUMBERS:
        X, y = quality_sets.table(folder / "tables" / f"{NUMBERS[base]}.csv.gz")
        return X, np.searchsorted(np.quantile(y, np.arange(1, int(kind)) / int(kind)), y)
    path = folder / "tables" / f"{base}.csv.gz"
    if path.exists():
        X, y = quality_sets.table(path)
    else:
        with np.load(folder / "uci_classification" / f"{base}.npz") as data:
            X, y = pd.DataFrame(data["X"]).rename(columns=str), data["y"].ravel()
    y = np.unique(y, return_inverse=True)[1]
    if kind:
        others, rare = np.flatnonzero(y < y.max()), np.flatnonzero(y == y.max())
        kept = np.random.default_rng(0).permutation(rare)[: len(others) // RARE]
        chosen = np.sort(np.concatenate([others, kept]))
        X, y = X.iloc[chosen].reset_index(drop=True), y[chosen]
    return X, y


def parts(folder: Path, name: str, n_rows: int, split: int, test: bool) -> tuple[Any, ...]:
    X, y = table(folder, name)
    train, scored = np.arange(len(y)), np.arange(0)
    for share in (TEST_SHARE,) if test else (TEST_SHARE, SCORED_SHARE):
        train, scored = train_test_split(train, test_size=share, stratify=y[train], random_state=split)
    scored = np.random.default_rng(split).permutation(scored)[:MOST_SCORED]
    if 0 < n_rows < len(train):
        train, _ = train_test_split(train, train_size=n_rows, stratify=y[train], random_state=split)
    return X.iloc[train].reset_index(drop=True), y[train], X.iloc[scored].reset_index(drop=True), y[scored]


def ours(X: pd.DataFrame, y: np.ndarray, split: int) -> Proba:
    return LaplaceClassifier(random_state=split).fit(X, y).predict_proba


def boosting(X: pd.DataFrame, y: np.ndarray, split: int) -> Proba:
    few, coded = many_rows.coding(X)
    model = HistGradientBoostingClassifier(random_state=split, categorical_features=few).fit(coded(X), y)
    return lambda X: model.predict_proba(coded(X))


def catboost(X: pd.DataFrame, y: np.ndarray, split: int) -> Proba:
    named = list(X.select_dtypes(exclude="number"))

    def text(X: pd.DataFrame) -> pd.DataFrame:
        return X.assign(**{name: X[name].astype(str) for name in named})

    model = importlib.import_module("catboost").CatBoostClassifier(
        verbose=0, random_seed=split, thread_count=1, cat_features=named, use_best_model=True, allow_writing_files=False
    )
    seen, X_eval, y_seen, y_eval = train_test_split(text(X), y, test_size=0.1, stratify=y, random_state=split)
    model.fit(seen, y_seen, eval_set=(X_eval, y_eval))
    return lambda X: model.predict_proba(text(X))


MODELS: dict[str, Callable[[pd.DataFrame, np.ndarray, int], Proba]] = {
    "default": ours,
    "HistGradientBoosting": boosting,
    "CatBoost": catboost,
}


def judged(
    model: str, X: pd.DataFrame, y: np.ndarray, X_new: pd.DataFrame, y_new: np.ndarray, split: int
) -> list[float]:
    """Log loss, calibration error, accuracy, and processor seconds of fit and prediction."""
    begun = time.process_time()
    p = MODELS[model](X, y, split)(X_new)
    seconds = time.process_time() - begun
    loss = float(-np.log(np.maximum(p[np.arange(len(y_new)), y_new], 1e-300)).mean())
    return [
        loss,
        metrics.expected_calibration_error(y_new, p, labels=np.arange(p.shape[1])),
        float(np.mean(p.argmax(1) == y_new)),
        seconds,
    ]


def report(found: pd.DataFrame) -> str:
    """Means over the splits as a table, and the shares of tables on which the default is at least as good."""
    means = found.groupby(["table", "rows", "model"], sort=False)[COLUMNS[4:]].mean().unstack("model")
    lines = [means.round(4).to_string()]
    for peer in [name for name in MODELS if name in set(found.model) and name != "default"]:
        for score in ("log loss", "calibration error"):
            first = (means[score, "default"] <= means[score, peer]).mean()
            lines.append(f"{score} at most that of {peer}: {first:.0%} of {len(means)} tables")
        ratio = means["processor s", "default"] / means["processor s", peer]
        lines.append(f"processor seconds over those of {peer}: median {ratio.median():.2f}, largest {ratio.max():.2f}")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--test", action="store_true", help="score the test parts: for final results only")
    parser.add_argument("--quick", action="store_true", help="two small tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    found: list[list[Any]] = []
    for split in range(1 if options.quick else options.splits):
        for name, n_rows in QUICK if options.quick else CASES:
            X, y, X_new, y_new = parts(options.data, name, n_rows, split, options.test)
            for model in options.models.split(","):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    numbers = judged(model, X, y, X_new, y_new, split)
                found.append([name, len(y), split, model, *numbers])
                print(*found[-1][:4], *(f"{value:.4g}" for value in numbers), flush=True)
                pd.DataFrame(found, columns=COLUMNS).to_csv(options.out / "class_peers.csv", index=False)
    print(report(pd.DataFrame(found, columns=COLUMNS)))


if __name__ == "__main__":
    main()
