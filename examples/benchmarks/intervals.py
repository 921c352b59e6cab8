"""Coverage and width of 90 % prediction intervals on five UCI tables.

For each table, pooled over the splits: coverage and mean width of ``predict_interval(X, 0.9)`` by "jackknife+" and by
"normal". The model is ``LaplaceRegressor(likelihood="gaussian", random_state=split)``, unchanged and after
``refit_laplace(sigma_noise=...)`` with three times its noise and with a third of it. "Inside" means that the coverage
is within the central 99 % of the binomial distribution for independent rows with probability .9, by exact quantiles.
The test parts of ten splits share rows, so the true band is wider.

``python examples/benchmarks/intervals.py --data DIR --test`` prints a markdown table; the format of DIR is in
``uci_sets.py``. Without ``--test``, a ninth of each training part replaces the test part. Further options:
``--splits``, ``--only``; ``--power`` sets how far the intervals are shortened towards leave-one-out
(``_approximation/held_out.py``); ``--quick`` runs one split of two tables.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import uci_sets
from scipy.stats import binom

from sklearn_laplace import LaplaceRegressor
from sklearn_laplace._approximation import held_out as _cross_fit

LEVEL, BAND, SPLITS = 0.9, 0.99, 10
METHODS = "jackknife+", "normal"
NOISES = {"as it is": None, "σ × 3": 3.0, "σ / 3": 1 / 3}
COLUMNS = "table", "method", "noise", "coverage", "99 % band of .9", "inside", "mean width", "rows"

Found = dict[tuple[str, str], list[np.ndarray]]
"""For each method and noise: coverage (0 or 1) and width of the intervals of each split, shape (2, rows)."""


def measured(path: Path, split: int, test: bool, found: Found) -> None:
    X, y, X_new, y_new = uci_sets.parts(path, split, test)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the noise is wrong by a factor on purpose
        model = LaplaceRegressor(likelihood="gaussian", random_state=split).fit(X, y)
        sigma = model.sigma_noise_
        for noise, factor in NOISES.items():
            if factor is not None:
                model.refit_laplace(sigma_noise=factor * sigma)
            for method in METHODS:
                _, interval = model.predict_interval(X_new, LEVEL, method=method)
                low, high = interval[:, 0], interval[:, 1]
                found[method, noise].append(np.stack([(low <= y_new) & (y_new <= high), high - low]))


def rows(path: Path, splits: int, test: bool) -> Iterator[list[float | str]]:
    found: Found = {(method, noise): [] for method in METHODS for noise in NOISES}
    for split in range(splits):
        measured(path, split, test, found)
    for (method, noise), each in found.items():
        covered, width = np.concatenate(each, axis=1)
        n = len(covered)
        low, high = binom.ppf([(1 - BAND) / 2, (1 + BAND) / 2], n, LEVEL) / n
        inside = "yes" if low <= covered.mean() <= high else "no"
        band = f"{low:.3f} to {high:.3f}"
        yield [path.stem, method, noise, covered.mean(), band, inside, width.mean(), str(n)]


def main() -> None:
    parser = uci_sets.parser(__doc__, splits=SPLITS)
    parser.add_argument("--power", type=float, default=_cross_fit.FORMULA_POWER, help="from 0, CV+ of scores, to 1")
    options = parser.parse_args()
    _cross_fit.FORMULA_POWER = options.power
    splits, tables = uci_sets.asked(options)
    torch.set_num_threads(1)
    print(uci_sets.header(f"{splits} splits, {uci_sets.part_judged(options.test)}", COLUMNS), flush=True)
    for name in tables:
        for row in rows(options.data / f"{name}.npz", splits, options.test):
            print(uci_sets.line(row), flush=True)


if __name__ == "__main__":
    main()
