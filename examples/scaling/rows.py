"""Rows for the scripts of this folder, as Parquet files, and scores of a model and of the true distribution.

The function is that of Friedman (1991) with ten columns. The noise has a standard deviation of .5 to 1.5, which depends
on a sixth column. With ``--classes`` the target is "low", "middle" or "high", and the rows are in a separate folder.
"""

from __future__ import annotations

import argparse
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

COLUMNS = [f"x{k}" for k in range(10)]
LABELS, BORDERS = np.array(["low", "middle", "high"], dtype=object), (11.0, 17.0)
FILE_ROWS, GROUP_ROWS, NEW_ROWS = 1_000_000, 100_000, 5_000


def made(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Return n random rows with their target "y", and the mean and standard deviation of the target."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 10))
    mean = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    std = 0.5 + X[:, 5]
    return pd.DataFrame(X, columns=COLUMNS).assign(y=mean + std * rng.normal(size=n)), mean, std


def labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a class instead of a numeric target."""
    return rows.assign(y=LABELS[np.searchsorted(BORDERS, rows["y"])])


def written(folder: Path, n: int, *, classes: bool = False) -> Path:
    """Write n rows to Parquet files unless they exist, and return the folder."""
    folder = folder / "classes" if classes else folder
    folder.mkdir(parents=True, exist_ok=True)
    for place, start in enumerate(range(0, n, FILE_ROWS)):
        path = folder / f"{place:04d}.parquet"
        if not path.exists():
            rows, _, _ = made(min(FILE_ROWS, n - start), seed=1000 + place)
            rows = labelled(rows) if classes else rows
            rows.to_parquet(path, row_group_size=min(GROUP_ROWS, max(n // 8, 1)), index=False)
    return folder


def scores(model: LaplaceRegressor) -> dict[str, Any]:
    """Return log-likelihood per new row, that of the truth, RMSE of the mean, and a digest of the predictions."""
    rows, mean, std = made(NEW_ROWS, seed=1)
    X, y = rows[COLUMNS], rows["y"].to_numpy()
    predicted, total = model.predict(X, return_std=True)
    truth = -0.5 * np.mean(((y - mean) / std) ** 2 + np.log(2 * np.pi * std**2))
    return {
        "log_likelihood": float(model.log_predictive_density(X, y).mean()),
        "of the truth": float(truth),
        "error of the mean": float(np.sqrt(np.mean((predicted - mean) ** 2))),
        "digest": sha256(predicted.tobytes() + total.tobytes()).hexdigest()[:16],
    }


def scores_of_classes(model: LaplaceClassifier) -> dict[str, Any]:
    """Return log-likelihood per new row, that of the truth, and a digest of the predictions."""
    rows, mean, std = made(NEW_ROWS, seed=1)
    X, labels = rows[COLUMNS], labelled(rows)["y"].to_numpy()
    below = norm.cdf((np.array([-np.inf, *BORDERS, np.inf]) - mean[:, None]) / std[:, None])
    place = np.searchsorted(BORDERS, rows["y"])
    return {
        "log_likelihood": float(model.log_predictive_density(X, labels).mean()),
        "of the truth": float(np.log(np.diff(below)[np.arange(len(X)), place]).mean()),
        "digest": sha256(model.predict_proba(X).tobytes() + model.predict_std(X).tobytes()).hexdigest()[:16],
    }


def shown(model: LaplaceRegressor | LaplaceClassifier, **other: Any) -> None:
    """Print the scores as a line of JSON."""
    found = scores_of_classes(model) if isinstance(model, LaplaceClassifier) else scores(model)
    print(json.dumps({**other, **found}), flush=True)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the arguments of all scripts."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("rows"), help="folder of the Parquet files (default: rows)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="number of rows (default: 1,000,000)")
    parser.add_argument("--max-time", type=float, help="seconds of the training (default: no limit)")
    parser.add_argument("--memory", help="folder with the state from which a killed fit goes on")
    parser.add_argument("--classes", action="store_true", help="fit a classifier to three classes")
    return parser


def estimator(args: argparse.Namespace) -> LaplaceRegressor | LaplaceClassifier:
    """Return a default regressor or classifier with the limits of the command line."""
    kind = LaplaceClassifier if args.classes else LaplaceRegressor
    return kind(random_state=0, max_time=args.max_time, memory=args.memory)
