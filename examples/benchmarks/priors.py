"""Prior groups, and the rule that chooses their precisions: log-likelihood on five UCI tables.

For each table and configuration: the mean log-likelihood of held-out rows (nats, in the units of y), the mean
difference from the first configuration with its standard error over the splits, the share of targets within their 95 %
intervals, the log evidence a row, and the seconds of a fit.

``python examples/benchmarks/priors.py --data DIR`` prints markdown tables; the format of DIR is in ``uci_sets.py``. A
ninth of each split's training part is held out; the test parts are only used with ``--test``. ``--splits 10`` sets the
number of splits, ``--only yacht,boston`` the tables, ``--configurations "auto; ard"`` the configurations. ``--quick``
runs one split of the two small tables.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import uci_sets

from sklearn_laplace import LaplaceRegressor

EVIDENCE = {"prior_precision": "evidence", "sigma_noise": "evidence"}
LOO = {"prior_precision": "loo", "sigma_noise": "loo"}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "auto": {},
    "evidence": EVIDENCE,
    "loo": LOO,
    "layer": {"prior": "layer"},
    "tensor": {"prior": "tensor"},
    "ard": {"prior": "ard"},
    "layer, evidence": {"prior": "layer", **EVIDENCE},
    "tensor, evidence": {"prior": "tensor", **EVIDENCE},
    "ard, evidence": {"prior": "ard", **EVIDENCE},
    "fixed, 1": {"prior_precision": 1.0},
}
"""Configurations to compare; the first is the reference."""
COLUMNS = "log-likelihood", "difference", "± s.e.", "coverage", "evidence a row", "s a fit", "warnings"
Z95 = 1.959964


def measured(path: Path, options: dict[str, Any], split: int, test: bool) -> list[float]:
    X, y, X_new, y_new = uci_sets.parts(path, split, test)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = LaplaceRegressor(likelihood="gaussian", random_state=split, **options).fit(X, y)
    seconds = time.perf_counter() - start
    mean, std = model.predict(X_new, return_std=True)
    density = model.log_predictive_density(X_new, y_new).mean()
    covered = np.mean(np.abs(y_new - mean) < Z95 * std)
    return [density, covered, model.log_marginal_likelihood_value_ / len(y), seconds, float(len(caught))]


def rows(path: Path, configurations: list[str], splits: int, test: bool) -> Iterator[tuple[str, list[float]]]:
    base = None
    for name in configurations:
        values = np.array([measured(path, CONFIGURATIONS[name], split, test) for split in range(splits)])
        density, covered, evidence, seconds, caught = values.T
        base = density if base is None else base
        gain = density - base
        error_of = gain.std(ddof=1) / np.sqrt(splits) if splits > 1 else np.nan
        numbers = density.mean(), gain.mean(), error_of, covered.mean(), evidence.mean(), seconds.mean(), caught.sum()
        yield name, [float(value) for value in numbers]


def main() -> None:
    parser = uci_sets.parser(__doc__, splits=3)
    parser.add_argument("--configurations", default="; ".join(CONFIGURATIONS), help="names, separated by semicolons")
    options = parser.parse_args()
    splits, tables = uci_sets.asked(options)
    configurations = [name.strip() for name in options.configurations.split(";")]
    for table in tables:
        title = f"{table}: {splits} splits, {uci_sets.part_judged(options.test)}"
        print(uci_sets.header(title, ["configuration", *COLUMNS]))
        for name, found in rows(options.data / f"{table}.npz", configurations, splits, options.test):
            print(uci_sets.line([name, *found]), flush=True)


if __name__ == "__main__":
    main()
