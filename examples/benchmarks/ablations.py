"""Ablations: log-likelihood of a default fit against that of fits with one rule changed or removed.

``python examples/benchmarks/ablations.py --data DIR --out OUT`` measures all ablations and writes ``ablations.csv``.
``--only one_repeat,four_folds`` selects ablations, ``--splits 2`` the number of splits, and ``--jobs 2`` the number of
processes, with one thread each. A later run reads finished fits from ``OUT/ablation_fits.csv``; use an empty folder for
another version of the package.
``python examples/benchmarks/ablations.py --list`` prints the ablations.

Scored rows are held out from the training parts of the tables; test parts are never used. An ablation replaces
constants or functions of the package, or sets options of the estimator. Scores are log-likelihoods in nats per row;
regression targets of benchmark tables are in units of their standard deviation. The table ``linear`` is generated.
``many_rows.py``, ``uci_sets.py`` and ``quality_sets.py`` describe DIR. ``--quick`` needs no data: it compares two
ablations on generated tables.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import pkgutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import class_peers
import many_rows
import numpy as np
import pandas as pd
import torch

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor
from sklearn_laplace._training import recipe

MOST_SCORED = 3000
SMALL, MANY, FEW = (500,), (3000,), (20,)
TABLES = ("boston", "concrete", "energy", "wine", "power", "elevators", "sml", "california", "diamonds", "bike")
LARGE = ("power", "elevators", "sml", "california", "diamonds", "bike")
CLASSES = (
    *("breast_cancer", "australian", "glass", "waveform", "satellite", "magic", "credit_g", "phoneme"),
    *("california 3", "diamonds 7", "bike 2"),
)
NO_LINEAR = {"_ensemble.conditions.leaves_layers_open": lambda parameters: False}


@dataclass(frozen=True)
class Ablation:
    """A change of the default.

    ``replaced`` maps paths of constants, functions or methods to their replacements; names without a path are those of
    ``_training/recipe.py``.
    """

    title: str
    replaced: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    kind: str = "regression"  # "classes" or "counts"
    rows: tuple[int, ...] = SMALL  # numbers of training rows
    tables: tuple[str, ...] = TABLES


of_classes = partial(Ablation, kind="classes", tables=CLASSES)
smooth, detailed = recipe.REPEATS
candidates, *sizes = recipe.TRIAL
without_dropout = tuple(pair for pair in candidates if not pair[1])
of_class_trial = recipe.CLASS_TRIAL[1:]
ABLATIONS = {
    "one_repeat": Ablation("no second repeat", {"REPEATS": (smooth,), "STEPS_AT_1000": recipe.STEPS_AT_1000[:1]}),
    "both_smooth": Ablation("both repeats with the settings of the first", {"REPEATS": (smooth, smooth)}),
    "both_detailed": Ablation("both repeats with the settings of the second", {"REPEATS": (detailed, detailed)}),
    "equal_shares": Ablation("equal weights of the accurate repeats", {"_ensemble.joint_members.EM_STEPS": 0}),
    "four_folds": Ablation("four folds", {"FOLDS_OF_FEW": recipe.FOLDS_OF_MANY}),
    "no_linear": Ablation("no linear members", NO_LINEAR),
    "no_linear_function": Ablation("no linear members", NO_LINEAR, rows=(60, 150), tables=("linear",)),
    "one_net_few": Ablation("one net for few rows", options={"n_members": 1}, rows=FEW),
    "no_trial": Ablation("a trial of one candidate without dropout", {"TRIAL": (candidates[1:2], *sizes)}),
    "no_dropout": Ablation("the two candidates without dropout", {"TRIAL": (without_dropout, *sizes)}),
    "more_steps": Ablation("1.5 times the steps", {"STEPS_AT_1000": tuple(1.5 * n for n in recipe.STEPS_AT_1000)}),
    "silu": Ablation("silu in the second repeat", {"DETAILED_ROWS": 0}),
    "no_bins": Ablation("no bins", options={"n_bins": None}),
    "no_exact": Ablation("no repeat with exact steps", {"_ensemble.joint_members.MOST_ADDED": 0.0}),
    "free_exact": Ablation("no minimum weight of exact steps", {"_ensemble.joint_members.LEAST_EXACT": 0.0}),
    "no_lead": Ablation(
        "joint training with almost no noise",
        {"_ensemble.train_members.PILOT_NOISELESS": 0.0},
        tables=("yacht", "energy"),
        rows=(200,),
    ),
    "constant_noise": Ablation("constant noise", options={"likelihood": "gaussian"}),
    "normal_tails": Ablation(
        "no heavy tails", {"_ensemble.calibration.USUAL_SPREAD": 0.0, "_ensemble.calibration.SPREADS": (0.0,)}
    ),
    "wide": Ablation("no halving of units", {"NOISY": math.inf}, rows=MANY, tables=LARGE),
    "fewer_steps_many": Ablation(
        ".6 of the steps", {"STEPS_AT_1000": tuple(0.6 * n for n in recipe.STEPS_AT_1000)}, rows=MANY, tables=LARGE
    ),
    "one_net": Ablation("one net", options={"n_members": 1}),
    "one_net_constant_noise": Ablation("one net, constant noise", options={"n_members": 1, "likelihood": "gaussian"}),
    "class_one_repeat": of_classes(
        "no second repeat", {"REPEATS": (smooth,), "STEPS_AT_1000": recipe.STEPS_AT_1000[:1]}
    ),
    "class_eight_folds": of_classes("eight folds", {"FOLDS_OF_MANY": recipe.FOLDS_OF_FEW}),
    "class_one_net_few": of_classes(
        "one net for few rows", options={"n_members": 1}, rows=FEW, tables=("breast_cancer", "australian", "magic")
    ),
    "class_no_trial": of_classes(
        "a trial of one candidate without dropout", {"CLASS_TRIAL": (candidates[1:2], *of_class_trial)}
    ),
    "class_no_dropout": of_classes(
        "two candidates without dropout", {"CLASS_TRIAL": (without_dropout, *of_class_trial)}
    ),
    "class_long_trial": of_classes("the longer trial of regression", {"CLASS_TRIAL": recipe.TRIAL}),
    "class_all_cycles": of_classes(
        "weights after the last cycle", {"_training.batched.Training.keep_if_best": lambda self, score: True}
    ),
    "class_no_factors": of_classes("no factors of the logits", {"_training.stacked.MOST_FACTOR": 1.0 + 1e-9}),
    "class_more_steps": of_classes("twice the steps", {"STEPS_AT_1000": tuple(2 * n for n in recipe.STEPS_AT_1000)}),
    "class_range": of_classes("no added variance outside the range", {"laplace.extrapolation.FARTHEST": 0.0}),
    "counts_one_net": Ablation("one net", {}, {"n_members": 1}, "counts", (120, 300, 600), ("bike",)),
}
QUICK = ("four_folds", "class_no_factors")
DEFAULTS = {f"default of {kind}": Ablation("", kind=kind) for kind in ("regression", "classes", "counts")}
COLUMNS = ("ablation", "change", "data", "mean gain of the default", "smallest gain", "largest gain")
FITS = ["ablation", "table", "rows", "split", "log-likelihood"]


@contextmanager
def replaced(names: Mapping[str, Any]) -> Iterator[None]:
    """Replace constants, functions and methods, also in modules that import them."""
    before: list[tuple[Any, str, Any]] = []
    for path, value in names.items():
        place, _, name = path.rpartition(".")
        first = pkgutil.resolve_name(f"sklearn_laplace.{place or '_training.recipe'}")
        old = getattr(first, name)
        package = [module for key, module in sys.modules.items() if key.startswith("sklearn_laplace")]
        for owner in (first, *(module for module in package if vars(module).get(name) is old and module is not first)):
            before.append((owner, name, old))
            setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, old in before:
            setattr(owner, name, old)


def parts(folder: Path | None, kind: str, table: str, n_rows: int, split: int) -> tuple[Any, ...]:
    """Training rows and scored rows of a table, both of its training part."""
    if folder is None:
        X, y = many_rows.friedman(n_rows + 500)
        y = (y > np.median(y)).astype(int) if kind == "classes" else y
        return X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:]
    if table == "linear":
        random = np.random.default_rng(split)
        X = pd.DataFrame(random.normal(size=(n_rows + MOST_SCORED, 8)))
        y = X.to_numpy() @ random.normal(size=8) / 8**0.5 + 0.7 * random.normal(size=len(X))
        return X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:]
    if kind == "classes":
        return class_peers.parts(folder, table, n_rows, split, test=False)
    X, y, X_new, y_new = many_rows.parts(folder, table, split, test=False)
    random = np.random.default_rng(split)
    few, new = random.permutation(len(y))[:n_rows], random.permutation(len(y_new))[:MOST_SCORED]
    X, y, X_new, y_new = X.iloc[few].reset_index(drop=True), y[few], X_new.iloc[new], y_new[new]
    unit = 1.0 if kind == "counts" else float(np.std(y))
    return X, y / unit, X_new, y_new / unit


def measured(folder: Path | None, name: str, table: str, n_rows: int, split: int) -> float:
    """Mean log-likelihood of the scored rows, in nats."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ablation = DEFAULTS.get(name) or ABLATIONS[name]
    X, y, X_new, y_new = parts(folder, ablation.kind, table, n_rows, split)
    with replaced(ablation.replaced):
        if ablation.kind == "classes":
            p = LaplaceClassifier(random_state=split, **ablation.options).fit(X, y).predict_proba(X_new)
            logs = np.log(np.maximum(p[np.arange(len(y_new)), y_new], 1e-300))
        else:
            options = ablation.options | ({"likelihood": "negative_binomial"} if ablation.kind == "counts" else {})
            model = LaplaceRegressor(random_state=split, **options).fit(X, y)
            logs = model.log_predictive_density(X_new, y_new)
    return float(logs.mean())


def cases(names: Iterable[str], n_splits: int, quick: bool) -> list[tuple[str, str, int, int]]:
    """Ablation, table, number of rows and split of all fits; defaults of all cases come first."""
    listed = [
        (name, table, n_rows, split)
        for name in names
        for table in (("friedman",) if quick else ABLATIONS[name].tables)
        for n_rows in ((200,) if quick else ABLATIONS[name].rows)
        for split in range(n_splits)
    ]
    defaults = {(f"default of {ABLATIONS[name].kind}", *case): None for name, *case in listed}
    return [*defaults, *listed]


def line(name: str, found: Mapping[tuple[Any, ...], float]) -> list[str]:
    """Row of the table: mean gain of the default ± standard error, and the smallest and largest gain on a table."""
    ablation, gains = ABLATIONS[name], {}
    for (other, *case), score in found.items():
        if other == name:
            gains.setdefault(case[0], []).append(found[f"default of {ablation.kind}", *case] - score)
    every = np.concatenate(list(gains.values()))
    error = every.std(ddof=1) / math.sqrt(len(every)) if len(every) > 1 else math.nan
    of_table = sorted((float(np.mean(values)), table) for table, values in gains.items())
    extremes = [f"{gain:+.3f} ({table})" for gain, table in (of_table[0], of_table[-1])]
    cells = [f"{every.mean():+.3f} ± {error:.3f}", *(extremes if len(of_table) > 1 else ("", ""))]
    rows = f"{'up to ' if ablation.rows == SMALL else ''}{', '.join(map(str, ablation.rows))} rows"
    data = f"{len(every)} fits of {ablation.kind}, {rows}"
    return [f"`{name}`", ablation.title, data, *(cell.replace("-", "−") for cell in cells)]


def main() -> None:
    """Run the benchmark; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the tables")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--only", default=",".join(ABLATIONS), help="names of ablations, separated by commas")
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print the ablations and end")
    parser.add_argument("--quick", action="store_true", help="two ablations on generated tables")
    options = parser.parse_args()
    if options.list:
        print(*(f"{name}: {ablation.title} ({ablation.kind})" for name, ablation in ABLATIONS.items()), sep="\n")
        return
    if options.data is None and not options.quick:
        parser.error("--data is needed: the folder of the tables. --quick runs without data.")
    names = QUICK if options.quick else options.only.split(",")
    if unknown := set(names) - set(ABLATIONS):
        parser.error(f"--only names {sorted(unknown)}, which are not ablations; --list prints those that there are.")
    wanted = cases(names, 1 if options.quick else options.splits, options.quick)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "ablation_fits.csv"
    found: dict[tuple[Any, ...], float] = {}
    if path.exists():
        found = {tuple(case): score for *case, score in pd.read_csv(path).to_numpy().tolist()}
    todo = [case for case in wanted if case not in found]
    folder = None if options.quick else options.data
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        for case, score in zip(todo, pool.map(partial(measured, folder), *zip(*todo, strict=True)), strict=True):
            found[case] = score
            pd.DataFrame([[*case, score]], columns=FITS).to_csv(path, mode="a", header=not path.exists(), index=False)
            print(*case, f"{score:.4f}", flush=True)
    found = {case: found[case] for case in wanted}
    table = pd.DataFrame([line(name, found) for name in names], columns=COLUMNS)
    table.to_csv(options.out / "ablations.csv", index=False)
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
