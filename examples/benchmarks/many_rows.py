"""Regression with a thousand rows or more: quality and time of a default fit, compared with boosted trees.

The models are ``LaplaceRegressor(random_state=split)`` in one configuration, and ``HistGradientBoostingRegressor()``.
For the trees, a first fit holds out a tenth of the rows, whose errors give one standard deviation for all rows.
CatBoost with ``loss_function="RMSEWithUncertainty"`` and NGBoost are added if they are installed. All models run in
one process, one after the other, on ``--threads`` threads. RMSE and log-likelihood (nats per row) are in the units of
y; coverage is that of central 90 % intervals.

``python examples/benchmarks/many_rows.py --data DIR --out OUT`` scores held-out rows of the training parts; with
``--test`` it scores the test parts. DIR holds the folders ``uci_regression``, ``regression_folds`` and ``tables``. The
script writes ``many_rows.csv``, one line for each table, split and model, and prints the means.

``--sizes 300,1000,3000`` fits these numbers of rows of a few tables instead. Seconds and log-likelihood are written to
``sizes.csv`` and drawn as ``sizes.png``. ``--prototype FILE`` adds a model: a Python file with a function
``fit_predict(X, y, X_new, seed)``, whose first two results are mean and standard deviation. Its options ``o.K``,
``o.h`` and ``o.epochs`` are members, hidden units and epochs. ``--option name=value`` replaces all models by a default
fit with this option. ``--quick`` needs no data: it uses Friedman's function with 300 and 1,500 rows.
``--memory 1000000`` fits this number of rows of Friedman's function, and prints seconds and the growth of the peak
resident memory.
"""

from __future__ import annotations

import argparse
import ast
import csv
import resource
import runpy
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingRegressor

from sklearn_laplace import LaplaceRegressor

try:
    from catboost import CatBoostRegressor
except ImportError:
    CatBoostRegressor = None
try:
    from ngboost import NGBRegressor
except ImportError:
    NGBRegressor = None

MASKED = {
    "power": ("uci_regression", 5),
    "naval": ("uci_regression", 10),
    "wine": ("uci_regression", 10),
    "elevators": ("regression_folds", 2),
    "sml": ("regression_folds", 2),
}
"""Tables with masks of their test rows: the folder and the number of splits."""
FOLDS = "autompg", "stock"
"""Small tables for other scripts that use :func:`parts`."""
CSV = {
    "california": ("california_housing", "median_house_value", ()),
    "diamonds": ("diamonds", "price", ()),
    "bike": ("bike_sharing_hourly", "count", ("casual", "registered", "instant")),
}
"""Tables of mixed types: file, target and columns to omit; a fifth of the rows is the test part."""
HELD_OUT = 9
"""Without ``--test``, one in this many training rows is held out and scored."""
LEVEL = 0.9
PROTOTYPE_ROWS, PROTOTYPE_SMALL, PROTOTYPE_LARGE = 2000, (8, 64, 400), (4, 128, 60)
"""Maximum number of rows for the first of two settings of the prototype (members, hidden units, epochs)."""
MOST_INDICATORS = 50
"""Maximum number of levels of a category for the prototype; larger categories are omitted."""
MOST_LEVELS = 200
"""Maximum number of levels of a category for scikit-learn's trees; larger ones, such as dates, become ordinal."""
COLUMNS = ("table", "split", "model", "rows", "RMSE", "log-likelihood", "coverage", "seconds")
Prediction = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Mean, log density, and lower and upper end of the interval."""


def friedman(n_rows: int = 30_000) -> tuple[pd.DataFrame, np.ndarray]:
    """Friedman's first function with twenty columns and noise of standard deviation one."""
    random = np.random.default_rng(0)
    X = random.uniform(size=(n_rows, 20))
    mean = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    return pd.DataFrame(X, columns=[f"x{k}" for k in range(20)]), mean + random.normal(size=n_rows)


def parts(
    data: Path, name: str, split: int, *, test: bool
) -> tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray]:
    """Training rows and scored rows."""
    if name == "friedman":
        X, y = friedman()
        outside = np.arange(len(y)) % 5 == 0
    elif name in CSV:
        file, target, dropped = CSV[name]
        X = pd.read_csv(data / "tables" / f"{file}.csv.gz").rename(columns={"cnt": "count"})
        X = X.drop(columns=[column for column in dropped if column in X])
        y = X.pop(target).to_numpy(float)
        outside = np.zeros(len(y), dtype=bool)
        outside[np.random.default_rng(split).permutation(len(y))[: len(y) // 5]] = True
    else:
        folder = MASKED[name][0] if name in MASKED else "uci_regression"
        folder = "regression_folds" if name in FOLDS else folder
        with np.load(data / folder / f"{name}.npz") as table:
            values, y, outside = table["X"].astype(float), table["y"].astype(float).ravel(), table["test_masks"][split]
        X = pd.DataFrame(values, columns=[f"x{k}" for k in range(values.shape[1])])
    outside = outside.astype(bool)
    if not test:
        kept = np.flatnonzero(~outside)
        X, y = X.iloc[kept], y[kept]
        outside = np.random.default_rng(100 + split).permutation(len(y)) % HELD_OUT == 0
    return X[~outside], y[~outside], X[outside], y[outside]


def ours(X: pd.DataFrame, y: np.ndarray, seed: int, **options: Any) -> Callable[[pd.DataFrame, np.ndarray], Prediction]:
    """Predictions of LaplaceRegressor with its defaults, or with other options."""
    model = LaplaceRegressor(random_state=seed, **options).fit(X, y)

    def answer(X: pd.DataFrame, y: np.ndarray) -> Prediction:
        mean, interval = model.predict_interval(X, LEVEL)
        return mean, model.log_predictive_density(X, y), interval[:, 0], interval[:, 1]

    return answer


def normal(mean: np.ndarray, std: Any, y: np.ndarray) -> Prediction:
    """Mean, log density of y, and interval under a normal distribution."""
    reach = norm.ppf((1 + LEVEL) / 2) * std
    return mean, norm.logpdf(y, mean, std), mean - reach, mean + reach


def coding(X: pd.DataFrame) -> tuple[list[str], Callable[[pd.DataFrame], pd.DataFrame]]:
    """Text columns with few levels, and a function that replaces text by numbers in alphabetical order."""
    levels = {name: np.unique(X[name].astype(str)) for name in X.select_dtypes(exclude="number")}

    def coded(X: pd.DataFrame) -> pd.DataFrame:
        return X.assign(**{name: np.searchsorted(known, X[name].astype(str)) for name, known in levels.items()})

    return [name for name, known in levels.items() if len(known) < MOST_LEVELS], coded


def ngboost(X: pd.DataFrame, y: np.ndarray, seed: int) -> Callable[[pd.DataFrame, np.ndarray], Prediction]:
    """NGBoost with its defaults: a normal distribution for each row. Missing numbers are medians."""
    _, coded = coding(X)
    medians = coded(X).median()

    def filled(X: pd.DataFrame) -> np.ndarray:
        return coded(X).fillna(medians).to_numpy(float)

    model = NGBRegressor(random_state=seed, verbose=False).fit(filled(X), y)

    def answer(X: pd.DataFrame, y: np.ndarray) -> Prediction:
        found = model.pred_dist(filled(X))
        return normal(found.loc, found.scale, y)

    return answer


def boosting(X: pd.DataFrame, y: np.ndarray, seed: int) -> Callable[[pd.DataFrame, np.ndarray], Prediction]:
    """scikit-learn's boosted trees, with the standard deviation of held-out residuals."""
    few, coded = coding(X)
    held = np.random.default_rng(seed).permutation(len(y)) % 10 == 0
    forest = HistGradientBoostingRegressor(categorical_features=few, random_state=seed)
    std = np.sqrt(np.mean((forest.fit(coded(X[~held]), y[~held]).predict(coded(X[held])) - y[held]) ** 2))
    forest.fit(coded(X), y)
    return lambda X, y: normal(forest.predict(coded(X)), std, y)


def catboost(X: pd.DataFrame, y: np.ndarray, seed: int) -> Callable[[pd.DataFrame, np.ndarray], Prediction]:
    """CatBoost with a normal distribution for each row."""
    moments = catboost_moments(X, y, seed)
    return lambda X, y: normal(*moments(X), y)


def catboost_moments(
    X: pd.DataFrame, y: np.ndarray, seed: int
) -> Callable[[pd.DataFrame], tuple[np.ndarray, np.ndarray]]:
    """Function from rows to mean and standard deviation of CatBoost with ``RMSEWithUncertainty``."""
    named = list(X.select_dtypes(exclude="number"))
    unit = float(np.std(y)) or 1.0

    def filled(X: pd.DataFrame) -> pd.DataFrame:
        return X.assign(**{name: X[name].astype(str) for name in named})

    model = CatBoostRegressor(
        loss_function="RMSEWithUncertainty",
        verbose=0,
        random_seed=seed,
        thread_count=torch.get_num_threads(),
        cat_features=named,
        allow_writing_files=False,
    )
    model.fit(filled(X), y / unit)

    def moments(X: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = model.predict(filled(X)).T
        return unit * mean, unit * np.sqrt(variance)

    return moments


def prototype(
    file: Path, X_new: pd.DataFrame, X: pd.DataFrame, y: np.ndarray, seed: int
) -> Callable[[pd.DataFrame, np.ndarray], Prediction]:
    """Model of a separate file, which trains and predicts the new rows. Categories become indicators."""
    both = pd.concat([X, X_new])
    numbers = both.select_dtypes("number")
    named = both.select_dtypes(exclude="number")
    named = named[[name for name in named if named[name].nunique() < MOST_INDICATORS]]
    columns = [numbers.fillna(numbers.median()), *([pd.get_dummies(named)] if len(named.columns) else [])]
    rows = pd.concat(columns, axis=1).to_numpy(float)
    arguments, sys.argv[1:] = sys.argv[1:], []
    program = runpy.run_path(str(file), run_name="prototype")
    sys.argv[1:] = arguments
    options = program["o"]
    options.K, options.h, options.epochs = PROTOTYPE_SMALL if len(y) <= PROTOTYPE_ROWS else PROTOTYPE_LARGE
    mean, std, _ = program["fit_predict"](rows[: len(y)], y, rows[len(y) :], seed)
    return lambda X, y: normal(mean, std, y)


MODELS = {"default": ours, "HistGradientBoosting": boosting}
MODELS |= {"CatBoost": catboost} if CatBoostRegressor else {}
MODELS |= {"NGBoost": ngboost} if NGBRegressor else {}


def judged(
    fit: Callable[..., Any], X: pd.DataFrame, y: np.ndarray, X_new: pd.DataFrame, y_new: np.ndarray, seed: int
) -> tuple[float, ...]:
    """RMSE, log-likelihood, coverage and seconds of the fit."""
    start = time.perf_counter()
    answer = fit(X, y, seed)
    seconds = time.perf_counter() - start
    mean, density, low, high = answer(X_new, y_new)
    rmse = float(np.sqrt(np.mean((mean - y_new) ** 2)))
    return rmse, float(np.mean(density)), float(np.mean((low <= y_new) & (y_new <= high))), seconds


def table_of(found: list[tuple[Any, ...]]) -> str:
    """Means over the splits, in markdown."""
    frame = pd.DataFrame(found, columns=COLUMNS).drop(columns="split")
    means = frame.groupby(["table", "rows", "model"], sort=False).mean().reset_index()
    lines = ["| " + " | ".join(means.columns) + " |", "|" + "---|" * len(means.columns)]
    lines += [
        "| " + " | ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row) + " |" for row in means.values
    ]
    return "\n".join(lines)


def write(path: Path, found: list[tuple[Any, ...]]) -> None:
    """Write one line for each result."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *found])


def draw(path: Path, found: list[tuple[Any, ...]]) -> None:
    """Draw seconds and log-likelihood against the number of rows."""
    import matplotlib.pyplot as plt

    frame = pd.DataFrame(found, columns=COLUMNS)
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for names, own in frame.groupby(["table", "model"], sort=False):
        axes[0].plot(own.rows, own.seconds, marker="o", label=", ".join(names))
        axes[1].plot(own.rows, own["log-likelihood"] - own["log-likelihood"].iloc[0], marker="o")
    axes[0].set(xscale="log", yscale="log", xlabel="rows", ylabel="seconds of a fit")
    axes[1].set(xscale="log", xlabel="rows", ylabel="log-likelihood gained, nats a row")
    axes[0].legend()
    figure.savefig(path, dpi=120)


def of_memory(n_rows: int) -> None:
    """Print seconds, memory, RMSE and log-likelihood of a default fit of Friedman's function."""
    frame, targets = friedman(n_rows + 10_000)
    rows = frame.to_numpy()
    scale = 2**20 if sys.platform != "darwin" else 2**30
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    model = LaplaceRegressor(random_state=0).fit(rows[:n_rows], targets[:n_rows])
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = model.predict(rows[n_rows:]) - targets[n_rows:]
    density = model.log_predictive_density(rows[n_rows:], targets[n_rows:]).mean()
    print(f"{n_rows} rows: {seconds:.0f} s, {(after - before) / scale:.2f} GB above the data, ", end="")
    print(f"RMSE {np.sqrt(np.mean(error**2)):.4f}, log-likelihood {density:.4f}")


def main() -> None:
    """Run the benchmark; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the tables; Friedman's function needs none")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--test", action="store_true", help="score the test parts")
    parser.add_argument("--only", help="names of tables, separated by commas")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--sizes", help="numbers of rows, separated by commas")
    parser.add_argument("--splits", type=int, help="maximum number of splits of each table")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--option", action="append", default=[], help="name=value of LaplaceRegressor, in place of all")
    parser.add_argument("--prototype", type=Path, help="file of another training")
    parser.add_argument("--quick", action="store_true", help="Friedman's function with 300 and 1,500 rows")
    parser.add_argument("--memory", type=int, help="rows of Friedman's function for a measurement of memory")
    options = parser.parse_args()
    if options.quick:
        options.only, options.sizes = "friedman", "300,1500"
    models = dict(MODELS)
    for option in options.option:
        name, _, value = option.partition("=")
        models[option] = partial(ours, **{name: ast.literal_eval(value)})
    labels = options.option or [*filter(None, options.models.split(",")), *(["prototype"] if options.prototype else [])]
    torch.set_num_threads(options.threads)
    if options.memory:
        of_memory(options.memory)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    sizes = [int(size) for size in options.sizes.split(",")] if options.sizes else [0]
    usual = "california,diamonds,bike,friedman" if options.sizes else ",".join([*MASKED, *CSV])
    results: list[tuple[Any, ...]] = []
    for name in (options.only or usual).split(","):
        n_splits = min(MASKED.get(name, ("", 1))[1], options.splits or 10)
        for split in range(1 if options.sizes else n_splits):
            X, y, X_new, y_new = parts(options.data, name, split, test=options.test)
            if options.prototype:
                models["prototype"] = partial(prototype, options.prototype, X_new)
            for size in sizes:
                chosen = np.random.default_rng(split).permutation(len(y))[: size or len(y)]
                for label in labels:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        numbers = judged(models[label], X.iloc[chosen], y[chosen], X_new, y_new, split)
                    results.append((name, split, label, len(chosen), *numbers))
                    print(*results[-1][:4], *(f"{value:.4g}" for value in numbers), flush=True)
                    write(options.out / ("sizes.csv" if options.sizes else "many_rows.csv"), results)
    print(table_of(results))
    if options.sizes:
        draw(options.out / "sizes.png", results)


if __name__ == "__main__":
    main()
