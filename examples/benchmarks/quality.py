"""Predictive quality of the defaults and of peers on the same rows: regression, gaps, classes, pictures, mixed tables.

The estimators are called as by a user, ``LaplaceRegressor(random_state=split)``, in one configuration for all sets;
``quality_peers.py`` describes the peers. Each part has a table of means, and a paired comparison of the default with
all other models (``quality_report.py`` has the formula of the standard error). The parts are:

- regression: five UCI tables, splits 0–9. RMSE; log-likelihood, nats per row, in the units of y; CRPS; coverage and
  mean width of 95 % intervals. With ``--test``, also the published results of tuned MC dropout for each split (Gal &
  Ghahramani).
- gap: for each column, the middle third is held out and scored; mean, median and worst score.
- classification: four UCI tables, ten seeds. NLL, accuracy, calibration error (10 bins), Brier score. "default, plugin"
  is the softmax of the default's own net, without Laplace.
- ood: nets trained on 8,000 digits; AUROC of the predictive entropy, digits against clothes.
- tables: mixed types with missing values, as returned by the CSV reader. Two tables have classes.

``python examples/benchmarks/quality.py --data DIR --out DIR --test`` writes one CSV for each part, with one row for
each set, split and model. Existing rows are recomputed only with ``--fresh``. The script prints markdown tables and
draws a figure of each part. Without ``--test``, rows held out of the training parts are scored (``uci_sets.py``,
``quality_sets.py``). ``--part``, ``--only`` and ``--models`` take names separated by semicolons; ``--models none`` only
reads the CSV. ``--option name=value`` adds a configuration of the estimators; ``--quick`` runs one split of a small set
with the cheap peers.
"""

from __future__ import annotations

import argparse
import ast
import csv
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import quality_peers as peers
import quality_report as report
import quality_sets
import torch
import uci_sets
from sklearn.metrics import roc_auc_score

from sklearn_laplace import LaplaceClassifier, LaplaceRegressor, metrics

CONFIGURATIONS: dict[str, dict[str, Any]] = {"default": {}}
"""Configurations of the estimators; the first is compared with all other models."""
DEFAULT = next(iter(CONFIGURATIONS))
PLUGIN = ", plugin"

REGRESSION = {"log-likelihood": 1, "RMSE": -1, "CRPS": -1, "coverage": 0, "width": 0}
CLASSIFICATION = {"NLL": -1, "accuracy": 1, "ECE": -1, "Brier": -1}
OOD = {"NLL": -1, "accuracy": 1, "AUROC": 1}
"""Metrics, with 1 if larger is better, −1 if smaller is better, and 0 if not compared. The first is the main one."""
COMPARED = 3
SAMPLED = "ood", "tables", "class_tables"
"""Parts for which ``--rows`` limits the rows; the results get a separate CSV."""
LEVEL, BINS = 0.95, 10

Family = Callable[..., Iterator[tuple[str, Any, float]]]
NUMBERS: dict[Family, tuple[str, ...]] = {
    peers.bayesian_ridge: ("BayesianRidge",),
    peers.regression_nets: ("MAP", "laplace-torch", "laplace-torch, last layer", "ensemble"),
    peers.ngboost: ("NGBoost",),
    peers.gaussian_process: ("Gaussian process",),
}
CLASSES: dict[Family, tuple[str, ...]] = {
    peers.logistic: ("logistic",),
    peers.class_nets: ("MAP, 2 × 50", "laplace-torch, 2 × 50"),
}
TABLES: dict[Family, tuple[str, ...]] = {
    peers.constant: ("constant",),
    peers.boosting: ("HistGradientBoosting",),
    peers.ngboost: ("NGBoost",),
}
CLASS_TABLES: dict[Family, tuple[str, ...]] = {
    peers.constant_classes: ("constant",),
    peers.boosting_classes: ("HistGradientBoosting",),
    peers.ngboost_classes: ("NGBoost",),
    peers.logistic: ("logistic",),
}
CHEAP = "BayesianRidge", "logistic", "constant"

GAP_PUBLISHED = {
    "boston": (-3.11, -4.00, -2.70),
    "concrete": (-3.63, -5.17, -3.46),
    "energy": (-5.42, -8.10, -9.09),
    "wine": (-1.13, -1.27, -0.965),
    "yacht": (-2.57, -2.34, -2.11),
}
GAP_MODELS = "ensemble, published", "MC dropout, published", "mean-field VI, published"
"""Mean log-likelihood over the gap splits: Foong et al. (2019)."""


# ---------------------------------------------------------------------- data sets and scores


@dataclass(frozen=True)
class Part:
    """Data sets with the same metrics and models.

    ``rows(name, split)`` returns X, y for training and X, y for scoring; ``judge(model, X, y)`` returns the metrics in
    their order.
    """

    name: str
    sets: Sequence[str]
    splits: Callable[[str], int]
    rows: Callable[[str, int], tuple[Any, ...]]
    judge: Callable[[Any, Any, np.ndarray], list[float]]
    ours: Callable[..., Iterator[tuple[str, Any, float]]]
    families: dict[Family, tuple[str, ...]]
    metrics: dict[str, int]
    seeds: Sequence[int] = tuple(range(100))
    with_plugin: bool = False


def parts_of(options: argparse.Namespace) -> dict[str, Part]:
    data, test, count = options.data, options.test, options.splits
    numbers = {"judge": judged_numbers, "ours": our_numbers, "families": NUMBERS, "metrics": REGRESSION}
    classes = {"judge": judged_classes, "ours": our_classes, "metrics": CLASSIFICATION, "with_plugin": True}

    def uci(reader: Any, folder: str) -> Callable[[str, int], tuple[Any, ...]]:
        return lambda name, split: reader(data / folder / f"{name}.npz", split, test)

    def table(name: str, split: int) -> tuple[Any, ...]:
        return quality_sets.table_parts(data / "tables" / f"{name}.csv.gz", split, test, options.rows)

    def gaps(name: str) -> int:
        found = uci_sets.n_gap_splits(data / "uci_regression" / f"{name}.npz")
        return min(found, count or found)

    def judged_pictures(model: Any, X: np.ndarray, y: np.ndarray) -> list[float]:
        outside = quality_sets.clothes(data / "images", test)
        return judged_strangers(model, X, y, outside)

    def pictures(name: str, split: int) -> tuple[Any, ...]:
        return quality_sets.digits(data / "images", split, test, options.rows)

    uci_rows, gap_rows = uci(uci_sets.parts, "uci_regression"), uci(uci_sets.gap_parts, "uci_regression")
    class_rows = uci(uci_sets.class_parts, "uci_classification")
    seeds = uci_sets.CLASS_SEEDS
    found = [
        Part("regression", uci_sets.TABLES, lambda name: count or 10, uci_rows, **numbers),
        Part("gap", uci_sets.TABLES, gaps, gap_rows, **numbers),
        Part("classification", uci_sets.CLASS_TABLES, lambda name: count or len(seeds), class_rows,
             families=CLASSES, seeds=seeds, **classes),
        Part("ood", ["digits"], lambda name: count or 1, pictures, judge=judged_pictures, ours=our_classes,
             families={peers.class_nets: CLASSES[peers.class_nets]}, metrics=OOD, with_plugin=True),
        Part("tables", list(quality_sets.TARGETS), lambda name: count or 3, table, **{**numbers, "families": TABLES}),
        Part("class_tables", list(quality_sets.CLASS_TARGETS), lambda name: count or 3, table,
             families=CLASS_TABLES, **classes),
    ]  # fmt: skip
    return {part.name: part for part in found}


def our_numbers(
    X: Any, y: np.ndarray, seed: int, name: str, options: dict[str, Any]
) -> Iterator[tuple[str, Any, float]]:
    start = time.process_time()
    model = LaplaceRegressor(random_state=seed, **options).fit(X, y)
    yield name, model, time.process_time() - start


def our_classes(
    X: Any, y: np.ndarray, seed: int, name: str, options: dict[str, Any]
) -> Iterator[tuple[str, Any, float]]:
    """The default, then the same fit without Laplace; the order matters, because the second changes the link."""
    start = time.process_time()
    model = LaplaceClassifier(random_state=seed, **options).fit(X, y)
    seconds = time.process_time() - start
    yield name, model, seconds
    yield name + PLUGIN, model.set_params(link="plugin"), seconds


def judged_numbers(model: Any, X: Any, y: np.ndarray) -> list[float]:
    error = np.sqrt(np.mean((model.predict(X) - y) ** 2))
    covered = metrics.coverage(model, X, y, confidence_level=LEVEL)
    width = metrics.mean_width(model, X, confidence_level=LEVEL)
    return [metrics.neg_nlpd(model, X, y), float(error), -metrics.neg_crps(model, X, y), covered, width]


def judged_classes(model: Any, X: Any, y: np.ndarray) -> list[float]:
    p = model.predict_proba(X)
    true = y[:, None] == model.classes_
    brier = ((p - true) ** 2).sum(1).mean()
    correct = true[np.arange(len(y)), p.argmax(1)]
    return [-metrics.neg_nlpd(model, X, y), correct.mean(), calibration_error(p.max(1), correct), float(brier)]


def calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Mean distance between confidence and accuracy over ten equal bins of confidence, weighted by rows.

    >>> round(calibration_error(np.array([0.75, 0.75, 0.95]), np.array([True, False, True])), 4)
    0.1833
    """
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [abs(np.sum(confidence[bins == b] - correct[bins == b])) for b in range(BINS)]
    return float(np.sum(gaps) / len(confidence))


def judged_strangers(model: Any, X: np.ndarray, y: np.ndarray, outside: np.ndarray) -> list[float]:
    loss, accuracy, *_ = judged_classes(model, X, y)
    p = model.predict_proba(np.concatenate([X, outside]))
    entropy = -(p * np.log(p.clip(min=np.finfo(float).tiny))).sum(1)
    return [loss, accuracy, float(roc_auc_score(np.arange(len(p)) >= len(X), entropy))]


# ---------------------------------------------------------------------- running and resuming


def run(
    part: Part, sets: Sequence[str], wanted: Callable[[str], bool], configurations: dict[str, Any], path: Path
) -> None:
    """Append the missing results to the CSV."""
    known = {(row["set"], row["split"], row["model"]) for row in read(path)}
    families = {
        partial(part.ours, name=name, options=options): (name, name + PLUGIN) if part.with_plugin else (name,)
        for name, options in configurations.items()
    } | part.families
    for name in sets:
        for split in range(part.splits(name)):
            todo = [
                (family, missing)
                for family, models in families.items()
                if (missing := {model for model in models if wanted(model) and (name, split, model) not in known})
            ]
            if not todo:
                continue
            X, y, X_new, y_new = part.rows(name, split)
            sizes = {"rows": len(y), "judged": len(y_new)}
            for family, missing in todo:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    for model, estimator, seconds in family(X, y, seed=part.seeds[split]):
                        if model not in missing:
                            continue
                        found = dict(zip(part.metrics, part.judge(estimator, X_new, y_new), strict=True))
                        extra = {"seconds": seconds, "warnings": len(caught)}
                        write(path, {"set": name, "split": split, "model": model, **sizes, **found, **extra})
                        print(f"{name} {split} {model}: {', '.join(f'{k} {v:.4g}' for k, v in found.items())}, "
                              f"{seconds:.1f} s", flush=True)  # fmt: skip


def read(path: Path) -> list[report.Row]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [{k: v if k in ("set", "model") else int(v) if k == "split" else float(v) for k, v in row.items()}
            for row in rows]  # fmt: skip


def write(path: Path, row: report.Row) -> None:
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)


def forget(path: Path, drop: Callable[[report.Row], bool]) -> None:
    rows = read(path)
    path.unlink(missing_ok=True)
    for row in rows:
        if not drop(row):
            write(path, row)


def mc_dropout(path: Path, sets: Sequence[str], splits: int) -> list[report.Row]:
    """Results of Gal & Ghahramani, split by split."""
    found = []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for model, suffix in {"MC dropout, tuned": "tuned_1x50", "MC dropout, 2 × 50": "2x50"}.items():
                metric = dict.fromkeys(REGRESSION, np.nan) | {"seconds": np.nan, "warnings": np.nan}
                metric |= {"RMSE": float(row[f"rmse_{suffix}"]), "log-likelihood": float(row[f"loglik_{suffix}"])}
                if row["set"] in sets and int(row["split"]) < splits:
                    found.append({"set": row["set"], "split": int(row["split"]), "model": model, **metric})
    return found


def show(part: Part, rows: list[report.Row], picture: Path, judged: str) -> None:
    main = next(iter(part.metrics))
    print(f"\n{part.name}: {judged}")
    summary = "median, worst" if part.name == "gap" else "± s.e."
    for line in report.means(rows, [*part.metrics, "seconds", "warnings"], main, summary):
        print(line)
    if DEFAULT not in report.names(rows, "model"):
        return
    compared = {metric: sign for metric, sign in list(part.metrics.items())[:COMPARED] if sign}
    for line in report.differences(rows, DEFAULT, compared):
        print(line)
    title = f"gain of the default in {main}, nats a row, ± s.e.; {part.name}, {judged}"
    if part.metrics[main] < 0:
        title = title.replace(f"in {main}", "in log-likelihood")
    report.figure(rows, DEFAULT, main, part.metrics[main], title, picture)
    print(f"\nsaved {picture}")


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    parts = parts_of(options)
    configurations = CONFIGURATIONS | (
        {", ".join(options.option): dict(map(option, options.option))} if options.option else {}
    )
    asked = options.part.split(";") if options.part else list(parts)
    asked += ["class_tables"] if "tables" in asked and "class_tables" not in asked else []
    for part in (parts[name] for name in asked):
        sets = [name for name in part.sets if not options.only or name in options.only.split(";")]
        sets = sets[:1] if options.quick else sets
        kind = "test" if options.test else "inner"
        kind += f"_{options.rows}" if options.rows and part.name in SAMPLED else ""
        path = options.out / f"{part.name}_{kind}.csv"
        names = [name.strip() for name in options.models.split(";")]
        if options.quick:
            names = [*configurations, DEFAULT + PLUGIN, *CHEAP]
        wanted = partial(_is_wanted, names)
        if options.fresh:
            forget(path, lambda row, sets=sets, wanted=wanted: row["set"] in sets and wanted(row["model"]))
        run(part, sets, wanted, configurations, path)
        rows = [row for row in read(path) if row["set"] in sets]
        if part.name == "regression" and options.test:
            rows += mc_dropout(options.data / "uci_regression" / "mc_dropout_per_split.csv", sets, options.splits or 10)
        if rows:
            show(part, rows, options.out / f"{part.name}_{kind}.png", "test parts" if options.test else "held-out rows")
        if part.name == "gap" and options.test:
            print(uci_sets.header("Published, mean log-likelihood", ["table", *GAP_MODELS]))
            for name in sets:
                print(uci_sets.line([name, *GAP_PUBLISHED[name]]))


def _is_wanted(names: Sequence[str], model: str) -> bool:
    return list(names) == [""] or model in names


def option(text: str) -> tuple[str, Any]:
    """Parse name=value into a pair; the value is any Python literal, or text without quotes."""
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of uci_regression, uci_classification, tables and images"
    )
    parser.add_argument("--out", type=Path, default=Path("quality"), help="folder of the CSVs and figures")
    parser.add_argument("--part", default="", help="regression;gap;classification;ood;tables, all by default")
    parser.add_argument("--only", default="", help="names of sets, as in yacht;boston")
    parser.add_argument("--models", default="", help="names of models, all by default")
    parser.add_argument("--splits", type=int, help="how many; all by default, 3 of the tables, 1 of the pictures")
    parser.add_argument("--rows", type=int, help="number of rows of tables and pictures, all by default")
    parser.add_argument("--option", action="append", help="option of a further configuration, as in link=bridge")
    parser.add_argument("--test", action="store_true", help="score the test parts: for final results only")
    parser.add_argument("--fresh", action="store_true", help="recompute the selected sets and models")
    parser.add_argument(
        "--quick", action="store_true", help="one split of the first set of each part, cheap peers, 500 rows"
    )
    options = parser.parse_args()
    if options.quick:
        options.splits, options.rows = 1, 500
    return options


if __name__ == "__main__":
    main()
