"""Uncertainty far from the training rows and in gaps, with and without the variance added outside the data's range.

- **Distance.** Rows in 500 random directions, at 3, 10 and 100 standard deviations times √(number of columns).
  Classification: mean of the largest probability. Regression: median epistemic standard deviation, in standard
  deviations of y. ``glm`` is the linearised net alone, and ``auto`` is the default.
- **Later.** A classifier is trained on 1,000 rows of ten years, with the year as a column. The class does not depend on
  the year. The table has the log loss of 2,000 rows of a later year.
- **Scores.** Log loss or negative log-likelihood of the default on held-out rows of the development tables, and its
  difference from that of ``glm``.
- **Curves.** Five curves with a gap, 150 rows and noise std .1. The table has the share of the true curve within the
  90 % epistemic band: on the data, in the gap, and up to half a unit beyond the data.
- **Shifted.** AUROC of ``score_samples`` and of an isolation forest for changed rows. One column is multiplied by ten,
  two columns are swapped, or (in mixed tables) levels are unknown. The values are means over three choices of columns.
- **Pictures.** AUROC of ``score_samples`` and of the epistemic entropy of a classifier of digits, for 600 pictures of
  clothes against 600 further digits.

``python examples/benchmarks/far.py --data DIR --out OUT`` uses only inner parts of the tables, no test part. DIR holds
the folders of ``quality.py`` and ``class_peers.py``. ``--quick`` runs only the part *distance*, which needs no data.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import class_peers
import many_rows
import numpy as np
import pandas as pd
import quality_sets
import torch
from sklearn.base import is_classifier
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine, make_friedman1, make_moons
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from skorch import NeuralNetClassifier
from torch import nn
from uci_sets import header, line

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

DISTANCES = 3, 10, 100
REGRESSIONS = "boston", "concrete", "energy", "wine", "yacht", "autompg", "stock", "california", "diamonds", "bike"
MOST_ROWS = 1000
SHIFTED = ("satellite", 1000), ("magic", 1000), ("breast_cancer", 0), ("credit_g", 0), ("diamonds 3", 1000)
CURVES = {
    "sin 2x": lambda x: np.sin(2 * x),
    "sin 5x": lambda x: np.sin(5 * x),
    "cube": lambda x: x**3 / 8,
    "bump": lambda x: np.exp(-4 * x**2),
    "line and wave": lambda x: x / 2 + np.sin(3 * x) / 2,
}
SEEDS = 3
LEVEL = 1.6449


def directions(X: np.ndarray, distance: float) -> np.ndarray:
    """Rows (500, d) in random directions, at a distance from the mean of X."""
    drawn = np.random.default_rng(1).normal(size=(500, X.shape[1]))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return X.mean(0) + distance * X.std(0) * np.sqrt(X.shape[1]) * drawn


def own_net() -> NeuralNetClassifier:
    """Unfitted skorch classifier for two columns and two classes, as a user might pass it."""
    layers = nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)
    torch.manual_seed(0)
    options = {"criterion": nn.CrossEntropyLoss, "lr": 0.1, "max_epochs": 100, "verbose": 0}
    return NeuralNetClassifier(nn.Sequential(*layers), **options)


def by_distance() -> Iterator[list[Any]]:
    """Uncertainty at each distance, for both predictives; the last table is fitted with a user's net."""
    tables = {
        "moons": make_moons(200, noise=0.2, random_state=0),
        "breast cancer": load_breast_cancer(return_X_y=True),
        "wine": load_wine(return_X_y=True),
        "diabetes": load_diabetes(return_X_y=True),
        "Friedman": make_friedman1(300, noise=1.0, random_state=0),
        "moons, own net": make_moons(200, noise=0.2, random_state=0),
    }
    for name, (X, y) in tables.items():
        net = own_net() if name.endswith("own net") else None
        model = (LaplaceClassifier if len(np.unique(y)) < 9 else LaplaceRegressor)(net, random_state=0).fit(X, y)
        for predictive in ("glm", "auto" if net is None else "extrapolating"):
            model.refit_laplace(predictive=predictive)
            if is_classifier(model):
                found = [model.predict_proba(directions(X, k)).max(1).mean() for k in (0, *DISTANCES)]
                found[0] = model.predict_proba(X).max(1).mean()
            else:
                stds = [model.predict_std(directions(X, k), kind="epistemic") for k in (0, *DISTANCES)]
                stds[0] = model.predict_std(X, kind="epistemic")
                found = [np.median(std) / y.std() for std in stds]
            yield [name, predictive, *(float(value) for value in found)]


def of_years(years: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows with a year and two numbers, and classes that depend on the numbers."""
    X = np.column_stack([years, rng.normal(size=(len(years), 2))])
    return X, (4 * X[:, 1] + X[:, 2] + rng.logistic(size=len(years)) > 0).astype(int)


def later() -> Iterator[list[Any]]:
    """Log loss of the default in later years, and that of the linearised net alone."""
    rng = np.random.default_rng(0)
    model = LaplaceClassifier(random_state=0).fit(*of_years(rng.integers(2010, 2020, 1000), rng))
    for year in (2020, 2021, 2022, 2025):
        X, y = of_years(np.full(2000, year), rng)
        losses = []
        for predictive in ("auto", "glm"):
            p = model.refit_laplace(predictive=predictive).predict_proba(X)
            losses.append(float(-np.log(p[np.arange(2000), y]).mean()))
        yield [str(year), *losses]


def regression(data: Path, name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows and targets of a regression table, without the test part of its first split."""
    for folder in ("uci_regression", "regression_folds"):
        if (path := data / folder / f"{name}.npz").exists():
            with np.load(path) as held:
                kept = ~held["test_masks"][0].astype(bool)
                return pd.DataFrame(held["X"][kept]).rename(columns=str), held["y"].ravel()[kept]
    X, y = quality_sets.table(data / "tables" / f"{class_peers.NUMBERS[name]}.csv.gz")
    kept, _ = train_test_split(np.arange(len(y)), test_size=0.2, random_state=0)
    return X.iloc[kept].reset_index(drop=True), y[kept]


def scores(data: Path) -> Iterator[list[Any]]:
    """Scores of the default on held-out rows, and their difference from those of the linearised net alone."""
    for name, n_rows in class_peers.CASES:
        X, y, X_new, y_new = class_peers.parts(data, name, min(n_rows or MOST_ROWS, MOST_ROWS), 0, False)
        model = LaplaceClassifier(random_state=0).fit(X, y)

        def loss(model: Any = model, X_new: Any = X_new, y_new: Any = y_new) -> float:
            p = model.predict_proba(X_new)[np.arange(len(y_new)), np.searchsorted(model.classes_, y_new)]
            return float(-np.log(np.maximum(p, 1e-300)).mean())

        yield [name, len(y), *_both(model, X_new, loss)]
    for name in REGRESSIONS:
        X, y = regression(data, name)
        train, held = train_test_split(np.arange(len(y)), test_size=0.25, random_state=0)
        train, X_new, y_new = train[:MOST_ROWS], X.iloc[held], y[held]
        model = LaplaceRegressor(random_state=0).fit(X.iloc[train], y[train])

        def loss(model: Any = model, X_new: Any = X_new, y_new: Any = y_new) -> float:
            return -float(model.predict_dist(X_new).logpdf(y_new).mean())

        yield [name, len(train), *_both(model, X_new, loss)]


def _both(model: Any, X_new: Any, loss: Any) -> list[float]:
    """Share of rows outside, loss of the default, and its difference from that of the linearised net alone."""
    outside = float((np.asarray(model.outside(X_new)) > 0).any(1).mean())
    default = loss()
    model.refit_laplace(predictive="glm")
    return [outside, default, default - loss()]


def curves() -> Iterator[list[Any]]:
    """Shares of the true curve within the 90 % epistemic band, for each curve."""
    for name, curve in CURVES.items():
        shares = []
        for seed in range(SEEDS):
            rng = np.random.default_rng(seed)
            x = np.sort(np.concatenate([rng.uniform(-2, -0.7, 75), rng.uniform(0.7, 2, 75)]))
            y = curve(x) + 0.1 * rng.normal(size=150)
            model = LaplaceRegressor(random_state=seed).fit(x[:, None], y)
            parts = x, np.linspace(-0.7, 0.7, 100), np.concatenate([np.linspace(-2.5, -2, 50), np.linspace(2, 2.5, 50)])
            share = []
            for part in parts:
                std = model.predict_std(part[:, None], kind="epistemic")
                share.append(np.mean(np.abs(model.predict(part[:, None]) - curve(part)) < LEVEL * std))
            shares.append(share)
        yield [name, *np.mean(shares, 0).tolist()]


def shifted(data: Path) -> Iterator[list[Any]]:
    """AUROC of shifted rows against further rows, of the default and of an isolation forest."""
    for name, n_rows in SHIFTED:
        X, y, X_new, _ = class_peers.parts(data, name, n_rows, 0, False)
        model = LaplaceClassifier(random_state=0).fit(X, y)
        _, coded = many_rows.coding(X)
        forest = IsolationForest(random_state=0).fit(np.nan_to_num(np.asarray(coded(X), float)))
        judges = (
            model.score_samples,
            lambda rows, coded=coded, forest=forest: forest.score_samples(
                np.nan_to_num(np.asarray(coded(rows), float))
            ),
        )
        for kind in ("times ten", "swapped", "unknown levels"):
            found = [
                [_auroc(judge(X_new), judge(rows)) for judge in judges] for rows in _changes(X_new, kind) if len(rows)
            ]
            if found:
                yield [name, kind, *np.mean(found, 0).tolist()]


def pictures(data: Path) -> Iterator[list[Any]]:
    """AUROC of clothes against digits, for both predictives."""
    X, y, X_new, _ = quality_sets.digits(data / "images", 0, False, None)
    rows = np.vstack([X_new[:600], quality_sets.clothes(data / "images", False)[:600]])
    model = LaplaceClassifier(random_state=0).fit(X, y)
    for predictive in ("glm", "auto"):
        model.refit_laplace(predictive=predictive)
        score, entropy = model.score_samples(rows), model.predict_entropy(rows, kind="epistemic")
        yield [len(y), predictive, _auroc(score[:600], score[600:]), _auroc(-entropy[:600], -entropy[600:])]


def _changes(X: pd.DataFrame, kind: str) -> Iterator[pd.DataFrame]:
    """Three tables with changed random columns; none if the table lacks columns of the kind."""
    rng, numbers = np.random.default_rng(0), [name for name in X.select_dtypes("number") if X[name].nunique() > 2]
    named = list(X.select_dtypes(exclude="number"))
    for _ in range(3):
        if kind == "times ten":
            name = rng.choice(numbers)
            yield X.assign(**{name: 10 * X[name]})
        elif kind == "swapped":
            first, second = rng.choice(numbers, 2, replace=False)
            yield X.assign(**{first: X[second], second: X[first]})
        elif named:
            yield X.assign(**{str(rng.choice(named)): "never seen"})


def _auroc(usual: np.ndarray, odd: np.ndarray) -> float:
    labels = np.concatenate([np.zeros(len(usual)), np.ones(len(odd))])
    return float(roc_auc_score(labels, -np.concatenate([usual, odd])))


def main() -> None:
    """Run the benchmark; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("far"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    tables = {"distance": (["table", "predictive", "on the data", *map(str, DISTANCES)], by_distance)}
    if not options.quick:
        if options.data is None:
            parser.error("--data DIR is needed, unless --quick is given.")
        tables |= {
            "curves": (["curve", "data", "gap", "margin"], curves),
            "later": (["year", "auto", "glm"], later),
            "scores": (["table", "rows", "outside", "loss", "difference"], lambda: scores(options.data)),
            "shifted": (["table", "change", "score_samples", "isolation forest"], lambda: shifted(options.data)),
            "pictures": (
                ["digits", "predictive", "score_samples", "epistemic entropy"],
                lambda: pictures(options.data),
            ),
        }
        options.out.mkdir(parents=True, exist_ok=True)
    for title, (columns, part) in tables.items():
        print(header(title, columns))
        found = []
        for cells in part():
            found.append(cells)
            print(line(cells), flush=True)
        if not options.quick:
            pd.DataFrame(found, columns=columns).to_csv(options.out / f"far_{title}.csv", index=False)


if __name__ == "__main__":
    main()
