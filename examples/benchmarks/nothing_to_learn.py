"""Nothing to learn: predictions of the default estimators for targets that are independent of X.

The best prediction is then a constant: the normal distribution with the mean and the standard deviation of the training
targets, or the frequencies of the classes. The gain is the log-likelihood of the estimators on 2,000 new rows minus
that of the constant, in nats per row. The tables have its mean and worst value over the seeds; the goal is at least
−.02. They also have the median prior precision δ and the mean number of effective parameters γ. Two ratios follow: the
noise std and the mean predicted std, each over the std of the training targets.

``python examples/benchmarks/nothing_to_learn.py`` prints markdown tables; ``--quick`` uses 3 of the 10 seeds and omits
the fits with 1,000 rows. ``--classes`` or ``--numbers`` prints one of the two tables.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
from scipy.stats import norm

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

SIZES = [(n, d) for n in (50, 200, 1000) for d in (5, 20)]
FRESH = 2000
COLUMNS = "gain", "worst", "δ", "γ", "σ / spread", "width", "s a fit", "warnings"


def numbers(n: int, d: int, seed: int) -> list[float]:
    rng = np.random.default_rng(seed)
    X, X_new = rng.normal(size=(n, d)), rng.normal(size=(FRESH, d))
    y, y_new = rng.normal(size=n), rng.normal(size=FRESH)
    model = LaplaceRegressor(random_state=seed).fit(X, y)
    gain = model.log_predictive_density(X_new, y_new).mean() - norm(y.mean(), y.std()).logpdf(y_new).mean()
    width = model.predict_std(X_new).mean() / y.std()
    return [gain, float(model.prior_precision_), model.n_effective_parameters_, model.sigma_noise_ / y.std(), width]


def labels(n: int, d: int, seed: int, n_classes: int) -> list[float]:
    rng = np.random.default_rng(seed)
    X, X_new = rng.normal(size=(n, d)), rng.normal(size=(FRESH, d))
    y, y_new = (rng.integers(n_classes, size=size) for size in (n, FRESH))
    model = LaplaceClassifier(random_state=seed).fit(X, y)
    frequencies = np.bincount(y, minlength=n_classes) / n
    gain = model.predict_log_proba(X_new)[np.arange(FRESH), y_new].mean() - np.log(frequencies)[y_new].mean()
    return [gain, float(model.prior_precision_), model.n_effective_parameters_, np.nan, np.nan]


def row(measure: Callable[[int], list[float]], n_seeds: int) -> dict[str, float]:
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = np.array([measure(seed) for seed in range(n_seeds)])
    gain, delta, gamma, noise, width = found.T
    seconds = (time.perf_counter() - start) / n_seeds
    cells = (
        gain.mean(), gain.min(), np.median(delta), gamma.mean(), noise.mean(), width.mean(), seconds, float(len(caught))
    )  # fmt: skip
    return dict(zip(COLUMNS, cells, strict=True))


def table(title: str, rows: Iterator[tuple[str, dict[str, float]]]) -> None:
    print("", title, "", "| case | " + " | ".join(COLUMNS) + " |", "|---|" + "---|" * len(COLUMNS), sep="\n")
    for name, cells in rows:
        shown = ["–" if np.isnan(value) else f"{value:.3g}" for value in cells.values()]
        print(f"| {name} | " + " | ".join(shown) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--quick", "--numbers", "--classes"):
        parser.add_argument(name, action="store_true")
    options = parser.parse_args()
    n_seeds = 3 if options.quick else 10
    sizes = [(n, d) for n, d in SIZES if n < 1000 or not options.quick]
    if not options.classes:
        cases = ((f"{n} rows, {d} columns", row(lambda s, n=n, d=d: numbers(n, d, s), n_seeds)) for n, d in sizes)
        table("Numbers", cases)
    if not options.numbers:
        cases = (
            (f"{k} classes, {n} rows, {d} columns", row(lambda s, n=n, d=d, k=k: labels(n, d, s, k), n_seeds))
            for k in (2, 3)
            for n, d in sizes
        )
        table("Classes", cases)


if __name__ == "__main__":
    main()
