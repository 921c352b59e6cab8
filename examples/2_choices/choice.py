"""Shared code of the comparisons: real tables, measurements, printing and drawing.

*MAP training* is the unit of all times. It trains one net with the same layers to the mode of its posterior, with prior
and noise selected by the evidence. The posterior is minimal: diagonal, and for the last layer only. On each split, MAP
training runs first, followed by each choice in turn. A time is the run time of a choice divided by that of MAP
training, as the median over the splits.

*Gain* is the mean log-likelihood of a held-out row, minus that of the reference on the same rows. Its standard error is
that of the paired differences, corrected for the overlap of the splits: √((1/J + n_test / n_train) s²), Nadeau & Bengio
(2003).
"""

from __future__ import annotations

import argparse
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.model_selection import train_test_split
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor

COLORS = "#0072B2", "#E69F00", "#009E73", "#CC79A7"  # Okabe and Ito: safe for colour-blind readers
MARKERS = "o", "s", "^", "D"


# ---------------------------------------------------------------------- tables


@dataclass(frozen=True)
class Part:
    """One split: training rows and test rows."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


@dataclass(frozen=True)
class Table:
    """Data set and its estimator.

    Parameters
    ----------
    name : str
    estimator : type
        LaplaceRegressor or LaplaceClassifier.
    load : callable
        Function without arguments that returns X and y.
    n_train, n_test : int
        Rows of each split.
    options : dict
        Parameters of the estimator that are the same in all comparisons.
    """

    name: str
    estimator: type
    load: Callable[[], tuple[np.ndarray, np.ndarray]]
    n_train: int
    n_test: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def classes(self) -> bool:
        return self.estimator is LaplaceClassifier

    def small(self) -> Table:
        """Return a table with a fifth of the rows and a small net, for ``--quick``."""
        options = {**self.options, "hidden_layer_sizes": (5,)}
        return replace(self, n_train=self.n_train // 5, n_test=self.n_test // 5, options=options)

    def part(self, split: int) -> Part:
        """Return a random split, stratified by class."""
        X, y = self.load()
        sizes = {"train_size": self.n_train, "test_size": self.n_test}
        X, X_test, y, y_test = train_test_split(X, y, random_state=split, stratify=y if self.classes else None, **sizes)
        return Part(X, y, X_test, y_test)

    def model(self, split: int, **parameters: Any) -> Any:
        """Return a new estimator, with one net unless n_members is given."""
        return self.estimator(**{"n_members": 1, "random_state": split} | dict(self.options) | parameters)

    def map_training(self, split: int) -> Any:
        """Return the estimator whose fit is the unit of all times (see the module docstring)."""
        noise = {} if self.classes else {"sigma_noise": "evidence"}
        next_to_none = {"subset_of_weights": "last_layer", "hessian_structure": "diag"}
        return self.model(split, prior_precision="evidence", **noise, **next_to_none)


def _five_digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X[y < 5], y[y < 5]


SMALL = {"hidden_layer_sizes": (20,)}
DIABETES = Table(
    "diabetes", LaplaceRegressor, partial(load_diabetes, return_X_y=True), 309, 133, {"likelihood": "gaussian"}
)
CANCER = Table("breast cancer", LaplaceClassifier, partial(load_breast_cancer, return_X_y=True), 398, 171, SMALL)
DIGITS = Table("digits", LaplaceClassifier, partial(load_digits, return_X_y=True), 300, 300, SMALL)
FIVE_DIGITS = Table("digits 0-4", LaplaceClassifier, _five_digits, 150, 100, SMALL)


# ---------------------------------------------------------------------- measuring


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the run time of a function, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def map_log_likelihood(model: Any, part: Part) -> float:
    """Return the mean log-likelihood of a test row without the posterior.

    For classification, it uses the net's own probabilities. For regression, it uses the net's mean and the standard
    deviation of the training residuals.
    """
    if isinstance(model, LaplaceClassifier):
        return float(model.refit_laplace(link="plugin").log_predictive_density(part.X_test, part.y_test).mean())
    variance = np.mean((part.y - model.predict(part.X)) ** 2)
    squares = (part.y_test - model.predict(part.X_test)) ** 2
    return float(-0.5 * np.mean(squares / variance + np.log(2 * np.pi * variance)))


def held_bytes(model: Any) -> int:
    """Return the bytes of all tensors in the members' curvatures and posteriors; shared memory counts once."""
    storages: dict[int, int] = {}
    seen: dict[int, Any] = {}  # keeps the values alive, so that their ids are not reused

    def walk(value: Any) -> None:
        if id(value) in seen:
            return
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, Mapping):
            walk(tuple(value.values()))
        elif isinstance(value, tuple | list):
            for item in value:
                walk(item)
        elif type(value).__module__.startswith("sklearn_laplace"):
            walk(getattr(value, "__dict__", {}))

    for member in getattr(model, "members_", [model]):
        walk((member.laplace_.curvature, member.posterior_))
    return sum(storages.values())


class Allocated(TorchDispatchMode):
    """Count the bytes of tensors created in its context: those alive now, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note((args, kwargs), made=False)
        result = func(*args, **(kwargs or {}))
        self._note(result, made=True)
        self.peak = max(self.peak, self.alive)
        return result

    def _note(self, values: Any, *, made: bool) -> None:
        for value in tree_leaves(values):
            if (
                isinstance(value, torch.Tensor)
                and (key := (storage := value.untyped_storage())._cdata) not in self.known
            ):
                self.known.add(key)
                size = storage.nbytes() if made else 0
                self.alive += size
                weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.alive -= size


def peak_bytes(work: Callable[[], Any]) -> int:
    """Return the peak bytes of the torch tensors that a function creates."""
    with Allocated() as allocated:
        work()
    return allocated.peak


def gain(values: Sequence[float], reference: Sequence[float], table: Table) -> tuple[float, float]:
    """Return the mean difference, and its standard error as in the module docstring (0 for a single split)."""
    difference = np.subtract(values, reference)
    if len(difference) == 1:
        return float(difference[0]), 0.0
    variance = difference.var(ddof=1) * (1 / len(difference) + table.n_test / table.n_train)
    return float(difference.mean()), float(np.sqrt(variance))


@dataclass
class Measured:
    """Results of one choice on one table, one value per split."""

    fit: list[float] = field(default_factory=list)
    predict: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    likelihood: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def row(self, table: Table, reference: Sequence[float]) -> list[float]:
        """Return medians of times and kilobytes, mean log-likelihood, gain, and the standard error of the gain."""
        middle = [np.median(values) for values in (self.fit, self.predict, self.memory)]
        return [*middle[:2], middle[2] / 1e3, float(np.mean(self.likelihood)), *gain(self.likelihood, reference, table)]


COLUMNS = {"fit": ".3f", "predict": ".4f", "kB held": ".1f", "log-lik.": ".4f", "gain": ".4f", "std. error": ".4f"}
MAP = "MAP alone"
Results = dict[str, Measured]


def posteriors(table: Table, choices: Mapping[str, Mapping[str, Any]], n_splits: int) -> Results:
    """Return the results of each choice on each split. Per split, all choices share a training run (``memory=``).

    For "MAP alone", the fit time is 1, the unit. Its prediction time is that of means or plugin probabilities.

    Parameters
    ----------
    table : Table
    choices : dict from name to parameters of the estimator
        They must not change the training.
    n_splits : int
    """
    results = {name: Measured() for name in (MAP, *choices)}
    with tempfile.TemporaryDirectory() as cache:
        for split in range(n_splits):
            part = table.part(split)
            unit, _ = seconds(lambda s=split, p=part: table.map_training(s).fit(p.X, p.y))
            shared = table.model(split, memory=cache).fit(part.X, part.y)
            time_of_means, _ = seconds(lambda m=shared, p=part: m.predict(p.X_test))
            append(results[MAP], 1.0, time_of_means / unit, 0, map_log_likelihood(shared, part), 0)
            for name, parameters in choices.items():
                model = table.model(split, memory=cache, **parameters)
                fit, _ = seconds(lambda m=model, p=part: m.fit(p.X, p.y))
                predict, score = seconds(lambda m=model, p=part: m.log_predictive_density(p.X_test, p.y_test).mean())
                n_weights = sum(mask.sum() for mask in model.subset_.values())
                append(results[name], fit / unit, predict / unit, held_bytes(model), score, n_weights)
    return results


def append(measured: Measured, fit: float, predict: float, memory: float, likelihood: float, weights: float) -> None:
    measured.fit.append(fit)
    measured.predict.append(predict)
    measured.memory.append(memory)
    measured.likelihood.append(float(likelihood))
    measured.weights.append(float(weights))


# ---------------------------------------------------------------------- the run


class Run:
    """Command-line options, printed tables and picture of a script."""

    def __init__(self, name: str, doc: str, n_splits: int = 5) -> None:
        parser = argparse.ArgumentParser(description=doc.split("\n")[0])
        parser.add_argument("--quick", action="store_true", help="smoke test: one split of few rows, a small net")
        parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="folder of the picture")
        options = parser.parse_args()
        self.name, self.quick, self.out = name, options.quick, options.out
        self.n_splits = 1 if self.quick else n_splits
        self.started = time.perf_counter()
        self.out.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(1)
        small = DIABETES.small()  # warm-up, so that no row includes one-time costs
        small.map_training(0).fit(small.part(0).X, small.part(0).y)
        print(doc.split("\n")[0] + (" (quick run: one split of few rows, no conclusions)" if self.quick else ""))

    def tables(self, *tables: Table, n_quick: int = 1) -> list[Table]:
        """Return the given tables; in a quick run, small versions of the first ``n_quick`` tables."""
        return [table.small() for table in tables[:n_quick]] if self.quick else list(tables)

    def table(self, title: str, columns: Mapping[str, str], rows: Mapping[str, Sequence[float]]) -> None:
        """Print numbers, one row per choice; ``columns`` maps each column title to a number format."""
        left = max(map(len, rows)) + 2
        print(f"\n{title}\n{'':{left}}" + "".join(f"{name:>14}" for name in columns))
        for name, values in rows.items():
            print(f"{name:{left}}" + "".join(f"{v:14{f}}" for v, f in zip(values, columns.values(), strict=True)))

    def save(self, figure: Figure) -> None:
        """Write the picture and print its path; call this last."""
        path = self.out / f"{self.name}.png"
        figure.savefig(path, dpi=100)
        plt.close(figure)
        print(f"\nsaved {path}\n{time.perf_counter() - self.started:.0f} s")


def dots(
    tables: Mapping[str, Mapping[str, Sequence[float]]],
    columns: Sequence[str],
    labels: Mapping[str, str],
    title: str,
) -> Figure:
    """Return a figure with a row of panels per table, one panel for each label.

    Parameters
    ----------
    tables : dict from title to the printed rows, whose last number is the standard error of the gain
    columns : sequence of str
        Names of the printed columns.
    labels : dict from column to axis label
        Columns to draw, on a logarithmic axis except "gain".
    title : str
    """
    heights = [len(rows) + 1 for rows in tables.values()]
    figure, axes = plt.subplots(
        *(len(tables), len(labels)),
        figsize=(3.1 * len(labels) + 1.2, max(0.27 * sum(heights) + 1.2 * len(tables), 3.2)),
        height_ratios=heights,
        sharey="row",
        layout="constrained",
        squeeze=False,
    )
    for line, color, (name, rows) in zip(axes, COLORS, tables.items(), strict=False):
        places = np.arange(len(rows))
        for axis, (column, label) in zip(line, labels.items(), strict=True):
            values = np.array([row[list(columns).index(column)] for row in rows.values()])
            if column == "gain":
                errors = [row[-1] for row in rows.values()]
                axis.errorbar(values, places, xerr=errors, fmt="o", color=color, ms=6, capsize=3)
                axis.axvline(0.0, color="#999999", lw=1)
                axis.xaxis.set_major_locator(MaxNLocator(4))
            else:
                shown = values > 0
                axis.plot(values[shown], places[shown], "o", color=color, ms=6)
                axis.set_xscale("log")
                logarithmic(axis.xaxis)
            axis.grid(axis="y", color="#dddddd", lw=0.8)
            axis.set_axisbelow(True)
            axis.set_xlabel(label)
        line[0].set_yticks(places, list(rows))
        line[0].set_ylim(len(rows) - 0.5, -0.5)
        line[0].set_title(name, loc="left", fontweight="bold", fontsize=11)
    figure.suptitle(title)
    return figure


def logarithmic(axis: Axis) -> None:
    """Set the ticks of a logarithmic axis after drawing, with plain numbers."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 50 * low else (1.0, 2.0, 3.0, 5.0), numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
