"""Counts: mean log probability, coverage of 90 % intervals and overdispersion of "poisson" and "negative_binomial".

The counts are generated from three uniform inputs, with gamma-distributed rates of overdispersion α; 1,000 new rows are
scored. ``--bike PATH`` adds fits of hourly rentals in a CSV file, scored on 2,000 other rows (means over three seeds).

``python examples/benchmarks/counts.py [--bike PATH]`` prints the table; ``--quick`` has fewer rows.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.metrics import coverage, neg_nlpd

LIKELIHOODS = "poisson", "negative_binomial"
DROPPED = ["casual", "registered", "instant", "cnt", "dteday"]


def generated(n_rows: int, alpha: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n_rows, 3))
    rates = np.exp(1 + np.sin(2 * X[:, 0]) + X[:, 1] / 2)
    return X, rng.poisson(rates * rng.gamma(1 / alpha, alpha, n_rows) if alpha else rates)


def line(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, seed: int = 0) -> np.ndarray:
    """Log probability, coverage and seconds of both likelihoods, and the overdispersion, (7,)."""
    found: list[float] = []
    for likelihood in LIKELIHOODS:
        begun = time.process_time()
        model = LaplaceRegressor(likelihood=likelihood, random_state=seed).fit(X, y)
        seconds = time.process_time() - begun
        found += [neg_nlpd(model, X_test, y_test), coverage(model, X_test, y_test), seconds]
    return np.array([*found, model.overdispersion_])


def shown(names: tuple[object, ...], values: np.ndarray) -> str:
    poisson, other = (f"{score:.3f}, {share:.3f}" for score, share in (values[:2], values[3:5]))
    cells = [*map(str, names), poisson, other, f"{values[6]:.2g}", f"{values[5] / values[2]:.2f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bike", type=Path, help="CSV file of hourly rentals")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(
        '| rows | true α | "poisson" | "negative_binomial" | selected α | ratio of seconds |\n|---|---|---|---|---|---|'
    )
    for n_rows in (100,) if options.quick else (60, 300, 1000):
        for alpha in (0, 0.1, 0.5, 2):
            print(shown((n_rows, alpha), line(*generated(n_rows, alpha, 0), *generated(1000, alpha, 1))), flush=True)
    if options.bike is not None:
        table = pd.read_csv(options.bike)
        X, y = table.drop(columns=[name for name in DROPPED if name in table]).to_numpy(), table["cnt"].to_numpy()
        for n_rows in (60, 300, 2000, 8000):
            values = []
            for seed in range(3):
                order = np.random.RandomState(seed).permutation(len(y))
                rows, test = order[:n_rows], order[n_rows : n_rows + 2000]
                values.append(line(X[rows], y[rows], X[test], y[test], seed))
            print(shown((n_rows, "bike"), np.mean(values, axis=0)), flush=True)


if __name__ == "__main__":
    main()
