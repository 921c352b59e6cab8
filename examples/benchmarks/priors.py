"""What shares a prior precision, and what chooses it: log-likelihood on five UCI tables.

For each table and configuration the mean log-likelihood of held-out rows (nats, of y in its own units), the mean
difference to the first configuration with its standard error over the splits, the share of targets within their 95 %
intervals, the log evidence a row, and the seconds of a fit.

``python examples/benchmarks/priors.py --data DIR`` prints markdown tables; DIR has ``boston.npz`` and so on, with
``X``, ``y`` and ``test_masks`` (splits, rows). Held out is a ninth of each split's training part, drawn by a seed of
its own: the test parts are for ``--test`` alone. ``--splits 10`` takes that many splits, ``--only yacht,boston`` names
tables, ``--configurations "scalar; ard"`` configurations, ``--quick`` is one split of the two small tables.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sklearn_laplace import LaplaceRegressor

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "scalar": {"prior_structure": "scalar"},
    "layer": {"prior_structure": "layer"},
    "tensor": {"prior_structure": "tensor"},
    "ard": {"prior_structure": "ard"},
    "scalar, loo": {"prior_precision": "loo", "sigma_noise": "loo"},
    "ard, loo": {"prior_structure": "ard", "prior_precision": "loo", "sigma_noise": "loo"},
    "scalar, cv": {"prior_precision": "cv"},
    "fixed, 1": {"prior_precision": 1.0},
}
"""What is compared; the first is what the others are compared with. One that is not there yet says so."""
TABLES = ("yacht", "boston", "energy", "concrete", "wine")
SMALL = TABLES[:2]
COLUMNS = "log-likelihood", "difference", "± s.e.", "coverage", "evidence a row", "s a fit", "warnings"
Z95 = 1.959964


def parts(path: Path, split: int, test: bool) -> tuple[np.ndarray, ...]:
    """Rows to fit and rows to judge by: X, y of each."""
    with np.load(path) as table:
        X, y, outside = table["X"], table["y"].ravel(), table["test_masks"][split].astype(bool)
    if test:
        return X[~outside], y[~outside], X[outside], y[outside]
    X, y = X[~outside], y[~outside]
    held = np.zeros(len(y), dtype=bool)
    held[np.random.default_rng(100 + split).permutation(len(y))[: len(y) // 9]] = True
    return X[~held], y[~held], X[held], y[held]


def measured(path: Path, options: dict[str, Any], split: int, test: bool) -> list[float]:
    X, y, X_new, y_new = parts(path, split, test)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = LaplaceRegressor(random_state=split, **options).fit(X, y)
    seconds = time.perf_counter() - start
    mean, std = model.predict(X_new, return_std=True)
    density = model.log_predictive_density(X_new, y_new).mean()
    covered = np.mean(np.abs(y_new - mean) < Z95 * std)
    return [density, covered, model.log_marginal_likelihood_value_ / len(y), seconds, float(len(caught))]


def rows(path: Path, configurations: list[str], splits: int, test: bool) -> Iterator[tuple[str, list[float] | str]]:
    base = None
    for name in configurations:
        try:
            found = np.array([measured(path, CONFIGURATIONS[name], split, test) for split in range(splits)])
        except (ValueError, TypeError) as error:
            yield name, str(error).split(". ")[0]
            continue
        density, covered, evidence, seconds, caught = found.T
        base = density if base is None else base
        gain = density - base
        error_of = gain.std(ddof=1) / np.sqrt(splits) if splits > 1 else np.nan
        numbers = density.mean(), gain.mean(), error_of, covered.mean(), evidence.mean(), seconds.mean(), caught.sum()
        yield name, [float(value) for value in numbers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--only", default=",".join(TABLES))
    parser.add_argument("--configurations", default="; ".join(CONFIGURATIONS), help="names, between semicolons")
    for name in ("--quick", "--test"):
        parser.add_argument(name, action="store_true")
    options = parser.parse_args()
    splits, tables = (1, SMALL) if options.quick else (options.splits, options.only.split(","))
    configurations = [name.strip() for name in options.configurations.split(";")]
    for table in tables:
        part = "test part" if options.test else "a ninth of the training part"
        print("", f"{table}: {splits} splits, {part}", "", sep="\n")
        print("| configuration | " + " | ".join(COLUMNS) + " |", "|---|" + "---|" * len(COLUMNS), sep="\n")
        for name, found in rows(options.data / f"{table}.npz", configurations, splits, options.test):
            cells = [found] if isinstance(found, str) else ["–" if np.isnan(v) else f"{v:.3g}" for v in found]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
