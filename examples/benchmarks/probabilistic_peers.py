"""Predictive distributions of the default and of peers: log-likelihood, CRPS and seconds on all development tables.

The peers are those of ``distribution_peers.py``: CatBoost with uncertainty, NGBoost, PGBM, treeffuser, a quantile
forest, a Gaussian process, laplace-torch, deep ensembles, bde, RealMLP and TabM. ``default`` is
``LaplaceRegressor(random_state=split)``. All models run in one process on one thread: set ``OMP_NUM_THREADS=1`` and
``OMP_WAIT_POLICY=passive``. Otherwise, waiting threads of PGBM count as processor time. Peers that are not installed
are omitted with a message.

``python examples/benchmarks/probabilistic_peers.py --data DIR --out OUT`` scores a ninth of each training part, held
out of the fit; with ``--test`` it scores the test parts. DIR holds the folders ``uci_regression``, ``regression_folds``
and ``tables``. ``--rows N`` limits the training rows and ``--judged N`` the scored rows; both are drawn at random. The
script writes ``peers_inner.csv`` or ``peers_test.csv``, with one line for each table, split and model. A line has
log-likelihood (nats per row), CRPS and RMSE (units of y), coverage of 90 % intervals, and processor seconds of the fit.
Scores of single rows are in the folder ``rows``. A second call computes only missing lines, so that peers of another
environment can be added.

The script prints a line for each result, and then three tables. The tables are also written to
``probabilistic_peers.csv`` (all scores and seconds), ``probabilistic_wins.csv`` and ``probabilistic_losses.csv``.
``--report`` only prints and writes these tables. ``--quick`` runs two cheap models on 300 rows of Friedman's function,
without data.

``--models "CatBoost,one net"`` also fits a single net with the evidence, the cheapest fit of this package. The tables
omit it.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import distribution_peers
import many_rows
import numpy as np
import pandas as pd
import quality_report
import quality_sets
import torch
import uci_sets

FOLDERS = dict.fromkeys(["yacht", "boston", "energy", "concrete", "wine", "power", "naval"], "uci_regression")
FOLDERS |= dict.fromkeys(["autompg", "stock", "sml", "elevators"], "regression_folds")
CSVS = {"california": "california_housing", "bike": "bike_sharing_hourly", "diamonds": "diamonds"}
TABLES = ("yacht", "autompg", "boston", "energy", "stock", "concrete", "wine", "sml", "power", "naval", "elevators",
          *CSVS)  # fmt: skip
"""Small tables first."""
SPLITS = dict.fromkeys(TABLES, 1) | dict.fromkeys(["yacht", "boston", "energy", "concrete", "wine"], 10)
SPLITS |= dict.fromkeys(["autompg", "stock", "sml", "elevators", "power", "naval", *CSVS], 5)
"""Number of splits of each table."""
LEVEL, WARM = 0.9, 100
SCORES = {"log-likelihood": 1, "CRPS": -1}
"""Compared scores, with 1 if larger values are better and −1 if smaller ones are."""
COLUMNS = ("table", "split", "model", "rows", "judged", *SCORES, "RMSE", "coverage", "seconds")
OURS, CLOCK = "default", "CatBoost"
"""Our model, and the one whose fit time is the unit of all others."""
FACTOR = 3.0
"""Maximum fit time of a win, in fit times of CatBoost."""


def parts(data: Path | None, name: str, split: int, options: argparse.Namespace) -> tuple[Any, ...]:
    """Training rows and scored rows of a table: data frame and targets of each."""
    if name == "friedman":
        X, y = many_rows.friedman(600)
        return X[:300], y[:300], X[300:], y[300:]
    if name in CSVS:
        path = data / "tables" / f"{CSVS[name]}.csv.gz"
        X, y, X_new, y_new = quality_sets.table_parts(path, split, options.test, None)
    else:
        found = uci_sets.parts(data / FOLDERS[name] / f"{name}.npz", split, options.test)
        X, y, X_new, y_new = (_frame(part) if part.ndim == 2 else part.astype(float) for part in found)
    kept = np.random.default_rng(split).permutation(len(y))[: options.rows]
    judged = np.random.default_rng(split).permutation(len(y_new))[: options.judged]
    return X.iloc[kept].reset_index(drop=True), y[kept], X_new.iloc[judged].reset_index(drop=True), y_new[judged]


def _frame(values: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(values.astype(float), columns=[f"x{k}" for k in range(values.shape[1])])


def judged(distribution: Any, y: np.ndarray) -> dict[str, np.ndarray]:
    """Scores (n,) of each row, by name; "RMSE" has squared errors."""
    low, high = distribution.interval(LEVEL)
    return {
        "log-likelihood": distribution.logpdf(y),
        "CRPS": distribution.crps(y),
        "RMSE": (distribution.mean() - y) ** 2,
        "coverage": (low <= y) & (y <= high),
    }


# ---------------------------------------------------------------------- running and resuming


def run(options: argparse.Namespace, tables: Sequence[str], path: Path) -> None:
    """Append the missing results to the CSV, in the order of splits, families and tables."""
    known = {(row["table"], int(row["split"]), row["model"]) for row in read(path)}
    warm = set(distribution_peers.SLOW)
    for split in range(options.first, max(count_of(name, options) for name in tables)):
        for family, models in distribution_peers.FAMILIES.items():
            wanted = set(models).intersection(options.models.split(",") if options.models else listed())
            for name in tables:
                missing = {model for model in wanted if (name, split, model) not in known}
                if split >= count_of(name, options) or not missing:
                    continue
                try:
                    if not warm.intersection(models):
                        _warm_up(family)
                        warm.update(models)
                    _run(family, missing, name, split, options, path)
                except Exception as error:  # a peer that fails must not end the run of all others
                    print(f"{name} {split} {', '.join(models)}: {type(error).__name__}: {str(error)[:200]}", flush=True)


def listed() -> list[str]:
    """Models of a run without ``--models``, and of the report."""
    names = itertools.chain(*distribution_peers.FAMILIES.values())
    return [name for name in names if name not in distribution_peers.UNLISTED]


def _warm_up(family: Any) -> None:
    """Fit a few rows, so that no measured fit loads or compiles anything."""
    X, y = many_rows.friedman(WARM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _, predictive, _ in family(X, y, 0):
            predictive(X)


def _run(family: Any, missing: set[str], name: str, split: int, options: argparse.Namespace, path: Path) -> None:
    X, y, X_new, y_new = parts(options.data, name, split, options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model, predictive, seconds in family(X, y, split):
            if model not in missing:
                continue
            start = time.process_time()
            found = judged(predictive(X_new), y_new)
            means = {score: float(np.mean(values)) for score, values in found.items()}
            means["RMSE"] = means["RMSE"] ** 0.5
            write(path, {"table": name, "split": split, "model": model, "rows": len(y), "judged": len(y_new),
                         **means, "seconds": seconds})  # fmt: skip
            np.savez(folder_of(path) / f"{name}_{split}_{model}.npz", **found)
            print(f"{name} {split} {model}: {', '.join(f'{k} {v:.4g}' for k, v in means.items())}, {seconds:.1f} s, "
                  f"scored in {time.process_time() - start:.1f} s", flush=True)  # fmt: skip


def count_of(name: str, options: argparse.Namespace) -> int:
    """Number of splits of a table."""
    return min(SPLITS.get(name, 1), options.splits or 10)


def folder_of(path: Path) -> Path:
    """Folder of the scores of single rows."""
    return path.parent / "rows" / path.stem


def read(path: Path) -> list[dict[str, str]]:
    """Lines of a CSV; none if it does not exist."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path: Path, row: dict[str, Any]) -> None:
    """Append one line."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(row)


# ---------------------------------------------------------------------- report


def gain(frame: pd.DataFrame, path: Path, name: str, peer: str, score: str) -> tuple[float, float]:
    """Mean improvement of the default over a peer, on the splits of both, and its standard error.

    For three splits or more, the error is that of Nadeau & Bengio (2003); otherwise it is computed over the rows.
    """
    both = frame[(frame.table == name) & frame.model.isin([OURS, peer])]
    both = both.pivot(index="split", columns="model", values=[score, "rows", "judged"]).dropna()
    first, second = (SCORES[score] * both[score][model].to_numpy() for model in (OURS, peer))
    share = float((both["judged"][OURS] / both["rows"][OURS]).mean())
    mean, error = quality_report.paired(first, second, share)
    if len(both) < 3:
        rows = [
            np.load(folder_of(path) / f"{name}_{split}_{OURS}.npz")[score]
            - np.load(folder_of(path) / f"{name}_{split}_{peer}.npz")[score]
            for split in both.index
        ]
        differences = np.concatenate(rows)
        error = float(differences.std(ddof=1) / len(differences) ** 0.5)
    return mean, error


def report(path: Path) -> dict[str, list[list[str]]]:
    """Tables by name: scores of all models, wins by peer, and all losses. The first line of each is the header."""
    frame = pd.read_csv(path)
    tables = [name for name in [*TABLES, "friedman"] if name in set(frame.table[frame.model == OURS])]
    models = [model for model in listed() if model in set(frame.model)]
    others = [model for model in models if model != OURS]
    clock = frame[frame.model == CLOCK].set_index(["table", "split"]).seconds
    frame["ratio"] = frame.seconds / clock.reindex(pd.MultiIndex.from_frame(frame[["table", "split"]])).to_numpy()
    cells = frame.groupby(["table", "model"])
    medians = cells[[*SCORES, "ratio", "seconds"]].median()
    scores = [["table", "rows", "splits", *models]]
    for name in tables:
        own = frame[(frame.table == name) & (frame.model == OURS)]
        shown = [_cell(medians.loc[name, model]) if (name, model) in medians.index else "–" for model in models]
        scores.append([name, str(int(own.rows.median())), str(len(own)), *shown])
    losses = [["table", "score", "peer", "ours − peer", "± s.e."]]
    gains = {
        (name, peer, score): gain(frame, path, name, peer, score)
        for name in tables for peer in others if (name, peer) in medians.index for score in SCORES
    }  # fmt: skip
    for (name, peer, score), (mean, error) in gains.items():
        if mean <= 0:
            losses.append([name, score, peer, f"{SCORES[score] * mean:.4g}", f"{error:.2g}"])
    wins = [["peer", "tables", *(f"{score} won" for score in SCORES), "median fit time, × CatBoost"]]
    for peer in others:
        won = [[mean > 0 for (_, other, s), (mean, _) in gains.items() if other == peer and s == score]
               for score in SCORES]  # fmt: skip
        ratio = medians.xs(peer, level="model").ratio.median()
        wins.append([peer, str(len(won[0])), *(str(sum(each)) for each in won), f"{ratio:.2g}"])
    first = [[all(mean > 0 for (own, _, s), (mean, _) in gains.items() if own == name and s == score)
              for name in tables] for score in SCORES]  # fmt: skip
    quick = [medians.loc[(name, OURS)].ratio <= FACTOR for name in tables]
    ratio = medians.xs(OURS, level="model").ratio.median()
    wins.append(["all at once", str(len(tables)), *(str(sum(each)) for each in first), f"{ratio:.2g} (default)"])
    both = np.logical_and(*first)
    print(f"\nfirst in both: {both.sum()} of {len(tables)}; in both and at most {FACTOR:g} × CatBoost's time: "
          f"{np.logical_and(both, quick).sum()}; time at most {FACTOR:g} ×: {sum(quick)}")  # fmt: skip
    return {"probabilistic_peers": scores, "probabilistic_wins": wins, "probabilistic_losses": losses}


def _cell(row: pd.Series) -> str:
    return f"{row['log-likelihood']:.3f} / {row['CRPS']:.4g} / {row['seconds']:.2g}"


def main() -> None:
    """Run the benchmark; see the module docstring."""
    options = arguments()
    torch.set_num_threads(1)
    path = options.out / f"peers_{'test' if options.test else 'inner'}.csv"
    folder_of(path).mkdir(parents=True, exist_ok=True)
    tables = ["friedman"] if options.quick else options.only.split(",") if options.only else list(TABLES)
    if not options.report:
        run(options, tables, path)
    for name, lines in report(path).items():
        with (options.out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)
        print(uci_sets.header(name, lines[0]))
        for line in lines[1:]:
            print(uci_sets.line(line))


def arguments() -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the tables; Friedman's function needs none")
    parser.add_argument("--out", type=Path, default=Path("probabilistic_peers"), help="folder of the results")
    parser.add_argument("--test", action="store_true", help="score the test parts: for final results only")
    parser.add_argument("--only", help="names of tables, separated by commas")
    parser.add_argument("--models", help="names of models, separated by commas")
    parser.add_argument("--splits", type=int, help="maximum number of splits of each table")
    parser.add_argument("--first", type=int, default=0, help="first split")
    parser.add_argument("--rows", type=int, help="maximum number of training rows")
    parser.add_argument("--judged", type=int, help="maximum number of scored rows")
    parser.add_argument("--report", action="store_true", help="only print the tables of the results so far")
    parser.add_argument("--quick", action="store_true", help="two cheap peers on Friedman's function")
    options = parser.parse_args()
    if options.quick:
        options.models = "default,deep ensemble"
    known = {model for models in distribution_peers.FAMILIES.values() for model in models}
    if options.models and (unknown := set(options.models.split(",")) - known):
        parser.error(f"unknown models {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}")
    return options


if __name__ == "__main__":
    main()
