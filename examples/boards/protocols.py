"""Protocols of two papers on local tables: IBUG (Brophy & Lowd 2022) and bde (Arvanitis et al. 2025).

- ``ibug``: the first ten splits of ``ShuffleSplit(20, test_size=0.1, random_state=1)``, in the units of y. Scores are
  means ± standard errors over the folds.
- ``bde``: ``train_test_split(test_size=0.2, random_state=0)``, with columns and targets standardised by the training
  rows. The estimator has ``--runs`` seeds on this one split; scores are means ± standard deviations.

The NLL is that of a normal distribution with the predicted mean and standard deviation; *own NLL* is that of the
predictive distribution.

``python examples/boards/protocols.py --data DIR --protocol ibug --only concrete,energy,yacht`` prints a line for each
table and model (``--models default,CatBoost,NGBoost``), with processor seconds of a fit, and the published numbers. The
published numbers come from the papers' repositories: ``extended_results`` of jjbrophy47/ibug, means over ten folds, and
``paper/paper.md`` of scikit-learn-contrib/bde. The order of the UCI rows may differ there, and with it the folds. Both
protocols score rows that are test rows in other benchmarks, so use them for final results only. ``--quick`` runs two
fits of Friedman's function, without data.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import norm
from sklearn.model_selection import ShuffleSplit, train_test_split

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import distribution_peers
import many_rows
import quality_sets

FOLDS = 10
COLUMNS = {"ibug": "NLL / CRPS of NGBoost, PGBM, IBUG", "bde": "RMSE / NLL of CatBoost, deep ensemble, TabPFN, bde"}
PUBLISHED = {
    "ibug": {
        "concrete": "3.033 / 3.266, 2.730 / 1.895, 2.866 / 1.948",
        "energy": "0.650 / 0.528, 0.481 / 0.163, 0.861 / 0.155",
        "power": "2.773 / 2.112, 2.520 / 1.534, 2.556 / 1.528",
        "yacht": "0.540 / 0.967, 0.248 / 0.240, 0.175 / 0.300",
    },
    "bde": {
        "bike": "0.265 / -0.374, 0.288 / -0.455, 0.210 / -0.686, 0.226 / -0.732",
    },
}


def rows_of(data: Path | None, name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Return all rows and targets of a table."""
    if name == "friedman":
        return many_rows.friedman(400)
    if name == "bike":
        return quality_sets.table(data / "tables" / "bike_sharing_hourly.csv.gz")
    with np.load(data / "uci_regression" / f"{name}.npz") as table:
        return pd.DataFrame(table["X"].astype(float)).add_prefix("x"), table["y"].astype(float).ravel()


def splits(protocol: str, n_rows: int, runs: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield seed, training rows and test rows of each fit."""
    if protocol == "ibug":
        folds = ShuffleSplit(n_splits=2 * FOLDS, test_size=0.1, random_state=1).split(np.zeros(n_rows))
        yield from ((k, *rows) for k, rows in zip(range(min(runs, FOLDS)), folds, strict=False))
    else:
        fit, test = train_test_split(np.arange(n_rows), test_size=0.2, random_state=0)
        yield from ((seed, fit, test) for seed in range(runs))


def standardised(X: pd.DataFrame, y: np.ndarray, fit: np.ndarray) -> tuple[pd.DataFrame, np.ndarray]:
    """Return columns and targets with mean 0 and standard deviation 1 over the training rows."""
    spread = X.iloc[fit].std(ddof=0).replace(0.0, 1.0)
    return (X - X.iloc[fit].mean()) / spread, (y - y[fit].mean()) / y[fit].std()


def judged(distribution: Any, y: np.ndarray, std: np.ndarray) -> dict[str, float]:
    """Return the means of the scores over the rows; ``std`` is the predicted standard deviation."""
    mean = distribution.mean()
    return {
        "RMSE": float(np.sqrt(np.mean((mean - y) ** 2))),
        "NLL": float(-norm.logpdf(y, mean, std).mean()),
        "own NLL": float(-distribution.logpdf(y).mean()),
        "CRPS": float(distribution.crps(y).mean()),
    }


def std_of(distribution: Any) -> np.ndarray:
    """Return the standard deviations (n,) of a distribution of this package or of a peer."""
    return distribution.distribution.std() if isinstance(distribution, distribution_peers.Ours) else distribution.std()


def run(protocol: str, name: str, data: Path | None, models: set[str], runs: int) -> None:
    """Print a line for each model."""
    X, y = rows_of(data, name)
    families = {family: models.intersection(names) for family, names in distribution_peers.FAMILIES.items()}
    for family in (family for family, wanted in families.items() if wanted):
        found: dict[str, list[dict[str, float]]] = {}
        for seed, fit, test in splits(protocol, len(y), runs):
            table, target = standardised(X, y, fit) if protocol == "bde" else (X, y)
            for model, predictive, seconds in family(table.iloc[fit], target[fit], seed):
                distribution = predictive(table.iloc[test])
                scores = judged(distribution, target[test], std_of(distribution))
                found.setdefault(model, []).append({**scores, "seconds": seconds})
        for model, results in found.items():
            frame = pd.DataFrame(results)
            error = frame.std(ddof=1) / (len(frame) ** 0.5 if protocol == "ibug" else 1.0)
            cells = [f"{score} {frame[score].mean():.4g} ± {error[score]:.2g}" for score in frame]
            print(f"{protocol} {name} {model}, {len(frame)} fits: {', '.join(cells)}", flush=True)
    if name in PUBLISHED[protocol]:
        print(f"{protocol} {name} published, {COLUMNS[protocol]}: {PUBLISHED[protocol][name]}")


def main() -> None:
    """Run a protocol; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the tables; Friedman's function needs none")
    parser.add_argument("--protocol", choices=tuple(PUBLISHED), default="ibug")
    parser.add_argument("--only", help="names of tables, separated by commas")
    parser.add_argument("--models", default="default", help="names of models, as in probabilistic_peers.py")
    parser.add_argument("--runs", type=int, help="folds (10) or seeds (5)")
    parser.add_argument("--quick", action="store_true", help="two fits of Friedman's function")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.quick:
        options.only, options.runs = "friedman", 2
    runs = options.runs or (FOLDS if options.protocol == "ibug" else 5)
    for name in (options.only or ",".join(PUBLISHED[options.protocol])).split(","):
        run(options.protocol, name, options.data, set(options.models.split(",")), runs)


if __name__ == "__main__":
    main()
