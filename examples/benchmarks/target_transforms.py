"""Log transformation of positive targets: log density, RMSE, CRPS and intervals below zero, on inner splits.

Each fit uses at most ``--rows`` of the training rows, and is scored on others; the test parts are not
used. With the tables in DIR, run ``python examples/benchmarks/target_transforms.py --data DIR``. ``--quick`` fits a
simulated table with few rows.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from many_rows import parts

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace.metrics import neg_crps

TABLES = "diamonds,california,bike,power"
TRANSFORMS = (None, "log")


def main() -> None:
    """Print one row for each table and transformation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with the tables")
    parser.add_argument("--only", default=TABLES, help="names of tables, with commas")
    parser.add_argument("--rows", type=int, default=1500, help="maximum number of rows to fit")
    parser.add_argument("--quick", action="store_true", help="a made-up table with few rows")
    options = parser.parse_args()
    if options.quick:
        options.only, options.rows = "friedman", 80
    torch.set_num_threads(1)
    print("| table | rows | transformation | log density | difference | RMSE | CRPS | lower ends below zero |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.only.split(","):
        X, y = parts(options.data, name, 0, test=False)[:2]
        order = np.random.default_rng(100).permutation(len(y))
        n_rows = min(options.rows, int(0.7 * len(y)))
        train, test = order[:n_rows], order[n_rows : n_rows + 1500]
        plain = None
        for transform in TRANSFORMS:
            model = LaplaceRegressor(target_transform=transform, random_state=0).fit(X.iloc[train], y[train])
            mean, interval = model.predict_interval(X.iloc[test], 0.9)
            density = model.log_predictive_density(X.iloc[test], y[test])
            plain = density if plain is None else plain
            gain = density - plain
            cells = (
                f"{density.mean():.2f}",
                f"{gain.mean():.3f} ± {gain.std() / len(gain) ** 0.5:.3f}",
                f"{np.sqrt(np.mean((mean - y[test]) ** 2)):.4g}",
                f"{-neg_crps(model, X.iloc[test], y[test]):.4g}",
                f"{(interval[:, 0] < 0).mean():.0%}",
            )
            print(f"| {name} | {n_rows} | {transform} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
