"""Coverage of prediction intervals: over all rows of a table, and in the worst of three groups of rows.

For each table, the coverage minus the level of ``predict_interval(X, levels)`` is pooled over its splits, for the
levels .5, .8, .9 and .95. The model is ``LaplaceRegressor(random_state=split)``. The three groups are thirds of the
rows, ordered by predicted standard deviation; the smallest coverage of the three is shown. *Within* means that all four
coverages differ from their level by at most .02. *Groups* means that no group is more than .05 below its level. The
last column is the mean width of the 90 % interval.

Deviations below the sampling error cannot be detected: with 300 independent rows, the standard error is .029 at the
level .5 and .013 at .95.

``python examples/benchmarks/intervals.py --data DIR --out OUT --test`` scores the test parts; without ``--test``, a
ninth of each training part is held out and scored. DIR holds the folders ``uci_regression``, ``regression_folds`` and
``tables``. The script writes ``intervals.csv`` (a line for each table) and ``intervals_rows.csv`` (a line for each
scored row). A later run computes only the missing splits. ``--noise 3`` multiplies the noise level of the fitted model
by three, with ``refit_laplace``. ``--rows 3000`` fits at most this number of rows, and scores up to 4,000 others.
Further options are ``--splits`` and ``--only``. ``--quick`` needs no data: it uses Friedman's function with 300 rows.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Iterator
from pathlib import Path

import many_rows
import numpy as np
import torch
from uci_sets import header, line

from sklearn_laplace import LaplaceRegressor

LEVELS = 0.5, 0.8, 0.9, 0.95
TABLES = {"yacht": 10, "boston": 10, "energy": 10, "concrete": 10, "autompg": 5, "stock": 5} | {
    **{name: splits for name, (_, splits) in many_rows.MASKED.items()},
    **dict.fromkeys(many_rows.CSV, 1),
}
"""Tables and their numbers of splits."""
GROUPS, NEAR, BELOW, MOST_JUDGED = 3, 0.02, 0.05, 4000
COLUMNS = (
    "table",
    "rows",
    *(f"at {level:g}" for level in LEVELS),
    *(f"worst at {level:g}" for level in LEVELS),
    "within",
    "groups",
    "width",
)


def parts(data: Path | None, name: str, split: int, most: int | None, *, test: bool) -> tuple:
    """Training rows and scored rows."""
    if data is None:
        X, y = many_rows.friedman(1300)
        return X[:300], y[:300], X[300:], y[300:]
    X, y, X_new, y_new = many_rows.parts(data, name, split, test=test)
    if most is None or len(y) <= most:
        return X, y, X_new, y_new
    order = np.random.default_rng(split).permutation(len(y))
    spare = order[most : most + MOST_JUDGED]
    return X.iloc[order[:most]], y[order[:most]], X.iloc[spare], y[spare]


def judged(model: LaplaceRegressor, X: object, y: np.ndarray) -> Iterator[list[float | str]]:
    """Predicted standard deviation, hits at all levels, and width of the 90 % interval, for each row."""
    std, ends = model.predict_std(X), model.predict_interval(X, LEVELS)[1]
    hits = (ends[:, 0] <= y[:, None]) & (y[:, None] <= ends[:, 1])
    widths = ends[:, 1, 2] - ends[:, 0, 2]
    for n in range(len(y)):
        yield [f"{std[n]:.6g}", "".join(map(str, hits[n].astype(int))), f"{widths[n]:.6g}"]


def summary(name: str, rows: list[list[str]]) -> list[float | str]:
    """Line of the table for one data set."""
    order = np.argsort([float(row[0]) for row in rows], kind="stable")
    hits = np.array([[int(hit) for hit in row[1]] for row in rows])
    off = hits.mean(0) - LEVELS
    worst = np.min([hits[group].mean(0) - LEVELS for group in np.array_split(order, GROUPS)], axis=0)
    width = np.mean([float(row[2]) for row in rows])
    near = "yes" if (np.abs(off) <= NEAR).all() else "no"
    safe = "yes" if (worst >= -BELOW).all() else "no"
    shown = [f"{value:+.3f}" for value in (*off, *worst)]
    return [name, str(len(rows)), *shown, near, safe, f"{width:.4g}"]


def run(options: argparse.Namespace, path: Path) -> dict[str, list[list[str]]]:
    """Fit the missing splits, and return all rows by table."""
    found: dict[str, list[list[str]]] = {}
    done = set()
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            for name, split, *row in csv.reader(file):
                found.setdefault(name, []).append(row)
                done.add((name, int(split)))
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for name in options.only.split(",") if options.only else TABLES:
            for split in range(min(options.splits or TABLES[name], TABLES[name])):
                if (name, split) in done:
                    continue
                X, y, X_new, y_new = parts(options.data, name, split, options.rows, test=options.test)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # constant columns, noise that is wrong on purpose
                    model = LaplaceRegressor(random_state=split).fit(X, y)
                    if options.noise != 1:
                        model.refit_laplace(sigma_noise=options.noise * model.sigma_noise_)
                    rows = [[str(cell) for cell in row] for row in judged(model, X_new, y_new)]
                writer.writerows([name, split, *row] for row in rows)
                file.flush()
                found.setdefault(name, []).extend(rows)
                print(f"{name} {split}: {len(y)} rows fitted", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of uci_regression, regression_folds and tables")
    parser.add_argument("--out", type=Path, default=Path("intervals"), help="folder of the CSVs")
    parser.add_argument("--only", default="", help="names of tables, as in yacht,boston")
    parser.add_argument("--splits", type=int, help="number of splits, all by default")
    parser.add_argument("--rows", type=int, help="maximum number of rows to fit")
    parser.add_argument("--noise", type=float, default=1.0, help="factor of the noise level of the fitted model")
    parser.add_argument("--test", action="store_true", help="score the test parts: for final results only")
    parser.add_argument("--quick", action="store_true", help="Friedman's function with 300 rows")
    options = parser.parse_args()
    if options.quick:
        options.data, options.only, options.splits, options.test = None, "friedman", 1, False
        TABLES["friedman"] = 1
    elif options.data is None:
        parser.error("--data is required without --quick")
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    found = run(options, options.out / "intervals_rows.csv")
    lines = [summary(name, found[name]) for name in TABLES if name in found]
    with (options.out / "intervals.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *lines])
    print(header("Coverage minus level", COLUMNS))
    for each in lines:
        print(line(each))
    near, safe = (sum(each[place] == "yes" for each in lines) for place in (-3, -2))
    print(f"within on {near} of {len(lines)} tables, groups on {safe}")


if __name__ == "__main__":
    main()
